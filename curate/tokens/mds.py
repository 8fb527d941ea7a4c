"""Shards of mosaicml-streaming (`.mds`): the layout is in `curate/objects/mds`.

Offsets come before the samples. So samples wait in a temporary file until all are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from curate.arrow.types import is_list
from curate.errors import ConfigError
from curate.objects.compress import Envelope, Sink, Waiting
from curate.objects.mds import columns_of, encode_array, encode_head, encode_sample
from curate.writers.output import OutputWriter


class MdsOutput(OutputWriter):
    """Writes rows as samples; `close` adds the head before them and the record behind them."""

    def __init__(self, sink: Sink, schema: pa.Schema, codec: str) -> None:
        """Raises ConfigError for a column that MDS has no place for."""
        super().__init__(schema)
        self._envelope = Envelope(sink, codec)
        self._columns = columns_of(schema)
        self._sizes: list[int] = []
        self._samples = Waiting()

    def _take(self, table: pa.Table) -> None:
        sizes = [size for _, _, size in self._columns]
        for batch in table.to_batches():
            columns = [_encoded(name, batch.column(batch.schema.names.index(name))) for name, _, _ in self._columns]
            for values in zip(*columns, strict=True):
                sample = encode_sample(values, sizes)
                self._sizes.append(len(sample))
                self._samples.write(sample)

    def close(self, record: Mapping[str, Any]) -> None:
        """Writes head, samples and record. Raises ConfigError if they are more than a shard holds."""
        self._envelope.write(encode_head(self._columns, self._sizes))
        self._samples.copy_into(self._envelope)
        self._envelope.close(record)


def _encoded(name: str, column: pa.Array) -> Iterator[bytes]:
    """Yields the values of a column as they are stored. Raises ConfigError for null."""
    if column.null_count:
        raise ConfigError(f"column {name!r} has null, which MDS has no place for; drop such rows, or write parquet")
    if is_list(column.type):
        values = column.flatten()
        if values.null_count:
            raise ConfigError(f"column {name!r} has lists with null, which MDS has no place for; write parquet")
        array = np.ascontiguousarray(values.to_numpy())
        ends = np.cumsum(pc.list_value_length(column).to_numpy(), dtype=np.int64)
        at = 0
        for end in ends.tolist():
            yield encode_array(array[at:end].tobytes(), end - at)
            at = end
    elif pt.is_integer(column.type) or pt.is_floating(column.type):
        array = np.ascontiguousarray(column.to_numpy())
        data, size = array.tobytes(), array.dtype.itemsize
        yield from (data[at : at + size] for at in range(0, len(data), size))
    else:
        yield from (one.encode() if isinstance(one, str) else one for one in column.to_pylist())
