"""Where a command runs, what it is given, and who reads what it prints change nothing of what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import curate as package
from curate.cli.terminal import print_what_is_read
from tests.cli.running import Curate, curate

__all__ = ["curate"]

BROKEN = "caf\udce9"
"""What Python makes of an argument in Latin-1."""


@pytest.fixture
def done(tmp_path: Path) -> str:
    """A job that is complete, whose output has a name that is not ASCII."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/é.jsonl").write_text('{"text": "one", "many": [1]}\n', encoding="utf-8")
    output = str(tmp_path / "out")
    rows = package.read_json(str(tmp_path / "in/*.jsonl"))
    assert rows.write_parquet(output, backend="inline").state == "complete"
    return output


NAMES = (
    "failures OUTPUT --shard X",
    "logs OUTPUT --shard X",
    "logs OUTPUT --run X",
    "head OUTPUT --shard X",
    "head OUTPUT --columns X",
    "head OUTPUT --side X",
    "quarantine OUTPUT --shard X",
    "replay OUTPUT --shard X",
)
"""Options that name something of a job."""


@pytest.mark.parametrize(
    "command",
    [
        "report OUTPUT --by X",
        "report OUTPUT --against OUTPUT --id-column X",
        "report X",
        "page X",
        "status X",
        "verify X",
        *NAMES,
        "diff OUTPUT X",
        "diff OUTPUT OUTPUT --id-column X",
        "forget X",
        "run X",
    ],
)
def test_an_argument_that_is_not_unicode_is_refused_in_a_line(command: str, done: str, curate: Curate) -> None:
    """Whatever it is the name of."""
    shown = curate(*command.replace("OUTPUT", done).replace("X", BROKEN).split())
    assert shown.code == 2
    assert len(shown.err.splitlines()) == 1
    assert "udce9" in shown.err


@pytest.mark.parametrize(
    "command",
    [
        "report OUTPUT --by X",
        "report OUTPUT --against X",
        "report OUTPUT --against OUTPUT --id-column X",
        "report OUTPUT --output X",
        "report OUTPUT --work X",
        "page OUTPUT --output X",
        *NAMES,
        "diff OUTPUT OUTPUT --id-column X",
        "serve OUTPUT --notify X",
    ],
)
def test_an_option_that_is_empty_is_none_that_was_not_given(command: str, done: str, curate: Curate) -> None:
    """As where a variable of the shell is not set: a report was made without the sources that it was asked for."""
    given = [{"OUTPUT": done, "X": ""}.get(word, word) for word in command.split()]
    shown = curate(*given)
    assert shown.code == 2
    assert "''" in shown.err or "empty" in shown.err or "--notify" in shown.err
    assert not shown.out
    assert not Path(f"{done}.html").exists()
    assert not Path(f"{done}-report.html").exists()


def test_a_source_that_is_no_single_value_is_refused_at_once(tmp_path: Path, curate: Curate) -> None:
    """Before rows are read four times in vain."""
    types = {"list": [[1]], "struct": [{"a": 1}], "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))}
    pq.write_table(pa.table(types), tmp_path / "a.parquet")
    for name in types:
        shown = curate("report", str(tmp_path), "--work", str(tmp_path / "work"), "--by", name)
        assert shown.code == 2
        assert f"reporting by source: '{name}' is {name}<" in shown.err
        assert "choose a column of texts or numbers with --by COLUMN" in shown.err
        assert not (tmp_path / "work").exists()


@pytest.mark.ci(2)
@pytest.mark.slow
@pytest.mark.parametrize("command", ["status", "verify", "page", "quarantine"])
def test_the_locale_changes_nothing(command: str, done: str, tmp_path: Path) -> None:
    """Outputs are found by their names: a job that is complete was shown as one of which nothing is done."""

    def shown(**environ: str) -> object:
        call = [sys.executable, "-m", "curate", command, done, "--json"]
        root = str(Path(package.__file__).parents[1])
        run = subprocess.run(
            call, env={**os.environ, "PYTHONPATH": root, **environ}, capture_output=True, cwd=tmp_path, check=True
        )
        lines = [orjson.loads(line) for line in run.stdout.splitlines()]
        for value in (name for line in lines for name in ("made", "as_of") if name in line):
            lines[0].pop(value)
        return lines

    known = shown(PYTHONUTF8="1")
    assert known == shown(LC_ALL="POSIX", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")


def test_what_is_found_does_not_depend_on_who_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that is gone is no finding of `verify` or `diff`."""
    there, here = os.pipe()
    os.close(there)
    with os.fdopen(here, "w", buffering=1) as closed:
        monkeypatch.setattr("sys.stdout", closed)
        print_what_is_read(lambda: click.echo("complete"))
        # Nor does it fail later, when Python ends.
        click.echo("more")


@pytest.mark.ci(1)
@pytest.mark.slow
@pytest.mark.parametrize("command", ["verify OUTPUT", "verify OUTPUT --json", "diff OUTPUT OUTPUT"])
def test_a_closed_pipe_is_no_finding(command: str, done: str) -> None:
    """`curate verify OUTPUT | head -1` of an output in order is 0, with `set -o pipefail` too."""
    there, here = os.pipe()
    os.close(there)
    call = [sys.executable, "-m", "curate", *command.replace("OUTPUT", done).split()]
    root = str(Path(package.__file__).parents[1])
    run = subprocess.run(call, stdout=here, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": root}, check=False)
    os.close(here)
    assert (run.returncode, run.stderr) == (0, b"")
