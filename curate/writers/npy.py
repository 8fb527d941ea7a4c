"""Outputs of one column as numpy stores arrays (`.npy`): the rows are the first dimension.

The header, which comes first, says how many rows there are. So the values wait in a temporary file until all are known.
`numpy.load` reads as many values as the header says; behind them lies the record.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from curate.arrow.recast import tensor_shape
from curate.arrow.types import is_list
from curate.errors import ConfigError
from curate.objects.compress import Envelope, Sink, Waiting
from curate.writers.output import OutputWriter


class NumpyOutput(OutputWriter):
    """Writes the one column of tables as an array; `close` adds the header before it and the record behind it."""

    def __init__(self, sink: Sink, schema: pa.Schema, codec: str) -> None:
        """Raises ConfigError for more than one column, and for a type that is no number, list or tensor of numbers."""
        if len(schema) > 1:
            raise ConfigError(f"an array of numpy has one column, found {', '.join(schema.names)}; choose one")
        super().__init__(schema)
        self._envelope = Envelope(sink, codec)
        self._values = Waiting()
        self._dtype: np.dtype[Any] = np.dtype(float)
        self._shape: tuple[int, ...] | None = ()
        if len(schema):
            self._dtype, self._shape = _known(schema.field(0))

    def _take(self, table: pa.Table) -> None:
        for chunk in table.column(0).chunks if table.num_columns else ():
            if len(chunk):
                self._take_values(chunk)

    def _take_values(self, chunk: pa.Array) -> None:
        """Writes values. Raises ConfigError for nulls, and for lists of other lengths than the first one's."""
        try:
            values = ndarray(chunk)
        except ValueError as error:
            raise ConfigError(
                f"column {self._schema.names[0]!r} has {error}, which an array of numpy cannot store; drop such rows, "
                "or write parquet"
            ) from None
        if self._shape is None:
            self._shape = values.shape[1:]
        if values.shape[1:] != self._shape:
            raise ConfigError(
                f"column {self._schema.names[0]!r} has entries of the shapes {self._shape} and {values.shape[1:]}, but "
                "an array of numpy has one shape; make them equal, or write parquet"
            )
        self._values.write(np.ascontiguousarray(values).data)

    def close(self, record: Mapping[str, Any]) -> None:
        self._envelope.write(array_header(self._dtype, (self.rows, *(self._shape or ()))))
        self._values.copy_into(self._envelope)
        self._envelope.close(record)


def array_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Returns what comes before the values of an array."""
    header = io.BytesIO()
    about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, about)
    return header.getvalue()


def _known(field: pa.Field) -> tuple[np.dtype[Any], tuple[int, ...] | None]:
    """Returns the type of the values of a column and the shape of its entries, None if only values tell. Raises
    ConfigError for a type that is not stored."""
    type, shape, varies = field.type, [], False
    if isinstance(type, pa.FixedShapeTensorType):
        type, shape = type.value_type, [*tensor_shape(type)[0]]
    while is_list(type):
        varies = varies or not pt.is_fixed_size_list(type)
        shape.append(0 if varies else type.list_size)
        type = type.value_type
    if not (pt.is_integer(type) or pt.is_floating(type) or pt.is_boolean(type)):
        raise ConfigError(
            f"column {field.name!r} is {field.type}, which an array of numpy cannot store; expected numbers, or lists "
            "or tensors of numbers of one shape: convert it, or write parquet"
        )
    return np.dtype(type.to_pandas_dtype()), None if varies else tuple(shape)


def ndarray(array: pa.Array) -> np.ndarray[Any, Any]:
    """Returns an array as one of numpy. Raises ValueError for null, and lists of several lengths."""
    if array.null_count:
        raise ValueError("null")
    if isinstance(array, pa.FixedShapeTensorArray):
        # Not Arrow's own, which has no tensors of booleans.
        stored = ndarray(array.storage).reshape(len(array), *array.type.shape)
        return stored.transpose(0, *(1 + at for at in tensor_shape(array.type)[1]))
    if not is_list(array.type):
        numbers: np.ndarray[Any, Any] = array.to_numpy(zero_copy_only=False)
        return numbers
    lengths = pc.unique(pc.list_value_length(array))
    if len(lengths) > 1 or not lengths[0].as_py():
        raise ValueError(f"lists of {' and of '.join(map(str, lengths[:2]))} values")
    inner = ndarray(array.flatten())
    return inner.reshape(len(array), lengths[0].as_py(), *inner.shape[1:])
