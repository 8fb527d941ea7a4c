"""Whether there is a Ray cluster to join: looked up where Ray itself would look, without importing it."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from curate.dataclass import dataclass
from curate.imports import imported

CONNECT_TIMEOUT_S = 10.0
"""How long to wait for a cluster's head to take a connection. Ray itself would wait for minutes."""
LOOK_TIMEOUT_S = 2.0
"""The same for a cluster that nobody asked for: its note may be of another day, and another network."""


@dataclass(frozen=True, slots=True)
class Found:
    """What there is of Ray where this process runs."""

    cluster: str = ""
    """Which cluster Ray would join, in words; empty if there is none."""
    gone: str = ""
    """The address at which a cluster was started on this machine and does not answer now."""


def find(environ: Mapping[str, str] = os.environ) -> Found:
    """Returns what there is. A cluster that is named counts, whether it answers or not: who joins it says so.

    >>> find({"RAY_ADDRESS": "10.0.0.1:6379"}).cluster
    'RAY_ADDRESS is 10.0.0.1:6379'
    """
    # Not an import: a program that has not imported ray has connected to nothing.
    ray = imported("ray")
    if ray is not None and ray.is_initialized():
        return Found("this process is connected to Ray")
    named = environ.get("RAY_ADDRESS", "")
    if "RAY_JOB_CONFIG_JSON_ENV_VAR" in environ and named != "local":
        return Found("this runs under ray job submit")
    if named and named not in ("auto", "local"):
        return Found(f"RAY_ADDRESS is {named}")
    address = "" if named == "local" else _started_here(environ)
    if named == "auto":
        return Found(f"RAY_ADDRESS is auto, and a cluster was started here at {address or 'an unknown address'}")
    if not address:
        return Found()
    if answers(address, LOOK_TIMEOUT_S) is not None:
        return Found(gone=address)
    return Found(f"ray start runs on this machine, at {address}")


def _started_here(environ: Mapping[str, str]) -> str:
    """Returns the address that `ray start` notes on this machine, empty if there is none."""
    folder = environ.get("RAY_TMPDIR") or (environ.get("TMPDIR") if sys.platform.startswith("linux") else "") or "/tmp"
    try:
        return Path(folder, "ray", "ray_current_cluster").read_text().strip()
    except OSError:
        return ""


def answers(address: str, timeout_s: float = CONNECT_TIMEOUT_S) -> Exception | None:
    """Returns None if the head of a cluster takes a connection, else why not."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
    except (OSError, ValueError) as error:
        return error
    return None
