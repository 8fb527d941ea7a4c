"""Tables with an exact number of rows, from tables of any size; and tables of user code as they can be kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.types as pt

from curate.arrow.sizes import ranges_within, row_bytes
from curate.arrow.types import is_text_or_binary, roomy_type
from curate.errors import SchemaMismatch
from curate.log import get_logger
from curate.units import format_bytes

FIRST_BLOCK_BYTES = 1 << 20
"""Bytes at which what a piece gives first becomes a block."""


def sized(tables: Iterator[pa.Table], block_bytes: int) -> Iterator[pa.Table]:
    """Yields the rows in blocks that reach a size: first `FIRST_BLOCK_BYTES`, then twice that, up to `block_bytes`.

    So the first rows are there soon, and most blocks are large. Which rows a block has depends on nothing else but
    their schema, which all of them have.
    """
    gathered: list[pa.Table] = []
    size, enough = 0, min(FIRST_BLOCK_BYTES, block_bytes)
    for table in _sliced(tables, block_bytes):
        if gathered and not table.schema.equals(gathered[0].schema):
            yield joined(gathered)
            gathered, size = [], 0
        gathered.append(table)
        size += table.nbytes
        if size >= enough:
            yield joined(gathered)
            gathered, size, enough = [], 0, min(2 * enough, block_bytes)
    if gathered:
        yield joined(gathered)


def _sliced(tables: Iterator[pa.Table], most_bytes: int) -> Iterator[pa.Table]:
    """Yields the rows in tables of about `most_bytes` bytes at most, by what their rows have on average; of one row at
    least. Says once that there is a row that is larger."""
    warned = False
    for table in tables:
        size = table.nbytes
        rows = max(1, table.num_rows * most_bytes // size) if size > most_bytes else table.num_rows
        for at in range(0, table.num_rows, rows):
            part = table.slice(at, rows)
            if rows == 1 and not warned and part.nbytes > most_bytes:
                warned = True
                get_logger().warning(
                    "a row is larger than block_bytes, and is a block of its own",
                    row_bytes=format_bytes(part.nbytes),
                    block_bytes=format_bytes(most_bytes),
                )
            yield part


def first_rows(tables: Iterator[pa.Table], rows: int | None) -> Iterator[pa.Table]:
    """Yields the first rows, and asks for no table beyond; all of them if `rows` is None. No table is empty."""
    left = rows
    if left == 0:
        return
    for table in tables:
        if not table.num_rows:
            continue
        if left is not None and table.num_rows >= left:
            yield table.slice(0, left)
            return
        if left is not None:
            left -= table.num_rows
        yield table


def paced(tables: Iterator[pa.Table], step: int | None) -> Iterator[pa.Table]:
    """Yields all rows: `step` of them first, and then as many as there were so far; tables as they are if it is None.

    >>> [table.num_rows for table in paced(iter([pa.table({"n": range(9)})]), 2)]
    [2, 2, 4, 1]
    """
    if not step:
        yield from tables
        return
    given = 0
    for table in tables:
        at = 0
        while at < table.num_rows:
            own = table.slice(at, given or step)
            given += own.num_rows
            at += own.num_rows
            yield own


def joined(tables: list[pa.Table]) -> pa.Table:
    """Returns tables as one, types of nulls filled in and numbers widened."""
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")


def combined(table: pa.Table) -> pa.Table:
    """Returns rows with one chunk a column. Raises SchemaMismatch where Arrow cannot make that, with the column."""
    try:
        return table.combine_chunks()
    except pa.ArrowException:
        for name, column in zip(table.column_names, table.columns, strict=True):
            try:
                column.combine_chunks()
            except pa.ArrowException as error:
                raise SchemaMismatch(
                    f"column {name!r} is {column.type}, and rows of several batches do not become one array of it "
                    f"({error}): cast it first to plain values, such as pyarrow.string(), or to wider indexes, such as "
                    "pyarrow.dictionary(pyarrow.int32(), pyarrow.string())"
                ) from error
        raise


def kept(table: pa.Table, given: pa.Table | None = None) -> pa.Table:
    """Returns what user code made of the table that it was `given`, as it is now: with numbers in memory of its own.

    An array of numpy lends Arrow its memory, and user code may compute its next results in the same array: rows that
    are not written yet would change with it. Memory that nobody can write to, or that came with `given`, is shared.
    """
    if table is given:
        return table
    came: set[int] | None = None
    for at, field in enumerate(table.schema):
        if _is_copied(field.type):
            continue
        chunks = table.column(at).chunks
        changing = list(map(_changing, chunks))
        if not any(changing):
            continue
        if came is None:
            columns = () if given is None else given.columns
            came = {address for column in columns for chunk in column.chunks for address in _changing(chunk)}
        if all(one <= came for one in changing):
            continue
        own = [one if may <= came else pa.concat_arrays([one]) for one, may in zip(chunks, changing, strict=True)]
        table = table.set_column(at, field, pa.chunked_array(own, field.type))
    return table


def _is_copied(type: pa.DataType) -> bool:
    """Returns whether Arrow keeps values of a type in another way than numpy, and so has memory of its own for them."""
    return is_text_or_binary(type) or bool(pt.is_boolean(type) or pt.is_decimal(type) or pt.is_null(type))


def _changing(array: pa.Array) -> set[int]:
    """Returns where memory of an array lies that may be written to."""
    return {one.address for one in array.buffers() if one is not None and one.is_mutable and one.size}


def with_room(table: pa.Table, given: pa.Schema | None = None) -> pa.Table:
    """Returns what user code made with dictionaries of wide indexes, at any depth: each batch has as many values as its
    indexes can number, but rows of several batches become one. A column that was `given` in its type keeps it."""
    before = {field.name: field.type for field in given or ()}
    for at, field in enumerate(table.schema):
        to = roomy_type(field.type)
        if not to.equals(field.type) and before.get(field.name) != field.type:
            table = table.set_column(at, field.with_type(to), table.column(at).cast(to))
    return table


def room_together(tables: tuple[pa.Table, ...]) -> tuple[pa.Table, ...]:
    """Returns tables whose dictionaries have wider indexes where theirs cannot number the values of all chunks: rows of
    several chunks become one."""
    for at, field in enumerate(tables[0].schema if tables else ()):
        to = roomy_type(field.type)
        if not to.equals(field.type):
            try:
                pa.chunked_array([chunk for table in tables for chunk in table.column(at).chunks]).combine_chunks()
            except pa.ArrowException:
                wide = field.with_type(to)
                tables = tuple(table.set_column(at, wide, table.column(at).cast(to)) for table in tables)
    return tables


MOST_BYTES = 256 << 20
"""Bytes of a table above which it has fewer rows: as many as a row of text may have."""


def rechunk(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Yields the same rows in tables of `rows` rows, the last one smaller, none empty, each in one chunk. Rows that are
    larger than `MOST_BYTES` together are several tables, each of as many as fit, and of one at least.

    One chunk, so that user code cannot come to depend on how a file was read.
    """
    if rows < 1:
        raise ValueError(f"expected at least one row a batch, found {rows}")
    pending: list[pa.Table] = []
    pending_bytes = 0
    left = rows
    for table in tables:
        at = 0
        while at < table.num_rows:
            part = table.slice(at, left) if at or table.num_rows > left else table
            at += part.num_rows
            left -= part.num_rows
            pending.append(part)
            # Of a small table it takes longer to measure what its rows refer to than all that is done with it here.
            bound = part.get_total_buffer_size()
            pending_bytes += bound if bound <= MOST_BYTES else part.nbytes
            if pending_bytes > MOST_BYTES:
                *large, rest = _cut(_joined(pending))
                yield from large
                pending, pending_bytes = [rest], rest.nbytes
            if not left:
                yield _joined(pending)
                pending, pending_bytes, left = [], 0, rows
    if pending:
        yield _joined(pending)


def _cut(table: pa.Table) -> list[pa.Table]:
    """Returns as many rows as fit, again and again; the last table may grow."""
    ranges = ranges_within(row_bytes(table), MOST_BYTES)
    return [combined(table.slice(first, last - first)) for first, last in ranges]


def _joined(tables: list[pa.Table]) -> pa.Table:
    table = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
    return combined(table) if any(column.num_chunks > 1 for column in table.columns) else table
