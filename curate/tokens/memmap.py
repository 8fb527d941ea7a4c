"""All tokens of a shard as one array of numpy (`.npy`): document after document, as Dolma and nanoGPT read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from curate.arrow.schema import conform
from curate.objects.compress import Envelope, Sink, Waiting
from curate.tokens.lists import token_lists, token_type
from curate.writers.npy import array_header


class MemmapOutput:
    """Writes the lists of tables as one array; `close` adds the header before it and the record behind it."""

    def __init__(self, sink: Sink, schema: pa.Schema, codec: str) -> None:
        """Raises ConfigError for anything but one column of lists of integers."""
        self.rows = 0
        self._schema = schema
        self._envelope = Envelope(sink, codec)
        self._tokens = 0
        self._values = Waiting()
        self._dtype = token_type(schema, "memmap") if len(schema) else np.dtype(np.uint16)

    def write(self, table: pa.Table) -> None:
        """Takes the rows of `table`. Raises SchemaMismatch if it cannot be held to the schema; ConfigError for null."""
        table = conform(table, self._schema)
        self.rows += table.num_rows
        for values, _ in token_lists(table) if table.num_columns else ():
            self._tokens += len(values)
            self._values.write(np.ascontiguousarray(values).data)

    def close(self, record: Mapping[str, Any]) -> None:
        """Writes header, tokens and record."""
        self._envelope.write(array_header(self._dtype, (self._tokens,)))
        self._values.copy_into(self._envelope)
        self._envelope.close(record)
