"""Nulls in columns that may have none: each makes a bad row. A held schema says so by a field that is not nullable."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from curate.dataset.formats.per_schema import per_schema


def find_nulls(columns: Iterable[pa.Array | pa.ChunkedArray], schema: pa.Schema, misfits: dict[int, str]) -> None:
    """Adds to `misfits` the rows with a null where the schema has none; a row already there keeps its reason."""
    for field, column in zip(schema, columns, strict=True):
        if not field.nullable and column.null_count:
            for index in pc.indices_nonzero(pc.is_null(column)).to_pylist():
                misfits.setdefault(index, f"column {field.name!r} is null")


@per_schema
def all_nullable(schema: pa.Schema) -> pa.Schema:
    """Returns the schema with every field nullable: what tables have once their nulls were looked at."""
    return pa.schema([field.with_nullable(True) for field in schema])
