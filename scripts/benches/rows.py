"""Rows that benches read: made by their numbers, written once, kept in the scratch folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .common import once
from .texts import Texts

CODEC: Final = "zstd"
FILES = 32
ROW_GROUPS = 4
"""Row groups of a file."""
ROW_BYTES = 148
"""About what a row of the large files has in Arrow."""
NUMBERS_BYTES = 44
"""What a row of a corpus has in Arrow beside its text."""
GROUPS = 1000
COPIES = 5
"""One row in so many of a corpus with copies has the text of another one."""


def large_files(folder: Path, megabytes: int) -> Path:
    """Writes `megabytes` MB of rows, as they are in Arrow, in 32 Parquet files, unless they are there."""
    rows = megabytes * 1_000_000 // FILES // ROW_BYTES
    return _parquet(folder, (large_rows(number * rows, rows) for number in range(FILES)), rows)


def large_rows(start: int, rows: int) -> pa.Table:
    """Returns rows with the ids from `start` on: numbers, and a text of about 100 characters that no other row has."""
    random = np.random.default_rng(start)
    ids = np.arange(start, start + rows)
    phrases = pa.array(
        [f"{'the weekly thread ' * 4}{k * 7919 % 10_007:x} {'early train ' * (k % 3)}" for k in range(1000)]
    )
    text = pc.binary_join_element_wise(
        phrases.take(pa.array(random.integers(0, len(phrases), rows))),
        pc.cast(pa.array(ids * 2_654_435_761), "string"),
        " ",
    )
    return pa.table(
        {
            "id": ids,
            "author": random.integers(0, 99_991, rows),
            "score": random.random(rows),
            "weight": random.standard_normal(rows).astype(np.float32),
            "text": text,
        }
    )


def exchange_files(folder: Path, rows: int) -> Path:
    """Writes `rows` rows in 32 Parquet files, unless they are there; about 150 bytes each in Arrow."""
    each = -(-rows // FILES)
    tables = (exchange_rows(number * each, min(each, rows - number * each)) for number in range(FILES))
    return _parquet(folder, tables, each)


def exchange_rows(start: int, rows: int) -> pa.Table:
    """Returns rows with the ids from `start` on: a random key, one of a thousand groups, a value, and a text."""
    large = large_rows(start, rows)
    return pa.table({"id": large["id"], **_numbers(start, rows), "score": large["score"], "text": large["text"]})


def corpus_rows(start: int, rows: int, text_bytes: int) -> pa.Table:
    """Returns rows of the same columns, with texts like those of corpora, of that size."""
    random = np.random.default_rng((start, 2))
    texts = Texts(text_bytes).make(random, rows)
    ids = np.arange(start, start + rows)
    return pa.table({"id": ids, **_numbers(start, rows), "score": random.random(rows), "text": texts})


def corpus_tables(rows: int, text_bytes: int) -> Iterator[pa.Table]:
    """Yields the rows of each of 32 files of a corpus."""
    each = -(-rows // FILES)
    for start in range(0, rows, each):
        yield corpus_rows(start, min(each, rows - start), text_bytes)


def corpus_files(folder: Path, rows: int, text_bytes: int) -> Path:
    """Writes a corpus in 32 Parquet files, unless they are there."""
    return _parquet(folder, corpus_tables(rows, text_bytes), -(-rows // FILES))


def corpus_with_copies(folder: Path, rows: int, text_bytes: int) -> Path:
    """The same, where every fifth row has the text of one in the file before."""

    def tables() -> Iterator[pa.Table]:
        before: pa.Array | None = None
        for table in corpus_tables(rows, text_bytes):
            texts = table["text"].combine_chunks()
            if before is not None:
                places = np.arange(len(texts))
                copies = pc.equal(pa.array(places % COPIES), 0)
                place = table.column_names.index("text")
                # Of the next row there: this row's own was replaced there, too.
                next_ones = before.take(pa.array((places + 1) % len(before)))
                table = table.set_column(place, "text", pc.if_else(copies, next_ones, texts))
            before = texts
            yield table

    return _parquet(folder, tables(), -(-rows // FILES))


def corpus_lines(folder: Path, rows: int, text_bytes: int) -> Path:
    """Writes a corpus in 32 gzipped files of JSON lines, unless they are there."""

    def make() -> None:
        import polars as pl

        for number, table in enumerate(corpus_tables(rows, text_bytes)):
            path = folder / f"part-{number:05d}.jsonl.gz"
            pl.DataFrame(table).write_ndjson(path, compression="gzip", compression_level=6)

    return once(folder, make)


def _numbers(start: int, rows: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng((start, 1))
    limits = np.iinfo(np.int64)
    return {
        "key": random.integers(limits.min, limits.max, rows, endpoint=True),
        "group": random.integers(0, GROUPS, rows),
        "value": random.integers(-1000, 1000, rows),
    }


def _parquet(folder: Path, tables: Iterator[pa.Table], rows: int) -> Path:
    """Writes each table as a Parquet file, unless they are there."""

    def make() -> None:
        for number, table in enumerate(tables):
            pq.write_table(table, folder / f"part-{number:05d}.parquet", -(-rows // ROW_GROUPS), compression=CODEC)

    return once(folder, make)
