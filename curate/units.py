"""Sizes, durations and text of all kinds: parsed from what people type, printed as what people read."""

from __future__ import annotations

import json
import operator
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import orjson

from curate.errors import ConfigError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


MOST = 2**31 - 1
"""Of what is counted one by one, such as the words of an n-gram: more than any text has."""


LARGEST = 2**63 - 1
"""Of numbers of rows, shards and bytes: JSON and Arrow have no place for what is above."""
LARGEST_SEED = 2**64 - 1


def whole(what: str, value: Any, least: int, most: int = LARGEST) -> int:
    """Returns a whole number from `least` to `most` as Python has it; it may be one of numpy. Raises ConfigError, which
    names it `what`, for anything else.

    >>> whole("bands", 10**9, 1, most=1000)
    Traceback (most recent call last):
    curate.errors.ConfigError: bands is 1000000000, expected a whole number, at most 1,000
    """
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise ConfigError.of_argument(what, value, f" is {value!r}, expected a whole number, at least {least}")
    if number > most:
        raise ConfigError.of_argument(what, value, f" is {value!r}, expected a whole number, at most {most:,}")
    return number


def is_finite(value: float) -> bool:
    """Returns whether a number is one as a double, too: whole numbers of Python and of TOML have any number of digits.

    >>> is_finite(0.5), is_finite(-(10**300)), is_finite(10**400), is_finite(float("nan"))
    (True, True, False, False)
    """
    return abs(value) <= sys.float_info.max


def whole_seed(value: Any) -> int:
    """Returns a seed as Python has it. Raises ConfigError for what is none."""
    return whole("seed", value, 0, LARGEST_SEED)


def keep_whole(owner: Any, call: str, least: Mapping[str, int], most: int = LARGEST) -> None:
    """Makes fields of a frozen value whole numbers as Python has them. Raises ConfigError, which names the `call`, for
    what is none, or less than the `least` of its field."""
    for name, low in least.items():
        object.__setattr__(owner, name, whole(f"{call}{name}", getattr(owner, name), low, most))


_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?b?)\s*", re.IGNORECASE)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_bytes(text: str) -> int:
    """Returns the number of bytes that `text` names; `k`, `m`, `g`, `t` are powers of 1024, with or without `iB`.

    Raises ConfigError for anything else.

    >>> parse_bytes("256MiB"), parse_bytes("1k"), parse_bytes("12")
    (268435456, 1024, 12)
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} is not a size; write a number of bytes, or one like 64MiB or 2g")
    return int(Fraction(match[1]) * 1024 ** _POWER[match[2].lower()])


def parse_whole(text: str) -> int | None:
    """Returns the whole number that digits stand for; None for any other text, and for one of more than 19 digits.

    `int` also takes signs, underscores and the digits of all scripts, and `isdigit` some that `int` does not.

    >>> parse_whole(" 12 "), parse_whole("1_2"), parse_whole("٣")
    (12, None, None)
    """
    return int(text) if re.fullmatch(r"\s*[0-9]{1,19}\s*", text) else None


def parse_percent(text: str) -> float:
    """Returns the fraction that `text` (such as `1%`) names, in (0, 1]. Raises ConfigError.

    >>> parse_percent("1%")
    0.01
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*", text)
    if match is None or not 0 < float(match[1]) <= 100:
        raise ConfigError(f"{text!r} is not a percentage above 0 and up to 100; write it like 1%")
    return float(match[1]) / 100


_SECONDS = {"": 1.0, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def parse_duration(text: str) -> float:
    """Returns the seconds that `text` names, above 0. Raises ConfigError.

    >>> parse_duration("90"), parse_duration("30min"), parse_duration("1.5 h")
    (90.0, 1800.0, 5400.0)
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(s|min|m|h|d|)\s*", text)
    if match is None or not float(match[1]):
        raise ConfigError(f"{text!r} is not a time above 0; write it like 90s, 30min or 2h")
    return float(match[1]) * _SECONDS[match[2]]


def format_count(number: int, what: str) -> str:
    """Returns a number of things.

    >>> format_count(1, "file"), format_count(2000, "file")
    ('1 file', '2,000 files')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def format_bytes(size: float) -> str:
    """Returns `size` with a binary unit and three significant digits.

    >>> format_bytes(0), format_bytes(1536), format_bytes(256 * MIB)
    ('0 B', '1.50 KiB', '256 MiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        # What would be rounded to four digits is told in the next unit.
        if abs(size) < 999.5 or unit == "PiB":
            break
        size /= 1024
    if unit == "B":
        return f"{size:.0f} B"
    digits = 2 if size < 9.995 else 1 if size < 99.95 else 0
    return f"{size:.{digits}f} {unit}"


def format_rate(per_s: float, what: str) -> str:
    """Returns how many of something come in a time, of which there is one at least: what is slow is not shown as 0.

    >>> format_rate(4100.2, "row"), format_rate(0.05, "shard"), format_rate(1 / 3600, "shard"), format_rate(0.0, "row")
    ('4,100 rows/s', '3 shards/min', '1 shards/h', '0 rows/s')
    """
    for factor, unit in ((1.0, "s"), (60.0, "min"), (3600.0, "h")):
        if (rate := per_s * factor) >= 1.0 or unit == "h" or not per_s:
            return f"{rate:,.{1 if round(rate, 1) % 1 and rate < 10 else 0}f} {what}s/{unit}"
    raise AssertionError


def format_number(value: float | None) -> str:
    """Returns a count or a measure as people read it; whole numbers without a point, sums without their rounding.

    >>> format_number(4938240.0), format_number(0.1 + 0.2), format_number(7), format_number(None)
    ('4,938,240', '0.3', '7', 'nan')
    """
    if value is None:
        return "nan"
    if not isinstance(value, float):
        return f"{value:,}"
    return f"{int(value):,}" if value.is_integer() and abs(value) < 1e15 else f"{value:,.15g}"


def format_duration(seconds: float) -> str:
    """Returns a duration in its two largest units.

    >>> format_duration(0.4), format_duration(75), format_duration(90000)
    ('0.4 s', '1 min 15 s', '1 d 1 h')
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    for size, name, smaller, smaller_name in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {name}" + (f" {rest} {smaller_name}" if rest else "")
    raise AssertionError("unreachable")


def format_took(seconds: float) -> str:
    """Returns a duration; less than a second in milliseconds, since much of what is measured takes that.

    >>> format_took(0.0124), format_took(75.0)
    ('12 ms', '1 min 15 s')
    """
    return f"{1000 * seconds:.0f} ms" if seconds < 0.9995 else format_duration(seconds)


def plain_line(text: str) -> str:
    """Returns `text` as one line that cannot do anything to a terminal.

    >>> plain_line("bad\\nrow \\x1b[31m")
    'bad row \\\\x1b[31m'
    """
    one_line = " ".join(text.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in one_line)


def shell_word(text: str) -> str:
    r"""Returns `text` as a shell takes it, to be copied from what is printed: one line that cannot do anything to a
    terminal, and still the very same text where blanks that follow each other are shown as one.

    >>> print(shell_word("gs://bucket/my output"), shell_word("two  blanks"), shell_word("it's\u202e"))
    'gs://bucket/my output' $'two\x20\x20blanks' $'it\'s\u202e'
    """
    if text == plain_line(text):
        return shlex.quote(text)
    return "$'" + "".join(c if c.isalnum() and c.isascii() else _in_shell(c) for c in text) + "'"


def _in_shell(character: str) -> str:
    code = ord(character)
    if character in "\\'":
        return f"\\{character}"
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a path that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if character.isprintable() and character != " ":
        return character
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def escape_controls(text: str) -> str:
    """Returns `text`, lines and all, without what would do anything to a terminal.

    >>> escape_controls("two\\n  lines \\x1b[31m")
    'two\\n  lines \\\\x1b[31m'
    """
    shown = (c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
    return text if text.isprintable() else "".join(shown)


def require_json(what: str, value: Any) -> None:
    """Raises ConfigError, which names it `what`, for a value that is not of JSON values alone.

    >>> require_json("Mine.identity()", {"table": "events", "version": 2})
    """
    try:
        orjson.dumps(value)
        # To orjson NaN and infinities are null, all the same.
        json.dumps(value, default=str, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{what} is {value!r:.60}; expected JSON values: {error}") from error


def json_line(value: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    r"""Returns a value as one line of JSON that cannot do anything to a terminal: what is not printable is escaped.

    `default` makes JSON values of others, as for `orjson.dumps`.

    >>> json_line({"\x9b31m": "\u202egnp.exe, \U000e0041"})
    b'{"\\u009b31m":"\\u202egnp.exe, \\udb40\\udc41"}'
    """
    return escape_controls_json(orjson.dumps(value, default=default))


def escape_controls_json(data: bytes) -> bytes:
    """Returns JSON, which is the same value, with everything escaped that is not printable."""
    text = data.decode()
    # Outside of its texts JSON is ASCII: whatever is not printable is within one.
    return data if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text).encode()


def _escaped(character: str) -> str:
    units = memoryview(character.encode("utf-16-be")).cast("B")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


SHOWN_CHARS = 400
"""Characters of what others said, such as an error: it may quote whatever it choked on."""


def ellipsize(text: str, most: int = SHOWN_CHARS) -> str:
    """Returns `text` as one such line of at most so many characters.

    >>> ellipsize("what is too long is cut", 15)
    'what is too ...'
    >>> ellipsize("so" + 100 * " " + "are blanks", 15)
    'so...'
    """
    # What is escaped gets longer, never shorter, than what it was; blanks at its start do not.
    text = text.strip()
    one_line = plain_line(text[: 4 * most])
    return one_line if len(one_line) <= most and len(text) <= 4 * most else one_line[: most - 3] + "..."


def is_name(name: Any) -> bool:
    r"""Returns whether a column can be called so: text, without half of a surrogate pair, which UTF-8 does not have.

    >>> is_name("ä"), is_name("\ud800"), is_name(5)
    (True, False, False)
    """
    try:
        return isinstance(name, str) and bool(name.encode() or True)
    except UnicodeEncodeError:
        return False
