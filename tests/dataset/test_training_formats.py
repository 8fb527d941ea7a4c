"""What holds of every format that is written for training code: killed, run again, replaced, looked at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

import curate
from curate.observe.verify import verify
from tests.cli.running import Curate
from tests.support.writes import files

OPTIONS: dict[str, dict[str, Any]] = {
    "webdataset": {},
    "webdataset packed": {"codec": "gzip"},
    "tfrecords": {},
    "numpy": {"column": "cls"},
}
SUFFIXES = {"webdataset": ".tar", "webdataset packed": ".tar.gz", "tfrecords": ".tfrecords.gz", "numpy": ".npy"}
every = pytest.mark.parametrize("format", OPTIONS)


def inputs(folder: Path) -> curate.Dataset:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(4):
        rows = [{"cls": number * 10 + row, "txt": f"text {row}"} for row in range(10)]
        (folder / f"{number}.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return curate.read_json(folder)


def write(ds: curate.Dataset, format: str, out: Path, **options: Any) -> curate.Summary:
    method = getattr(ds, f"write_{format.split()[0]}")
    summary: curate.Summary = method(out, backend="inline", **OPTIONS[format], **options)
    return summary


def read(format: str, out: Path) -> list[int]:
    rows = getattr(curate, f"read_{format.split()[0]}")(out).take_all()
    return [row["data" if format == "numpy" else "cls"] for row in rows]


def killing(row: dict[str, Any]) -> dict[str, Any]:
    """Ends its process in the middle of a shard, if the environment says so, which no identity has."""
    if row["cls"] == 25 and "CURATE_TEST_KILL" in os.environ:
        signal.raise_signal(signal.SIGKILL)
    return row


SCRIPT = """
import sys
from pathlib import Path
from tests.dataset.test_training_formats import inputs, killing, write
write(inputs(Path(sys.argv[1])).map(killing), sys.argv[3], Path(sys.argv[2]))
"""


@pytest.mark.ci(2)
@pytest.mark.slow
@pytest.mark.quick(1)
@every
def test_killed_and_run_again(format: str, tmp_path: Path) -> None:
    """What is published stays, nothing else is there, and the bytes become those of a run that nobody killed."""
    out, whole = tmp_path / "out", tmp_path / "whole"
    killed = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "in"), str(out), format],
        check=False, capture_output=True, env={**os.environ, "CURATE_TEST_KILL": "1"},
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    there = files(out)
    assert 0 < len(there) < 4
    assert f"2{SUFFIXES[format]}" not in there
    ds = curate.read_json(tmp_path / "in").map(killing)
    assert write(ds, format, out).dispatched == 4 - len(there)
    write(ds, format, whole)
    assert files(out) == files(whole)
    assert there.items() <= files(out).items()
    assert read(format, out) == list(range(40))


@every
def test_after_an_exchange_and_over_another_format(format: str, tmp_path: Path) -> None:
    """Sorted in one output; `overwrite` removes what another format has left, and nothing else."""
    ds = inputs(tmp_path / "in").sort("cls", descending=True)
    out = tmp_path / "out"
    for before in OPTIONS:
        assert write(ds, before, out, overwrite=True, yes=True).state == "complete"
        assert [path.suffixes for path in out.glob("*.*")] == [Path(f"x{SUFFIXES[before]}").suffixes]
    write(ds, format, out, overwrite=True, yes=True)
    assert read(format, out) == list(range(39, -1, -1))
    assert verify(str(out)).state == "ok"


@every
def test_on_the_command_line(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`head` shows rows, `verify` finds a file that was cut off, and `status` knows the job."""
    out = tmp_path / "out"
    write(inputs(tmp_path / "in"), format, out)
    command = Curate(capsys, monkeypatch)
    lines = command("head", str(out), "--json").out.splitlines()
    row = {"data": 0} if format == "numpy" else {"cls": 0, "txt": "text 0"}
    assert orjson.loads(lines[0]).items() >= row.items()
    assert command("verify", str(out)).code == 0
    assert "complete" in command("status", str(out)).out
    path = out / f"0{SUFFIXES[format]}"
    path.write_bytes(path.read_bytes()[:-700])
    assert command("verify", str(out)).code == 1
