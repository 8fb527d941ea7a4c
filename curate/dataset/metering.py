"""Takes the measures of what operators do, where they do it."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from curate.tasks.meters import Meter, packed

_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


def peak_memory() -> int:
    """Returns the most bytes that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT


def got(meter: Meter, table: pa.Table) -> None:
    """Books a table that an operator was given."""
    meter.batches += 1
    meter.rows_in += table.num_rows
    meter.bytes_in += table.nbytes


def gave(meter: Meter, table: pa.Table) -> None:
    """Books a table that an operator gave."""
    size_bytes = table.nbytes
    meter.tables += 1
    meter.rows_out += table.num_rows
    meter.bytes_out += size_bytes
    meter.largest_bytes = max(meter.largest_bytes, size_bytes)


@contextmanager
def at_work(meter: Meter) -> Iterator[None]:
    """Books the time that the block takes."""
    wall_s, cpu_s = time.perf_counter(), time.thread_time()
    try:
        yield
    finally:
        meter.wall_s += time.perf_counter() - wall_s
        meter.cpu_s += time.thread_time() - cpu_s


def reading(batches: Iterator[Any], meter: Meter) -> Iterator[Any]:
    """Yields batches, and books what it takes to make them."""
    while True:
        with at_work(meter):
            batch = next(batches, None)
        if batch is None:
            return
        gave(meter, batch)
        yield batch


@dataclass(slots=True)
class Meters:
    """The meters of one shard: of the read, of each step, and of the write."""

    pooled: Sequence[bool]
    """Of each step, whether it runs in a pool, whose actors say what memory they hold."""
    steps: list[Meter] = field(init=False)
    read: Meter = field(default_factory=Meter)
    write: Meter = field(default_factory=Meter)

    def __post_init__(self) -> None:
        self.steps = [Meter() for _ in self.pooled]

    def packed(self, *, write: bool) -> tuple[float, ...]:
        """Returns them as plain numbers, in the order in which rows go, with the memory that this process held."""
        here = [meter for meter, pooled in zip(self.steps, self.pooled, strict=True) if not pooled]
        peak_bytes = peak_memory()
        for meter in (self.read, *here, self.write):
            meter.peak_bytes = peak_bytes
        return packed([self.read, *self.steps, *([self.write] if write else [])])
