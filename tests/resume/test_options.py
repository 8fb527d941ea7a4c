"""The one list of the options of a run, and what type checkers and `help()` say of it."""

from __future__ import annotations

from dataclasses import MISSING, fields
from inspect import Parameter, signature
from pathlib import Path

import pytest

from curate.errors import ConfigError
from curate.keywords import on_command_line
from curate.resume.options import OPTIONS, RunArguments, RunOptions, parse_run_options, resolve_output


def test_type_checkers_are_told_of_every_option() -> None:
    """And of what only callers give: those fields are on no command line, and `--yes` answers one of them."""
    of_callers = {one.name for one in fields(RunOptions) if "option" not in one.metadata} - {"teller"}
    assert set(RunArguments.__annotations__) == {*OPTIONS, *of_callers, "yes"}


def test_the_same_options_have_to_be_given() -> None:
    shown = signature(parse_run_options).parameters
    assert {name for name, one in OPTIONS.items() if one.default is MISSING} == {
        name for name, one in shown.items() if one.default is Parameter.empty
    }


@pytest.mark.parametrize("name", ["limit", "max_in_flight"])
def test_numbers_beyond_what_a_ledger_can_have_are_refused(name: str) -> None:
    """Before anything is written."""
    with pytest.raises(ConfigError, match=rf"{name}=9223372036854775808 is too large"):
        parse_run_options(input="in", output="out", **{name: 2**63})  # type: ignore[arg-type]
    assert parse_run_options(input="in", output="out", **{name: 2**63 - 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("limit", "5", "a whole number"),
        ("limit", 1.5, "a whole number"),
        ("limit", float("nan"), "a whole number"),
        ("max_in_flight", True, "a whole number"),
        ("target_task_seconds", "60", "a number"),
        ("overwrite", "no", "true or false"),
        ("retry_failed", 1, "true or false"),
    ],
)
def test_values_of_another_kind_are_refused(name: str, value: object, kind: str) -> None:
    """And not taken for true, or for a number that fails later."""
    with pytest.raises(ConfigError, match=rf"^{name}={value!r} is not {kind}$"):
        parse_run_options(input="in", output="out", **{name: value})  # type: ignore[arg-type]


def test_an_empty_path_is_refused_by_the_name_of_its_option() -> None:
    """As of `-o "$OUT"` where there is no such variable."""
    why = ": the path is empty, as where a variable is not set; expected a path"
    with on_command_line():
        with pytest.raises(ConfigError, match=rf"^--output \.\.\.{why}"):
            resolve_output("")
        with pytest.raises(ConfigError, match=rf"^--input \.\.\.{why}"):
            parse_run_options(input=["in", ""], output="out")


@pytest.mark.parametrize("root", ["/", "//", "/tmp/..", "file:///"])
def test_no_output_is_all_files(root: str) -> None:
    """It was taken for an empty path."""
    with pytest.raises(ConfigError, match="all files lie there; choose a folder for the outputs"):
        resolve_output(root)


@pytest.mark.parametrize(
    "given",
    ["$OUT", "${OUT}", "/data/$OUT/x", "/data/run-${OUT}", "gs://bucket/$OUT", "s3://bucket/${OUT}-x/y", "~/$OUT"],
)
def test_an_output_has_no_variable_that_nobody_replaced(given: str) -> None:
    """It was made as a folder of that name: as of `-o '$OUT/x'`, or of a TOML file."""
    name = "${OUT}" if "{" in given else "$OUT"
    with on_command_line(), pytest.raises(ConfigError, match="nobody has replaced") as caught:
        resolve_output(given)
    assert f"nobody has replaced the variable {name}: write its value out" in str(caught.value)


def test_a_dollar_alone_is_no_variable(tmp_path: Path) -> None:
    """Nor is the name of a folder that is there, such as of a job that has begun."""
    for name in ("usd$", "a$b", "$", "$1", "x_$folder$", "${}", "${a-b}"):
        assert resolve_output(f"/data/{name}/x") == f"/data/{name}/x"
        assert resolve_output(f"gs://bucket/{name}/x") == f"gs://bucket/{name}/x"
    (tmp_path / "$OUT").mkdir()
    assert resolve_output(f"{tmp_path}/$OUT/x") == f"{tmp_path}/$OUT/x"
