"""Finds key columns with different types in some files, from the footers of Parquet files, before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq

from curate.arrow.schema import plain, widens
from curate.errors import ConfigError, StorageError, did_you_mean
from curate.storage.open import open_store
from curate.storage.protocol import Object

LOOKED_AT = 1024
"""Footers that are read, at most; of more files as many, evenly spread: what differs in the others is refused when they
are read."""
READERS = 32
"""Footers that are read at once: 1,024 of them from a bucket take about two seconds."""
_EXAMPLES = 3


def refuse_other_types(
    what: str, columns: Sequence[str], held: pa.Schema, files: Sequence[Object], *, nulls_for_missing: bool
) -> None:
    """Raises ConfigError, in a message that begins with `what`, if one of these columns is of a type in some files that
    cannot be read as the one in `held`; or is missing, unless that is read as null.

    Reads the footers of Parquet files, of which `files` are some; one that cannot be read is left to who reads it all.
    """
    columns = [name for name in columns if name in held.names]
    step = -(-len(files) // LOOKED_AT) or 1
    looked_at = files[::step]
    if not columns:
        return
    with ThreadPoolExecutor(READERS) as pool:
        schemas = list(pool.map(_schema_of, looked_at))
    for name in columns:
        expected = held.field(name).type
        others: dict[str, list[str]] = {}
        for item, found in zip(looked_at, schemas, strict=True):
            if found is not None and (other := _other(found, name, expected, nulls_for_missing)):
                others.setdefault(other, []).append(item.uri)
        if others:
            told = "; ".join(f"{other} in {', '.join(_few(uris))}" for other, uris in others.items())
            near = "" if "missing" not in others else did_you_mean(name, (schemas[0] or held).names)
            raise ConfigError(
                f"{what}: the key {name!r} is read as {expected}, and it is {told}{near}; keys of several types cannot "
                "be sorted: write those files again with one type, or leave them out"
            )


def _few(uris: Sequence[str]) -> Iterator[str]:
    yield from uris[:_EXAMPLES]
    if len(uris) > _EXAMPLES:
        yield f"{len(uris) - _EXAMPLES:,} more"


def _other(found: pa.Schema, name: str, expected: pa.DataType, nulls_for_missing: bool) -> str:
    """Returns what a column is there, if it cannot be read as expected; else nothing."""
    indices = found.get_all_field_indices(name)
    if not indices:
        return "" if nulls_for_missing else "missing"
    type = plain(found.field(indices[0]).type)
    return "" if widens(type, plain(expected)) else str(type)


def _schema_of(item: Object) -> pa.Schema | None:
    try:
        with open_store(item.uri).open(item) as stream:
            metadata = pq.read_metadata(pa.PythonFile(stream, mode="r"))
    except (pa.ArrowException, OSError, StorageError):
        return None
    return metadata.schema.to_arrow_schema() if metadata.num_rows else None
