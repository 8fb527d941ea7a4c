"""The report of a simulation: its figures, the comparison with targets, and a picture."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from curate.tasks.scheduler import Scheduler
from curate.units import KIB, format_bytes, format_duration

from .cluster import WASTE, Simulation, Timeline
from .scenario import Scenario

TARGET_MAKESPAN = 1.1
TARGET_WASTE = 0.03
TARGET_CPU_US = 200.0
TARGET_MEMORY = KIB
TARGET_TOTAL_S = 300.0


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of a simulation."""

    scenario: dict[str, Any]
    digest: str
    makespan_s: float
    ideal_s: float
    longest_s: float
    outputs: int
    given_up: int
    tasks: int
    """Launched."""
    copies: int
    parts: int
    shard_attempts: int
    retries: dict[str, int]
    found: int
    second: int
    zombie_outputs: int
    preempted_nodes: int
    heads: int
    spent_s: dict[str, float]
    idle_share: float
    waste_share: float
    steps: int
    cpu_us: float
    """Of the scheduler, a shard that was done."""
    footprint_bytes: int
    rss_bytes: int
    """By how much the process grew, simulator and all."""
    wall_s: float
    core_s: float
    """CPU of the whole process meanwhile."""

    @property
    def ratio(self) -> float:
        """Makespan to the ideal."""
        return self.makespan_s / self.ideal_s


def simulate(
    scenario: Scenario, make: Callable[..., Scheduler] = Scheduler, trace: Callable[[bytes], Any] | None = None
) -> tuple[Report, Timeline]:
    """Returns the figures and the samples of one simulation. Raises Broken if a rule does not hold."""
    started_s, started_core_s = time.perf_counter(), time.process_time()
    simulation = Simulation(scenario, make, trace)
    rss = _memory("VmRSS")
    simulation.run()
    spent = simulation.spent
    auditor = simulation.auditor
    done = np.frombuffer(simulation.published, dtype=np.bool_)
    work_s = float(np.asarray(simulation.work_s)[done].sum())
    longest_s = max(simulation.work_s)
    report = Report(
        scenario=asdict(scenario),
        digest=simulation.digest.hexdigest(),
        makespan_s=simulation.now_s,
        # Of those that are done: what was given up took no time to its end.
        ideal_s=ideal_s(
            simulation.steps_of_capacity, work_s, float(np.asarray(simulation.work_s)[done].max(initial=0.0))
        ),
        longest_s=longest_s,
        outputs=simulation.outputs,
        given_up=simulation.scenario.tasks - simulation.outputs,
        tasks=auditor.launches,
        copies=auditor.copies,
        parts=auditor.parts,
        shard_attempts=simulation.shard_attempts,
        retries={str(kind): count for kind, count in sorted(auditor.retries.items())},
        found=simulation.found,
        second=simulation.second,
        zombie_outputs=len(simulation.by_zombies),
        preempted_nodes=simulation.preempted,
        heads=simulation.heads,
        spent_s=dict(spent),
        idle_share=1 - simulation.running_s / simulation.capacity_s,
        waste_share=sum(spent[name] for name in WASTE) / simulation.running_s,
        steps=auditor.steps,
        cpu_us=simulation.handling_s / max(1, simulation.outputs) * 1e6,
        footprint_bytes=simulation.footprint,
        rss_bytes=_memory("VmHWM") - rss,
        wall_s=time.perf_counter() - started_s,
        core_s=time.process_time() - started_core_s,
    )
    return report, simulation.timeline


def ideal_s(steps: Sequence[tuple[float, int]], work_s: float, longest_s: float) -> float:
    """Returns the least makespan of `work_s` slot-seconds on slots whose number changes as `steps` say, from 0 on.

    >>> ideal_s([(10.0, 4), (20.0, 2)], work_s=50.0, longest_s=3.0)
    25.0
    """
    left_s = work_s
    for (at_s, slots), (until_s, _) in itertools.pairwise([*steps, (math.inf, 0)]):
        if slots and left_s <= slots * (until_s - at_s):
            return max(longest_s, at_s + left_s / slots)
        if slots:
            left_s -= slots * (until_s - at_s)
    raise ValueError(f"{left_s} of {work_s} slot-seconds are left when the last slot is gone: {steps[-3:]}")


def _memory(name: str) -> int:
    """Returns the bytes that this process holds (`VmRSS`), or held at most (`VmHWM`)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * KIB for line in lines if line.startswith(name))


def show(report: Report) -> Iterator[str]:
    """Yields the figures in lines for people."""
    spent_s = sum(report.spent_s.values())
    per_task = report.footprint_bytes / max(1, report.outputs)
    rss_per_task = report.rss_bytes / max(1, report.outputs)
    yield f"trace              {report.digest}"
    yield (
        f"makespan           {format_duration(report.makespan_s)}, {report.ratio:.3f} x the ideal of "
        f"{format_duration(report.ideal_s)} (longest task {format_duration(report.longest_s)})"
    )
    yield f"outputs            {report.outputs:,}, given up {report.given_up:,}; {report.heads} drivers in turn"
    yield (
        f"tasks              {report.tasks:,}, of which {report.copies:,} copies of stragglers, "
        f"{report.parts:,} parts of others; "
        f"{report.shard_attempts:,} attempts at shards"
    )
    retries = ", ".join(f"{count:,} {kind}" for kind, count in report.retries.items()) or "none"
    yield f"retries            {retries} ({report.preempted_nodes:,} nodes preempted)"
    yield (
        f"races              {report.zombie_outputs:,} outputs published by zombies, {report.found:,} found there, "
        f"{report.second:,} computed twice"
    )
    yield f"wasted             {report.waste_share:.2%} of the slot-seconds spent:"
    for name, text in WASTE.items():
        yield f"    {report.spent_s[name] / spent_s:>7.3%}  {text}"
    yield f"slow               {report.spent_s['slow'] / spent_s:.2%} beyond the work: stragglers, held-up publishes"
    yield f"idle               {report.idle_share:.2%} of the capacity"
    yield f"scheduler CPU      {report.cpu_us:.1f} us a completion, {report.steps:,} steps"
    yield (
        f"memory             the process grew {format_bytes(report.rss_bytes)}, {rss_per_task:.0f} B a finished task, "
        f"the scheduler held {format_bytes(report.footprint_bytes)} of it, {per_task:.0f} B (sampled)"
    )
    yield f"in all             {report.wall_s:.1f} s of this machine, {report.core_s:.1f} s of one core"


def targets(report: Report) -> list[tuple[str, str, str, bool]]:
    """Returns what was to be held: what, figure, target, and whether it holds."""
    per_task = report.rss_bytes / max(1, report.outputs)
    return [
        ("makespan, to the ideal", f"{report.ratio:.3f} x", "<= 1.1 x", report.ratio <= TARGET_MAKESPAN),
        ("wasted work", f"{report.waste_share:.2%}", "<= 3 %", report.waste_share <= TARGET_WASTE),
        ("scheduler CPU a completion", f"{report.cpu_us:.1f} us", "<= 200 us", report.cpu_us <= TARGET_CPU_US),
        ("memory a finished task", f"{per_task:.0f} B", "<= 1 KiB", per_task <= TARGET_MEMORY),
        ("in all, of one core", f"{report.core_s:.0f} s", "<= 300 s", report.core_s <= TARGET_TOTAL_S),
    ]


def draw(report: Report, line: Timeline, path: Path) -> None:
    """Writes a picture of the run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    at = np.asarray(line.at_s)
    unit_s, unit = (3600.0, "hours") if report.makespan_s > 2 * 3600 else (60.0, "minutes")
    x = at / unit_s
    figure, (slots, rate, waste) = plt.subplots(3, 1, sharex=True, figsize=(12, 10), height_ratios=(3, 2, 2))
    slots.fill_between(x, line.capacity, color="#d9d9d9", step="post", label="slots up")
    slots.plot(x, line.running, color="#1f77b4", lw=1.2, label="tasks running")
    slots.plot(x, line.in_flight, color="#7f7f7f", lw=0.8, ls=":", label="tasks in flight")
    slots.set_ylabel("tasks")
    # Averaged over minutes: single ticks are noise.
    width = max(1, len(at) // 200)
    done = np.asarray(line.published, dtype=np.float64)
    per_minute = np.diff(done[::width]) / np.maximum(np.diff(at[::width]), 1e-9) * 60
    rate.plot(x[::width][1:], per_minute, color="#2ca02c", lw=1.2, label="outputs a minute")
    rate.set_ylabel("outputs a minute")
    share = rate.twinx()
    share.plot(x, done / max(1.0, done.max()) * 100, color="#9467bd", lw=1.0, label="done")
    share.set_ylabel("% done")
    share.set_ylim(0, 105)
    wasted = [np.asarray(seconds) / 3600 for seconds in line.wasted_s.values()]
    waste.stackplot(x, wasted, labels=[f"{name}: {text}" for name, text in WASTE.items()], alpha=0.85)
    waste.set_ylabel("slot-hours wasted so far")
    waste.set_xlabel(f"virtual {unit}")
    for axis in (slots, rate, waste):
        axis.set_ylim(bottom=0)
        axis.margins(x=0.01)
        seen = set()
        for what, start_s, end_s in line.bad_times:
            color = "#ff7f0e" if what == "storm" else "#d62728"
            label = what if axis is slots and what not in seen else None
            seen.add(what)
            axis.axvspan(start_s / unit_s, end_s / unit_s, color=color, alpha=0.25, lw=0, label=label)
        axis.axvline(
            report.ideal_s / unit_s, color="black", lw=1, ls="--", label="ideal end" if axis is slots else None
        )
    slots.legend(loc="lower center", ncols=3)
    handles, labels = (
        a + b for a, b in zip(rate.get_legend_handles_labels(), share.get_legend_handles_labels(), strict=True)
    )
    rate.legend(handles, labels, loc="lower center", ncols=2)
    waste.legend(loc="upper left")
    slots.set_title(
        f"{report.scenario['tasks']:,} shards on {report.scenario['slots']:,} slots, seed {report.scenario['seed']}: "
        f"{report.ratio:.3f} x the ideal makespan, {report.waste_share:.2%} wasted, "
        f"{report.cpu_us:.0f} us scheduler CPU a completion"
    )
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)
