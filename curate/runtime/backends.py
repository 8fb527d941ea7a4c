"""A backend by its name."""

from __future__ import annotations

from curate.errors import ConfigError, did_you_mean
from curate.runtime.protocol import Backend

BACKENDS = ("ray", "inline")


def make_backend(name: str) -> Backend:
    """Returns a backend by name; importing Ray is left until it is asked for. Raises ConfigError."""
    if name == "inline":
        from curate.runtime.inline import InlineBackend

        return InlineBackend()
    if name == "ray":
        from curate.runtime.interrupts import uninterrupted

        # Half imported, it could not be imported again.
        with uninterrupted():
            from curate.runtime.ray.backend import RayBackend

        return RayBackend()
    raise ConfigError(f"no backend {name!r}{did_you_mean(name, BACKENDS)}; there are: {', '.join(BACKENDS)}")
