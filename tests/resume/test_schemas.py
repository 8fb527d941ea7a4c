"""Asking shards for the schema of their output: one that hangs is not waited for longer than a shard may take."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from curate.log import get_logger
from curate.resume.schemas import PROBES, _Asking
from curate.runtime.protocol import Message, Started, TaskEnd, TaskFinished
from curate.stage.messages import Probe, Probed
from curate.tasks.dispatcher import POLL_S, Interrupts
from tests.support.fakes import FakeBackend, FakeClock

ANSWER = Probed(pa.schema([("a", pa.int64())]))


def ask(backend: FakeBackend, clock: FakeClock, timeout_s: float | None) -> Probed | None:
    return next(_Asking(backend, Interrupts(), clock, timeout_s, get_logger()).answers([Probe(None)]))


def test_a_probe_that_hangs_is_cancelled() -> None:
    """Counted from its start, not from its launch: what waits for a node is not late. Its end is waited for."""
    clock = FakeClock()
    started_s = clock.monotonic() + 100.0

    def answer(in_flight: dict[int, Any]) -> list[Any]:
        del in_flight
        return [Started(-1, "host", 7)] if len(backend.polls) == 200 else []

    backend = FakeBackend(clock, answer, end_of=lambda task: TaskFinished(task, TaskEnd.CRASHED, "killed"))
    found = ask(backend, clock, timeout_s=10.0)
    assert found is not None
    assert found.error == "killed"
    assert backend.cancelled_tasks == [-1]
    assert started_s + 10.0 <= clock.monotonic() <= started_s + 10.0 + 4 * POLL_S


def test_without_a_limit_it_is_waited_for() -> None:
    """A slow model may take hours to load."""
    clock = FakeClock()

    def answer(in_flight: dict[int, Any]) -> list[Any]:
        del in_flight
        return [Message(-1, [ANSWER]), TaskFinished(-1, TaskEnd.RETURNED)] if len(backend.polls) > 10_000 else []

    backend = FakeBackend(clock, answer)
    assert ask(backend, clock, timeout_s=None) is ANSWER
    assert backend.cancelled_tasks == []


def test_a_probe_whose_node_is_lost_is_asked_again() -> None:
    """Were the next shard asked instead, the schema would depend on which nodes are preempted."""
    clock = FakeClock()

    def answer(in_flight: dict[int, Any]) -> list[Any]:
        task = next(iter(in_flight))
        if task == -1:
            return [TaskFinished(task, TaskEnd.LOST, "preempted")]
        return [Message(task, [ANSWER]), TaskFinished(task, TaskEnd.RETURNED)]

    backend = FakeBackend(clock, answer)
    shard = Probe(None)
    assert next(_Asking(backend, Interrupts(), clock, None, get_logger()).answers([shard])) is ANSWER
    assert [payload for _, payload, _ in backend.launched] == [shard, shard]


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_probe_whose_worker_dies_is_asked_once_more(deaths: int) -> None:
    """It may have died of something else; a shard that ends two workers tells nothing."""
    clock = FakeClock()

    def answer(in_flight: dict[int, Any]) -> list[Any]:
        task = next(iter(in_flight))
        if -task <= deaths:
            return [TaskFinished(task, TaskEnd.CRASHED, "killed")]
        return [Message(task, [ANSWER]), TaskFinished(task, TaskEnd.RETURNED)]

    backend = FakeBackend(clock, answer)
    found = ask(backend, clock, timeout_s=None)
    assert found is not None
    assert (found.schema, found.error) == ((ANSWER.schema, "") if deaths == 1 else (None, "killed"))
    assert len(backend.launched) == 2


def test_workers_that_die_make_nobody_wait() -> None:
    """Of a job whose code ends each process, all first shards are asked, twice. A wait brings nothing."""
    clock = FakeClock()

    def answer(in_flight: dict[int, Any]) -> list[Any]:
        return [TaskFinished(next(iter(in_flight)), TaskEnd.CRASHED, "killed")]

    backend = FakeBackend(clock, answer)
    asking = _Asking(backend, Interrupts(), clock, None, get_logger())
    began_s = clock.monotonic()
    probes = [Probe(None) for _ in range(PROBES)]
    assert [found and found.error for found in asking.answers(probes)] == ["killed"] * PROBES
    assert len(backend.launched) == 2 * PROBES
    assert clock.monotonic() == began_s


def test_an_interrupt_ends_the_wait_for_what_is_not_there() -> None:
    """It is looked at twice a second, however long user code wants to wait."""
    interrupts = Interrupts()

    class Interrupted(FakeClock):
        """A clock whose user presses Ctrl-C after ten seconds."""

        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if self.monotonic() >= started_s + 10.0:
                interrupts.interrupts = 1

    clock = Interrupted()
    started_s = clock.monotonic()

    def answer(in_flight: dict[int, Any]) -> list[Any]:
        (task,) = in_flight
        return [Message(task, [Probed(error="down", again_s=3600.0)]), TaskFinished(task, TaskEnd.RETURNED)]

    asking = _Asking(FakeBackend(clock, answer), interrupts, clock, None, get_logger())
    assert next(asking.answers([Probe(None)])) is None
    assert clock.monotonic() - started_s <= 10.0 + 2 * POLL_S


def probes(count: int) -> list[Probe]:
    return [Probe(None, given=number) for number in range(count)]


def test_answers_come_in_the_order_of_the_plan_whichever_is_first() -> None:
    """As many are asked at a time as there are slots, and no more are held; closing ends what runs."""
    clock = FakeClock()

    def answer(in_flight: dict[int, Any]) -> list[Any]:
        # The last one that was asked answers first.
        task = list(in_flight)[-1]
        return [Message(task, [Probed(rows=in_flight[task].given)]), TaskFinished(task, TaskEnd.RETURNED)]

    backend = FakeBackend(clock, answer, slots_now=4)
    answers = _Asking(backend, Interrupts(), clock, None, get_logger()).answers(probes(10), many=True)
    assert [found.rows for found, _ in zip(answers, range(6), strict=False) if found is not None] == list(range(6))
    assert backend.most_in_flight == 4
    assert len(backend.launched) <= 6 + 4
    answers.close()
    assert not backend.in_flight


def test_one_that_is_to_be_asked_again_holds_its_place() -> None:
    """The others are asked meanwhile."""
    clock = FakeClock()

    def answer(in_flight: dict[int, Any]) -> list[Any]:
        task, probe = next(iter(in_flight.items()))
        again_s = 5.0 if task == -1 else None
        return [Message(task, [Probed(rows=probe.given, again_s=again_s)]), TaskFinished(task, TaskEnd.RETURNED)]

    backend = FakeBackend(clock, answer, slots_now=2)
    answers = _Asking(backend, Interrupts(), clock, None, get_logger()).answers(probes(5), many=True)
    assert [found.rows for found in answers if found is not None] == list(range(5))
    assert [payload.given for _, payload, _ in backend.launched].count(0) == 2
