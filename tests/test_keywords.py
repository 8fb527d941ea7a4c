"""Keyword arguments that are declared once, as whoever asks for help sees them."""

from __future__ import annotations

import pydoc
from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

import pytest

import curate
from curate.dataset.grouped import GroupedData
from curate.driver.options import RunArguments
from curate.operators.udf import UdfOptions

FUNCTIONS: list[tuple[Callable[..., Any], Any]] = [
    (curate.Job.run, RunArguments),
    (curate.Job.options, RunArguments),
    (curate.Dataset.map_batches, UdfOptions),
    (curate.Dataset.map, UdfOptions),
    (curate.Dataset.flat_map, UdfOptions),
    (curate.Dataset.filter, UdfOptions),
    (GroupedData.map_groups, UdfOptions),
]


@pytest.mark.parametrize(("function", "typed"), FUNCTIONS, ids=lambda one: getattr(one, "__qualname__", ""))
def test_each_is_shown_by_name(function: Callable[..., Any], typed: Any) -> None:
    shown = signature(function).parameters
    assert Parameter.VAR_KEYWORD not in {one.kind for one in shown.values()}
    assert all(shown[name].kind is Parameter.KEYWORD_ONLY for name in typed.__annotations__)


def test_help_shows_types_and_what_has_to_be_given() -> None:
    assert "output: str | os.PathLike[str], backend: str = 'ray'" in pydoc.plaintext.document(curate.Job.run)
    shown = "fn_args: collections.abc.Iterable[typing.Any] | None = None"
    assert shown in pydoc.plaintext.document(curate.Dataset.map_batches)
