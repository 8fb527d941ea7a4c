"""The order of the samples of an epoch: a pure function of the corpus, the seed and the epoch's number.

Samples lie in *chunks*, which are read in one go. The chunks are put in random order, neighbours in that order make a
*window*, and the samples of a window are mixed. So a sample moves anywhere in the epoch, and what is read at a time is
large. Both permutations are keyed bijections, computed for any place at once: none is kept in memory.

The bijection is a Feistel network with cycle walking: J. Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains",
CT-RSA 2002. Its round function is the finaliser of SplitMix64: G. Steele, D. Lea and C. Flood, "Fast Splittable
Pseudorandom Number Generators", OOPSLA 2014. It is for mixing, and keeps no secret.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from curate.dataclass import dataclass, field

Integers = np.ndarray[Any, np.dtype[np.int64]]

VERSION = 1
"""Of this order: part of a state, because a position means nothing in another one."""
CHUNK_BYTES = 1 << 20
"""Bytes of a chunk where one can begin anywhere: as large as a read from a store should be."""
LEAST_CHUNKS = 4
"""Chunks that are mixed, at least: row groups may be larger than all that is to be mixed."""
ROUNDS = 6
_AT_ONCE = 1 << 16
"""Places that are computed at a time."""


def round_keys(*of: int) -> tuple[int, ...]:
    """Returns the keys of the rounds of one bijection, which whole numbers name.

    >>> len(round_keys(0, 1)), round_keys(0, 1) == round_keys(1, 0)
    (6, False)
    """
    digest = hashlib.blake2b(repr((VERSION, *map(int, of))).encode(), digest_size=8 * ROUNDS).digest()
    return tuple(int.from_bytes(digest[at : at + 8], "little") for at in range(0, len(digest), 8))


def permuted(places: Integers, size: int, keys: tuple[int, ...]) -> Integers:
    """Returns where a keyed bijection of the numbers below `size` takes each of some places.

    >>> sorted(permuted(np.arange(10), 10, round_keys(7)).tolist()) == list(range(10))
    True
    """
    if size < 2:
        return places
    values: Any = places.astype(np.uint64)
    bits = (size - 1).bit_length()
    values = _feistel(values, bits, keys)
    # Those that are outside are taken on, until they are inside: less than half of the domain is outside.
    while len(outside := np.flatnonzero(values >= size)):
        values[outside] = _feistel(values[outside], bits, keys)
    found: Integers = values.astype(np.int64)
    return found


def _feistel(values: Any, bits: int, keys: tuple[int, ...]) -> Any:
    """Returns a bijection of the numbers of so many bits. The halves may differ by a bit, so rounds are even."""
    low = bits // 2
    left, right = values >> np.uint64(low), values & np.uint64((1 << low) - 1)
    left_bits, right_bits = bits - low, low
    for key in keys:
        mixed = _mixed(right + np.uint64(key)) & np.uint64((1 << left_bits) - 1)
        left, right = right, left ^ mixed
        left_bits, right_bits = right_bits, left_bits
    return (left << np.uint64(right_bits)) | right


def _mixed(values: Any) -> Any:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class Chunks:
    """How the samples of a corpus lie: in units one after another, each cut into chunks."""

    samples: Integers
    """Of each unit."""
    most: Integers
    """Samples of a chunk of each unit; the last chunk may have fewer."""
    first: Integers = field(init=False)
    """The number of the first chunk of each unit, and at the end the number of all."""

    def __post_init__(self) -> None:
        counts = -(-self.samples // np.maximum(self.most, 1))
        object.__setattr__(self, "first", np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))

    def __len__(self) -> int:
        return int(self.first[-1])

    @property
    def total(self) -> int:
        """All samples."""
        return int(self.samples.sum())

    def at(self, chunks: Integers) -> tuple[Integers, Integers, Integers]:
        """Returns of each of some chunks its unit, its first sample there, and its number of samples."""
        units = np.searchsorted(self.first, chunks, side="right") - 1
        starts = (chunks - self.first[units]) * self.most[units]
        return units, starts, np.minimum(self.most[units], self.samples[units] - starts)


@dataclass(frozen=True, slots=True)
class Window:
    """Neighbouring places of an epoch, whose samples are mixed."""

    start: int
    """Its first place."""
    units: Integers
    """The unit of each of its chunks, in order."""
    starts: Integers
    """The first sample of each chunk in its unit."""
    ends: Integers
    """Samples of the window up to the end of each chunk."""
    keys: tuple[int, ...] | None
    """Of the bijection; None: as the samples lie."""

    @property
    def stop(self) -> int:
        """The place behind its last one."""
        return self.start + int(self.ends[-1])

    def samples(self, places: Integers) -> tuple[Integers, Integers]:
        """Returns for places of the epoch within the window which of its chunks has the sample, and its number in the
        unit of that chunk."""
        within = places - self.start
        if self.keys is not None:
            within = permuted(within, int(self.ends[-1]), self.keys)
        slots = np.searchsorted(self.ends, within, side="right")
        before = np.concatenate([[0], self.ends])[slots]
        return slots, self.starts[slots] + within - before


@dataclass(frozen=True, slots=True)
class Order:
    """The orders of all epochs of a corpus."""

    chunks: Chunks
    seed: int
    window: int
    """Chunks of a window."""
    mixed: bool
    """Whether anything is put in random order."""

    def windows(self, epoch: int, place: int = 0) -> Iterator[Window]:
        """Yields the windows of an epoch, from the one that has a place."""
        starts = self.window_starts(epoch)
        first = int(np.searchsorted(starts, place, side="right")) - 1
        for number in range(first, len(starts) - 1):
            yield self._window(epoch, number, int(starts[number]))

    def locate(self, epoch: int, place: int) -> tuple[int, int]:
        """Returns the unit of the sample at a place of an epoch, and its number there."""
        window = next(self.windows(epoch, place))
        slots, samples = window.samples(np.array([place]))
        return int(window.units[slots[0]]), int(samples[0])

    def window_starts(self, epoch: int) -> Integers:
        """Returns the first place of each window, and at the end the number of all samples."""
        sizes = []
        step = max(1, _AT_ONCE // self.window) * self.window
        for at in range(0, len(self.chunks), step):
            slots = np.arange(at, min(at + step, len(self.chunks)))
            _, _, samples = self.chunks.at(self._permuted(epoch, slots))
            sizes.append(np.add.reduceat(samples, np.arange(0, len(slots), self.window)))
        return np.concatenate([[0], *map(np.asarray, sizes)]).cumsum().astype(np.int64)

    def _permuted(self, epoch: int, slots: Integers) -> Integers:
        return permuted(slots, len(self.chunks), round_keys(self.seed, epoch)) if self.mixed else slots

    def _window(self, epoch: int, number: int, start: int) -> Window:
        slots = np.arange(number * self.window, min((number + 1) * self.window, len(self.chunks)))
        units, starts, samples = self.chunks.at(self._permuted(epoch, slots))
        keys = round_keys(self.seed, epoch, number) if self.mixed else None
        return Window(start, units, starts, np.cumsum(samples), keys)


def order_of(chunks: Chunks, sample_bytes: int, seed: int, shuffle_bytes: int) -> Order:
    """Returns the order of a corpus with windows of about `shuffle_bytes`, at least a few chunks; 0: as samples lie."""
    mean_bytes = max(1, chunks.total * sample_bytes // max(1, len(chunks)))
    # Unmixed, a window is what is read at a time.
    window = max(LEAST_CHUNKS if shuffle_bytes else 1, (shuffle_bytes or 16 * CHUNK_BYTES) // mean_bytes)
    return Order(chunks, seed, min(window, max(1, len(chunks))), shuffle_bytes > 0)
