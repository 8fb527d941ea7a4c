"""The protocol of a plan's operator: its schema, its identity, and its result for a batch."""

from __future__ import annotations

from typing import Any, Protocol, Self

import pyarrow as pa

from curate.pipeline.step import Compute, Step


class Operator(Step, Protocol):
    """What happens to rows, as a step that knows its schema and its identity."""

    @property
    def name(self) -> str:
        """What it is called in plans and errors."""

    @property
    def keeps_rows(self) -> bool:
        """Whether every row becomes one row, at its place."""

    @property
    def says_all(self) -> bool:
        """Whether its identity alone decides what it makes, in a job too: no code or parameter of that does."""

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        """Returns the schema of what rows of schema `found` become; None if unknown. Raises ConfigError."""

    def identity(self) -> Any:
        """Returns what decides the bytes of what it makes, as JSON values. Raises ConfigError naming a variable."""


class OperatorDefaults:
    """The usual answers of an operator: it runs in the task, keeps nothing, and takes batches as they come."""

    __slots__ = ()
    batch_rows: int | None = None
    compute: Compute | None = None
    num_cpus: float | None = None
    one_schema = True
    says_all = False

    @property
    def keeps_rows(self) -> bool:
        """Whether every row becomes one row: few can say so, as a BadRow leaves one out."""
        return False

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        """Returns the schema of what it makes, which is known where that of its rows is."""
        return None if found is None else self.made(found)

    def made(self, found: pa.Schema) -> pa.Schema:
        """Returns the schema of what rows of a schema become: the same."""
        return found

    def opened(self) -> Self:
        """Returns the operator: there is nothing to load."""
        return self

    def hide(self, text: str) -> str:
        """Returns the text: there are no secrets."""
        return text

    def needs(self, schema: pa.Schema, needed: set[str]) -> set[str]:
        """Returns the columns of `schema` that it is to be given if `needed` are of what it gives: all of them."""
        del needed
        return set(schema.names)
