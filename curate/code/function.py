"""The identity of a function as text: a dataset has no version, only the code of its functions."""

from __future__ import annotations

import ast
import dis
import functools
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from curate.code.closures import (
    PLAIN,
    closed_over,
    function_text,
    is_curates,
    is_in_no_file,
    is_of_curates,
    module_of,
    value_text,
)
from curate.code.compared import held
from curate.code.digest import code_digest
from curate.code.kinds import is_a, items_in, own_dict, pairs_in
from curate.code.names import names_in
from curate.code.sources import Sources, Used, installed
from curate.code.started import BEGUN
from curate.code.syntax import definition
from curate.code.variables import Variables

_MOST_WATCHED = 10_000
"""Values that are looked at around a run; of more, code that changes one of them is another one after it."""
_MOST_BYTES = 8 << 20
"""Of an array, bytes up to which it is looked at."""
_ARRAYS = (np.ndarray, pa.Array, pa.ChunkedArray, pa.RecordBatch, pa.Table)
_INSTEAD = "pass it to the constructor (fn_constructor_args), or make it there"


def callable_text(name: str, function: Any) -> str:
    """Returns a callable, or what one is given, as text: its code, defaults, what it closes over, and what of the
    user's modules it uses; of the user's own classes in it, as of one that is called, the digest.

    The same in every process. Raises Unhashable, with the variable's name, for a value that has no such text; for one
    in a class ConfigError.
    """
    text = function_text(function) if is_a(function, types.FunctionType) else value_text(name, function)
    sources = Sources()
    variables = Variables(sources)
    queue: list[Used] = []
    functions = list(_functions(function, set()))
    classes = list(_classes(function, sources))
    further = [one for one in held(function) if one not in functions and one not in classes]
    functions += [one for one in further if isinstance(one, types.FunctionType)]
    for one in functions:
        # What `exec` made in a namespace without a name is of no module.
        lies_in = module_of(one)
        module = sources.module(lies_in) if lies_in else None
        if module is not None:
            names = _names_used(one)
            used = list(sources.used_by(module, names))
            variables.take(module, names, used, [one.__code__])
            queue += used
    digests = []
    for cls in (one for one in further if isinstance(one, type)):
        if (defined := sources.of(cls)) is not None:
            queue.append(defined)
            variables.take_body(defined, cls)
        if "<locals>" in cls.__qualname__ or (defined is None and is_in_no_file(cls)):
            digests.append(code_digest(cls))
    trees = list(variables.trees(queue))
    digests += [code_digest(one, is_identity=True, instead=_INSTEAD) for one in classes]
    return "\n".join([text, *trees, *variables.texts(), *digests])


@contextmanager
def watched(callables: Iterable[Any]) -> Iterator[None]:
    """Is around what calls these in this process: what they change, as a cache, counts as it was before. Not of what
    can reach very much: rows that are shown would wait for two looks at it."""
    changing = [one for one in callables if _changes_little(one)]
    before = [BEGUN.look(partial(callable_text, "", one)) for one in changing]
    try:
        yield
    finally:
        for one, was in zip(changing, before, strict=True):
            BEGUN.left(was, BEGUN.look(partial(callable_text, "", one)))


def _changes_little(value: Any) -> bool:
    """Returns whether a callable can reach anything that changes, which most cannot, and so little in all that to look
    at it takes milliseconds."""
    queue, seen, changes = [value], set[int](), False
    for one in queue:
        if type(one) in PLAIN or id(one) in seen or is_a(one, types.BuiltinFunctionType):
            continue
        seen.add(id(one))
        if is_a(one, types.FunctionType):
            if _is_of_user(module_of(one)):
                changes = changes or _binds(one.__code__)
                known = one.__globals__
                queue += (known[name] for name in names_in(one.__code__) if name in known)
                queue += (*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values())
                queue += (inner for _, inner in closed_over(one))
        elif is_a(one, type | types.ModuleType):
            if _is_of_user(one.__name__ if is_a(one, types.ModuleType) else one.__module__):
                changes = True
                queue += vars(one).values()
        elif is_a(one, functools.partial):
            queue += (one.func, *one.args, *one.keywords.values())
        else:
            changes = changes or not is_a(one, tuple | frozenset)
            queue += islice(_parts_of(one), _MOST_WATCHED)
        if len(queue) > _MOST_WATCHED or (is_a(one, _ARRAYS) and one.nbytes > _MOST_BYTES):
            return False
    return changes


def _parts_of(value: Any) -> Iterator[Any]:
    """Yields what a value holds, or has."""
    if is_a(value, dict):
        yield from chain.from_iterable(pairs_in(value))
    elif is_a(value, list | tuple | set | frozenset | deque):
        yield from items_in(value)
    elif is_a(value, types.MethodType):
        yield from (value.__func__, value.__self__)
    else:
        yield from own_dict(value).values()


@functools.lru_cache(maxsize=4096)
def _binds(code: types.CodeType) -> bool:
    """Returns whether code imports a module, or gives a variable of its own, or of a function around it, another
    value."""
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    used = {*code.co_code[::2]}
    around = bool(code.co_freevars) and dis.opmap["STORE_DEREF"] in used
    binds = around or bool(used & {dis.opmap["STORE_GLOBAL"], dis.opmap["IMPORT_NAME"]})
    return binds or any(map(_binds, inner))


@functools.lru_cache(maxsize=1024)
def _is_of_user(module: str | None) -> bool:
    """Returns whether a module is none of curate's, of Python's or of an installed library."""
    root = (module or "").partition(".")[0]
    path = getattr(sys.modules.get(module or ""), "__file__", None)
    if root in sys.stdlib_module_names or (module is not None and is_curates(module)):
        return root == "__main__"
    return path is None or not any(map(Path(path).resolve().is_relative_to, installed()))


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


def _names_used(function: types.FunctionType) -> ast.AST:
    """Returns a tree with the names that a function uses.

    A lambda has no source of its own, only the statement around it, so its names are taken from what was compiled.
    """
    if (tree := definition(function)) is not None:
        return tree
    names = names_in(function.__code__)
    roots = [ast.Name(name, ast.Load()) for name in names if name in function.__globals__]
    parts: list[ast.expr] = [ast.Attribute(root, name, ast.Load()) for root in roots for name in names]
    return ast.Tuple([*roots, *parts], ast.Load())
