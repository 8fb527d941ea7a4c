"""What a run shows while it goes on: a live line on a terminal, a log line every 30 s elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from curate.log import get_logger
from curate.tasks.pace import format_range
from curate.units import format_bytes

LOG_INTERVAL_S = 30.0


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

    def text(self) -> str:
        """Returns the progress as one line.

        >>> rate = {"shards_per_s": 1, "rows_per_s": 5.0, "bytes_per_s": 2048.0}
        >>> Progress("x", 4, 2, 1, 0, 10, rate, (2.0, 3.5)).text()
        '2/4 shards, 1 running, 0 failed, 5 rows/s, 2.00 KiB/s, ETA 2-4 s'
        """
        return f"{self.shards()}, {self.speed()}"

    def shards(self) -> str:
        """Returns how many shards are done."""
        return f"{self.done:,}/{self.total:,} shards"

    def speed(self) -> str:
        """Returns what goes on, how fast, and for how long."""
        return (
            f"{self.running:,} running, {self.failed:,} failed, {self.rate['rows_per_s']:,.0f} rows/s, "
            f"{format_bytes(self.rate['bytes_per_s'])}/s, ETA {format_range(self.eta_range_s)}"
        )


class Display(Protocol):
    """Shows progress somewhere."""

    interval_s: float
    """How often `show` wants to be called."""

    def show(self, progress: Progress) -> None:
        """Shows where the run is now."""
        ...

    def close(self, last: Progress) -> None:
        """Shows where the run ended, if it shows runs as they go, and leaves the terminal as it was."""
        ...


class NoDisplay:
    """Shows nothing: for calls from code."""

    interval_s = 3600.0

    def show(self, progress: Progress) -> None:
        """Does nothing."""

    def close(self, last: Progress) -> None:
        """Does nothing."""


class LogDisplay:
    """One log event every 30 s."""

    interval_s = LOG_INTERVAL_S

    def show(self, progress: Progress) -> None:
        """Logs the progress."""
        get_logger(job=progress.job).info("progress", shards=progress.text())

    def close(self, last: Progress) -> None:
        """Does nothing."""


class LiveDisplay:
    """Two lines on standard error that are redrawn in place: together they would not fit in 80 columns."""

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

    def show(self, progress: Progress) -> None:
        """Redraws the lines."""
        from rich.console import Group
        from rich.text import Text

        # Rounded down: 100 % is said of nothing that is not done.
        now = {"completed": progress.done, "percent": 100 * progress.done // max(progress.total, 1)}
        if self._task is None:
            self._task = self._bar.add_task(progress.job, total=progress.total, shards="", **now)
            self._live.start()
        self._bar.update(self._task, shards=progress.shards(), **now)
        self._live.update(Group(self._bar, Text(f"  {progress.speed()}", no_wrap=True, overflow="ellipsis")))

    def close(self, last: Progress) -> None:
        """Stops redrawing; the last lines stay."""
        if self._task is not None:
            self.show(last)
            self._live.stop()
