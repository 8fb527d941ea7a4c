"""Arrays as numpy stores them (`.npy`): a row for each entry along the first dimension, as the column `data`.

Entries with further dimensions are tensors (Arrow's fixed_shape_tensor: numpy sees one array of all rows). The
layout is numpy's: a header that says type, order and shape, then the values. Behind them `numpy.load` ignores anything;
here that may be the record of an output, or zeros: entries of which the header does not know would be lost.
"""

from __future__ import annotations

import io
import math
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from curate.arrow.values import of_numpy
from curate.errors import CorruptInput, CurateError
from curate.formats.file_schema import refuse_mismatch
from curate.formats.file_slice import FileSlice
from curate.formats.read.binary import LARGEST_BYTES
from curate.objects.stream import BLOCK_BYTES, buffered
from curate.units import KIB

DATA = "data"
"""The column that holds the entries."""
_HEADERS = {
    (1, 0): (np.lib.format.read_array_header_1_0, 2),
    (2, 0): (np.lib.format.read_array_header_2_0, 4),
    (3, 0): (np.lib.format.read_array_header_2_0, 4),
}
"""What parses a header of that version, and the bytes in which it says its size. The third differs in names alone."""
_FRAME = b"\x2a\x4d\x18"
"""Of what a skippable frame begins with, which a record lies in, what follows its first byte."""
_MOST_BYTES = 64 * KIB
"""numpy itself parses headers of up to 10,000 bytes."""
_PARSING = threading.Lock()
"""numpy parses a header as Python. Where threads do so at once, one fails now and then (CPython gh-106905)."""


def _read(stream: BinaryIO, size: int) -> bytes:
    """Returns so many bytes, fewer at the end: a stream may return fewer at a time."""
    found = b""
    while len(found) < size and (more := stream.read(size - len(found))):
        found += more
    return found


class ArrayHeader:
    """What an array says of itself, and where its values begin."""

    def __init__(self, uri: str, stream: BinaryIO) -> None:
        """Reads it. Raises CorruptInput for what is no array that curate reads."""
        try:
            version = np.lib.format.read_magic(stream)
            parse, size_bytes = _HEADERS[version]
            stored = _read(stream, size_bytes)
            stored += _read(stream, min(int.from_bytes(stored, "little"), _MOST_BYTES))
            with _PARSING:
                shape, fortran, dtype = parse(io.BytesIO(stored))
        except (CurateError, OSError):
            raise  # of the store
        except Exception as error:  # numpy raises whatever a broken header leads it into
            raise CorruptInput(f"{uri}: not an array of numpy (.npy): {error!r:.200}") from error
        if dtype.hasobject:
            raise CorruptInput(
                f"{uri}: contains pickled Python objects, which curate does not load; save numbers with numpy.save"
            )
        if not shape or min(shape) < 0 or not math.prod(shape[1:]):
            raise CorruptInput(f"{uri}: has the shape {shape}; expected entries along a first dimension, with values")
        self.rows: int = shape[0]
        self.shape: tuple[int, ...] = shape[1:]
        self.by_column: bool = fortran and len(shape) > 1
        self.dtype: np.dtype[Any] = dtype
        self.row_bytes: int = dtype.itemsize * math.prod(self.shape)
        self.type = self._type(uri)
        if self.row_bytes > LARGEST_BYTES or (self.by_column and self.row_bytes * self.rows > LARGEST_BYTES):
            what = "is stored by column and has" if self.by_column else "has rows of"
            raise CorruptInput(f"{uri}: {what} more than {LARGEST_BYTES:,} bytes; store it by row, in parts")

    def _type(self, uri: str) -> pa.DataType:
        try:
            if self.shape and self.dtype.kind not in "biuf":
                raise TypeError
            if self.dtype.kind in "US":
                type = pa.string() if self.dtype.kind == "U" else pa.binary()
            else:
                type = pa.from_numpy_dtype(self.dtype.newbyteorder("="))
            return pa.fixed_shape_tensor(type, self.shape) if self.shape else type
        except (pa.ArrowException, TypeError) as error:
            shaped = f" of the shape {self.shape}" if self.shape else ""
            raise CorruptInput(f"{uri}: has entries of {self.dtype}{shaped}, which curate cannot read") from error

    def array(self, data: bytes) -> pa.Array:
        """Returns the entries that some values make."""
        values = np.frombuffer(data, self.dtype)
        if self.by_column:
            values = values.reshape((self.rows, *self.shape), order="F")
        flat = of_numpy(np.ascontiguousarray(values.astype(self.dtype.newbyteorder("="), copy=False)).reshape(-1))
        if not self.shape:
            return flat
        storage = pa.FixedSizeListArray.from_arrays(flat, math.prod(self.shape))
        return pa.ExtensionArray.from_storage(self.type, storage)


def sample_npy(file: FileSlice) -> pa.Schema:
    """Returns the schema of the array; without a column if it has no entry. Raises CorruptInput."""
    with file.open() as source:
        header = ArrayHeader(file.uri, buffered(source))
    return pa.schema([(DATA, header.type)] if header.rows else [])


def read_npy(file: FileSlice, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yields the entries, a block at a time: an array that is stored by column as a whole.

    Raises CorruptInput for what is no array, or ends too early; SchemaMismatch for entries of another type or shape.
    """
    with file.open() as source:
        stream = buffered(source)
        header = ArrayHeader(file.uri, stream)
        if not header.rows:
            _look_behind(file.uri, stream, header)
            return
        refuse_mismatch(file.uri, pa.schema([(DATA, header.type)]), schema, file.encoding)
        step = header.rows if header.by_column else max(1, BLOCK_BYTES // max(1, header.row_bytes))
        for at in range(0, header.rows, step):
            rows = min(step, header.rows - at)
            data = stream.read(rows * header.row_bytes)
            if len(data) < rows * header.row_bytes:
                raise CorruptInput(
                    f"{file.uri}: ends after {at + len(data) // header.row_bytes:,} of {header.rows:,} entries"
                )
            try:
                array = header.array(data)
            except ValueError as error:
                raise CorruptInput(f"{file.uri}: has a text that is not Unicode: {error}") from error
            type = schema.field(DATA).type
            if at + rows == header.rows:
                _look_behind(file.uri, stream, header)  # before a consumer has all that it wants, and stops
            yield pa.table([array if array.type == type else _cast(array, type)], schema=schema)


def _look_behind(uri: str, stream: BinaryIO, header: ArrayHeader) -> None:
    """Raises CorruptInput for what lies behind an array, unless it is a record or zeros."""
    behind = stream.read(BLOCK_BYTES)
    if behind.startswith(np.lib.format.MAGIC_PREFIX):
        raise CorruptInput(f"{uri}: another array begins behind its end; save each one in a file of its own")
    if behind.strip(b"\0") and behind[1:4] != _FRAME:
        raise CorruptInput(
            f"{uri}: something else lies behind its {header.rows:,} entries, expected the end of the file; write it "
            "again with numpy.save"
        )


def _cast(array: pa.Array, type: pa.DataType) -> pa.Array:
    if not isinstance(type, pa.FixedShapeTensorType):
        return array.cast(type)
    storage = array.storage.cast(type.storage_type)
    return pa.ExtensionArray.from_storage(type, storage)
