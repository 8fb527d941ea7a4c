"""Shorthand for the tests: read an object whole or in part, with the bad rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from curate.formats.encoding import Encoding, detect
from curate.formats.file_slice import FileSlice
from curate.formats.rows import read
from curate.objects.bad_line import RejectedRow
from curate.storage.protocol import Object
from curate.tasks.shard import SliceKind


def rows_of(
    store: Any, object: Object, encoding: Encoding, schema: pa.Schema, batch_rows: int
) -> tuple[list[dict[str, Any]], list[RejectedRow]]:
    """Returns the rows of all of an object and the bad rows; checks that every table is what Arrow takes for one."""
    bad: list[RejectedRow] = []
    tables = list(read(FileSlice(store, object, encoding), schema, batch_rows, bad.append))
    for table in tables:
        table.validate(full=True)
    return [row for table in tables for row in table.to_pylist()], bad


def read_all(
    store: Any,
    object: Object,
    schema: pa.Schema,
    kind: SliceKind = SliceKind.WHOLE,
    start: int = 0,
    stop: int | None = None,
    batch_rows: int = 1000,
    declared: bool = False,
) -> tuple[list[dict[str, Any]], list[RejectedRow]]:
    """Returns the rows and the bad rows; checks that every table is as `read` promises."""
    bad: list[RejectedRow] = []
    encoding = replace(detect(object.uri), typed=frozenset(schema.names if declared else ()))
    tables = list(read(FileSlice(store, object, encoding, kind, start, stop), schema, batch_rows, bad.append))
    for table in tables:
        assert table.schema.equals(schema, check_metadata=True)
        assert all(column.num_chunks == 1 for column in table.columns)
        table.validate(full=True)
    assert [table.num_rows for table in tables[:-1]] == [batch_rows] * (len(tables) - 1)
    assert all(0 < table.num_rows <= batch_rows for table in tables)
    assert [row.line for row in bad] == sorted(row.line for row in bad)
    return [row for table in tables for row in table.to_pylist()], bad
