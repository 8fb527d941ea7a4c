"""A backend by its name."""

from __future__ import annotations

from curate.errors import ConfigError, did_you_mean
from curate.runtime.protocol import Backend

BACKENDS = ("ray", "local", "inline")


def make_backend(name: str) -> Backend:
    """Returns a backend by name; importing Ray is left until it is asked for. Raises ConfigError."""
    if name == "inline":
        from curate.backends.inline import InlineBackend

        return InlineBackend()
    if name == "local":
        from curate.local.backend import LocalBackend

        return LocalBackend()
    if name == "ray":
        from curate.runtime.interrupts import uninterrupted

        # Half imported, it could not be imported again.
        with uninterrupted():
            from curate.backends.ray.backend import RayBackend

        return RayBackend()
    raise ConfigError(f"no backend {name!r}{did_you_mean(name, BACKENDS)}; there are: {', '.join(BACKENDS)}")
