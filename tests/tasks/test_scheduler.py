"""The scheduler: each shard ends exactly once, whatever happens to tasks, and every limit is exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from curate.errors import ConfigError
from curate.tasks.record import FailureKind
from curate.tasks.scheduler import (
    LARGEST_BUNDLE,
    LEAST_WINDOW,
    SHARD_OVERHEAD_BYTES,
    SHORTEST_BUNDLE_S,
    Launch,
    Policy,
    Scheduler,
    SchedulerState,
    TaskId,
    max_failed_shards,
)
from curate.units import MIB


def make(n: int, *, size: int = MIB, **policy: object) -> Scheduler:
    """A scheduler of `n` shards, ranked from 100 on so that no rank is also a position."""
    return Scheduler(range(100, 100 + n), [size] * n, Policy(**policy))  # type: ignore[arg-type]


def launch_all(scheduler: Scheduler, now_s: float = 0.0, slots: int = 4) -> list[Launch]:
    """Launches until nothing more may be launched now."""
    launches = []
    while launch := scheduler.next_launch(now_s, slots):
        launches.append(launch)
    return launches


def finish(scheduler: Scheduler, launch: Launch, seconds: float = 1.0) -> None:
    """Reports every shard of a task as done, and its end."""
    for shard in launch.shards:
        assert scheduler.shard_done(launch.task, shard, MIB, seconds, computed=True)
    assert scheduler.task_ended(launch.task, 0.0) == ()


def bundle_of(n: int, **policy: object) -> tuple[Scheduler, Launch]:
    """A scheduler of `n` + 1 shards, the last `n` of them running as one task."""
    scheduler = make(n + 1, **policy)
    first = scheduler.next_launch(0.0, 1)
    assert first is not None
    finish(scheduler, first, seconds=1e-6)
    launch = scheduler.next_launch(0.0, 1)
    assert launch is not None
    assert launch.shards == tuple(range(101, 101 + n))
    return scheduler, launch


# The window


@pytest.mark.parametrize(("slots", "window"), [(0, 16), (1, 16), (8, 16), (9, 18), (500, 1000)])
def test_the_window_is_twice_the_slots_and_never_less_than_sixteen(slots: int, window: int) -> None:
    """No slots at all still launch 16: pending tasks are what an autoscaler sees."""
    scheduler = make(3000)
    assert len(launch_all(scheduler, slots=slots)) == window
    assert scheduler.running_tasks == window


def test_max_in_flight_takes_the_place_of_the_window() -> None:
    """A limit holds on one slot as on a thousand, and a task that ends makes room for one."""
    scheduler = make(10, max_in_flight=3)
    first = launch_all(scheduler, slots=1000)
    assert len(first) == 3
    finish(scheduler, first[1])
    assert len(launch_all(scheduler, slots=0)) == 1


def test_a_limit_that_would_run_nothing_is_refused() -> None:
    """With no task in flight a run would never end."""
    with pytest.raises(ValueError, match="max_in_flight is 0"):
        Policy(max_in_flight=0)


def test_fewer_slots_cancel_nothing_and_launch_nothing() -> None:
    """A cluster that shrinks keeps what is in flight; the next launch waits until that fits the smaller window."""
    scheduler = make(200)
    launches = launch_all(scheduler, slots=20)
    assert len(launches) == 40
    for launch in launches[:24]:
        finish(scheduler, launch)
        assert scheduler.next_launch(0.0, 4) is None
    finish(scheduler, launches[24])
    assert scheduler.next_launch(0.0, 4) is not None


# Bundles


def test_shards_run_one_by_one_until_a_rate_is_known() -> None:
    """Nothing is bundled on a guess: the first shards run alone, in plan order."""
    scheduler = make(40)
    assert [launch.shards for launch in launch_all(scheduler)] == [(100 + k,) for k in range(LEAST_WINDOW)]


def test_bundles_hold_the_target_seconds_of_work() -> None:
    """At 1 s for a shard of this size, 30 s of work are 30 shards."""
    scheduler = make(10_000, target_task_s=30.0)
    first = scheduler.next_launch(0.0, 1)
    assert first is not None
    finish(scheduler, first, seconds=1.0)
    assert [len(launch.shards) for launch in launch_all(scheduler, slots=1)] == [30] * 16


def test_bundles_follow_bytes() -> None:
    """Of shards twice as large, with the overhead of a shard counted once each, fewer fit into the same time."""
    sizes = [MIB] * 2 + [2 * MIB] * 1000 + [MIB] * 100_000
    scheduler = Scheduler(range(len(sizes)), sizes, Policy(target_task_s=60.0))
    first = scheduler.next_launch(0.0, 1)
    assert first is not None
    finish(scheduler, first, seconds=1.0)
    second = scheduler.next_launch(0.0, 1)
    assert second is not None
    budget = 60 * (MIB + SHARD_OVERHEAD_BYTES) - (MIB + SHARD_OVERHEAD_BYTES)
    assert len(second.shards) == 1 + budget // (2 * MIB + SHARD_OVERHEAD_BYTES)


def test_a_shard_larger_than_the_target_runs_alone() -> None:
    """A bundle holds at least one shard, whatever it takes."""
    scheduler = make(100, size=1000 * MIB, target_task_s=0.5)
    first = scheduler.next_launch(0.0, 1)
    assert first is not None
    assert scheduler.shard_done(first.task, 100, MIB, 1.0, computed=True)
    assert all(len(launch.shards) == 1 for launch in launch_all(scheduler))


def test_a_tiny_target_means_one_shard_a_task() -> None:
    """`--target-task-seconds 0.001` never bundles, however fast shards are."""
    scheduler = make(100, target_task_s=0.001)
    for _ in range(100):
        launch = scheduler.next_launch(0.0, 1)
        assert launch is not None
        assert len(launch.shards) == 1
        finish(scheduler, launch, seconds=0.01)
    assert scheduler.state is SchedulerState.FINISHED


def test_a_bundle_is_never_larger_than_its_limit() -> None:
    """However fast shards are, the arguments of a task stay small."""
    scheduler = make(3 * LARGEST_BUNDLE, size=0, target_task_s=1e9)
    first = scheduler.next_launch(0.0, 1)
    assert first is not None
    assert scheduler.shard_done(first.task, 100, 0, 0.0, computed=True)
    assert scheduler.next_launch(0.0, 1).shards == tuple(range(101, 101 + LARGEST_BUNDLE))  # type: ignore[union-attr]


def test_bundles_shrink_towards_the_end() -> None:
    """No bundle takes more than half of a slot's share of what is left, so that all slots finish together; and none
    is cut below the shortest."""
    shortest, seconds = 2, SHORTEST_BUNDLE_S / 2
    scheduler = make(1001, target_task_s=1000.0)
    first = scheduler.next_launch(0.0, 4)
    assert first is not None
    finish(scheduler, first, seconds=seconds)
    left, lengths = 1000, []
    while launch := scheduler.next_launch(0.0, 4):
        share = left / (2 * 4)
        assert len(launch.shards) <= max(share, shortest) + 1e-6
        left -= len(launch.shards)
        lengths.append(len(launch.shards))
        finish(scheduler, launch, seconds=seconds)
    assert lengths[0] == 125
    assert lengths == sorted(lengths, reverse=True)
    assert set(lengths[-4:-1]) == {shortest}
    assert scheduler.state is SchedulerState.FINISHED


def test_outputs_that_were_there_say_nothing_about_the_rate() -> None:
    """A shard that another driver had done costs a look, not its bytes: bundles are not sized by it."""
    scheduler = make(100)
    for _ in range(3):
        launch = scheduler.next_launch(0.0, 1)
        assert launch is not None
        assert scheduler.shard_done(launch.task, launch.shards[0], MIB, 1e-6, computed=False)
    assert all(len(launch.shards) == 1 for launch in launch_all(scheduler))


def test_arrays_do_as_well_as_lists() -> None:
    """The driver hands in NumPy arrays; launches hold plain ints, which pickle small and compare with everything."""
    scheduler = Scheduler(np.arange(5), np.full(5, MIB), Policy())  # type: ignore[arg-type]
    launches = launch_all(scheduler)
    assert [launch.shards for launch in launches] == [(k,) for k in range(5)]
    assert all(type(shard) is int for launch in launches for shard in launch.shards)


# Failures


def failures_until_given_up(kind: FailureKind) -> tuple[int, list[float], list[int]]:
    """Fails one shard until it is given up: failures, waits in between, attempts as launched."""
    scheduler = make(1)
    now_s, failures, waits, attempts = 50.0, 0, [], []
    while True:
        launch = scheduler.next_launch(now_s, 1)
        assert launch is not None
        attempts.append(launch.attempt)
        failures += 1
        if kind in (FailureKind.CRASHED, FailureKind.LOST):
            ((shard, given_up),) = scheduler.task_ended(launch.task, now_s, kind)
            assert shard == 100
        else:
            given_up = bool(scheduler.shard_failed(launch.task, 100, kind, now_s))
            scheduler.task_ended(launch.task, now_s)
        if given_up:
            assert scheduler.failed == 1
            assert scheduler.state is SchedulerState.FINISHED
            assert scheduler.attempts == failures
            return failures, waits, attempts
        due_s = scheduler.next_event_s()
        if due_s is not None:
            assert scheduler.next_launch(due_s - 0.001, 1) is None
            waits.append(due_s - now_s)
            now_s = due_s


def test_a_raising_process_is_tried_three_more_times_with_backoff() -> None:
    """User error: 4 attempts, 1, 2 and 4 s apart."""
    assert failures_until_given_up(FailureKind.USER_ERROR) == (4, [1.0, 2.0, 4.0], [1, 2, 3, 4])


def test_a_store_that_refuses_is_tried_three_more_times_with_backoff() -> None:
    """The store has its own retries within a call; these are for a store that comes back after that."""
    assert failures_until_given_up(FailureKind.STORAGE) == (4, [1.0, 2.0, 4.0], [1, 2, 3, 4])


def test_corrupt_input_fails_at_once() -> None:
    """Trying again would give the same."""
    assert failures_until_given_up(FailureKind.CORRUPT) == (1, [], [1])


def test_a_shard_that_kills_its_worker_three_times_is_given_up() -> None:
    """Crashes count as attempts, 3 of them."""
    assert failures_until_given_up(FailureKind.CRASHED) == (3, [1.0, 2.0], [1, 2, 3])


def test_a_lost_shard_is_queued_at_once_twenty_times() -> None:
    """Preemption is no fault of the shard; the limit is there so that nothing goes on for ever."""
    assert failures_until_given_up(FailureKind.LOST) == (21, [], list(range(1, 22)))


def test_each_kind_has_its_own_count() -> None:
    """A shard that was lost ten times may still fail three times; and success after that is success."""
    scheduler = make(1)
    now_s = 0.0
    for kind in [FailureKind.LOST] * 10 + [FailureKind.USER_ERROR] * 3 + [FailureKind.CRASHED] * 2:
        now_s += 100.0
        launch = scheduler.next_launch(now_s, 1)
        assert launch is not None
        if kind is FailureKind.USER_ERROR:
            assert scheduler.shard_failed(launch.task, 100, kind, now_s) is False
            scheduler.task_ended(launch.task, now_s)
        else:
            assert scheduler.task_ended(launch.task, now_s, kind) == ((100, False),)
    launch = scheduler.next_launch(now_s + 100.0, 1)
    assert launch is not None
    assert launch.attempt == 16
    finish(scheduler, launch)
    assert (scheduler.done, scheduler.failed, scheduler.attempts) == (1, 0, 16)


def test_a_failed_shard_is_retried_alone_while_its_bundle_goes_on() -> None:
    """A poison shard takes none with it: the others of its task are done by that task."""
    scheduler, launch = bundle_of(5)
    assert scheduler.shard_failed(launch.task, 101, FailureKind.USER_ERROR, 7.0) is False
    for shard in launch.shards[1:]:
        assert scheduler.shard_done(launch.task, shard, MIB, 1.0, computed=True)
    assert scheduler.task_ended(launch.task, 8.0) == ()
    assert launch_all(scheduler, 7.9) == []
    assert [(again.shards, again.attempt) for again in launch_all(scheduler, 8.0)] == [((101,), 2)]


def test_a_crash_is_blamed_on_the_first_shard_without_a_report() -> None:
    """It runs alone after its backoff; the others are bundled anew, in halves, and at once. None of them is an attempt
    number 1 again: any may have its output, for word of small shards travels slower than they end."""
    scheduler, launch = bundle_of(8)
    for shard in (101, 102):
        assert scheduler.shard_done(launch.task, shard, MIB, 1.0, computed=True)
    assert scheduler.task_ended(launch.task, 10.0, FailureKind.CRASHED) == ((103, False),)
    assert [(again.shards, again.attempt) for again in launch_all(scheduler, 10.0)] == [
        ((104, 105, 106), 2),
        ((107, 108), 2),
    ]
    assert [(again.shards, again.attempt) for again in launch_all(scheduler, 11.0)] == [((103,), 2)]


def test_a_culprit_deep_in_a_bundle_is_found_in_few_crashes() -> None:
    """A worker that dies before it says which shards it has done: the search halves, it does not go one by one."""
    scheduler, launch = bundle_of(1000)
    culprit, crashes, now_s = 700, 0, 0.0
    waiting = [launch]
    while scheduler.state is not SchedulerState.FINISHED:
        waiting += launch_all(scheduler, now_s)
        now_s += 10.0
        for one in waiting:
            if culprit in one.shards:
                crashes += 1
                scheduler.task_ended(one.task, now_s, FailureKind.CRASHED)
            else:
                finish(scheduler, one)
        waiting = []
    assert (scheduler.done, scheduler.failed) == (1000, 1)
    assert crashes <= 3 + 10  # its own three, and one for each halving of a thousand


def test_a_lost_task_is_queued_again_whole() -> None:
    """Every shard without a report runs again, in the same order and at once."""
    scheduler, launch = bundle_of(6)
    assert scheduler.shard_done(launch.task, 101, MIB, 1.0, computed=True)
    struck = scheduler.task_ended(launch.task, 0.0, FailureKind.LOST)
    assert struck == tuple((shard, False) for shard in range(102, 107))
    assert [(again.shards, again.attempt) for again in launch_all(scheduler)] == [((102, 103, 104, 105, 106), 2)]


def test_a_task_that_is_lost_again_is_queued_in_halves() -> None:
    """It may be too long for the nodes it gets."""
    scheduler, launch = bundle_of(5)
    scheduler.task_ended(launch.task, 0.0, FailureKind.LOST)
    (again,) = launch_all(scheduler)
    scheduler.task_ended(again.task, 0.0, FailureKind.LOST)
    assert [(half.shards, half.attempt) for half in launch_all(scheduler)] == [((101, 102, 103), 3), ((104, 105), 3)]


def test_a_shard_that_takes_its_nodes_down_is_given_up_alone() -> None:
    """Its neighbours in the bundle are lost a few times with it, and then done."""
    scheduler, launch = bundle_of(100)
    waiting = [launch]
    while scheduler.state is not SchedulerState.FINISHED:
        for one in waiting:
            if 142 in one.shards:
                scheduler.task_ended(one.task, 0.0, FailureKind.LOST)
            else:
                finish(scheduler, one)
        waiting = launch_all(scheduler)
    assert (scheduler.done, scheduler.failed) == (100, 1)


def test_lost_too_often_gives_up_only_those_that_were() -> None:
    """Shards of one bundle may have been lost different numbers of times."""
    scheduler, launch = bundle_of(2, loss_limit=1)
    scheduler.task_ended(launch.task, 0.0, FailureKind.LOST)
    again = scheduler.next_launch(0.0, 1)
    assert again is not None
    assert scheduler.shard_failed(again.task, 102, FailureKind.USER_ERROR, 0.0) is False
    assert scheduler.task_ended(again.task, 0.0, FailureKind.LOST) == ((101, True),)
    (last,) = launch_all(scheduler, 1.0)
    assert (last.shards, last.attempt) == ((102,), 3)


def test_a_task_that_ends_well_has_reported_on_every_shard() -> None:
    """To say otherwise is a mistake of the caller, who has to say what became of the rest."""
    scheduler, launch = bundle_of(3)
    assert scheduler.unreported(launch.task) == 3
    with pytest.raises(ValueError, match=r"task 1 ended well, but 3 of its shards did not report \(first: 101\)"):
        scheduler.task_ended(launch.task, 0.0)


@pytest.mark.parametrize("ended", [False, True])
def test_news_of_a_shard_that_the_task_does_not_hold_is_ignored(ended: bool) -> None:
    """A message that comes twice, or late, or for another's shard, changes nothing and is not booked."""
    scheduler, launch = bundle_of(3)
    assert scheduler.shard_done(launch.task, 101, MIB, 1.0, computed=True)
    if ended:
        scheduler.task_ended(launch.task, 0.0, FailureKind.LOST)
    before = (scheduler.done, scheduler.failed, scheduler.attempts, scheduler.running_shards)
    late = [101, 100, 999] + ([102, 103] if ended else [])
    for shard in late:
        assert not scheduler.shard_done(launch.task, shard, MIB, 1.0, computed=True)
        assert scheduler.shard_failed(launch.task, shard, FailureKind.CORRUPT, 0.0) is None
    assert not scheduler.shard_done(TaskId(77), 102, MIB, 1.0, computed=True)
    assert scheduler.task_ended(TaskId(77), 0.0, FailureKind.LOST) == ()
    assert (scheduler.done, scheduler.failed, scheduler.attempts, scheduler.running_shards) == before


# Waiting


def test_a_shard_that_is_due_while_the_window_is_full_gives_no_time_to_wait_for() -> None:
    """Else its caller, who waits until then, would not wait at all, again and again."""
    scheduler = make(3, max_in_flight=1)
    first = scheduler.next_launch(0.0, 1)
    assert first is not None
    assert scheduler.shard_failed(first.task, 100, FailureKind.USER_ERROR, 0.0) is False
    scheduler.task_ended(first.task, 0.0)
    second = scheduler.next_launch(0.5, 1)
    assert second is not None
    assert scheduler.next_event_s() == 1.0
    assert scheduler.next_launch(1.5, 1) is None
    assert scheduler.next_event_s() is None
    finish(scheduler, second)
    assert scheduler.next_launch(1.5, 1).shards == (100,)  # type: ignore[union-attr]


def test_shards_wait_out_their_own_backoff() -> None:
    """The earliest is told, and launched, first."""
    scheduler = make(2)
    one, two = launch_all(scheduler)
    scheduler.shard_failed(two.task, 101, FailureKind.USER_ERROR, 0.25)
    scheduler.shard_failed(one.task, 100, FailureKind.USER_ERROR, 1.0)
    scheduler.task_ended(one.task, 1.0)
    scheduler.task_ended(two.task, 1.0)
    assert scheduler.next_event_s() == 1.25
    assert [launch.shards for launch in launch_all(scheduler, 1.5)] == [(101,)]
    assert scheduler.next_event_s() == 2.0


# The end


def test_nothing_to_do_is_finished() -> None:
    """A run without shards ends before it starts."""
    scheduler = make(0)
    assert scheduler.state is SchedulerState.FINISHED
    assert scheduler.next_launch(0.0, 4) is None


def test_stopped_it_launches_nothing_and_finishes_with_what_runs() -> None:
    """Not even a shard whose backoff is over, or one that was lost; what is left stays unfinished."""
    scheduler = make(100)
    launches = launch_all(scheduler)
    scheduler.shard_failed(launches[0].task, 100, FailureKind.USER_ERROR, 0.0)
    scheduler.task_ended(launches[0].task, 0.0)
    scheduler.stop()
    assert scheduler.state is SchedulerState.STOPPING
    assert scheduler.next_event_s() is None
    scheduler.task_ended(launches[1].task, 0.0, FailureKind.LOST)
    for launch in launches[2:]:
        assert scheduler.state is SchedulerState.STOPPING
        assert scheduler.next_launch(99.0, 100) is None
        finish(scheduler, launch)
    assert scheduler.state is SchedulerState.FINISHED
    assert scheduler.unfinished == 100 - 14


def test_aborted_as_soon_as_more_than_the_limit_have_failed() -> None:
    """The limit itself is tolerated; one more, and nothing is launched again."""
    scheduler = make(100, max_failed=2)
    for number, launch in enumerate(launch_all(scheduler)[:3]):
        assert scheduler.state is SchedulerState.ACTIVE
        assert scheduler.shard_failed(launch.task, 100 + number, FailureKind.CORRUPT, 0.0) is True
        scheduler.task_ended(launch.task, 0.0)
    assert scheduler.state is SchedulerState.ABORTED
    assert scheduler.next_launch(1e9, 100) is None


@pytest.mark.parametrize(
    ("text", "total", "limit"), [("0", 10, 0), ("3", 10, 3), (" 5 ", 10, 5), ("1%", 1000, 10), ("1%", 99, 0)]
)
def test_max_failed_shards_is_a_number_or_a_percentage(text: str, total: int, limit: int) -> None:
    """A percentage of fewer shards than it would take is none."""
    assert max_failed_shards(text, total) == limit


@pytest.mark.parametrize("text", ["-1", "many", "", "1.5", "101%", "0%", "%"])
def test_a_limit_that_is_neither_is_refused(text: str) -> None:
    """It says what it expected."""
    with pytest.raises(ConfigError, match=r"percentage"):
        max_failed_shards(text, 10)


# Any order of anything

KINDS = st.sampled_from([FailureKind.USER_ERROR, FailureKind.STORAGE, FailureKind.CORRUPT])


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens in whatever order: every shard is in one place, and ends once.

    The model holds, per shard, where it is and what was held against it; it knows nothing of bundles, queues or heaps.
    """

    tasks: Bundle[Launch] = Bundle("tasks")

    @initialize(
        sizes=st.lists(st.integers(0, 300 * MIB), max_size=40),
        policy=st.builds(
            Policy,
            target_task_s=st.sampled_from([0.001, 1.0, 60.0, 1e6]),
            max_in_flight=st.sampled_from([None, 1, 3]),
            max_failed=st.sampled_from([None, None, 0, 3]),
            crash_limit=st.integers(1, 3),
            loss_limit=st.integers(0, 3),
        ),
    )
    def start(self, sizes: Sequence[int], policy: Policy) -> None:
        self.size = {7 + rank: size for rank, size in enumerate(sizes)}
        self.policy = policy
        self.scheduler = Scheduler(list(self.size), sizes, policy)
        self.now_s = 1000.0
        self.waiting = dict.fromkeys(self.size, 0.0)
        """Shard to the time before which it may not be launched."""
        self.running: dict[TaskId, list[int]] = {}
        self.done: set[int] = set()
        self.failed: set[int] = set()
        self.strikes: dict[int, Counter[FailureKind]] = {shard: Counter() for shard in self.size}
        self.launched: Counter[int] = Counter()
        self.attempts = 0
        self.stopped = False

    @rule(target=tasks, slots=st.integers(0, 20))
    def launch(self, slots: int) -> Launch:
        launch = self.scheduler.next_launch(self.now_s, slots)
        limit = self.policy.max_in_flight or max(16, 2 * slots)
        ready = [shard for shard, ready_s in self.waiting.items() if ready_s <= self.now_s]
        may = not self.stopped and not self._aborted() and len(self.running) < limit and bool(ready)
        assert (launch is not None) == may
        if launch is None:
            return Launch(TaskId(-1), (), 0)
        assert launch.shards
        assert len(set(launch.shards)) == len(launch.shards) <= LARGEST_BUNDLE
        assert set(launch.shards) <= set(ready)
        new = {self.launched[shard] == 0 for shard in launch.shards}
        assert len(new) == 1
        if new == {True}:
            assert launch.attempt == 1
        else:
            assert launch.attempt == max(2, *(1 + self.strikes[shard].total() for shard in launch.shards))
        assert launch.task not in self.running
        self.running[launch.task] = list(launch.shards)
        for shard in launch.shards:
            del self.waiting[shard]
            self.launched[shard] += 1
        return launch

    @rule(task=tasks, which=st.integers(0, 50), seconds=st.floats(0, 1000), computed=st.booleans())
    def shard_done(self, task: Launch, which: int, seconds: float, computed: bool) -> None:
        shard = self._pick(task, which)
        held = shard in self.running.get(task.task, ())
        size = self.size.get(shard, 0)
        assert self.scheduler.shard_done(task.task, shard, size, seconds, computed=computed) == held
        if held:
            self.running[task.task].remove(shard)
            self.attempts += 1
            self.done.add(shard)

    @rule(task=tasks, which=st.integers(0, 50), kind=KINDS)
    def shard_failed(self, task: Launch, which: int, kind: FailureKind) -> None:
        shard = self._pick(task, which)
        held = shard in self.running.get(task.task, ())
        given_up = self.scheduler.shard_failed(task.task, shard, kind, self.now_s)
        if not held:
            assert given_up is None
            return
        self.running[task.task].remove(shard)
        self.attempts += 1
        assert given_up == self._strike(shard, kind)

    @rule(task=tasks, kind=st.sampled_from([FailureKind.CRASHED, FailureKind.LOST]))
    def task_ended(self, task: Launch, kind: FailureKind) -> None:
        left = self.running.pop(task.task, [])
        struck = self.scheduler.task_ended(task.task, self.now_s, kind if left else None)
        self.attempts += len(left)
        blamed = left if kind is FailureKind.LOST else left[:1]
        assert struck == tuple((shard, self._strike(shard, kind)) for shard in blamed)
        for shard in left[len(blamed) :]:
            self.waiting[shard] = 0.0

    @rule(seconds=st.floats(0, 10))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @precondition(lambda self: not self.stopped)
    @rule(sure=st.sampled_from([False, False, False, True]))
    def stop(self, sure: bool) -> None:
        if sure:
            self.scheduler.stop()
            self.stopped = True

    @invariant()
    def agrees_with_the_model(self) -> None:
        scheduler = self.scheduler
        assert (scheduler.done, scheduler.failed) == (len(self.done), len(self.failed))
        assert scheduler.unfinished == len(self.size) - len(self.done) - len(self.failed)
        assert scheduler.attempts == self.attempts
        assert scheduler.running_tasks == len(self.running)
        assert scheduler.running_shards == sum(map(len, self.running.values()))
        places = [self.waiting, self.done, self.failed, *self.running.values()]
        assert sorted(shard for place in places for shard in place) == list(self.size)
        assert scheduler.state is self._state()
        due_s = scheduler.next_event_s()
        assert due_s is None or due_s in self.waiting.values()

    def teardown(self) -> None:
        """Left to itself, with nothing failing any more, it ends: everything is done that was not given up."""
        if self.stopped or self._aborted():
            return
        while self.scheduler.state is SchedulerState.ACTIVE:
            while self.launch(4).shards:
                pass
            for task, shards in list(self.running.items()):
                for shard in list(shards):
                    self.shard_done(Launch(task, (shard,), 1), 0, 1.0, computed=True)
                self.task_ended(Launch(task, (), 1), FailureKind.LOST)
            self.now_s += 1000.0
            self.agrees_with_the_model()
        assert self.scheduler.state is SchedulerState.FINISHED
        assert self.done | self.failed == set(self.size)

    def _pick(self, task: Launch, which: int) -> int:
        """Mostly a shard of the task, held or not; now and then some other one."""
        return task.shards[which % len(task.shards)] if task.shards and which < 45 else which

    def _strike(self, shard: int, kind: FailureKind) -> bool:
        count = self.strikes[shard]
        count[kind] += 1
        if count[kind] > self.policy.limit(kind):
            self.failed.add(shard)
            return True
        delay_s = 0.0 if kind is FailureKind.LOST else 2.0 ** (count[kind] - 1)
        self.waiting[shard] = self.now_s + delay_s
        return False

    def _aborted(self) -> bool:
        return self.policy.max_failed is not None and len(self.failed) > self.policy.max_failed

    def _state(self) -> SchedulerState:
        if self._aborted():
            return SchedulerState.ABORTED
        if self.running:
            return SchedulerState.STOPPING if self.stopped else SchedulerState.ACTIVE
        if self.stopped or not self.waiting:
            return SchedulerState.FINISHED
        return SchedulerState.ACTIVE


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
