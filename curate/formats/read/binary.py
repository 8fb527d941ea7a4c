"""Whole files as rows: one row per file, with its stored bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from curate.errors import CorruptInput
from curate.objects.stream import StoredStream
from curate.storage.protocol import Object, Store

LARGEST_BYTES = (1 << 31) - 1
"""Of a value in a column of Arrow's type binary, the one that all readers know."""

BINARY_SCHEMA = pa.schema([("bytes", pa.binary())])


def read_binary(store: Store, object: Object, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yields the file as one row with its bytes.

    Raises CorruptInput if the object is gone, was replaced, or is larger than 2 GiB.
    """
    yield pa.Table.from_pydict({"bytes": [stored_bytes(store, object)]}, schema=schema)


def stored_bytes(store: Store, object: Object) -> bytes:
    """Returns all bytes of an object. Raises CorruptInput as `read_binary` does."""
    if object.size > LARGEST_BYTES:
        raise CorruptInput(
            f"{object.uri}: has {object.size:,} bytes, but a value can have at most {LARGEST_BYTES:,}; leave it out, "
            "or read it in parts with the process_file of a FileJob"
        )
    with StoredStream(store, object) as stored:
        data = stored.read()
    if len(data) != object.size:
        raise CorruptInput(f"{object.uri}: has {len(data):,} bytes, but was listed with {object.size:,}")
    return data
