"""Drivers of parts, simulated: real schedulers, ledgers and decisions over a store in memory, by a clock that jumps."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.backends.inline import InlineBackend
from curate.driver.finish import late_outputs
from curate.driver.helping import Helping, held_back
from curate.driver.run_recorder import RunRecorder
from curate.graph.entry import run
from curate.ledger import layout
from curate.ledger.run_log import HEARTBEAT_S, new_run_id
from curate.resume.commit import commit
from curate.resume.options import RunOptions
from curate.resume.prepare import prepare
from curate.storage.protocol import Outcome as Published
from curate.stores.memory import clear
from curate.stores.open import open_store
from curate.tasks.events import (
    Event,
    Finish,
    Launch,
    Record,
    Released,
    ShardDone,
    SlotsChanged,
    TaskEnded,
    Tick,
)
from curate.tasks.policy import Policy
from curate.tasks.scheduler import Scheduler
from curate.testing.clock import FakeClock
from tests.e2e.jobs.curation import Curation
from tests.support.harness import encoded, rows

ROOT = "memory://parts"
POLL_S = 0.5


def options(output: str, part: str | None = None) -> RunOptions:
    return Curation.options(input=f"{ROOT}/in", output=f"{ROOT}/{output}", backend="inline", part=part)


@dataclass
class World:
    """A job that was done once already, whose outputs simulated workers publish; and the drivers that do it again."""

    shards: int
    seed: int
    slots: int = 2
    now_s: float = 0.0
    clock: FakeClock = field(default_factory=FakeClock)
    drivers: list[Driver] = field(default_factory=list)
    runs: Counter[str] = field(default_factory=Counter)
    """How often each shard was begun."""

    def __post_init__(self) -> None:
        clear()
        self.rng = random.Random(self.seed)
        store = open_store(ROOT)
        for number in range(self.shards):
            name = f"{number:03}.jsonl"
            store.publish(f"{ROOT}/in/{name}", encoded(".jsonl", rows(name, 1 + number % 3, self.rng)))
        run(Curation().spec(), options("alone"))
        self.made = {
            found.uri.removeprefix(f"{ROOT}/alone/"): store.read(found.uri)
            for found in store.list(f"{ROOT}/alone/")
            if "/_curate/" not in found.uri
        }
        self.alone = orjson.loads(store.read(f"{ROOT}/alone/{layout.SUMMARY}"))
        self.store = store
        self.seconds = {name: self.rng.choice((0.2, 1.0, 3.0, 20.0)) for name in self.made}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def at(self, seconds: float, what: Callable[[], None]) -> None:
        """Has something happen so many seconds from now."""
        heapq.heappush(self._events, (self.now_s + seconds, next(self._numbers), what))

    def play(self) -> None:
        """Lets time pass until every driver has ended that can."""
        while self._events and not all(one.ended or one.killed for one in self.drivers):
            now_s, _, what = heapq.heappop(self._events)
            assert now_s < 100_000, "drivers wait for each other for ever"
            self.clock.advance(now_s - self.now_s)
            self.now_s = now_s
            what()

    @property
    def twice(self) -> int:
        """How often a shard was begun that another driver had begun."""
        return sum(self.runs.values()) - self.shards


@dataclass
class Driver:
    """One of the drivers: all that a run does, but for its tasks and its threads."""

    world: World
    part: str
    begun: bool = False
    ended: bool = False
    killed: bool = False
    paused_until_s: float = 0.0
    summary: Any = None

    def begin(self) -> None:
        world, given = self.world, options("out", self.part)
        self.run_id = new_run_id(world.clock.now() + len(world.drivers))
        prepared = self.prepared = prepare(Curation().spec(), given, self.run_id, world.clock)
        commit(prepared, given)
        todo = prepared.todo
        # Copies of stragglers are another matter.
        policy = Policy(speculate=False)
        self.scheduler = Scheduler(todo, prepared.plan.sizes[todo], policy, held_back(given.part, prepared))
        self.account = RunRecorder(prepared, given, self.scheduler, world.clock, world.now_s, world.clock.now())
        self.account.begin(InlineBackend())
        assert given.part is not None
        self.helping = Helping(given.part, prepared, self.scheduler, self.account, world.clock)
        self.launches: dict[int, Launch] = {}
        self.queue: list[Launch] = []
        self.busy = 0
        self.begun = True
        prepared.ledger.create_json(layout.run_file(self.run_id, "run.json"), self.about())
        self.beat()
        self.tell(SlotsChanged(world.slots))
        self.loop()

    def about(self) -> dict[str, Any]:
        where = {"host": f"host-{self.part}", "boot_id": self.part, "pid_space": "p", "pid": 1, "pid_started": "1"}
        return {**where, "part": self.part, "updated": self.world.clock.now(), **self.account.heartbeat()}

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Has something happen to this driver: later, if it is paused then; never, if it is killed."""

        def now() -> None:
            if self.killed:
                return
            if self.world.now_s < self.paused_until_s:
                self.world.at(self.paused_until_s - self.world.now_s, now)
            else:
                what()

        self.world.at(seconds, now)

    def beat(self) -> None:
        if self.ended:
            return
        self._beat()
        self.later(HEARTBEAT_S, self.beat)

    def _beat(self) -> None:
        uri = self.prepared.ledger.uri(layout.run_file(self.run_id, "heartbeat.json"))
        self.prepared.ledger.store.replace(uri, orjson.dumps(self.about()))

    def loop(self) -> None:
        if self.ended:
            return
        news = self.helping.look()
        for event in news:
            self.tell(event)
        if any(isinstance(event, Released) for event in news):
            # As the recorder does at the end of a turn.
            self._beat()
        self.tell(Tick())
        self.later(POLL_S, self.loop)

    def tell(self, event: Event) -> None:
        for action in self.scheduler.handle(event, self.world.now_s):
            if isinstance(action, Launch):
                self.launches[action.task] = action
                self.queue.append(action)
                self.later(0.0, self.work)
            elif isinstance(action, Finish):
                self.finish()
            else:
                assert isinstance(action, Record)

    # Its workers, one a slot

    def work(self) -> None:
        if self.queue and self.busy < self.world.slots and not self.killed:
            self.busy += 1
            self.shard(self.queue.pop(0), 0)

    def shard(self, launch: Launch, number: int) -> None:
        if self.ended:
            return
        if number == len(launch.shards):
            self.busy -= 1
            self.tell(TaskEnded(launch.task))
            self.work()
            return
        rank = launch.shards[number]
        name = self.prepared.plan.shard_id(rank) + self.prepared.record.suffix
        done = any(True for _ in self.world.store.list(f"{ROOT}/out/{name}"))
        seconds = 0.0 if done else self.world.seconds[name]
        if not done:
            self.world.runs[name] += 1
        self.later(seconds, lambda: self.publish(launch, number, name, seconds))

    def publish(self, launch: Launch, number: int, name: str, seconds: float) -> None:
        if self.ended:
            return
        published = self.world.store.publish(f"{ROOT}/out/{name}", self.world.made[name])
        assert published.outcome is not Published.DIFFERENT
        rank = launch.shards[number]
        (record,) = late_outputs(self.prepared, np.array([rank]))
        self.account.done(launch, replace(record, existed=not seconds))
        self.tell(ShardDone(launch.task, rank, 1, seconds, computed=seconds > 0))
        self.shard(launch, number + 1)

    def finish(self) -> None:
        self.ended = True
        self.helping.gather()
        self.summary = self.account.job_summary()


def play(world: World, starts: list[float], kills: dict[int, float], pauses: dict[int, float]) -> int:
    """Starts a driver of each part, kills and pauses some; returns how many shards ran in these at that moment."""
    disturbed = 0

    def kill(driver: Driver) -> None:
        nonlocal disturbed
        disturbed += driver.busy if driver.begun and not driver.ended else 0
        driver.killed = True

    def pause(driver: Driver) -> None:
        nonlocal disturbed
        disturbed += driver.busy if driver.begun and not driver.ended else 0
        driver.paused_until_s = world.now_s + 60.0

    for number, start_s in enumerate(starts):
        driver = Driver(world, f"{number}/{len(starts)}")
        world.drivers.append(driver)
        driver.later(start_s, driver.begin)
        if number in kills:
            world.at(kills[number], lambda one=driver: kill(one))  # type: ignore[misc]
        if number in pauses:
            world.at(pauses[number], lambda one=driver: pause(one))  # type: ignore[misc]
    world.play()
    return disturbed


def check(world: World, disturbed: int, most: float) -> None:
    """Every shard is done; whoever ends knows all of it; hardly anything was done twice."""
    store = world.store
    there = {one.uri.removeprefix(f"{ROOT}/out/") for one in store.list(f"{ROOT}/out/") if "/_curate/" not in one.uri}
    assert there == set(world.made)
    ended = [one for one in world.drivers if one.ended]
    assert ended
    told = ("rows", "counters", "bytes", "shards")
    for one in ended:
        assert {key: one.summary[key] for key in told} == {key: world.alone[key] for key in told}, one.part
    assert world.twice <= disturbed + most, (world.twice, disturbed)


@pytest.mark.slow
def test_four_drivers() -> None:
    """Each does about a fourth. They look a few times, however many shards there are."""
    world = World(200, 1)
    disturbed = play(world, [0.0, 0.1, 0.2, 0.3], {}, {})
    check(world, disturbed, 0.05 * 200)
    made = [one.account.totals.done - one.account.totals.by_others for one in world.drivers]
    assert min(made) > 35
    calls = [one.prepared.stores.calls.list for one in world.drivers]
    assert max(calls) < 25, calls


def test_one_driver_does_it_all() -> None:
    """The others never start: nobody waits for them."""
    world = World(60, 2)
    check(world, play(world, [0.0, 0.0, 0.0], {1: 0.0, 2: 0.0}, {}), 0)
    assert world.now_s < sum(world.seconds.values()) / world.slots + 30.0
    assert world.twice == 0


@pytest.mark.slow
def test_a_driver_that_stops_is_waited_for_three_heartbeats() -> None:
    """And its shards that were not launched by then are not waited for at all."""
    world = World(60, 3)
    check(world, play(world, [0.0, 0.0], {1: 5.0}, {}), 3)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=15, deadline=None)
def test_whatever_happens_every_shard_is_done(data: st.DataObject) -> None:
    """Drivers begin, die and pause for a minute whenever."""
    count = data.draw(st.integers(1, 5))
    world = World(40, data.draw(st.integers(0, 1000)), slots=data.draw(st.integers(1, 4)))
    moments = st.floats(0, 150)
    starts = data.draw(st.lists(moments, min_size=count, max_size=count))
    some = st.dictionaries(st.integers(1, count), moments, max_size=count - 1)
    disturbed = play(world, starts, {n - 1: s for n, s in data.draw(some).items() if n < count}, data.draw(some))
    check(world, disturbed, 0.05 * 40 + world.slots * count)
