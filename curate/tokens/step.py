"""The step behind the tokenizer: documents become sequences, over the whole of a shard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from curate.arrow.unknown import empty
from curate.dataclass import dataclass
from curate.errors import CorruptInput
from curate.keywords import option
from curate.operators.protocol import Operator
from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import BatchPosition
from curate.tokens.documents import TOKENS, documents_of, offsets
from curate.tokens.packing import CONCATENATE, BestFit, Concatenated, Packer, Sequences

DOCUMENT_LENGTHS, PADDING = "document_lengths", "padding"
"""Columns of a sequence: tokens of each document in it, or piece of one, in order; tokens of padding behind them."""
PACKED = "packed into sequences"
"""Why there are fewer rows behind this step than before it."""

# Counters.
N_TOKENS, N_DOCUMENTS, N_EMPTY, N_UNKNOWN = "tokens", "documents", "empty documents", "unknown tokens"
N_PADDING, N_CUTS, N_DROPPED = "padding", "cuts in documents", "tokens dropped from the end of shards"


@dataclass(frozen=True, slots=True)
class Packing:
    """How sequences are made."""

    length: int
    """Tokens of a sequence."""
    how: str
    """`CONCATENATE` or `BEST_FIT`."""
    pad: int | None
    """The token of padding; None: tokens at the end of a shard that fill no sequence are left out."""

    def packer(self) -> Packer:
        """Returns what makes the sequences of one shard."""
        if self.how == CONCATENATE:
            return Concatenated(self.length, self.pad)
        assert self.pad is not None
        return BestFit(self.length, self.pad)


@dataclass(frozen=True, slots=True)
class PackTokens(Operator):
    """Makes sequences of the documents of a shard; without a packing documents stay as they are. Fails a shard of which
    too many tokens are unknown."""

    packing: Packing | None
    max_unknown: float
    """Largest share of tokens of a shard that are unknown."""
    name = "pack"

    @property
    def keeps_rows(self) -> bool:
        return self.packing is None

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        """Returns that of sequences, or of documents as they are."""
        return found if self.packing is None or found is None else sequence_schema(found.field(TOKENS).type)

    def identity(self) -> Any:
        """Returns the packing."""
        told = None if self.packing is None else [self.packing.length, self.packing.how, self.packing.pad]
        return ["pack", told, self.max_unknown]

    def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        """Yields nothing: it is given whole shards."""
        del batch, tally, place
        yield from ()

    def of_shard(self, tally: ShardBooks) -> PackedShard:
        """Returns what is given the documents of one shard."""
        return PackedShard(self, tally)


class PackedShard:
    """Makes the sequences of one shard."""

    def __init__(self, step: PackTokens, tally: ShardBooks) -> None:
        self._step = step
        self._tally = tally
        self._packer = None if step.packing is None else step.packing.packer()
        self._type: pa.DataType | None = None
        self._rows = self._made = self._documents = self._pieces = 0

    def take(self, table: pa.Table) -> Iterator[pa.Table]:
        """Yields the sequences that these documents complete."""
        if self._packer is None:
            yield table
            return
        self._type = table.schema.field(TOKENS).type
        documents = documents_of(table[TOKENS])
        self._rows += table.num_rows
        self._documents += int(np.count_nonzero(documents.lengths))
        yield self._table(self._packer.take(documents))

    def end(self) -> Iterator[pa.Table]:
        """Yields the last sequences. Raises CorruptInput if too many tokens are unknown."""
        self._judge()
        if self._packer is None or self._type is None:
            return
        last, dropped = self._packer.end()
        yield self._table(last)
        if self._rows > self._made:
            self._tally.drop(self._rows - self._made, PACKED)
        # A document that ends in the tail is in pieces, too, if it begins before.
        cuts = self._pieces + len(dropped) - self._documents
        for name, number in ((N_DROPPED, int(dropped.sum())), (N_CUTS, cuts)):
            if number:
                self._tally.count(name, number)

    def _table(self, made: Sequences) -> pa.Table:
        assert self._type is not None
        assert self._step.packing is not None
        schema = sequence_schema(self._type)
        if not len(made):
            return empty(schema)
        self._made += len(made)
        self._pieces += len(made.pieces)
        if padding := int(made.padding.sum()):
            self._tally.count(N_PADDING, padding)
        starts = np.arange(len(made) + 1) * self._step.packing.length
        columns = [
            pa.ListArray.from_arrays(pa.array(starts, pa.int32()), pa.array(made.ids, self._type.value_type)),
            pa.ListArray.from_arrays(pa.array(offsets(made.counts), pa.int32()), pa.array(made.pieces, pa.int32())),
            pa.array(made.padding, pa.int32()),
        ]
        return pa.table(columns, schema=schema)

    def _judge(self) -> None:
        counted = self._tally.books.counters
        unknown, tokens = int(counted.get(N_UNKNOWN, 0)), int(counted.get(N_TOKENS, 0))
        if unknown > self._step.max_unknown * tokens:
            raise CorruptInput(
                f"{unknown / tokens:.1%} of the tokens of this shard are unknown ({unknown:,} of {tokens:,}), which is "
                f"above {option('max_unknown', self._step.max_unknown)}: the tokenizer does not know this language or "
                "script; give another tokenizer, or raise that share"
            )


def sequence_schema(tokens: pa.DataType) -> pa.Schema:
    """Returns the schema of sequences of tokens of that type."""
    return pa.schema([(TOKENS, tokens), (DOCUMENT_LENGTHS, pa.list_(pa.int32())), (PADDING, pa.int32())])
