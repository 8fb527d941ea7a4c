"""Which rows of a corpus make up a mixture.

    keys     every row becomes its source, stratum, size and hash, 36 bytes in all; rows of no source are counted
    choice   one task reads these: once for what each source has, and so for the quotas, then twice for the hashes up
             to which rows are taken (see `lowest`)
    take     the rows are read again, in order, and each is written as often as it is to be there (see `take`)

No text is exchanged, and which rows are taken depends on the ids and sizes in a source alone: not on their order, nor
on other sources. With more rows, each has a hash to be below that is lower, so it is there as often, or less.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.arrow.hashing import Words
from curate.dataclass import dataclass
from curate.errors import CannotBeMet, did_you_mean
from curate.exchange.protocol import InOneGo
from curate.exchange.row_ids import ROW_ID, row_ids
from curate.late_pandas import numbers
from curate.mixture.lowest import NOTHING, Histogram, Ints, Reached, handed_on
from curate.mixture.quotas import Quota, largest_remainder, quota, strata
from curate.mixture.rows import Mixing
from curate.operators.protocol import Replacing
from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import BatchPosition
from curate.tasks.books import GROUPED

SOURCE, STRATUM, HASH, SIZE, NAME = "__source", "__stratum", "__hash", "__size", "__name"
EPOCHS, LAST, FIRST = "__epochs", "__last", "__first"
WANTED, AVAILABLE, WRITTEN, AVAILABLE_ROWS, WRITTEN_ROWS = (
    "__wanted",
    "__available",
    "__written",
    "__available_rows",
    "__written_rows",
)

KEYS = pa.schema(
    [
        (ROW_ID, pa.int64()),
        (SOURCE, pa.int32()),
        (STRATUM, pa.uint64()),
        (HASH, pa.uint64()),
        (SIZE, pa.int64()),
        (NAME, pa.string()),
    ]
)
"""Of a row of no source in the mixture: the name of that, and in `SIZE` how many rows it has in the batch; none, where
the row stands for a batch of which no row can be drawn."""
DRAWN = pa.schema(
    [
        (ROW_ID, pa.int64()),
        (SOURCE, pa.int32()),
        (STRATUM, pa.uint64()),
        (EPOCHS, pa.int64()),
        (HASH, pa.uint64()),
        (LAST, pa.int64()),
        *((name, pa.int64()) for name in (WANTED, AVAILABLE, WRITTEN, AVAILABLE_ROWS, WRITTEN_ROWS, FIRST)),
    ]
)
"""What is drawn of each stratum: whole epochs, and the rows before a hash and a row id once more. `FIRST` is the first
row of the corpus, which says it all for the books."""
MOST_STRATA = 1 << 16
"""Sources times strata."""
MOST_NAMES = 1000
"""Sources which the mixture does not name, and which are told."""
SHOWN_NAMES = 5
NAME_CHARS = 60

Group = tuple[int, int]
"""A source and a stratum of it."""


@dataclass(frozen=True, slots=True)
class Keys(Replacing):
    """Replaces rows by what decides whether they are drawn."""

    rule: Mixing
    says_all = True

    @property
    def name(self) -> str:
        return f"keys of {self.rule.name}"

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        Replacing.schema(self, found)
        return KEYS

    def identity(self) -> Any:
        # Not the weights: who corrects these need not have all rows looked at again.
        return ["keys", self.rule.keys_identity()]

    def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        source, ids = self.rule.sources(batch), row_ids(place, batch.num_rows)
        sizes, listed = self.rule.sizes(batch), source >= 0
        columns: list[Any] = [ids, source.astype(np.int32), self.rule.strata(batch), self.rule.hashes(batch)]
        columns.append(sizes)
        drawn = listed & (sizes > 0)
        found = pa.table([*(column[drawn] for column in columns), pa.nulls(int(drawn.sum()), pa.string())], schema=KEYS)
        if not listed.all():
            names = self.rule.source_names(batch).filter(pa.array(~listed))
            # As bytes: names may be anything.
            counts = pc.value_counts(names.cast(pa.large_binary()))
            values = counts.field("values").to_pylist()
            told = pa.array([one and one.decode("utf-8", "replace")[:NAME_CHARS] for one in values], pa.string())
            none = np.zeros(len(told), np.uint64)
            unlisted = [np.full(len(told), ids[0]), np.full(len(told), -1, np.int32), none, none]
            found = pa.concat_tables([found, pa.table([*unlisted, counts.field("counts"), told], schema=KEYS)])
        if not found.num_rows:
            # So that one row is the first of all, even where none has a size: see `FIRST`.
            none = pa.nulls(1, pa.string())
            found = pa.table([[int(ids[0])], [-1], [0], [0], [0], none], schema=KEYS)
        tally.drop(max(0, batch.num_rows - found.num_rows), GROUPED)
        yield found


@dataclass(frozen=True, slots=True)
class Drawn(InOneGo):
    """The exchange that decides how often each row is there."""

    mixing: Mixing

    @property
    def name(self) -> str:
        return self.mixing.name

    def identity(self) -> Any:
        return ["mix", self.mixing.identity()]

    def schema(self, found: Sequence[pa.Schema | None]) -> pa.Schema | None:
        if found[0] is not None:
            self.mixing.check(found[0])
        return DRAWN

    def made(self, prepared: Sequence[pa.Schema]) -> pa.Schema | None:
        del prepared
        return DRAWN

    def prepare(self, side: int) -> tuple[Any, ...]:
        del side
        return (Keys(self.mixing),)

    def scan(self, read: Callable[[], Iterator[pa.Table]], tally: ShardBooks) -> Iterator[pa.Table]:
        stock = Stock.of(read(), self.mixing)
        quotas = stock.quotas(self.mixing)
        reached = [NOTHING] * len(quotas)
        if any(one.rest for one in quotas):
            histogram = Histogram(len(quotas))
            for group, table in stock.grouped(read()):
                histogram.add(group, numbers(table[HASH]), numbers(table[SIZE]))
            crossings = histogram.crossings([one.rest for one in quotas])
            for group, table in stock.grouped(read()):
                crossings.add(group, *(numbers(table[name]) for name in (HASH, ROW_ID, SIZE)))
            reached = stock.handed_on(quotas, crossings.reached())
        made = stock.drawn(quotas, reached)
        tally.drop(max(0, stock.keys - made.num_rows), GROUPED)
        yield made


@dataclass
class Stock:
    """What there is of each stratum of each source, in order of these."""

    groups: list[Group]
    had: list[int]
    """In units."""
    rows: list[int]
    unlisted: dict[str | None, int]
    """Rows of sources which the mixture does not name."""
    others: int
    """Rows of further ones."""
    first: int
    """The first row of all."""
    keys: int
    """Rows that were looked at."""

    @classmethod
    def of(cls, tables: Iterator[pa.Table], mixing: Mixing) -> Stock:
        """Counts. Raises CannotBeMet for too many strata."""
        had: dict[Group, list[int]] = {}
        unlisted: dict[str | None, int] = {}
        others = 0
        first, keys = -1, 0
        for table in tables:
            keys += table.num_rows
            if table.num_rows:
                least = pc.min(table[ROW_ID]).as_py()
                first = least if first < 0 else min(first, least)
            source = numbers(table[SOURCE])
            unnamed = table.filter(pa.array((source < 0) & (numbers(table[SIZE]) > 0)))
            for row in unnamed.select([NAME, SIZE]).to_pylist():
                if row[NAME] in unlisted or len(unlisted) < MOST_NAMES:
                    unlisted[row[NAME]] = unlisted.get(row[NAME], 0) + row[SIZE]
                else:
                    others += row[SIZE]
            table = table.filter(pa.array(source >= 0))
            # Before there is a table of all of them with all sources.
            _refuse_many(pc.count_distinct(table[STRATUM]).as_py() if mixing.strata_column is not None else 1, mixing)
            groups, at = _groups(table)
            units, rows = np.zeros(len(groups), np.int64), np.bincount(at, minlength=len(groups))
            np.add.at(units, at, numbers(table[SIZE]))
            for group, own, number in zip(groups, units.tolist(), rows.tolist(), strict=True):
                total = had.setdefault(group, [0, 0])
                total[0] += own
                total[1] += number
            _refuse_many(len(had), mixing)
        # A source without rows is in the books, too.
        for source in {*range(len(mixing.mixture.names))} - {source for source, _ in had}:
            had[source, 0] = [0, 0]
        groups = sorted(had)
        held, counts = ([had[one][at] for one in groups] for at in (0, 1))
        return cls(groups, held, counts, unlisted, others, first, keys)

    def grouped(self, tables: Iterator[pa.Table]) -> Iterator[tuple[Ints, pa.Table]]:
        """Yields the rows of the mixture's sources, each with the number of its group."""
        number = {group: at for at, group in enumerate(self.groups)}
        for table in tables:
            table = table.filter(pa.array(numbers(table[SOURCE]) >= 0))
            groups, at = _groups(table)
            yield np.array([number[one] for one in groups], np.int64)[at], table

    def of_source(self, source: int) -> range:
        """Returns the numbers of the groups of a source."""
        return range(bisect_left(self.groups, (source, 0)), bisect_left(self.groups, (source + 1, 0)))

    def quotas(self, mixing: Mixing) -> list[Quota]:
        """Returns what is taken of each group. Raises CannotBeMet, with all numbers, if a source has too little, unless
        that may be."""
        mixture = mixing.mixture
        found: list[Quota] = []
        short = []
        for source, wanted in enumerate(largest_remainder(mixture.budget, mixture.weights)):
            of, own = mixture.sources[source], self.of_source(source)
            had = sum(self.had[at] for at in own)
            whole = quota(wanted, had, of.max_epochs)
            if whole.missing:
                most = f", at most {had * of.max_epochs:,} in {of.max_epochs} epochs" if had else ""
                close = "" if had else did_you_mean(of.name, filter(None, self.unlisted))
                short.append(f"source {of.name!r}: {wanted:,} {mixture.unit} wanted, {had:,} available{most}{close}")
            found += strata(wanted, [self.had[at] for at in own], of.max_epochs)
        if short and not mixing.allow_shortfall:
            raise CannotBeMet(
                f"mix: {'; '.join(short)}. {self._unlisted(mixing)}Lower the budget or its weight, let it be repeated "
                "more often (max_epochs), or write what there is (allow_shortfall)"
            )
        return found

    def handed_on(self, quotas: Sequence[Quota], reached: Sequence[Reached]) -> list[Reached]:
        """Returns what is taken of each group where the strata of a source hand on what none of their rows fits in."""
        found: list[Reached] = []
        while len(found) < len(self.groups):
            own = self.of_source(self.groups[len(found)][0])
            found += handed_on([quotas[at].rest for at in own], [reached[at] for at in own])
        return found

    def _unlisted(self, mixing: Mixing) -> str:
        if not self.unlisted:
            return ""
        most = sorted(self.unlisted.items(), key=lambda one: (-one[1], str(one[0])))[:SHOWN_NAMES]
        told = ", ".join(f"{'null' if name is None else repr(name)} ({rows:,} rows)" for name, rows in most)
        return (
            f"The mixture does not name these values of {mixing.source_column!r}: {told}"
            f"{', ...' * (len(self.unlisted) > SHOWN_NAMES)}"
            f"{f', and others ({self.others:,} rows)' if self.others else ''}. "
        )

    def drawn(self, quotas: Sequence[Quota], reached: Sequence[Reached]) -> pa.Table:
        """Returns what is told of each group."""
        columns: dict[str, list[Any]] = {
            SOURCE: [source for source, _ in self.groups],
            STRATUM: [stratum for _, stratum in self.groups],
            EPOCHS: [one.epochs for one in quotas],
            HASH: [one.hash for one in reached],
            LAST: [one.row for one in reached],
            WANTED: [one.wanted for one in quotas],
            AVAILABLE: self.had,
            WRITTEN: [one.epochs * had + last.units for one, had, last in zip(quotas, self.had, reached, strict=True)],
            AVAILABLE_ROWS: self.rows,
            WRITTEN_ROWS: [
                one.epochs * had + last.rows for one, had, last in zip(quotas, self.rows, reached, strict=True)
            ],
        }
        for name in (ROW_ID, FIRST):
            columns[name] = [0 if name == ROW_ID else self.first] * len(self.groups)
        return pa.table({name: columns[name] for name in DRAWN.names}, schema=DRAWN)


def _refuse_many(strata: int, mixing: Mixing) -> None:
    if strata > MOST_STRATA:
        raise CannotBeMet(
            f"mix: the column {mixing.strata_column!r} makes more than {MOST_STRATA:,} strata of "
            f"{len(mixing.mixture.names)} sources; name a column with fewer values"
        )


def _groups(table: pa.Table) -> tuple[list[Group], Any]:
    """Returns the sources and strata that rows are of, and the number of each row's among these."""
    # By hash, not by sorting: it is done three times for each row of the corpus, in one task.
    encoded = table[STRATUM].combine_chunks().dictionary_encode()
    strata: Words = numbers(encoded.dictionary)
    codes = numbers(table[SOURCE]).astype(np.int64) * len(strata) + numbers(encoded.indices)
    there = np.zeros(int(codes.max(initial=-1)) + 1, bool)
    there[codes] = True
    found = np.flatnonzero(there)
    at = (np.cumsum(there) - 1)[codes]
    return [(one // len(strata), int(strata[one % len(strata)])) for one in found.tolist()], at
