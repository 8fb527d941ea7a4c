"""The digest of a class: of its syntax tree, without docstrings, comments and layout.

It covers the class, its bases outside of curate, and transitively all top-level names that these use, in their modules
and the user's other modules. Installed packages are not covered: the lock file pins them. For a class inside a
function, the captured values of its methods count as well; for one without a source
file (a notebook), the compiled code of its methods.
"""

from __future__ import annotations

import ast
import hashlib
import types
from collections.abc import Collection, Iterator
from typing import Any

from curate.around import contextmanager
from curate.code.closures import Unhashable, function_text, is_curates, value_text
from curate.code.kinds import functions_in, is_a, name_of
from curate.code.sources import Imports, Module, Sources, Used
from curate.code.started import BEGUN
from curate.code.syntax import source_of
from curate.code.tables import args_of
from curate.code.variables import Variables
from curate.errors import ConfigError


def code_digest(
    cls: type,
    *,
    neutral: Collection[str] = (),
    told: Collection[str] = (),
    is_identity: bool = False,
    instead: str = "make it a parameter, or declare a version",
) -> str:
    """Returns 16 hex digits of the code of a class.

    `neutral`: attributes whose assignment in the body of the class counts for nothing, because they change no byte of
    any output. `told`: attributes whose values are told elsewhere, so that only the text of the class counts.

    `is_identity`: there is no version beside it. Then a value that the class closes over and that cannot be hashed is
    refused with a ConfigError naming it, instead of being left out; `instead` is what can be done.
    """
    with plainly(name_of(cls)):
        return _digest(cls, neutral, told, instead if is_identity else "")


@contextmanager
def plainly(name: str) -> Iterator[None]:
    """Turns what a class or a value of the user's raises, when it is looked at, into a ConfigError that says so."""
    try:
        yield
    except (Unhashable, RecursionError, ConfigError):
        raise
    except Exception as error:
        raise ConfigError(
            f"{name} cannot be compared between runs: a class or a value that it uses raises {name_of(type(error))} "
            f"when it is looked at ({error}); let that answer what Python itself asks of it, as __module__ and "
            "__dict__, or create it inside the function"
        ) from error


def _digest(cls: type, neutral: Collection[str], told: Collection[str], instead: str) -> str:
    """Returns the digest of a class; `instead`: see `code_digest`, empty if it has a version."""
    sources = Sources()
    parts: list[str] = []
    variables = Variables(sources, {*neutral, *told, *getattr(cls, "_params", {})}, cls)
    for base in cls.__mro__:
        if base is object or is_curates(base.__module__):
            continue
        root = _root(base, sources)
        if root is not None:
            parts += variables.trees([root], neutral)
            variables.take_body(root, base)
            parts += variables.trees([], neutral)
        if root is None or "<locals>" in base.__qualname__:
            parts += _values(base, told, instead)
    if instead:
        with _refusing(cls.__name__, instead):
            parts += variables.texts()
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _root(cls: type, sources: Sources) -> Used | None:
    """Returns the statement that defines a class; None if there is no source."""
    module = sources.module(cls.__module__)
    if module is None:
        module = Module(cls.__module__, cls.__module__.rpartition(".")[0], {}, Imports())
    if "." not in cls.__qualname__:
        classes = [one for one in module.defined.get(cls.__name__, ()) if isinstance(one, ast.ClassDef)]
        if len(classes) == 1:
            return Used(module, classes[0], cls.__name__)
    statement = source_of(cls)
    return None if statement is None else Used(module, statement, cls.__name__)


def _values(cls: type, told: Collection[str], instead: str) -> Iterator[str]:
    """Yields what a class holds, and its methods with what they close over."""
    for name, value in sorted(vars(cls).items()):
        if name in told or name in getattr(cls, "_params", {}) or _made_by_python(name, value):
            continue
        with _refusing(f"{cls.__name__}.{name}", instead):
            functions = list(functions_in(value))
            if not functions:
                yield BEGUN.told(cls, name, f"{name} = {value_text(f'{cls.__name__}.{name}', value)}")
            yield from map(function_text, functions)
    for name, kind in sorted(vars(cls).get("__annotations__", {}).items()):
        if not is_a(kind, str) and _has_values(kind):
            with _refusing(f"{cls.__name__}.{name}", instead):
                yield f"{name}: {value_text(f'{cls.__name__}.{name}', kind)}"


def _has_values(kind: Any) -> bool:
    """Returns whether a type is given values that the function around it may have, as `Literal[k]`: not types alone."""
    if (args := args_of(kind)) is not None:
        return any(map(_has_values, args[1:]))
    return not (is_a(kind, type) or kind is None or kind is Ellipsis)


@contextmanager
def _refusing(what: str, instead: str) -> Iterator[None]:
    """Refuses what no text stands for with a ConfigError; leaves it out where nothing can be done `instead`."""
    try:
        yield
    except (Unhashable, RecursionError) as error:
        if instead:
            is_deep = isinstance(error, RecursionError)
            why = "one that holds itself, or is nested too deeply" if is_deep else error
            raise ConfigError(
                f"{what} depends on a value that cannot be compared between runs: {why}; {instead}"
            ) from (None if is_deep else error)


_COMPILED = (
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.WrapperDescriptorType,
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
)


def _made_by_python(name: str, value: Any) -> bool:
    """Returns whether a class has this by being one, or from curate, and not from what its author wrote: what it has
    of compiled bases, such as dict and Exception, and for its slots and fields, which its source names."""
    if name in ("_params", "_reads_files", "_abc_impl"):
        return True
    if is_a(value, _COMPILED) or type(value).__name__ == "_tuplegetter":
        return True
    dunder = name.startswith("__") and name.endswith("__")
    return dunder and not is_a(value, types.FunctionType)
