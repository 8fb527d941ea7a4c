"""scripts/simulate: the same options give the same trace, all disturbances are survived, no rule is broken unseen."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from curate.tasks.events import (
    Action,
    Cancel,
    Event,
    Finish,
    Launch,
    Outcome,
    Record,
    SchedulerState,
    SlotsChanged,
    TaskEnded,
    TaskId,
)
from curate.tasks.policy import Policy
from curate.tasks.scheduler import Scheduler
from scripts.simulation.auditor import Broken
from scripts.simulation.cluster import WASTE, footprint
from scripts.simulation.report import Report, ideal_s, simulate
from scripts.simulation.scenario import Scenario
from tests.support.examples import examples

SCRIPT = Path(__file__).parents[2] / "scripts" / "simulate"

CALM = Scenario(
    tasks=600,
    slots=40,
    slots_per_node=4,
    mean_seconds=60,
    longest_seconds=600,
    ramp=60,
    preempt_per_hour=0,
    dips=0,
    zombies=0,
    straggler_rate=0,
    slow_nodes=0,
    storms=0,
    head_deaths=0,
    faults=0,
    poison=0,
    hogs=0,
)
"""Nothing happens but the work."""
BUNDLED = {"mean_seconds": 2.0, "longest_seconds": 60.0, "target_task_seconds": 30.0, "tasks": 6000}
"""Ten shards a task, more or less."""
ROUGH: dict[str, Any] = {
    "preempt_per_hour": 0.9,
    "rejoin": 60.0,
    "dips": 2,
    "dip_share": 0.5,
    "zombies": 0.7,
    "straggler_rate": 0.05,
    "slow_nodes": 0.1,
    "storms": 2,
    "storm_seconds": 120.0,
    "storm_failing": 0.2,
    "head_deaths": 2,
    "head_downtime": 1.0,
    "faults": 0.05,
    "poison": 9,
    "hogs": 20,
    "hangs": 0.01,
    "task_timeout": 900.0,
    "announced": 0.5,
}
"""All at once, and far more often than in life. Another head is up before the tasks of the last one have died."""


def run(scenario: Scenario, **options: Any) -> Report:
    """The figures of a simulation in which every rule held."""
    return simulate(replace(scenario, **options))[0]


# Determinism


@pytest.mark.slow
def test_the_same_options_give_the_same_trace_in_any_process(tmp_path: Path) -> None:
    """Nothing depends on the order of a set of strings, on the clock or on addresses. The digest is the trace's."""
    digests = []
    for salt in ("1", "2"):
        trace = tmp_path / salt
        arguments = [sys.executable, str(SCRIPT), "--tasks", "500", "--slots", "50", "--trace", str(trace), "--json"]
        done = subprocess.run(
            arguments, env=os.environ | {"PYTHONHASHSEED": salt}, capture_output=True, text=True, check=True
        )
        digests.append(json.loads(done.stdout)["digest"])
        assert digests[-1] == hashlib.sha256(trace.read_bytes()).hexdigest()
    assert digests[0] == digests[1]


def test_another_seed_gives_another_trace() -> None:
    assert run(CALM, seed=1).digest == run(CALM, seed=1).digest != run(CALM, seed=2).digest


# What happens


def test_a_calm_run_wastes_nothing() -> None:
    """Every shard is tried once, and the largest first fill the slots to nearly the ideal."""
    report = run(CALM)
    assert (report.outputs, report.shard_attempts, report.heads) == (600, 600, 1)
    assert report.retries == {}
    assert sum(report.spent_s[name] for name in WASTE) == pytest.approx(0)
    assert report.ratio < 1.05


@pytest.mark.ci(6)
@pytest.mark.slow
@pytest.mark.quick(5)
@pytest.mark.parametrize(
    ("options", "happened"),
    [
        ({"preempt_per_hour": 0.9}, lambda report: report.retries["lost"] and report.preempted_nodes),
        (
            {"dips": 3, "dip_share": 1.0, "rejoin": 60.0},
            lambda report: report.retries["lost"] and report.preempted_nodes >= 20,
        ),
        ({"preempt_per_hour": 0.9, "zombies": 1.0}, lambda report: report.zombie_outputs and report.found),
        ({"straggler_rate": 0.05}, lambda report: report.spent_s["slow"] and report.copies),
        ({"slow_nodes": 0.2}, lambda report: report.spent_s["slow"] and report.copies),
        ({"storms": 3}, lambda report: report.retries["throttled"] and report.spent_s["slow"]),
        ({"head_deaths": 3, "head_downtime": 20.0}, lambda report: report.heads == 4 and report.spent_s["head"]),
        (
            {"head_deaths": 9, "head_downtime": 0.2, "mean_seconds": 5.0, "tasks": 4000},
            lambda report: report.zombie_outputs and report.second,
        ),
        ({"faults": 0.1}, lambda report: {"crashed", "retry_later", "storage", "user_error"} <= set(report.retries)),
        ({"poison": 6}, lambda report: (report.given_up, report.outputs) == (6, 594)),
        ({"hogs": 30}, lambda report: report.retries["out_of_memory"] == 45),
        ({"hangs": 0.02}, lambda report: report.copies >= 5 and report.second == 0),
        ({"hangs": 0.02, "task_timeout": 900.0}, lambda report: report.retries["timed_out"]),
    ],
)
def test_each_disturbance_alone_is_survived(options: dict[str, Any], happened: Callable[[Report], Any]) -> None:
    """It did happen, no rule was broken, and every shard that can be done has its output."""
    report = run(CALM, **options)
    assert report.outputs + report.given_up == report.scenario["tasks"]
    assert happened(report)


@pytest.mark.ci(3)
@pytest.mark.slow
@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("bundles", [{}, BUNDLED], ids=["single", "bundled"])
def test_all_disturbances_together_are_survived(seed: int, bundles: dict[str, Any]) -> None:
    report = run(CALM, seed=seed, **(ROUGH | bundles))
    assert report.outputs + report.given_up == report.scenario["tasks"]
    assert report.given_up < 100
    assert report.heads == 3


class Heard(Scheduler):
    """A scheduler that notes how many shards a task may have died of."""

    suspects: ClassVar[Counter[int]] = Counter()

    def handle(self, event: Event, now_s: float) -> list[Action]:
        if isinstance(event, TaskEnded):
            self.suspects[event.suspects] += 1
        return super().handle(event, now_s)


@pytest.mark.slow
def test_tasks_die_of_one_of_several_shards_too() -> None:
    """As they do where outputs are published beside one another: which shard it was, the next try says."""
    Heard.suspects.clear()
    scenario = replace(CALM, **BUNDLED, faults=0.05)
    report, _ = simulate(scenario, Heard)
    assert report.outputs + report.given_up == scenario.tasks
    assert Heard.suspects[1] > 10
    assert sum(count for number, count in Heard.suspects.items() if number > 1) > 10


def test_a_shard_that_is_given_up_is_no_part_of_the_ideal() -> None:
    """Nothing is faster than the ideal, whatever became of the longest shard."""
    for seed in range(5):
        report = run(CALM, seed=seed, tasks=3, slots=1, slots_per_node=1, poison=2)
        assert report.given_up == 2
        assert report.ratio >= 1


SHARES = st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0])
RATES = st.sampled_from([0.0, 0.01, 0.1, 0.5])
COUNTS = st.sampled_from([0, 1, 4])


@settings(max_examples=examples(25), deadline=None)
@given(
    tasks=st.integers(1, 300),
    slots=st.integers(1, 30),
    slots_per_node=st.integers(1, 8),
    seed=st.integers(0, 1000),
    duration=st.sampled_from(["lognormal", "pareto", "uniform", "constant"]),
    mean_seconds=st.sampled_from([0.5, 5.0, 50.0]),
    target_task_seconds=st.sampled_from([1.0, 20.0, 200.0]),
    task_timeout=st.sampled_from([0.0, 60.0, 1200.0]),
    ramp=st.sampled_from([0.0, 100.0]),
    preempt_per_hour=RATES,
    rejoin=st.sampled_from([5.0, 300.0]),
    dips=COUNTS,
    dip_share=SHARES,
    zombies=SHARES,
    straggler_rate=RATES,
    slow_nodes=RATES,
    storms=COUNTS,
    storm_failing=st.sampled_from([0.0, 0.1, 0.5]),
    head_deaths=COUNTS,
    head_downtime=st.sampled_from([0.1, 5.0, 100.0]),
    faults=st.sampled_from([0.0, 0.01, 0.3]),
    hangs=st.sampled_from([0.0, 0.01, 0.1]),
    poison=COUNTS,
    hogs=COUNTS,
    announced=SHARES,
)
def test_no_mixture_of_disturbances_breaks_a_rule(**options: Any) -> None:
    """Whatever comes together, every shard ends once, and the simulation ends.

    A single slot that hangs for ever ends nothing, so that hangs need a time limit or an idle slot.
    """
    assume(not options["hangs"] or options["task_timeout"])
    report = run(CALM, **options)
    assert report.outputs + report.given_up == options["tasks"]


def test_a_disturbance_leaves_the_draws_of_the_others_alone() -> None:
    """The shards are the same whatever happens to them, so that two runs can be compared."""
    calm, rough = run(CALM), run(CALM, **ROUGH)
    assert calm.longest_s == rough.longest_s


# A simulator that cannot fail proves nothing


class Wrong(Scheduler):
    """A scheduler of whose answers one in a few is spoilt."""

    seen = 0

    def handle(self, event: Event, now_s: float) -> list[Action]:
        self.seen += 1
        actions = super().handle(event, now_s)
        return self.spoil(actions) if self.seen > 300 else actions

    def spoil(self, actions: list[Action]) -> list[Action]:
        raise NotImplementedError


class ForgetsALaunch(Wrong):
    def spoil(self, actions: list[Action]) -> list[Action]:
        return [one for one in actions if not isinstance(one, Launch)]


class LaunchesTwice(Wrong):
    def spoil(self, actions: list[Action]) -> list[Action]:
        return actions + [replace(one, task=TaskId(10**6)) for one in actions if isinstance(one, Launch)]


class LaunchesWhatIsDone(Wrong):
    def spoil(self, actions: list[Action]) -> list[Action]:
        done = [one.shard for one in actions if isinstance(one, Record) and one.outcome is Outcome.DONE]
        return actions + [Launch(TaskId(10**6), (shard,), 2) for shard in done]


class UsesATaskAgain(Wrong):
    def spoil(self, actions: list[Action]) -> list[Action]:
        return [replace(one, task=TaskId(0)) if isinstance(one, Launch) else one for one in actions]


class BooksTwice(Wrong):
    def spoil(self, actions: list[Action]) -> list[Action]:
        return actions + [one for one in actions if isinstance(one, Record)]


class BooksNothing(Wrong):
    def spoil(self, actions: list[Action]) -> list[Action]:
        return [one for one in actions if not isinstance(one, Record)]


class FinishesEarly(Wrong):
    def spoil(self, actions: list[Action]) -> list[Action]:
        return [*actions, Finish(SchedulerState.FINISHED)]


class CancelsAStranger(Wrong):
    def spoil(self, actions: list[Action]) -> list[Action]:
        return [*actions, Cancel(TaskId(10**6))]


class IgnoresMemory(Wrong):
    def spoil(self, actions: list[Action]) -> list[Action]:
        return [replace(one, memory=None) if isinstance(one, Launch) else one for one in actions]


class NeverLast(Wrong):
    def spoil(self, actions: list[Action]) -> list[Action]:
        return [replace(one, last=False) if isinstance(one, Launch) else one for one in actions]


class CountsWrong(Wrong):
    def spoil(self, actions: list[Action]) -> list[Action]:
        self.done += 1
        return actions


class ForgetsToQueueAgain(Scheduler):
    """Loses what was lost with a node."""

    def _lost(self, *arguments: Any) -> None:
        super()._lost(*arguments)
        self._ready.clear()


class LaunchesTooMuch(Scheduler):
    def handle(self, event: Event, now_s: float) -> list[Action]:
        if isinstance(event, SlotsChanged):
            event = replace(event, slots=event.slots + 1)
        return super().handle(event, now_s)


class OverlooksAShard(Scheduler):
    def __init__(self, todo: Sequence[int], sizes: Sequence[int], policy: Policy) -> None:
        super().__init__(todo[1:], sizes[1:], policy)


def with_policy(**changes: Any) -> Callable[..., Scheduler]:
    """A scheduler that follows other rules than it should."""

    def make(todo: Sequence[int], sizes: Sequence[int], policy: Policy) -> Scheduler:
        return Scheduler(todo, sizes, replace(policy, **changes))

    return make


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (ForgetsALaunch, "tasks in flight, there are"),
        (LaunchesTwice, "1 tasks in flight have shard|the window holds"),
        (LaunchesWhatIsDone, "has ended|the window holds"),
        (UsesATaskAgain, "the task's number is not new"),
        (BooksTwice, "has no cause"),
        (BooksNothing, "was not booked"),
        (FinishesEarly, "Finish.* with .* tasks in flight"),
        (CancelsAStranger, "cancels task 1000000, which is not in flight"),
        (IgnoresMemory, "needs .* bytes"),
        (NeverLast, "wrong about whether a user error"),
        (CountsWrong, "counts .* done"),
        (ForgetsToQueueAgain, "shards are lost"),
        (LaunchesTooMuch, "the window holds"),
        (OverlooksAShard, "shards are lost|of 600 shards"),
        (with_policy(user_error_retries=1), "expected retry of user_error|wrong about"),
        (with_policy(user_error_retries=9), "expected failed of user_error|wrong about"),
        (with_policy(crash_limit=2), "expected retry of crashed"),
        (with_policy(crash_limit=9), "expected failed of crashed"),
        (with_policy(throttle_limit=0), "expected retry of throttled"),
        (with_policy(loss_limit=0), "expected retry of lost"),
        (with_policy(memory_limit=1), "expected retry of out_of_memory"),
        (with_policy(timeout_limit=1), "expected retry of timed_out"),
        (with_policy(retry_later_limit=0), "expected retry of retry_later"),
        (with_policy(backoff_s=0.0), "has to wait until"),
        (with_policy(max_in_flight=200), "the window holds"),
    ],
)
def test_a_scheduler_that_breaks_a_rule_is_caught(make: Callable[..., Scheduler], complaint: str) -> None:
    """Each of the rules is looked at: what does not follow it ends the simulation, with the place in the trace."""
    with pytest.raises(Broken, match=rf"(?s)({complaint}).*\nat [0-9.]+ s, step [0-9,]+, seed 5$"):
        simulate(replace(CALM, **ROUGH), make)


# Figures


@given(
    steps=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), max_size=6),
    last=st.integers(1, 4),
    work_s=st.integers(1, 60),
    longest_s=st.integers(1, 40),
)
def test_the_ideal_makespan_against_counting_seconds(
    steps: list[tuple[int, int]], last: int, work_s: int, longest_s: int
) -> None:
    """The capacity is integrated until it holds the work; no run is shorter than its longest task."""
    at_s, changes, slots_at = 0, [], {}
    for after_s, slots in [*steps, (1, last)]:
        at_s += after_s
        changes.append((float(at_s), slots))
        slots_at[at_s] = slots
    left_s, now_s, slots = float(work_s), 0, 0
    while True:
        slots = slots_at.get(now_s, slots)
        if left_s <= slots:
            break
        left_s -= slots
        now_s += 1
    assert ideal_s(changes, work_s, longest_s) == pytest.approx(max(longest_s, now_s + left_s / slots))


def test_the_footprint_counts_what_is_reached_once() -> None:
    """Arrays with their data, shared objects once, no code: else one class would count the whole of Python."""
    data = bytes(10_000)
    assert 10_000 < footprint([data, {1: data}, len, Scheduler, json]) < 11_000


# The command


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_command_prints_figures_and_draws(tmp_path: Path) -> None:
    picture = tmp_path / "timeline.png"
    done = command("--tasks", "300", "--slots", "20", "--straggler-rate", "5%", "--png", str(picture))
    assert done.returncode == 0, done.stderr
    for word in ("makespan", "wasted", "scheduler CPU", "memory"):
        assert word in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_share_above_one_is_refused() -> None:
    done = command("--zombies", "150%")
    assert done.returncode == 2
    assert "'150%' is not a share; write one from 0% to 100%" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tasks", "slots"), [("20000", "200"), pytest.param("1000000", "10000", marks=pytest.mark.nightly)]
)
def test_a_million_tasks_hold_the_targets(tasks: str, slots: str) -> None:
    """1,000,000 tasks on 10,000 slots, 5 % preempted an hour, and all the rest: the figures that scripts/README.md
    quotes. A fiftieth of it ends as well."""
    done = command("--tasks", tasks, "--slots", slots, "--seed", "5", "--preempt-per-hour", "5%")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "MISSED" not in done.stdout
