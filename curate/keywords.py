"""Keyword arguments that several functions take alike, as `help()` and editors show them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def shows_keywords(typed: Any, defaults: Mapping[str, Any] = {}) -> Callable[[F], F]:
    """Returns a decorator for a function of `**options: Unpack[typed]`: its signature then names the keys of that
    TypedDict, whose annotations are texts. Those that may be left out have these `defaults`, the others of them None.

    >>> from typing import TypedDict
    >>> Options = TypedDict("Options", {"size": "Required[int]", "loud": "bool | None"}, total=False)
    >>> @shows_keywords(Options)
    ... def make(name, **options): ...
    >>> str(inspect.signature(make))
    "(name, *, size: 'int', loud: 'bool | None' = None)"
    """

    def shown(function: F) -> F:
        found = inspect.signature(function)
        own = [one for one in found.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        keys = [_keyword(name, one.__forward_arg__, defaults.get(name)) for name, one in typed.__annotations__.items()]
        function.__signature__ = found.replace(parameters=[*own, *keys])  # type: ignore[attr-defined]
        return function

    return shown


def _keyword(name: str, text: str, default: Any) -> Parameter:
    if text.startswith("Required["):
        return Parameter(name, Parameter.KEYWORD_ONLY, annotation=text[len("Required[") : -1])
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=text, default=default)
