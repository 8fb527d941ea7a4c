"""The sketch of a corpus, or of a shard of it: its columns, and what each source has."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from curate.arrow.expressions import refuse_unknown
from curate.arrow.types import is_encoded
from curate.dataclass import dataclass, field
from curate.errors import ConfigError
from curate.report.column import SHOWN_CHARS, Column, Leaf, cut, leaves, read

VERSION = 4
"""Part of the identity of a report's shards."""
MOST_SOURCES = 10_000
"""Sources that are told apart; the rows of others are counted as one."""


@dataclass(slots=True)
class Source:
    """What a source has: the rows with one value in the column that names it."""

    rows: int = 0
    characters: int = 0
    """Of all texts of these rows."""


@dataclass(slots=True)
class Corpus:
    """What is known of rows of one schema."""

    columns: list[Column]
    rows: int = 0
    bytes: int = 0
    """Of the rows in memory, as Arrow holds them."""
    by: str = ""
    """The column that names the source of a row; empty if none does."""
    sources: dict[str | None, Source] = field(default_factory=dict)
    others: Source = field(default_factory=Source)
    """What the sources that are not told apart have together."""

    @classmethod
    def of(cls, schema: pa.Schema, by: str = "") -> Self:
        """Returns the sketch of no rows. Raises ConfigError if there is no column `by`."""
        refuse_unknown("reporting by source", [by] if by else [], schema.names)
        return cls([Column.of(leaf) for leaf in leaves(schema)], by=by)

    def merge(self, other: Self) -> None:
        """Takes in what another sketch has seen. A column that one of them lacks is null in all of its rows."""
        mine, theirs = {one.name: one for one in self.columns}, {one.name: one for one in other.columns}
        for name, own in theirs.items():
            if name not in mine:
                mine[name] = Column(name, own.type, own.kind, self.rows, self.rows)
                self.columns.append(mine[name])
        for name, own in mine.items():
            found = theirs.get(name) or Column(name, own.type, own.kind, other.rows, other.rows)
            if found.kind != own.kind:
                raise ConfigError(
                    f"the column {name!r} is {own.type} in some files and {found.type} in others; a report is of files "
                    "whose columns are alike: choose them with a glob"
                )
            own.merge(found)
        self.rows += other.rows
        self.bytes += other.bytes
        for key, source in other.sources.items():
            self._add(key, source)
        self.others.rows += other.others.rows
        self.others.characters += other.others.characters
        self._tell_apart()

    def _add(self, key: str | None, source: Source) -> None:
        own = self.sources.setdefault(key, Source())
        own.rows += source.rows
        own.characters += source.characters

    def _tell_apart(self) -> None:
        """Counts the smallest sources as one, if there are too many."""
        if len(self.sources) <= MOST_SOURCES:
            return
        order = sorted(self.sources, key=lambda key: (-self.sources[key].rows, key is None, key or ""))
        for key in order[MOST_SOURCES:]:
            source = self.sources.pop(key)
            self.others.rows += source.rows
            self.others.characters += source.characters

    def as_dict(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        keys = sorted(self.sources, key=lambda key: (key is None, key or ""))
        return {
            "version": VERSION,
            "rows": self.rows,
            "bytes": self.bytes,
            "by": self.by,
            "sources": [[key, self.sources[key].rows, self.sources[key].characters] for key in keys],
            "others": [self.others.rows, self.others.characters],
            "columns": [one.as_dict() for one in self.columns],
        }

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Self:
        """Returns what `as_dict` told of."""
        return cls(
            [Column.parse(one) for one in value["columns"]],
            value["rows"],
            value["bytes"],
            value["by"],
            {key: Source(rows, characters) for key, rows, characters in value["sources"]},
            Source(*value["others"]),
        )


def source_name(value: Any) -> str:
    """Returns what a source is called: its value, of a long one the beginning and a hash of all of it. So sources that
    begin alike are told apart, and those of a column of long texts take little memory.

    >>> source_name(7), source_name("a" * 300)[-24:]
    ('7', 'aaaa... 8b397aa4c75429a2')
    """
    text = value.hex(" ") if isinstance(value, bytes) else str(value)
    if len(text) <= SHOWN_CHARS:
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{cut(text, SHOWN_CHARS - len(digest) - 1)} {digest}"


class Sketcher:
    """Takes in the rows of one schema, table by table."""

    def __init__(self, schema: pa.Schema, by: str = "") -> None:
        self.corpus = Corpus.of(schema, by)
        self._leaves: Sequence[Leaf] = leaves(schema)

    def add(self, table: pa.Table) -> None:
        """Takes in further rows."""
        corpus = self.corpus
        corpus.rows += table.num_rows
        corpus.bytes += table.nbytes
        characters = np.zeros(table.num_rows)
        for leaf, column in zip(self._leaves, corpus.columns, strict=True):
            values = leaf.of(table)
            lengths = column.add(values)
            if corpus.by and column.kind == "text" and len(lengths):
                # An entry of a dictionary may be null, too.
                there = values.cast(pa.large_string()) if is_encoded(values.type) else values
                characters[there.is_valid().to_numpy()] += lengths
        if corpus.by:
            self._count(table, characters)

    def _count(self, table: pa.Table, lengths: npt.NDArray[np.float64]) -> None:
        """Counts rows and characters of each source; `lengths` are the characters of each row."""
        encoded = pc.dictionary_encode(table[self.corpus.by], null_encoding="encode").combine_chunks()
        encoded = encoded.chunk(0) if isinstance(encoded, pa.ChunkedArray) else encoded
        places = encoded.indices.to_numpy(zero_copy_only=False)
        rows = np.bincount(places, minlength=len(encoded.dictionary)).tolist()
        characters = np.bincount(places, weights=lengths, minlength=len(encoded.dictionary)).tolist()
        for value, count, size in zip(map(read, encoded.dictionary), rows, characters, strict=True):
            key = None if value is None else source_name(value)
            self.corpus._add(key, Source(count, int(size)))
        self.corpus._tell_apart()
