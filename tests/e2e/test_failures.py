"""Shards that fail, workers that die: the others finish, attempts are counted exactly, and the run says so."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from curate.backends.inline import InlineBackend
from curate.errors import ConfigError
from curate.ledger.summary import RunState
from curate.runtime.protocol import Message, PoolSpec, Program, Resources, TaskFinished
from tests.support.fakes import FakeClock
from tests.support.harness import CURATION, Place, corpus, executions, outputs, run
from tests.support.workbench import Bench, complete

FILES = corpus(sizes=(120, 3, 60, 0, 70, 30))
LOUD = ["2020/RC-02.parquet", "2021/RC-05.parquet"]
GZIP, PARQUET, GONE = "2020/RC-00.jsonl.gz", "2021/RC-05.parquet", "2020/RC-04.jsonl"
EXPECTED = "RuntimeError: this was to be expected"


def check_same_as_fresh(bench: Bench) -> None:
    """Checks that the output is that of a job in which nothing ever failed."""
    bench.parameters = {}
    bench.check_as_fresh()


def test_a_shard_that_always_raises_is_tried_four_times(bench: Bench, clock: FakeClock) -> None:
    """Alone, with 1, 2 and 4 s between; the others are done once. A rerun tries it again, and nothing else."""
    bench.parameters = {"always": LOUD[:1]}
    failed = bench.run(clock=clock)
    assert (failed.state, failed.done, failed.failed) == (RunState.FAILED, len(FILES) - 1, 1)
    assert failed.attempts == len(FILES) - 1 + 4
    begun = bench.begun()
    assert begun.count(LOUD[0]) == 4
    assert clock.sleeps == [0.5] * 2 + [0.5] * 4 + [0.5] * 8
    assert [(group.error, group.count) for group in failed.failures] == [(EXPECTED, 1)]
    status = bench.status()
    assert (status.state, status.done, status.failed, status.pending) == ("failed", len(FILES) - 1, 1, 0)
    assert status.failures == [{"error": EXPECTED, "count": 1, "shard": "2020/RC-02"}]

    again = bench.run(clock=clock)
    assert (again.skipped, again.attempts, again.failed) == (len(FILES) - 1, 4, 1)
    assert set(bench.begun()) == {LOUD[0]}
    bench.parameters = {}
    assert complete(bench.run()).attempts == 1
    check_same_as_fresh(bench)


def test_equal_errors_are_one_group(bench: Bench, clock: FakeClock) -> None:
    """Failures are shown by what went wrong, with a count and one of the shards."""
    bench.parameters = {"always": LOUD}
    failed = bench.run(clock=clock)
    assert failed.attempts == len(FILES) - 2 + 8
    assert [(group.error, group.count) for group in failed.failures] == [(EXPECTED, 2)]
    assert failed.failures[0].shard in ("2020/RC-02", "2021/RC-05")


def test_what_cannot_be_read_fails_at_once(bench: Bench, clock: FakeClock) -> None:
    """A truncated gzip, a Parquet file without footer, an input that is gone: one attempt each; the others finish."""
    complete(bench.run(limit=2, clock=clock))
    bench.place.write("in", {GZIP: FILES[GZIP][:-30], PARQUET: FILES[PARQUET][:-4]})
    done = {name.split(".")[0] for name in bench.objects() if not name.startswith("_")}
    assert not {name.split(".")[0] for name in (PARQUET, GONE)} & done
    bench.place.delete(f"{bench.source}/{GONE}")
    if GZIP.split(".")[0] in done:
        bench.place.delete(f"{bench.place.root}/out/{GZIP.split('.')[0]}.parquet")
    clock.advance(1)
    ended = bench.run(clock=clock)
    assert (ended.state, ended.failed, ended.done) == (RunState.FAILED, 3, len(FILES) - 3)
    assert ended.attempts == ended.total - ended.skipped
    assert clock.sleeps == []
    errors = {group.shard: group.error for group in ended.failures}
    assert set(errors) == {name.split(".")[0] for name in (GZIP, PARQUET, GONE)}
    assert all(error.startswith("CorruptInput: ") for error in errors.values())
    for name in (GZIP, PARQUET, GONE):
        assert f"in/{name}" in errors[name.split(".")[0]]
    assert bench.status().failed == 3

    bench.place.write("in", {name: FILES[name] for name in (GZIP, PARQUET, GONE)})
    complete(bench.run())
    check_same_as_fresh(bench)


def test_the_last_input_of_its_format_is_gone(bench: Bench, clock: FakeClock) -> None:
    """Its shard fails for that, although nothing is left to tell the columns of such inputs."""
    name = "2021/table.csv"
    bench.place.write("in", {name: b"file,id,text\nx,1,a text that is long enough\n"})
    complete(bench.run(limit=1, clock=clock))
    bench.place.delete(f"{bench.source}/{name}")
    ended = bench.run(clock=clock)
    assert (ended.state, ended.failed, ended.attempts) == (RunState.FAILED, 1, len(FILES))
    assert [group.error.startswith(f"CorruptInput: {bench.source}/{name}") for group in ended.failures] == [True]


def test_too_many_failures_stop_the_run(bench: Bench, clock: FakeClock) -> None:
    """Exit code 3; what is done stays done."""
    bench.place.write("in", {GZIP: FILES[GZIP][:-30], PARQUET: FILES[PARQUET][:-4]})
    ended = bench.run(max_failed_shards="0", clock=clock, max_in_flight=1)
    assert (ended.state, ended.failed) == (RunState.ABORTED, 1)
    assert ended.state.exit_code == 3
    assert bench.status().state == "aborted"
    bench.place.write("in", {name: FILES[name] for name in (GZIP, PARQUET)})
    complete(bench.run())
    check_same_as_fresh(bench)


@dataclass
class Breaking(InlineBackend):
    """An inline backend that raises in one of its methods."""

    method: str
    error: BaseException
    calls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def _call(self, method: str) -> None:
        self.calls.append(method)
        if method == self.method:
            raise self.error

    def start(self, resources: Resources, pools: Sequence[PoolSpec] = ()) -> float:
        self._call("start")
        return super().start(resources, pools)

    def load(self, program: Program, pools: Sequence[PoolSpec] = (), **how: Any) -> None:
        self._call("load")
        super().load(program, pools, **how)

    def poll(self, timeout_s: float) -> list[Message | TaskFinished]:
        self._call("poll")
        return super().poll(timeout_s)

    def close(self) -> None:
        self._call("close")
        super().close()


@pytest.mark.ci(7)
@pytest.mark.quick(3)
@pytest.mark.parametrize("method", ["start", "load", "poll"])
@pytest.mark.parametrize("error", [ConfigError("no node is that big"), ZeroDivisionError(), KeyboardInterrupt()])
def test_an_error_of_the_driver_ends_the_run(bench: Bench, method: str, error: BaseException) -> None:
    """The backend is let go, no thread goes on writing, and no run seems to go on; the next one completes the job."""
    backend = Breaking(method, error)
    with pytest.raises(type(error)):
        bench.run(backend=backend)
    assert backend.calls[-1] == "close"
    assert not [thread for thread in threading.enumerate() if thread.name == "curate-runlog"]
    if method == "start":
        assert bench.objects() == {}
    else:
        status = bench.status()
        expected = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        assert (status.state, status.running, status.done) == (expected, 0, 0)
    complete(bench.run())
    check_same_as_fresh(bench)


def test_a_refusal_after_the_start_lets_the_backend_go(bench: Bench) -> None:
    """Another job may take the output while the cluster starts."""

    class Slow(Breaking):
        def start(self, resources: Resources, pools: Sequence[PoolSpec] = ()) -> float:
            started_s = super().start(resources, pools)
            Bench(bench.place, bench.trace, bench.source, {"short": 25}).run(limit=1)
            return started_s

    backend = Slow("none", ConfigError())
    with pytest.raises(ConfigError, match=r"parameters\.short: made with 25, you asked for 20"):
        bench.run(backend=backend)
    assert backend.calls == ["start", "close"]


@pytest.mark.ray(0)
@pytest.mark.slow
@pytest.mark.usefixtures("on_workers")
def test_on_workers(local: Place, tmp_path: Path) -> None:
    """The same failures with workers that are processes of their own, in one job."""
    source = local.write("in", FILES | {GZIP: FILES[GZIP][:-30], PARQUET: FILES[PARQUET][:-4]})
    trace = tmp_path / "trace"
    argv = (CURATION, "--json", "--input", source, "--output", f"{local.root}/out", "--trace", str(trace))
    failed = run(*argv, "--always", "2021/RC-01.jsonl")
    assert failed.code == 1, failed.err
    shards, tasks = failed.json["shards"], failed.json["tasks"]
    assert (shards["done"], shards["failed"]) == (len(FILES) - 3, 3)
    assert tasks["attempts"] == (len(FILES) - 3) + 1 + 1 + 4
    assert executions(trace)["2021/RC-01.jsonl:0"] == 4


@pytest.mark.slow
@pytest.mark.usefixtures("on_workers")
@pytest.mark.parametrize(
    "on_workers", ["local", pytest.param("ray", marks=[pytest.mark.ray_lane, pytest.mark.nightly])], indirect=True
)
def test_a_worker_that_is_killed_is_replaced(local: Place, tmp_path: Path) -> None:
    """SIGKILL of a worker in the middle of a shard: the run ends by itself, complete, one attempt later."""
    source = local.write("in", FILES)
    trace = tmp_path / "trace"
    argv = (CURATION, "--json", "--input", source, "--output", f"{local.root}/out", "--trace", str(trace))
    # The look at the first rows must not be what dies.
    assert run(*argv, "--limit", "1").code == 0
    ended = run(*argv, "--once", str(tmp_path / "once"), "--fault", "kill")
    assert ended.code == 0, ended.err
    assert (tmp_path / "once").exists()
    assert ended.json["tasks"]["attempts"] == len(FILES) - 1 + 1
    assert max(executions(trace).values()) <= 2
    whole = run(CURATION, "--backend", "inline", "--input", source, "--output", f"{local.root}/whole")
    assert whole.code == 0
    assert outputs(local.objects("out")) == outputs(local.objects("whole"))


@pytest.mark.slow
@pytest.mark.usefixtures("on_workers")
@pytest.mark.parametrize(
    "on_workers", ["local", pytest.param("ray", marks=[pytest.mark.ray_lane, pytest.mark.nightly])], indirect=True
)
def test_a_worker_that_always_dies_is_given_up(local: Place) -> None:
    """Three crashes; the run ends by itself with exit code 1 and all other shards done."""
    source = local.write("in", FILES)
    argv = (CURATION, "--json", "--input", source, "--output", f"{local.root}/out")
    ended = run(*argv, "--always", LOUD[1], "--fault", "kill")
    assert ended.code == 1, ended.err
    assert (ended.json["shards"]["done"], ended.json["shards"]["failed"]) == (len(FILES) - 1, 1)
    status = json.loads(run("-m", "curate.cli.main", "status", f"{local.root}/out", "--json").out)
    assert [(group["count"], group["shard"]) for group in status["failures"]] == [(1, "2021/RC-05")]
    assert "crashed" in status["failures"][0]["error"]
