"""Signals are counted one by one, however close they come."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import curate
from curate.driver.signals import Signals
from curate.errors import CurateError, PoolFailed, TransientStorageError
from curate.log import get_logger
from tests.job.inline import numbered, write_jsonl
from tests.support.fakes import FakeBackend, FakeClock


@pytest.fixture
def _as_before() -> Iterator[None]:
    """Gives signals back after a run that was interrupted, as a program that ends need not: whatever other tests start
    would have inherited that SIGHUP is ignored."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.slow
@pytest.mark.usefixtures("_as_before")
@pytest.mark.parametrize("times", [1, 2])
def test_those_that_come_in_the_middle_of_a_call_are_counted(times: int) -> None:
    """Python calls a handler once for all of them."""

    def send() -> None:
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.02)

    signals = Signals(True, get_logger())
    with signals, signals.in_order(FakeBackend(FakeClock(), lambda _: [])), signals.while_tasks_run():
        sender = threading.Thread(target=send)
        sender.start()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000_000)  # one call, and no look at signals in it
        sender.join()
    assert signals.interrupts.interrupts == times


@pytest.mark.usefixtures("_as_before")
def test_one_that_comes_in_a_finaliser_comes_again(capfd: pytest.CaptureFixture[str]) -> None:
    """It can raise nothing there: Python would tell of it, and go on as if there had been none."""

    def wait(deaf: Any) -> None:
        del deaf
        threading.Event().wait(30)

    class Deaf:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):
                pass

    hook = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt), Signals(True, get_logger()):
        wait(Deaf())
    assert sys.unraisablehook is hook
    assert "Traceback" not in capfd.readouterr().err


WHILE = {
    "it gets ready": "with Signals(True, get_logger()):\n        os.kill(os.getpid(), signal.SIGINT)",
    "tasks run": "with (signals := Signals(True, get_logger())), signals.in_order(InlineBackend()), "
    "signals.while_tasks_run():\n        send(3)",
    "its end is written": "with (signals := Signals(True, get_logger())), signals.in_order(InlineBackend()):\n"
    "        with signals.while_tasks_run():\n            pass\n        send(2)",
}
"""What a run is in the middle of, and the signals that precede the last one."""
LEAVES = """
import os, signal, sys
from curate.backends.inline import InlineBackend
from curate.driver.signals import Signals
from curate.log import get_logger

def send(times):
    for _ in range(times):
        signal.raise_signal(signal.SIGINT)

try:
    {block}
except KeyboardInterrupt:
    os.kill(os.getpid(), signal.SIGINT)
print("still here")
"""


@pytest.mark.parametrize("block", WHILE.values(), ids=list(WHILE))
def test_who_leaves_at_once_says_how_to_go_on(block: str) -> None:
    """With a second Ctrl-C while no task runs, and a third one while tasks run, nothing else may be said any more."""
    ended = subprocess.run(
        [sys.executable, "-c", LEAVES.format(block=block)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr.splitlines()[-1].endswith("what is done is kept: run it again to resume")
    assert "Traceback" not in ended.stderr


FINALISED = """
import os, signal, sys, threading
import curate
from curate.graph import entry

kill, sent = os.kill, threading.Event()

def kill_and_tell(*given):
    kill(*given)
    sent.set()

os.kill = kill_and_tell

class Copy(curate.Job):
    version = "1"
    def process(self, batch):
        # A run of three rows is over before the interrupt is sent again.
        sent.wait(30)
        return batch

class Last:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

checked = entry._checked

def after_a_finaliser(*given):
    Last()
    return checked(*given)

entry._checked = after_a_finaliser
if __name__ == "__main__":
    Copy.main()
"""


@pytest.mark.parametrize("program", [[], ["-m", "curate", "run"]], ids=["a script", "curate run"])
def test_an_interrupt_before_a_run_begins_is_obeyed_wherever_it_arrives(program: list[str], tmp_path: Path) -> None:
    """A finaliser can raise nothing: Python told of the interrupt, and the job ran to its end."""
    write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 3))
    (tmp_path / "copy_job.py").write_text(FINALISED)
    where = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--backend", "inline"]
    run = [sys.executable, *program, str(tmp_path / "copy_job.py"), *where]
    ended = subprocess.run(run, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 130, ended.stderr
    assert "Traceback" not in ended.stderr


HANGS = """
import sys, threading
import curate
from curate.driver import stage_run

class Copy(curate.Job):
    version = "1"
    def process(self, batch):
        return batch

def hang(*_):
    print("hangs", file=sys.stderr, flush=True)
    while True:
        threading.Event().wait(0.1)

stage_run._Run.{where} = hang
if sys.argv[1] == "script":
    curate.range(3).write_parquet(sys.argv[3])
sys.argv[1:] = ["--input", sys.argv[2], "--output", sys.argv[3], "--backend", sys.argv[1]]
Copy.main()
"""


@pytest.mark.parametrize("backend", ["inline", "script", pytest.param("local", marks=pytest.mark.slow)])
@pytest.mark.parametrize("where", ["_open", "_conclude"])
def test_a_store_that_does_not_answer_keeps_nobody(where: str, backend: str, tmp_path: Path) -> None:
    """Before the first task one interrupt ends a run, and after the last one a second one does; what it waits for then
    is no task, and it does not say so. In a script, to which signals are left, the first one does."""
    write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 3))
    run = [sys.executable, "-c", HANGS.format(where=where), backend, str(tmp_path / "in"), str(tmp_path / "out")]
    waited_for = ["hangs", "interrupt again to leave at once"][: 1 if where == "_open" or backend == "script" else 2]
    with subprocess.Popen(run, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = ""
        for expected in waited_for:
            while expected not in said:
                line = process.stderr.readline()
                assert line, said
                said += line
            process.send_signal(signal.SIGINT)
        said += process.stderr.read()
    # As shells have it: 130 for both.
    assert process.returncode == (-signal.SIGINT if backend == "script" else 130)
    assert "running tasks" not in said
    assert "run it again to resume" in said or where == "_open"


def test_who_interrupted_tasks_is_told_what_is_waited_for_after_them(tmp_path: Path) -> None:
    """Where the store does not answer that is minutes, and the next interrupt leaves at once."""
    write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 3))
    twice = "        signal.raise_signal(signal.SIGINT), signal.raise_signal(signal.SIGINT)\n        return batch"
    code = HANGS.format(where="_conclude").replace("        return batch", twice)
    code = f"import signal\nfrom curate.driver import signals\nsignals.SAID_AFTER_S = 0.1\n{code}"
    run = [sys.executable, "-c", code, "inline", str(tmp_path / "in"), str(tmp_path / "out")]
    with subprocess.Popen(run, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        in_time = threading.Timer(60, process.kill)
        in_time.start()
        said = ""
        # Each is said by a thread of its own.
        while not ("running tasks" in said and "interrupt again to leave at once" in said):
            line = process.stderr.readline()
            assert line, said
            said += line
        process.send_signal(signal.SIGINT)
        said += process.stderr.read()
        in_time.cancel()
    assert process.returncode == 130
    assert "run it again to resume" in said


@pytest.mark.parametrize("closed", [False, True])
def test_who_leaves_at_once_waits_for_no_reader(closed: bool) -> None:
    """Of a pipe that is full, and that nobody reads, or of one that is closed."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"." * 65536)
    os.set_blocking(writer, True)
    if closed:
        os.close(reader)
    try:
        ended = subprocess.run(
            [sys.executable, "-c", LEAVES.format(block=WHILE["it gets ready"])], stderr=writer, check=False, timeout=60
        )
    finally:
        os.close(writer)
        if not closed:
            os.close(reader)
    assert ended.returncode == 130


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), PoolFailed("no actor"), ValueError("odd"), TransientStorageError("503")]
)
def test_a_run_that_is_ended_in_any_way_leaves_no_scratch(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of an output that nobody runs again."""
    monkeypatch.setattr("curate.driver.stage_run.Dispatcher.run", Mock(side_effect=error))
    out = tmp_path / "out"
    with pytest.raises((type(error), CurateError)):
        curate.from_items([{"a": 1}]).write_parquet(str(out), backend="inline")
    assert (out / "_curate/runs").exists()
    assert not any((out / "_curate/tmp").iterdir())
