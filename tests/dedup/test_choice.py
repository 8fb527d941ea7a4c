"""Which rows are dropped, and for which, against a walk over the rows in plain Python; bits of rows; clusters."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import curate
from curate.dedup.alike import edges_schema
from curate.dedup.choice import Choice
from curate.dedup.clusters import Clusters, Members
from curate.dedup.graph import RowBits
from curate.dedup.near import NearDedup
from curate.exchange import chunks
from curate.exchange.row_ids import ROW_BITS
from curate.plan.nodes import Exchanged
from curate.reduce import ranges
from tests.exchange.local import exchanged
from tests.support.examples import examples

SCHEMA = pa.schema([("text", pa.string()), ("id", pa.int64()), ("source", pa.string())])
ROW = st.integers(0, 14)
EDGES = st.dictionaries(
    st.tuples(ROW, ROW).filter(lambda e: e[0] < e[1]), st.sampled_from([0.8, 0.9, 1.0]), max_size=40
)
CLASSES = st.lists(st.integers(0, 2), min_size=15, max_size=15)
Edges = dict[tuple[int, int], float]


def place(row: int) -> int:
    """The id of a row: there are four in each shard, and in the third of these they are far apart."""
    return (row // 4 << ROW_BITS) + (row % 4) * (100_000 if row // 4 == 2 else 1)


def table_of(near: NearDedup, edges: Edges, classes: list[int]) -> pa.Table:
    """Edges as they are found, in any order."""
    rows = []
    for (u, v), alike in edges.items():
        early, late = sorted((u, v), key=lambda row: (classes[row], row))
        if near.verified and classes[early] == classes[late] == 0:
            continue
        ends = [(late, ""), (early, "other_")]
        rows.append({"__similarity": alike, "__place": place(late), "__other": place(early)})
        for row, of in ends:
            rows[-1] |= {f"__{of}class": classes[row], f"__{of}id": row, f"__{of}source": f"s{row}"}
    schema = edges_schema(near, SCHEMA)
    return pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in rows], schema)


def walked(edges: Edges, classes: list[int]) -> dict[int, tuple[int, float]]:
    """What each row that is dropped is dropped for, row by row: the most similar one that is kept."""
    neighbours: dict[int, dict[int, float]] = defaultdict(dict)
    for (u, v), alike in edges.items():
        neighbours[u][v] = neighbours[v][u] = alike
    order = sorted(range(len(classes)), key=lambda row: (classes[row], row))
    kept: list[int] = []
    dropped = {}
    for row in order:
        alike = [(neighbours[row][one], one) for one in kept if one in neighbours[row]]
        if alike and classes[row] > 0:
            best = max(one for one, _ in alike)
            dropped[row] = next((one, best) for one in kept if neighbours[row].get(one) == best)
        else:
            kept.append(row)
    return dropped


def clustered(edges: Edges, classes: list[int]) -> dict[int, tuple[int, float]]:
    """What each row that is dropped is dropped for: the first of all that can be reached."""
    neighbours: dict[int, dict[int, float]] = defaultdict(dict)
    for (u, v), alike in edges.items():
        neighbours[u][v] = neighbours[v][u] = alike
    dropped = {}
    for row in neighbours:
        seen, waiting = {row}, [row]
        while waiting:
            for one in neighbours[waiting.pop()].keys() - seen:
                seen.add(one)
                waiting.append(one)
        first = min(seen, key=lambda one: (classes[one], one))
        if first != row and classes[row] > 0:
            dropped[row] = (first, max(neighbours[row].values()))
    return dropped


def marks_of(near: NearDedup, edges: Edges, classes: list[int], seed: int, parts: int | None = None) -> Any:
    """The marks, as rows: what is dropped, for what, and how alike they are."""
    table = table_of(near, edges, classes)
    shards = [table.slice(at, 7) for at in range(0, max(1, table.num_rows), 7)]
    if near.verified:
        made = exchanged(Choice(near), shards, seed=seed, parts=parts).rows()
    else:
        members = exchanged(Clusters(near), shards, seed=seed, parts=parts).tables
        made = exchanged(Members(near), members, seed=seed, parts=parts).rows()
    rows = {place(row): row for row in range(len(classes))}
    found = {}
    for one in made:
        kept = one["__kept_id"]
        assert one["__kept"] == place(kept)
        assert one["__kept_source"] == f"s{kept}"
        assert rows[one["__place"]] not in found
        found[rows[one["__place"]]] = (kept, one["__similarity"])
    return found


VERIFIED = NearDedup("text", "id", priority="source", priority_values=("a",), source="source")
COMPONENT = NearDedup("text", "id", priority="source", priority_values=("a",), source="source", drop="component")


@settings(max_examples=examples(150))
@given(EDGES, CLASSES, st.integers(0, 99), st.sampled_from([1, 2, 9]))
def test_a_row_is_dropped_for_the_most_similar_row_that_is_kept(
    edges: Edges, classes: list[int], seed: int, parts: int
) -> None:
    """Whatever the parts that edges are read in: chains, stars, cliques, rows that are exempt, ties."""
    assert marks_of(VERIFIED, edges, classes, seed, parts) == walked(edges, classes)


@settings(max_examples=examples(150))
@given(EDGES, CLASSES, st.integers(0, 99), st.sampled_from([1, 2, 9]))
def test_all_of_a_component_but_its_first_row_is_dropped(
    edges: Edges, classes: list[int], seed: int, parts: int
) -> None:
    """The same of what is connected; rows that are exempt stay, and connect others."""
    assert marks_of(COMPONENT, edges, classes, seed, parts) == clustered(edges, classes)


@pytest.mark.parametrize(
    ("edges", "dropped"),
    [
        # A chain: every other row is unlike all that are kept.
        ({(n, n + 1): 0.9 for n in range(8)}, {1: 0, 3: 2, 5: 4, 7: 6}),
        # A star whose centre comes last is dropped for the first of its rays, and the rays stay.
        ({(n, 8): 0.9 for n in range(8)}, {8: 0}),
        ({(0, n): 0.9 for n in range(1, 9)}, dict.fromkeys(range(1, 9), 0)),
        # A clique.
        ({(u, v): 0.9 for v in range(6) for u in range(v)}, dict.fromkeys(range(1, 6), 0)),
        # The most similar one of those that are kept, not of all.
        ({(0, 1): 0.8, (1, 2): 1.0, (0, 2): 0.8, (2, 3): 1.0}, {1: 0, 2: 0}),
    ],
    ids=["chain", "star, centre last", "star, centre first", "clique", "most similar"],
)
def test_shapes(edges: Edges, dropped: dict[int, int]) -> None:
    found = marks_of(VERIFIED, edges, [2] * 15, 0)
    assert {row: kept for row, (kept, _) in found.items()} == dropped


def test_a_chain_of_a_hundred_thousand_rows() -> None:
    """One pass over its edges, however long it is: every other row goes."""
    rows = np.arange(100_000)
    near = NearDedup("text", "id")
    columns = [rows[1:], rows[:-1], np.full(len(rows) - 1, 0.9)]
    columns += [np.ones(len(rows) - 1, np.int32), np.ones(len(rows) - 1, np.int32), rows[:-1]]
    edges = pa.table([pa.array(one) for one in columns], schema=edges_schema(near, SCHEMA))
    for size in (100_000, 30_001):
        tables = [edges.slice(at, size) for at in range(0, edges.num_rows, size)]
        made = exchanged(Choice(near), tables, batch_rows=size, parts=3).table
        assert made["__place"].to_pylist() == list(range(1, 100_000, 2))
        assert made["__kept"].to_pylist() == list(range(0, 99_999, 2))


@pytest.mark.slow
@pytest.mark.parametrize("near", [VERIFIED, COMPONENT], ids=["verified", "component"])
def test_edges_are_read_a_part_at_a_time(near: NearDedup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through run files, and of these a few pages at a time: the same as a walk over all of them."""
    monkeypatch.setattr(chunks, "PAGE_ROWS", 50)
    monkeypatch.setattr(ranges, "LEAST_BYTES", 8 << 10)
    random = np.random.default_rng(4)
    classes = random.choice([0, 1, 2, 2, 2], 1_000).tolist()
    ends = np.sort(random.integers(0, 1_000, (1_500, 2)), axis=1).tolist()
    edges = {(u, v): float(random.choice([0.8, 0.9, 1.0])) for u, v in ends if u != v}
    table = table_of(near, edges, classes)
    largest = []

    def looked_at(ranges_: Any, tables: list[pa.Table], side: int) -> pa.Table:
        largest.append(sum(one.num_rows for one in tables))
        return in_order(ranges_, tables, side)

    in_order = ranges.Ranges._in_order
    monkeypatch.setattr(ranges.Ranges, "_in_order", looked_at)
    ds = curate.from_arrow([table.slice(at, 200) for at in range(0, table.num_rows, 200)])
    if near.verified:
        made = ds._then(Exchanged((ds._plan,), Choice(near)))
    else:
        made = ds._then(Exchanged((Exchanged((ds._plan,), Clusters(near)),), Members(near)))
    place_of = {place(row): row for row in range(1_000)}
    found = {place_of[one["__place"]]: (one["__kept_id"], one["__similarity"]) for one in made.iter_rows()}
    assert found == (walked if near.verified else clustered)(edges, classes)
    assert len(largest) > 5
    assert max(largest) < len(edges) / 2


@given(st.lists(st.lists(st.integers(0, 70_000).map(lambda n: place(n % 13) + n), max_size=20), max_size=5))
def test_bits_of_rows_are_a_set(parts: list[list[int]]) -> None:
    """What was added is there, and is numbered in order."""
    bits, known = RowBits(), set[int]()
    for part in parts:
        bits.add(np.array(part, np.int64))
        known |= set(part)
        asked = np.array([*part, *(one + 1 for one in part), 5], np.int64)
        assert bits.has(asked).tolist() == [one in known for one in asked.tolist()]
        assert len(bits) == len(known)
        if known:
            assert bits.numbers(np.array(sorted(known), np.int64)).tolist() == list(range(len(known)))
