"""Options: keyword arguments that several functions share, as `help()` and editors show them; and their names in
messages,
in the words of Python or of the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from inspect import Parameter
from typing import Any, Required, TypeVar, get_args, get_origin, get_type_hints

from curate.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])
BY_USING = ("max_failed_shards", "redo_stale", "drop_removed", "allow_concurrent")
"""Options of a run that `Dataset.using` has as well."""
_GIVEN = ContextVar("how options are given", default="keyword")
_CHECKPOINT = ContextVar("whether a checkpoint is run", default=False)


@contextmanager
def _set(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)


def on_command_line() -> AbstractContextManager[None]:
    """Says that what runs within it was asked for on the command line."""
    return _set(_GIVEN, "command line")


def by_using() -> AbstractContextManager[None]:
    """Says that what runs within it has its options from `Dataset.using`."""
    return _set(_GIVEN, "using")


def of_checkpoint() -> AbstractContextManager[None]:
    """Says that what runs within it is a checkpoint, which no option overwrites."""
    return _set(_CHECKPOINT, True)


def option(name: str, value: Any = True) -> str:
    """Returns an option as whoever reads the message gives it.

    >>> option("overwrite"), option("limit", 3), option("sample", ...)
    ('overwrite=True', 'limit=3', 'sample=...')
    >>> with on_command_line():
    ...     option("overwrite"), option("max_in_flight", 3)
    ('--overwrite', '--max-in-flight 3')
    >>> with by_using():
    ...     option("redo_stale")
    '.using(redo_stale=True)'
    """
    if (given := _GIVEN.get()) != "command line":
        text = f"{name}={'...' if value is ... else repr(value)}"
        return f".using({text})" if given == "using" and name in BY_USING else text
    if isinstance(value, list):
        return " ".join(option(name, one) for one in value)
    text = "" if value is True else " ..." if value is ... else f" {value}"
    return f"--{name.replace('_', '-')}{text}"


@contextmanager
def naming_columns(parameters: Mapping[str, Any]) -> Iterator[None]:
    """Is around what looks for columns that parameters name: for one that is refused it says which of them do.

    >>> with naming_columns({"text_column": "txt", "label": "txt"}):
    ...     raise ConfigError.of_column("there is no column 'txt'", "txt")
    Traceback (most recent call last):
    curate.errors.ConfigError: there is no column 'txt'. Another one is chosen with text_column=...
    """
    try:
        yield
    except ConfigError as error:
        if not error.column:
            raise
        named = [
            one for one, value in parameters.items() if error.column in (value if isinstance(value, list) else [value])
        ]
        # Where one is called after columns, whatever else has the same value means something else.
        of = [one for one in named if one.endswith(("column", "columns"))] or named
        if not of:
            raise
        chosen = " and ".join(option(one, ...) for one in of)
        raise ConfigError(f"{error}. Another one is chosen with {chosen}").with_traceback(error.__traceback__) from None


def start_over() -> str:
    """Returns what to do to make all of an output anew.

    >>> start_over()
    'start over with overwrite=True'
    >>> with of_checkpoint():
    ...     start_over()
    'remove this checkpoint, which makes the next run write it anew'
    """
    if _CHECKPOINT.get():
        return "remove this checkpoint, which makes the next run write it anew"
    return f"start over with {option('overwrite')}"


def shows_keywords(typed: Any, defaults: Mapping[str, Any] = {}) -> Callable[[F], F]:
    """Returns a decorator for a function of `**options: Unpack[typed]`: its signature then names the keys of that
    TypedDict, with their types. Those that may be left out have these `defaults`, the others of them None.

    >>> from typing import Required, TypedDict
    >>> Options = TypedDict("Options", {"size": Required[int], "loud": bool | None}, total=False)
    >>> @shows_keywords(Options)
    ... def make(name, **options): ...
    >>> str(inspect.signature(make))
    '(name, *, size: int, loud: bool | None = None)'
    """

    # Where annotations are texts, Python does not know which keys are required before they are looked up.
    hints = get_type_hints(typed, include_extras=True)

    def shown(function: F) -> F:
        found = inspect.signature(function)
        own = [one for one in found.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        keys = [_keyword(name, kind, defaults.get(name)) for name, kind in hints.items()]
        function.__signature__ = found.replace(parameters=[*own, *keys])  # type: ignore[attr-defined]
        return function

    return shown


def _keyword(name: str, kind: Any, default: Any) -> Parameter:
    if get_origin(kind) is Required:
        return Parameter(name, Parameter.KEYWORD_ONLY, annotation=get_args(kind)[0])
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=default)
