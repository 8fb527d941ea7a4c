"""Tokens as datatrove reads them: the output is the `.ds.metadata`; beside it lie `.ds` and `.ds.index`, which come
first and carry no record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from curate.arrow.schema import conform
from curate.errors import ConfigError
from curate.objects.compress import Crc32Sink, Sink
from curate.objects.datatrove import TYPES, encode_ends, encode_metadata
from curate.objects.record import zstd_trailer
from curate.tokens.lists import token_lists, token_type

_INDEX = ".ds.index"


class DatatroveOutput:
    """Writes the lists of tables as documents."""

    def __init__(self, sink: Sink, schema: pa.Schema, tokens: Sink, index: Sink) -> None:
        """Raises ConfigError for anything but one column of lists of uint16 or uint32."""
        self.rows = 0
        self._schema = schema
        self._sink = sink
        self._tokens, self._index = Crc32Sink(tokens), Crc32Sink(index)
        found = token_type(schema, "datatrove") if len(schema) else np.dtype(np.uint16)
        if found.kind != "u" or found.itemsize not in TYPES:
            raise ConfigError(f"datatrove has tokens of uint16 or uint32, not {found}; write parquet")
        self._dtype: np.dtype[Any] = TYPES[found.itemsize]
        self._lengths: list[np.ndarray[Any, Any]] = []

    def write(self, table: pa.Table) -> None:
        """Takes the rows of `table`. Raises SchemaMismatch if it cannot be held to the schema; ConfigError for null."""
        table = conform(table, self._schema)
        self.rows += table.num_rows
        for values, lengths in token_lists(table) if table.num_columns else ():
            self._lengths.append(lengths)
            self._tokens.write(values.astype(self._dtype, copy=False).tobytes())

    def close_other(self, suffix: str, record: Mapping[str, Any]) -> None:
        """Writes the index. Neither file has a place for a record."""
        del record
        if suffix == _INDEX:
            self._index.write(encode_ends(self._all_lengths()))

    def close(self, record: Mapping[str, Any]) -> None:
        """Writes checksums of the other files, and the record behind them."""
        lines = Crc32Sink(self._sink)
        checksums = {".ds": self._tokens.crc32, _INDEX: self._index.crc32}
        lines.write(encode_metadata(self._dtype.itemsize, int(self._all_lengths().sum()), checksums))
        self._sink.write(zstd_trailer(record, lines.crc32, text=True))

    def _all_lengths(self) -> np.ndarray[Any, Any]:
        return np.concatenate([np.zeros(0, np.int64), *self._lengths])
