"""JSON text is read as Python reads it, at orjson's speed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from curate.objects import lines
from curate.objects.lines import json_of

EDGES = [sign * (2**bits + more) for bits in (53, 63, 64) for sign in (1, -1) for more in (-1, 0, 1)]
numbers = st.one_of(
    st.sampled_from(EDGES),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(10**18, 10**25).map(lambda number: f"{number}.{number}"),
    st.integers(10**18, 10**25).map(lambda number: f"a-{number}"),
)
values: st.SearchStrategy[Any] = st.recursive(
    numbers, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


@given(values, st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")]))
@example(10**19, (",", ":"))
@example({"hash": -(2**63), "other": 2**64 - 1}, (",", ":"))
def test_numbers_are_what_python_makes_of_them(value: Any, separators: tuple[str, str]) -> None:
    text = json.dumps(value, separators=separators).encode()
    assert repr(json_of(text)) == repr(json.loads(text))


@pytest.mark.parametrize("number", ["-{0}.{0}", "1.{0}", "1.{0}e5", "{0}e-{0}", "{0}E+2", "{0}e+0", "-1e-{0}"])
def test_spellings_of_floats(number: str) -> None:
    for text in (number.format("0" * 18 + "12"), number.format("9" * 19), number.format("1" * 21)):
        try:
            wanted = json.loads(text)
        except ValueError:
            continue  # Leading zeros.
        assert repr(json_of(text.encode())) == repr(wanted)


def test_hashes_are_read_by_orjson_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number of 64 bits is a whole number for it; Python's parser takes five times as long for a line."""
    held = [2**63 - 1, 2**64 - 1, -(2**63), 10**18, 10**19, 0.12345678901234567, 1234567890123456789.5, 1e300]
    text = json.dumps({"held": held, "id": 0.10951572008919519123}).encode()
    wanted = json.loads(text)
    monkeypatch.setattr(lines.json, "loads", lambda _: pytest.fail("read by Python"))
    assert json_of(text) == wanted
