"""The schema of blocks that user functions make: the first rows decide it, and later ones are widened to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import pyarrow as pa

from curate.arrow.schema import conform
from curate.arrow.unknown import empty, fill_schema, is_known
from curate.errors import SchemaMismatch
from curate.stage.fusion import FusedScan
from curate.stage.messages import TYPE_PROBES

PIECE = b"curate.piece"
"""Under which a block says what its first rows were read from."""
HELD_BYTES = 64 << 20
"""Bytes of blocks that are held back, at most, until the type is known of a column that was null in all rows so far."""


def declared_schema(fusion: FusedScan) -> pa.Schema | None:
    """Returns the schema of what a source and its operators give; None if only running user code tells."""
    found, columns = fusion.source.found, fusion.view.columns
    schema = found if found is None or columns is None else pa.schema([found.field(name) for name in columns])
    if schema is not None and not len(schema):
        # No rows came out of an exchange, nor their columns.
        return None
    for operator in fusion.operators:
        schema = operator.schema(schema)
    return schema


def with_piece(table: pa.Table, piece: str) -> pa.Table:
    """Returns a table that says what it was read from."""
    return table.replace_schema_metadata({PIECE: piece.encode(errors="replace")})


def with_one_schema(blocks: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yields blocks of one schema: that of the first one, columns of nothing but nulls typed as in those that follow it
    soon. Raises SchemaMismatch, which notes what was read, for one that it does not hold."""
    schema: pa.Schema | None = None
    pending: list[pa.Table] = []
    pieces: set[bytes] = set()
    size = 0
    for block in blocks:
        if schema is not None:
            yield _held(block, schema)
            continue
        pending.append(block)
        pieces.add((block.schema.metadata or {}).get(PIECE, b""))
        size += block.nbytes
        found = _typed(pending)
        if len(pieces) > TYPE_PROBES or size >= HELD_BYTES or all(is_known(field.type) for field in found):
            schema = found
            yield from (_held(one, schema) for one in pending)
            pending.clear()
    if pending:
        schema = _typed(pending)
        yield from (_held(one, schema) for one in pending)


def _typed(blocks: Sequence[pa.Table]) -> pa.Schema:
    """Returns the schema of the first block, types that it does not tell taken from the others."""
    return reduce(fill_schema, (block.schema for block in blocks[1:]), blocks[0].schema.remove_metadata())


def _held(block: pa.Table, schema: pa.Schema) -> pa.Table:
    piece = (block.schema.metadata or {}).get(PIECE, b"").decode(errors="replace")
    try:
        return conform(block.replace_schema_metadata(None), schema)
    except SchemaMismatch as error:
        if piece:
            error.add_note(f"while {piece} was read")
        raise


def without_piece(blocks: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yields blocks that do not say any more what they were read from."""
    for block in blocks:
        metadata = block.schema.metadata
        yield block.replace_schema_metadata(None) if metadata and PIECE in metadata else block


# Where there is no row


class EmptyTables:
    """Tables without rows among those that pieces give: they tell a schema where there is no row at all."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None
        self._rows = False

    def seen(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """Yields tables, and looks at them."""
        for table in tables:
            if table.num_rows:
                self._rows = True
            elif not self._rows:
                self._schema = fill_schema(self._schema, table.schema.remove_metadata())
            yield table

    def after(self, blocks: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """Yields blocks; after none, one without rows, if tables without rows were seen."""
        yield from blocks
        if not self._rows and self._schema is not None:
            yield empty(self._schema)
