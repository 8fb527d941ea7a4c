"""Parts of a union as rows of one schema, where that of all is known when the plan is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from curate.dataset.formats.hold import hold, plain, told, widens
from curate.dataset.lazy.operators import Plain
from curate.dataset.lazy.plan import Apply, Plan, schema_of
from curate.dataset.pipeline import Place
from curate.dataset.tally import Tally
from curate.errors import ConfigError

NEXT = "bring them to one type first, such as by with_column(name, pc.field(name).cast(type)), or rename one"
"""What to do about columns of several types."""


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
        yield brought(table, self.to)


def brought(table: pa.Table, to: pa.Schema) -> pa.Table:
    """Returns rows with the columns and types of a schema: missing ones null, others widened. Raises SchemaMismatch."""
    for field in to:
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    return hold(table.select(to.names), to, "a part of a union")


def unified(plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """Returns plans whose rows have one schema: a column that some lack is null there, and types are widened.

    They are as they were where that of one of them is known only to functions of the user. Raises ConfigError, with
    the schemas, where a column has types that do not go together.
    """
    schemas = [schema_of(plan) for plan in plans]
    known = [one for one in schemas if one is not None]
    if len(known) < len(schemas):
        return tuple(plans)
    to = unify("union", known)
    return tuple(plan if one.equals(to) else Apply(plan, Unify(to)) for plan, one in zip(plans, known, strict=True))


def unify(what: str, schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Returns the schema that rows of all of these are held to: the first one, if they are the same.

    Columns come in the order in which they are first there. Raises ConfigError, which begins with `what`, where a
    column has types of which none holds all values.
    """
    if all(one.equals(schemas[0]) for one in schemas):
        return schemas[0]
    types: dict[str, pa.DataType] = {}
    for field in (field for one in schemas for field in one):
        before = types.get(field.name, field.type)
        both = _wider(before, field.type)
        if both is None:
            raise ConfigError(
                f"{what}: the column {field.name!r} is {before} and {field.type}; the parts have "
                f"{' and '.join(dict.fromkeys(f'({told(one)})' for one in schemas))}: {NEXT}"
            )
        types[field.name] = both
    return pa.schema(list(types.items()))


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Returns the type that holds the values of both; None if there is none."""
    if one.equals(other):
        return one
    one, other = plain(one), plain(other)
    if widens(one, other):
        return other
    if widens(other, one):
        return one
    try:
        fields = (pa.schema([("column", type)]) for type in (one, other))
        both = pa.unify_schemas(list(fields), promote_options="permissive").field(0).type
    except pa.ArrowException:
        return None
    return both if widens(one, both) and widens(other, both) else None
