"""The identity of a function as text: a dataset has no version, only the code of its functions."""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Iterator
from typing import Any

from curate.code.closures import (
    Seen,
    Unhashable,
    closed_over,
    is_in_no_file,
    is_of_curates,
    module_of,
    placed_in,
    value_text,
)
from curate.code.digest import code_digest, plainly
from curate.code.held import held
from curate.code.kinds import is_a, loaded
from curate.code.names import AROUND, globals_read, names_in
from curate.code.sources import Module, Sources, Used, names_used
from curate.code.variables import Variables

_INSTEAD = "pass it to the constructor (fn_constructor_args), or make it there"


def callable_text(name: str, function: Any, given_to: Any = None) -> str:
    """Returns a callable, or what one is given, as text: its code, defaults, what it closes over, and what of the
    user's modules it uses; of the user's own classes in it, as of one that is called, the digest.

    The same in every process, and wherever the program lies, whose place is known by the function in it, or by the one
    that it is `given_to`. Raises Unhashable, with the variable's name, for a value that has no such text; for one
    in a class ConfigError, and for a class or a value that raises when it is looked at.
    """
    with plainly(name):
        return _text(name, function, given_to)


def _text(name: str, function: Any, given_to: Any) -> str:
    sources = Sources()
    variables = Variables(sources)
    queue: list[Used] = []
    functions = list(_functions(function, set()))
    try:
        around_it = functions or list(_functions(given_to, set()))
        text = value_text(name, function, Seen(folder=next(map(placed_in, around_it), None)))
    except Unhashable:
        if (module := _decorating(function, sources)) is None:
            raise
        # As in a function that only calls it: its statement counts with its decorators, and what these use.
        text = f"{function.__name__} as it is decorated"
        call = ast.parse(f"{function.__name__}()").body[0]
        queue += sources.used_by(module, call)
        variables.take(module, call, queue)
    classes = list(_classes(function, sources))
    known = {*map(id, (*functions, *classes))}
    further = [one for one in held(function, sources) if id(one) not in known]
    functions += [one for one in further if isinstance(one, types.FunctionType)]
    for one in functions:
        # What `exec` made in a namespace without a name is of no module.
        lies_in = module_of(one)
        module = sources.module(lies_in) if lies_in else None
        if module is not None:
            names = names_used(one)
            used = [*sources.used_by(module, names), *_of_modules(one, sources)]
            variables.take(module, names, used, [one.__code__])
            queue += used
    digests = []
    around = {id(inner) for one in functions for _, inner in closed_over(one)}
    for held_whole in further:
        if isinstance(held_whole, types.ModuleType) and id(held_whole) not in around:
            queue += variables.take_all(held_whole)
    for cls in (one for one in further if isinstance(one, type)):
        if (defined := sources.of(cls)) is not None:
            queue.append(defined)
            variables.take_body(defined, cls)
        if "<locals>" in cls.__qualname__ or (defined is None and is_in_no_file(cls)):
            digests.append(code_digest(cls))
    trees = list(variables.trees(queue))
    digests += [code_digest(one, is_identity=True, instead=_INSTEAD) for one in classes]
    return "\n".join([text, *trees, *variables.texts(), *digests])


def _of_modules(function: types.FunctionType, sources: Sources) -> Iterator[Used]:
    """Yields the statements of modules that a function closes over, as where the one around it imports them."""
    asked = globals_read([function.__code__], AROUND)
    names = names_in(function.__code__)
    for name, value in closed_over(function):
        if is_a(value, types.ModuleType):
            yield from sources.of_module(value, asked.get(name, ()), names)


def _decorating(value: Any, sources: Sources) -> Module | None:
    """Returns the module of the user's that defines a function which a decorator of a library, or a class, has made
    this of: what such a wrapper has of its own is nothing that a user could pass in another way."""
    if is_a(value, types.FunctionType) and sources.module(module_of(value) or ""):
        return None
    name, lies_in = (str(getattr(value, one, None) or "") for one in ("__name__", "__module__"))
    module = sources.module(lies_in) if (known := loaded(lies_in)) is not None else None
    if module is None or vars(known).get(name) is not value:
        return None
    match module.defined.get(name):
        case [ast.FunctionDef(decorator_list=[_, *_])]:
            return module
    return None


def _functions(value: Any, seen: set[int]) -> Iterator[types.FunctionType]:
    """Yields the functions in a callable, and those that they close over."""
    if is_a(value, functools.partial):
        for one in (value.func, *value.args, *value.keywords.values()):
            yield from _functions(one, seen)
    elif is_a(value, types.MethodType):
        yield from _functions(value.__func__, seen)
    elif is_a(value, types.FunctionType) and id(value) not in seen:
        seen.add(id(value))
        yield value
        for _, held in closed_over(value):
            yield from _functions(held, seen)


def _classes(function: Any, sources: Sources) -> Iterator[type]:
    """Yields the user's own classes in a callable: itself, in a partial, closed over, or whose method it is."""
    held = [function]
    for one in held:
        if is_a(one, functools.partial):
            held += [one.func, *one.args, *one.keywords.values()]
        elif is_a(one, types.MethodType):
            owner = one.__self__ if is_a(one.__self__, type) else type(one.__self__)
            held += [] if is_of_curates(owner) else [owner]
    for one in _functions(function, set()):
        held += [value for _, value in closed_over(one)]
    for one in held:
        # Installed packages are pinned by the lock file.
        if is_a(one, type) and (is_in_no_file(one) or sources.module(one.__module__) is not None):
            yield one
