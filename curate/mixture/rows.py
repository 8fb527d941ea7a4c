"""The rows of a mixture: which source each is of, how large it is, and its hash."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.arrow import hashing
from curate.arrow.expressions import refuse_unknown
from curate.arrow.hashing import Words, digest_rows, salted
from curate.arrow.types import is_text, value_type
from curate.arrow.unknown import empty
from curate.dataclass import dataclass, field
from curate.errors import ConfigError
from curate.keywords import option
from curate.late_pandas import numbers
from curate.mixture.lowest import Ints
from curate.mixture.mixture import CHARACTERS, DOCUMENTS, Mixture, Source
from curate.operators.protocol import ByRule, Operator, Rule
from curate.operators.unfit import nulls, set_aside
from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import BatchPosition

SALT = "mix"
"""What hashes are made with: no other choice by the same column goes by them."""
MOST_SIZE = 1 << 40
"""Units of a row: sums of 4 million such have 64 bits."""
_PART = re.compile(r"\.part-\d{5}-of-\d{5}$")


@dataclass(frozen=True, slots=True)
class Mixing(Rule):
    """A mixture, and the columns that say what it needs to know of rows."""

    mixture: Mixture
    source_column: str
    id_column: str
    """The column whose hash decides which rows are drawn."""
    count_column: str | None = None
    """The column with the size of a row in units; None: documents count one, and characters are those of the text."""
    text_column: str | None = None
    strata_column: str | None = None
    """The column whose values have the shares that they have in their source; None: rows are drawn by hash alone."""
    epoch_column: str | None = None
    """The column that is added, with the number of a copy; None: none is."""
    allow_shortfall: bool = field(default=False, compare=False)
    """Whether a source that has too little gives what it has; else the mixture is refused. No rows depend on it."""

    def __post_init__(self) -> None:
        unit = self.mixture.unit
        if unit == DOCUMENTS and self.count_column is not None:
            raise ConfigError(
                f"mix: the budget is in documents, so the counts of {self.count_column!r} have no use; leave out "
                f'{option("count_column", ...)}, or write unit = "tokens"'
            )
        if self.measured is None and unit != DOCUMENTS:
            raise ConfigError(f"mix: the budget is in {unit}; name the column with the number of {unit} of each row")

    @property
    def name(self) -> str:
        return f"mix({', '.join(map(repr, self.mixture.names[:3]))}{', ...' * (len(self.mixture.names) > 3)})"

    @property
    def measured(self) -> str | None:
        """The column that says how large a row is; None: each is one."""
        return self.count_column or (self.text_column if self.mixture.unit == CHARACTERS else None)

    @property
    def named(self) -> tuple[str, ...]:
        names = (self.source_column, self.id_column, self.measured, self.strata_column)
        return tuple(name for name in names if name is not None)

    def check(self, found: pa.Schema) -> None:
        refuse_unknown("mix", sorted(self.needed), found.names)
        type = value_type(found.field(self.source_column).type)
        if not (is_text(type) or pa.types.is_integer(type) or pa.types.is_null(type)):
            told = f"mix: the column of sources, {self.source_column!r}, is {type}, expected texts"
            raise ConfigError.of_column(told, self.source_column)
        if self.measured is not None:
            type = value_type(found.field(self.measured).type)
            fits = pa.types.is_integer(type) if self.count_column is not None else is_text(type)
            if not fits and not pa.types.is_null(type):
                wanted = "whole numbers" if self.count_column is not None else "texts"
                told = f"mix: the column {self.measured!r} is {type}, expected {wanted}"
                raise ConfigError.of_column(told, self.measured)
        if self.epoch_column is not None and self.epoch_column in found.names:
            told = f"mix: there is a column {self.epoch_column!r} already; choose another epoch column"
            raise ConfigError.of_column(told, self.epoch_column)
        self.hashes(empty(found))
        self.strata(empty(found))

    def identity(self) -> Any:
        columns = [self.source_column, self.id_column, self.measured, self.strata_column, self.epoch_column]
        return [self.mixture.as_dict(), *columns, hashing.VERSION]

    def keys_identity(self) -> Any:
        """Returns what decides what is known of rows before any is drawn, as JSON values: no weights, and no budget."""
        columns = [self.source_column, self.id_column, self.measured, self.count_column, self.strata_column]
        return [self.mixture.names, self.mixture.seed, *columns, hashing.VERSION]

    def hashes(self, batch: pa.Table) -> Words:
        """Returns the number of each row, uniform over 64 bits, by its id."""
        return digest_rows(batch, [self.id_column], salted(SALT, self.mixture.seed))[0]

    def strata(self, batch: pa.Table) -> Words:
        """Returns what the stratum of each row is known by; null is one."""
        if self.strata_column is None:
            return np.zeros(batch.num_rows, np.uint64)
        return digest_rows(batch, [self.strata_column])[0]

    def sizes(self, batch: pa.Table) -> Ints:
        """Returns how large each row is, in units; -1 where that is not known."""
        if self.measured is None:
            return np.ones(batch.num_rows, np.int64)
        values = batch[self.measured]
        if self.count_column is None:
            values = pc.utf8_length(values.cast(pa.large_string()))
        if pa.types.is_uint64(values.type):
            values = pc.min_element_wise(values, pa.scalar(MOST_SIZE + 1, pa.uint64()))
        return numbers(pc.fill_null(values.cast(pa.int64()), -1))

    def sources(self, batch: pa.Table) -> Ints:
        """Returns the number of each row's source; -1: the mixture does not name it."""
        found = pc.index_in(self.source_names(batch), value_set=pa.array(self.mixture.names, pa.large_string()))
        return numbers(pc.fill_null(found.cast(pa.int64()), -1))

    def source_names(self, batch: pa.Table) -> pa.ChunkedArray:
        """Returns the name of each row's source."""
        values = batch[self.source_column]
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        return values.cast(pa.large_string())


@dataclass(frozen=True, slots=True)
class Fit(ByRule):
    """Sets aside the rows that cannot be drawn: those without an id, or of no known size."""

    rule: Mixing
    says_all = True

    def identity(self) -> Any:
        return ["fit", self.rule.id_column, self.rule.measured]

    def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        del place
        self.rule.check(batch.schema)
        unfit = [(nulls(batch, self.rule.id_column), f"no {self.rule.id_column}")]
        if (measured := self.rule.measured) is not None:
            unfit.append((nulls(batch, measured), f"no {measured}"))
            sizes = self.rule.sizes(batch)
            unfit.append((sizes < 0, f"{measured} is below 0"))
            unfit.append((sizes > MOST_SIZE, f"{measured} is above {MOST_SIZE:,}"))
        yield set_aside(batch, unfit, tally)[0]


@dataclass(frozen=True, slots=True)
class SourceOfFile(Operator):
    """Adds the column of sources: the name of the source whose patterns fit the file that a row is of; null if none."""

    sources: tuple[Source, ...]
    column: str
    keeps_rows = True
    says_all = True

    @property
    def name(self) -> str:
        return f"source of files({self.column!r})"

    def made(self, found: pa.Schema) -> pa.Schema:
        if self.column in found.names:
            raise ConfigError(
                f"mix: the sources of the mixture have files, but there is a column {self.column!r} already; leave "
                "files out, or name another source column"
            )
        return found.append(pa.field(self.column, pa.string()))

    def identity(self) -> Any:
        return ["source of files", [[one.name, list(one.files)] for one in self.sources], self.column]

    def needs(self, schema: pa.Schema, needed: set[str]) -> set[str]:
        del schema
        return needed - {self.column}

    def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        del tally
        schema = self.schema(batch.schema)
        name = source_of(place.shard, self.sources)
        yield pa.table([*batch.columns, pa.array([name] * batch.num_rows, pa.string())], schema=schema)


def source_of(shard: str, sources: tuple[Source, ...]) -> str | None:
    """Returns the name of the source that a shard is of; None if it is of none. Raises ConfigError if it is of two.

    >>> source_of("web/2024/a.part-00000-of-00002", (Source("web", 1.0, files=("web/*",)),))
    'web'
    """
    file = _PART.sub("", shard)
    found = [one.name for one in sources if any(fnmatchcase(file, pattern) for pattern in one.files)]
    if len(found) > 1:
        raise ConfigError(
            f"mix: the file {file!r} fits the patterns of {' and '.join(map(repr, found))}; a file is of one source"
        )
    return found[0] if found else None
