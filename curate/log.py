"""Structured logs on standard error: readable on a terminal, one JSON object a line otherwise.

Standard output belongs to results (`--json`), so nothing is ever logged there.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import AbstractContextManager
from typing import Any

import structlog

Listener = Callable[[Mapping[str, Any]], None]

_listener: Listener | None = None
"""Who is told of every event of this process beside standard error."""


def configure(*, verbose: bool = False) -> None:
    """Sends structlog events to standard error. Called once, by a program's entry point, never on import.

    Whatever is printed from now on is printed: characters that standard output's encoding lacks are escaped.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    level = logging.DEBUG if verbose else logging.INFO
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _tell,
    ]
    if sys.stderr.isatty():
        renderer: list[Any] = [structlog.dev.ConsoleRenderer()]
    else:
        renderer = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # Looked up at each call: tests and progress displays replace sys.stderr. Beneath one that listens in, since
        # whoever listens has been told already.
        logger_factory=lambda *_: structlog.PrintLogger(getattr(sys.stderr, "beneath", sys.stderr)),
        cache_logger_on_first_use=False,
    )


def ensure_configured() -> None:
    """Sends events to standard error unless the program has said where they go."""
    if not structlog.is_configured():
        configure()


def bound(**context: Any) -> AbstractContextManager[None]:
    """Adds `context` to all events of this thread within a block."""
    return structlog.contextvars.bound_contextvars(**context)


def get_logger(**context: Any) -> Any:
    """Returns a logger whose events carry `context` (job, run, shard, attempt)."""
    return structlog.get_logger(**context)


def listen(listener: Listener | None) -> Listener | None:
    """From now on tells `listener` too of every event of this process, whichever thread logs it.

    Returns who was told before, to be told again afterwards. A traceback is text then, in `exception`. A program that
    configures structlog itself keeps its events to itself.
    """
    global _listener
    before, _listener = _listener, listener
    return before


def _tell(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if _listener is not None:
        _listener(structlog.processors.format_exc_info(logger, method, dict(event)))
    return event
