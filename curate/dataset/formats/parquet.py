"""Parquet: row groups in, columns by name, cast to the held schema. Nothing is read by several threads at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from curate.dataset.formats.badrow import BadRow, OnBadRow
from curate.dataset.formats.encoding import ReadAs
from curate.dataset.formats.hold import cast, plain, unify, widens
from curate.dataset.formats.infer import missing_column
from curate.dataset.formats.nulls import all_nullable, find_nulls
from curate.dataset.formats.source import Stored
from curate.errors import ConfigError, CorruptInput
from curate.storage.protocol import Object, Store

_DECODE_ROWS = 16_384
_DECODE_BYTES = 16 << 20
"""Rows, and about the bytes, decoded at a time: what memory takes beside a row group's stored bytes."""


@contextmanager
def _opened(store: Store, object: Object) -> Iterator[pq.ParquetFile]:
    """Yields the file, its footer read. Raises CorruptInput."""
    with Stored(store, object) as stored:
        with broken(stored):
            file = pq.ParquetFile(pa.PythonFile(stored, mode="r"), pre_buffer=False)
        yield file


@contextmanager
def broken(stored: Stored) -> Iterator[None]:
    """Turns what Arrow says of a file that it cannot read into CorruptInput with the URI."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        if stored.error is not None:
            raise
        raise CorruptInput(f"{stored.uri}: not a whole Parquet file: {error}") from error


def row_groups(store: Store, object: Object) -> list[int]:
    """Returns the stored bytes of every row group, from the footer. Raises CorruptInput."""
    with _opened(store, object) as file:
        metadata = file.metadata
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        return [
            sum(group.column(column).total_compressed_size for column in range(group.num_columns)) for group in groups
        ]


def sample_parquet(store: Store, object: Object, wanted: Mapping[str, pa.DataType | None] | None) -> pa.Schema:
    """Returns the footer's schema, nullable and without dictionary encoding: all columns, or the wanted ones.

    Raises CorruptInput; ConfigError for a wanted column that is missing or cannot be read as the type declared.
    """
    with _opened(store, object) as file:
        found = file.schema_arrow
    fields = []
    for name in found.names if wanted is None else wanted:
        if name not in found.names:
            raise missing_column(object.uri, name, found.names)
        if found.names.count(name) > 1:
            raise ConfigError(f"column {name!r} is in {object.uri} {found.names.count(name)} times")
        type = plain(found.field(name).type)
        declared = None if wanted is None else wanted[name]
        if declared is not None and not widens(type, declared):
            raise ConfigError(f"column {name!r} of {object.uri} is {type}; it cannot be read as {declared}")
        fields.append(pa.field(name, type if declared is None else declared))
    return pa.schema(fields)


def read_parquet(
    store: Store,
    object: Object,
    start: int,
    stop: int | None,
    schema: pa.Schema,
    on_bad_row: OnBadRow,
    how: ReadAs | None = None,
) -> Iterator[pa.Table]:
    """Yields the rows of row groups [start, stop) with exactly `schema`; a null where it has none makes a bad row.

    A column that is missing is null if `how` is given. Raises CorruptInput; SchemaMismatch for a column that is missing
    otherwise, or does not widen to its held type.
    """
    with Stored(store, object) as stored:
        with broken(stored):
            file = pq.ParquetFile(pa.PythonFile(stored, mode="r"), pre_buffer=False)
            found = file.schema_arrow
            count = file.metadata.num_row_groups
        unify(stored.uri, found, schema, how)
        there = [name for name in schema.names if name in found.names]
        stop = count if stop is None else stop
        if stop > count:
            raise CorruptInput(f"{stored.uri}: has {count} row groups, expected at least {stop}")
        groups = range(start, stop)
        batches = file.iter_batches(
            decode_rows(file.metadata, groups), row_groups=list(groups), columns=there, use_threads=False
        )
        nullable = all_nullable(schema)
        seen = 0
        while True:
            with broken(stored):
                batch = next(batches, None)
            if batch is None:
                return
            if not batch.num_rows:
                continue
            table = pa.Table.from_batches([batch])
            columns = [
                cast(stored.uri, table.column(field.name), field) if field.name in there else _nulls(len(table), field)
                for field in schema
            ]
            misfits: dict[int, str] = {}
            find_nulls(columns, schema, misfits)
            table = pa.Table.from_arrays(columns, schema=nullable)
            for index, reason in sorted(misfits.items()):
                row = table.slice(index, 1).to_pylist()[0]
                on_bad_row(BadRow(seen + index + 1, reason, orjson.dumps(row, default=str)))
            seen += len(table)
            if misfits:
                table = table.filter(pa.array([index not in misfits for index in range(len(table))]))
            if table.num_rows:
                yield table


def _nulls(rows: int, field: pa.Field) -> pa.ChunkedArray:
    return pa.chunked_array([pa.nulls(rows, field.type)])


def decode_rows(metadata: pq.FileMetaData, groups: range) -> int:
    """Returns how many rows of these row groups to decode at a time."""
    row_bytes = 1
    for index in groups:
        group = metadata.row_group(index)
        row_bytes = max(row_bytes, group.total_byte_size // max(1, group.num_rows))
    return max(1, min(_DECODE_ROWS, _DECODE_BYTES // row_bytes))
