"""What may be given as a path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import curate
from curate.errors import ConfigError
from curate.operators.arguments import path_texts


def test_paths_are_texts() -> None:
    """One, or several in the order in which they are given."""
    assert path_texts("b", "input") == path_texts(Path("b"), "input") == ["b"]
    assert path_texts(("b", Path("a")), "input") == path_texts((one for one in "ba"), "input") == ["b", "a"]


@pytest.mark.parametrize("given", [None, 5, b"a", [b"a"], [["a"]]])
def test_what_is_no_path_is_refused(given: Any) -> None:
    """By each that takes one, by the name that it is given under."""
    ds = curate.range(1)
    calls = {
        "read_text": lambda: curate.read_text(given),
        "checkpoint": lambda: ds.checkpoint(given),
        "with_attributes": lambda: ds.with_attributes(given),
        "output": lambda: ds.write_parquet(given, backend="inline"),
    }
    for name, call in calls.items():
        with pytest.raises(ConfigError, match=f"^{name}: .* is .*, expected a path as text$"):
            call()


@pytest.mark.parametrize("given", [{"b", "a"}, frozenset("a")])
def test_a_set_of_paths_is_refused(given: Any) -> None:
    """Rows would have another order in each process."""
    with pytest.raises(ConfigError, match=r"^read_text: .* is a set, and rows have the order of the paths"):
        curate.read_text(given)
