"""Components of graphs, against a search through neighbours."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.dedup import graph
from curate.dedup.graph import Components, connected
from curate.errors import ConfigError

Edges = list[tuple[int, int]]

NODES = 14
GRAPHS: st.SearchStrategy[Edges] = st.lists(st.tuples(st.integers(0, 13), st.integers(0, 13)), max_size=25)


def searched(edges: Edges) -> list[int]:
    """The least node that can be reached from each node, by walking."""
    neighbours = defaultdict(set)
    for u, v in edges:
        neighbours[u].add(v)
        neighbours[v].add(u)
    labels = []
    for start in range(NODES):
        seen, waiting = {start}, [start]
        while waiting:
            for node in neighbours[waiting.pop()] - seen:
                seen.add(node)
                waiting.append(node)
        labels.append(min(seen))
    return labels


@given(GRAPHS, st.integers(1, 25))
def test_labels_are_what_walking_finds(edges: Edges, size: int) -> None:
    """Every node has the least node that it is connected with, whatever the parts that edges come in."""
    found = Components(NODES)
    for at in range(0, len(edges), size):
        u, v = (np.array([edge[side] for edge in edges[at : at + size]], np.int64) for side in (0, 1))
        found.join(u, v)
    assert found.least(np.arange(NODES)).tolist() == searched(edges)


@pytest.mark.parametrize("part", [99_999, 3_001])
def test_chains_and_stars_are_one_component(part: int) -> None:
    """A chain of 100,000 in any order, and a star, take no round more than the logarithm: they end at all."""
    order = np.random.default_rng(0).permutation(100_000)
    for u, v in ((order[:-1], order[1:]), (np.zeros(99_999, np.int64), np.arange(1, 100_000))):
        found = Components(100_000)
        for at in range(0, len(u), part):
            found.join(u[at : at + part], v[at : at + part])
        assert set(found.least(np.arange(100_000)).tolist()) == {0}
        assert set(connected(u, v, 100_000).tolist()) == {0}


def test_too_many_rows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number of a row has 32 bits; what has no such limit is named."""
    monkeypatch.setattr(graph, "MOST_NODES", 9)
    with pytest.raises(ConfigError, match=r'10 rows have near copies.* 9 at most; use drop="verified"'):
        Components(10)
