"""Structured logs on standard error: readable on a terminal, one JSON object a line otherwise.

Standard output belongs to results (`--json`), so nothing is ever logged there.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any

from curate.around import contextmanager
from curate.imports import imported, when_imported
from curate.units import escape_controls

# Of structlog, nothing is imported before the first event: it takes 0.1 s, and most runs of a finished job have none.

Listener = Callable[[Mapping[str, Any]], None]


_QUIET = "_quiet"
_listeners: list[Listener] = []
"""The last of them is told of every event of this process beside standard error."""


def configure() -> None:
    """Sends structlog events to standard error. Called once, by a program's entry point, never on import.

    Whatever is printed from now on is printed: characters that standard output's encoding lacks are escaped.
    """
    open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    when_imported("structlog", _configure)


def open_closed_streams() -> None:
    """Opens those of the standard streams that a process was started without (`2>&-`, as services are): to nowhere.

    Python has None for them, and whatever is opened next would take their numbers, and what is printed to them.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free is this one: those below it are open by now.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - open until the end


def _configure() -> None:
    import structlog
    import structlog.dev

    class Printer(structlog.PrintLogger):
        """Prints events. A pipe or a terminal that was closed ends nobody's run."""

        def msg(self, message: str) -> None:
            """Prints one."""
            with contextlib.suppress(OSError):
                super().msg(message)

        log = debug = info = warn = warning = msg
        fatal = failure = err = error = critical = exception = msg

    on_terminal = sys.stderr.isatty()
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        _with_bound,
        structlog.processors.add_log_level,
        # Whoever reads along needs no microseconds, and has few columns.
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S" if on_terminal else "iso", utc=True),
        structlog.processors.format_exc_info,
        _redact,
        _tell,
    ]
    if on_terminal:
        console = structlog.dev.ConsoleRenderer(
            colors=_coloured(), exception_formatter=structlog.dev.plain_traceback, pad_event_to=0, pad_level=False
        )
        # The traceback is text by then, as all else.
        renderer: list[Any] = [_harmless, console]
    else:
        renderer = [structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        # Looked up at each call: tests and progress displays replace sys.stderr. Beneath one that listens in, since
        # whoever listens has been told already.
        logger_factory=lambda *_: Printer(getattr(sys.stderr, "beneath", sys.stderr)),
        cache_logger_on_first_use=False,
    )


def _coloured() -> bool:
    """Returns whether this terminal is to have colours, as rich decides for all else that is shown on it."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def ensure_configured() -> None:
    """Sends events to standard error unless the program has said where they go."""
    structlog = imported("structlog")
    if structlog is None or not structlog.is_configured():
        configure()


class bound:  # noqa: N801 - used like a function
    """Adds its arguments to all events of this thread within a block."""

    # Not made of a generator: there is one for each shard, however small.
    __slots__ = ("_before", "_context", "_theirs")

    def __init__(self, **context: Any) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._theirs: Callable[[], None] | None = None
        if (structlog := imported("structlog")) is not None:
            # Where a program says itself what becomes of events, too.
            tokens = structlog.contextvars.bind_contextvars(**self._context)
            self._theirs = partial(structlog.contextvars.reset_contextvars, **tokens)
        self._before = _bound.set({**_bound.get(), **self._context})

    def __exit__(self, *_: object) -> None:
        _bound.reset(self._before)
        if self._theirs is not None:
            self._theirs()


_bound: ContextVar[Mapping[str, Any]] = ContextVar("bound", default=MappingProxyType({}))


def bound_now() -> Mapping[str, Any]:
    """Returns what `bound` adds to the events of this thread."""
    return _bound.get()


def _with_bound(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    del logger, method
    return {**_bound.get(), **event}


def quiet() -> AbstractContextManager[None]:
    """Drops all events of this thread within a block: what is looked at ahead is logged when it is done."""
    return bound(**{_QUIET: True})


def get_logger(**context: Any) -> Any:
    """Returns a logger whose events carry `context` (job, run, shard, attempt)."""
    return _Logger(context)


class _Logger:
    """A logger of structlog, which is imported with its first event."""

    def __init__(self, context: Mapping[str, Any]) -> None:
        self._context = context

    def bind(self, **context: Any) -> _Logger:
        """Returns a logger whose events carry this too."""
        return _Logger({**self._context, **context})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        import structlog

        # Whoever logs first: without, structlog writes to standard output, among what a program prints.
        ensure_configured()
        return getattr(structlog.get_logger(**self._context), name)


def listen(listener: Listener) -> None:
    """From now on tells `listener` too of every event of this process, whichever thread logs it; who was told before
    is told again after `stop_listening`.

    A traceback is text then, in `exception`. A program that configures structlog itself keeps its events to itself.
    """
    _listeners.append(listener)


def stop_listening(listener: Listener) -> None:
    """Tells `listener` no more, whoever else has begun or stopped to listen meanwhile."""
    _listeners.remove(listener)


@contextmanager
def unheard() -> Iterator[None]:
    """Tells no listener of the events of its block: of a store that refuses, whose listener would write that there."""
    token = _unheard.set(True)
    try:
        yield
    finally:
        _unheard.reset(token)


_unheard: ContextVar[bool] = ContextVar("unheard", default=False)


def _tell(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    import structlog

    if _QUIET in event:
        raise structlog.DropEvent
    for listener in () if _unheard.get() else _listeners[-1:]:
        listener(structlog.processors.format_exc_info(logger, method, dict(event)))
    return event


# What is in events


HIDDEN = "[secret]"
_VARIABLE = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|(API|ACCESS|PRIVATE|SIGNING)_?KEY", re.IGNORECASE)
_LEAST_CHARS = 8
"""Characters of the value of such a variable: shorter ones, such as "true", are words of every text."""
_DUMP = re.compile(r"environ\(\{.*?(?:\}\)|\Z)", re.DOTALL)
_SIGNED = re.compile(
    r"([?&;](?:X-(?:Goog|Amz)-(?:Signature|Credential|Security-Token)|(?:Goog|AWS)\w*AccessKeyId|GoogleAccessId|Signature"
    r"|sig|access_token|token|api_?key)=)[^\s&;'\"<>]+",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(\b(?:Bearer|Basic)\s+)[\w.~+/=-]{8,}|\bya29\.[\w-]+", re.IGNORECASE)
_USERINFO = re.compile(r"((?<=[a-z0-9+.-])://[^\s/:@]*:)[^\s/@]+(?=@)", re.IGNORECASE)
"""From the end of the scheme on: to look for its beginning at each word takes hours in a long text without spaces."""
_PRIVATE = "[A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
_KEY = re.compile(f"-----BEGIN {_PRIVATE}.*?(?:-----END {_PRIVATE}|$)", re.DOTALL)


_hidden: set[str] = set()
"""Texts that this process was told to show nowhere."""


def hide(*secrets: str) -> None:
    """From now on takes these texts out of whatever this process logs or records; those that are too short to be
    secrets are words of other texts."""
    _hidden.update(one for one in secrets if len(one) >= _LEAST_CHARS)


def redacted(text: str) -> str:
    """Returns `text` without what opens doors: signatures of URLs, tokens, private keys, passwords in URLs, the values
    of environment variables that are called like secrets, whole environments, and what `hide` was told.

    >>> redacted("GET https://b.example/o?X-Goog-Signature=0a1b&x=1 failed")
    'GET https://b.example/o?X-Goog-Signature=[secret]&x=1 failed'
    """
    # Longest first, so that a secret that contains another one goes as a whole.
    for secret in sorted(_hidden, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    # By names first: to ask for all values would take most of the time.
    for name in os.environ:
        if _is_of_secret(name) and len(value := os.environ.get(name, "")) >= _LEAST_CHARS:
            text = text.replace(value, HIDDEN)
    return _without_patterns(text)


@lru_cache
def _is_of_secret(name: str) -> bool:
    return _VARIABLE.search(name) is not None


def holds_secret(text: str) -> bool:
    """Returns whether `text` holds, by what it looks like, what opens doors: a signed URL, a token, a private key."""
    return _without_patterns(text) != text


def _without_patterns(text: str) -> str:
    text = _DUMP.sub("environ({...})", text)
    text = _SIGNED.sub(rf"\1{HIDDEN}", text)
    text = _BEARER.sub(lambda found: f"{found[1] or ''}{HIDDEN}", text)
    text = _USERINFO.sub(rf"\1{HIDDEN}", text)
    return _KEY.sub(HIDDEN, text)


def _redact(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Takes out of an event what nobody is to read in a log."""
    return {name: _without(value) for name, value in event.items()}


def _without(value: Any) -> Any:
    if isinstance(value, str):
        return redacted(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_without(one) for one in value]
    if isinstance(value, Mapping):
        return {name: _without(one) for name, one in value.items()}
    shown = repr(value)
    return value if redacted(shown) == shown else redacted(shown)


def _harmless(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Takes out of an event what would act on a terminal: names of objects and messages of user code are in events."""
    # Other values than text are shown by their `repr`, which escapes as much.
    return {name: escape_controls(value) if isinstance(value, str) else value for name, value in event.items()}
