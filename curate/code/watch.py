"""A look at what functions can change, before they run in this process and after it: that is no other code."""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from curate.around import contextmanager
from curate.code.closures import PLAIN_IDS, closed_over, is_curates, module_of
from curate.code.function import callable_text
from curate.code.kinds import is_a, items_in, loaded, own_dict, pairs_in
from curate.code.names import names_in
from curate.code.sources import installed
from curate.code.started import BEGUN

_MOST_WATCHED = 10_000
"""Values that are looked at around a run; of more, code that changes one of them is another one after it."""
_MOST_BYTES = 8 << 20
"""Of an array, bytes up to which it is looked at."""
_TABLES_OF_NAMES = frozenset({"globals", "vars", "exec", "__globals__", "__dict__"})
_ARRAYS = (np.ndarray, pa.Array, pa.ChunkedArray, pa.RecordBatch, pa.Table)


@contextmanager
def watched(callables: Iterable[Any]) -> Iterator[None]:
    """Is around what calls these in this process: what they change, as a cache, counts as it was before. Not of what
    can reach very much: rows that are shown would wait for two looks at it."""
    changing = [one for one in callables if _is_watched(one)]
    before = [BEGUN.look(partial(callable_text, "", one)) for one in changing]
    try:
        yield
    finally:
        for one, was in zip(changing, before, strict=True):
            BEGUN.left(was, BEGUN.look(partial(callable_text, "", one)))


def _is_watched(value: Any) -> bool:
    try:
        return _changes_little(value)
    except Exception:  # noqa: BLE001 - what a class of the user's raises: who asks for the identity itself is told
        return False


def _changes_little(value: Any) -> bool:
    """Returns whether a callable can reach anything that changes. Most cannot, and can be looked at in milliseconds."""
    queue, seen, changes = [value], set[int](), False
    for one in queue:
        if id(type(one)) in PLAIN_IDS or id(one) in seen or is_a(one, types.BuiltinFunctionType):
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
    value, or asks for the table of all names, by which it may."""
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    used = {*code.co_code[::2]}
    around = bool(code.co_freevars) and dis.opmap["STORE_DEREF"] in used
    binds = around or bool(used & {dis.opmap["STORE_GLOBAL"], dis.opmap["IMPORT_NAME"]})
    return binds or not _TABLES_OF_NAMES.isdisjoint(code.co_names) or any(map(_binds, inner))


@functools.lru_cache(maxsize=1024)
def _is_of_user(module: str | None) -> bool:
    """Returns whether a module is none of curate's, of Python's or of an installed library."""
    root = (module or "").partition(".")[0]
    path = getattr(loaded(module or ""), "__file__", None)
    if root in sys.stdlib_module_names or (module is not None and is_curates(module)):
        return root == "__main__"
    return path is None or not any(map(Path(path).resolve().is_relative_to, installed()))
