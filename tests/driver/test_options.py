"""The one list of the options of a run, and what type checkers and `help()` say of it."""

from __future__ import annotations

from dataclasses import MISSING, fields
from inspect import Parameter, signature

from curate.driver.options import OPTIONS, RunArguments, RunOptions, parse_run_options


def test_type_checkers_are_told_of_every_option() -> None:
    """And of what only callers give: those fields are on no command line, and `--yes` answers one of them."""
    of_callers = {one.name for one in fields(RunOptions) if "option" not in one.metadata} - {"teller"}
    assert set(RunArguments.__annotations__) == {*OPTIONS, *of_callers, "yes"}


def test_the_same_options_have_to_be_given() -> None:
    shown = signature(parse_run_options).parameters
    assert {name for name, one in OPTIONS.items() if one.default is MISSING} == {
        name for name, one in shown.items() if one.default is Parameter.empty
    }
