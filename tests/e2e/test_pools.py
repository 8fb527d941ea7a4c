"""A chain of CPU, pool and CPU steps is as resumable, and as deterministic, as a plain job."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.jobs.pooled import Pooled
from tests.support.fakes import NEVER_S
from tests.support.harness import (
    Driver,
    Place,
    alive,
    balanced,
    check_same,
    corpus,
    job_summary,
    outputs,
    run,
    strangers,
    totals,
    wait_until,
)
from tests.support.ray_head import own_ray

POOLED = "tests/e2e/jobs/pooled.py"
FILES = corpus(seed=5, sizes=(120, 3, 60, 0, 200, 1, 75, 40, 90, 10, 30, 300))


@contextmanager
def cluster(cpus: int, backend: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CURATE_BACKEND", backend)
        patch.setattr("curate.local.machine.cpus", lambda: float(cpus))
        with own_ray(cpus) if backend == "ray" else nullcontext():
            yield


def done(place: Place, source: str, name: str, **parameters: Any) -> dict[str, bytes]:
    """Runs the job and returns what it left."""
    options = {key: parameters.pop(key) for key in ("backend", "target_task_seconds") if key in parameters}
    summary = Pooled(shard_bytes=4000, **parameters).run(input=source, output=f"{place.root}/{name}", **options)
    assert summary.state == "complete", summary
    return place.objects(name)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["local", pytest.param("ray", marks=[pytest.mark.ray_lane, pytest.mark.nightly])])
def test_the_same_bytes_however_it_ran(local: Place, tmp_path: Path, backend: str) -> None:
    """In this process; with one CPU and two, one actor and three, shards alone and bundled; with actors that are
    killed."""
    source = local.write("in", FILES)
    expected = done(local, source, "inline", backend="inline")
    assert job_summary(expected)["rows"]["dropped"].keys() == {"short", "still short", "unspecified"} - {"unspecified"}

    def check(name: str, **parameters: Any) -> None:
        found = done(local, source, name, **parameters)
        check_same(found, expected, name)

    with cluster(1, backend):
        check("one", actor_cpus=0.0)
    with cluster(2, backend):
        check("two")
        check("alone", actor_cpus=0.1, actors=3, target_task_seconds=0.001)
        trace = tmp_path / "trace"
        with killing(trace, times=2) as killed:
            check("killed", trace=str(trace), pause_s=0.02, actors=2, actor_cpus=0.5)
        assert len(killed) == 2


@contextmanager
def killing(trace: Path, times: int) -> Iterator[list[int]]:
    """Kills the process that made the last call, some times over, while the body runs."""
    killed: list[int] = []
    over = threading.Event()

    def hunt() -> None:
        while not over.wait(0.3) and len(killed) < times:
            lines = trace.read_text().splitlines() if trace.exists() else []
            calls = [int(line.split()[0]) for line in lines if "called" in line]
            if calls and calls[-1] not in killed:
                os.kill(calls[-1], signal.SIGKILL)
                killed.append(calls[-1])

    thread = threading.Thread(target=hunt)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.usefixtures("on_workers")
@pytest.mark.parametrize(
    "on_workers", ["local", pytest.param("ray", marks=[pytest.mark.ray_lane, pytest.mark.nightly])], indirect=True
)
def test_the_driver_is_killed(local: Place, tmp_path: Path) -> None:
    """Run again until it gets through: the same bytes and books, nothing foreign, no actor left behind."""
    rng = random.Random(3)
    source, trace = local.write("in", FILES), tmp_path / "trace"
    common = (POOLED, "--json", "--shard-bytes", "4000", "--input", source, "--pause-s", "0.05")
    whole = run(*common, "--output", f"{local.root}/whole")
    assert whole.code == 0, whole.err
    argv = [*common, "--output", f"{local.root}/killed", "--trace", str(trace)]
    for number in range(2):
        with Driver(argv) as driver:
            wait_until(lambda n=number: _calls(trace) > 12 * n + 3, "actors are called")
            time.sleep(rng.uniform(0, 0.4))
            driver.signal(signal.SIGKILL)
            driver.process.communicate(timeout=NEVER_S)
        pids = {int(line.split()[0]) for line in trace.read_text().splitlines()}
        wait_until(lambda pids=pids: not any(alive(pid) for pid in pids), "actors end")
        assert not strangers(local.objects("killed"))
    again = run(*argv)
    assert again.code == 0, again.err
    expected, found = local.objects("whole"), local.objects("killed")
    check_same(found, expected)
    assert totals(again.json) == totals(whole.json)
    assert balanced(job_summary(found)["rows"])


def _calls(trace: Path) -> int:
    return trace.read_text().count("called") if trace.exists() else 0


@pytest.mark.slow
@pytest.mark.usefixtures("on_workers")
@pytest.mark.parametrize(
    "on_workers", ["local", pytest.param("ray", marks=[pytest.mark.ray_lane, pytest.mark.nightly])], indirect=True
)
def test_actors_that_cannot_be_made(local: Place) -> None:
    """The run ends with the reason and its traceback, at once, exit 1; mended, it goes on."""
    source = local.write("in", FILES)
    common = (POOLED, "--shard-bytes", "4000", "--input", source, "--output", f"{local.root}/out")
    ended = run(*common, "--broken")
    assert ended.code == 1, ended.err
    assert "there is no model here" in ended.err
    assert "in __init__" in ended.err
    assert not outputs(local.objects("out"))
    assert run(*common, "--json").code == 0
