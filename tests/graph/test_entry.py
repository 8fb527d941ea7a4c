"""How a run ends whose program leaves signals to the system."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from curate.observe.job import read_status

PROGRAM = """
import os, signal, sys
import curate

signal.signal(int(sys.argv[2]), getattr(signal, sys.argv[3]))


def end(row):
    os.kill(os.getpid(), int(sys.argv[2]))
    return row


try:
    curate.range(9).map(end).write_parquet(sys.argv[1], backend="inline")
finally:
    print("not reached")
"""


def run(out: Path, number: signal.Signals, handler: str) -> subprocess.CompletedProcess[str]:
    """Runs the program with what it does with the signal: a process that starts another may have left it ignored."""
    command = [sys.executable, "-c", PROGRAM, str(out), str(int(number)), handler]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_its_ledger_says_that_it_was_interrupted_and_its_end_is_the_same(
    tmp_path: Path, number: signal.Signals
) -> None:
    """As batch systems and closed terminals end a script; the ledger showed a run that stalled."""
    ran = run(tmp_path, number, "SIG_DFL")
    assert (ran.returncode, ran.stdout) == (-number, ""), ran.stderr
    assert [run.state for run in read_status(str(tmp_path), 1e9).runs] == ["interrupted"]


@pytest.mark.slow
def test_one_that_the_program_ignores_is_ignored(tmp_path: Path) -> None:
    """As `nohup` has it."""
    ran = run(tmp_path, signal.SIGHUP, "SIG_IGN")
    assert (ran.returncode, ran.stdout) == (0, "not reached\n"), ran.stderr
    assert read_status(str(tmp_path), 1e9).state == "complete"
