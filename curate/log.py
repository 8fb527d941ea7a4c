"""Structured logs on standard error: readable on a terminal, one JSON object a line otherwise.

Standard output belongs to results (`--json`), so nothing is ever logged there.
"""

from __future__ import annotations

import logging
import sys
from contextlib import AbstractContextManager
from typing import Any

import structlog


def configure(*, verbose: bool = False) -> None:
    """Sends structlog events to standard error. Called once, by a program's entry point, never on import."""
    level = logging.DEBUG if verbose else logging.INFO
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if sys.stderr.isatty():
        renderer: list[Any] = [structlog.dev.ConsoleRenderer()]
    else:
        renderer = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # Looked up at each call: tests and progress displays replace sys.stderr.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
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
