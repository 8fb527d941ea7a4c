"""Parts of texts that other texts have, too: lines, paragraphs, or windows of sentences; they are cut out.

    keys, marks    as of rows that are equal (see `exact`): a part is known by its row, and where it begins in its text
    cut            the rows are read again, in order; parts that are marked are cut out, but those that are kept

The first of equal parts in the order of the corpus is kept. A part goes with what is between it and the one before that
stays; the first ones of a text with what is behind them. So what is left has the separators that it had, and is the
text without the spans that are told.

A window is so many sentences in a row. Each window that is there before goes with all of its sentences, and windows
overlap: a sentence of a window that is the first of its kind goes if it is in another one that is not, as in C4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.arrow import hashing
from curate.arrow.canonical import plain_column
from curate.arrow.expressions import refuse_unknown
from curate.arrow.hashing import digest_rows
from curate.arrow.order import rows_where
from curate.arrow.recast import decoded, recast
from curate.arrow.types import is_text, value_type
from curate.dataclass import dataclass
from curate.dedup import normalise
from curate.dedup.exact import CHECK, KEPT_ID, KEPT_START, Compared, Ints, OfCopies, Parts, copies
from curate.dedup.normalise import CCNET, DATATROVE, EXACT, FORMS, in_form
from curate.errors import ConfigError, refuse_other
from curate.exchange.row_ids import first_row_id, row_ids
from curate.late_pandas import numbers, text
from curate.operators.side_input import Marks
from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import BatchPosition, SideTable
from curate.texts import units
from curate.texts.pieces import NOT_UTF8, readable
from curate.texts.units import LINE, PARAGRAPH, SENTENCES, UNITS, PlainSentences, Sentences, SpacySentences, Units
from curate.texts.words import SPACY, WHITESPACE, Words, splitter
from curate.units import MOST, keep_whole

REMOVED = "removed"
"""The extra output that tells what was cut out."""
NOTHING_LEFT = "nothing left"
FEW_WORDS = "too few words left"
"""Why rows are dropped of whose texts parts were cut out."""
PUBLISHED = {PARAGRAPH: EXACT, LINE: CCNET, SENTENCES: DATATROVE}
"""What is compared of each kind of unit, unless it is said: as Dolma, CCNet and datatrove's C4 do."""


@dataclass(frozen=True, slots=True)
class SpanDedup(Compared):
    """When parts of texts are duplicates, and what becomes of the texts."""

    column: str
    unit: str = LINE
    form: str | None = None
    """What is compared: see `in_form`; None: as PUBLISHED has it."""
    sentences: int = 3
    """Sentences of a window."""
    words: str = WHITESPACE
    """How words are counted and sentences are found: `whitespace` or `spacy`."""
    min_unit_words: int = 0
    """Words, between white space, below which a part is not compared."""
    min_words: int = 50
    """Words below which a text goes, if anything was cut out of it."""
    id_column: str | None = None
    """The column that rows are told by; None: they are not told."""
    of_parts = True
    keep = "first"
    priority = None
    method = "dedup_paragraphs"
    keeps_earlier = True

    def __post_init__(self) -> None:
        for name, value, known in (
            ("unit", self.unit, UNITS),
            ("normalise", EXACT if self.form is None else self.form, FORMS),
            ("words", self.words, (WHITESPACE, SPACY)),
        ):
            refuse_other(f"{self.method}: {name}", value, known)
        keep_whole(self, f"{self.method}: ", {"sentences": 1, "min_unit_words": 0, "min_words": 0}, MOST)

    @property
    def name(self) -> str:
        return f"{self.method}({self.column!r})"

    @property
    def compared_as(self) -> str:
        """What is compared of a unit."""
        return PUBLISHED.get(self.unit, EXACT) if self.form is None else self.form

    @property
    def named(self) -> tuple[str, ...]:
        return (self.column,) if self.id_column is None else (self.column, self.id_column)

    def check(self, found: pa.Schema) -> None:
        """Raises ConfigError for columns that are not there, and for texts that are none."""
        refuse_unknown(self.method, self.named, found.names)
        type = found.field(self.column).type
        if not is_text(value_type(type)):
            raise ConfigError.of_column(f"{self.method}: column {self.column!r} is {type}, expected texts", self.column)
        if self.id_column == self.column:
            told = f"{self.method}: parts are cut out of {self.column!r}, so it cannot identify rows"
            raise ConfigError.of_column(f"{told}; name another id column", self.column)

    def identity(self) -> Any:
        versions = [hashing.VERSION, normalise.VERSION, units.VERSION]
        given = [self.unit, self.compared_as, self.sentences, self.words, self.min_unit_words, self.min_words]
        return [self.column, *given, self.id_column, versions]

    def units(self, batch: pa.Table) -> Units:
        """Returns the units of the texts of a batch."""
        return units.units(
            readable(batch[self.column])[0], self.unit, _sentences(self.words) if self.unit == SENTENCES else None
        )

    def parts(self, batch: pa.Table) -> Parts:
        return self.windows(self.units(batch))[0]

    def windows(self, found: Units) -> tuple[Parts, Ints]:
        """Returns what is compared of units, and the first unit of each."""
        texts = in_form(found.text, self.compared_as)
        size = self.sentences if self.unit == SENTENCES else 1
        first = np.arange(max(0, len(texts) - size + 1))
        first = first[found.owner[first] == found.owner[first + size - 1]]
        if size > 1:
            blank = pa.scalar(" ", pa.large_string())
            texts = pc.binary_join_element_wise(*(texts.take(pa.array(first + at)) for at in range(size)), blank)
        long = pc.not_equal(pc.utf8_trim_whitespace(texts), text(""))
        if self.min_unit_words > 1:
            count = pc.list_value_length(pc.utf8_split_whitespace(pc.utf8_trim_whitespace(texts)))
            long = pc.and_(long, pc.greater_equal(count, pa.scalar(self.min_unit_words, pa.int64())))
        texts, first = texts.filter(long), first[numbers(long)]
        digest, check = digest_rows(pa.table({"unit": texts}), ["unit"])
        return Parts(digest, check, found.owner[first], found.start[first]), first


@cache
def _sentences(words: str) -> Sentences:
    return SpacySentences() if words == SPACY else PlainSentences()


@dataclass(frozen=True, slots=True)
class CutCopies(OfCopies):
    """Cuts the parts of texts that are copies of others, and drops the rows of which too little is left."""

    rule: SpanDedup
    marks: Marks | None = None
    """None where it is planned, not run."""
    side = REMOVED

    def identity(self) -> Any:
        return ["cut copies", self.rule.identity()]

    def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table | SideTable]:
        marks = None
        if batch.num_rows and self.marks is not None:
            marks = self.marks.of(first_row_id(place.rank), first_row_id(place.rank + 1))
            if number := readable(batch[self.rule.column])[1]:
                tally.count(NOT_UTF8, number)
        if marks is None or not marks.num_rows:
            yield batch
            yield from self._told(batch, None, None)
            return
        found = self.rule.units(batch)
        parts, first = self.rule.windows(found)
        of_part = copies(parts, row_ids(place, batch.num_rows), marks)
        size = self.rule.sentences if self.rule.unit == SENTENCES else 1
        by = np.full(len(found.owner), -1)
        gone = of_part >= 0
        # The first window that a sentence is in is told: it is written last.
        for at in range(size):
            by[first[gone] + at] = of_part[gone]
        cut = Cut.of(found, by >= 0)
        yield from self._left(batch, cut, tally)
        yield from self._told(batch, cut, marks.take(pa.array(by[cut.unit])))

    def _left(self, batch: pa.Table, cut: Cut, tally: ShardBooks) -> Iterator[pa.Table]:
        if not len(cut.unit):
            yield batch
            return
        tally.count(f"{self.rule.unit.removesuffix('s')}s removed", len(cut.unit))
        yield cut.left_of(batch, self.rule.column, splitter(self.rule.words).words, self.rule.min_words, tally)

    def _told(self, batch: pa.Table, cut: Cut | None, marks: pa.Table | None) -> Iterator[SideTable]:
        """Yields the spans that are cut out; also without any: that tells the columns of the extra output."""
        if self.rule.id_column is None or self.rule.id_column not in batch.column_names:
            return
        ids = plain_column(batch[self.rule.id_column])
        if cut is None or marks is None:
            none = pa.array([], pa.int64())
            columns = [ids[:0], none, none, pa.array([], pa.string()), pa.array([], pa.string()), ids[:0], none]
        else:
            columns = [ids.take(pa.array(cut.row)), pa.array(cut.start), pa.array(cut.stop)]
            columns.append(pa.array([self.rule.unit] * len(cut.row), pa.string()))
            columns.append(pa.array([f"{one:016x}" for one in marks[CHECK].to_pylist()], pa.string()))
            columns += [marks[KEPT_ID], marks[KEPT_START]]
        names = ["id", "start", "end", "kind", "cluster", "kept_id", "kept_start"]
        yield SideTable(REMOVED, pa.table(columns, names=names))


@dataclass(frozen=True, slots=True)
class Cut:
    """What is cut out of texts: spans of characters, text by text, in order; no two overlap."""

    unit: Ints
    """The unit that each span is for."""
    row: Ints
    """The text that it is of."""
    start: Ints
    stop: Ints

    @classmethod
    def of(cls, found: Units, gone: Any) -> Cut:
        """Returns the spans of units that are gone: each with what is between it and the unit before; where no unit
        stays before it, with what is behind it up to the next one.

        >>> from curate.texts.units import units
        >>> found = units(pa.array(["a. b. c. d.\\n"]), "sentences")
        >>> cut = Cut.of(found, np.array([True, False, True, True]))
        >>> list(zip(cut.start.tolist(), cut.stop.tolist())), cut.texts(pa.array(["a. b. c. d.\\n"]))[1]
        ([(0, 3), (5, 8), (8, 11)], ['b.\\n'])
        """
        at = np.flatnonzero(gone)
        owner = found.owner
        number = np.arange(len(owner))
        last_kept = np.maximum.accumulate(np.where(gone, -1, number)) if len(number) else number
        text_starts = np.searchsorted(owner, owner[at])
        text_stops = np.searchsorted(owner, owner[at], side="right")
        behind_kept = last_kept[at] >= text_starts
        start, stop = found.start[at], found.stop[at]
        start = np.where(behind_kept, found.stop[np.maximum(at - 1, 0)], start)
        onward = ~behind_kept & (at + 1 < text_stops)
        stop = np.where(onward, found.start[np.minimum(at + 1, max(len(owner) - 1, 0))], stop)
        return cls(at, owner[at], start, stop)

    def texts(self, texts: pa.ChunkedArray | pa.Array) -> tuple[Ints, list[str]]:
        """Returns the texts that something is cut out of, by number, and what is left of each."""
        rows, begins = np.unique(self.row, return_index=True)
        ends = np.append(begins[1:], len(self.row))
        starts, stops = self.start.tolist(), self.stop.tolist()
        left = []
        for row, begin, end in zip(rows.tolist(), begins.tolist(), ends.tolist(), strict=True):
            text = texts[row].as_py()
            kept, at = [], 0
            for number in range(begin, end):
                kept.append(text[at : starts[number]])
                at = stops[number]
            left.append("".join([*kept, text[at:]]))
        return rows, left

    def left_of(
        self, batch: pa.Table, column: str, split: Callable[[pa.Array], Words], min_words: int, tally: ShardBooks
    ) -> pa.Table:
        """Returns what is left of a batch. Rows without enough words are dropped as they were: what is cut out is told
        beside them."""
        rows, texts = self.texts(batch[column])
        left = pa.array(texts, pa.large_string())
        words = split(left).count
        nothing, few = np.zeros(batch.num_rows, bool), np.zeros(batch.num_rows, bool)
        nothing[rows] = words == 0
        few[rows] = (words > 0) & (words < min_words)
        tally.drop_rows(batch, nothing, NOTHING_LEFT)
        tally.drop_rows(batch, few, FEW_WORDS)
        return rows_where(_with_texts(batch, column, rows, left), ~(nothing | few))


def _with_texts(batch: pa.Table, column: str, rows: Ints, texts: pa.Array) -> pa.Table:
    """Returns a batch with other texts in some rows, of the type that they had."""
    if not len(rows):
        return batch
    at = batch.column_names.index(column)
    field = batch.schema.field(at)
    plain = decoded(batch[column]).cast(pa.large_string()).combine_chunks()
    mask = np.zeros(batch.num_rows, bool)
    mask[rows] = True
    made = pc.replace_with_mask(plain, pa.array(mask), texts)
    return batch.set_column(at, field, recast(made, field.type))
