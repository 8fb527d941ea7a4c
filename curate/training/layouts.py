"""The layouts that tokens are stored in: how many tokens each part of a file has, and how to read a range of them.

A *unit* is tokens one after another that are cut into samples: all of a flat array, or a row group of Parquet.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from curate.arrow.types import is_list
from curate.dataclass import dataclass
from curate.errors import ConfigError, CorruptInput, MissingColumn
from curate.formats.read.npy import ArrayHeader
from curate.formats.read.parquet_file import broken, open_parquet, reopened
from curate.objects import datatrove, megatron
from curate.objects.stream import StoredStream, naming
from curate.storage.protocol import Object
from curate.stores.open import open_store

Tokens = np.ndarray[Any, np.dtype[Any]]
Lengths = np.ndarray[Any, np.dtype[np.object_]]
"""An array of int32 for each row: tokens of each document in it."""
HEAD_BYTES = 4096
"""First bytes of a flat file that its fingerprint is made of."""
MOST_FOOTERS = 256
"""Footers of Parquet that are kept: some kilobytes for each row group."""
PACKED = "document_lengths"
"""The column beside packed sequences: with it, each row is a sequence."""


class Layout(StrEnum):
    """How tokens are stored."""

    NPY = "npy"
    """An array of numpy for each shard, of one dimension."""
    MEGATRON = "megatron"
    """A `.bin` with the tokens and a `.idx` with where documents begin."""
    DATATROVE = "datatrove"
    """A `.ds` with the tokens and a `.ds.index` with where documents end; what lies beside them is not read."""
    PARQUET = "parquet"
    """A column of lists, a row for each document or for each packed sequence."""


SUFFIXES = {
    ".npy": Layout.NPY,
    ".bin": Layout.MEGATRON,
    ".idx": Layout.MEGATRON,
    ".ds": Layout.DATATROVE,
    ".index": Layout.DATATROVE,
    ".metadata": Layout.DATATROVE,
    ".loss": Layout.DATATROVE,
    ".parquet": Layout.PARQUET,
}
"""What names end in, behind their last dot."""
PAIRS = {Layout.MEGATRON: (".bin", ".idx"), Layout.DATATROVE: (".ds", ".ds.index")}
"""Tokens, and the index without which they say nothing."""


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A file with tokens, looked at."""

    object: Object
    dtype: np.dtype[Any]
    units: tuple[int, ...]
    """Tokens of each of its units."""
    begin: int
    """The first byte of the tokens, if they lie there as they are."""
    digest: bytes
    """Of what was looked at: another file has, most likely, another."""
    packed: int = 0
    """Tokens of each row, if rows are sequences; 0: they are not."""


def look_at_npy(object: Object, column: str) -> TokenFile:
    """Looks at an array of numpy. Raises CorruptInput."""
    del column
    head = _head(object)
    start = io.BytesIO(head)
    header = ArrayHeader(object.uri, start)
    begin = start.tell()
    width = int(np.prod(header.shape)) if header.shape else 0
    if len(header.shape) > 1 or header.by_column:
        raise CorruptInput(f"{object.uri}: has {len(header.shape) + 1} dimensions; expected tokens one after another")
    dtype = _checked(object.uri, header.dtype)
    tokens = header.rows * max(1, width)
    _refuse_cut(object, begin + tokens * dtype.itemsize)
    return TokenFile(object, dtype, (tokens,), begin, _digest(head), width)


def look_at_megatron(object: Object, index: Object) -> TokenFile:
    """Looks at a `.bin` with its index. Raises CorruptInput."""
    with naming(index.uri), open_store(index.uri).open(index) as stream:
        found = megatron.read_totals(stream, index.uri, index.size)
    dtype = _checked(index.uri, found.dtype)
    _refuse_cut(object, found.tokens * dtype.itemsize)
    return TokenFile(object, dtype, (found.tokens,), 0, _digest(_head(object), str(found).encode()))


def look_at_datatrove(object: Object, index: Object) -> TokenFile:
    """Looks at a `.ds` with its index. Raises CorruptInput."""
    with naming(index.uri), open_store(index.uri).open(index) as stream:
        found = datatrove.read_totals(stream, index.uri, index.size, object.size)
    return TokenFile(object, found.dtype, (found.tokens,), 0, _digest(_head(object), str(found).encode()))


def _head(object: Object) -> bytes:
    with naming(object.uri), open_store(object.uri).open(object) as stream:
        return stream.read(HEAD_BYTES)


def look_at_parquet(object: Object, column: str) -> TokenFile:
    """Looks at the footer of a Parquet file. Raises CorruptInput; ConfigError for a column that has no tokens."""
    with StoredStream(open_store(object.uri), object) as stored:
        file = open_parquet(stored)
        names = file.schema_arrow.names
        if column not in names:
            raise MissingColumn.of_column(
                f"{object.uri}: there is no column {column!r} of tokens, only {', '.join(names) or 'none'}; name the "
                "column of tokens with column=, or make tokens of texts first",
                column,
            )
        type = file.schema_arrow.field(column).type
        if not is_list(type) or not pt.is_integer(type.value_type):
            raise ConfigError(f"{object.uri}: column {column!r} is {type}; expected lists of whole numbers, the tokens")
        # By number: paths in the file have dots between names, and the names of columns may have dots in them, too.
        place = sum(_leaves(field.type) for field in list(file.schema_arrow)[: names.index(column)])
        metadata = file.metadata
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        known = [_tokens_of(group, group.column(place)) for group in groups]
        units = tuple(
            _counted(stored, file, number, column) if tokens is None else tokens for number, tokens in enumerate(known)
        )
        packed = _packed(object.uri, names, [group.num_rows for group in groups], units)
        said = [(group.num_rows, group.column(place).total_compressed_size) for group in groups]
        dtype = _checked(object.uri, np.dtype(type.value_type.to_pandas_dtype()))
    return TokenFile(object, dtype, units, 0, _digest(repr(said).encode()), packed)


def _leaves(type: pa.DataType) -> int:
    """Returns how many columns of a Parquet file a column of that type is."""
    stored = type.storage_type if isinstance(type, pa.BaseExtensionType) else type
    inner = [stored.field(number).type for number in range(stored.num_fields)]
    return sum(map(_leaves, inner)) if inner else 1


def _tokens_of(group: Any, chunk: Any) -> int | None:
    """Returns the tokens of a row group by its statistics, which count an empty list as a null; None if not known."""
    statistics = chunk.statistics
    if not group.num_rows:
        return 0
    if statistics is None or not statistics.has_null_count:
        return None
    return int(chunk.num_values - statistics.null_count)


def _counted(stored: StoredStream, file: pq.ParquetFile, group: int, column: str) -> int:
    with broken(stored):
        # pyarrow reads the columns with a dot behind that name, too.
        return sum(len(_flat(stored.uri, one)) for one in file.read_row_group(group, columns=[column])[column].chunks)


def _packed(uri: str, names: list[str], rows: list[int], units: tuple[int, ...]) -> int:
    """Returns the tokens of a row where rows are sequences."""
    if PACKED not in names:
        return 0
    lengths = {tokens / count for count, tokens in zip(rows, units, strict=True) if count}
    if any(one % 1 for one in lengths) or len(lengths) > 1:
        raise CorruptInput(f"{uri}: has the column {PACKED!r} of packed sequences, but rows of several lengths")
    return int(lengths.pop()) if lengths else 0


def ranges_of(file: TokenFile, ranges: list[tuple[int, int]]) -> list[Tokens]:
    """Returns several ranges of the tokens of a flat file. Raises CorruptInput if it was changed or cut."""
    width, found = file.dtype.itemsize, []
    uri = file.object.uri
    with naming(uri), open_store(uri).open(file.object) as stream:
        for start, stop in ranges:
            data = _read(stream, uri, file.begin + start * width, (stop - start) * width)
            found.append(np.frombuffer(data, file.dtype))
    return found


def _read(stream: BinaryIO, uri: str, place: int, size: int) -> bytes:
    stream.seek(place)
    data = stream.read(size)
    if len(data) < size:
        raise CorruptInput(f"{uri}: ends {size - len(data):,} bytes too early: it was cut off while it was read")
    return data


def read_group(file: TokenFile, group: int, column: str, documents: bool) -> tuple[Tokens, Lengths | None]:
    """Returns the tokens of a row group; with `documents` also the lengths of those in each row.

    Raises CorruptInput if it was changed, or has others than the footer says.
    """
    with StoredStream(open_store(file.object.uri), file.object) as stored:
        parquet = reopened(stored, _footer(file.object))
        with broken(stored):
            table = parquet.read_row_group(group, columns=[column, *[PACKED] * documents], use_threads=False)
        lists = table[column]
        parts = [_flat(stored.uri, one) for one in lists.chunks]
        if file.packed and set(pc.unique(pc.list_value_length(lists)).to_pylist()) - {file.packed}:
            raise CorruptInput(f"{stored.uri}: has packed sequences of {file.packed:,} tokens and of others")
    found = np.concatenate([one.to_numpy() for one in parts]) if len(parts) != 1 else parts[0].to_numpy()
    if len(found) != file.units[group]:
        raise CorruptInput(
            f"{file.object.uri}: row group {group} has {len(found):,} tokens, its statistics say "
            f"{file.units[group]:,}; write the file again, with pyarrow or curate"
        )
    return found, _documents(file, table[PACKED].combine_chunks()) if documents else None


@lru_cache(maxsize=MOST_FOOTERS)
def _footer(object: Object) -> pq.FileMetaData:
    """Returns a footer, which is fetched once, not for each row group. Raises CorruptInput."""
    with StoredStream(open_store(object.uri), object) as stored:
        return open_parquet(stored).metadata


def _documents(file: TokenFile, lists: pa.Array) -> Lengths:
    """Returns the lengths in each row. Raises CorruptInput for those that are not of packed sequences."""
    uri, type = file.object.uri, lists.type
    if not is_list(type) or not pt.is_integer(type.value_type) or lists.null_count:
        raise CorruptInput(f"{uri}: column {PACKED!r} is {type}; expected lists of whole numbers, and no null")
    # A copy: Arrow's own memory cannot be written to, and torch wants to be able to.
    values = _flat(uri, lists).to_numpy().astype(np.int32)
    counts = pc.list_value_length(lists).to_numpy()
    rows = np.repeat(np.arange(len(counts)), counts)
    tokens = np.bincount(rows, weights=values, minlength=len(counts))
    if (values < 0).any() or (tokens > file.packed).any():
        raise CorruptInput(
            f"{uri}: has a sequence of {file.packed:,} tokens whose documents have {int(tokens.max(initial=0)):,}; "
            "write it again"
        )
    found = np.empty(len(counts), object)
    # One by one: of arrays of one length numpy would make a table.
    for row, part in enumerate(np.split(values, np.cumsum(counts)[:-1])):
        found[row] = part
    return found


def _flat(uri: str, lists: pa.Array) -> pa.Array:
    values = lists.flatten()
    if values.null_count:
        raise CorruptInput(f"{uri}: has {values.null_count:,} null tokens; write it again without them")
    return values


def _checked(uri: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind not in "iu":
        raise CorruptInput(f"{uri}: has values of {dtype}; expected tokens, which are whole numbers")
    return dtype


def _refuse_cut(object: Object, needed: int) -> None:
    if object.size < needed:
        raise CorruptInput(
            f"{object.uri}: has {object.size:,} bytes, but its tokens take {needed:,}: it was cut off; make it again"
        )


def _digest(*parts: bytes) -> bytes:
    return hashlib.blake2b(b"\0".join(parts), digest_size=8).digest()


LOOKS: dict[Layout, Callable[[Object, Any], TokenFile]] = {
    Layout.NPY: look_at_npy,
    Layout.MEGATRON: look_at_megatron,
    Layout.DATATROVE: look_at_datatrove,
    Layout.PARQUET: look_at_parquet,
}
