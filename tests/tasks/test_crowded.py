"""Tasks hold what an actor needs that is to replace one: in a cluster of the test's, where all of them wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.runtime.protocol import BackendEvent, Message, Started, TaskEnd, TaskFinished
from curate.runtime.scaling import CROWDED_S
from curate.tasks.dispatcher import Dispatcher
from curate.tasks.failure import ShardRecord
from curate.tasks.policy import Policy
from curate.tasks.scheduler import Scheduler
from tests.support.fakes import FakeBackend, FakeClock
from tests.tasks.test_dispatcher import Watcher


@dataclass
class Cluster(FakeBackend):
    """One with room for some tasks beside an actor that all call. What is free goes to the first task that waits, and
    to the actor only where none does: the worst order that there is."""

    room: int = 3
    actor: int = 1
    """What it holds; a task holds 1."""
    dies: Sequence[int] = ()
    """After how many shards the actor dies."""
    there: bool = True
    missing_s: float = 0.0
    begun: set[int] = field(default_factory=set)
    at_work: list[int] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)

    def held_up(self) -> frozenset[int]:
        return frozenset() if self.there else frozenset(self.in_flight)

    def crowded_out(self) -> bool:
        return not self.there and self.clock.monotonic() - self.missing_s >= CROWDED_S

    def step(self, in_flight: dict[int, Any]) -> list[BackendEvent]:
        """What happens in a second."""
        self.clock.advance(1.0)
        news: list[BackendEvent] = []
        self.at_work = [task for task in self.at_work if task in in_flight]
        for task in in_flight:
            if task not in self.at_work and len(self.at_work) < self.room - self.actor * self.there:
                self.at_work.append(task)
                self.begun.add(task)
                news.append(Started(task, "node", 1))
        if not self.there and len(self.at_work) + self.actor <= self.room:
            self.there = True
        elif self.there and self.at_work:
            task = self.at_work[0]
            shard = in_flight[task].pop(0)
            self.computed.append(shard)
            news.append(Message(task, [ShardRecord(shard, 1.0)]))
            if not in_flight[task]:
                news.append(TaskFinished(task, TaskEnd.RETURNED))
            if len(self.computed) in self.dies:
                self.there, self.missing_s = False, self.clock.monotonic()
        return news


def run(shards: int, slots: int, actor: int, dies: Sequence[int], most: int | None = None) -> Cluster:
    """Runs shards in a cluster of so many slots beside the actor, with all looks of a driver."""
    clock = FakeClock()
    cluster = Cluster(clock, lambda flying: cluster.step(flying), slots, room=slots + actor, actor=actor, dies=dies)
    policy = Policy(max_in_flight=most, task_timeout_s=3600.0)
    scheduler = Scheduler(range(shards), [1] * shards, policy)
    watcher = Watcher(slots=slots)

    def bounded(ticks: int) -> None:
        assert ticks < 100 * (shards + 1) * (len(dies) + 1), "it waits forever"

    watcher.on_tick = bounded
    dispatcher = Dispatcher(
        scheduler,
        cluster,  # type: ignore[arg-type]
        payload=lambda launch: list(launch.shards),
        size_of=lambda _: 1,
        has_output=lambda _: False,
        observer=watcher,
        clock=clock,
    )
    assert dispatcher.run()
    assert watcher.ends == dict.fromkeys(range(shards), 1)
    assert watcher.failed_ == []
    return cluster


@given(
    st.integers(1, 30),
    st.integers(1, 4),
    st.integers(1, 3),
    st.lists(st.integers(1, 30), max_size=3, unique=True),
    st.sampled_from([None, 1, 3]),
)
def test_an_actor_gets_a_place_whatever_waits_for_it(
    shards: int, slots: int, actor: int, dies: list[int], most: int | None
) -> None:
    """Whenever it dies: every shard is done, and computed once, as who makes way has computed none of those it had."""
    cluster = run(shards, slots, actor, dies, most)
    assert sorted(cluster.computed) == list(range(shards))


@pytest.mark.parametrize("actor", [1, 2, 3])
def test_no_more_make_way_than_have_to(actor: int) -> None:
    """What has not begun loses nothing; of those that have, the newest do, one after the other."""
    cluster = run(30, 4, actor, [1])
    newest = sorted(task for task in cluster.begun if task < max(cluster.cancelled_tasks) + 1)[-actor:]
    assert [task for task in cluster.cancelled_tasks if task in cluster.begun] == newest[::-1]
    assert run(30, 4, actor, []).cancelled_tasks == []
