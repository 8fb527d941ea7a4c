"""What tasks are given of a source: their own pieces, and nothing of the others."""

from __future__ import annotations

import pickle

import pyarrow as pa

from curate.pipeline.shard_books import BadRowBudget, ShardBooks
from curate.sources.memory import Range, Tables
from curate.sources.protocol import Projection
from curate.sources.shards import SourceRows
from curate.sources.split import whole
from curate.stores.open import open_store

ROWS = 1000


def tables(count: int) -> SourceRows:
    made = tuple(pa.table({"n": pa.array(range(ROWS * number, ROWS * number + ROWS))}) for number in range(count))
    return SourceRows([Tables("from_arrow", made, made[0].schema)], [Projection()])


def rows_of(source: SourceRows, given: object) -> list[tuple[str, int, list[int]]]:
    tally = ShardBooks(BadRowBudget())
    found = source.parts(whole("s", "", 0, ""), 0, given, 100, tally, open_store)  # type: ignore[arg-type]
    return [(name, rank, [n for one in rows for n in one.column(0).to_pylist()]) for name, rank, rows in found]


def test_what_travels_to_every_worker_does_not_grow_with_the_shards() -> None:
    few, many = tables(2), tables(200)
    assert len(many.inputs((), open_store).table) == 200
    assert len(pickle.dumps(many)) == len(pickle.dumps(few))
    assert len(pickle.dumps(SourceRows([Range(10**12)], [Projection()]))) < 2000


def test_a_task_reads_what_it_is_given_wherever_it_runs() -> None:
    source = tables(5)
    there = pickle.loads(pickle.dumps(source))
    for number, uri in enumerate(source.inputs((), open_store).table["uri"].to_pylist()):
        given = pickle.loads(pickle.dumps(source.given(uri)))
        [(name, rank, rows)] = rows_of(there, given)
        assert (name, rank) == (f"part-{number:05d}-of-00005", number)
        assert rows == list(range(number * ROWS, number * ROWS + ROWS))


def test_the_pieces_of_a_bundle_come_one_after_the_other() -> None:
    single = tables(5)
    bundled = SourceRows(single.sources, single.views, bundle_bytes=2 * 8 * ROWS)
    uris = bundled.inputs((), open_store).table["uri"].to_pylist()
    found = [rows_of(bundled, bundled.given(uri)) for uri in uris]
    assert [[rank for _, rank, _ in one] for one in found] == [[0, 1], [2, 3], [4]]
    assert [n for one in found for _, _, rows in one for n in rows] == list(range(5 * ROWS))
