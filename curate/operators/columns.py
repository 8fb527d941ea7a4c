"""Operators on columns, and filters by expressions of pyarrow.compute. They call no user function.

All are narrow: the result of a row depends on its batch alone. A schema is None if only running user code determines
it.
"""

from __future__ import annotations

import hashlib
import pickle
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curate.arrow.expressions import (
    chosen_by,
    columns_of,
    columns_of_all,
    project,
    refuse_unknown,
    shown,
    type_of,
    types_of,
)
from curate.arrow.order import rows_where
from curate.dataclass import dataclass
from curate.errors import ConfigError
from curate.operators.protocol import Operator
from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import BatchPosition
from curate.units import is_name


@dataclass(frozen=True, slots=True)
class FilterExpression(Operator):
    """Keeps the rows for which an expression is true."""

    expression: Any
    reason: str

    @property
    def name(self) -> str:
        return f"filter({shown(self.expression)})"

    def made(self, found: pa.Schema) -> pa.Schema:
        type = type_of(self.expression, found, self.name)
        if not pa.types.is_boolean(type):
            told = f"{self.name} is {type}, expected a boolean expression, such as pc.field('n') > 0"
            # A column alone is the usual slip.
            names = [name for name in found.names if pc.field(name).equals(self.expression)]
            raise ConfigError.of_column(told, names[0]) if names else ConfigError(told)
        return found

    def identity(self) -> Any:
        return ["filter", expression_text(self.expression), self.reason]

    def apply(self, table: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        del place
        self.schema(table.schema)
        kept = chosen_by(table, self.expression)
        tally.drop_rows(table, ~kept, self.reason)
        yield rows_where(table, kept)

    def reads(self, schema: pa.Schema) -> frozenset[str]:
        """Returns the columns that it looks at."""
        return columns_of(self.expression, schema)


@dataclass(frozen=True, slots=True)
class WithColumn(Operator):
    """Adds a column, the last one, or replaces one, at its place."""

    column: str
    expression: Any
    keeps_rows = True

    def __post_init__(self) -> None:
        check_names("with_column", [self.column])

    @property
    def name(self) -> str:
        return f"with_column({self.column!r}, {shown(self.expression)})"

    def made(self, found: pa.Schema) -> pa.Schema:
        return _with_fields(found, [pa.field(self.column, type_of(self.expression, found, self.name))])

    def identity(self) -> Any:
        return ["with_column", self.column, expression_text(self.expression)]

    def apply(self, table: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        del tally, place
        self.schema(table.schema)
        yield with_column(table, self.column, project(table, [self.expression], [self.column])[self.column])

    def reads(self, schema: pa.Schema) -> frozenset[str]:
        """Returns the columns that it looks at."""
        return columns_of(self.expression, schema)


def _with_fields(schema: pa.Schema, fields: Iterable[pa.Field]) -> pa.Schema:
    made = {field.name: field for field in chain(schema, fields)}
    return pa.schema(list(made.values()), metadata=schema.metadata)


def with_column(table: pa.Table, name: str, column: Any) -> pa.Table:
    """Returns a table with a column of this name at its place, or else at the end."""
    return _with_columns(table, {name: column})


def _with_columns(table: pa.Table, columns: Mapping[str, Any]) -> pa.Table:
    made = dict(zip(table.column_names, table.columns, strict=True)) | dict(columns)
    schema = _with_fields(table.schema, (pa.field(name, one.type) for name, one in columns.items()))
    return pa.table(list(made.values()), schema=schema)


@dataclass(frozen=True, slots=True)
class WithColumns(Operator):
    """Adds or replaces several columns, of which none sees another one."""

    columns: tuple[tuple[str, Any], ...]
    keeps_rows = True

    def __post_init__(self) -> None:
        check_names("with_columns", [name for name, _ in self.columns])

    @property
    def name(self) -> str:
        return f"with_columns({', '.join(f'{name!r}: {shown(expression)}' for name, expression in self.columns)})"

    def made(self, found: pa.Schema) -> pa.Schema:
        types = types_of(((f"with_columns({name!r})", expression) for name, expression in self.columns), found)
        return _with_fields(found, (pa.field(name, type) for (name, _), type in zip(self.columns, types, strict=True)))

    def identity(self) -> Any:
        return ["with_columns", *([name, expression_text(expression)] for name, expression in self.columns)]

    def apply(self, table: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        del tally, place
        self.schema(table.schema)
        names, expressions = zip(*self.columns, strict=True)
        columns = project(table, expressions, names)
        yield _with_columns(table, dict(zip(names, columns.columns, strict=True)))

    def needs(self, schema: pa.Schema, needed: set[str]) -> set[str]:
        # One that is replaced keeps its place, so that it is read though its values are not looked at.
        own = {name for name, _ in self.columns}
        read = columns_of_all((expression for _, expression in self.columns), schema)
        return (needed & set(schema.names)) | read | (own & set(schema.names))


class _Kept(Operator):
    """Some of the columns."""

    __slots__ = ()
    columns: tuple[str, ...]
    method = ""
    keeps_rows = True

    @abstractmethod
    def _left(self, found: pa.Schema) -> list[pa.Field]:
        """Returns which stay."""

    @property
    def name(self) -> str:
        return f"{self.method}({', '.join(map(repr, self.columns))})"

    def made(self, found: pa.Schema) -> pa.Schema:
        refuse_unknown(self.name, self.columns, found.names)
        if left := self._left(found):
            return pa.schema(left)
        raise ConfigError(f"{self.name} would leave no column; keep at least one")

    def identity(self) -> Any:
        return [self.method, list(self.columns)]

    def apply(self, table: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        del tally, place
        yield table.select(self.made(table.schema).names)


@dataclass(frozen=True, slots=True)
class Select(_Kept):
    """Keeps these columns, in this order."""

    columns: tuple[str, ...]
    method = "select_columns"

    def _left(self, found: pa.Schema) -> list[pa.Field]:
        return [found.field(name) for name in self.columns]


@dataclass(frozen=True, slots=True)
class Drop(_Kept):
    """Leaves these columns out."""

    columns: tuple[str, ...]
    method = "drop_columns"

    def _left(self, found: pa.Schema) -> list[pa.Field]:
        gone = frozenset(self.columns)
        return [field for field in found if field.name not in gone]


@dataclass(frozen=True, slots=True)
class Rename(Operator):
    """Calls columns something else."""

    names: Mapping[str, str]
    keeps_rows = True

    def __post_init__(self) -> None:
        check_names("rename_columns", self.names.values())

    @property
    def name(self) -> str:
        return f"rename_columns({', '.join(f'{old!r}: {new!r}' for old, new in self.names.items())})"

    def made(self, found: pa.Schema) -> pa.Schema:
        refuse_unknown(self.name, self.names, found.names)
        made = [field.with_name(self.names.get(field.name, field.name)) for field in found]
        for name, times in Counter(field.name for field in made).items():
            if times > 1:
                raise ConfigError(f"{self.name} would make {times} columns called {name!r}")
        return pa.schema(made)

    def identity(self) -> Any:
        return ["rename_columns", dict(self.names)]

    def apply(self, table: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
        del tally, place
        yield table.rename_columns(self.made(table.schema).names)


def check_names(where: str, names: Iterable[Any]) -> None:
    """Raises ConfigError for what cannot be the name of a column."""
    for name in names:
        if not is_name(name):
            raise ConfigError(f"{where}: {name!r:.80} cannot be the name of a column; expected text, as UTF-8 has it")


def expression_text(expression: Any) -> str:
    """Returns a text that stands for an expression with all its values."""
    return f"{shown(expression)} {hashlib.sha256(pickle.dumps(expression, protocol=5)).hexdigest()[:16]}"
