"""A pipeline of steps: the same rows, books and errors wherever its steps run, in order, and never more on its way."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import curate
from curate.errors import BadRow, ConfigError, RetryLater, SchemaMismatch
from curate.pipeline.meters import Meter
from curate.pipeline.pipeline import Pipeline, ShardContext
from curate.pipeline.remote_error import CapturedError, RemoteError
from curate.pipeline.shard_books import BadRowBudget, ShardBooks, counted
from curate.pipeline.step import ActorPool, BatchPosition, Compute
from curate.runtime.protocol import CallLostError, PoolSpec, Resources, TaskEnd, TaskFinished
from curate.tasks.failure import FailureKind

POOLED = Compute(ActorPool(size=2), Resources())


@dataclass(frozen=True)
class Adding:
    """A step that adds to numbers: what is divisible by `bad` is a bad row, by `drop` dropped, by `poison` an error."""

    amount: int = 1
    bad: int = 0
    drop: int = 0
    poison: int = 0
    compute: Compute | None = None
    batch_rows: int | None = None
    num_cpus: float | None = None
    one_schema: bool = True
    name: str = "adding"
    live: bool = False

    def opened(self) -> Adding:
        return Adding(**{**self.__dict__, "live": True})

    def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        assert self.live
        assert place.shard in ("s", "")
        for position, n in enumerate(batch["n"].to_pylist()):
            if self.bad and n % self.bad == 0:
                raise BadRow(f"divisible by {self.bad}", position)
            if self.poison and n % self.poison == 0:
                raise ValueError(f"poison {n}")
        if self.drop:
            kept = pa.array([n % self.drop != 0 for n in batch["n"].to_pylist()])
            tally.drop(pc.sum(pc.invert(kept)).as_py(), "divisible")
            batch = batch.filter(kept)
        tally.count("batches")
        yield batch.set_column(0, "n", pc.add(batch["n"], self.amount))

    def hide(self, text: str) -> str:
        return text.replace("secret", "***")


@dataclass
class Answering:
    """A pool of this process that pickles what comes and goes; it is told what is ready and how much room is."""

    spec: PoolSpec
    rooms: Iterator[int]
    ready: Iterator[bool]
    open: int = 0
    most: int = 0
    lost: int = -1
    made: int = 0

    def __post_init__(self) -> None:
        self.program = pickle.loads(pickle.dumps(self.spec.program))
        self.program.setup()

    @property
    def room(self) -> int:
        return next(self.rooms)

    def call(self, payload: Any) -> Any:
        self.made += 1
        self.open += 1
        self.most = max(self.most, self.open)
        answer = self.program.call(pickle.loads(pickle.dumps(payload)))
        return Answer(self, pickle.loads(pickle.dumps(answer)), self.made - 1 == self.lost)


@dataclass
class Answer:
    pool: Answering
    value: Any
    lost: bool

    def ready(self) -> bool:
        return next(self.pool.ready)

    def result(self) -> Any:
        self.pool.open -= 1
        if self.lost:
            raise CallLostError(TaskFinished(0, TaskEnd.CRASHED, "the worker died", "here", 7))
        return self.value


@dataclass
class Ran:
    rows: list[int] = field(default_factory=list)
    tally: ShardBooks = field(default_factory=lambda: ShardBooks(BadRowBudget("100%")))
    error: Exception | None = None
    meters: list[Meter] = field(default_factory=list)


def ran(
    steps: Sequence[Adding],
    batches: Sequence[Sequence[int]],
    pools: Sequence[Answering] = (),
    how: ShardContext = ShardContext("s"),  # noqa: B008 - frozen
) -> Ran:
    done = Ran(meters=[Meter() for _ in steps])
    pipeline = Pipeline(tuple(steps))
    if pools:
        pipeline.connect(pools)
    pipeline.setup()
    tables = counted((pa.table({"n": pa.array(one, pa.int64())}) for one in batches), done.tally)
    try:
        for table in pipeline.stream(tables, done.tally, how, done.meters):
            done.rows += table["n"].to_pylist()
    except Exception as error:  # noqa: BLE001 - compared below
        done.error = error
    done.tally.books.rows_out = len(done.rows)
    done.tally.books.settle()
    return done


def answering(
    steps: Sequence[Adding], rooms: Sequence[int] = (3,), ready: Sequence[bool] = (False,)
) -> list[Answering]:
    def over(values: Sequence[Any]) -> Iterator[Any]:
        while True:
            yield from values

    return [Answering(spec, over(rooms), over(ready)) for spec in Pipeline(tuple(steps)).pools]


STEP = st.builds(
    Adding,
    amount=st.integers(-3, 3),
    bad=st.sampled_from([0, 0, 5, 7]),
    drop=st.sampled_from([0, 2, 3]),
    compute=st.sampled_from([None, POOLED]),
    batch_rows=st.sampled_from([None, 1, 3, 100]),
)
BATCHES = st.lists(st.lists(st.integers(0, 50), max_size=9), max_size=9)


@given(
    st.lists(STEP, max_size=4),
    BATCHES,
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.lists(st.booleans(), min_size=1, max_size=5),
)
def test_where_steps_run_changes_nothing(
    steps: list[Adding], batches: list[list[int]], rooms: list[int], ready: list[bool]
) -> None:
    """The rows in order, all books, and what is quarantined, are as without pools; no pool has more than its room."""
    pools = answering(steps, rooms, ready)
    here = ran([Adding(**{**step.__dict__, "compute": None}) for step in steps], batches)
    there = ran(steps, batches, pools)
    assert here.error is there.error is None
    assert there.rows == here.rows
    assert there.tally.books == here.tally.books
    assert there.tally.books.balanced()
    assert there.tally.reasons() == here.tally.reasons()
    assert all(pool.most <= max(rooms) and pool.open == 0 for pool in pools)
    for a, b in zip(here.meters, there.meters, strict=True):
        assert (a.batches, a.rows_in, a.rows_out) == (b.batches, b.rows_in, b.rows_out)


def test_who_wants_few_rows_sends_no_more() -> None:
    """A pool with room for many is sent one batch at a time, and none that is not asked for."""
    steps = [Adding(compute=POOLED)]
    (pool,) = pools = answering(steps, [8])
    pipeline = Pipeline(tuple(steps))
    pipeline.connect(pools)
    pipeline.setup()
    batches = iter([pa.table({"n": [n]}) for n in range(9)])
    stream = pipeline.stream(batches, ShardBooks(BadRowBudget()), ShardContext("s", ahead=False))
    assert [next(stream)["n"].to_pylist(), next(stream)["n"].to_pylist()] == [[1], [2]]
    assert (pool.made, pool.most) == (2, 1)


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=6))
def test_brute_force(batches: list[list[int]]) -> None:
    """A chain is what plain Python makes of the rows."""
    steps = [Adding(amount=2, drop=3), Adding(amount=-1, bad=4, compute=POOLED, batch_rows=2)]
    expected = [n + 2 for one in batches for n in one if n % 3]
    expected = [n - 1 for n in expected if n % 4]
    done = ran(steps, batches, answering(steps))
    assert done.rows == expected
    assert done.tally.books.dropped.get("divisible", 0) == sum(n % 3 == 0 for one in batches for n in one)


def test_an_error_elsewhere_is_that_of_the_user() -> None:
    """Type, text, where it was: step and rows; what came before it is there."""
    steps = [Adding(poison=50, compute=POOLED, batch_rows=2)]
    done = ran(steps, [[1, 2, 3], [4, 50]], answering(steps))
    assert isinstance(done.error, RemoteError)
    raised = CapturedError.of(done.error)
    assert raised.failure.kind is FailureKind.USER_ERROR
    assert raised.failure.error == "ValueError: poison 50"
    assert "in adding, in rows 3 to 4 of its input" in raised.failure.traceback
    assert "in apply" in raised.failure.traceback
    assert isinstance(raised.error, ValueError)
    assert done.rows == [2, 3, 4]


def test_an_error_here_says_the_same() -> None:
    """The note is on the exception itself."""
    done = ran([Adding(poison=50)], [[1], [50]])
    assert isinstance(done.error, ValueError)
    assert done.error.__notes__ == ["in adding, in rows 1 to 1 of its input"]


class Answers(Exception):
    """Has what an answer of a service has, and nothing for any other name."""

    def __getattr__(self, name: str) -> Any:
        return None


class Guarded(Exception):
    """Refuses any other name."""

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


@dataclass(frozen=True)
class Frozen(Exception):
    """Takes no attribute."""

    status: int


ODD = {type(one).__name__: one for one in (Answers("no"), Guarded("no"), Frozen(7))}


class Raising(Adding):
    odd = ""

    def opened(self) -> Raising:
        return self

    def apply(self, *_: Any) -> Iterator[pa.Table]:
        raise ODD[self.odd]


@pytest.mark.parametrize("compute", [None, POOLED])
@pytest.mark.parametrize("odd", ODD)
def test_an_exception_is_what_it_is_whatever_its_attributes_do(odd: str, compute: Compute | None) -> None:
    """Classes of errors may answer for any name, or take no note."""
    step = Raising(compute=compute)
    step.odd = odd
    done = ran([step], [[1]], answering([step]))
    assert done.error is not None
    failure = CapturedError.of(done.error).failure
    assert (failure.error, failure.kind) == (f"{odd}: {ODD[odd]}", FailureKind.USER_ERROR)
    assert failure.tries == 1
    assert "in apply" in failure.traceback


def test_a_call_that_is_lost_is_a_crash() -> None:
    """It counts as one of the shard's, with where its actor was."""
    steps = [Adding(compute=POOLED)]
    pools = answering(steps)
    pools[0].lost = 1
    done = ran(steps, [[1], [2], [3]], pools)
    assert isinstance(done.error, CallLostError)
    failure = CapturedError.of(done.error).failure
    assert (failure.kind, failure.node, failure.pid) == (FailureKind.CRASHED, "here", 7)
    assert done.rows == [2]


def test_rows_that_raise_are_set_aside_in_an_actor_too() -> None:
    """Where the job opted in, at a shard's last try."""
    steps = [Adding(poison=7, compute=POOLED)]
    done = ran(steps, [[1, 7, 2], [14]], answering(steps), ShardContext("s", errors=True))
    assert done.rows == [2, 3]
    assert done.tally.books.quarantined == 2


def test_what_waits_is_not_retried_as_an_error() -> None:
    """RetryLater crosses processes as what it is."""

    class Waiting(Adding):
        def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
            tally.count(place.shard)
            raise RetryLater(7 * len(batch))

        def opened(self) -> Waiting:
            return self

    answer = Pipeline((Waiting(compute=POOLED),)).pools[0].program
    answer.setup()
    refused = answer.call((pa.table({"n": [1]}), 0, ShardContext("s", tries=2)))
    assert (refused.busy().after_s, refused.busy().tries, refused.batch) == (7, 3, pa.table({"n": [1]}))
    assert refused.raised.failure.kind is FailureKind.RETRY_LATER


def test_a_schema_that_changes_between_batches() -> None:
    """Both are shown."""

    class Changing(Adding):
        def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
            tally.count("batches")
            yield batch if place.row == 0 else batch.rename_columns(["m"])

        def opened(self) -> Changing:
            return self

    done = ran([Changing()], [[1], [2]])
    assert isinstance(done.error, SchemaMismatch)
    assert "m: int64" in str(done.error)
    assert "n: int64" in str(done.error)


@pytest.mark.parametrize(
    "given",
    [{"size": 0}, {"size": True}, {"size": 2, "min_size": 1}, {"min_size": 3, "max_size": 2}, {"max_in_flight": 0}],
)
def test_pools_that_make_no_sense(given: dict[str, Any]) -> None:
    """Refused where they are made."""
    with pytest.raises(ConfigError, match="ActorPool"):
        curate.ActorPool(**given)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 400))
def test_what_is_sent_stays_within_the_budget(sizes: list[int], budget_bytes: int) -> None:
    """The bytes of all batches that were sent and not heard of, but for one that is larger by itself."""
    steps = [Adding(compute=POOLED)]
    (pool,) = answering(steps, rooms=[100])
    sent: list[int] = []
    most = 0
    call = pool.call

    def watched(payload: Any) -> Any:
        nonlocal most
        sent.append(payload[0].nbytes)
        answer = call(payload)
        most = max(most, sum(sent[-pool.open :]) if pool.open > 1 else 0)
        return answer

    pool.call = watched  # type: ignore[method-assign]
    done = ran(steps, [list(range(n)) for n in sizes], [pool], ShardContext("s", budget_bytes=budget_bytes))
    assert done.rows == [n + 1 for size in sizes for n in range(size)]
    assert most <= budget_bytes
