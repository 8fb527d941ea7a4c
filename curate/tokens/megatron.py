"""Tokens as Megatron-LM reads them: the output is the `.idx`; beside it lies the `.bin`, which comes first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from curate.arrow.schema import conform
from curate.errors import ConfigError
from curate.objects.compress import Envelope, Sink
from curate.objects.megatron import CODES, encode_index
from curate.tokens.lists import token_lists, token_type

_INSTEAD = {"uint32": "int32", "uint64": "int64"}
"""Types that the format has no code for, and those that tokens are stored as."""


class MegatronOutput:
    """Writes the lists of tables as documents."""

    def __init__(self, sink: Sink, schema: pa.Schema, codec: str, tokens: Sink) -> None:
        """`tokens`: the `.bin`. Raises ConfigError for anything but one column of lists of integers."""
        self.rows = 0
        self._schema = schema
        self._envelope = Envelope(sink, codec)
        self._tokens = Envelope(tokens, codec)
        found = token_type(schema, "megatron") if len(schema) else np.dtype(np.uint16)
        self._dtype = np.dtype(_INSTEAD.get(found.name, found.name))
        assert self._dtype.name in CODES
        self._lengths: list[np.ndarray[Any, Any]] = []

    def write(self, table: pa.Table) -> None:
        """Takes the rows of `table`. Raises SchemaMismatch if it cannot be held to the schema; ConfigError for null,
        and ids that are above the integers of the format."""
        table = conform(table, self._schema)
        self.rows += table.num_rows
        for values, lengths in token_lists(table) if table.num_columns else ():
            if len(values) and values.dtype != self._dtype and int(values.max()) > np.iinfo(self._dtype).max:
                raise ConfigError(
                    f"the token {int(values.max()):,} is above the integers of Megatron's {self._dtype}, which end at "
                    f"{np.iinfo(self._dtype).max:,}; write parquet"
                )
            self._lengths.append(lengths)
            self._tokens.write(values.astype(self._dtype.newbyteorder("<"), copy=False).tobytes())

    def close_other(self, suffix: str, record: Mapping[str, Any]) -> None:
        """Writes the record behind the tokens."""
        del suffix
        self._tokens.close(record)

    def close(self, record: Mapping[str, Any]) -> None:
        """Writes the index, and the record behind it."""
        lengths = np.concatenate([np.zeros(0, np.int32), *self._lengths])
        self._envelope.write(encode_index(self._dtype, lengths))
        self._envelope.close(record)
