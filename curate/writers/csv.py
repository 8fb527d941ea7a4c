"""CSV outputs with a header, compressed, whose bytes depend on the rows alone.

Text is quoted, so that a null, which is empty, is no empty text. Times are written as Arrow writes them
(`2020-01-02 03:04:05Z`), durations as counts of their unit. Lists, structs, maps and bytes have no place: what is
written is what `read_csv(schema=)` reads, value by value.

Uncompressed CSV cannot be written: the record of the shard travels behind compressed data, where readers do not look.
"""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.types as pt

from curate.arrow.canonical import stored_schema
from curate.arrow.recast import BeyondText, has_text, refuse_beyond_text
from curate.arrow.types import is_binary, is_text
from curate.arrow.unknown import empty
from curate.errors import ConfigError
from curate.objects.compress import Sink
from curate.writers.lines import LinesWriter


class CsvOutput(LinesWriter):
    """Writes tables of one schema as compressed CSV; `close` adds the record behind it."""

    format = "CSV"
    rows_at_once = 16_384

    def __init__(self, sink: Sink, schema: pa.Schema, codec: str) -> None:
        """Raises ConfigError for a column of a type that CSV has no place for."""
        super().__init__(sink, stored_schema(schema), codec)
        for field in schema:
            _check(field)
        if len(schema):
            self._envelope.write(_rendered(empty(self._schema), header=True))

    def _lines(self, table: pa.Table) -> bytes:
        data = _rendered(table, header=False)
        if table.num_columns > 1 or not table.column(0).null_count:
            return data
        # Readers pass over blank lines, and a null that is alone in its row would be one.
        type = table.schema.field(0).type
        if is_text(type):
            raise ConfigError(
                f"column {table.column_names[0]!r} is {type} and alone in its rows, and CSV cannot distinguish null "
                "from empty text; fill its nulls, write another column with it, or write parquet or jsonl"
            )
        return b"\n".join(line or b'""' for line in data.split(b"\n")[:-1]) + b"\n"


def _check(field: pa.Field) -> None:
    """Raises ConfigError for a type that cannot be written, or read again."""
    stored = stored_schema(pa.schema([field]))
    type = stored.field(0).type
    try:
        if is_binary(type) or not has_text(field.type):
            raise pa.ArrowNotImplementedError
        _rendered(empty(stored), header=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        remedy = "make it text (base64)" if is_binary(type) else "make it text"
        raise ConfigError(
            f"column {field.name!r} is {field.type}, which CSV cannot store; leave it out, {remedy}, or write "
            "parquet or jsonl"
        ) from error


def _rendered(table: pa.Table, header: bool) -> bytes:
    for index, field in enumerate(table.schema):
        try:
            for chunk in table.column(index).chunks:
                refuse_beyond_text(chunk, "CSV")
        except BeyondText as error:
            raise ConfigError(f"column {field.name!r} is {field.type} and {error}") from None
        if pt.is_timestamp(field.type) and field.type.tz is not None:
            # Before zones were kept to minutes, Arrow's text of their offset lacks the seconds.
            utc = table.column(index).cast(pa.timestamp(field.type.unit, "UTC"))
            table = table.set_column(index, field.name, utc)
    buffer = io.BytesIO()
    pa_csv.write_csv(table, buffer, pa_csv.WriteOptions(include_header=header))
    return buffer.getvalue()
