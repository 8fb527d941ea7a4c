"""Whole files as rows: one row per file, with its stored bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from curate.errors import CorruptInput
from curate.formats.file_slice import FileSlice

LARGEST_BYTES = (1 << 31) - 1
"""Of a value in a column of Arrow's type binary, the one that all readers know."""

BINARY_SCHEMA = pa.schema([("bytes", pa.binary())])


def read_binary(file: FileSlice, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yields the file as one row with its bytes.

    Raises CorruptInput if the object is gone, was replaced, or is larger than 2 GiB.
    """
    yield pa.Table.from_pydict({"bytes": [stored_bytes(file)]}, schema=schema)


def stored_bytes(file: FileSlice) -> bytes:
    """Returns all bytes of a file. Raises CorruptInput as `read_binary` does."""
    size = file.object.size
    if size > LARGEST_BYTES:
        raise CorruptInput(
            f"{file.uri}: has {size:,} bytes, but a value can have at most {LARGEST_BYTES:,}; leave it out, "
            "or read it in parts with the process_file of a FileJob"
        )
    with file.open_stored() as stored:
        data = stored.read()
    if len(data) != size:
        raise CorruptInput(f"{file.uri}: has {len(data):,} bytes, but was listed with {size:,}")
    return data
