"""Logical operators: frozen values, each of which knows its schema, its identity and what it does to a batch.

All of them are narrow: what a row becomes depends on its batch alone. A schema is None where only running user code
tells it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from curate.code import Unhashable, callable_text, value_text
from curate.dataset.lazy.expressions import columns_of, expression_text, keep, project, type_of, unknown_column
from curate.dataset.tally import Tally
from curate.errors import ConfigError, SchemaMismatch, did_you_mean

FORMATS = ("pyarrow", "numpy")
"""What batches are handed to user code as."""


class Operator(Protocol):
    """What happens to rows."""

    @property
    def name(self) -> str:
        """What it is called in plans and errors."""
        ...

    @property
    def keeps_rows(self) -> bool:
        """Whether every row becomes one row, at its place."""
        ...

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        """Returns the schema of what rows of schema `found` become; None if unknown. Raises ConfigError."""
        ...

    def identity(self) -> Any:
        """Returns what decides the bytes of what it makes, as JSON values. Raises ConfigError naming a variable."""
        ...

    def apply(self, table: pa.Table, tally: Tally, place: Place) -> Iterable[pa.Table]:
        """Yields what a batch becomes; books what it drops."""
        ...


def label(function: Any) -> str:
    """Returns what a callable is called in plans and errors."""
    return str(getattr(function, "__name__", None) or type(function).__name__)


def function_identity(owner: str, function: Any) -> str:
    """Returns the text of a callable. Raises ConfigError naming the variable of which no identity can be made."""
    try:
        return callable_text(label(function), function)
    except Unhashable as error:
        raise ConfigError(
            f"{owner} depends on a value of which no identity can be made: {error}; a write is resumed by the "
            "identity of what makes it: pass plain values (numbers, texts, lists, paths), or make it in the function"
        ) from error


def check_function(method: str, function: Any) -> None:
    """Raises ConfigError for what cannot be called, and for classes."""
    if isinstance(function, type):
        raise ConfigError(
            f"{method}({function.__name__}) was given a class, which would run in a pool of actors; there are none "
            "yet: pass a function, or write a Job, whose setup() runs once a worker"
        )
    if not callable(function):
        raise ConfigError(f"{method} takes a function, found {function!r} ({type(function).__name__})")


@dataclass(frozen=True, slots=True)
class MapBatches:
    """A function of batches of at most `batch_size` rows; it is applied to one at a time."""

    fn: Callable[..., Any]
    batch_size: int | None
    batch_format: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    keeps_rows = False

    @property
    def name(self) -> str:
        return f"map_batches({label(self.fn)})"

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        del found
        return None

    def identity(self) -> Any:
        try:
            given = [value_text("fn_args", self.args), value_text("fn_kwargs", self.kwargs)]
        except Unhashable as error:
            raise ConfigError(f"{self.name}: no identity can be made of {error}; pass plain values") from error
        return ["map_batches", function_identity(self.name, self.fn), self.batch_size, self.batch_format, *given]

    def apply(self, table: pa.Table, tally: Tally, place: Place) -> Iterator[pa.Table]:
        del tally, place
        given = table.combine_chunks() if self.batch_format == "pyarrow" else to_numpy(table)
        result = self.fn(given, *self.args, **self.kwargs)
        for one in result if isinstance(result, Iterator) else [result]:
            yield self._table(one)

    def _table(self, value: Any) -> pa.Table:
        if isinstance(value, pa.RecordBatch):
            value = pa.Table.from_batches([value])
        elif isinstance(value, Mapping):
            value = from_columns(self.name, value)
        if not isinstance(value, pa.Table):
            raise TypeError(
                f"{self.name} gave {type(value).__name__}, expected a pyarrow.Table, a dictionary of columns, or an "
                "iterator of them"
            )
        names = value.column_names
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise SchemaMismatch(f"{self.name} gave {names.count(twice)} columns called {twice!r}; rename one")
        return value.replace_schema_metadata(None)


@dataclass(frozen=True, slots=True)
class MapRows:
    """A function of rows: of one to one, or (flat) of one to any number."""

    fn: Callable[..., Any]
    flat: bool

    @property
    def name(self) -> str:
        return f"{'flat_map' if self.flat else 'map'}({label(self.fn)})"

    @property
    def keeps_rows(self) -> bool:
        return not self.flat

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        del found
        return None

    def identity(self) -> Any:
        return ["flat_map" if self.flat else "map", function_identity(self.name, self.fn)]

    def apply(self, table: pa.Table, tally: Tally, place: Place) -> Iterator[pa.Table]:
        del tally, place
        rows: list[Mapping[str, Any]] = []
        for row in table.to_pylist():
            result = self.fn(row)
            if not self.flat:
                rows.append(self._row(result))
                continue
            if isinstance(result, Mapping | str | bytes) or not isinstance(result, Iterable):
                raise TypeError(f"{self.name} gave {type(result).__name__}, expected a list of dictionaries")
            rows += map(self._row, result)
        if rows:
            yield self._gathered(rows, table.schema)

    def _row(self, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise TypeError(f"{self.name} gave {type(value).__name__}, expected a dictionary, a row")
        return value

    def _gathered(self, rows: list[Mapping[str, Any]], before: pa.Schema) -> pa.Table:
        names = list(rows[0])
        for row in rows:
            if row.keys() != rows[0].keys():
                raise SchemaMismatch(
                    f"{self.name} gave a row with the keys {sorted(map(str, row))} after one with "
                    f"{sorted(map(str, names))}; give every row all keys, None where there is no value"
                )
        columns = []
        for name in names:
            column = pa.array([row[name] for row in rows])
            if pa.types.is_null(column.type) and name in before.names:
                # Nothing but nulls says nothing about the type; what the column was before does.
                column = column.cast(before.field(name).type)
            columns.append(column)
        return pa.table(columns, names=names)


@dataclass(frozen=True, slots=True)
class FilterRows:
    """Keeps the rows for which a function of the row is true."""

    fn: Callable[..., Any]
    reason: str
    keeps_rows = False

    @property
    def name(self) -> str:
        return f"filter({label(self.fn)})"

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        return found

    def identity(self) -> Any:
        return ["filter", function_identity(self.name, self.fn), self.reason]

    def apply(self, table: pa.Table, tally: Tally, place: Place) -> Iterator[pa.Table]:
        kept = table.filter(pa.array([bool(self.fn(row)) for row in table.to_pylist()], pa.bool_()))
        tally.drop(table.num_rows - kept.num_rows, self.reason)
        yield kept


@dataclass(frozen=True, slots=True)
class FilterExpression:
    """Keeps the rows for which an expression is true."""

    expression: Any
    reason: str
    keeps_rows = False

    @property
    def name(self) -> str:
        return f"filter({self.expression})"

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        if found is not None:
            type = type_of(self.expression, found, self.name)
            if not pa.types.is_boolean(type):
                raise ConfigError(f"{self.name} is {type}, expected a boolean expression, such as pc.field('n') > 0")
        return found

    def identity(self) -> Any:
        return ["filter", expression_text(self.expression), self.reason]

    def apply(self, table: pa.Table, tally: Tally, place: Place) -> Iterator[pa.Table]:
        self.schema(table.schema)
        kept = keep(table, self.expression)
        tally.drop(table.num_rows - kept.num_rows, self.reason)
        yield kept

    def reads(self, schema: pa.Schema) -> frozenset[str]:
        """Returns the columns that it looks at."""
        return columns_of(self.expression, schema)


@dataclass(frozen=True, slots=True)
class WithColumn:
    """Adds a column, the last one, or replaces one, at its place."""

    column: str
    expression: Any
    keeps_rows = True

    @property
    def name(self) -> str:
        return f"with_column({self.column!r}, {self.expression})"

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        if found is None:
            return None
        made = pa.field(self.column, type_of(self.expression, found, self.name))
        if self.column in found.names:
            return found.set(found.get_field_index(self.column), made)
        return found.append(made)

    def identity(self) -> Any:
        return ["with_column", self.column, expression_text(self.expression)]

    def apply(self, table: pa.Table, tally: Tally, place: Place) -> Iterator[pa.Table]:
        del tally, place
        self.schema(table.schema)
        column = project(table, [self.expression], [self.column])[self.column]
        if self.column in table.column_names:
            yield table.set_column(table.column_names.index(self.column), self.column, column)
        else:
            yield table.append_column(self.column, column)

    def reads(self, schema: pa.Schema) -> frozenset[str]:
        """Returns the columns that it looks at."""
        return columns_of(self.expression, schema)


@dataclass(frozen=True, slots=True)
class Select:
    """Keeps these columns, in this order."""

    columns: tuple[str, ...]
    keeps_rows = True

    @property
    def name(self) -> str:
        return f"select_columns({', '.join(map(repr, self.columns))})"

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        if found is None:
            return None
        _refuse_unknown(self.name, self.columns, found.names)
        return pa.schema([found.field(name) for name in self.columns])

    def identity(self) -> Any:
        return ["select_columns", list(self.columns)]

    def apply(self, table: pa.Table, tally: Tally, place: Place) -> Iterator[pa.Table]:
        del tally, place
        _refuse_unknown(self.name, self.columns, table.column_names)
        yield table.select(list(self.columns))


@dataclass(frozen=True, slots=True)
class Drop:
    """Leaves these columns out."""

    columns: tuple[str, ...]
    keeps_rows = True

    @property
    def name(self) -> str:
        return f"drop_columns({', '.join(map(repr, self.columns))})"

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        if found is None:
            return None
        _refuse_unknown(self.name, self.columns, found.names)
        return pa.schema([field for field in found if field.name not in self.columns])

    def identity(self) -> Any:
        return ["drop_columns", list(self.columns)]

    def apply(self, table: pa.Table, tally: Tally, place: Place) -> Iterator[pa.Table]:
        del tally, place
        _refuse_unknown(self.name, self.columns, table.column_names)
        yield table.select([name for name in table.column_names if name not in self.columns])


@dataclass(frozen=True, slots=True)
class Rename:
    """Calls columns something else."""

    names: Mapping[str, str]
    keeps_rows = True

    @property
    def name(self) -> str:
        return f"rename_columns({', '.join(f'{old!r}: {new!r}' for old, new in self.names.items())})"

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        if found is None:
            return None
        _refuse_unknown(self.name, self.names, found.names)
        made = [field.with_name(self.names.get(field.name, field.name)) for field in found]
        names = [field.name for field in made]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"{self.name} would make {names.count(name)} columns called {name!r}")
        return pa.schema(made)

    def identity(self) -> Any:
        return ["rename_columns", dict(self.names)]

    def apply(self, table: pa.Table, tally: Tally, place: Place) -> Iterator[pa.Table]:
        del tally, place
        made = self.schema(table.schema)
        assert made is not None
        yield table.rename_columns(made.names)


def _refuse_unknown(where: str, wanted: Iterable[str], names: list[str]) -> None:
    for name in wanted:
        if name not in names:
            raise ConfigError(f"{where}: {unknown_column(name, names)}")


def check_format(batch_format: str) -> None:
    """Raises ConfigError for a format of batches that there is not."""
    if batch_format not in FORMATS:
        raise ConfigError(
            f"no batch_format {batch_format!r}{did_you_mean(batch_format, FORMATS)}; there are {', '.join(FORMATS)}"
        )


def to_numpy(table: pa.Table) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the columns as arrays; one with nulls is of floats (NaN) or of objects (None)."""
    return {name: table[name].to_numpy() for name in table.column_names}


def from_columns(where: str, columns: Mapping[str, Any]) -> pa.Table:
    """Returns columns (arrays of numpy or Arrow, lists) as a table. Raises SchemaMismatch for unequal lengths."""
    made: dict[str, Any] = {}
    for name, values in columns.items():
        if isinstance(values, str | bytes):
            raise SchemaMismatch(f"{where} gave a column {name!r} that is no list of values, but {values!r:.40}")
        if isinstance(values, np.ndarray) and values.ndim > 1:
            values = list(values) if values.ndim == 2 else values.tolist()
        try:
            made[str(name)] = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
            raise SchemaMismatch(f"{where} gave a column {name!r} that is no list of values: {error}") from error
    lengths = {name: len(values) for name, values in made.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name!r} has {n}" for name, n in lengths.items())
        raise SchemaMismatch(f"{where} gave columns of other lengths: {told} rows; expected as many in each")
    return pa.table(made)
