"""An operator of a plan: its schema, its identity, and its result for a batch; and those that go by a rule, which names
the columns that are looked at, and refuses those that do not fit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import BatchPosition, Compute


class Operator(ABC):
    """What happens to rows, as a step that knows its schema and its identity. By default it runs in the task, keeps
    nothing, and takes batches as they come."""

    __slots__ = ()
    batch_rows: int | None = None
    compute: Compute | None = None
    num_cpus: float | None = None
    one_schema = True
    says_all = False
    """Whether its identity alone decides what it makes, in a job too: no code or parameter of that does."""
    runs_code = False
    """Whether it calls functions of the user: what these make, only running them tells."""

    if TYPE_CHECKING:
        # Where it is a field of a dataclass, a property here would be its default.
        @property
        @abstractmethod
        def name(self) -> str:
            """What it is called in plans and errors."""

    @property
    def keeps_rows(self) -> bool:
        """Whether every row becomes one row, at its place: few can say so, as a BadRow leaves one out."""
        return False

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        """Returns the schema of what it makes, which is known where that of its rows is. Raises ConfigError."""
        return None if found is None else self.made(found)

    def made(self, found: pa.Schema) -> pa.Schema:
        """Returns the schema of what rows of a schema become: the same."""
        return found

    @abstractmethod
    def identity(self) -> Any:
        """Returns what decides the bytes of what it makes, as JSON values. Raises ConfigError naming a variable."""

    def opened(self) -> Self:
        """Returns the operator: there is nothing to load."""
        return self

    @abstractmethod
    def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterable[Any]:
        """Yields the tables that a batch, never empty, becomes; books what it drops."""

    def hide(self, text: str) -> str:
        """Returns the text: there are no secrets."""
        return text

    def needs(self, schema: pa.Schema, needed: set[str]) -> set[str]:
        """Returns the columns of `schema` that it is to be given if `needed` are of what it gives: all of them."""
        del needed
        return set(schema.names)


class Rule(ABC):
    """What decides what becomes of rows."""

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """What goes by it is called in plans and errors."""

    @property
    @abstractmethod
    def named(self) -> tuple[str, ...]:
        """The columns that are looked at."""

    @property
    def needed(self) -> set[str]:
        """These, each once."""
        return set(self.named)

    @abstractmethod
    def check(self, found: pa.Schema) -> None:
        """Raises ConfigError for columns that are not there, or are already, and for types that do not fit."""

    @abstractmethod
    def identity(self) -> Any:
        """Returns what decides what becomes of rows, as JSON values."""


class ByRule(Operator):
    """An operator over the columns that a rule looks at, once that has checked them. What it makes has all columns."""

    __slots__ = ()
    if TYPE_CHECKING:

        @property
        def rule(self) -> Rule:
            """The rule."""

    @property
    def name(self) -> str:
        return self.rule.name

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        if found is None:
            return None
        self.rule.check(found)
        return self.made(found)

    def needs(self, schema: pa.Schema, needed: set[str]) -> set[str]:
        return (needed & set(schema.names)) | self.rule.needed


class Replacing(ByRule):
    """One that makes something else of rows."""

    __slots__ = ()

    def needs(self, schema: pa.Schema, needed: set[str]) -> set[str]:
        del schema, needed
        return self.rule.needed
