"""Secrets: read from the environment where the job is started, and hidden in everything that is stored or logged."""

from __future__ import annotations

import json
import os
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote, quote_plus

import orjson

from curate.around import contextmanager
from curate.errors import BadRow, ConfigError, CurateError, RetryLater

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
HIDDEN = "[secret]"
_ENCODED: tuple[Callable[[str], str], ...] = (
    lambda text: quote(text, errors="surrogateescape"),
    lambda text: quote(text, safe="", errors="surrogateescape"),
    lambda text: quote_plus(text, errors="surrogateescape"),
    lambda text: repr(text)[1:-1],
    # As a part of a text that has both quotes: there `'` has a backslash.
    lambda text: repr(f"{text}\"'")[1:-4],
    lambda text: json.dumps(text)[1:-1],
    lambda text: orjson.dumps(text.encode(errors="replace").decode()).decode()[1:-1],
)
"""How a text is spelt within what is hidden after it was encoded: rows as JSON, URLs, messages of errors."""


def secret_value(variable: str | None) -> str | None:
    """Returns what the environment variable holds, None if it is not set or empty."""
    return None if variable is None else os.environ.get(variable) or None


def missing_secret(option: str, variable: str) -> ConfigError:
    """Returns the error for a secret whose environment variable holds nothing."""
    if _VARIABLE.fullmatch(variable) is None:
        # Whoever gives the secret itself must not find it in a log for that.
        return ConfigError(
            f"{option} takes the name of an environment variable, and this value is not one (it is not shown, because "
            f"it may be the secret); export the secret and pass the variable's name: {option} API_KEY"
        )
    return ConfigError(
        f"{option} names the environment variable {variable!r}, which is not set; export it before you start the job"
    )


class Secrets:
    """The values of a job's secrets, and how to take them out of text. Picklable; travels with the job."""

    def __init__(self, values: Sequence[str]) -> None:
        # Longest first, so that a secret that contains another one goes as a whole.
        once = {*values, *(spelt(value) for value in values for spelt in _ENCODED)}
        twice = {spelt(spelling) for spelling in once for spelt in _ENCODED}
        self._spellings = sorted(once | twice, key=len, reverse=True)

    def __repr__(self) -> str:
        return f"Secrets({len(self._spellings)} spellings)"

    def hide(self, text: str) -> str:
        """Returns the text with every secret replaced: as it is, percent-encoded, and as `repr` and JSON show it, or
        a text of these in one of these."""
        for spelling in self._spellings:
            text = text.replace(spelling, HIDDEN)
        return text

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Takes secrets out of the exceptions that leave the block: their tracebacks go into the ledger, and the texts
        of those that end a process, such as `sys.exit()`."""
        try:
            yield
        except BaseException as error:
            if not self._spellings or not self._shows(error):
                raise
            for link in _chain(error):
                # Past what its class does with attributes: it may take none.
                args = BaseException.__getattribute__(link, "args")
                BaseException.__setattr__(link, "args", tuple(map(self._without, args)))
                if isinstance(link, RetryLater | BadRow):
                    # How long to wait, and which row it is, must arrive.
                    link.reason = self.hide(str(link.reason))
                with suppress(AttributeError):
                    notes = BaseException.__getattribute__(link, "__notes__")
                    BaseException.__setattr__(link, "__notes__", [self.hide(str(note)) for note in notes])
            if not self._shows(error):
                raise
            # Its text does not come from its arguments. What curate does next depends on its own types alone.
            if not isinstance(error, Exception):
                if self.hide(str(error)) == str(error):
                    raise
                raise SystemExit(f"{type(error).__name__}: {self.hide(str(error))}") from None
            safe = _same_for_curate(error, f"{type(error).__name__}: {self.hide(str(error))}")
            safe.add_note(self.hide("".join(traceback.format_exception(error))))
            raise safe from None

    def _without(self, arg: Any) -> Any:
        """Returns an exception's argument without secrets; one that is not text becomes it where it shows one."""
        if isinstance(arg, str):
            return self.hide(arg)
        shown = repr(arg)
        return arg if self.hide(shown) == shown else self.hide(shown)

    def _shows(self, error: BaseException) -> bool:
        text = "".join(traceback.format_exception(error))
        return self.hide(text) != text


def _same_for_curate(error: Exception, text: str) -> Exception:
    if isinstance(error, RetryLater):
        return RetryLater(error.after_s, text)
    if isinstance(error, BadRow):
        return BadRow(text, error.row)
    return type(error)(text) if isinstance(error, CurateError) else RuntimeError(text)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    queue: list[BaseException | None] = [error]
    while queue:
        link = queue.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        queue += [link.__cause__, link.__context__]
        if isinstance(link, BaseExceptionGroup):
            queue += link.exceptions
