"""How a run ends whose program leaves signals to the system."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from curate.observe.job import read_status

PROGRAM = """
import os, sys
import curate


def end(row):
    os.kill(os.getpid(), int(sys.argv[2]))
    return row


try:
    curate.range(9).map(end).write_parquet(sys.argv[1], backend="inline")
finally:
    print("not reached")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_its_ledger_says_that_it_was_interrupted_and_its_end_is_the_same(
    tmp_path: Path, number: signal.Signals
) -> None:
    """As batch systems and closed terminals end a script; the ledger showed a run that stalled."""
    out = str(tmp_path / "out")
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, out, str(int(number))], check=False, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout) == (-number, ""), ran.stderr
    assert [run.state for run in read_status(out, 1e9).runs] == ["interrupted"]


def test_one_that_the_program_ignores_is_ignored(tmp_path: Path) -> None:
    """As `nohup` has it."""
    out = str(tmp_path / "out")
    ignoring = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + PROGRAM
    command = [sys.executable, "-c", ignoring, out, str(int(signal.SIGHUP))]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "not reached\n"), ran.stderr
    assert read_status(out, 1e9).state == "complete"
