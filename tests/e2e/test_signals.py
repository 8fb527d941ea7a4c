"""SIGINT and SIGTERM: what is known is written down, the exit code says so, and the next run goes on from there."""

from __future__ import annotations

import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from curate.clock import SystemClock
from curate.ledger.ledger import Ledger
from curate.ledger.summary import Summary
from curate.observe.job import read_status
from curate.stores.open import open_store
from tests.e2e.jobs.curation import Curation
from tests.support.gcs_emulator import GcsEmulator
from tests.support.harness import (
    CURATION,
    Driver,
    Ended,
    Place,
    corpus,
    executions,
    outputs,
    strangers,
    totals,
    wait_until,
)

BACKENDS = [
    "inline",
    pytest.param("local", marks=pytest.mark.slow),
    pytest.param("ray", marks=[pytest.mark.slow, pytest.mark.ray_lane]),
]
INTERRUPTED = 130
QUICKLY_S = 20
"""Far below the 30 s that running tasks get, far above the 2 s that a busy machine may not keep."""


@dataclass
class Bench:
    """A job whose batches wait as long as a file is there."""

    place: Place
    hold: Path
    trace: Path
    source: str
    backend: str
    whole: Summary

    def argv(self) -> list[str]:
        """Returns the command line of the job."""
        common = [CURATION, "--backend", self.backend, "--json", "--input", self.source]
        return [*common, "--output", f"{self.place.root}/out", "--trace", str(self.trace)]

    def start(self) -> Driver:
        """Returns the job, to be started; its tasks will wait."""
        self.hold.touch()
        argv = [*self.argv(), "--hold", str(self.hold), "--max-in-flight", "1"]
        return Driver(argv, self.place.env, errors=self.hold.with_name("errors"))

    def wait_for_task(self, driver: Driver) -> None:
        """Waits until a shard was begun, by a task and not by a look at the first rows."""

        def begun() -> bool:
            assert driver.running(), driver.end()
            return len(executions(self.trace)) > 1

        wait_until(begun, "a task begins")

    def release(self) -> None:
        """Lets batches go on."""
        self.hold.unlink(missing_ok=True)

    def check(self, ended: Ended, *, done: int) -> None:
        """Checks how an interrupted run ended, what it left, and that the next one completes the job."""
        assert ended.code == INTERRUPTED, ended.err
        assert "Traceback" not in ended.err
        result = ended.json
        assert (result["state"], result["shards"]["done"]) == ("interrupted", done)
        status = read_status(f"{self.place.root}/out", SystemClock().now())
        assert (status.state, status.done, status.running) == ("interrupted", done, 0)
        assert status.rows == result["rows"]
        ledger = Ledger(open_store(self.place.root), f"{self.place.root}/out")
        told = [event for event in ledger.events(ledger.list().segments) if event["outcome"] == "done"]
        assert len(told) == done
        self.finish()

    def finish(self) -> None:
        """Checks that a rerun completes the job as if nothing had happened."""
        self.release()
        again = Curation().run(input=self.source, output=f"{self.place.root}/out", backend="inline")
        found = self.place.objects("out")
        assert outputs(found) == outputs(self.place.objects("whole"))
        assert not strangers(found)
        assert totals(again.as_dict()) == totals(self.whole.as_dict())


def _bench(place: Place, tmp_path: Path, backend: str) -> Bench:
    source = place.write("in", corpus(sizes=(40, 3, 20, 0, 30)))
    whole = Curation().run(input=source, output=f"{place.root}/whole", backend="inline")
    return Bench(place, tmp_path / "hold", tmp_path / "trace", source, backend, whole)


@pytest.fixture(params=BACKENDS)
def bench(request: pytest.FixtureRequest, local: Place, tmp_path: Path) -> Bench:
    made = _bench(local, tmp_path, request.param)
    # The schema is known and tasks run at once, so that a signal finds one.
    Curation(trace=str(made.trace)).run(input=made.source, output=f"{local.root}/out", backend="inline", limit=1)
    return made


@pytest.mark.slow
def test_the_first_interrupt_lets_running_tasks_end(bench: Bench) -> None:
    """Nothing new is launched, what runs may end, and counts."""
    with bench.start() as driver:
        bench.wait_for_task(driver)
        driver.signal(signal.SIGINT)
        driver.wait_for_word("interrupt again to cancel them")
        # What was launched and has not begun is taken back when it is looked for next.
        time.sleep(0.7)
        assert driver.running()
        bench.release()
        ended = driver.end()
    assert "running tasks get 30 s to end" in ended.err
    bench.check(ended, done=2)


@pytest.mark.ray(0)
@pytest.mark.slow
def test_the_second_interrupt_cancels(bench: Bench) -> None:
    """Whatever runs is dropped, in the middle of `process`."""
    with bench.start() as driver:
        bench.wait_for_task(driver)
        driver.signal(signal.SIGINT)
        driver.wait_for_word("interrupt again to cancel them")
        driver.signal(signal.SIGINT)
        ended = driver.end(QUICKLY_S)
    bench.check(ended, done=1)


@pytest.mark.slow
def test_the_patience_with_running_tasks_ends(local: Place, tmp_path: Path) -> None:
    """Inline, where nobody is left to look at the clock: one interrupt, and a task is cancelled when its time is up."""
    bench = _bench(local, tmp_path, "inline")
    bench.hold.touch()
    argv = [*bench.argv(), "--hold", str(bench.hold)]
    code = (
        "import runpy, sys\nimport curate.driver.signals as signals\n"
        f"signals.GRACE_S, sys.argv = 0.5, {argv}\nrunpy.run_path(sys.argv[0], run_name='__main__')"
    )
    with Driver(["-c", code]) as driver:
        wait_until(lambda: bench.trace.exists(), "the job is asked")
        driver.signal(signal.SIGINT)
        ended = driver.end(QUICKLY_S)
    bench.check(ended, done=0)


@pytest.mark.slow
@pytest.mark.ray(0)
def test_control_c_reaches_the_whole_group(bench: Bench) -> None:
    """A terminal interrupts every process of the group: the workers do not mind, the driver does."""
    with bench.start() as driver:
        bench.wait_for_task(driver)
        driver.interrupt_group()
        driver.wait_for_word("interrupt again to cancel them")
        # What was launched and has not begun is taken back when it is looked for next.
        time.sleep(0.7)
        assert driver.running()
        bench.release()
        ended = driver.end()
    bench.check(ended, done=2)


@pytest.mark.slow
def test_terminate_flushes_and_leaves(bench: Bench) -> None:
    """SIGTERM does not wait for what runs: `ray job stop` kills three seconds later."""
    with bench.start() as driver:
        bench.wait_for_task(driver)
        driver.signal(signal.SIGTERM)
        began = time.monotonic()
        ended = driver.end(QUICKLY_S)
        seconds = time.monotonic() - began
        driver.wait_for_children()
        # Shown by `pytest -rP`.
        sys.stdout.write(f"{bench.backend}: gone {seconds:.2f} s after SIGTERM\n")
    bench.check(ended, done=1)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_before_anything_runs(number: signal.Signals, emulator: GcsEmulator, tmp_path: Path) -> None:
    """A run that gets ready is given up at once, and has written nothing."""
    place = Place("gs://bucket/data", emulator)
    bench = _bench(place, tmp_path, "inline")
    slow = emulator.fail(operation="list", status=None, slow_s=QUICKLY_S)
    with bench.start() as driver:
        wait_until(lambda: slow.fired, "the inputs are listed")
        driver.signal(number)
        ended = driver.end(QUICKLY_S)
    emulator.heal()
    assert ended.code == INTERRUPTED, ended.err
    assert "Traceback" not in ended.err
    assert "interrupted before any shard was begun" in ended.err
    assert ended.out == ""
    assert place.objects("out") == {}
    bench.finish()


@pytest.mark.slow
def test_the_third_interrupt_leaves_at_once(emulator: GcsEmulator, tmp_path: Path) -> None:
    """Even from a store that does not answer."""
    bench = _bench(Place("gs://bucket/data", emulator), tmp_path, "inline")
    with bench.start() as driver:
        wait_until(lambda: bench.trace.exists(), "the job is asked")
        emulator.fail(operation="put", times=1000, status=None, slow_s=2 * QUICKLY_S)
        driver.signal(signal.SIGINT)
        driver.wait_for_word("interrupt again to cancel them")
        driver.signal(signal.SIGINT)
        time.sleep(0.3)
        assert driver.running(), "the end of the ledger is still being written"
        driver.signal(signal.SIGINT)
        ended = driver.end(QUICKLY_S)
    emulator.heal()
    assert ended.code == INTERRUPTED, ended.err
    assert "left at once" in ended.err
    assert "Traceback" not in ended.err
    bench.finish()


@pytest.mark.slow
def test_while_the_first_rows_are_looked_at(local: Place, tmp_path: Path) -> None:
    """The schema of the outputs is asked of the job's code, which may take its time, or hang."""
    bench = _bench(local, tmp_path, "inline")
    with bench.start() as driver:
        wait_until(lambda: bench.trace.exists(), "the job is asked")
        driver.signal(signal.SIGTERM)
        ended = driver.end(QUICKLY_S)
    assert "no output schema" not in ended.err
    bench.check(ended, done=0)


@pytest.mark.slow
@pytest.mark.ray_lane
@pytest.mark.parametrize(
    ("number", "after_s"),
    [
        pytest.param(number, after_s, marks=[] if at % 2 == first else [pytest.mark.nightly])
        for first, number in enumerate([signal.SIGINT, signal.SIGTERM])
        for at, after_s in enumerate([0.0, 0.5, 1.0, 2.0])
    ],
)
def test_while_ray_starts(number: signal.Signals, after_s: float, local: Place, tmp_path: Path) -> None:
    """Ray takes signals itself while it starts; the run ends in order all the same, and leaves no process behind."""
    bench = _bench(local, tmp_path, "ray")
    bench.hold.touch()
    with Driver([*bench.argv(), "--hold", str(bench.hold)]) as driver:
        wait_until(lambda: "_raylet" in Path(f"/proc/{driver.process.pid}/maps").read_text(), "Ray is imported")
        time.sleep(after_s)
        driver.signal(number)
        if number is signal.SIGINT:
            time.sleep(0.5)
            driver.signal(number)
        ended = driver.end(QUICKLY_S)
        driver.wait_for_children()
    # A second Ctrl-C may find a Python that is about to end: to a shell that is the same exit code.
    assert ended.code in (INTERRUPTED, -signal.SIGINT) if number is signal.SIGINT else ended.code == INTERRUPTED
    assert "Traceback" not in ended.err
    bench.finish()
