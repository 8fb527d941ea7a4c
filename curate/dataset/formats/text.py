"""Plain text: one row a line, its number and its text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from curate.dataset.formats.badrow import BadRow, OnBadRow
from curate.dataset.formats.encoding import Codec
from curate.dataset.formats.infer import missing_column
from curate.dataset.formats.lines import line_blocks
from curate.errors import ConfigError
from curate.storage.protocol import Object, Store

TEXT_SCHEMA = pa.schema([("line", pa.int64()), ("text", pa.string())])


def sample_text(uri: str, wanted: Mapping[str, pa.DataType | None] | None) -> pa.Schema:
    """Returns the fixed schema, or the wanted part of it. Raises ConfigError for other columns and types."""
    if wanted is None:
        return TEXT_SCHEMA
    fields = []
    for name, declared in wanted.items():
        if name not in TEXT_SCHEMA.names:
            raise missing_column(uri, name, TEXT_SCHEMA.names)
        field = TEXT_SCHEMA.field(name)
        if declared is not None and declared != field.type:
            raise ConfigError(f"column {name!r} of a text file is {field.type}, found {declared} declared")
        fields.append(field)
    return pa.schema(fields)


def read_text(
    store: Store,
    object: Object,
    codec: Codec | None,
    start: int,
    stop: int | None,
    schema: pa.Schema,
    on_bad_row: OnBadRow,
) -> Iterator[pa.Table]:
    """Yields the lines that begin in [start, stop), numbered from 1 within the slice; blank ones are left out.

    A line that is not UTF-8 is a bad row. Raises CorruptInput.
    """
    seen = 0
    for lines in line_blocks(store, object, codec, start, stop):
        numbers: list[int] = []
        texts: list[str] = []
        for number, line in enumerate(lines, seen + 1):
            if not line or line.isspace():
                continue
            try:
                texts.append((line[:-1] if line[-1] == 13 else line).decode())
            except UnicodeDecodeError:
                on_bad_row(BadRow(number, "invalid UTF-8", line.rstrip(b"\r")))
            else:
                numbers.append(number)
        if texts:
            table = pa.Table.from_arrays(
                [pa.array(numbers, pa.int64()), pa.array(texts, pa.string())], schema=TEXT_SCHEMA
            )
            yield table.select(schema.names).cast(schema)
        seen += len(lines)
