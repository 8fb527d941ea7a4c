"""Samples of dropped rows: of each reason the rows of the lowest hashes, the same however a shard is cut."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.objects.samples import MOST_SAMPLED, DroppedRow
from curate.pipeline.dropped_rows import (
    ROW_CHARS,
    SHOWN_CHARS,
    SHOWN_ELEMENTS,
    DroppedSamples,
    is_favoured,
    row_words,
)
from curate.pipeline.shard_books import BadRowBudget, DetachedBooks, ShardBooks

WHY = "why"
ROWS = 3_000


def corpus(seed: int = 1) -> pa.Table:
    chance = random.Random(seed)
    texts = ["".join(chance.choice("abcé ") for _ in range(chance.randrange(60))) for _ in range(ROWS)]
    return pa.table(
        {
            "id": [f"t3_{number}" for number in range(ROWS)],
            "text": [None if chance.random() < 0.1 else text for text in texts],
            "score": [None if chance.random() < 0.1 else chance.randrange(5) for _ in range(ROWS)],
            "flag": [chance.random() < 0.5 for _ in range(ROWS)],
        }
    )


def sampled(tables: Iterator[pa.Table] | list[pa.Table]) -> list[DroppedRow]:
    """Returns what is kept of tables all of whose rows are dropped."""
    samples = DroppedSamples()
    for table in tables:
        samples.add(WHY, table, np.arange(table.num_rows))
    return samples.rows()


def cut(table: pa.Table, sizes: list[int]) -> Iterator[pa.Table]:
    at = 0
    for size in sizes:
        yield table.slice(at, size)
        at += size
    yield table.slice(at)


def ids(rows: list[DroppedRow]) -> list[str]:
    return [orjson.loads(row.row)["id"] for row in rows]


WHOLE = sampled([corpus()])


@pytest.mark.slow
@given(st.lists(st.integers(1, 900), max_size=8))
def test_batches_do_not_matter(sizes: list[int]) -> None:
    assert sampled(cut(corpus(), sizes)) == WHOLE


@pytest.mark.parametrize(
    "stored",
    [
        lambda table: pa.concat_tables([table.slice(0, 7), table.slice(7, 2_000), table.slice(2_007)]),
        lambda table: table.cast(table.schema.set(1, pa.field("text", pa.large_string()))),
        lambda table: table.cast(table.schema.set(1, pa.field("text", pa.string_view()))),
        lambda table: pa.concat_tables([table.slice(0, 5), table]).slice(5),
    ],
)
def test_how_a_table_is_stored_does_not_matter(stored: Callable[[pa.Table], pa.Table]) -> None:
    """But for what is favoured, which looks at lengths where they are at hand."""
    table, at = corpus(), np.arange(ROWS)
    assert (row_words(stored(table), at) == row_words(table, at)).all()
    some = np.array([3, 5, 900, 2_999])
    assert (row_words(stored(table), some) == row_words(table, at)[some]).all()


def test_they_are_those_of_the_lowest_hashes() -> None:
    """As a sort of all rows says."""
    table, at = corpus(), np.arange(ROWS)
    words = (row_words(table, at) >> np.uint64(1)) | np.where(is_favoured(table, at), np.uint64(0), np.uint64(1 << 63))
    order = np.argsort(words, kind="stable")[:MOST_SAMPLED]
    assert ids(WHOLE) == [f"t3_{number}" for number in order]
    assert [row.hash for row in WHOLE] == words[order].tolist()


def test_rows_are_told_apart() -> None:
    """Whatever column they differ in, and wherever in a short text."""
    table = pa.table({"a": ["", None, "x", "y", "xy", "yx", "\0", "x"], "b": [1, 1, 1, 1, 1, 1, 1, 2]})
    assert len(set(row_words(table, np.arange(8)).tolist())) == 8


def test_alike_rows_are_kept_once() -> None:
    table = pa.table({"id": ["a"] * 50 + ["b"] * 50})
    assert ids(sampled([table, table])) in (["a", "b"], ["b", "a"])


def test_rows_of_pools_are_the_same() -> None:
    """What is booked elsewhere, batch by batch, gives what is booked at hand."""
    there, here = ShardBooks(BadRowBudget("100%"), sampled=True), ShardBooks(BadRowBudget("100%"), sampled=True)
    for batch in cut(corpus(), [100, 700, 1]):
        apart = DetachedBooks(sampled=True)
        for books in (apart, here):
            books.drop_rows(batch, np.ones(batch.num_rows, bool), WHY)
        there.merge(apart.booked())
    assert there.samples is not None
    assert here.samples is not None
    assert there.samples.rows() == here.samples.rows() == WHOLE
    assert there.books.dropped == {WHY: ROWS}


def test_what_is_taken_back_leaves_no_sample() -> None:
    books = ShardBooks(BadRowBudget("100%"), sampled=True)
    table = corpus()
    books.begin()
    books.drop_rows(table.slice(0, 10), np.ones(10, bool), WHY)
    books.commit()
    assert books.samples is not None
    kept = books.samples.rows()
    books.begin()
    books.drop_rows(table.slice(10), np.ones(ROWS - 10, bool), WHY)
    books.rollback()
    assert books.samples.rows() == kept
    assert books.books.dropped == {WHY: 10}


def test_a_batch_that_drops_nothing_keeps_nothing() -> None:
    books = ShardBooks(BadRowBudget("100%"), sampled=True)
    books.drop_rows(corpus(), np.zeros(ROWS, bool), WHY)
    assert not books.samples
    assert not books.books.dropped


def test_long_values_are_cut_and_their_length_is_said() -> None:
    whole = {"text": "é" * 10_000_000, "bytes": b"x" * 9_000, "list": [*range(1_000)], "n": 5}
    [row] = sampled([pa.Table.from_pylist([whole])])
    told = orjson.loads(row.row)
    assert (len(told["text"]), len(told["list"]), told["n"]) == (SHOWN_CHARS, SHOWN_ELEMENTS, 5)
    assert row.cut == {"text": 10_000_000, "bytes": 9_000, "list": 1_000}


def test_a_row_of_many_columns_is_bounded() -> None:
    [row] = sampled([pa.table({f"c{number}": ["w" * 400] for number in range(1_000)})])
    assert len(row.row) < 2 * ROW_CHARS
    assert row.left_out == 1_000 - len(orjson.loads(row.row))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1, 2], [], None]),
        pa.array([{"a": {"b": "x" * 5_000}}, {"a": None}, None]),
        pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        pa.array(["a", None, "b"]).dictionary_encode(),
        pa.array([b"\xff\xfe", b"", None]),
        pa.array([float("nan"), float("inf"), None]),
        pa.array([2**63, 2**64 - 1, None], pa.uint64()),
        pa.array([10**18, 0, None], pa.timestamp("ns")),
        pa.array([-(2**62), 0, None], pa.timestamp("s")),
        pa.array([1, 2, None], pa.duration("ns")),
        pa.array(["1.50", "2.25", None]).cast(pa.decimal128(9, 2)),
        pa.array([None, None, None]),
        pa.array([True, False, None]),
        pa.array([1.5, None, 2], pa.float16()),
        pa.array(["v", None, "w" * 5_000], pa.string_view()),
        pa.UnionArray.from_sparse(pa.array([0, 0, 0], pa.int8()), [pa.array([1, 2, None])]),
        pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2)),
        pa.array([b"abcd", b"efgh", None], pa.binary(4)),
    ],
    ids=lambda column: str(column.type)[:30],
)
def test_values_of_all_types_are_kept(column: pa.Array) -> None:
    for table in (pa.table({"c": column}), pa.table({"c": column.slice(1)}), pa.table({"id": [1, 2, 3], "c": column})):
        rows = sampled([table])
        assert 1 <= len(rows) <= table.num_rows
        assert all("c" in orjson.loads(row.row) for row in rows)
    assert "\n" not in rows[0].row


def test_texts_that_are_no_utf8_are_shown_as_they_can_be() -> None:
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array([b"a\xffb"]).buffers())
    assert orjson.loads(sampled([pa.table({"t": broken})])[0].row) == {"t": "a\ufffdb"}
