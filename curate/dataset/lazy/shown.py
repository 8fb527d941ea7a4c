"""Shows how the rows of a dataset are made, on a terminal, while they are."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from curate.dataset.lazy.stats import Run
from curate.tasks.progress import Display, LiveDisplay, LiveOperators, NoDisplay

SWITCH = "CURATE_PROGRESS"
"""The environment variable that, as 0, keeps terminals free of progress."""


def wanted() -> bool:
    """Returns whether progress is to be shown: standard error is a terminal, and nobody said no."""
    return os.environ.get(SWITCH, "1") != "0" and sys.stderr is not None and sys.stderr.isatty()


def terminal_display() -> Display:
    """Returns what shows the progress of a write."""
    return LiveDisplay() if wanted() else NoDisplay()


def watched(blocks: Any, run: Run) -> Iterator[pa.Table]:
    """Yields the blocks, and shows how they are made while they are, if there is a terminal."""
    live = LiveOperators(run.measured) if wanted() else None
    try:
        if live is not None:
            live.start()
        yield from blocks
    finally:
        # In this order: what is shown last is how it ended.
        blocks.close()
        if live is not None:
            live.stop()
