"""Measures rows, bytes, time and memory of operators in the process where they run."""

from __future__ import annotations

import resource
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import pyarrow as pa

from curate.dataclass import dataclass, field


@dataclass(slots=True)
class Meter:
    """What an operator was given, gave and took, of a shard or of many."""

    batches: int = 0
    """Tables that it was given."""
    tables: int = 0
    """Tables that it gave."""
    rows_in: int = 0
    rows_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    wall_s: float = 0.0
    """Seconds that the operator itself was at work, in whichever process."""
    cpu_s: float = 0.0
    """Seconds of CPU of the thread that it was at work in."""
    wait_s: float = 0.0
    """Seconds that its task waited for an answer of its pool."""
    largest_bytes: int = 0
    """Bytes of the largest table that it gave."""
    peak_bytes: int = 0
    """Most memory that a process held which it was at work in, with all else there."""

    def add(self, other: Meter) -> None:
        """Adds what another one measured."""
        self.take(other.numbers())

    def take(self, numbers: Sequence[float]) -> None:
        """Adds what another one measured, as its `numbers`."""
        batches, tables, rows_in, rows_out, bytes_in, bytes_out, wall_s, cpu_s, wait_s, largest, peak = numbers
        self.batches += int(batches)
        self.tables += int(tables)
        self.rows_in += int(rows_in)
        self.rows_out += int(rows_out)
        self.bytes_in += int(bytes_in)
        self.bytes_out += int(bytes_out)
        self.wall_s += wall_s
        self.cpu_s += cpu_s
        self.wait_s += wait_s
        self.largest_bytes = max(self.largest_bytes, int(largest))
        self.peak_bytes = max(self.peak_bytes, int(peak))

    def numbers(self) -> tuple[float, ...]:
        """Returns all of it, in the order of the fields."""
        return _all_of(self)


NUMBERS = len(Meter.__slots__)
_all_of = attrgetter(*Meter.__slots__)


def packed(meters: Iterable[Meter]) -> tuple[float, ...]:
    """Returns meters as plain numbers, one after another: what is sent to the driver is a few bytes a number.

    >>> meters = [Meter(rows_in=3), Meter()]
    >>> add_packed(meters, packed([Meter(rows_in=4), Meter(rows_out=1)]))
    >>> meters[0].rows_in, meters[1].rows_out
    (7, 1)
    """
    return tuple(chain.from_iterable(map(_all_of, meters)))


def add_packed(meters: Sequence[Meter], numbers: Sequence[float]) -> None:
    """Adds what as many others measured. Raises ValueError if they are not as many."""
    if len(numbers) != NUMBERS * len(meters):
        raise ValueError(f"{len(numbers)} numbers for {len(meters)} meters, expected {NUMBERS * len(meters)}")
    for place, meter in enumerate(meters):
        meter.take(numbers[place * NUMBERS : (place + 1) * NUMBERS])


def blank(numbers: Sequence[float]) -> list[Meter]:
    """Returns as many meters as were packed, with nothing measured."""
    return [Meter() for _ in range(len(numbers) // NUMBERS)]


class MeterReport(NamedTuple):
    """What a piece of a stream has measured so far, on its way to the consumer."""

    chain: int
    """Which of the stream's chains of operators it went through."""
    numbers: tuple[float, ...]
    """Their meters, packed."""


_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


def peak_memory() -> int:
    """Returns the most bytes that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT


_measured: tuple[Callable[[], Any], int] = (lambda: None, 0)
"""The table that was measured last, if it is still there, and its bytes."""


def _size_bytes(table: Any) -> int:
    """Returns the bytes of a table. What one operator gave, the next is given: it is measured once."""
    global _measured
    if not isinstance(table, pa.Table):
        return int(table.nbytes)
    last, size_bytes = _measured
    if last() is not table:
        size_bytes = int(table.nbytes)
        _measured = weakref.ref(table), size_bytes
    return size_bytes


def record_input(meter: Meter, table: pa.Table) -> None:
    """Books a table that an operator was given."""
    meter.batches += 1
    meter.rows_in += table.num_rows
    meter.bytes_in += _size_bytes(table)


def record_output(meter: Meter, table: pa.Table) -> None:
    """Books a table that an operator gave."""
    size_bytes = _size_bytes(table)
    meter.tables += 1
    meter.rows_out += table.num_rows
    meter.bytes_out += size_bytes
    meter.largest_bytes = max(meter.largest_bytes, size_bytes)


class Timed:
    """Books the time that its block takes."""

    # Not made of a generator: there are five for each shard, however small.
    __slots__ = ("_cpu_s", "_meter", "_wall_s")

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def __enter__(self) -> None:
        self._wall_s, self._cpu_s = time.perf_counter(), time.thread_time()

    def __exit__(self, *_: object) -> None:
        self._meter.wall_s += time.perf_counter() - self._wall_s
        self._meter.cpu_s += time.thread_time() - self._cpu_s


def reading(batches: Iterator[Any], meter: Meter) -> Iterator[Any]:
    """Yields batches, and books what it takes to make them."""
    while True:
        with Timed(meter):
            batch = next(batches, None)
        if batch is None:
            return
        if isinstance(batch, pa.Table):  # and no file, which is read by whoever is given it
            record_output(meter, batch)
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
