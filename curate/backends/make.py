"""A backend by its name."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading

from curate.errors import ConfigError, did_you_mean
from curate.runtime.protocol import Backend

AUTO = "auto"
"""Stands for `ray` or `local`: see `curate.backends.choose`."""
BACKENDS = (AUTO, "local", "ray", "inline")
"""What can be asked for."""


def check_backend(name: str) -> str:
    """Returns the name. Raises ConfigError if no backend has it."""
    if name not in BACKENDS:
        raise ConfigError(f"no backend {name!r}{did_you_mean(name, BACKENDS)}; there are: {', '.join(BACKENDS)}")
    return name


def make_backend(name: str) -> Backend:
    """Returns a backend by name, not `auto`; importing Ray is left until it is asked for. Raises ConfigError."""
    if name == "inline":
        from curate.backends.inline import InlineBackend

        return InlineBackend()
    if name == "local":
        from curate.local.lasting import LastingBackend

        return LastingBackend()
    if name == "ray":
        from curate.runtime.interrupts import uninterrupted

        check_installed(name)
        # Half imported, it could not be imported again.
        with uninterrupted():
            from curate.backends.ray.backend import RayBackend

        return RayBackend()
    raise AssertionError(check_backend(name))


def check_installed(name: str) -> None:
    """Raises ConfigError if a backend of this name needs a package that is not installed. Imports nothing."""
    if name != "ray":
        return
    with contextlib.suppress(ModuleNotFoundError):  # by a hook of somebody's, who forbids it
        if importlib.util.find_spec("ray") is not None:
            return
    raise ConfigError(
        f"Ray is not installed here: pip install '{_ray_required()}', or run without it (backend \"local\")"
    )


def begin_backend(name: str) -> None:
    """Begins, beside whatever else this process does, what takes time before a backend of this name can start: the
    process that forks workers, or the import of Ray."""
    if name == "local":
        from curate.local import spawner

        spawner.start()
    elif name == "ray" and "ray" not in sys.modules:
        threading.Thread(target=_import_ray, name="import ray").start()


def _import_ray() -> None:
    # What is wrong with it, whoever asks for it says.
    with contextlib.suppress(Exception):
        importlib.import_module("ray")


def _ray_required() -> str:
    """Returns the Ray that this version of curate works with, as pip takes it."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        return next(one for one in requires("curate") or () if one.startswith("ray["))
    except (PackageNotFoundError, StopIteration):
        return "ray[default]"
