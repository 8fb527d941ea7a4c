"""Connected components of a graph whose edges come in parts: four bytes a node, and a part of the edges at a time.

Borůvka's algorithm (1926) joins the components that the edges of a part connect: each takes its least neighbour, all at
once, so that their number is halved each time at least. What a part joins is joined in a forest over all nodes, whose
roots are the least nodes of their components; a tree grows by one level a part at most.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from curate.errors import ConfigError

Ints = npt.NDArray[np.int64]

MOST_NODES = 1 << 32
_PARTS_BETWEEN = 16
"""Parts after which all trees are made flat."""


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

    def _flatten(self, slice_nodes: int = 1 << 20) -> None:
        # Parents are less than their children: those of a slice are flat before the next.
        for first in range(0, len(self._parents), slice_nodes):
            self.least(np.arange(first, min(first + slice_nodes, len(self._parents))))


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
