"""The text of compiled code, which tells lambdas and what has no source: other code has another one."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import curate
from curate.code.syntax import code_text
from curate.errors import ConfigError

ARGUMENTS = ("a, /, b", "a, b, /", "a, *, b", "*, a, b", "a, *b", "a, **b", "*a, b", "b, *a", "*a, **b", "a, /, *, b")
HANDLED = """
def f(row):
    try:
        one(row)
    except ValueError:
        three(row)
    else:
        two(row)
"""


def test_lambdas_that_take_other_kinds_of_arguments_are_others() -> None:
    """`lambda *row: len(row)` was taken for `lambda row: len(row)`."""
    for body in ("(a, b)", "lambda c: (a, b)", "[c for c in (a, b)]"):
        texts = {code_text(eval(f"lambda {one}: {body}").__code__) for one in (*ARGUMENTS, "a, b")}
        assert len(texts) == len(ARGUMENTS) + 1


@pytest.mark.parametrize("number", range(4))
def test_usual_arguments_add_nothing(number: int) -> None:
    """Their names and defaults tell them: the text is that of versions before this was told."""
    names = ", ".join("abcd"[:number])
    code = eval(f"lambda {names}: len([{names}])").__code__
    assert code_text(code) == f"{code.co_code.hex()} {code.co_names} {code.co_varnames} () (None)"


def test_what_a_handler_is_for_counts() -> None:
    """Behind `else` an instruction is the same, and its errors are not handled."""
    names: dict[str, Any] = {}
    texts = []
    for source in (
        HANDLED,
        HANDLED.replace("    else:\n        two(row)\n", "").replace("one(row)", "one(row); two(row)"),
    ):
        exec(source, names)
        texts.append(code_text(names["f"].__code__))
    assert texts[0] != texts[1]


def test_a_write_of_another_lambda_is_refused(tmp_path: Any) -> None:
    """It was taken for done, with the rows of the other one."""
    rows = curate.from_items([{"a": 1, "b": 2}])
    for first, second in itertools.pairwise([lambda row: {"n": len(row)}, lambda *row: {"n": len(row)}]):
        rows.map(first).write_parquet(tmp_path / "out", backend="inline")
        with pytest.raises(ConfigError, match="with another identity"):
            rows.map(second).write_parquet(tmp_path / "out", backend="inline")
