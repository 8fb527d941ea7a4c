"""Whole jobs over stores that fail: the bytes, the books and the exit of a run that nothing disturbed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from curate.errors import StorageError
from curate.ledger.summary import RunState
from curate.requests.retry import Retry
from curate.storage.faults import OPERATIONS, Fault
from curate.testing.clock import FakeClock
from curate.testing.stores import faulty_stores
from tests.support.gcs_emulator import GcsEmulator
from tests.support.harness import CURATION, Place, corpus, job_summary, outputs, run, strangers, totals
from tests.support.workbench import Bench, complete

FILES = corpus()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    place = Place(str(tmp_path / "data"))
    return Bench(place, tmp_path / "trace", place.write("in", FILES))


def check_equal(bench: Bench, name: str) -> None:
    """Checks an output against that of a run that nothing disturbed, which is made if it is not there."""
    if not bench.objects("whole"):
        complete(bench.run(output="whole"))
    whole, found = bench.objects("whole"), bench.objects(name)
    assert outputs(found) == outputs(whole)
    assert job_summary(found) == job_summary(whole)
    assert not strangers(found)


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize(("rate", "seed"), [(0.01, 0), (0.01, 1), (0.01, 2), (0.1, 3)])
def test_one_call_in_a_hundred_fails(bench: Bench, rate: float, seed: int) -> None:
    """For whole runs (and one in ten), before or after its effect; retried inside the store, as with GCS. Nobody
    notices: same bytes, books and attempts."""
    clock = FakeClock()
    undisturbed = complete(bench.run(output="whole"))
    begun = bench.begun()
    with faulty_stores(rate=rate, seed=seed, retry=Retry(clock=clock)) as faults:
        ended = complete(bench.run())
        for _ in range(5):
            # A small job makes some hundred calls; six runs of it make enough.
            bench.run(overwrite=True, confirm=lambda _: True)
    assert faults.fired.total() >= 3
    assert len(clock.sleeps) >= faults.fired.total()
    assert totals(ended.as_dict()) == totals(undisturbed.as_dict())
    assert bench.begun() == sorted(begun * 6)
    check_equal(bench, "out")


@pytest.mark.ci(7)
@pytest.mark.slow
@pytest.mark.quick(5)
@pytest.mark.parametrize("operation", [operation for operation in OPERATIONS if operation != "delete"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_every_operation_fails_once(bench: Bench, operation: str, when: str) -> None:
    """Each call of a run in turn, and each attempt is exactly one more than the undisturbed run takes. Their time
    stands still: a run of more than two seconds writes what has come to pass once more."""
    with faulty_stores() as counted:
        complete(bench.run(output="whole", clock=FakeClock()))
    begun, expected = bench.begun(), counted.calls
    for nth in range(1, expected[operation] + 1, max(1, expected[operation] // 4)):
        fault = Fault(operation, nth=nth, when=when)
        with faulty_stores(fault, retry=Retry(clock=FakeClock())) as faults:
            complete(bench.run(output=f"{operation}-{nth}", clock=FakeClock()))
        assert fault.fired == 1
        assert faults.calls.total() == expected.total() + 1, faults.calls - expected
        assert bench.begun() == begun
        check_equal(bench, f"{operation}-{nth}")


# A storm of 503s, over HTTP


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """GCS is retried without waiting, and for long: waits pass on this clock alone."""
    clock = FakeClock()
    monkeypatch.setattr("curate.stores.gcs.Retry", lambda: Retry(deadline_s=1e6, clock=clock))
    return clock


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "storm",
    [
        lambda emulator, _: emulator.fail(status=503, nth=20, times=60),
        lambda emulator, _: emulator.fail(status=429, nth=5, times=30),
        lambda emulator, _: emulator.fail(reset=True, nth=10, times=25),
        lambda emulator, _: emulator.fail_randomly(3, seed=5),
        lambda emulator, clock: emulator.limit(per_s=5, clock=clock),
    ],
    ids=["503", "429", "resets", "one in three", "five a second"],
)
def test_a_storm(
    emulator: GcsEmulator, waits: FakeClock, tmp_path: Path, storm: Callable[[GcsEmulator, FakeClock], object]
) -> None:
    """Requests in a row that are refused, many at random, or all beyond a rate: the same bytes, books and exit."""
    place = Place("gs://bucket/data", emulator)
    bench = Bench(place, tmp_path / "trace", place.write("in", FILES))
    undisturbed = complete(bench.run(output="whole"))
    begun = bench.begun()
    emulator.reset_counts()
    storm(emulator, waits)
    ended = complete(bench.run())
    counts = emulator.counts()
    refused = [status for _, _, status in emulator.requests if status in (0, 429, 503)]
    assert len(refused) >= 10
    emulator.heal()
    assert totals(ended.as_dict()) == totals(undisturbed.as_dict())
    assert (ended.calls.list, ended.calls.put) == (counts["list"], counts["put"])
    assert bench.begun() == begun
    check_equal(bench, "out")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_calls_that_fail_for_good(bench: Bench, seed: int) -> None:
    """One call in eight, with nobody below who tries again: a run may end early, by an error of the storage and no
    other, and running again often enough ends with the same bytes and books."""
    ended, refused = None, 0
    with faulty_stores(rate=1 / 8, seed=seed, retry=None) as faults:
        for _ in range(50):
            try:
                ended = bench.run(clock=FakeClock())
            except StorageError:
                refused += 1
                continue
            if ended.state is RunState.COMPLETE:
                break
    assert ended is not None
    complete(ended)
    assert faults.fired.total() >= refused >= 1
    check_equal(bench, "out")


# On Ray: the workers are processes of their own


@pytest.mark.slow
@pytest.mark.ray_lane
@pytest.mark.nightly
@pytest.mark.usefixtures("on_ray")
def test_on_ray(tmp_path: Path) -> None:
    """One call in twenty fails in the driver and in every worker: exit 0, and nobody notices."""
    place = Place(str(tmp_path / "data"))
    argv = (CURATION, "--json", "--input", place.write("in", FILES), "--output")
    whole = run(*argv, f"{place.root}/whole", "--backend", "inline")
    ended = run(*argv, f"{place.root}/out", env={"CURATE_TESTING_FAULTS": "rate=0.05,seed=7"})
    assert (whole.code, ended.code) == (0, 0), ended.err
    assert totals(ended.json) == totals(whole.json)
    assert outputs(place.objects("out")) == outputs(place.objects("whole"))


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.ray_lane
@pytest.mark.usefixtures("on_ray")
def test_kills_reach_the_workers_of_ray(tmp_path: Path) -> None:
    """A worker that dies each time it is about to publish one output: that shard is given up, all others are done."""
    place = Place(str(tmp_path / "data"))
    argv = (CURATION, "--json", "--input", place.write("in", FILES), "--output", f"{place.root}/out")
    faults = {"CURATE_TESTING_FAULTS": "operation=publish,name=2020/RC-04,times=99,error=kill"}
    ended = run(*argv, env=faults)
    assert ended.code == 1, ended.err
    assert (ended.json["shards"]["done"], ended.json["shards"]["failed"]) == (len(FILES) - 1, 1)
    assert "2020/RC-04.parquet" not in place.objects("out")
    again = run(*argv)
    assert (again.code, again.json["tasks"]["attempts"]) == (0, 1), again.err
