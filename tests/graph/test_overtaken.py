"""A job is overwritten while another driver is at work on it that seemed gone, or that nobody could know of yet; and
who overwrites is killed. Whatever is said to be complete afterwards has all rows, each once, and is of one job."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import curate
from curate.dataset.dataset import Dataset
from curate.errors import ConfigError, CurateError
from curate.exchange import run_file
from curate.graph.entry import run
from curate.ledger.summary import RunState
from curate.objects.record import OutputFormat
from curate.observe.job import read_status
from curate.observe.verify import verify
from curate.plan import stages as plan_stages
from curate.resume.options import RunOptions
from curate.storage.protocol import Outcome, Store
from curate.stores import memory
from curate.stores.faulty import FaultyStore
from curate.stores.memory import MemoryStore
from curate.stores.open import wrap_stores
from curate.testing.clock import FakeClock
from tests.graph.small import put_inputs, small_limits  # noqa: F401 - a fixture
from tests.support.sweeps import Mode

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

INPUTS = 2
_numbers = itertools.count()


class Killed(BaseException):
    """The process is gone."""


class WasAlive(BaseException):
    """Who looks at another driver for a while sees it move."""


class Alive(FakeClock):
    """A clock on which other drivers beat while one waits, or is begun in the same moment."""

    def sleep(self, seconds: float) -> None:
        raise WasAlive(seconds)


@dataclass
class Script:
    """Has something happen before the `at`th change that one driver makes, and kills who that is at its `kill`th."""

    at: int
    kill: int | None
    act: Callable[[], object] = lambda: None
    mine: int = 0
    theirs: int = 0
    acting: bool = False
    last: int | None = None
    """Kills the one driver at this change."""

    def next(self, operation: str) -> None:
        if operation not in ("publish", "replace", "delete"):
            return
        if self.acting:
            self.theirs += 1
            if self.kill is not None and self.theirs >= self.kill:
                raise Killed
            return
        self.mine += 1
        if self.last is not None and self.mine > self.last:
            raise Killed
        if self.mine == self.at:
            self.acting = True
            try:
                self.act()
            finally:
                self.acting = False


class Scripted(FaultyStore):
    """A store whose changes a script counts."""

    def __init__(self, inner: Store, script: Script) -> None:
        super().__init__(inner)
        self._script = script

    def _call(self, operation: str, uri: str, *how: Any) -> Any:
        if "heartbeat" not in uri:  # a thread of their own writes these
            self._script.next(operation)
        return super()._call(operation, uri, *how)


@dataclass
class World:
    """Inputs, and one output that two drivers write, in a bucket of its own."""

    made: Callable[[Dataset], Dataset]
    root: str = field(default_factory=lambda: f"memory://overtaken-{next(_numbers)}")
    said: str = ""
    """What the last error said."""

    def __post_init__(self) -> None:
        self.write_inputs()

    def write_inputs(self, more: int = 0) -> None:
        """Writes the inputs, in the places of what was there, with so much added to one of their columns."""
        put_inputs(self.root, INPUTS, more)

    @property
    def has_job(self) -> bool:
        """Whether there is a job."""
        return "out/_curate/job.json" in memory._buckets[self.root.removeprefix("memory://")]

    def run(self, made: Callable[[Dataset], Dataset], clock: FakeClock, **options: Any) -> str:
        """Runs the job; returns how it ended, or of what."""
        run_file.opened.cache_clear()
        ds = made(curate.read_parquet(f"{self.root}/in"))
        spec = plan_stages.stage_of(ds._plan, OutputFormat.PARQUET, None)
        given: dict[str, Any] = {"output": f"{self.root}/out", "backend": "inline", "confirm": lambda _: True} | options
        try:
            return run(spec, RunOptions(inputs=tuple(spec.inputs), **given), clock=clock).state.value
        except (CurateError, Killed, WasAlive) as error:
            self.said = str(error)
            return type(error).__name__

    @property
    def complete(self) -> bool:
        """Whether the ledger says that all is done."""
        return "out/_curate/summary.json" in memory._buckets[self.root.removeprefix("memory://")]

    def rows(self) -> list[tuple[Any, ...]]:
        """Returns all rows that are written, sorted."""
        stored = memory._buckets[self.root.removeprefix("memory://")]
        outputs = [data for name, (data, _) in stored.items() if name.startswith("out/part-") or name[4:5].isdigit()]
        return sorted(tuple(row.values()) for one in outputs for row in pq.read_table(io.BytesIO(one)).to_pylist())


def shuffled(ds: Dataset) -> Dataset:
    """In an order that each run from nothing chooses."""
    return ds.random_shuffle(num_shards=3)


def halved(ds: Dataset) -> Dataset:
    return ds.with_column("k", pc.divide(pc.field("k").cast("float64"), 2.0))


def plain(ds: Dataset) -> Dataset:
    return ds


def check(
    first: Callable[[Dataset], Dataset], second: Callable[[Dataset], Dataset], at: int, kill: int | None, alive: bool
) -> None:
    """Checks that what is complete is whole, at once and after another run of the job that is there."""
    expected = []
    for made in (first, second):
        whole = World(made)
        assert whole.run(made, FakeClock()) == RunState.COMPLETE.value
        expected.append(whole.rows())
    world, clock, script = World(first), FakeClock(), Script(at, kill)
    script.act = lambda: world.run(second, Alive() if alive else clock, overwrite=True)
    with wrap_stores(lambda store: Scripted(store, script)):
        ended = world.run(first, clock)
    where = f"change {at}, killed at {kill}, {'alive' if alive else 'paused'}: {ended}"
    if world.complete:
        assert world.rows() in expected, where
    again = [world.run(made, FakeClock()) for made in dict.fromkeys((second, first))]
    if again == ["ConfigError"] * len(again):
        # Of what is left of both nothing can be told, and what is advised works.
        again = [world.run(second, FakeClock(), overwrite=True)]
    assert RunState.COMPLETE.value in again, f"{where}: {again}"
    assert world.rows() in expected, where


@pytest.mark.ci(3)
@pytest.mark.slow
@pytest.mark.parametrize("alive", [True, False])
@pytest.mark.parametrize("kill", [None, 3, 4, 6, 10, 12, 18])
def test_an_exchange_with_a_seed_of_its_run(kill: int | None, alive: bool, mode: Mode) -> None:
    """Each beginning has another order: rows of two of them would be lost and doubled. Up to the first output."""
    for at in range(1, 18, 1 if mode is Mode.NIGHTLY else 3):
        check(shuffled, shuffled, at, kill, alive)


@pytest.mark.parametrize(("at", "kill", "alive"), [(3, 3, True), (8, 6, False), (6, 4, False)])
def test_an_exchange_whose_stage_loses_its_plan(at: int, kill: int, alive: bool) -> None:
    """Who overwrites is killed when the plan of a stage is gone, and its `job.json` is not: no row was read of it."""
    check(shuffled, shuffled, at, kill, alive)


@pytest.mark.ci(3)
@pytest.mark.slow
@pytest.mark.parametrize("alive", [True, False])
@pytest.mark.parametrize("kill", [None, 2, 4, 5, 6, 8, 10])
def test_other_parameters(kill: int | None, alive: bool) -> None:
    """Both write outputs of the same names: none is taken for one of the other job."""
    for at in range(1, 9):
        check(plain, halved, at, kill, alive)


@pytest.mark.parametrize(("at", "kill"), [(2, 9), (3, 7), (4, 6)])
def test_events_of_another_job(at: int, kill: int) -> None:
    """A driver of other parameters that went on for a moment, and told of what it did, which is not what is to be."""
    check(plain, halved, at, kill, True)


def split_off(ds: Dataset) -> Dataset:
    """With an extra output."""
    return ds.split_off({"rest": 0.5}, column="k")


def beside(world: World) -> list[str]:
    """Returns the shards of which there is an extra output."""
    stored = memory._buckets[world.root.removeprefix("memory://")]
    return sorted(name.removeprefix("out/_side/rest/") for name in stored if name.startswith("out/_side/rest/"))


def mains(world: World) -> list[str]:
    """Returns the shards of which there is an output."""
    return sorted(name.removeprefix("out/") for name in outputs_of(world))


@pytest.mark.parametrize(("at", "kill"), [(9, 3), (9, 6), (11, 5), (11, 8)])
def test_a_driver_that_stands_between_an_extra_output_and_its_main_one(at: int, kill: int) -> None:
    """Who overwrites has removed the one, and is killed: the other, which comes late, does not say that both are there;
    neither at the end of that driver, nor to the next run."""
    world, clock, script = World(split_off), FakeClock(), Script(at, kill)
    script.act = lambda: world.run(split_off, clock, overwrite=True)
    with wrap_stores(lambda store: Scripted(store, script)):
        world.run(split_off, clock)
    assert script.theirs >= kill
    assert not world.complete or beside(world) == mains(world)
    assert world.run(split_off, FakeClock()) == RunState.COMPLETE.value
    assert beside(world) == mains(world) == ["0.parquet", "1.parquet"]


@pytest.mark.parametrize("removed", [True, False])
def test_extra_outputs_that_an_overwrite_left_are_of_no_job(removed: bool) -> None:
    """Those of an input that is no longer there go with the next run, overwrite or not."""
    world = World(split_off)
    assert world.run(split_off, FakeClock()) == RunState.COMPLETE.value

    class Cut(FaultyStore):
        def _call(self, operation: str, uri: str, *how: Any) -> Any:
            if operation == "delete" and "/_side/" in uri:
                raise Killed
            return super()._call(operation, uri, *how)

    with wrap_stores(Cut):
        assert world.run(split_off, FakeClock(), overwrite=True) == "Killed"
    assert (mains(world), beside(world)) == ([], ["0.parquet", "1.parquet"])
    with pytest.raises(ConfigError, match=r"an overwrite is removing it, .* or was cut off: run the job again"):
        read_status(f"{world.root}/out", 1_700_000_000.0)
    if removed:
        MemoryStore().delete(f"{world.root}/in/1.parquet")
    assert world.run(split_off, FakeClock()) == RunState.COMPLETE.value
    assert beside(world) == mains(world) == ["0.parquet", "1.parquet"][: 1 if removed else 2]
    assert verify(f"{world.root}/out").findings == []


def ordered(ds: Dataset) -> Dataset:
    """An exchange whose outputs are of the same names and the same identity, whatever its inputs are."""
    return ds.sort("k")


class BeforeRead(FaultyStore):
    """Has something happen once, before what a run says of itself is read."""

    def __init__(self, inner: Store, act: list[Callable[[], object]]) -> None:
        super().__init__(inner)
        self._act = act

    def _call(self, operation: str, uri: str, *how: Any) -> Any:
        if operation == "read" and "/out/_curate/runs/" in uri and self._act:
            self._act.pop()()
        return super()._call(operation, uri, *how)


def test_who_reads_what_an_overwrite_has_removed_is_told_that_the_job_is_gone() -> None:
    """That the store had failed was told, with the advice to run it again."""
    world, clock = World(ordered), FakeClock()
    act: list[Callable[[], object]] = [lambda: world.run(ordered, clock, overwrite=True)]
    with wrap_stores(lambda store: BeforeRead(store, act)):
        assert world.run(ordered, clock) == "JobReplacedError", world.said
    assert not act
    assert world.complete
    assert world.run(ordered, FakeClock()) == RunState.COMPLETE.value


def outputs_of(world: World) -> dict[str, bytes]:
    """Returns the outputs that are there."""
    stored = memory._buckets[world.root.removeprefix("memory://")]
    return {name: data for name, (data, _) in stored.items() if name.startswith("out/part-") or name[4:5].isdigit()}


def late(world: World, outputs: dict[str, bytes]) -> int:
    """Publishes outputs as workers of a driver that is gone, where there are none by then; returns how many."""
    done = [MemoryStore().publish(f"{world.root}/{name}", data).outcome for name, data in outputs.items()]
    return sum(one is Outcome.CREATED for one in done)


@pytest.mark.ci(2)
@pytest.mark.slow
@pytest.mark.parametrize("kill", [None, 0, 1, 2])
@pytest.mark.parametrize("made", [plain, ordered])
def test_what_is_published_until_the_job_is_gone_is_not_of_the_one_that_takes_its_place(
    made: Callable[[Dataset], Dataset], kill: int | None
) -> None:
    """Workers that outlive a driver elsewhere look at `job.json`, and publish before each change of who overwrites it,
    also while that looks for a while whether the driver is alive. The inputs are others now; and who overwrites may be
    killed some changes later."""
    new = World(made)
    new.write_inputs(1000)
    assert new.run(made, FakeClock()) == RunState.COMPLETE.value
    published = 0
    for at in itertools.count(1):
        world = World(made)
        assert world.run(made, FakeClock()) == RunState.COMPLETE.value
        job = MemoryStore().stat(f"{world.root}/out/_curate/job.json").generation
        before = outputs_of(world)
        for name in [*before][1:]:
            MemoryStore().delete(f"{world.root}/{name}")
        world.write_inputs(1000)
        script, come = Script(at, None), list[int]()

        def act(
            world: World = world, job: str = job, before: dict[str, bytes] = before, come: list[int] = come
        ) -> None:
            found = {one.uri: one.generation for one in MemoryStore().list(f"{world.root}/out/_curate/job.json")}
            come.append(late(world, before) if job in found.values() else 0)

        script.act = act
        script.last = None if kill is None else at + kill
        with wrap_stores(lambda store, script=script: Scripted(store, script)):  # type: ignore[misc]
            world.run(made, FakeClock(), overwrite=True)
        if not come or (published and not sum(come)):
            break
        published += sum(come)
        where = f"before change {at}"
        # One that was cut off before the job was gone has what it had, which is out of date, as is said.
        found = {one.generation for one in MemoryStore().list(f"{world.root}/out/_curate/job.json")}
        kept = "".join(found)  # empty: killed between two jobs
        if world.complete and kept != job:
            assert world.rows() == new.rows(), where
        assert world.run(made, FakeClock(), overwrite=kept == job) == RunState.COMPLETE.value, where
        assert world.rows() == new.rows(), where
    assert published > INPUTS


@pytest.mark.parametrize("events", [True, False])
@pytest.mark.parametrize("made", [plain, ordered])
def test_an_overwrite_that_was_killed_between_two_jobs(made: Callable[[Dataset], Dataset], *, events: bool) -> None:
    """What workers published until the old `job.json` was gone is of the old job, though none says so any more: also
    where it was removed before it had told of an output."""
    world = World(made)
    assert world.run(made, FakeClock()) == RunState.COMPLETE.value
    before, old = outputs_of(world), world.rows()
    if not events:
        for one in [*MemoryStore().list(f"{world.root}/out/")]:
            if "/events-" in one.uri or one.uri.removeprefix(f"{world.root}/") in before:
                MemoryStore().delete(one.uri)
    world.write_inputs(1000)

    class Between(FaultyStore):
        def _call(self, operation: str, uri: str, *how: Any) -> Any:
            if operation == "publish" and uri.endswith("/out/_curate/job.json"):
                raise Killed
            return super()._call(operation, uri, *how)

    with wrap_stores(Between):
        assert world.run(made, FakeClock(), overwrite=True) == "Killed"
    assert not world.has_job
    assert late(world, before) == len(before)
    assert world.run(made, FakeClock()) == RunState.COMPLETE.value
    assert len(world.rows()) == len(old)
    assert not any(data in before.values() for data in outputs_of(world).values())
    assert verify(f"{world.root}/out").findings == []


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, 1, 2])
def test_late_outputs_of_another_seed_are_found_by_the_next_run(left: int) -> None:
    """Whoever overwrote is killed when some outputs are there, and what is late is in the places of the others."""
    world = World(shuffled)
    assert world.run(shuffled, FakeClock()) == RunState.COMPLETE.value
    before, whole = outputs_of(world), world.rows()
    world.run(shuffled, FakeClock(), overwrite=True, limit=max(left, 1))
    for name in [*outputs_of(world)][left:]:
        MemoryStore().delete(f"{world.root}/{name}")
    assert late(world, before) == len(before) - left
    assert world.run(shuffled, FakeClock()) == RunState.COMPLETE.value
    assert world.rows() == whole
    assert not any(data in before.values() for data in outputs_of(world).values())
    assert verify(f"{world.root}/out").findings == []


@pytest.mark.slow
def test_late_outputs_of_another_seed_are_found_by_a_run_that_is_at_work(mode: Mode) -> None:
    """Before each change of the run that overwrites, every third one but for the night: an output in the way of its
    own is none of another attempt."""
    whole = World(shuffled)
    assert whole.run(shuffled, FakeClock()) == RunState.COMPLETE.value
    published = 0
    for at in range(1, 60, 1 if mode is Mode.NIGHTLY else 3):
        world = World(shuffled)
        assert world.run(shuffled, FakeClock()) == RunState.COMPLETE.value
        before = outputs_of(world)
        script = Script(at, None)
        come: list[int] = []
        script.act = lambda world=world, before=before, come=come: come.append(late(world, before))  # type: ignore[misc]
        with wrap_stores(lambda store, script=script: Scripted(store, script)):  # type: ignore[misc]
            ended = world.run(shuffled, FakeClock(), overwrite=True)
        if not come:
            break
        published += sum(come)
        assert ended == RunState.COMPLETE.value
        assert world.rows() == whole.rows(), f"before change {at}"
    assert published > INPUTS


@pytest.mark.slow
def test_of_two_that_overwrite_with_other_parameters_the_loser_is_told_of_the_winner() -> None:
    """Not that the output is there already, which is what it was to overwrite."""
    told = set()
    for at in range(1, 14):
        world = World(plain)
        assert world.run(plain, FakeClock()) == RunState.COMPLETE.value
        script = Script(at, None)
        script.act = lambda world=world: world.run(halved, FakeClock(), overwrite=True)  # type: ignore[misc]
        with wrap_stores(lambda store, script=script: Scripted(store, script)):  # type: ignore[misc]
            world.run(plain, FakeClock(), overwrite=True)
        assert "already contains" not in world.said, at
        told.add(world.said.partition(" memory:")[0].partition(" (")[0].partition(" while ")[0])
        if "began 'write_parquet'" in world.said:
            assert "once it has ended (curate status" in world.said
    assert "another driver began 'write_parquet' in" in told


@pytest.mark.slow
def test_of_two_that_overwrite_the_second_is_told_of_the_first_and_removes_none_of_its_outputs() -> None:
    """It had looked before the first one began: the first one did not seem gone, nor is it to be stopped."""
    world = World(plain)
    assert world.run(plain, FakeClock()) == RunState.COMPLETE.value
    script = Script(2, None)
    script.act = lambda: world.run(halved, FakeClock(), overwrite=True)
    with wrap_stores(lambda store: Scripted(store, script)):
        assert world.run(plain, FakeClock(), overwrite=True) == "ConfigError"
    assert "another driver is running on" in world.said
    assert "run this again when it has ended" in world.said
    assert world.run(halved, FakeClock()) == RunState.COMPLETE.value
    whole = World(halved)
    assert whole.run(halved, FakeClock()) == RunState.COMPLETE.value
    assert world.rows() == whole.rows()
