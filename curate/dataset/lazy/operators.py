"""Logical operators: frozen values, each of which knows its schema, its identity and what it does to a batch.

All of them are narrow: what a row becomes depends on its batch alone. A schema is None where only running user code
tells it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa

from curate.code import Unhashable, callable_text, value_text
from curate.dataset.exchange.order import rows_where
from curate.dataset.formats import BadRow as BadLine
from curate.dataset.isolate import row_text
from curate.dataset.lazy.convert import formatted, gathered, rows, to_table
from curate.dataset.lazy.declared import as_declared, identity_of
from curate.dataset.lazy.expressions import columns_of, expression_text, keep, project, type_of, unknown_column
from curate.dataset.patience import Busy, busy, is_busy, patiently
from curate.dataset.pipeline import ActorPool, Compute, Place, Step
from curate.dataset.tally import Tally
from curate.errors import BadRow, ConfigError
from curate.runtime.protocol import Resources


class Operator(Step, Protocol):
    """What happens to rows, as a step that knows its schema and its identity."""

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


class Plain:
    """The usual answers of an operator: it runs in the task, keeps nothing, and takes batches as they come."""

    __slots__ = ()
    batch_rows: int | None = None
    compute: Compute | None = None
    num_cpus: float | None = None
    one_schema = True

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


@dataclass(frozen=True, slots=True)
class Udf:
    """What a user gave to be called: a function, or a class of which every actor makes one and calls that."""

    target: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    constructor_args: tuple[Any, ...] = ()
    constructor_kwargs: Mapping[str, Any] = field(default_factory=dict)
    instance: Callable[..., Any] | None = None
    """What is called, once it was made."""

    @property
    def label(self) -> str:
        """What it is called in plans and errors."""
        return label(self.target)

    def opened(self) -> Udf:
        """Returns this with the instance made; it lives as long as what is returned."""
        if not isinstance(self.target, type):
            return self
        return replace(self, instance=self.target(*self.constructor_args, **self.constructor_kwargs))

    def __call__(self, value: Any) -> Any:
        return (self.instance or self.target)(value, *self.args, **self.kwargs)

    def identity(self, owner: str) -> Any:
        """Returns what decides its results, as JSON values. Raises ConfigError naming a variable."""
        given = {
            "fn_args": self.args,
            "fn_kwargs": self.kwargs,
            "fn_constructor_args": self.constructor_args,
            "fn_constructor_kwargs": self.constructor_kwargs,
        }
        try:
            texts = [value_text(name, value) for name, value in given.items() if value]
        except Unhashable as error:
            raise ConfigError(f"{owner}: no identity can be made of {error}; pass plain values") from error
        return [function_identity(owner, self.target), *texts]


def check_function(method: str, udf: Udf) -> None:
    """Raises ConfigError for what cannot be called, and for arguments that a constructor does not take."""
    target = udf.target
    if not callable(target):
        raise ConfigError(f"{method} takes a function, or a class with __call__, found {target!r} ({label(target)})")
    if isinstance(target, type):
        if not any("__call__" in vars(base) for base in target.__mro__):
            raise ConfigError(
                f"{method}({target.__name__}): instances of a class are called with rows; give it __call__"
            )
        try:
            inspect.signature(target).bind(*udf.constructor_args, **udf.constructor_kwargs)
        except TypeError as error:
            raise ConfigError(
                f"{method}({target.__name__}): its constructor {error}; see fn_constructor_args"
            ) from error
        except ValueError:
            pass  # it does not tell what it takes
    elif udf.constructor_args or udf.constructor_kwargs:
        raise ConfigError(f"{method}({udf.label}) was given arguments for a constructor, and a function has none")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where what a user gave runs."""

    compute: Compute | None = None
    """The pool that it runs in; None: in the tasks that read."""
    num_cpus: float | None = None
    """CPUs that those tasks hold for it; None: as many as without."""


def placement(
    method: str,
    udf: Udf,
    pool: ActorPool | None,
    num_cpus: float | None,
    num_gpus: float | None,
    memory: int | None,
    resources: Mapping[str, float] | None,
) -> Placement:
    """Returns where a function or class runs that was given these: a class, and what needs more than CPUs, in a pool.

    Raises ConfigError for what is no pool, no amount, and memory for what runs in the tasks that read.
    """
    if pool is not None and not isinstance(pool, ActorPool):
        raise ConfigError(f"{method}(compute={pool!r}) is no curate.ActorPool; such as ActorPool(size=2)")
    amounts = {"num_cpus": num_cpus, "num_gpus": num_gpus, "memory": memory, **(resources or {})}
    for name, amount in amounts.items():
        if amount is not None and (isinstance(amount, bool) or not isinstance(amount, int | float) or amount < 0):
            raise ConfigError(f"{method}: {name} is {amount!r}, expected a number, at least 0")
    if pool is None and not isinstance(udf.target, type) and not num_gpus and not resources:
        if memory is not None:
            raise ConfigError(f"{method}: memory is asked for by actors; add compute=curate.ActorPool(...)")
        return Placement(None, num_cpus)
    # What holds a GPU needs no CPU of its own, unless it says so: as in Ray.
    cpus = num_cpus if num_cpus is not None else 0.0 if num_gpus else 1.0
    return Placement(Compute(pool or ActorPool(), Resources(cpus, num_gpus or 0.0, memory, dict(resources or {}))))


class Called(Plain):
    """What operators have in common that call what a user gave."""

    __slots__ = ()
    fn: Udf
    placement: Placement
    output_schema: pa.Schema | None = None
    """What it was declared to give; None: only running it tells."""

    @property
    def compute(self) -> Compute | None:  # type: ignore[override]
        """Where it runs."""
        return self.placement.compute

    @property
    def num_cpus(self) -> float | None:  # type: ignore[override]
        """CPUs that the tasks hold that it runs in."""
        return self.placement.num_cpus

    def opened(self) -> Self:
        """Returns the operator with an instance, if it calls a class."""
        return replace(self, fn=self.fn.opened())  # type: ignore[type-var]

    def declared(self, made: pa.Table, given: pa.Table, place: Place) -> pa.Table:
        """Returns what it made of the rows that it was given as it was declared to be. Raises SchemaMismatch."""
        if self.output_schema is None:
            return made
        rows = f"the rows {place.row} to {place.row + given.num_rows - 1} that it got of {place.shard or 'nothing'}"
        return as_declared(made, self.output_schema, self.name, rows)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class MapBatches(Called):
    """A function of batches of at most `batch_size` rows; it is applied to one at a time."""

    fn: Udf
    batch_size: int | None
    batch_format: str
    placement: Placement = field(default_factory=Placement)
    output_schema: pa.Schema | None = None
    keeps_rows = False

    @property
    def name(self) -> str:
        return f"map_batches({self.fn.label})"

    @property
    def batch_rows(self) -> int | None:  # type: ignore[override]
        return self.batch_size

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        del found
        return self.output_schema

    def identity(self) -> Any:
        told = identity_of(self.output_schema)
        return ["map_batches", *self.fn.identity(self.name), self.batch_size, self.batch_format, *told]

    def apply(self, table: pa.Table, tally: Tally, place: Place) -> Iterator[pa.Table]:
        del tally
        result = self.fn(formatted(table.combine_chunks(), self.batch_format))
        for one in result if isinstance(result, Iterator) else [result]:
            yield self.declared(to_table(self.name, one, table), table, place)


@dataclass(frozen=True, slots=True)
class MapRows(Called):
    """A function of rows: of one to one, or (flat) of one to any number."""

    fn: Udf
    flat: bool
    placement: Placement = field(default_factory=Placement)
    output_schema: pa.Schema | None = None
    # BadRow may leave any of them out.
    keeps_rows = False

    @property
    def name(self) -> str:
        return f"{'flat_map' if self.flat else 'map'}({self.fn.label})"

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        del found
        return self.output_schema

    def identity(self) -> Any:
        return ["flat_map" if self.flat else "map", *self.fn.identity(self.name), *identity_of(self.output_schema)]

    def apply(self, table: pa.Table, tally: Tally, place: Place) -> Iterator[pa.Table]:
        del tally
        made: list[Mapping[str, Any]] = []
        for result in each(self._rows_of, table, place.tries):
            if isinstance(result, Busy):
                yield result
            else:
                made += result
        if made:
            yield self.declared(gathered(self.name, made, table.schema, self.output_schema), table, place)

    def _rows_of(self, row: dict[str, Any]) -> list[Mapping[str, Any]]:
        result = self.fn(row)
        if not self.flat:
            return [self._row(result)]
        if isinstance(result, Mapping | str | bytes) or not isinstance(result, Iterable):
            raise TypeError(f"{self.name} gave {type(result).__name__}, expected a list of dictionaries")
        # Here, for it may be a generator, whose rows are part of the call.
        return list(map(self._row, result))

    def _row(self, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise TypeError(f"{self.name} gave {type(value).__name__}, expected a dictionary, a row")
        return value


@dataclass(frozen=True, slots=True)
class MapIsolated(Called):
    """A function of rows that runs in a process of its own: a row that kills it, or takes too long, is a bad row."""

    fn: Udf
    timeout_s: float | None
    placement: Placement = field(default_factory=Placement)
    output_schema: pa.Schema | None = None
    keeps_rows = False
    confined: Any = None
    """The `Confined` that it runs in, once it was made."""

    @property
    def name(self) -> str:
        return f"map({self.fn.label}, isolate=True)"

    def opened(self) -> Self:
        """Returns the operator with its process, which starts with the first row and ends with the worker."""
        from curate.dataset.confine import Confined

        return replace(self, confined=Confined(self.fn, self.timeout_s))

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        del found
        return self.output_schema

    def identity(self) -> Any:
        return ["map", *self.fn.identity(self.name), "isolate", self.timeout_s, *identity_of(self.output_schema)]

    def _results(self, rows: list[dict[str, Any]], tries: int) -> Iterator[tuple[dict[str, Any], Any]]:
        """Yields each row with what the function returned or the BadRow, or a `Busy` before the row is run again."""
        done = 0
        while done < len(rows):
            try:
                for result in self.confined.results(rows[done:]):
                    yield rows[done], result
                    done, tries = done + 1, 0
            except Exception as error:
                if not is_busy(error):
                    raise
                tries += 1
                yield rows[done], busy(error, tries, kept=done > 0)

    def apply(self, table: pa.Table, tally: Tally, place: Place) -> Iterator[pa.Table]:
        assert self.confined is not None
        given = rows(table)
        made: list[Mapping[str, Any]] = []
        for row, result in self._results(given, place.tries):
            if isinstance(result, Busy):
                yield result
            elif isinstance(result, BadRow):
                # Not raised: a search for it would run into it again.
                tally.set_aside(BadLine(0, result.reason, row_text(row)))
            elif isinstance(result, Mapping):
                made.append(result)
            else:
                raise TypeError(f"{self.name} gave {type(result).__name__}, expected a dictionary, a row")
        if made:
            gave = gathered(self.name, made, table.schema, self.output_schema)
            yield self.declared(gave, table, place)


def each(fn: Callable[[dict[str, Any]], Any], table: pa.Table, tries: int = 0) -> Iterator[Any]:
    """Yields what a function returns for each row, and `Busy` each time that it is to be called again for a row, since
    it raised RetryLater: `tries` times before for the first one. A BadRow that it raises says which row it was."""
    for position, row in enumerate(rows(table)):
        try:
            for answer in patiently(partial(fn, row), kept=position > 0, tries=0 if position else tries):
                yield answer if isinstance(answer, Busy) else answer.value
        except BadRow as error:
            if error.row is None:
                raise BadRow(error.reason, position) from error
            raise


@dataclass(frozen=True, slots=True)
class FilterRows(Called):
    """Keeps the rows for which a function of the row is true."""

    fn: Udf
    reason: str
    placement: Placement = field(default_factory=Placement)
    keeps_rows = False

    @property
    def name(self) -> str:
        return f"filter({self.fn.label})"

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        return found

    def identity(self) -> Any:
        return ["filter", *self.fn.identity(self.name), self.reason]

    def apply(self, table: pa.Table, tally: Tally, place: Place) -> Iterator[pa.Table]:
        keeps = []
        for answer in each(self.fn, table, place.tries):
            if isinstance(answer, Busy):
                yield answer
            else:
                keeps.append(bool(answer))
        kept = rows_where(table, np.array(keeps, bool))
        tally.drop(table.num_rows - kept.num_rows, self.reason)
        yield kept


@dataclass(frozen=True, slots=True)
class FilterExpression(Plain):
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
        del place
        self.schema(table.schema)
        kept = keep(table, self.expression)
        tally.drop(table.num_rows - kept.num_rows, self.reason)
        yield kept

    def reads(self, schema: pa.Schema) -> frozenset[str]:
        """Returns the columns that it looks at."""
        return columns_of(self.expression, schema)


@dataclass(frozen=True, slots=True)
class WithColumn(Plain):
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
class Select(Plain):
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
        _refuse_none(self.name, len(self.columns))
        return pa.schema([found.field(name) for name in self.columns])

    def identity(self) -> Any:
        return ["select_columns", list(self.columns)]

    def apply(self, table: pa.Table, tally: Tally, place: Place) -> Iterator[pa.Table]:
        del tally, place
        _refuse_unknown(self.name, self.columns, table.column_names)
        _refuse_none(self.name, len(self.columns))
        yield table.select(list(self.columns))


@dataclass(frozen=True, slots=True)
class Drop(Plain):
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
        left = [field for field in found if field.name not in self.columns]
        _refuse_none(self.name, len(left))
        return pa.schema(left)

    def identity(self) -> Any:
        return ["drop_columns", list(self.columns)]

    def apply(self, table: pa.Table, tally: Tally, place: Place) -> Iterator[pa.Table]:
        del tally, place
        _refuse_unknown(self.name, self.columns, table.column_names)
        left = [name for name in table.column_names if name not in self.columns]
        _refuse_none(self.name, len(left))
        yield table.select(left)


@dataclass(frozen=True, slots=True)
class Rename(Plain):
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


def _refuse_none(where: str, columns: int) -> None:
    if not columns:
        raise ConfigError(f"{where} would leave no column, and rows of none cannot be told: keep one at least")


def _refuse_unknown(where: str, wanted: Iterable[str], names: list[str]) -> None:
    for name in wanted:
        if name not in names:
            raise ConfigError(f"{where}: {unknown_column(name, names)}")
