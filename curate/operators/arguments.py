"""What is asked of arguments before anything else: that there are such, and that what stands for a path is one.

For an argument of ray.data, one line says what to write instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import Parameter, isfunction, signature
from typing import Any, TypeVar

from curate.errors import ConfigError, did_you_mean
from curate.operators.ray_data import ARGUMENTS

_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
"""Kinds of parameters that are given by name."""
_FLAGS = (bool, "bool")
"""Annotations of parameters that are true or false."""
F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


def answers(function: F) -> F:
    """Returns the function; called with an argument that it does not take, it raises ConfigError for one of ray.data,
    with what to write, and else TypeError, with the name that was meant and all that there are. Raises ConfigError for
    what is neither true nor false where one of these is expected."""
    parameters: Mapping[str, Parameter] = {}

    @wraps(function)
    def asked(*args: Any, **given: Any) -> Any:
        nonlocal parameters
        if given or len(args) > 1:
            # Only now: there are many functions, and few of them are called.
            parameters = parameters or signature(function).parameters
            _check(function.__name__, parameters, len(args), given)
        return function(*args, **given)

    # What Python says of one that is missing has this name: which part of a dataset has the method helps nobody.
    function.__qualname__ = function.__name__
    return asked  # type: ignore[return-value]


def answer_methods(cls: C) -> C:
    """Makes all public methods of a class answer what they do not take."""
    for name, method in list(vars(cls).items()):
        if isfunction(method) and not name.startswith("_"):
            setattr(cls, name, answers(method))
    return cls


def _check(name: str, parameters: Mapping[str, Parameter], by_place: int, given: Mapping[str, Any]) -> None:
    kinds = {one.kind for one in parameters.values()}
    if Parameter.VAR_KEYWORD not in kinds:
        unknown = [word for word in given if word not in parameters]
        answers = {word: ARGUMENTS.get(f"{name}.{word}", ARGUMENTS.get(word)) for word in unknown}
        for word in (word for word in unknown if answers[word] is None):
            known = [one.name for one in parameters.values() if one.kind in _NAMED and one.name != "self"]
            near = did_you_mean(word, known)
            raise TypeError(f"{name}() got an unexpected keyword argument {word!r}{near}; it takes: {', '.join(known)}")
        if unknown:
            told = [f"no {word} in curate: {instead}" for word, instead in answers.items()]
            raise ConfigError(f"{name}() has {'; and '.join(told)}")
    placed = [one.name for one in parameters.values() if one.kind is Parameter.POSITIONAL_OR_KEYWORD]
    if by_place > len(placed) and Parameter.VAR_POSITIONAL not in kinds:
        named = [f"{one.name}=..." for one in parameters.values() if one.kind is Parameter.KEYWORD_ONLY]
        shown = ", ".join([one for one in placed if one != "self"] + named)
        raise TypeError(f"{name}() got more arguments by position than it takes: write {name}({shown})")
    for word, value in given.items():
        # Any text would count as true, "False" as well.
        if word in parameters and parameters[word].annotation in _FLAGS and not isinstance(value, bool):
            raise ConfigError(f"{name}({word}={value!r:.80}): expected True or False")


def refuse_unused(method: str, why: str, **given: Any) -> None:
    """Raises ConfigError for the first argument that was given and changes nothing, with the words that say why.

    >>> refuse_unused("repartition", "rows keep their order without shuffle=True", seed=None)
    """
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"{method}({name}={value!r:.80}) has no effect: {why}")


def path_text(given: Any, what: str) -> str:
    """Returns a path as text. Raises ConfigError, which names `what` it was given as, for what is none."""
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else given
    if not isinstance(text, str):
        raise ConfigError(f"{what}: {given!r:.80} is {type(given).__name__}, expected a path as text")
    return text


def path_texts(given: Any, what: str) -> list[str]:
    """Returns one path, or several, as texts. Raises ConfigError for what is none; for a set, too: its order, which the
    rows would have, is another one in each process."""
    if isinstance(given, set | frozenset):
        raise ConfigError(f"{what}: {given!r:.80} is a set, and rows have the order of the paths; pass sorted(...)")
    if isinstance(given, str | bytes | os.PathLike) or not isinstance(given, Iterable):
        return [path_text(given, what)]
    return [path_text(one, what) for one in given]
