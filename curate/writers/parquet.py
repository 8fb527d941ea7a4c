"""Parquet outputs whose bytes depend on the rows alone, not on the tables they come in.

Rows are gathered into row groups that end at the same rows whatever the tables were: after 65,536 rows, or before the
row that would take the group over 64 MiB, measured row by row. Each group is one chunk and one write call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from curate.arrow.batches import combined
from curate.arrow.canonical import stored_schema
from curate.arrow.sizes import per_schema, row_bytes
from curate.arrow.types import contains, is_list_of_none
from curate.arrow.unknown import empty
from curate.errors import ConfigError
from curate.objects.compress import Buffer, Sink
from curate.objects.record import PARQUET_KEY, parquet_record, seal_footer
from curate.writers.output import OutputWriter

GROUP_ROWS = 65_536
GROUP_BYTES = 64 << 20
_SMALL_BYTES = 1 << 20
_SAMPLED_ROWS = 4096
"""Rows that are looked at for whether a column repeats itself."""
_SAMPLED_BYTES = 1 << 20
"""Of long values fewer are looked at: Arrow keeps no dictionary that is larger (`dictionary_pagesize_limit`)."""
FEWEST_SAMPLED = 64
"""Of fewer rows no column has a dictionary, unless they are large."""
_PAGE_CHECK_ROWS = 16
"""Rows between two looks at the size of page and dictionary. Arrow's 1,024 would make pages of whole groups, and take
twice their memory to write and to read, where rows are a megabyte; for small rows this costs nothing."""


class ParquetOutput(OutputWriter):
    """Writes tables of one schema as a Parquet file; `close` adds the record and the footer."""

    def __init__(
        self, sink: Sink, schema: pa.Schema, codec: str, group_rows: int = GROUP_ROWS, group_bytes: int = GROUP_BYTES
    ) -> None:
        """Raises ConfigError for a column of a type that Parquet has no place for."""
        super().__init__(stored_schema(schema))
        self._group_rows = group_rows
        self._group_bytes = group_bytes
        refuse_unknown(schema)
        self._arrays = _array_count(self._schema)
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._sink = sink
        self._buffer = Buffer()
        self._codec = codec
        self._opened: pq.ParquetWriter | None = None
        self._small: pa.BufferOutputStream | None = None
        """What a small file is written to, in place of the buffer: Arrow needs no Python to write there."""

    def _take(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        self._pending.append(table)
        self._pending_rows += table.num_rows
        self._pending_bytes += self._at_most(table)
        if self._pending_rows >= self._group_rows or self._pending_bytes >= self._group_bytes:
            self._write_groups(last=False)

    def close(self, record: Mapping[str, Any]) -> None:
        if self._opened is None and self._pending_bytes < _SMALL_BYTES:
            self._small = pa.BufferOutputStream()
        self._write_groups(last=True)
        if self._opened is None:
            self._opened = self._open(empty(self._schema))
        self._writer.add_key_value_metadata({PARQUET_KEY: parquet_record(record)})
        self._writer.close()
        if self._small is not None:
            with memoryview(self._small.getvalue()) as written:
                at = len(written) - _footer_bytes(written)
                self._sink.write(b"".join((written[:at], seal_footer(bytes(written[at:])))))
            return
        with self._buffer.getbuffer() as written:
            # Which is still in the buffer.
            at = len(written) - _footer_bytes(written)
            written[at:] = seal_footer(bytes(written[at:]))
        self._buffer.drain(self._sink)

    @property
    def _writer(self) -> Any:
        assert self._opened is not None
        return self._opened

    def _open(self, first: pa.Table) -> Any:
        """Opens the file; its first group says which columns are worth a dictionary. Of a tiny one none is: of 20 rows
        and three columns, a file is 6 % smaller without, and made in 70 % of the time: each page is compressed."""
        return pq.ParquetWriter(
            self._small or pa.PythonFile(self._buffer, mode="w"),
            self._schema,
            compression=self._codec,
            use_dictionary=not self._is_tiny(first) and repetitive(first),
            write_batch_size=_PAGE_CHECK_ROWS,
            write_page_checksum=True,
        )

    def _bound(self, table: pa.Table) -> int:
        """Returns no less than the sum of `row_bytes`: while it is small there is no need to measure."""
        # Measuring what a small table refers to takes longer than all else that is done with it here. It cannot be more
        # than if every row of every column referred to all of its buffers.
        return int(table.get_total_buffer_size() * table.num_rows * self._arrays)

    def _at_most(self, table: pa.Table) -> int:
        """Returns the bytes of a table, or more where it is small."""
        bound = self._bound(table)
        return int(bound if bound < _SMALL_BYTES else table.nbytes)

    def _is_tiny(self, group: pa.Table) -> bool:
        # By its rows, whatever lies beside them in its buffers.
        few = group.num_rows < FEWEST_SAMPLED
        return few and (self._bound(group) < _SMALL_BYTES or int(row_bytes(group).sum()) < _SMALL_BYTES)

    def _write_groups(self, last: bool) -> None:
        if not self._pending:
            return
        # Small files are many: a table that is a whole group is written as it is.
        table = self._pending[0] if len(self._pending) == 1 else pa.concat_tables(self._pending)
        at, rows = 0, table.num_rows
        while at < rows:
            left = table.slice(at) if at else table
            size = self._group_end(left)
            if size is None:
                if not last:
                    break
                size = left.num_rows
            group = combined(left.slice(0, size) if size < left.num_rows else left)
            if self._opened is None:
                self._opened = self._open(group)
            self._writer.write_table(group, row_group_size=size)
            # The small file's only write is the one at the end.
            if not last:
                self._buffer.drain(self._sink)
            at += size
        self._pending = [table.slice(at)] if at < rows else []
        self._pending_rows = rows - at
        self._pending_bytes = self._pending[0].nbytes if self._pending else 0

    def _group_end(self, table: pa.Table) -> int | None:
        """Returns the number of rows of the next group; None if further rows may still belong to it."""
        if self._pending_bytes >= self._group_bytes:
            head = table.slice(0, self._group_rows)
            if head.nbytes >= self._group_bytes:
                ends = np.cumsum(row_bytes(head))
                fitting = max(1, int(np.searchsorted(ends, self._group_bytes, side="right")))
                if fitting < head.num_rows:
                    return fitting
        return self._group_rows if table.num_rows >= self._group_rows else None


def _footer_bytes(written: memoryview) -> int:
    """Returns how long the footer is that ends a file."""
    return int.from_bytes(written[-8:-4], "little") + 8


def repetitive(table: pa.Table) -> bool | list[str]:
    """Returns the paths of the columns to write with a dictionary: True for all of them, where there are few rows.

    Not those whose values are different, mostly, as far as the first rows tell. Arrow would make a dictionary for them,
    too, find it too large, and go on without: for as long as all else takes that writing a file does, and larger files.
    """
    if table.num_rows < _SAMPLED_ROWS:
        return True
    sample = table.slice(0, _SAMPLED_ROWS)
    different = {name for name in table.column_names if _differs(sample[name])}
    return [path for path, name in _leaves(table.schema) if name not in different] if different else True


def _differs(column: pa.ChunkedArray) -> bool:
    if column.nbytes > _SAMPLED_BYTES:
        column = column.slice(0, max(FEWEST_SAMPLED, len(column) * _SAMPLED_BYTES // column.nbytes))
    try:
        return bool(pc.count_distinct(column).as_py() > len(column) // 2)
    except pa.ArrowNotImplementedError:
        return False  # lists, structs, tensors, half floats


@per_schema
def _leaves(schema: pa.Schema) -> list[tuple[str, str]]:
    """Returns the path of each column of the file, and the name of the one that it is a part of."""
    sink = pa.BufferOutputStream()
    pq.write_table(empty(schema), sink)
    stored = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    names = iter([field.name for field in schema for _ in range(_leaf_count(field.type))])
    return [(stored.column(k).path, next(names)) for k in range(len(stored))]


def _leaf_count(type: pa.DataType) -> int:
    if not pt.is_nested(type):
        return 1
    return sum(_leaf_count(type.field(k).type) for k in range(type.num_fields))


@per_schema
def refuse_unknown(schema: pa.Schema) -> None:
    """Raises ConfigError for a column of a type that Parquet has no place for."""
    for stored, field in zip(stored_schema(schema), schema, strict=True):
        sink = pa.BufferOutputStream()
        try:
            if contains(stored.type, is_list_of_none):
                raise pa.ArrowNotImplementedError("a null is read as a list of one, which is refused")
            pq.write_table(empty(pa.schema([stored])), sink)
        except (pa.ArrowException, OSError) as error:
            raise ConfigError(
                f"column {field.name!r} is {field.type}, which Parquet cannot store: {error}; leave it out, or convert "
                "it"
            ) from error


@per_schema
def _array_count(schema: pa.Schema) -> int:
    return sum(map(_arrays, schema.types))


def _arrays(type: pa.DataType) -> int:
    """Returns how many arrays one of this type is made of."""
    return 1 + sum(_arrays(type.field(index).type) for index in range(type.num_fields))
