"""Parts of a union as rows of one schema, where that of all is known when the plan is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from curate.dataset.formats.hold import hold, widens
from curate.dataset.lazy.operators import Plain
from curate.dataset.lazy.plan import Apply, Plan, schema_of
from curate.dataset.pipeline import Place
from curate.dataset.tally import Tally
from curate.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Unify(Plain):
    """Gives rows the columns and the types of a schema: missing ones are null, others are widened."""

    to: pa.Schema
    keeps_rows = True

    @property
    def name(self) -> str:
        return f"unify({told(self.to)})"

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        del found
        return self.to

    def identity(self) -> Any:
        return ["unify", [[field.name, str(field.type)] for field in self.to]]

    def apply(self, table: pa.Table, tally: Tally, place: Place) -> Iterator[pa.Table]:
        del tally, place
        for field in self.to:
            if field.name not in table.column_names:
                table = table.append_column(field, pa.nulls(table.num_rows, field.type))
        yield hold(table.select(self.to.names), self.to, self.name)


def unified(plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """Returns plans whose rows have one schema: a column that some lack is null there, and types are widened.

    They are as they were where that of one of them is known only to functions of the user. Raises ConfigError, with
    both schemas, where a column has types that no other holds all values of.
    """
    schemas = [schema_of(plan) for plan in plans]
    known = [one for one in schemas if one is not None]
    if len(known) < len(schemas) or all(one.equals(known[0]) for one in known):
        return tuple(plans)
    plain = [pa.schema([field.with_nullable(True) for field in one]) for one in known]
    try:
        to = pa.unify_schemas(plain, promote_options="permissive")
    except pa.ArrowException as error:
        raise ConfigError(f"union: {error}; the parts have {_all_told(known)}: {NEXT}") from error
    for one in plain:
        for field in one:
            if not widens(field.type, to.field(field.name).type):
                raise ConfigError(
                    f"union: the column {field.name!r} is {field.type} in one part, and would be "
                    f"{to.field(field.name).type} with the others; the parts have {_all_told(known)}: {NEXT}"
                )
    return tuple(plan if one.equals(to) else Apply(plan, Unify(to)) for plan, one in zip(plans, plain, strict=True))


NEXT = "bring them to one type first, such as by with_column(name, pc.field(name).cast(type)), or rename one"
"""What to do about columns of several types."""


def told(schema: pa.Schema) -> str:
    """Returns a schema as people are told."""
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def _all_told(schemas: Sequence[pa.Schema]) -> str:
    return " and ".join(f"({told(one)})" for one in schemas)
