"""Connected components of a graph, by numpy: which rows are one cluster, through chains of rows that are alike.

Borůvka's algorithm (1926): every component takes its best edge to another, all at once, and those that it joins are one
from then on. The number of components is halved each time at least, so ten million edges take a dozen rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Components:
    """The nodes of a graph in ascending order, and what is known of each."""

    nodes: Ints
    labels: Ints
    """The least node of its component."""
    best: Floats
    """The largest weight of an edge of it."""
    forest: Ints
    """Which edges were taken, ascending: one fewer than nodes in each component."""


def components(u: Ints, v: Ints, weight: Floats) -> Components:
    """Returns the components of the graph with an edge between each u and v, u not being v; edges may be there often.

    The edges that are taken are a maximum spanning forest, of equal weights the first by (u, v, position). So they have
    the same components as all edges, and the best edge of every node: they stand for all edges.

    >>> found = components(np.array([5, 7, 2, 5]), np.array([7, 9, 3, 9]), np.array([0.9, 0.8, 0.9, 0.7]))
    >>> found.labels.tolist(), found.best.tolist(), found.forest.tolist()
    ([2, 2, 5, 5, 5], [0.9, 0.9, 0.9, 0.9, 0.8], [0, 1, 2])
    """
    nodes, ends = np.unique(np.concatenate([u, v]), return_inverse=True)
    number = len(nodes)
    best = np.full(number, -np.inf)
    np.maximum.at(best, ends, np.concatenate([weight, weight]))
    # Edges in one strict order, so that no two components can take edges that make a circle.
    order = np.lexsort((v, u, -weight))
    left, right = ends[: len(u)][order], ends[len(u) :][order]
    edges = np.arange(len(order))
    component = np.arange(number)
    taken = np.zeros(len(order), bool)
    while len(edges):
        a, b = component[left[edges]], component[right[edges]]
        between = a != b
        edges, a, b = edges[between], a[between], b[between]
        if not len(edges):
            break
        first = np.full(number, len(order))
        np.minimum.at(first, a, edges)
        np.minimum.at(first, b, edges)
        joined = np.flatnonzero(first < len(order))
        chosen = first[joined]
        taken[chosen] = True
        # Each goes over to the component at the other end; two that go to each other are led by the smaller one.
        to = np.arange(number)
        ca, cb = component[left[chosen]], component[right[chosen]]
        to[joined] = np.where(ca == joined, cb, ca)
        circle = to[to[joined]] == joined
        to[joined[circle]] = np.minimum(joined[circle], to[joined[circle]])
        while not np.array_equal(to, further := to[to]):
            to = further
        component = to[component]
    labels = np.full(number, np.iinfo(np.int64).max)
    np.minimum.at(labels, component, nodes)
    return Components(nodes, labels[component], best, np.sort(order[taken]))
