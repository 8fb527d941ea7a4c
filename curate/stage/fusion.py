"""The work of one task: a source, a part of it, and the operators after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from curate.dataclass import dataclass
from curate.operators.limit import LimitRows
from curate.operators.protocol import Operator
from curate.pipeline.pipeline import Pipeline
from curate.sources.protocol import Projection, Source


@dataclass(frozen=True, slots=True)
class FusedScan:
    """A source and the operators that run behind it, in one task a piece."""

    source: Source
    view: Projection
    operators: tuple[Operator, ...]
    give_most: int | None = None
    """Rows that a piece gives, at most."""
    read_step: int | None = None
    """Rows of a piece that are read first, and as many as there were so far after that: no more are made than will be
    given, if all are kept. None: batches as they come."""
    part: int = 0
    """The part of a union that it is of, where a write has a stage for each: pieces of one name in two parts are called
    alike, as they are in those stages."""


@dataclass(frozen=True, slots=True)
class FirstRows:
    """The first rows of what some sources give: how far into their shards they reach, and what follows."""

    rows: int
    fusions: tuple[FusedScan, ...]
    after: tuple[Operator, ...]
    by_rank: bool = False
    """Whether shards are told apart by their numbers, and not by their names, as files are that may come to have others
    before them."""

    def operator(self, decided: Mapping[str, Any]) -> Pipeline:
        """Returns what happens to the rows of a shard, once it is `decided` how far they reach."""
        rank = decided["rank"] if self.by_rank else None
        return Pipeline((*self.fusions[0].operators, LimitRows(decided["shard"], decided["rows"], rank), *self.after))
