"""Columns that say where a row lies in its input: the file, which version of it, the slice of it, and the row there.

    file: "/data/a.jsonl", generation: "17…", start: 0, stop: 268435456, row: 41

Whatever becomes of a row then, it carries its place: two readers that cut files into the same slices mean the same row
by it, whichever rows each leaves out. Rows that cannot be read count, blank lines too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from curate.objects.bad_line import RowNumbers
from curate.tasks.shard import Shard

POSITION = "curate_position"
"""The column that rows keep in outputs, by which they are found again."""
PLACE = "curate_place"
"""The same, for as long as attributes are joined to rows that are read."""
PLACE_TYPE = pa.struct(
    [
        ("file", pa.string()),
        ("generation", pa.string()),
        ("start", pa.int64()),
        ("stop", pa.int64()),
        ("row", pa.int64()),
    ]
)


def placed_schema(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Returns a schema with columns of places, the last ones; those that it has are its own."""
    return pa.schema([*schema, *(pa.field(name, PLACE_TYPE) for name in names if name not in schema.names)])


def with_places(
    tables: Iterator[pa.Table], shard: Shard, numbers: RowNumbers, names: Sequence[str]
) -> Iterator[pa.Table]:
    """Yields the rows that are read of a shard with their places; `numbers`: those of the rows, as far as read."""
    read = 0
    for table in tables:
        rows = numbers.between(read, read + table.num_rows) - 1
        read += table.num_rows
        same = (shard.uri, shard.generation, shard.start, shard.stop)
        fixed = [pa.repeat(pa.scalar(value), len(rows)) for value in same]
        place = pa.StructArray.from_arrays([*fixed, pa.array(rows, pa.int64())], fields=list(PLACE_TYPE))
        for name in names:
            if name not in table.column_names:
                table = table.append_column(pa.field(name, PLACE_TYPE), place)
        yield table
