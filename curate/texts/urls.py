"""URLs of pages: their host, their registered domain and their words; and lists of these, read from text files.

What is blocked by a list is decided as FineWeb's code does it (`URLFilter` of datatrove 0.10.1). It reads hosts more
narrowly: a host that is an IP address, or whose top domain is not in the public suffix list, is none to it.

The public suffix list is the one that the package `publicsuffixlist` carries, of which only the part of ICANN counts:
`a.github.io` is of the domain `github.io`. It is never fetched.
"""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.arrow.hashing import Words as Hashes
from curate.arrow.hashing import digest_rows
from curate.dataclass import dataclass
from curate.errors import ConfigError
from curate.imports import need
from curate.late_pandas import numbers, text
from curate.texts.pieces import Array
from curate.texts.words import Words

MAX_HOST = 253
"""Characters that a name can have in the domain name system."""
_NETLOC = r"^\s*(?:[A-Za-z0-9+.\-]*:)?//(?P<netloc>[^/?#\\]*)"
_BARE_NETLOC = r"^\s*(?P<netloc>[^/?#\\]*)"
_HOST = r"(?s)^(?:.*@)?\s*(?P<host>\[[^\]]*\]|[^:]*?)[.\x{3002}\x{ff0e}\x{ff61}\s]*(?::.*)?$"
_SEPARATORS = "[^a-zA-Z0-9]+"
_HASHED = 100_000
_PARTS_AT_ONCE = 200
"""Parts that one regular expression looks for."""

_DOT = r"[.\x{3002}\x{ff0e}\x{ff61}]"
_NAME = r"[^.\x{3002}\x{ff0e}\x{ff61}\s\p{Cc}/?#@:,;|\\\"'=<>()*]{1,63}"

# Shapes of the lines of a list: what a line must match, and what is said of one that does not.
DOMAIN = (
    rf"^(?:(?:{_NAME}{_DOT})*{_NAME}{_DOT}?|\[[0-9a-fA-F:.]+\])$",
    "expected one domain or host a line, such as example.com",
)
URL = (r"^[A-Za-z][A-Za-z0-9+.\-]*:[^\s]+$", "expected one whole URL a line, such as https://example.com/page")
WORD = (r"^[^,;\t|]*[A-Za-z0-9][^,;\t|]*$", "expected one word a line, with an ASCII letter or digit")
Shape = tuple[str, str]


def hosts(urls: pa.Array) -> pa.Array:
    """Returns the host of each URL: in lower case, without user, port or a full stop at the end; empty where there is
    none. What has no scheme is taken for a URL without one.

    >>> hosts(pa.array(["https://me@WWW.Example.com.:80/a?b", "example.org/a", "http://[::1]:80", ""])).to_pylist()
    ['www.example.com', 'example.org', '[::1]', '']
    """
    netloc = pc.struct_field(pc.extract_regex(urls, _NETLOC), "netloc")
    bare = pc.struct_field(pc.extract_regex(urls, _BARE_NETLOC), "netloc")
    found = pc.struct_field(pc.extract_regex(pc.coalesce(netloc, bare), _HOST), "host")
    coded = pc.fill_null(found, "").dictionary_encode()
    lower = pc.utf8_lower(coded.dictionary)
    plain = pc.string_is_ascii(lower)
    if not pc.all(plain).as_py():
        lower = pa.array([_in_ascii(host) for host in lower.to_pylist()], pa.string())
    return lower.take(coded.indices)


def registered(hosts: pa.Array) -> pa.Array:
    """Returns the registered domain of each host, and null for what is of none: an IP address, a public suffix.

    >>> registered(pa.array(["a.b.example.co.uk", "co.uk", "8.8.8.8", "localhost"])).to_pylist()
    ['example.co.uk', None, None, None]
    """
    coded = hosts.dictionary_encode()
    return pa.array(map(_registered, coded.dictionary.to_pylist()), pa.string()).take(coded.indices)


def words(urls: pa.Array) -> Words:
    """Returns the words of URLs, as they are spelt: what is between characters that are no ASCII letters or digits.

    >>> words(pa.array(["http://a.de/a-b"])).vocabulary.to_pylist()
    ['http', 'a', 'de', 'b']
    """
    parts = pc.split_pattern_regex(urls, _SEPARATORS)
    found = parts.flatten()
    owner = numbers(pc.list_parent_indices(parts))
    some = numbers(pc.not_equal(found, text("")))
    coded = found.filter(pa.array(some)).dictionary_encode()
    return Words(coded.dictionary, numbers(coded.indices), owner[some], len(urls))


def letters(texts: pa.Array) -> pa.Array:
    """Returns the ASCII letters and digits of each text, in lower case.

    >>> letters(pa.array(["Http://a-b.de"])).to_pylist()
    ['httpabde']
    """
    return pc.ascii_lower(pc.replace_substring_regex(texts, _SEPARATORS, ""))


@dataclass(frozen=True)
class Listed:
    """A set of texts, of 16 bytes each, which may be millions."""

    low: Hashes
    """The first half of each hash, in order."""
    high: Hashes

    @classmethod
    def of(cls, texts: pa.Array) -> Listed:
        """Returns the set of these texts."""
        # By parts, so that of millions only hashes are held at one time.
        parts = [texts[start : start + _HASHED] for start in range(0, len(texts), _HASHED)] or [texts]
        low, high = map(np.concatenate, zip(*map(_hashes, parts), strict=True))
        order = np.argsort(low)
        return cls(low[order], high[order])

    def has(self, texts: pa.Array) -> Array:
        """Returns which of the texts are in it; null is not.

        >>> Listed.of(pa.array(["a", "b"])).has(pa.array(["b", "c", None])).tolist()
        [True, False, False]
        """
        if not len(self.low):
            return np.zeros(len(texts), dtype=bool)
        coded = texts.dictionary_encode()
        low, high = _hashes(coded.dictionary)
        place = np.minimum(np.searchsorted(self.low, low), len(self.low) - 1)
        found = (self.low[place] == low) & (self.high[place] == high)
        at = numbers(pc.fill_null(coded.indices, len(found)))
        chosen: Array = np.append(found, False)[at]
        return chosen


@dataclass(frozen=True)
class Parts:
    """A number of texts that are looked for within others."""

    patterns: tuple[str, ...]

    @classmethod
    def of(cls, parts: pa.Array) -> Parts:
        """Returns these parts, which are ASCII letters and digits."""
        # What has one of them within it is found by the shorter one.
        plain = sorted(set(parts.to_pylist()), key=lambda part: (len(part), part))
        groups = (plain[start : start + _PARTS_AT_ONCE] for start in range(0, len(plain), _PARTS_AT_ONCE))
        return cls(tuple("|".join(group) for group in groups))

    def within(self, texts: pa.Array) -> Array:
        """Returns in which texts any of them occurs."""
        found = np.zeros(len(texts), dtype=bool)
        for pattern in self.patterns:
            found |= numbers(pc.match_substring_regex(texts, pattern))
        return found


def read_list(path: str, shape: Shape, name: str = "") -> pa.Array:
    """Returns the lines of a text file: trimmed, without blank ones and those that begin with `#`.

    Raises ConfigError with file (`name`, if it is the copy of another) and line for a line of another shape, for what
    is not UTF-8 or no text, and for a file without any line.
    """
    pattern, expected = shape
    name = name or path
    data = Path(path).read_bytes().removeprefix(b"\xef\xbb\xbf")
    if (place := data.find(b"\0")) >= 0 or data.startswith(b"\x1f\x8b"):
        raise ConfigError(f"{name}, line {_line(data, max(place, 0))}: is binary data, not text; {expected}")
    try:
        whole = data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{name}, line {_line(data, error.start)}: is not UTF-8 (byte {data[error.start]:#04x}); save it as UTF-8"
        ) from None
    lines = pc.utf8_trim_whitespace(pc.split_pattern(pa.array([whole], pa.large_string()), "\n").flatten())
    used = numbers(pc.and_not(pc.not_equal(lines, text("")), pc.starts_with(lines, "#")))
    if not used.any():
        raise ConfigError(f"{name}, line 1: the file has no entry; {expected}")
    entries = lines.filter(pa.array(used))
    fit = numbers(pc.match_substring_regex(entries, pattern))
    if not fit.all():
        number = int(np.flatnonzero(~fit)[0])
        line = int(np.flatnonzero(used)[number]) + 1
        raise ConfigError(f"{name}, line {line}: {expected}; found {entries[number].as_py()[:80]!r}")
    return entries


def read_domains(path: str) -> Listed:
    """Returns the domains and hosts of a file as `hosts` returns them. Raises ConfigError as `read_list` does."""
    names = pc.utf8_rtrim(pc.utf8_lower(read_list(path, DOMAIN)), ".\u3002\uff0e\uff61")
    plain = pc.string_is_ascii(names)
    if not pc.all(plain).as_py():
        in_ascii = [_in_ascii(name) for name in names.filter(pc.invert(plain)).to_pylist()]
        names = pc.replace_with_mask(names, pc.invert(plain), pa.array(in_ascii, names.type))
    return Listed.of(names)


def read_words(path: str) -> pa.Array:
    """Returns the words of a file: ASCII letters and digits, in lower case. Raises ConfigError as `read_list` does."""
    return letters(read_list(path, WORD)).unique().cast(pa.string())


def _line(data: bytes, place: int) -> int:
    return data.count(b"\n", 0, place) + 1


def _hashes(texts: pa.Array) -> tuple[Hashes, Hashes]:
    return digest_rows(pa.table({"text": texts}), ["text"])


def _in_ascii(host: str) -> str:
    if host.isascii() or len(host) > MAX_HOST:
        return host
    try:
        return host.encode("idna").decode()
    except UnicodeError:
        return host


@lru_cache(maxsize=100_000)
def _registered(host: str) -> str | None:
    # Longer ones are no names, and take longer than their length.
    return _suffixes().privatesuffix(host) if len(host) <= MAX_HOST else None


def check_installed() -> None:
    """Raises ConfigError if the package that knows registered domains is not installed here."""
    need("publicsuffixlist", "domains of URLs need the package publicsuffixlist", "web")


@cache
def _suffixes() -> Any:
    check_installed()
    from publicsuffixlist import PublicSuffixList

    return PublicSuffixList(only_icann=True, accept_unknown=False)
