"""Sources whose rows lie in no files, as shards of a write: ranges, and tables that are in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from curate.dataset.formats import BadRow
from curate.dataset.inputs import SCHEMA
from curate.dataset.lazy.sources import Range, Tables, View

VALUE_BYTES = 8
"""Bytes of a number of a range."""


@dataclass(frozen=True, slots=True)
class MadeRows:
    """The pieces of some sources, one after the other, each a shard."""

    sources: tuple[Range | Tables, ...]

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows: the sources have one."""
        return self.sources[0].found

    @property
    def _pieces(self) -> list[tuple[Range | Tables, Any]]:
        return [(source, piece) for source in self.sources for piece in source.pieces()]

    def inputs(self) -> pa.Table:
        """Returns the pieces as a listing of files would be: called by their number, and by how many there are."""
        pieces = self._pieces
        names = [f"part-{number:05d}-of-{len(pieces):05d}" for number in range(len(pieces))]
        uris = [f"memory piece {number}" for number in range(len(pieces))]
        sizes = [_size(source, piece) for source, piece in pieces]
        return pa.table([uris, names, sizes, [""] * len(pieces)], schema=SCHEMA)

    def read(self, uri: str, batch_rows: int) -> Iterator[pa.Table]:
        """Yields the rows of a piece."""
        source, piece = self._pieces[int(uri.rpartition(" ")[2])]
        return source.read(piece, View(), batch_rows, _no_bad_row)

    def identity(self) -> list[Any]:
        """Returns what the rows are, as JSON values: of tables, a digest of what they hold."""
        return [_identity(source) for source in self.sources]


def _no_bad_row(row: BadRow) -> None:
    raise AssertionError(f"a row that was made is bad: {row}")


def _size(source: Range | Tables, piece: Any) -> int:
    return (piece[1] - piece[0]) * VALUE_BYTES if isinstance(source, Range) else int(piece[1].nbytes)


def _identity(source: Range | Tables) -> Any:
    if isinstance(source, Range):
        return ["range", source.rows]
    digests = []
    for table in source.tables:
        sink = pa.BufferOutputStream()
        # In one chunk: how rows are cut in memory says nothing about them.
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.combine_chunks())
        digests.append(hashlib.sha256(sink.getvalue()).hexdigest()[:32])
    return ["tables", digests]
