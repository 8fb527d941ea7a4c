"""Components of graphs, against a search through neighbours."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from curate.dedup.components import components

Edges = list[tuple[int, int, float]]

GRAPHS: st.SearchStrategy[Edges] = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 12), st.sampled_from([0.8, 0.9, 1.0])).filter(lambda e: e[0] != e[1]),
    max_size=25,
)


def searched(edges: Edges) -> dict[int, int]:
    """The least node that can be reached from each node, by walking."""
    neighbours = defaultdict(set)
    for u, v, _ in edges:
        neighbours[u].add(v)
        neighbours[v].add(u)
    labels = {}
    for start in neighbours:
        seen, waiting = {start}, [start]
        while waiting:
            for node in neighbours[waiting.pop()] - seen:
                seen.add(node)
                waiting.append(node)
        labels[start] = min(seen)
    return labels


def arrays(edges: Edges) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Edges as arrays."""
    columns = [[edge[at] for edge in edges] for at in range(3)]
    return np.array(columns[0], np.int64), np.array(columns[1], np.int64), np.array(columns[2], np.float64)


@given(GRAPHS)
def test_labels_are_what_walking_finds(edges: Edges) -> None:
    """Every node has the least node that it is connected with, and the weight of its best edge."""
    found = components(*arrays(edges))
    assert dict(zip(found.nodes.tolist(), found.labels.tolist(), strict=True)) == searched(edges)
    best: dict[int, float] = defaultdict(float)
    for u, v, weight in edges:
        best[u], best[v] = max(best[u], weight), max(best[v], weight)
    assert dict(zip(found.nodes.tolist(), found.best.tolist(), strict=True)) == best


@given(GRAPHS, st.integers(0, 25))
def test_the_forest_stands_for_all_edges(edges: Edges, cut: int) -> None:
    """Of some edges the forest is taken, and of that and the rest it again: nodes, labels and best weights are those
    of all edges; and no edge of it can be spared.
    """
    whole = components(*arrays(edges))
    some = [edges[at] for at in components(*arrays(edges[:cut])).forest]
    folded = components(*arrays([*some, *edges[cut:]]))
    assert folded.nodes.tolist() == whole.nodes.tolist()
    assert folded.labels.tolist() == whole.labels.tolist()
    assert folded.best.tolist() == whole.best.tolist()
    assert len(whole.forest) == len(whole.nodes) - len(set(whole.labels.tolist()))


def test_chains_and_stars_are_one_component() -> None:
    """A chain of 100,000 in any order, and a star, take no round more than the logarithm: they end at all."""
    order = np.random.default_rng(0).permutation(100_000)
    for u, v in ((order[:-1], order[1:]), (np.zeros(99_999, np.int64), np.arange(1, 100_000))):
        assert set(components(u, v, np.ones(len(u))).labels.tolist()) == {0}
