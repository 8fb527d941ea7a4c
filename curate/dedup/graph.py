"""Very many rows, and what connects them: a bit for each row, and connected components whose edges come in parts.

Of rows, by their ids, those in a set have a bit. They are in blocks of 8,192, of which only those exist that have a row
whose bit is set: 1 KiB each, so that a billion rows take 125 MB at most, however they are spread over shards.

Of components four bytes a node are held, and a part of the edges at a time. Borůvka's algorithm (1926) joins the
components that the edges of a part connect: each takes its least neighbour, all at once, so that their number is halved
each time at least. What a part joins is joined in a forest over all nodes, whose roots are the least nodes of their
components; a tree grows by one level a part at most.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from curate.errors import ConfigError

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MOST_NODES = 1 << 32
_PARTS_BETWEEN = 16
"""Parts after which all trees are made flat."""
_SLICE_NODES = 1 << 20
"""Nodes whose trees are made flat at once."""


class Components:
    """The components of a graph of nodes 0, 1, ..., to which edges are added.

    >>> found = Components(5)
    >>> found.join(np.array([1, 4]), np.array([3, 3]))
    >>> found.least(np.arange(5)).tolist()
    [0, 1, 2, 1, 1]
    """

    def __init__(self, nodes: int) -> None:
        """Raises ConfigError for more than 2**32 nodes."""
        if nodes > MOST_NODES:
            raise ConfigError(
                f"dedup_minhash: {nodes:,} rows have near copies, and connected components are found of {MOST_NODES:,} "
                'at most; use drop="verified", which has no such limit'
            )
        self._parents = np.arange(nodes, dtype=np.uint32)
        self._parts = 0

    def join(self, u: Ints, v: Ints) -> None:
        """Adds edges, in any order."""
        a, b = self.least(u), self.least(v)
        between = a != b
        roots, ends = np.unique(np.concatenate([a[between], b[between]]), return_inverse=True)
        if not len(roots):
            return
        one, other = np.split(ends, 2)
        labels = connected(one, other, len(roots))
        self._parents[roots] = roots[labels]
        self._parts += 1
        if self._parts % _PARTS_BETWEEN == 0:
            self._flatten()

    def least(self, nodes: Ints) -> Ints:
        """Returns the least node of the component of each of these."""
        found = self._parents[nodes].astype(np.int64)
        moving = np.flatnonzero(self._parents[found] != found)
        while len(moving):
            found[moving] = self._parents[found[moving]]
            moving = moving[self._parents[found[moving]] != found[moving]]
        self._parents[nodes] = found
        return found

    def _flatten(self) -> None:
        # Parents are less than their children: those of a slice are flat before the next.
        for first in range(0, len(self._parents), _SLICE_NODES):
            self.least(np.arange(first, min(first + _SLICE_NODES, len(self._parents))))


def connected(u: Ints, v: Ints, nodes: int) -> Ints:
    """Returns the least node of the component of each node.

    >>> connected(np.array([0, 3]), np.array([2, 2]), 4).tolist()
    [0, 1, 0, 0]
    """
    labels: Any = np.arange(nodes)
    while True:
        a, b = labels[u], labels[v]
        between = a != b
        u, v, a, b = u[between], v[between], a[between], b[between]
        if not len(u):
            break
        to = np.full(nodes, nodes)
        np.minimum.at(to, a, b)
        np.minimum.at(to, b, a)
        alone = to == nodes
        to[alone] = np.flatnonzero(alone)
        # Two that go to each other are led by the smaller one; there is no longer circle.
        circle = np.flatnonzero((to[to] == np.arange(nodes)) & ~alone)
        to[circle] = np.minimum(circle, to[circle])
        while not np.array_equal(to, further := to[to]):
            to = further
        labels = to[labels]
    least = np.full(nodes, nodes)
    np.minimum.at(least, labels, np.arange(nodes))
    found: Ints = least[labels]
    return found


# Sets of rows


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
