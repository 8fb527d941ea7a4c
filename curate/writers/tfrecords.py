"""TFRecord outputs: a `tf.train.Example` for each row, compressed with gzip, which readers of the format know.

A null is a feature that the Example lacks. What is written is what `read_tfrecords(schema=)` reads, value by value:
types that a feature does not hold are refused, 64-bit floats among them.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from curate.arrow.types import is_list, is_text
from curate.errors import ConfigError
from curate.formats.read.tfrecords import feature_type
from curate.objects.compress import Sink
from curate.objects.tf_example import example_class, frame
from curate.writers.lines import LinesWriter

_KINDS = {pa.binary(): "bytes_list", pa.float32(): "float_list", pa.int64(): "int64_list", pa.null(): "bytes_list"}


class TFRecordOutput(LinesWriter):
    """Writes tables of one schema as framed Examples; `close` adds the record behind them."""

    format = "a tf.train.Example"
    rows_at_once = 1024

    def __init__(self, sink: Sink, schema: pa.Schema, codec: str) -> None:
        """Raises ConfigError for a column of a type that an Example has no place for."""
        super().__init__(sink, schema, codec)
        self._kinds = [_kind(field) for field in schema]

    def _lines(self, table: pa.Table) -> bytes:
        """Returns rows as Examples. Raises ConfigError for nulls in lists, and for numbers above 63 bits."""
        columns = [_values(column) for column in table.columns]
        made = []
        for row in range(table.num_rows):
            example = example_class()()
            features = example.features.feature
            for field, kind, values in zip(self._schema, self._kinds, columns, strict=True):
                if values[row] is None:
                    continue
                into = getattr(features[field.name], kind)
                into.SetInParent()
                try:
                    into.value.extend(values[row] if is_list(field.type) else (values[row],))
                except (TypeError, ValueError):
                    raise ConfigError(
                        f"column {field.name!r} is {field.type} and has null in a list, or a number above 63 bits, "
                        "which a tf.train.Example cannot store; drop it, or write parquet"
                    ) from None
            made.append(frame(example.SerializeToString(deterministic=True)))
        return b"".join(made)


def _kind(field: pa.Field) -> str:
    base = feature_type(field.type)
    items = field.type.value_type if is_list(field.type) else field.type
    if items == pa.float64():
        raise ConfigError(
            f"column {field.name!r} is {field.type}, but a tf.train.Example has 32-bit floats; cast it, for example "
            f"with with_column({field.name!r}, pc.field({field.name!r}).cast({pa.float32()!s}))"
        )
    if base is None:
        raise ConfigError(
            f"column {field.name!r} is {field.type}, which a tf.train.Example cannot store; leave it out, make it "
            "text, bytes, integers, 32-bit floats or a list of one of them, or write parquet"
        )
    return _KINDS[base]


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Returns the values of a column as Protocol Buffers take them: texts as bytes."""
    values: list[Any] = column.to_pylist()
    if is_text(column.type):
        return [None if value is None else value.encode() for value in values]
    if is_list(column.type) and is_text(column.type.value_type):
        return [value and [None if one is None else one.encode() for one in value] for value in values]
    return values
