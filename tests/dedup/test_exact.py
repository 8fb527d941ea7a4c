"""Exact deduplication, against a dictionary of what was seen."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.dedup.exact import Chosen, Digests, DropCopies, ExactDedup
from curate.errors import ConfigError
from curate.pipeline.shard_books import BadRowBudget, ShardBooks
from curate.pipeline.step import BatchPosition
from tests.dedup.marked import read_again
from tests.exchange.local import exchanged

SCHEMA = pa.schema([("id", pa.int64()), ("a", pa.string()), ("b", pa.float64()), ("p", pa.float64())])
ROWS = st.tuples(
    st.sampled_from([None, "", "x", "X ", "y"]),
    st.sampled_from([None, 0.0, -0.0, 1.0, math.nan]),
    st.sampled_from([None, math.nan, -1.0, 2.0, 3.0]),
)
SHARDS = st.lists(st.lists(ROWS, max_size=9), max_size=5)


def tables(shards: list[list[tuple[Any, ...]]]) -> list[pa.Table]:
    """Shards as tables, their rows numbered throughout."""
    made, number = [], 0
    for shard in shards:
        rows = [dict(zip("abp", row, strict=True)) | {"id": number + at} for at, row in enumerate(shard)]
        number += len(shard)
        made.append(pa.Table.from_pylist(rows, SCHEMA))
    return made


def deduplicated(
    same: ExactDedup, shards: list[pa.Table], seed: int = 0
) -> tuple[list[int], list[dict[str, Any]], int]:
    """Ids that are kept, what is told of the others, and how many those are."""
    marks = exchanged(Chosen(same), shards, seed=seed).table if shards else pa.table({})
    if not marks.num_columns:
        marks = Chosen(same).schema([SCHEMA]).empty_table()  # type: ignore[union-attr]
    made, told, dropped = read_again(DropCopies(same), marks, shards, seed)
    kept = [one for table in made for one in table["id"].to_pylist()]
    return kept, told.to_pylist(), dropped.get("duplicate", 0)


def value(one: Any) -> Any:
    """What a value is compared by."""
    return "nan" if isinstance(one, float) and one != one else one


@given(SHARDS, st.sampled_from([("a",), ("b",), ("a", "b")]), st.booleans(), st.booleans(), st.integers(0, 99))
def test_one_row_of_each_is_kept(
    shards: list[list[tuple[Any, ...]]], columns: tuple[str, ...], last: bool, priority: bool, seed: int
) -> None:
    """Of equal rows the first is kept, or the last, or that with the largest priority; the others are told once each,
    with the one that is kept; order, and the books, are those of the input.
    """
    same = ExactDedup(columns, keep="last" if last else "first", priority="p" if priority else None, id_column="id")
    rows = [row for shard in tables(shards) for row in shard.to_pylist()]
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(value(row[name]) for name in columns), []).append(row)
    winner = {}
    for group in groups.values():
        by_place = group[::-1] if last else group
        best = by_place[0]
        if priority:
            best = min(by_place, key=lambda row: (row["p"] is None, value(row["p"]) == "nan", -(row["p"] or 0)))
        winner |= {row["id"]: best["id"] for row in group}
    kept, told, dropped = deduplicated(same, tables(shards), seed)
    assert kept == [row["id"] for row in rows if winner[row["id"]] == row["id"]]
    assert [(one["id"], one["kept_id"]) for one in told] == [(i, w) for i, w in sorted(winner.items()) if i != w]
    assert dropped == len(told) == len(rows) - len(kept)
    assert {one["similarity"] for one in told} <= {1.0}
    clusters = {one["kept_id"]: one["cluster"] for one in told}
    assert all(clusters[one["kept_id"]] == one["cluster"] for one in told)
    assert len(set(clusters.values())) == len(clusters)


@given(st.lists(st.lists(st.sampled_from(["The End", "the  end ", "the end.", None]), max_size=6), max_size=4))
def test_normalised_texts_are_compared(shards: list[list[str | None]]) -> None:
    """Case and white space do not matter where texts are normalised; what is kept is the text as it was."""
    made = [pa.table({"id": range(len(one)), "a": pa.array(one, pa.string())}) for one in shards]
    same = ExactDedup(("a",), normalised=True)
    marks = exchanged(Chosen(same), made).table if made else pa.table({})
    if not marks.num_columns:
        return
    kept, told, _ = read_again(DropCopies(same), marks, made)
    expected = list({" ".join((text or "\0").lower().split()): text for shard in shards[::-1] for text in shard[::-1]})
    found = [text for table in kept for text in table["a"].to_pylist()]
    assert {" ".join((text or "\0").lower().split()) for text in found} == set(expected)
    assert len(found) == len(expected)
    assert not told.num_columns


def test_a_row_that_is_everywhere_is_one_for_each_shard() -> None:
    """However often a row is in a shard, one row is exchanged for it, and one mark comes back: no digest is heavy."""
    shards = [pa.table({"id": range(1000), "a": ["same"] * 999 + [f"{rank}"]}) for rank in range(4)]
    same = ExactDedup(("a",), id_column="id")
    prepared = pa.concat_tables(Digests(same).apply(shards[0], ShardBooks(BadRowBudget()), BatchPosition("a", 0, 0)))
    assert Chosen(same).fold(prepared).num_rows == 2
    assert Chosen(same).fold(Chosen(same).fold(prepared)).num_rows == 2
    made = exchanged(Chosen(same), shards, batch_rows=400)
    assert made.table.num_rows == 4
    kept, told, dropped = read_again(DropCopies(same), made.table, shards, most=400)
    assert [table.num_rows for table in kept] == [2, 1, 1, 1]
    assert dropped == {"duplicate": 3995}
    assert set(told["kept_id"].to_pylist()) == {0}


def test_one_digest_with_other_checks_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where 64 bits are the same by chance, the other 64 tell rows apart."""
    plain = ExactDedup.digests

    def clashing(self: ExactDedup, batch: pa.Table) -> Any:
        digest, check = plain(self, batch)
        return digest * 0, check

    monkeypatch.setattr(ExactDedup, "digests", clashing)
    shards = [pa.table({"id": [0, 1, 2], "a": ["x", "y", "x"]}), pa.table({"id": [3, 4, 5], "a": ["z", "y", "x"]})]
    for seed in range(20):
        made = exchanged(Chosen(ExactDedup(("a",))), shards, seed=seed).table
        kept, _, _ = read_again(DropCopies(ExactDedup(("a",))), made, shards, seed)
        assert [table["id"].to_pylist() for table in kept] == [[0, 1], [3]]


def test_what_cannot_be_compared_is_refused() -> None:
    """Names and types are looked at when it is planned."""
    schema = pa.schema([("text", pa.string()), ("n", pa.list_(pa.int64()))])
    with pytest.raises(ConfigError, match=r"dedup_exact: .*'txt'.*'text'"):
        Chosen(ExactDedup(("txt",))).schema([schema])
    with pytest.raises(ConfigError, match=r"keep='frist'; did you mean 'first'\?; there are first and last"):
        Chosen(ExactDedup(("text",), keep="frist")).schema([schema])
    with pytest.raises(ConfigError, match=r"dedup_exact\(priority=\).*nested"):
        Chosen(ExactDedup(("text",), priority="n")).schema([schema])
    with pytest.raises(ConfigError, match="no column to compare rows by"):
        Chosen(ExactDedup(())).schema([schema])
    assert Chosen(ExactDedup(("n",))).schema([schema]) is not None


def test_schemas_are_known_from_no_rows() -> None:
    """Without rows it gives what it gives of rows, and an extra table of the same schema."""
    same = ExactDedup(("a",), id_column="id", priority="p")
    shards = tables([[("x", 1.0, 1.0), ("x", 1.0, 2.0)]])
    marks = exchanged(Chosen(same), shards).table
    assert marks.schema == Chosen(same).schema([SCHEMA])
    _, told, _ = read_again(DropCopies(same), marks, shards)
    [rows, side] = DropCopies(same).apply(SCHEMA.empty_table(), ShardBooks(BadRowBudget()), BatchPosition("", 0))
    assert rows.schema == SCHEMA
    assert side.schema == told.schema
