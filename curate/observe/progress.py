"""The progress display of a run: live lines on a terminal, a log line every 30 s elsewhere."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from curate.dataclass import dataclass, field
from curate.log import get_logger
from curate.observe.eta import format_range
from curate.observe.metrics import OperatorMetrics, PipelineMetrics, Role
from curate.units import ellipsize, escape_controls, format_bytes, format_count, format_duration, format_rate

LOG_INTERVAL_S = 30.0
NAME_COLUMNS = 26
"""Columns for the name of a job, or of an operator: what matters of it, and a bar, then fit into 80."""
RATE_SPAN_S = 10.0
"""Rows a second are those of the last so many seconds."""
MOST_PART = 0.999
"""Part of a run that is not done at most."""
QUIET_S = 0.5
"""What takes less is not shown: a look at ten rows is no reason to draw."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A run at one moment."""

    job: str
    total: int
    done: int
    running: int
    failed: int
    rows: int
    rate: dict[str, float]
    eta_range_s: tuple[float, float] | None
    """Seconds that the rest takes, at least and at most; None while unknown."""
    measured: PipelineMetrics | None = None
    """What its operators have done so far, in this run."""
    stage: str = ""
    """Which stage it is, of a job of several."""
    waits: str = ""
    """What the run waits for, and for how long; empty if it goes on as it should."""
    retrying: str = ""
    """Which shards are tried again, and for what; empty if none is."""
    bytes_done: int = 0
    """Input bytes that are done, of shards that go on as far as they are."""
    bytes_total: int = 0
    rows_running: int = 0
    """Rows read so far of shards that go on and take long."""

    def text(self) -> str:
        """Returns the progress as one line.

        >>> rate = {"shards_per_s": 1, "rows_per_s": 5.0, "bytes_per_s": 2048.0}
        >>> Progress("x", 4, 2, 1, 0, 10, rate, (2.0, 3.5)).text()
        '2/4 shards, 1 running, 0 failed, 5 rows/s, 2.00 KiB/s, ETA 2-4 s'
        """
        return f"{self.shards()}, {self.speed()}"

    @property
    def part(self) -> float:
        """Which part of the run is done, from 0 to 1: by bytes; by shards where inputs have none. 1 only at the end."""
        if self.done >= self.total:
            return 1.0
        part = self.bytes_done / self.bytes_total if self.bytes_total else self.done / self.total
        return min(part, MOST_PART)

    def shards(self) -> str:
        """Returns how many shards are done."""
        return f"{self.done:,}/{self.total:,} shards"

    def speed(self) -> str:
        """Returns what goes on, how fast, and for how long."""
        return (
            f"{self.running:,} running, {self.failed:,} failed, {format_rate(self.rate['rows_per_s'], 'row')}, "
            f"{format_bytes(self.rate['bytes_per_s'])}/s, ETA {format_range(self.eta_range_s)}"
        )


# Operators


@dataclass(slots=True)
class RowRates:
    """Rows a second of each operator, from looks at what they did. Holds a bounded number of looks."""

    _looks: deque[tuple[float, list[int]]] = field(default_factory=deque)

    def look(self, now_s: float, operators: tuple[OperatorMetrics, ...]) -> list[float]:
        """Returns the rates over the last seconds, of these operators."""
        rows = [rows_done(one) for one in operators]
        if self._looks and len(self._looks[0][1]) != len(rows):
            self._looks.clear()
        if not self._looks or now_s - self._looks[-1][0] >= 1.0:
            self._looks.append((now_s, rows))
        while len(self._looks) > 2 and now_s - self._looks[1][0] >= RATE_SPAN_S:
            self._looks.popleft()
        then_s, before = self._looks[0]
        return [(b - a) / (now_s - then_s) if now_s > then_s else 0.0 for a, b in zip(before, rows, strict=True)]


def rows_done(one: OperatorMetrics) -> int:
    """Returns the rows that an operator is done with: those that it gave, or wrote."""
    return one.meter.rows_in if one.role is Role.WRITE else one.meter.rows_out


def operator_lines(found: PipelineMetrics, rates: list[float]) -> Iterator[str]:
    """Yields a line for each operator, and one for what is on its way to the consumer.

    >>> from curate.observe.metrics import Flow, Meter, PoolState
    >>> model = OperatorMetrics("map(Model)", Role.STEP, Meter(rows_out=9000), PoolState("map(Model)", 2, 1, 3, 0.97))
    >>> flow = Flow(queued=2, queued_bytes=1 << 20, budget_bytes=512 << 20)
    >>> print(*operator_lines(PipelineMetrics((model,), running=4, flow=flow), [150.0]), sep="\\n")
    map(Model)                          9,000 rows       150/s  2 actors 97 % (1 starting), 3 calls queued
    4 tasks, 2 blocks queued, 1.00 MiB of 512 MiB
    """
    for one, rate in zip(found.operators, rates, strict=True):
        name = ellipsize(one.name, NAME_COLUMNS)
        line = f"{name:<{NAME_COLUMNS}} {rows_done(one):>14,} rows {rate:>9,.0f}/s"
        yield f"{line}  {_actors(one)}" if one.pool else line
    if found.flow is not None:
        flow = found.flow
        if not flow.budget_bytes:
            yield "starting"
            return
        yield (
            f"{format_count(found.running, 'task')}, {format_count(flow.queued, 'block')} queued, "
            f"{format_bytes(flow.queued_bytes)} of {format_bytes(flow.budget_bytes)}"
        )


def _actors(one: OperatorMetrics) -> str:
    assert one.pool is not None
    pool = one.pool
    starting = f" ({pool.starting:,} starting)" if pool.starting else ""
    queued = f", {format_count(pool.queued, 'call')} queued" if pool.queued else ""
    return f"{format_count(pool.ready, 'actor')} {100 * pool.busy:.0f} %{starting}{queued}"


class LiveOperators:
    """Lines on standard error about a stream, drawn again in place by a thread of their own, and gone at its end.

    There is one at a time: streams within a stream are not shown.
    """

    _one = threading.Lock()

    def __init__(self, measured: Callable[[], PipelineMetrics]) -> None:
        self._measured = measured
        self._rates = RowRates()
        self._started_s = 0.0
        self._live: Any = None

    def start(self) -> None:
        """Begins to draw, after a moment."""
        from rich.console import Console
        from rich.live import Live

        if not self._one.acquire(blocking=False):
            return
        console = Console(stderr=True)
        self._started_s = time.monotonic()
        live = Live(console=console, refresh_per_second=4, transient=True, get_renderable=self._render)
        try:
            live.start()
        except BaseException:
            self._one.release()
            raise
        self._live = live

    def stop(self) -> None:
        """Takes the lines away, and leaves the terminal as it was."""
        if self._live is not None:
            live, self._live = self._live, None
            try:
                live.stop()
            finally:
                self._one.release()

    def _render(self) -> Any:
        from rich.console import Group

        now_s = time.monotonic()
        if now_s - self._started_s < QUIET_S:
            return Group()
        found = self._measured()
        return Group(*map(_line, operator_lines(found, self._rates.look(now_s, found.operators))))


def _line(text: str) -> Any:
    from rich.text import Text

    return Text(escape_controls(text), no_wrap=True, overflow="ellipsis")


def _wrapped(text: str) -> Any:
    from rich.padding import Padding
    from rich.text import Text

    return Padding(Text(escape_controls(text)), (0, 0, 0, 2))


class Display:
    """Shows progress somewhere; this one shows nothing: for calls from code."""

    interval_s = 3600.0
    """How often `show` wants to be called."""

    def show(self, progress: Progress) -> None:
        """Shows where the run is now."""

    def close(self, last: Progress) -> None:
        """Shows where the run ended, if it shows runs as they go, and leaves the terminal as it was."""


class LogDisplay(Display):
    """One log event every 30 s."""

    interval_s = LOG_INTERVAL_S

    def show(self, progress: Progress) -> None:
        """Logs the progress."""
        stage = {"stage": progress.stage.removeprefix("stage ")} if progress.stage else {}
        waits = {"waits": progress.waits} if progress.waits else {}
        retrying = {"retrying": progress.retrying} if progress.retrying else {}
        rows = {"rows_of_running_shards": progress.rows_running} if progress.rows_running else {}
        get_logger(job=progress.job).info("progress", **stage, shards=progress.text(), **rows, **waits, **retrying)


class LiveDisplay(Display):
    """Two lines on standard error that are redrawn in place: together they would not fit in 80 columns.

    A run of more than one step, or with a pool, has a line for each operator below them; one of several stages a line
    that says which it is at, and one that stays for each that it is done with.
    """

    interval_s = 0.25

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, SpinnerColumn, TextColumn
        from rich.progress import Progress as Bar

        self._bar: Any = Bar(
            SpinnerColumn(),
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[percent]:>3}%"),
            TextColumn("{task.fields[shards]}"),
        )
        self._live: Any = Live(console=Console(stderr=True), refresh_per_second=4)
        self._task: Any = None
        self._rates = RowRates()
        self._stage = ""
        self._began_s = time.monotonic()
        self._last: Progress | None = None

    def show(self, progress: Progress) -> None:
        """Redraws the lines."""
        from rich.console import Group

        # Rounded down: 100 % is said of nothing that is not done.
        now = {"completed": progress.part, "percent": int(100 * progress.part)}
        if self._task is None:
            self._task = self._bar.add_task(ellipsize(progress.job, NAME_COLUMNS), total=1.0, shards="", **now)
            self._live.start()
        if progress.stage != self._stage:
            self._begin(progress)
        self._last = progress
        self._bar.update(self._task, shards=progress.shards(), **now)
        lines = [progress.stage] if progress.stage else []
        lines.append(progress.speed())
        if progress.rows_running:
            lines.append(f"{format_count(progress.rows_running, 'row')} so far of running shards")
        found = progress.measured
        operators: list[str] = []
        if found is not None and found.several:
            operators += operator_lines(found, self._rates.look(time.monotonic(), found.operators))
        # Why nothing moves is said whole: on which node, and for how long, stands at its end.
        why = [_wrapped(line) for line in (progress.waits, progress.retrying) if line]
        shown = [_line(f"  {line}") for line in lines], why, [_line(f"  {line}") for line in operators]
        self._live.update(Group(self._bar, *chain.from_iterable(shown)))

    def _begin(self, progress: Progress) -> None:
        """Leaves a line about the stage before, if there is one, and goes on with the next."""
        before, now_s = self._last, time.monotonic()
        if before is not None and before.stage:
            took = format_duration(now_s - self._began_s)
            self._live.console.print(_line(f"{before.job}  {before.stage}: {before.shards()} in {took}"))
        self._stage, self._began_s, self._rates = progress.stage, now_s, RowRates()

    def close(self, last: Progress) -> None:
        """Stops redrawing; the last lines stay. What is shown after that is drawn below them."""
        if self._task is not None:
            self.show(last)
            self._live.stop()
            self._bar.remove_task(self._task)
            self._task = None
