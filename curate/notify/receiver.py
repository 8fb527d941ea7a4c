"""Where a run posts how it goes: a URL, which is a secret, and one attempt to post there."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

import orjson

from curate import log
from curate.dataclass import dataclass, field
from curate.errors import ConfigError, CurateError
from curate.keywords import option

ATTEMPT_S = 4.0
"""How long one attempt may take: connecting, sending, the answer."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOT_IN_A_URL = re.compile("[^!-~]")
_LEAST_SECRET = 20
"""A path of so many characters is hidden also where it stands without its host."""
_AGAIN = (408, 425, 429)
"""Answers of which the sender is not to blame, beside those of 500 and more."""


class PostError(CurateError):
    """A post did not arrive, or was refused. Its text names the host and nothing else of the URL."""

    def __init__(self, text: str, *, again: bool) -> None:
        super().__init__(text, again)
        self.again = again
        """Whether another attempt may help."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class Receiver:
    """Takes posts. Its URL is in no text that is made of it."""

    url: str = field(repr=False)

    @property
    def name(self) -> str:
        """Who it is, as may be said to everybody: its host."""
        return urlsplit(self.url).hostname or ""

    def post(self, message: Mapping[str, Any]) -> None:
        """Posts a message as JSON, once, and follows no redirect. Raises PostError unless the answer is 2xx, and begins
        within `ATTEMPT_S`; what it says besides is not read: the message has arrived."""
        # Late: what only looks at runs posts nothing.
        from http.client import HTTPException
        from urllib.error import HTTPError
        from urllib.request import Request

        from curate.notify.one_request import answered

        headers = {"Content-Type": "application/json", "User-Agent": "curate"}
        request = Request(self.url, orjson.dumps(message), headers, method="POST")
        try:
            answered(request, ATTEMPT_S)
        except HTTPError as error:
            with error:
                again = error.code in _AGAIN or error.code >= 500
                raise PostError(f"{self.name} answered HTTP {error.code}", again=again) from None
        except (OSError, HTTPException, ValueError) as error:
            # Of its text only what the system says: some errors quote the address.
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                raise PostError(f"{self.name} did not answer within {ATTEMPT_S:g} s", again=True) from None
            said = getattr(reason, "strerror", None) or type(reason).__name__
            raise PostError(f"{self.name} cannot be reached: {log.redacted(str(said))}", again=True) from None


def parse_receiver(given: str | None, environ: Mapping[str, str] = os.environ) -> Receiver | None:
    """Returns where to post to: a URL, or the name of an environment variable that has one; None for None.

    From now on no log and no record of this process shows the URL. Raises ConfigError, which does not show it either.

    >>> parse_receiver("SLACK_URL", {"SLACK_URL": "https://hooks.example/T0/B0/x"}).name
    'hooks.example'
    """
    if given is None:
        return None
    if not isinstance(given, str):
        raise ConfigError(f"notify is {type(given).__name__}, expected a URL, or the name of a variable that has one")
    what = option("notify", ...)
    url = given
    if "/" not in given and ":" not in given:
        if _VARIABLE.fullmatch(given) is None:
            raise ConfigError(
                f"{what} takes a URL (https://...), or the name of an environment variable that has one, and this is "
                "neither; it is not shown, because it may be part of a secret"
            )
        url = environ.get(given, "")
        if not url:
            raise ConfigError(
                f"{what} names the environment variable {given!r}, which is not set; export it before you start the job"
            )
        what = f"the environment variable {given!r}, which {what} names,"
    log.hide(url)
    try:
        parts = urlsplit(url)
        problem = _problem(parts, url)
    except ValueError:
        problem = "is not a URL"
    if problem:
        raise ConfigError(
            f"{what} {problem}; expected a URL such as https://hooks.slack.com/services/... (it is not shown, because "
            "it is a secret)"
        )
    path = url.partition("//")[2].removeprefix(parts.netloc)
    if _is_secret(path):
        log.hide(path, path.strip("/"))
    return Receiver(url)


def _is_secret(path: str) -> bool:
    """Returns whether what is behind a host looks like a secret where it stands alone, too. A name, such as that of a
    topic, may be that of a job or a folder, which are in each message."""
    return len(path) >= _LEAST_SECRET or (any(map(str.isupper, path)) and not path.isupper())


def _problem(parts: SplitResult, url: str) -> str:
    if parts.scheme not in ("http", "https"):
        return "is not an http or https URL"
    if "@" in parts.netloc:
        return "has a user or a password before its host, which cannot be used"
    # The port raises where it is none.
    if not parts.hostname or parts.port == 0:
        return "has no host, or no valid port"
    if _NOT_IN_A_URL.search(url):
        return "has a character that no URL has: a space, a line end, or one that is not ASCII"
    return ""
