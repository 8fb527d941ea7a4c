"""Texts that share words in a row with evaluation sets: dropped, marked, or with these words cut out.

    keys     of each text the n-grams of the sets that it has, each once; of one shard they are counted
    marks    counts of all shards come together; every shard that has an n-gram is told if too many texts have it
    drop     the rows are read again, in order

Without a bound for the number of texts there is nothing to count, and rows are read once. What is exchanged is 28 bytes
for each n-gram of the sets that a shard has, so no more than the sets are large, times the shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from curate.arrow.canonical import plain_column
from curate.arrow.expressions import refuse_unknown
from curate.arrow.order import Order, SortKey, rows_where
from curate.arrow.types import is_text, value_type
from curate.dataclass import dataclass
from curate.dedup.evaluation import Compared, Index
from curate.dedup.exact import COUNT, DIGEST, Ints, first_places
from curate.dedup.spans import Cut
from curate.errors import ConfigError, refuse_other
from curate.exchange.protocol import Exchange, ReducePart
from curate.exchange.row_ids import ROW_ID, first_row_id, row_ids
from curate.late_pandas import numbers
from curate.operators.protocol import ByRule, Replacing, Rule
from curate.operators.side_input import Marking, Marks
from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import BatchPosition, SideTable
from curate.tasks.books import GROUPED
from curate.texts.ngrams import Tokens
from curate.texts.pieces import NOT_UTF8, readable
from curate.texts.words import by_whitespace
from curate.units import MOST, keep_whole

CONTAMINATED = "contaminated"
"""Why rows are dropped that have n-grams of evaluation sets; and the extra output that tells which these are."""
NGRAMS, SETS = "contaminated_ngrams", "contaminated_sets"
"""The columns that are added instead: how many different n-grams, and the sets that have any of these."""
DROP, ANNOTATE, CUT = "drop", "annotate", "cut"
ACTIONS = (DROP, ANNOTATE, CUT)


@dataclass(frozen=True, slots=True)
class Decontamination(Rule):
    """Which texts are contaminated, and what becomes of them."""

    column: str
    compared: Compared
    action: str = DROP
    max_documents: int | None = 10
    """Texts of the corpus; n-grams that more of them have are left out of account. None: none are."""
    margin: int = 0
    """Characters that are cut out on either side, too."""
    min_words: int = 50
    """Words below which a text goes, if anything was cut out of it."""
    id_column: str | None = None
    """The column that rows are told by; None: they are not told."""

    def __post_init__(self) -> None:
        refuse_other("decontaminate: action", self.action, ACTIONS)
        least = {"max_documents": 1, "margin": 0, "min_words": 0}
        given = {name: low for name, low in least.items() if getattr(self, name) is not None}
        keep_whole(self, "decontaminate: ", given, MOST)

    @property
    def name(self) -> str:
        return f"decontaminate({self.column!r})"

    @property
    def named(self) -> tuple[str, ...]:
        return (self.column,) if self.id_column is None else (self.column, self.id_column)

    def check(self, found: pa.Schema) -> None:
        refuse_unknown("decontaminate", self.named, found.names)
        type = found.field(self.column).type
        if not is_text(value_type(type)):
            raise ConfigError.of_column(f"decontaminate: column {self.column!r} is {type}, expected texts", self.column)
        if self.action == CUT and self.id_column == self.column:
            raise ConfigError(
                f"decontaminate: parts are cut out of {self.column!r}, so it cannot identify rows; name another id "
                "column"
            )
        for name in (NGRAMS, SETS) if self.action == ANNOTATE else ():
            if name in found.names:
                raise ConfigError(f"decontaminate: there is a column {name!r} already; rename or drop it before")

    def identity(self) -> Any:
        given = [self.action, self.max_documents, self.margin, self.min_words, self.id_column]
        return [self.column, self.compared.identity(), *given]

    def shared(self, batch: pa.Table, index: Index) -> Shared:
        """Returns the n-grams of the sets that the texts of a batch have."""
        found = self.compared.tokens(readable(batch[self.column])[0])
        return Shared(found, *index.find(found.words))


@dataclass(frozen=True)
class Shared:
    """N-grams of evaluation sets in texts, text by text, in order."""

    tokens: Tokens
    first: Ints
    """The first word of each."""
    gram: Ints
    """Which it is, of the index."""

    @property
    def row(self) -> Ints:
        """The text that each is in."""
        return self.tokens.words.owner[self.first]

    def where(self, chosen: Any) -> Shared:
        """Returns those for which `chosen` is true."""
        return Shared(self.tokens, self.first[chosen], self.gram[chosen])

    def each(self) -> tuple[Ints, Ints]:
        """Returns the first occurrence of each n-gram in each text, in order, and how often it occurs there."""
        order = np.lexsort((self.first, self.gram, self.row))
        row, gram = self.row[order], self.gram[order]
        new = np.append(True, (row[1:] != row[:-1]) | (gram[1:] != gram[:-1]))[: len(row)]
        starts = np.flatnonzero(new)
        counts = np.diff(starts, append=len(row))
        once = order[starts]
        back = np.argsort(once)
        return once[back], counts[back]

    def spans(self, texts: pa.ChunkedArray, n: int) -> tuple[Ints, Ints]:
        """Returns where each begins and ends in its text, in characters: with all that is beside it up to a blank."""
        start, stop = np.empty(len(self.first), np.int64), np.empty(len(self.first), np.int64)
        row = self.row
        for number in np.unique(row).tolist():
            low, high = np.searchsorted(row, [number, number + 1])
            starts, stops = self.tokens.spans(texts[number].as_py(), number)
            before = np.searchsorted(self.tokens.chunks.owner, number)
            start[low:high] = starts[self.tokens.chunk[self.first[low:high]] - before]
            stop[low:high] = stops[self.tokens.chunk[self.first[low:high] + n - 1] - before]
        return start, stop


@dataclass(frozen=True, slots=True)
class SharedNgrams(Replacing):
    """Replaces rows by the n-grams of evaluation sets that they have, each once."""

    rule: Decontamination

    @property
    def name(self) -> str:
        return f"shared n-grams({self.rule.column!r})"

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        Replacing.schema(self, found)
        return _COUNTS

    def identity(self) -> Any:
        return ["shared n-grams", self.rule.identity()]

    def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        index = self.rule.compared.index()
        found = self.rule.shared(batch, index)
        once, _ = found.each()
        tally.drop(max(0, batch.num_rows - len(once)), GROUPED)
        rows = row_ids(place, batch.num_rows)[found.row[once]]
        columns = [index.hashes[found.gram[once]], rows, np.ones(len(once), np.int64)]
        yield pa.table(list(map(pa.array, columns)), schema=_COUNTS)


_COUNTS = pa.schema([(DIGEST, pa.uint64()), (ROW_ID, pa.int64()), (COUNT, pa.int64())])
_COMMON = pa.schema([(ROW_ID, pa.int64()), (DIGEST, pa.uint64())])


@dataclass(frozen=True, slots=True)
class Common(Exchange):
    """The exchange that counts the texts which have an n-gram, and tells their shards of those that too many have."""

    how: Decontamination
    orders = (Order((SortKey(DIGEST),)),)
    aligned = True
    folds = True

    @property
    def name(self) -> str:
        return self.how.name

    def identity(self) -> Any:
        return ["common n-grams", self.how.identity()]

    def schema(self, found: Sequence[pa.Schema | None]) -> pa.Schema | None:
        if found[0] is not None:
            self.how.check(found[0])
        return _COMMON

    def prepare(self, side: int) -> tuple[Any, ...]:
        del side
        return (SharedNgrams(self.how),)

    def fold(self, table: pa.Table) -> pa.Table:
        digest, shard = numbers(table[DIGEST]), first_places(numbers(table[ROW_ID]))
        order = np.lexsort((shard, digest))
        digest, shard = digest[order], shard[order]
        starts = _starts((digest[1:] != digest[:-1]) | (shard[1:] != shard[:-1]), len(digest))
        if len(starts) == table.num_rows:
            return table
        counts = np.add.reduceat(numbers(table[COUNT])[order], starts)
        return pa.table(list(map(pa.array, (digest[starts], shard[starts], counts))), schema=_COUNTS)

    def combine(self, tables: Sequence[pa.Table], tally: ShardBooks, part: ReducePart) -> Iterator[pa.Table]:
        del part
        folded = self.fold(tables[0])
        order = np.argsort(numbers(folded[DIGEST]), kind="stable")
        digest, shard = numbers(folded[DIGEST])[order], first_places(numbers(folded[ROW_ID])[order])
        starts = _starts(digest[1:] != digest[:-1], len(digest))
        made = _COMMON.empty_table()
        if len(starts) and self.how.max_documents is not None:
            counts = np.add.reduceat(numbers(folded[COUNT])[order], starts)
            many = np.repeat(counts > self.how.max_documents, np.diff(starts, append=len(digest)))
            made = pa.table([pa.array(shard[many]), pa.array(digest[many])], schema=_COMMON)
        tally.drop(tables[0].num_rows - made.num_rows, GROUPED)
        yield made


def _starts(new: Any, rows: int) -> Ints:
    return np.flatnonzero(np.append(True, new))[:rows] if rows else np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Decontaminate(Marking, ByRule):
    """Drops rows that have n-grams of evaluation sets, marks them, or cuts the n-grams out."""

    rule: Decontamination
    marks: Marks | None = None
    """None where it is planned, or where no n-gram is left out of account."""
    order = Order((SortKey(ROW_ID), SortKey(DIGEST)))
    """What marks are sorted by: the shard that they are for, and the hash."""

    @property
    def keeps_rows(self) -> bool:
        """Whether every row stays."""
        return self.rule.action == ANNOTATE

    @property
    def sides(self) -> tuple[str, ...]:
        """The extra outputs that it has."""
        return (CONTAMINATED,) if self.rule.id_column is not None else ()

    def made(self, found: pa.Schema) -> pa.Schema:
        if self.rule.action != ANNOTATE:
            return found
        return found.append(pa.field(NGRAMS, pa.int64())).append(pa.field(SETS, pa.list_(pa.string())))

    def identity(self) -> Any:
        return ["decontaminate", self.rule.identity()]

    def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table | SideTable]:
        how, index = self.rule, self.rule.compared.index()
        found = how.shared(batch, index)
        if number := readable(batch[how.column])[1]:
            tally.count(NOT_UTF8, number)
        if self.marks is not None and len(found.first):
            common = self.marks.of(first_row_id(place.rank), first_row_id(place.rank + 1))
            if common.num_rows:
                found = found.where(~np.isin(index.hashes[found.gram], numbers(common[DIGEST])))
        once, counts = found.each()
        start, stop = found.spans(batch[how.column], how.compared.n)
        entries, of = index.entries(found.gram[once])
        if how.action == DROP:
            has = np.zeros(batch.num_rows, bool)
            has[found.row] = True
            tally.drop_rows(batch, has, CONTAMINATED)
            yield rows_where(batch, ~has)
        elif how.action == ANNOTATE:
            yield self._annotated(batch, found.row[once], found.row[once][of], index.sets[entries], index)
        else:
            yield from self._cut(batch, found.row, start, stop, tally)
        if how.id_column is None or how.id_column not in batch.column_names:
            return
        rows = found.row[once][of]
        columns = [plain_column(batch[how.id_column]).take(pa.array(rows))]
        columns.append(pa.array([index.names[one] for one in index.sets[entries].tolist()], pa.string()))
        columns.append(pa.array(index.examples[entries]))
        columns.append(pa.array(index.said(found.gram[once]), pa.string()).take(pa.array(of)))
        columns += [pa.array(one[once][of]) for one in (start, stop)]
        columns.append(pa.array(counts[of]))
        names = ["id", "set", "example", "ngram", "start", "end", "occurrences"]
        # Also without rows: it tells the columns of the extra output.
        yield SideTable(CONTAMINATED, pa.table(columns, names=names))

    def _annotated(self, batch: pa.Table, rows: Ints, of_entry: Ints, sets: Ints, index: Index) -> pa.Table:
        counts = np.bincount(rows, minlength=batch.num_rows)
        named = np.unique(of_entry * len(index.names) + sets)
        sizes = np.bincount(named // len(index.names), minlength=batch.num_rows)
        names = pa.array(index.names, pa.string()).take(pa.array(named % len(index.names)))
        lists = pa.ListArray.from_arrays(pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32()), names)
        return batch.append_column(NGRAMS, pa.array(counts, pa.int64())).append_column(SETS, lists)

    def _cut(self, batch: pa.Table, row: Ints, start: Ints, stop: Ints, tally: ShardBooks) -> Iterator[pa.Table]:
        if not len(row):
            yield batch
            return
        how = self.rule
        low = np.maximum(start - how.margin, 0)
        # Beyond the end of a text there is nothing to be cut.
        high = stop + how.margin
        # By text and start they are in order, and by stop, as all have as many words.
        new = np.append(True, (row[1:] != row[:-1]) | (low[1:] > high[:-1]))
        begins = np.flatnonzero(new)
        ends = np.append(begins[1:], len(row)) - 1
        cut = Cut(begins, row[begins], low[begins], high[ends])
        tally.count("spans cut out", len(begins))
        yield cut.left_of(batch, how.column, by_whitespace, how.min_words, tally)
