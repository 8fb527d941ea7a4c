"""SIGKILL of the driver at random moments, again and again, until a run gets through."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from curate.clock import SystemClock
from curate.observe.job import read_status
from curate.observe.place import NoJobError
from tests.support.fakes import NEVER_S
from tests.support.gcs_emulator import GcsEmulator
from tests.support.harness import (
    CURATION,
    Driver,
    Place,
    Zygote,
    alive,
    balanced,
    corpus,
    executions,
    job_summary,
    outputs,
    run,
    strangers,
    totals,
    wait_until,
    workers,
)
from tests.support.sweeps import Mode

KILLS = 12


@pytest.mark.ci(1)
@pytest.mark.slow
def test_inline(place: Place, tmp_path: Path) -> None:
    """Inputs, outputs and books after twelve kills are those of an undisturbed run, and each kill costs at most the one
    shard that was running (or the look at the first rows, where the schema was not known yet)."""
    rng = random.Random(7)
    source = place.write("in", corpus())
    common = (CURATION, "--backend", "inline", "--json", "--pause-s", "0.03", "--input", source)
    whole_trace, trace = tmp_path / "whole", tmp_path / "trace"
    with Zygote(tmp_path / "zygote", place.env) as zygote:
        whole = zygote.run(*common, "--output", f"{place.root}/whole", "--trace", str(whole_trace))
        assert whole.code == 0, whole.err
        argv = (*common, "--output", f"{place.root}/killed", "--trace", str(trace))
        kills = 0
        for _ in range(KILLS):
            ended = zygote.run(*argv, kill_after_s=rng.uniform(0, 0.3 * whole.json["seconds"]))
            assert ended.code in (-signal.SIGKILL, 0), ended.err
            assert not strangers(place.objects("killed"))
            if ended.code == 0:
                break
            kills += 1
            assert _state(place) != "running", "a driver that is gone is not shown as running"
        again = zygote.run(*argv)
    assert kills > KILLS // 2, f"only {kills} kills hit a running job"
    assert again.code == 0, again.err
    _equal(place, whole.json, again.json)
    assert executions(trace).total() - executions(whole_trace).total() <= kills


@pytest.mark.ray(0)
@pytest.mark.slow
@pytest.mark.usefixtures("on_workers")
@pytest.mark.parametrize("place", ["local", pytest.param("gcs", marks=pytest.mark.nightly)], indirect=True)
def test_on_workers(place: Place, tmp_path: Path, mode: Mode) -> None:
    """The same with workers that outlive their driver: each kill costs at most what was running in the slots."""
    slots = os.cpu_count() or 1
    rng = random.Random(11)
    source = place.write("in", corpus(sizes=(120, 3, 60, 0, 200, 1, 75, 40, 90, 10, 30, 300, 50, 50)))
    common = (CURATION, "--json", "--pause-s", "0.2", "--input", source)
    whole_trace, trace = tmp_path / "whole", tmp_path / "trace"
    whole = run(*common, "--output", f"{place.root}/whole", "--trace", str(whole_trace), env=place.env)
    assert whole.code == 0, whole.err
    argv = [*common, "--output", f"{place.root}/killed", "--trace", str(trace)]
    kills = 0
    for _ in range(5 if mode is Mode.NIGHTLY else 3):
        before = executions(trace).total()
        with Driver(argv, place.env) as driver:
            # Until tasks run, nothing can go wrong that the inline test does not see.
            wait_until(lambda n=before, d=driver: executions(trace).total() > n or not d.running(), "a task runs")
            time.sleep(rng.uniform(0, 0.6))
            kills += driver.running()
            driver.signal(signal.SIGKILL)
            driver.process.communicate(timeout=NEVER_S)
        _wait_for_workers(workers(trace))
        assert not strangers(place.objects("killed"))
    again = run(*argv, env=place.env)
    assert kills > 1, "no kill hit a running job"
    assert again.code == 0, again.err
    _equal(place, whole.json, again.json)
    redone = executions(trace).total() - executions(whole_trace).total()
    assert redone <= kills * slots, f"{redone} after {kills} kills on {slots} slots"


@pytest.mark.slow
@pytest.mark.ray_lane
def test_a_store_that_fails_now_and_then(emulator: GcsEmulator, tmp_path: Path) -> None:
    """One request in ten is refused, before or after its effect, and drivers are killed too: same bytes and books."""
    place = Place("gs://bucket/data", emulator)
    rng = random.Random(3)
    source = place.write("in", corpus())
    common = (CURATION, "--backend", "inline", "--json", "--pause-s", "0.03", "--input", source)
    with Zygote(tmp_path / "zygote", place.env) as zygote:
        whole = zygote.run(*common, "--output", f"{place.root}/whole")
        assert whole.code == 0, whole.err
        emulator.fail_randomly(10, seed=3)
        for _ in range(KILLS):
            zygote.run(*common, "--output", f"{place.root}/killed", kill_after_s=rng.uniform(0, 0.5))
        again = zygote.run(*common, "--output", f"{place.root}/killed")
        emulator.heal()
    assert again.code == 0, again.err
    _equal(place, whole.json, again.json)


def _state(place: Place) -> str | None:
    """Returns the state of the killed job; None if there is none yet."""
    try:
        return read_status(f"{place.root}/killed", SystemClock().now()).state
    except NoJobError:
        return None


def _equal(place: Place, whole: dict[str, object], again: dict[str, object]) -> None:
    expected, found = place.objects("whole"), place.objects("killed")
    assert outputs(found) == outputs(expected)
    assert not strangers(found)
    assert totals(again) == totals(whole)
    assert job_summary(found) == job_summary(expected)
    assert balanced(job_summary(found)["rows"])


def _wait_for_workers(pids: Iterable[int]) -> None:
    def gone() -> bool:
        return not any(alive(pid) for pid in pids)

    wait_until(gone, "workers that outlive a killed driver end")
