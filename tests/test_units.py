"""Sizes, durations and rates: what people type and what they read."""

from __future__ import annotations

import json
import subprocess
from fractions import Fraction
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.errors import ConfigError
from curate.units import (
    GIB,
    KIB,
    MIB,
    format_bytes,
    format_duration,
    format_number,
    json_line,
    parse_bytes,
    parse_percent,
    plain_line,
    shell_word,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("12", 12),
        ("12B", 12),
        ("1k", KIB),
        ("1K", KIB),
        ("1kb", KIB),
        ("1KiB", KIB),
        (" 1.5 MiB ", 3 * MIB // 2),
        ("64m", 64 * MIB),
        ("2g", 2 * GIB),
        ("1T", 1024 * GIB),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_sizes_are_powers_of_1024(text: str, size: int) -> None:
    """With or without `iB`, in either case; a number alone is bytes, to the last one."""
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "many", "-1", "1.5.2", "1 x", "1e9", "k", "1 2", "0x10", "inf", "nan"])
def test_what_is_no_size_is_refused(text: str) -> None:
    """With examples of what is one."""
    with pytest.raises(ConfigError, match="is not a size; write a number of bytes, or one like 64MiB or 2g"):
        parse_bytes(text)


@pytest.mark.parametrize(("text", "part"), [("1%", 0.01), (" 0.5 % ", 0.005), ("100%", 1.0)])
def test_percentages(text: str, part: float) -> None:
    """As a fraction."""
    assert parse_percent(text) == part


@pytest.mark.parametrize("text", ["", "1", "0%", "0.0%", "100.1%", "-1%", "%", "x%", "1%%"])
def test_what_is_no_percentage_is_refused(text: str) -> None:
    """Nothing, or more than all, is none either."""
    with pytest.raises(ConfigError, match="is not a percentage above 0 and up to 100; write it like 1%"):
        parse_percent(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.7, "0.98 KiB"),
        (1000, "0.98 KiB"),
        (1023, "1.00 KiB"),
        (10 * KIB - 1, "10.0 KiB"),
        (99.96 * KIB, "100 KiB"),
        (1536, "1.50 KiB"),
        (999.6 * KIB, "0.98 MiB"),
        (256 * MIB, "256 MiB"),
        (2000 * 1024 * 1024 * GIB, "2000 PiB"),
    ],
)
def test_sizes_have_three_digits(size: float, text: str) -> None:
    """Also next to a power, where rounding would make it four."""
    assert format_bytes(size) == text


@given(st.floats(0, 1e18))
def test_sizes_read_back_to_within_a_percent(size: float) -> None:
    """What is shown is what it is."""
    text = format_bytes(size).replace("P", "T")
    shown = parse_bytes(text) * (1024 if "P" in format_bytes(size) else 1)
    assert abs(shown - size) <= max(1.0, size * 0.0075)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (0.44, "0.4 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (75, "1 min 15 s"),
        (3599.6, "1 h"),
        (3600, "1 h"),
        (3660, "1 h 1 min"),
        (86399, "23 h 59 min"),
        (90000, "1 d 1 h"),
        (1e7, "115 d 17 h"),
    ],
)
def test_durations_have_their_two_largest_units(seconds: float, text: str) -> None:
    """And none that is zero."""
    assert format_duration(seconds) == text


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_json_lines_are_printable_and_the_same_value(value: Any) -> None:
    """Whatever the texts in it are made of."""
    line = json_line(value)
    assert line.decode().isprintable()
    assert orjson.loads(line) == json.loads(line) == value


ODD_NAMES = st.lists(
    st.text(
        st.characters(exclude_characters="\0", exclude_categories=["Cs"]) | st.sampled_from(" '\\$\"`!\x1b\u202e\xa0")
    ),
    min_size=20,
    max_size=60,
)


@settings(max_examples=10)
@given(ODD_NAMES)
def test_a_shell_word_is_copied_as_the_very_same_text(texts: list[str]) -> None:
    """From one line that does nothing to a terminal, whose blanks may have been joined on their way to it."""
    words = [plain_line(shell_word(text)) for text in texts]
    assert words == [shell_word(text) for text in texts]
    assert all(word.isprintable() for word in words)
    script = f"printf '%s\\0' {' '.join(words)}"
    told = subprocess.run(
        ["bash"], input=script.encode(), stdout=subprocess.PIPE, env={"LC_ALL": "C.UTF-8"}, check=True
    )
    assert told.stdout.decode().split("\0") == [*texts, ""]


@given(st.integers(-(10**6), 10**6), st.integers(1, 1000))
def test_a_sum_of_decimals_is_shown_as_one_writes_it(thousandths: int, times: int) -> None:
    """4.8, and not 4.800000000000001 as floats have it: of the exact sum of what shards counted."""
    summed = float(sum([Fraction(thousandths / 1000)] * times))
    shown = format_number(summed)
    assert Fraction(shown.replace(",", "")) == Fraction(thousandths * times, 1000)
