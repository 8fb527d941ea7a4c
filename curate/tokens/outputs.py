"""Outputs of tokens: makes the writer of one, and has those that take lists of integers, document after document."""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from curate.arrow.types import is_list
from curate.errors import ConfigError
from curate.objects.compress import Crc32Sink, Envelope, Sink, Waiting
from curate.objects.datatrove import TYPES, encode_ends, encode_metadata
from curate.objects.megatron import CODES, encode_index
from curate.objects.record import OutputFormat, zstd_trailer
from curate.tokens.documents import TOKENS
from curate.tokens.mds import MdsOutput
from curate.writers.npy import array_header
from curate.writers.output import OutputWriter
from curate.writers.writer import suffix

_INSTEAD = {"uint32": "int32", "uint64": "int64"}
"""Types that Megatron has no code for, and those that tokens are stored as."""
_DATATROVE_INDEX = ".ds.index"


def make_token_writer(sink: Sink, schema: pa.Schema, format: OutputFormat, codec: str, *beside: Sink) -> OutputWriter:
    """Returns a writer into `sink`, and into `beside` where the format has several files; without, it is asked for what
    it has no place for. Raises ConfigError for types that the format has no place for."""
    suffix(format, codec)
    match format:
        case OutputFormat.MEMMAP:
            return MemmapOutput(sink, schema, codec)
        case OutputFormat.MEGATRON:
            return MegatronOutput(sink, schema, codec, *(beside or [io.BytesIO()]))
        case OutputFormat.DATATROVE:
            return DatatroveOutput(sink, schema, *(beside or [io.BytesIO(), io.BytesIO()]))
        case _:
            return MdsOutput(sink, schema, codec)


class ListsOutput(OutputWriter):
    """Writes one column of lists of integers, one list after the other."""

    def __init__(self, schema: pa.Schema, format: str) -> None:
        """Raises ConfigError for anything but one column of lists of integers."""
        super().__init__(schema)
        self._lengths: list[np.ndarray[Any, Any]] = []
        self._dtype: np.dtype[Any] = np.dtype(np.uint16)
        if len(schema):
            found = schema.field(TOKENS).type if TOKENS in schema.names else None
            if found is None or len(schema) > 1 or not is_list(found) or not pt.is_integer(found.value_type):
                there = ", ".join(f"{field.name}: {field.type}" for field in schema)
                raise ConfigError(
                    f"{format} has one column {TOKENS!r} of lists of integers, found {there or 'none'}; "
                    "make them with jobs/tokens.py, or write parquet"
                )
            self._dtype = np.dtype(found.value_type.to_pandas_dtype())

    def _take(self, table: pa.Table) -> None:
        for chunk in table.column(TOKENS).chunks if table.num_columns else ():
            values = chunk.flatten()
            if chunk.null_count or values.null_count:
                raise ConfigError(f"column {TOKENS!r} has null; drop such rows, or write parquet")
            self._take_tokens(values.to_numpy(), pc.list_value_length(chunk).to_numpy())

    @abstractmethod
    def _take_tokens(self, tokens: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]) -> None:
        """Writes tokens behind those before, which are documents of these lengths."""

    def _all_lengths(self) -> np.ndarray[Any, Any]:
        return np.concatenate([np.zeros(0, np.int32), *self._lengths])


class MemmapOutput(ListsOutput):
    """All tokens of a shard as one array of numpy (`.npy`), as Dolma and nanoGPT read them; `close` adds the header
    before it and the record behind it."""

    def __init__(self, sink: Sink, schema: pa.Schema, codec: str) -> None:
        super().__init__(schema, "memmap")
        self._envelope = Envelope(sink, codec)
        self._count = 0
        self._values = Waiting()

    def _take_tokens(self, tokens: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]) -> None:
        del lengths
        self._count += len(tokens)
        self._values.write(np.ascontiguousarray(tokens).data)

    def close(self, record: Mapping[str, Any]) -> None:
        self._envelope.write(array_header(self._dtype, (self._count,)))
        self._values.copy_into(self._envelope)
        self._envelope.close(record)


class MegatronOutput(ListsOutput):
    """Tokens as Megatron-LM reads them: the output is the `.idx`; beside it lies the `.bin`, which comes first."""

    def __init__(self, sink: Sink, schema: pa.Schema, codec: str, tokens: Sink) -> None:
        """`tokens`: the `.bin`."""
        super().__init__(schema, "megatron")
        self._envelope = Envelope(sink, codec)
        self._tokens = Envelope(tokens, codec)
        self._dtype = np.dtype(_INSTEAD.get(self._dtype.name, self._dtype.name))
        assert self._dtype.name in CODES

    def _take_tokens(self, tokens: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]) -> None:
        most = np.iinfo(self._dtype).max
        if len(tokens) and tokens.dtype != self._dtype and int(tokens.max()) > most:
            raise ConfigError(
                f"the token {int(tokens.max()):,} is above the integers of Megatron's {self._dtype}, which end at "
                f"{most:,}; write parquet"
            )
        self._lengths.append(lengths)
        self._tokens.write(tokens.astype(self._dtype.newbyteorder("<"), copy=False).tobytes())

    def close_other(self, suffix: str, record: Mapping[str, Any]) -> None:
        """Writes the record behind the tokens."""
        del suffix
        self._tokens.close(record)

    def close(self, record: Mapping[str, Any]) -> None:
        """Writes the index, and the record behind it."""
        self._envelope.write(encode_index(self._dtype, self._all_lengths()))
        self._envelope.close(record)


class DatatroveOutput(ListsOutput):
    """Tokens as datatrove reads them: the output is the `.ds.metadata`; beside it lie `.ds` and `.ds.index`, which come
    first and carry no record."""

    def __init__(self, sink: Sink, schema: pa.Schema, tokens: Sink, index: Sink) -> None:
        """Raises ConfigError for lists of other integers than uint16 or uint32, too."""
        super().__init__(schema, "datatrove")
        self._sink = sink
        self._tokens, self._index = Crc32Sink(tokens), Crc32Sink(index)
        if self._dtype.kind != "u" or self._dtype.itemsize not in TYPES:
            raise ConfigError(f"datatrove has tokens of uint16 or uint32, not {self._dtype}; write parquet")
        self._dtype = TYPES[self._dtype.itemsize]

    def _take_tokens(self, tokens: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]) -> None:
        self._lengths.append(lengths)
        self._tokens.write(tokens.astype(self._dtype, copy=False).tobytes())

    def close_other(self, suffix: str, record: Mapping[str, Any]) -> None:
        """Writes the index. Neither file has a place for a record."""
        del record
        if suffix == _DATATROVE_INDEX:
            self._index.write(encode_ends(self._all_lengths()))

    def close(self, record: Mapping[str, Any]) -> None:
        """Writes checksums of the other files, and the record behind them."""
        lines = Crc32Sink(self._sink)
        checksums = {".ds": self._tokens.crc32, _DATATROVE_INDEX: self._index.crc32}
        lines.write(encode_metadata(self._dtype.itemsize, int(self._all_lengths().sum()), checksums))
        self._sink.write(zstd_trailer(record, lines.crc32, text=True))
