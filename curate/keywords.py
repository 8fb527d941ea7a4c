"""Options: keyword arguments that several functions take alike, as `help()` and editors show them; and what messages
call an option, which is given to a function or on the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import Parameter
from typing import Any, Required, TypeVar, get_args, get_origin, get_type_hints

F = TypeVar("F", bound=Callable[..., Any])
_COMMAND_LINE = ContextVar("command line", default=False)


@contextmanager
def on_command_line() -> Iterator[None]:
    """Says that what runs within it was asked for on the command line."""
    before = _COMMAND_LINE.set(True)
    try:
        yield
    finally:
        _COMMAND_LINE.reset(before)


def option(name: str, value: Any = True) -> str:
    """Returns an option as whoever reads the message gives it.

    >>> option("overwrite"), option("limit", 3)
    ('overwrite=True', 'limit=3')
    >>> with on_command_line():
    ...     option("overwrite"), option("max_in_flight", 3)
    ('--overwrite', '--max-in-flight 3')
    >>> option("sample", ...)
    'sample=...'
    """
    if not _COMMAND_LINE.get():
        return f"{name}={'...' if value is ... else repr(value)}"
    if isinstance(value, list):
        return " ".join(option(name, one) for one in value)
    given = "" if value is True else " ..." if value is ... else f" {value}"
    return f"--{name.replace('_', '-')}{given}"


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
