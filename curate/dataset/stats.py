"""Statistics of a dataset's last run: for each operator, and a sentence that names the bottleneck.

The code that makes the rows updates them during the run; `Dataset.stats` and the progress display read them, from any
thread.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from curate.clock import Clock, SystemClock
from curate.dataclass import dataclass, fields, replace
from curate.observe.metrics import Flow, OperatorMetrics, PipelineMetrics, Role, limit_of, operated
from curate.observe.progress import Display, LiveDisplay, LiveOperators, Progress
from curate.pipeline.meters import Meters, peak_memory
from curate.pipeline.pipeline import Pipeline
from curate.streaming.stream_metrics import StreamMetrics
from curate.units import ellipsize, format_bytes, format_took

SWITCH = "CURATE_PROGRESS"
"""The environment variable that, as 0, keeps terminals free of progress."""


def progress_wanted() -> bool:
    """Returns whether progress is to be shown: standard error is a terminal, and nobody said no."""
    return os.environ.get(SWITCH, "1") != "0" and sys.stderr is not None and sys.stderr.isatty()


def terminal_display() -> Display:
    """Returns what shows the progress of a write."""
    return LiveDisplay() if progress_wanted() else Display()


def with_progress(blocks: Any, run: RunStats) -> Iterator[pa.Table]:
    """Yields the blocks, and shows how they are made while they are, if there is a terminal."""
    live = LiveOperators(run.measured) if progress_wanted() else None
    try:
        if live is not None:
            live.start()
        yield from blocks
    finally:
        # In this order: what is shown last is how it ended.
        blocks.close()
        if live is not None:
            live.stop()


MAX_NAME = 40
"""Characters of an operator's name that a table has room for."""
NOTHING = "nothing has run yet: consume or write this dataset first, then call stats() on the same object"


CONSUMED = "to the consumer"
"""What the last part is called, which is consumed, where stages come before it."""


NOTHING_LEFT = "nothing has run: all outputs already existed"


@dataclass(slots=True)
class StreamPart:
    """Tasks that make blocks."""

    chains: Sequence[tuple[str, Pipeline]]
    """The name of what is read, and what follows it."""
    inline: bool
    gauges: StreamMetrics

    def measured(self) -> PipelineMetrics:
        """Returns what they have done so far."""
        chains = []
        for number, (source, pipeline) in enumerate(self.chains):
            operators = [(source, Role.READ, False), *((name, Role.STEP, pooled) for name, pooled in pipeline.metered)]
            chains.append((operators, self.gauges.meters(number, len(operators))))
        flow = self.gauges.flow()
        return PipelineMetrics(
            operated(chains, self.gauges.capacity),
            elapsed_s=flow.waited_s + flow.consumer_s,
            slot_s=self.gauges.capacity.slot_s,
            running=self.gauges.running,
            inline=self.inline,
            flow=flow,
        )


@dataclass(slots=True)
class LocalPart:
    """Operators in the consumer's process, behind a limit or a zip."""

    pipeline: Pipeline
    meters: Meters

    def operators(self) -> list[OperatorMetrics]:
        """Returns what they have done so far."""
        pairs = zip(self.pipeline.metered, self.meters.steps, strict=True)
        peak_bytes = peak_memory()
        return [
            OperatorMetrics(name, Role.STEP, replace(meter, peak_bytes=peak_bytes), behind=True)
            for (name, _), meter in pairs
        ]


class WritePart(Display):
    """A run that writes shards. It is that run's display, and passes on what it shows."""

    def __init__(self, shown: Display, stage: str = "") -> None:
        """`stage`: what it is called, if it is a stage of what runs; a run of several says itself which is at work."""
        self._stage = stage
        self.interval_s = min(1.0, shown.interval_s)
        self._shown = shown
        self._shows_every_s = shown.interval_s
        self._clock: Clock = SystemClock()
        self._shown_s = float("-inf")
        self._last: dict[str, PipelineMetrics] = {}

    def show(self, progress: Progress) -> None:
        """Keeps what was measured."""
        self._keep(progress)
        now_s = self._clock.monotonic()
        if now_s - self._shown_s >= self._shows_every_s:
            self._shown_s = now_s
            self._shown.show(progress)

    def close(self, last: Progress) -> None:
        """Keeps what was measured in the end."""
        self._keep(last)
        self._shown.close(last)

    def _keep(self, progress: Progress) -> None:
        if (found := progress.measured) is not None:
            stage = progress.stage.partition(": ")[2] or self._stage
            named = tuple(replace(one, stage=stage) for one in found.operators)
            self._last[stage] = replace(found, operators=named)

    def measured(self) -> PipelineMetrics:
        """Returns what was done when the run last said so, in all stages."""
        return _all_of(list(self._last.values()))


class RunStats:
    """One consumption, or one write, of a dataset."""

    def __init__(self) -> None:
        self._parts: list[StreamPart | WritePart] = []
        self._behind: list[LocalPart] = []
        self._start_s = 0.0
        self.vacant: Any = None
        """The schema of tables without rows that tasks gave, where no block has rows to tell it by."""
        self.fusions: Sequence[Any] = ()
        """What the tasks did that ran last."""

    def started(self, seconds: float) -> None:
        """Adds the time that it took to start what runs tasks."""
        self._start_s += seconds

    def stream(self, chains: Sequence[tuple[str, Pipeline]], *, inline: bool) -> StreamMetrics:
        """Adds tasks that make blocks; returns what says how they are doing."""
        part = StreamPart(chains, inline, StreamMetrics())
        self._parts.append(part)
        return part.gauges

    def local(self, pipeline: Pipeline) -> Meters:
        """Adds operators in this process, behind those that are added later; returns their meters."""
        meters = Meters([False for _ in pipeline.steps])
        self._behind.insert(0, LocalPart(pipeline, meters))
        return meters

    def write(self, shown: Display, stage: str = "") -> Display:
        """Adds a run that writes, or a `stage` that comes before what is consumed; returns its display."""
        part = WritePart(shown, stage)
        self._parts.append(part)
        return part

    def measured(self) -> PipelineMetrics:
        """Returns what all of it has done so far."""
        found = _all_of([part.measured() for part in list(self._parts)])
        behind = [one for part in list(self._behind) for one in part.operators()]
        return replace(found, operators=(*found.operators, *behind), start_s=found.start_s + self._start_s)


class LastRun:
    """What last ran of a dataset. It belongs to this process: what is made of a pickle has run nothing."""

    def __init__(self, last: RunStats | None = None) -> None:
        self.last = last
        self._start_s = 0.0
        """Seconds that it took to start what runs tasks, for the run that begins next."""

    def started(self, seconds: float) -> None:
        """Adds such seconds."""
        self._start_s += seconds

    def begin(self) -> RunStats:
        """Returns what is to be filled by a run that begins now."""
        self.last = RunStats()
        self.last.started(self._start_s)
        self._start_s = 0.0
        return self.last

    def told(self) -> str:
        """Returns how the last run went, or goes."""
        return stats(self.last.measured()) if self.last is not None else NOTHING

    def __reduce__(self) -> tuple[Any, ...]:
        return LastRun, ()


def _all_of(parts: Sequence[PipelineMetrics]) -> PipelineMetrics:
    """Returns what was measured of all parts of what ran, one after the other."""
    flows = [part.flow for part in parts if part.flow is not None]
    return PipelineMetrics(
        tuple(one for part in parts for one in part.operators),
        elapsed_s=sum(part.elapsed_s for part in parts),
        slot_s=sum(part.slot_s for part in parts),
        running=sum(part.running for part in parts),
        inline=all(part.inline for part in parts),
        flow=_together(flows) if flows else None,
        start_s=sum(part.start_s for part in parts),
    )


def _together(flows: Sequence[Flow]) -> Flow:
    """Returns the sum of flows; of the largest block, and of the budget, the largest."""
    values = {one.name: sum(getattr(flow, one.name) for flow in flows) for one in fields(Flow)}
    values["largest_bytes"] = max(flow.largest_bytes for flow in flows)
    values["budget_bytes"] = max(flow.budget_bytes for flow in flows)
    return Flow(**values)


# In words


def stats(found: PipelineMetrics) -> str:
    """Returns what was measured as two tables, rows and bytes beside times and memory, and what limits."""
    if not found.operators:
        return NOTHING_LEFT
    there = [one for one in found.operators if one.meter.tables or one.meter.batches or one.meter.wall_s]
    lines = list(_table([_SIZES, *_by_stage(there, _sizes)]))
    lines += ["", *_table([_TIMES, *_by_stage(there, _times)]), ""]
    if found.flow is not None:
        lines.append(_flow(found.flow))
    started = f", after {format_took(found.start_s)} to start Ray" if found.start_s else ""
    lines.append(f"took {format_took(found.elapsed_s)}{started}; {limit_of(found)}")
    return "\n".join(lines)


_SIZES = ("operator", "rows in", "rows out", "bytes in", "bytes out", "a block", "largest")
_TIMES = ("operator", "wall", "CPU", "waiting", "actors", "busy", "memory")


def _by_stage(
    there: Sequence[OperatorMetrics], row: Callable[[OperatorMetrics], tuple[str, ...]]
) -> Iterator[tuple[str, ...]]:
    """Yields a row for each operator; where there are several stages, below the name of its own."""
    staged = any(one.stage for one in there)
    stage = None
    for one in there:
        name, *cells = row(one)
        if staged and one.stage != stage:
            stage = one.stage
            yield (ellipsize(stage, MAX_NAME) or CONSUMED, *("" for _ in cells))
        yield (f"  {name}" if staged else name, *cells)


def _sizes(one: OperatorMetrics) -> tuple[str, ...]:
    meter = one.meter
    reads, writes = one.role is Role.READ, one.role is Role.WRITE
    return (
        ellipsize(one.name, MAX_NAME),
        "" if reads else f"{meter.rows_in:,}",
        "" if writes else f"{meter.rows_out:,}",
        "" if reads else format_bytes(meter.bytes_in),
        format_bytes(meter.bytes_out),
        format_bytes(meter.bytes_out / meter.tables) if meter.tables else "",
        format_bytes(meter.largest_bytes) if meter.tables else "",
    )


def _times(one: OperatorMetrics) -> tuple[str, ...]:
    meter = one.meter
    return (
        ellipsize(one.name, MAX_NAME),
        format_took(meter.wall_s),
        format_took(meter.cpu_s),
        format_took(meter.wait_s) if one.pool else "",
        f"{one.actors:,}" if one.pool else "",
        f"{100 * one.busy:.0f} %" if one.actor_s else "",
        format_bytes(meter.peak_bytes) if meter.peak_bytes else "",
    )


def _flow(flow: Flow) -> str:
    says = f"{flow.blocks:,} {'block' if flow.blocks == 1 else 'blocks'}"
    if flow.blocks:
        says += f" of {format_bytes(flow.bytes / flow.blocks)}, the largest {format_bytes(flow.largest_bytes)}"
    return (
        f"{says}; consumer idle {format_took(flow.waited_s)}, producer idle {format_took(flow.consumer_s)}, "
        f"blocked on memory {format_took(flow.blocked_s)}"
    )


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yields rows as lines, the first column to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *cells in rows:
        padded = (f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        yield "  ".join([f"{name:<{widths[0]}}", *padded]).rstrip()
