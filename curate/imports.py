"""Who is told of a module once that is imported, by whomever: what is slow to import is left until someone needs it."""

from __future__ import annotations

import gc
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from curate.around import contextmanager
from curate.errors import ConfigError


def imported(name: str) -> ModuleType | None:
    """Returns a module that has been imported to its end; None if it is not, or if a thread is in the middle of it.

    `sys.modules` has a module from the first line of its import on, when the names in it are still to come: in a worker
    of Ray one thread imports pandas for Arrow while another runs a shard. No value of such a module exists yet.
    """
    module = sys.modules.get(name)
    # What the import system itself asks before it takes a module from there without waiting for the lock of its import.
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


def need(module: str, what: str, extra: str, instead: str = "") -> None:
    """Raises ConfigError if a module is not installed; imports nothing. `what` says who needs which package, that an
    `extra` of curate brings."""
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"{what}, which is not installed: pip install 'curate[{extra}]'{instead}")


def when_imported(name: str, call: Callable[[], object]) -> None:
    """Calls `call` once a module is imported, by whomever; now, if it is. The last call for a module counts."""
    with _lock:
        if name not in sys.modules:
            _watch().calls[name] = call
            return
    call()


@contextmanager
def uncollected() -> Iterator[None]:
    """Is around imports of hundreds of modules: what is made there stays, and need not be looked through, again and
    again, for what is garbage, which takes a tenth of their time; nor at the end of it, for some 30 ms."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            # To the oldest at once; unless somebody has set objects aside for good, who would get them back.
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()


@contextmanager
def hidden(name: str) -> Iterator[None]:
    """Is around what does not find a module that is not imported yet, in this thread."""
    with _lock:
        found = _watch()
        found.hidden = name, threading.get_ident()
        try:
            yield
        finally:
            found.hidden = None


_lock = threading.RLock()


class _Watch:
    """Finds modules by the finders behind it, and tells who wants to know once they are imported. Not derived from
    `importlib.abc.MetaPathFinder`, which adds nothing and takes 5 ms to import."""

    def __init__(self) -> None:
        self.calls: dict[str, Callable[[], object]] = {}
        """What to call, by the module."""
        self.hidden: tuple[str, int] | None = None
        """A module, and the thread that does not find it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns what the next finder says of a module that is waited for; None of any other."""
        if self.hidden == (fullname, threading.get_ident()):
            raise ModuleNotFoundError(f"{fullname} is not imported yet", name=fullname)
        if fullname not in self.calls:
            return None
        for finder in sys.meta_path:
            found = None if finder is self else finder.find_spec(fullname, path, target)
            if found is not None:
                self._tell_after(fullname, found.loader)
                return found
        return None

    def _tell_after(self, name: str, loader: Any) -> None:
        run = getattr(loader, "exec_module", None)
        if run is None:
            return

        def exec_module(module: ModuleType) -> None:
            run(module)
            if (call := self.calls.pop(name, None)) is not None:
                call()

        loader.exec_module = exec_module


def _watch() -> _Watch:
    """Returns the one of this process."""
    found = next((one for one in sys.meta_path if isinstance(one, _Watch)), None)
    if found is None:
        found = _Watch()
        sys.meta_path.insert(0, found)
    return found
