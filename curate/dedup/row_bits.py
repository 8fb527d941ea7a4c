"""A bit for each of very many rows, by row id; and numbers for the rows whose bit is set.

Rows are in blocks of 8,192, of which only those exist that have a row whose bit is set: 1 KiB each, so that a billion
rows take 125 MB at most, however they are spread over shards.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_BLOCK_BITS = 13
_WORDS = 1 << (_BLOCK_BITS - 6)
"""Words of a block, of 64 rows each."""
_GROWTH = 1.5


class RowBits:
    """A set of row ids.

    >>> some = RowBits()
    >>> some.add(np.array([3, 1 << 40]))
    >>> some.has(np.array([2, 3, 1 << 40])).tolist()
    [False, True, True]
    """

    def __init__(self) -> None:
        self._blocks = np.zeros(0, np.int64)
        """Those that exist, ascending."""
        self._slots = np.zeros(0, np.int64)
        """Where each of them is."""
        self._words = np.zeros((0, _WORDS), np.uint64)
        self._before: Any = None
        """Rows of the set before each word, within its block; and before each block."""

    def add(self, rows: Ints) -> None:
        """Adds rows; any may be there already, or several times."""
        if not len(rows):
            return
        self._before = None
        self._make(np.unique(rows >> _BLOCK_BITS))
        slots = self._slots[np.searchsorted(self._blocks, rows >> _BLOCK_BITS)]
        bits = np.uint64(1) << (rows & 63).astype(np.uint64)
        np.bitwise_or.at(self._words.reshape(-1), slots * _WORDS + ((rows >> 6) & (_WORDS - 1)), bits)

    def has(self, rows: Ints) -> Bools:
        """Returns whether each row is in the set."""
        if not len(self._blocks):
            return np.zeros(len(rows), bool)
        at, found = self._at(rows)
        words = self._words.reshape(-1)[self._slots[at] * _WORDS + ((rows >> 6) & (_WORDS - 1))]
        return ((words >> (rows & 63).astype(np.uint64)) & np.uint64(1)).astype(bool) & found

    def __len__(self) -> int:
        """How many rows are in the set."""
        return int(np.bitwise_count(self._words[: len(self._blocks)]).sum(dtype=np.int64))

    def numbers(self, rows: Ints) -> Ints:
        """Returns how many rows of the set are before each of these, all of which are in it."""
        if self._before is None:
            counts = np.bitwise_count(self._words[self._slots]).astype(np.uint16)
            inside = np.cumsum(counts, axis=1, dtype=np.uint16)
            sizes = inside[:, -1].astype(np.int64)
            self._before = inside - counts, np.cumsum(sizes) - sizes
        inside, blocks = self._before
        at, _ = self._at(rows)
        word = (rows >> 6) & (_WORDS - 1)
        below = (np.uint64(1) << (rows & 63).astype(np.uint64)) - np.uint64(1)
        part = np.bitwise_count(self._words.reshape(-1)[self._slots[at] * _WORDS + word] & below)
        found: Ints = blocks[at] + inside[at, word] + part
        return found

    def _at(self, rows: Ints) -> tuple[Ints, Bools]:
        """Returns the number of the block of each row among those that exist, and whether it does."""
        blocks = rows >> _BLOCK_BITS
        at = np.minimum(np.searchsorted(self._blocks, blocks), len(self._blocks) - 1)
        return at, self._blocks[at] == blocks

    def _make(self, blocks: Ints) -> None:
        new = np.setdiff1d(blocks, self._blocks, assume_unique=True)
        if not len(new):
            return
        have = len(self._blocks)
        if have + len(new) > len(self._words):
            words = np.zeros((max(have + len(new), int(len(self._words) * _GROWTH)), _WORDS), np.uint64)
            words[:have] = self._words[:have]
            self._words = words
        slots = np.concatenate([self._slots, np.arange(have, have + len(new))])
        all = np.concatenate([self._blocks, new])
        order = np.argsort(all)
        self._blocks, self._slots = all[order], slots[order]
