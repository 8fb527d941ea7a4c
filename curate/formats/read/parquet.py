"""Parquet: row groups in, columns by name, cast to the held schema. Nothing is read by several threads at once.

What is decoded can be much larger than what is stored: numbers that repeat themselves are stored as runs, texts as
numbers of a dictionary. So what a row takes is counted by its values, and texts of a dictionary stay one until a few of
their rows are taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from curate.arrow.schema import cast, widens
from curate.arrow.sizes import ranges_within, row_bytes
from curate.arrow.types import contains, is_list_view, is_text, type_to_read
from curate.arrow.unknown import all_nullable, find_nulls, of_no_rows
from curate.errors import ConfigError, CorruptInput, SchemaMismatch
from curate.formats.file_schema import refuse_mismatch
from curate.formats.file_slice import FileSlice
from curate.formats.read.json_schema import missing_column
from curate.formats.read.parquet_file import broken, open_parquet, reopened
from curate.objects.bad_line import OnBadRow, RejectedRow
from curate.objects.stream import StoredStream
from curate.storage.protocol import Object, Store
from curate.texts.pieces import readable, shown

_DECODE_ROWS = 16_384
_DECODE_BYTES = 16 << 20
"""Rows, and about the bytes, decoded at a time: what memory takes beside a row group's stored bytes."""

_ROW_BYTES = 256 << 20
_BOMB_TIMES = 100
"""A row that takes more than that, decoded, and so many times what is stored of it, is none that anybody wrote."""
_DICTIONARY_BYTES = 4 << 20
"""Encoded bytes of texts up to which they are taken to be in a dictionary for the most part, above what their numbers
take: writers give up a dictionary above a MiB or two. Half of that, where more is stored than a dictionary and numbers:
then there are texts behind it, and to decode these as a dictionary takes half as long again."""
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
"""Bytes of a value, at least; of texts what tells where they are."""


def row_groups(store: Store, object: Object) -> list[int]:
    """Returns the stored bytes of every row group, from the footer. Raises CorruptInput."""
    with StoredStream(store, object) as stored:
        metadata = open_parquet(stored).metadata
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        return [
            sum(group.column(column).total_compressed_size for column in range(group.num_columns)) for group in groups
        ]


def sample_parquet(file: FileSlice, wanted: Mapping[str, pa.DataType | None] | None) -> pa.Schema:
    """Returns the footer's schema, nullable and with plain types: all columns, or the wanted ones. Columns of one name
    are left out if it is not asked for.

    Raises CorruptInput; ConfigError for a wanted column that is missing or cannot be read as the type declared.
    """
    with file.open_stored() as stored:
        parquet = open_parquet(stored)
    found, rows = parquet.schema_arrow, parquet.metadata.num_rows
    asked = None if file.how is None else file.how.asked
    fields, times = [], Counter(found.names)
    for name in found.names if wanted is None else wanted:
        if name not in times:
            raise missing_column(file.uri, name, found.names)
        if times[name] > 1:
            if wanted is None and asked is not None and name not in asked:
                continue
            told = (
                f"column {name!r} is in {file.uri} {times[name]} times; write it again, each with a name of its own, "
                "or ask for others by their names"
            )
            raise ConfigError.of_column(told, name)
        type = type_to_read(found.field(name).type)
        declared = None if wanted is None else wanted[name]
        if declared is not None and not widens(type, declared):
            told = f"column {name!r} of {file.uri} is {type}; it cannot be read as {declared}"
            raise ConfigError.of_column(told, name)
        fields.append(pa.field(name, type if declared is None else declared))
    return pa.schema(fields) if rows else of_no_rows(pa.schema(fields))


def read_parquet(file: FileSlice, schema: pa.Schema, on_bad_row: OnBadRow) -> Iterator[pa.Table]:
    """Yields the rows of the row groups of a slice with exactly `schema`; a null where it has none makes a bad row.

    Raises CorruptInput; SchemaMismatch for columns that do not fit (see `refuse_mismatch`).
    """
    with file.open_stored() as stored:
        parquet = open_parquet(stored)
        found = parquet.schema_arrow
        count = parquet.metadata.num_row_groups
        with broken(stored):
            repeated = _repeated(parquet.metadata, found)
        if repeated:
            parquet = reopened(stored, parquet.metadata, repeated)
        if not len(schema):
            # No file that was looked into said a column. That it is one, is seen here.
            if parquet.metadata.num_rows:
                raise SchemaMismatch(
                    f"{stored.uri}: has {parquet.metadata.num_rows:,} rows, but its columns are unknown: none of the "
                    "sampled files has rows or can be read; declare the columns"
                )
            return
        if not parquet.metadata.num_rows:
            return  # no value is of another type, whatever the footer says
        refuse_mismatch(stored.uri, found, schema, file.encoding)
        names = frozenset(found.names)
        there = [name for name in schema.names if name in names]
        beside = _looser(None if file.how is None else file.how.beside, found)
        named = [*there, *(field.name for field in beside)]
        stop = count if file.stop is None else file.stop
        if stop > count:
            raise CorruptInput(f"{stored.uri}: has {count} row groups, expected at least {stop}")
        groups = range(file.start, stop)
        with broken(stored):
            _refuse_bomb(stored.uri, parquet.metadata, groups, named)
            rows_left = sum(parquet.metadata.row_group(number).num_rows for number in groups)
        batches = _batches(parquet, groups, named, apart=any("." in path for path in repeated))
        seen = 0
        while True:
            with broken(stored):
                batch = next(batches, None)
                if repeated and batch is not None:
                    _refuse_numbers(batch.columns)
            if batch is None:
                if rows_left:
                    raise CorruptInput(f"{stored.uri}: not a whole Parquet file: {rows_left:,} rows are missing")
                return
            rows_left -= batch.num_rows
            if not batch.num_rows:
                continue
            whole = pa.Table.from_batches([batch])
            for table in _small(stored.uri, whole) if repeated else [whole]:
                kept = _held(stored.uri, table, schema, there, beside, seen, on_bad_row)
                seen += len(table)
                if kept.num_rows:
                    yield kept


def _looser(beside: pa.Schema | None, found: pa.Schema) -> list[pa.Field]:
    """Returns the columns of a schema that a file has of another type, which may have nulls where it has none."""
    looser = []
    for field in beside or ():
        at = found.get_field_index(field.name)
        type = field.type if at < 0 else type_to_read(found.field(at).type)
        if not type.equals(field.type) and widens(type, field.type):
            looser.append(field)
    return looser


def _held(
    uri: str,
    table: pa.Table,
    schema: pa.Schema,
    there: Sequence[str],
    beside: Sequence[pa.Field],
    seen: int,
    on_bad_row: OnBadRow,
) -> pa.Table:
    """Returns the rows of a table that fit the schema, and columns `beside` it, as the schema says them; the others are
    bad. `seen`: rows before it."""
    read = frozenset(there)
    columns = [
        cast(uri, table.column(field.name), field)
        if field.name in read
        else pa.chunked_array([pa.nulls(len(table), field.type)])
        for field in schema
    ]
    misfits: dict[int, str] = {}
    find_nulls(columns, schema, misfits)
    for field in beside:
        with suppress(SchemaMismatch):  # no row of it is read by anybody
            find_nulls([cast(uri, table.column(field.name), field)], pa.schema([field]), misfits)
    _find_unreadable(columns, schema, misfits)
    held = pa.Table.from_arrays(columns, schema=all_nullable(schema))
    for index, reason in sorted(misfits.items()):
        row = {name: shown(held[name][index]) for name in schema.names}
        on_bad_row(RejectedRow(seen + index + 1, reason, orjson.dumps(row, default=str)))
    return held.filter(pa.array([index not in misfits for index in range(len(held))])) if misfits else held


def _find_unreadable(columns: Sequence[pa.ChunkedArray], schema: pa.Schema, misfits: dict[int, str]) -> None:
    """Adds to `misfits` the rows with a text that is not UTF-8 in a column that has to have one."""
    for field, column in zip(schema, columns, strict=True):
        if field.nullable or not is_text(field.type):
            continue
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            plain, _ = readable(column)
            for index in pc.indices_nonzero(pc.and_(pc.is_null(plain), pc.is_valid(column))).to_pylist():
                misfits.setdefault(index, f"column {field.name!r} is not UTF-8")


def _batches(file: pq.ParquetFile, groups: range, columns: Sequence[str], *, apart: bool) -> Iterator[pa.RecordBatch]:
    """Yields the rows of row groups. `apart`: none of two of them, as Arrow cannot put dictionaries below lists and
    structs together."""
    rows = decode_rows(file.metadata, groups)
    for some in [[group] for group in groups] if apart else [list(groups)]:
        yield from file.iter_batches(rows, row_groups=some, columns=columns, use_threads=False)


def _repeated(metadata: pq.FileMetaData, schema: pa.Schema) -> list[str]:
    """Returns the paths of the columns of texts that are dictionaries for the most part: what they take is not known
    from what is stored. They cost nothing more to be read as such; others would, several times. None in views of lists,
    of which Arrow casts no dictionaries to their texts."""
    views = tuple(f"{field.name}." for field in schema if contains(field.type, is_list_view))
    found: dict[str, None] = {}
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for index in range(group.num_columns):
            chunk = group.column(index)
            if chunk.physical_type != "BYTE_ARRAY" or not chunk.has_dictionary_page:
                continue
            if chunk.path_in_schema.startswith(views):
                continue
            size = chunk.total_uncompressed_size
            packed = size > _BOMB_TIMES * max(1, chunk.total_compressed_size)
            behind = chunk.total_compressed_size - (chunk.data_page_offset - chunk.dictionary_page_offset)
            most = _DICTIONARY_BYTES if behind <= 4 * chunk.num_values else _DICTIONARY_BYTES // 2
            if packed or size <= most + 4 * chunk.num_values:
                found[chunk.path_in_schema] = None
    return list(found)


def _refuse_numbers(columns: Iterable[pa.Array]) -> None:
    """Raises LookupError for numbers that their dictionary does not have: of these Arrow reads what lies in memory."""
    for column in columns:
        if pt.is_dictionary(column.type):
            least, most = pc.min_max(column.indices).values()
            if least.is_valid and not 0 <= least.as_py() <= most.as_py() < len(column.dictionary):
                raise LookupError(f"text {most} of a dictionary of {len(column.dictionary):,}")
        elif pt.is_struct(column.type):
            _refuse_numbers(column.flatten())
        elif pt.is_nested(column.type):
            _refuse_numbers([column.keys, column.items] if pt.is_map(column.type) else [column.values])


def _small(uri: str, table: pa.Table) -> Iterator[pa.Table]:
    """Yields the rows of a table in parts whose texts take no more than a few MiB, decoded; of one row at least."""
    texts = table.select([field.name for field in table.schema if _has_dictionary(field.type)])
    stored_bytes = texts.nbytes
    nested = any(pt.is_nested(field.type) for field in texts.schema)
    sizes = row_bytes(texts)
    for first, last in ranges_within(sizes, _DECODE_BYTES):
        if last == first + 1 and sizes[first] > max(_ROW_BYTES, _BOMB_TIMES * stored_bytes):
            raise CorruptInput(f"{uri}: a row takes {sizes[first]:,} bytes, decoded from {stored_bytes:,}; {_REMEDY}")
        part = table.slice(first, last - first)
        # A cast decodes all that lies under a list, and not only what a slice of it has.
        yield part.take(pa.array(np.arange(part.num_rows))) if nested and part.num_rows < table.num_rows else part


def _has_dictionary(type: pa.DataType) -> bool:
    return pt.is_dictionary(type) or any(_has_dictionary(type.field(k).type) for k in range(type.num_fields))


_REMEDY = "a row may take up to 256 MiB: leave that column out with columns=, or write the file again with more rows"


def _refuse_bomb(uri: str, metadata: pq.FileMetaData, groups: range, columns: Sequence[str]) -> None:
    """Raises CorruptInput for row groups whose rows take more than any do, by the footer's count of their values."""
    for number in groups:
        group = metadata.row_group(number)
        for index in range(group.num_columns):
            chunk = group.column(index)
            size = _decoded_bytes(metadata, chunk, index)
            if size <= max(_ROW_BYTES * group.num_rows, _BOMB_TIMES * chunk.total_uncompressed_size):
                continue
            if any(f"{chunk.path_in_schema}.".startswith(f"{name}.") for name in columns):
                raise CorruptInput(
                    f"{uri}: column {chunk.path_in_schema!r} of row group {number} has {chunk.num_values:,} values in "
                    f"{group.num_rows:,} rows, {size:,} bytes decoded from {chunk.total_uncompressed_size:,}; {_REMEDY}"
                )


def _decoded_bytes(metadata: pq.FileMetaData, chunk: pq.ColumnChunkMetaData, index: int) -> int:
    """Returns what the values of a column take at least, if none is null."""
    width = _WIDTHS.get(chunk.physical_type) or metadata.schema.column(index).length
    return int(chunk.num_values * width)


def decode_rows(metadata: pq.FileMetaData, groups: range) -> int:
    """Returns how many rows of these row groups to decode at a time."""
    most = 1
    for number in groups:
        group = metadata.row_group(number)
        sizes = [group.total_byte_size]
        sizes.append(sum(_decoded_bytes(metadata, group.column(k), k) for k in range(group.num_columns)))
        # Each text may begin with all of the one before.
        chunks = [group.column(k) for k in range(group.num_columns)]
        shared = [one.total_uncompressed_size for one in chunks if "DELTA_BYTE_ARRAY" in one.encodings]
        sizes.append(sum(shared) * group.num_rows // _SHARED_PART)
        most = max(most, max(sizes) // max(1, group.num_rows))
    return max(1, min(_DECODE_ROWS, _DECODE_BYTES // most))


_SHARED_PART = 16
"""Of the bytes of a column whose texts share their beginnings, the part that one of them has at most, for all that is
done about it: a batch is 256 MiB then, and not 16."""
