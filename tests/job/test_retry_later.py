"""RetryLater: the call of user code that raised is made again, no other one, and nothing else shows that it waited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from curate.cli.failures import _heading
from curate.clock import SystemClock
from curate.dataset.dataset import Dataset
from curate.errors import BadRow, RetryLater
from curate.job.job import Job
from curate.job.params import param
from curate.ledger.summary import RunState
from curate.observe.job import read_status
from curate.pipeline.retry_later import MOST_TRIES, wait_s
from curate.pipeline.step import ActorPool
from tests.job.inline import everything, numbered, run_job, write_jsonl
from tests.support.examples import examples
from tests.support.fakes import FakeClock

ROWS = 6
"""Of each input."""
UNITS = {"process": 3, "map_batches": 3, "pool": 3, "map": 6, "flat_map": 6, "filter": 6, "map pool": 6}
"""Calls that are needed for an input, by what makes them: batches of two rows, or rows."""


class Service:
    """Answers, or says that it is busy, by a script; writes down every call."""

    def __init__(self) -> None:
        self.busy: Counter[int] = Counter()
        """How often each call is refused before it is answered, by the first row that it is about."""
        self.after_s = 0.0
        self.calls: list[int] = []
        self.served: Counter[int] = Counter()
        self.processed = 0
        """Calls of `process`."""

    def ask(self, n: int) -> None:
        """Raises while the service is busy for this row."""
        self.calls.append(n)
        if self.busy[n] > 0:
            self.busy[n] -= 1
            raise RetryLater(self.after_s, "HTTP 429")
        self.served[n] += 1


SERVICE, CLOCK = Service(), FakeClock()


@pytest.fixture(autouse=True)
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    """A service of its own for each test."""
    fresh = Service()
    monkeypatch.setitem(globals(), "SERVICE", fresh)
    return fresh


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """Time that passes by sleeping alone, wherever somebody waits."""
    fake = FakeClock()
    monkeypatch.setitem(globals(), "CLOCK", fake)
    for name in ("now", "monotonic", "sleep"):
        monkeypatch.setattr(SystemClock, name, lambda _, *given, name=name: getattr(fake, name)(*given))
    return fake


def one_row(row: dict[str, Any]) -> dict[str, Any]:
    SERVICE.ask(row["n"])
    return row


def twice(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield row
    SERVICE.ask(row["n"])
    yield row


def keeps(row: dict[str, Any]) -> bool:
    SERVICE.ask(row["n"])
    return bool(row["n"] % 2)


def one_batch(batch: pa.Table) -> pa.Table:
    SERVICE.ask(batch["n"][0].as_py())
    return batch


class Batches:
    """Made once in each actor."""

    def __call__(self, batch: pa.Table) -> pa.Table:
        return one_batch(batch)


class Rows:
    """Made once in each actor."""

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return one_row(row)


class Calling(Job):
    """Calls the service for each batch, or each row."""

    version = "1"
    batch_size = 2
    max_bad_rows = "100%"
    output_schema = pa.schema([("id", pa.string()), ("n", pa.int64()), ("text", pa.string())])
    how: str = param("process", help="what makes the calls")

    def build(self, ds: Dataset) -> Dataset:
        match self.how:
            case "process":
                return super().build(ds)
            case "map_batches":
                return ds.map_batches(one_batch, batch_size=2)
            case "pool":
                return ds.map_batches(Batches, batch_size=2, compute=ActorPool(size=1))
            case "map":
                return ds.map(one_row)
            case "flat_map":
                return ds.flat_map(twice)
            case "filter":
                return ds.filter(keeps, reason="even")
            case "map pool":
                return ds.map(Rows, compute=ActorPool(size=1))
        raise AssertionError(self.how)

    def process(self, batch: pa.Table) -> Iterator[pa.Table]:
        """Has given and booked something of the batch by the time that it calls."""
        self.count("batches")
        self.quarantine({"n": batch["n"][0].as_py()}, "the first of two")
        self.drop(1, "the second of two")
        yield batch.slice(0, 0)
        SERVICE.ask(batch["n"][0].as_py())


def inputs(folder: Path, shards: int = 1) -> Path:
    for shard in range(shards):
        write_jsonl(folder / "in" / f"{shard}.jsonl", numbered(ROWS * shard, ROWS * (shard + 1)))
    return folder / "in"


def do(folder: Path, how: str, shards: int = 1, **options: Any) -> Any:
    return run_job(Calling(how=how), inputs(folder, shards), folder / "out", clock=CLOCK, **options)


def logged(logs: list[Any]) -> list[str]:
    """Returns what was said of a service."""
    return [entry["event"] for entry in logs if "service" in entry["event"]]


@pytest.mark.ci(3)
@pytest.mark.slow
@pytest.mark.quick(2)
@pytest.mark.parametrize("how", UNITS)
@given(busy=st.lists(st.sampled_from([0, 0, 0, 1, 2, 5]), min_size=2 * ROWS, max_size=2 * ROWS))
@settings(
    max_examples=examples(4),
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_the_call_that_was_refused_is_made_again_and_no_other(
    how: str, busy: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each unit is served once, and called once more for each refusal, in order; outputs, books and quarantine are
    those of a service that is never busy; short waits are no tries of a shard."""
    world = SERVICE
    world.__init__()  # type: ignore[misc]
    calm = do(tmp_path_factory.mktemp("calm"), how, 2)
    units = list(world.calls)
    assert len(units) == 2 * UNITS[how]
    world.__init__()  # type: ignore[misc]
    world.busy.update({n: times for n, times in enumerate(busy) if n in units})
    refused = Counter(world.busy)
    ended = do(tmp_path_factory.mktemp("busy"), how, 2)
    assert world.calls == [n for n in units for _ in range(1 + refused[n])]
    assert world.served == dict.fromkeys(units, 1)
    assert (ended.state, ended.attempts, ended.books.rows()) == (RunState.COMPLETE, 2, calm.books.rows())
    assert ended.books.counters == calm.books.counters
    told, quiet = Path(ended.output), Path(calm.output)
    names = [name for name in everything(told) if name.endswith((".parquet", "quarantine")) and "plan" not in name]
    assert names
    for name in names:
        assert (told / name).read_bytes() == (quiet / name).read_bytes(), name


@pytest.mark.parametrize("how", UNITS)
def test_short_waits_grow_from_what_was_asked_for(how: str, service: Service, clock: FakeClock, tmp_path: Path) -> None:
    """Those of a call that is refused again and again; the next call begins anew. Nobody is told."""
    service.after_s = 0.01
    service.busy.update({2: 5, 4: 1})
    with capture_logs() as logs:
        ended = do(tmp_path, how)
    assert (ended.state, ended.attempts) == (RunState.COMPLETE, 1), ended.failures
    assert clock.sleeps == [0.01, 0.01, 0.02, 0.04, 0.08, 0.01]
    assert not logged(logs)


@pytest.mark.parametrize("how", UNITS)
def test_a_long_wait_is_waited_where_something_is_done(
    how: str, service: Service, clock: FakeClock, tmp_path: Path
) -> None:
    """As long as it was asked to, in its task; it is told when it begins, with the try, and is no try of the shard."""
    service.after_s = 60.0
    service.busy[2] = 2
    with capture_logs() as logs:
        ended = do(tmp_path, how)
    assert (ended.state, ended.attempts) == (RunState.COMPLETE, 1), ended.failures
    assert service.served == dict.fromkeys(service.served, 1)
    assert sum(clock.sleeps) == pytest.approx(120.0)
    if how != "map pool":  # in the middle of a batch the actor waits
        said = "service busy (HTTP 429); next try of its batch in 60 s"
        assert logged(logs) == [f"{said} (1 of 20)", f"{said} (2 of 20)"]
        assert max(clock.sleeps) <= 5.0, "a time limit counts from the last word"


@pytest.mark.parametrize("how", UNITS)
def test_a_long_wait_before_anything_is_done_hands_the_shard_back(how: str, service: Service, tmp_path: Path) -> None:
    """The slot is free, and nothing is lost."""
    service.after_s = 60.0
    service.busy[0] = 3
    with capture_logs() as logs:
        ended = do(tmp_path, how)
    assert (ended.state, ended.attempts) == (RunState.COMPLETE, 4)
    assert service.served == dict.fromkeys(service.served, 1)
    said = "service busy (HTTP 429); next try of this shard in 60 s"
    assert logged(logs) == [f"{said} (1 of 20)", f"{said} (2 of 20)", f"{said} (3 of 20)"]


@pytest.mark.ci(2)
@pytest.mark.slow
@pytest.mark.quick(2)
@pytest.mark.parametrize("how", UNITS)
def test_only_tries_in_a_row_count_in_which_nothing_was_done(how: str, service: Service, tmp_path: Path) -> None:
    """As many as are allowed, for one call after the other: the shard is done. One more, and it is given up, whether
    it waits in its task or was handed back."""
    service.after_s = 60.0
    service.busy.update({0: MOST_TRIES, 2: MOST_TRIES, 4: MOST_TRIES})
    ended = do(tmp_path / "all", how)
    assert (ended.state, ended.attempts) == (RunState.COMPLETE, 1 + MOST_TRIES)
    for first in (0, 4):
        service.__init__()  # type: ignore[misc]
        service.after_s = 60.0
        service.busy[first] = MOST_TRIES + 1
        with capture_logs() as logs:
            ended = do(tmp_path / str(first), how)
        assert (ended.state, ended.failed) == (RunState.FAILED, 1)
        assert service.calls.count(first) == MOST_TRIES + 1
        assert all(service.calls.count(n) == 1 for n in service.served)
        assert logged(logs)[-1] == "shard failed: the service was busy 21 times in a row"


class Choosy(Job):
    """Finds a bad row before it asks the service about the others, by its place or by looking at parts of the batch."""

    version = "1"
    batch_size = 2
    max_bad_rows = "100%"
    output_schema = Calling.output_schema
    names: bool = param(True, help="say which row is bad")

    def process(self, batch: pa.Table) -> pa.Table:
        SERVICE.processed += 1
        self.metric("processed", 1)
        numbers = batch["n"].to_pylist()
        if 5 in numbers:
            raise BadRow("five", row=numbers.index(5) if self.names else None)
        SERVICE.ask(numbers[0])
        return batch


class ChoosyPool(Choosy):
    """The same in an actor."""

    compute = ActorPool(size=1)


@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize("of", [Choosy, ChoosyPool])
def test_a_batch_with_a_bad_row_waits_as_any_other(
    of: type[Choosy], names: bool, service: Service, clock: FakeClock, tmp_path: Path
) -> None:
    """It is given up after as many tries, wherever it is processed; and each call is measured of a shard that is done,
    those included that were refused, and those that looked for the row."""
    service.after_s = 60.0
    service.busy[4] = MOST_TRIES - 2
    ended = run_job(of(names=names), inputs(tmp_path), tmp_path / "done", clock=clock)
    assert (ended.state, ended.books.quarantined) == (RunState.COMPLETE, 1)
    assert ended.books.sorted_metrics()["metrics"]["processed"] == service.processed
    service.calls.clear()
    service.busy[4] = 3 * MOST_TRIES
    ended = run_job(of(names=names), inputs(tmp_path), tmp_path / "failed", clock=clock)
    assert (ended.state, service.calls.count(4)) == (RunState.FAILED, MOST_TRIES + 1)


def test_a_stream_of_rows_waits_as_a_job_does(service: Service, clock: FakeClock) -> None:
    """Rows that are consumed: those before are not asked for again."""
    import curate

    service.after_s = 60.0
    service.busy[3] = 2
    rows = curate.from_items([{"n": n} for n in range(6)]).map(one_row).take_all()
    assert [row["n"] for row in rows] == list(range(6))
    assert service.calls == [0, 1, 2, 3, 3, 3, 4, 5]
    assert sum(clock.sleeps) == pytest.approx(120.0)


def test_groups_that_are_done_stay_done(service: Service) -> None:
    """`map_groups`: the group that was refused is asked for again."""
    import curate

    service.busy.update({1: 2, 4: 1})
    rows = curate.from_items([{"n": n} for n in (0, 0, 1, 1, 2, 3, 4)]).groupby("n").map_groups(one_batch).take_all()
    assert [row["n"] for row in rows] == [0, 0, 1, 1, 2, 3, 4]
    assert service.calls == [0, 1, 1, 1, 2, 3, 4, 4]


def logging_call(row: dict[str, Any]) -> dict[str, Any]:
    """Writes down its calls where every process can; is refused once for one of the rows."""
    log = Path(row["log"])
    with log.open("a") as file:
        file.write(f"{row['n']}\n")
    refused = log.with_suffix(".refused")
    if row["n"] == 3 and not refused.exists():
        refused.touch()
        raise RetryLater(0.0, "HTTP 429")
    return row


@pytest.mark.slow
def test_rows_in_a_process_of_their_own_are_called_once(tmp_path: Path) -> None:
    """`map(isolate=True)`: those before the one that was refused are done, those behind it were not begun."""
    import curate

    rows = [{"n": n, "log": str(tmp_path / "calls")} for n in range(6)]
    assert curate.from_items(rows).map(logging_call, isolate=True).take_all() == rows
    assert (tmp_path / "calls").read_text().split() == ["0", "1", "2", "3", "3", "4", "5"]


def test_who_looks_is_told_what_a_shard_waits_for(service: Service, tmp_path: Path) -> None:
    """While the run goes on: how many shards are tried again, and for what; no shard has failed."""
    service.after_s = 60.0
    service.busy[2] = 2
    job = Calling()
    account: list[Any] = []
    shown: list[str] = []
    from curate.driver import run_recorder as module

    original = module.RunRecorder.waits

    def waits(self: Any, launch: Any, word: Any) -> None:
        original(self, launch, word)
        retrying = self.heartbeat().get("retrying")
        account.append((word.wait_s, retrying, self.progress().retrying))
        if word.wait_s == 60.0:
            shown.extend(_heading(0, [], retrying, everything=False))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.RunRecorder, "waits", waits)
        ended = run_job(job, inputs(tmp_path), tmp_path / "out", clock=CLOCK)
    assert ended.state is RunState.COMPLETE
    reason = "service busy (HTTP 429)"
    assert account[0] == (
        60.0,
        [{"error": reason, "count": 1, "shard": "0"}],
        f"1 shard is being retried: {reason}; next try in 1 min",
    )
    assert account[-1] == (0.0, None, "")
    assert shown == ["no shard has failed for good; 1 shard is being retried: service busy (HTTP 429)"] * 2
    assert read_status(str(tmp_path / "out"), CLOCK.now()).retrying == []


def test_waits_end_at_a_minute_unless_more_is_asked_for() -> None:
    """A service that is up again is not left alone for long; one that says when it will be is taken at its word."""
    waits = [wait_s(tries, 0.0) for tries in range(1, 100)]
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (0.005, 60.0)
    assert {wait_s(tries, 3600.0) for tries in range(1, 100)} == {3600.0}


# Counters and metrics


class Measured(Calling):
    """Measures what differs from run to run, and, if it is told to, counts it."""

    name = "measured"
    counted: bool = param(False, help="count it", identity=False)

    def process(self, batch: pa.Table) -> pa.Table:
        CLOCK.advance(1)
        self.metric("asked at", int(CLOCK.now()))
        self.metric("batches", 1)
        if self.counted:
            self.count("asked at", int(CLOCK.now()))
        SERVICE.ask(batch["n"][0].as_py())
        return batch


def files_of(output: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in output.glob("*.parquet")}


def test_a_metric_is_no_part_of_the_output_and_a_counter_is(clock: FakeClock, tmp_path: Path) -> None:
    """What differs from run to run leaves the bytes as they are where it is measured, not where it is counted."""
    made = {}
    for counted in (False, True):
        for run in range(2):
            output = tmp_path / f"{counted} {run}"
            run_job(Measured(counted=counted), inputs(tmp_path), output, clock=clock)
            made[counted, run] = files_of(output)
    assert made[False, 0] == made[False, 1]
    assert made[True, 0] != made[True, 1]


def test_metrics_are_summed_and_a_rerun_goes_on_with_them(service: Service, clock: FakeClock, tmp_path: Path) -> None:
    """Of each shard that is done, once: the calls of the try that made its output, those included that were refused.
    Shown by the summary, the ledger and the status; known to a run that does the rest, and to one that does nothing."""
    service.busy.update({2: 2, 8: 1})
    source, output = inputs(tmp_path, 3), tmp_path / "out"
    first = run_job(Measured(), source, output, clock=clock, limit=2)
    assert first.books.sorted_metrics()["metrics"]["batches"] == 2 * 3 + 3
    last = run_job(Measured(), source, output, clock=clock)
    again = run_job(Measured(), source, output, clock=clock)
    told = read_status(str(output), clock.now())
    for metrics in (last.as_dict()["metrics"], again.as_dict()["metrics"], told.metrics, told.as_dict()["metrics"]):
        assert metrics["batches"] == 3 * 3 + 3
    assert "metrics" not in run_job(Calling(), source, tmp_path / "none", clock=clock).as_dict()
