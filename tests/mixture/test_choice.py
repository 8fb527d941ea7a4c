"""Rows of shards, drawn as a job draws them, beside plain Python; and what happens as a corpus grows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import curate
from curate.errors import ExchangeFailed
from curate.mixture.choice import KEYS, Drawn, Keys
from curate.mixture.mixture import Mixture, Source
from curate.mixture.rows import Mixing
from curate.mixture.take import Take
from curate.pipeline.shard_books import BadRowBudget, ShardBooks
from curate.pipeline.step import BatchPosition
from tests.dedup.marked import read_again
from tests.mixture.plain import mixed

Rows = list[dict[str, Any]]
SCHEMA = pa.schema([("id", pa.string()), ("source", pa.string()), ("tokens", pa.int64()), ("lang", pa.string())])

row = st.fixed_dictionaries(
    {
        "id": st.sampled_from([f"d{at}" for at in range(12)]),
        "source": st.sampled_from(["a", "b", "c", None]),
        "tokens": st.integers(0, 6),
        "lang": st.sampled_from(["en", "de", None]),
    }
)
corpora = st.lists(row, max_size=24)
mixings = st.builds(
    lambda budget, weights, most, by_tokens, strata: Mixing(
        Mixture(
            tuple(Source(name, weight, most) for name, weight in weights.items()),
            budget,
            "tokens" if by_tokens else "documents",
        ),
        "source",
        "id",
        count_column="tokens" if by_tokens else None,
        strata_column="lang" if strata else None,
        epoch_column="epoch",
        allow_shortfall=True,
    ),
    st.integers(1, 120),
    st.dictionaries(st.sampled_from("abd"), st.integers(1, 5) | st.floats(0.1, 3), min_size=1),
    st.integers(1, 6),
    st.booleans(),
    st.booleans(),
)


def drawn(mixing: Mixing, shards: Sequence[pa.Table], seed: int) -> tuple[list[int], ShardBooks]:
    """Returns how often each row is there, and the books of the choice."""
    tally, keys = ShardBooks(BadRowBudget("100%")), Keys(mixing)
    tables = [
        made
        for rank, shard in enumerate(shards)
        if shard.num_rows
        for made in keys.apply(shard, tally, BatchPosition(f"s{rank}", 0, rank))
    ]

    def read() -> Iterator[pa.Table]:
        yield from tables or [KEYS.empty_table()]

    (marks,) = Drawn(mixing).scan(read, tally)
    made, books, _ = read_again(Take(mixing), marks, shards, seed)
    if any(shard.num_rows for shard in shards):
        assert books["written_rows"].to_pylist() == [
            sum(table["source"].to_pylist().count(name) for table in made) for name in books["source"].to_pylist()
        ]
        assert books["source"].to_pylist() == mixing.mixture.names
    copies = []
    for shard, table in zip(shards, made, strict=True):
        # Copies of a row follow each other, so each row that begins again is the next one that is there at all.
        found = table.to_pylist()
        for one in shard.to_pylist():
            number = 0
            while found and found[0] == {**one, "epoch": number}:
                found.pop(0)
                number += 1
            copies.append(number)
        assert not found
    return copies, tally


def shards_of(rows: Rows, cut: int) -> list[pa.Table]:
    return [pa.Table.from_pylist(part, schema=SCHEMA) for part in (rows[:cut], rows[cut:])]


@given(mixings, corpora, st.integers(0, 24), st.integers(0, 5))
def test_rows_are_drawn_as_plainly(mixing: Mixing, rows: Rows, cut: int, seed: int) -> None:
    """In shards and batches of any size, ids and sizes as they are."""
    assert drawn(mixing, shards_of(rows, cut), seed)[0] == mixed(mixing, rows)


@given(mixings.filter(lambda one: one.strata_column is None), corpora, corpora)
def test_no_row_is_there_more_often_for_others(mixing: Mixing, rows: Rows, new: Rows) -> None:
    """Of a source, with the same budget; and if all of it can be met, documents come as others go."""
    before = drawn(mixing, [pa.Table.from_pylist(rows, schema=SCHEMA)], 0)[0]
    after = drawn(mixing, shards_of(rows + new, len(rows)), 0)[0]
    assert all(one <= other for one, other in zip(after, before, strict=False))
    if mixing.mixture.unit == "documents" and sum(before) == mixing.mixture.budget:
        assert sum(after) == sum(before)


def test_sources_beyond_those_that_are_told_apart_are_called_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not null, which is a value; those that are told apart are counted to the end."""
    monkeypatch.setattr("curate.mixture.choice.MOST_NAMES", 3)
    rows = [{"id": f"d{at}", "source": ["a", None, "b", "c", "d"][at % 5], "text": ""} for at in range(50)]
    with pytest.raises(
        ExchangeFailed, match=r"'source': null \(10 rows\), 'a' \(10 rows\), 'b' \(10 rows\), and others \(20 rows\)\."
    ):
        curate.from_items(rows).mix_sources({"web": 1}, 5, source_column="source", id_column="id").take_all()
