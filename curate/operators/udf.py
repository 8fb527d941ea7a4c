"""A user function as an operator: its identity, its placement and its arguments."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any, Self, TypedDict

import pyarrow as pa

from curate.around import contextmanager
from curate.arrow.declared import as_declared
from curate.code.closures import Unhashable
from curate.code.function import callable_text
from curate.code.kinds import is_a, name_of
from curate.dataclass import dataclass, field, replace
from curate.errors import ConfigError, add_hint, add_note
from curate.operators.arguments import refuse_unused
from curate.operators.convert import check_format, formatted
from curate.operators.protocol import Operator
from curate.operators.ray_data import instead_of_compute
from curate.pipeline.step import ActorPool, BatchPosition, Compute
from curate.runtime.protocol import Resources

_ANNOTATIONS = {
    "numpy": re.compile(r"(<class )?['\"]?(\w+\.)*([Dd]ict|Mapping)\b"),
    "pandas": re.compile(r"(<class )?['\"]?(pd|pandas)\.(\w+\.)*DataFrame\b"),
}
"""How a parameter is annotated that takes batches of a format: as a text, or as Python shows it."""
_PYARROW = (
    "the batch is a pyarrow.Table; write batch_format='numpy' for a dictionary of arrays, or 'pandas' for a data frame"
)


_PANDAS = (
    "the columns of a data frame are of pandas.ArrowDtype, so that numbers beside nulls stay what they are, and lack "
    "some operations; convert a column first, as in batch['n'].astype('int64'), or write batch_format='numpy'"
)
_READ_ONLY = (
    "arrays of rows and batches are read-only, for they share memory with the dataset; copy one before changing it, as "
    "in array = array.copy(), or make a new one: array + 1 in place of array += 1"
)


def hint(error: Exception, batch_format: str = "") -> None:
    """Notes on what user code raised what it was given, rows or a batch of a format, where that may be the reason."""
    told = ""
    if isinstance(error, ValueError) and "read-only" in str(error):
        told = _READ_ONLY
    elif batch_format == "pyarrow" and isinstance(error, AttributeError | TypeError):
        told = _PYARROW
    elif batch_format == "pandas" and isinstance(error, TypeError | NotImplementedError):
        told = _PANDAS
    if told:
        add_note(error, told)
        add_hint(error, told)


def _hinted(results: Iterator[Any], batch_format: str) -> Iterator[Any]:
    """Yields the results of a generator, which raises only while it is asked for them."""
    try:
        yield from results
    except Exception as error:
        hint(error, batch_format)
        raise


_TOLD: ContextVar[dict[int, tuple[Udf, Any]] | None] = ContextVar("told", default=None)
"""By id, what was looked at within `told_once`, which is kept, and its identity."""


@contextmanager
def told_once() -> Iterator[None]:
    """Is around what plans, which asks for an identity wherever a function is part of a stage: each is taken once.

    None is kept afterwards, because whoever writes again may have changed what a function uses.
    """
    token = _TOLD.set({}) if _TOLD.get() is None else None
    try:
        yield
    finally:
        if token is not None:
            _TOLD.reset(token)


def label(function: Any) -> str:
    """Returns what a callable is called in plans and errors."""
    try:
        name = getattr(function, "__name__", None)
    except Exception:  # noqa: BLE001 - what a class of the user's raises when it is asked
        name = None
    return str(name or name_of(function if is_a(function, type) else type(function)))


def function_identity(owner: str, function: Any) -> str:
    """Returns the text of a callable. Raises ConfigError naming the variable of which no identity can be made."""
    try:
        return callable_text(label(function), function)
    except RecursionError:
        raise ConfigError(
            f"{owner} depends on a value that holds itself, or is nested too deeply to be compared between runs: pass "
            "what it needs of it, or create it inside the function"
        ) from None
    except Unhashable as error:
        if error.value is function:
            raise ConfigError(
                f"{owner} calls an object, and curate cannot see whether it is the same in the next run: pass its "
                f"class ({name_of(type(function))}) and fn_constructor_args, or a method of the object"
            ) from error
        raise ConfigError(
            f"{owner} depends on a value that cannot be compared between runs: {error}; pass plain values (numbers, "
            "texts, lists, paths, dataclasses of these), or create it inside the function"
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

    @property
    def called(self) -> Callable[[Any], Any]:
        """What is called with a row or a batch, once for each: with no call between it and what the user wrote, where
        nothing else is given to that."""
        fn = self.target if self.instance is None else self.instance
        if not self.args:
            return partial(fn, **self.kwargs) if self.kwargs else fn
        return lambda value: fn(value, *self.args, **self.kwargs)

    def __call__(self, value: Any) -> Any:
        return self.called(value)

    def of_batch(self, table: pa.Table, batch_format: str) -> Any:
        """Returns what it makes of a table in a format of batches."""
        batch = formatted(table, batch_format)
        try:
            result = self(batch)
        except Exception as error:
            hint(error, batch_format)
            raise
        return _hinted(result, batch_format) if isinstance(result, Iterator) else result

    def identity(self, owner: str) -> Any:
        """Returns what decides its results, as JSON values. Raises ConfigError naming a variable."""
        told = _TOLD.get()
        if told is None:
            return self._identity(owner)
        if id(self) not in told:
            told[id(self)] = self, self._identity(owner)
        return told[id(self)][1]

    def _identity(self, owner: str) -> Any:
        given = {
            "fn_args": self.args,
            "fn_kwargs": self.kwargs,
            "fn_constructor_args": self.constructor_args,
            "fn_constructor_kwargs": self.constructor_kwargs,
        }
        try:
            texts = [callable_text(name, value, self.target) for name, value in given.items() if value]
        except RecursionError:
            raise ConfigError(
                f"{owner}: cannot compare an argument between runs: it holds itself, or is nested too deeply; pass "
                "plain values"
            ) from None
        except Unhashable as error:
            raise ConfigError(f"{owner}: cannot compare this value between runs: {error}; pass plain values") from error
        return [function_identity(owner, self.target), *texts]


def format_of(fn: Callable[..., Any], batch_format: str | None) -> str:
    """Returns the format of batches for a function, or for instances of a class: the one that was given, else what its
    first parameter is annotated as, else pyarrow. Raises ConfigError as `check_format` does.

    >>> def scale(batch: dict[str, "np.ndarray"]): ...
    >>> format_of(scale, None), format_of(scale, "pandas"), format_of(len, None)
    ('numpy', 'pandas', 'pyarrow')
    """
    if batch_format is None:
        annotation = _first_annotation(fn)
        batch_format = next((form for form, said in _ANNOTATIONS.items() if said.match(annotation)), "pyarrow")
    check_format(batch_format)
    return batch_format


def _first_annotation(fn: Callable[..., Any]) -> str:
    is_class = isinstance(fn, type)
    called: Any = fn
    if is_class:
        called = called.__call__
    try:
        parameters = list(inspect.signature(called).parameters.values())[is_class:]
    except (TypeError, ValueError):  # it does not tell what it takes
        return ""
    return str(parameters[0].annotation) if parameters else ""


def _check_function(method: str, udf: Udf) -> None:
    """Raises ConfigError for what cannot be called, and for arguments that a constructor does not take."""
    target = udf.target
    if not callable(target):
        raise ConfigError(f"{method} takes a function, or a class with __call__, found {target!r} ({label(target)})")
    called = getattr(target, "__call__", target) if isinstance(target, type) else target  # noqa: B004
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        raise ConfigError(
            f"{method}({udf.label}) is an async function, and curate waits for no result: write a plain function, "
            "which may call asyncio.run(...) for a whole batch"
        )
    if isinstance(target, type):
        if not any("__call__" in vars(base) for base in target.__mro__):
            raise ConfigError(f"{method}({target.__name__}): its instances are called with rows; define __call__")
        try:
            inspect.signature(target).bind(*udf.constructor_args, **udf.constructor_kwargs)
        except TypeError as error:
            raise ConfigError(
                f"{method}({target.__name__}): its constructor {error}; see fn_constructor_args"
            ) from error
        except ValueError:
            pass  # it does not tell what it takes
    elif udf.constructor_args or udf.constructor_kwargs:
        raise ConfigError(f"{method}({udf.label}) got constructor arguments, but a function has no constructor")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where what a user gave runs."""

    compute: Compute | None = None
    """The pool that it runs in; None: in the tasks that read."""
    num_cpus: float | None = None
    """CPUs that those tasks hold for it; None: as many as without."""


class UdfOptions(TypedDict, total=False):
    """With what a function or class is called, and where it runs: see `Dataset.map_batches`."""

    compute: ActorPool | None
    concurrency: int | tuple[int, int] | None
    fn_args: Iterable[Any] | None
    fn_kwargs: Mapping[str, Any] | None
    fn_constructor_args: Iterable[Any] | None
    fn_constructor_kwargs: Mapping[str, Any] | None
    num_cpus: float | None
    num_gpus: float | None
    memory: int | None
    resources: Mapping[str, float] | None


def udf_of(method: str, fn: Callable[..., Any], options: UdfOptions) -> tuple[Udf, Placement]:
    """Returns what a method was given to call, and where it runs. Raises ConfigError for what cannot be called or run
    so."""
    udf = Udf(
        fn,
        _placed(method, "fn_args", options.get("fn_args")),
        _named(method, "fn_kwargs", options.get("fn_kwargs")),
        _placed(method, "fn_constructor_args", options.get("fn_constructor_args")),
        _named(method, "fn_constructor_kwargs", options.get("fn_constructor_kwargs")),
    )
    _check_function(method, udf)
    return udf, _placement(method, udf, options)


def refuse_for_expression(method: str, options: UdfOptions) -> None:
    """Raises ConfigError for what says with what a function is called, or where it runs: an expression has neither."""
    refuse_unused(
        method,
        "an expression takes no arguments and runs in the reading tasks; leave it out, or give a function",
        **options,
    )


def _placed(method: str, name: str, given: Any) -> tuple[Any, ...]:
    # A set, too: it has another order in each process.
    unordered = isinstance(given, str | bytes | Mapping | set | frozenset)
    if given is not None and (unordered or not isinstance(given, Iterable)):
        raise ConfigError(
            f"{method}({name}={given!r:.80}): expected a list or a tuple of arguments, such as ({given!r:.80},)"
        )
    return () if given is None else tuple(given)


def _named(method: str, name: str, given: Any) -> dict[str, Any]:
    if given is not None and not (isinstance(given, Mapping) and all(isinstance(one, str) for one in given)):
        raise ConfigError(f"{method}({name}={given!r:.80}): expected arguments by name, such as {{'scale': 2}}")
    return dict(given or {})


def _placement(method: str, udf: Udf, options: UdfOptions) -> Placement:
    """Returns where a function or class runs that was given these: a class, and what needs more than CPUs, in a pool.

    Raises ConfigError for what is no pool, no amount, and memory for what runs in the tasks that read.
    """
    resources = options.get("resources")
    num_cpus, num_gpus, memory = options.get("num_cpus"), options.get("num_gpus"), options.get("memory")
    pool = _pool(method, options.get("compute"), options.get("concurrency"))
    amounts = {"num_cpus": num_cpus, "num_gpus": num_gpus, "memory": memory, **(resources or {})}
    for name, amount in amounts.items():
        if amount is not None and (
            isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < math.inf
        ):
            raise ConfigError(f"{method}: {name} is {amount!r}, expected a finite number, at least 0")
    in_pool = isinstance(udf.target, type) or bool(num_gpus or resources)
    if options.get("concurrency") is not None and not in_pool:
        raise ConfigError(
            f"{method}(concurrency={options['concurrency']!r}) sets the size of a pool, but the function {udf.label} "
            "runs in the reading tasks: leave it out to use all CPUs, set num_cpus per task, or add a pool with "
            "compute=curate.ActorPool(size=...)"
        )
    if pool is None and not in_pool:
        if memory is not None:
            raise ConfigError(f"{method}: only actors request memory; add compute=curate.ActorPool(...)")
        return Placement(None, num_cpus)
    # What holds a GPU needs no CPU of its own, unless it says so: as in Ray.
    cpus = num_cpus if num_cpus is not None else 0.0 if num_gpus else 1.0
    return Placement(Compute(pool or ActorPool(), Resources(cpus, num_gpus or 0.0, memory, dict(resources or {}))))


def _pool(method: str, compute: Any, concurrency: Any) -> ActorPool | None:
    """Returns the pool that `compute` is, or of `concurrency` actors. Raises ConfigError for both, and for neither."""
    if compute is not None and not isinstance(compute, ActorPool):
        raise ConfigError(f"{method}(compute={compute!r}) is not a curate.ActorPool; {instead_of_compute(compute)}")
    if concurrency is None:
        return compute
    if compute is not None:
        raise ConfigError(f"{method}: compute and concurrency both set the size of the pool; pass one of them")
    try:
        match concurrency:
            case [smallest, largest]:
                return ActorPool(min_size=smallest, max_size=largest)
            case _ if hasattr(concurrency, "__index__"):
                return ActorPool(size=concurrency)
    except ConfigError as error:
        raise ConfigError(f"{method}(concurrency={concurrency!r}): {error}") from error
    raise ConfigError(
        f"{method}(concurrency={concurrency!r}): expected a number of actors, or (minimum, maximum) such as (1, 8); a "
        "pool starts with the minimum"
    )


@dataclass(frozen=True, slots=True)
class UdfOperator(Operator):
    """What operators have in common that call what a user gave."""

    fn: Udf
    placement: Placement = field(default_factory=Placement, kw_only=True)
    output_schema: pa.Schema | None = field(default=None, kw_only=True)
    """What it was declared to give; None: only running it tells."""
    runs_code = True
    method = ""

    @property
    def name(self) -> str:
        return f"{self.method}({self.fn.label})"

    @property
    def compute(self) -> Compute | None:  # type: ignore[override]
        """Where it runs."""
        return self.placement.compute

    @property
    def num_cpus(self) -> float | None:  # type: ignore[override]
        """CPUs that the tasks hold that it runs in."""
        return self.placement.num_cpus

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        """Returns what it was declared to give."""
        del found
        return self.output_schema

    def opened(self) -> Self:
        """Returns the operator with an instance, if it calls a class."""
        return replace(self, fn=self.fn.opened())

    def declared(self, made: pa.Table, given: pa.Table, place: BatchPosition) -> pa.Table:
        """Returns what it made of the rows that it was given as it was declared to be. Raises SchemaMismatch."""
        if self.output_schema is None:
            return made
        rows = f"the rows {place.row} to {place.row + given.num_rows - 1} of its input from {place.shard or 'nothing'}"
        return as_declared(made, self.output_schema, self.name, rows)
