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
        """Posts a message as JSON, once, and follows no redirect. Raises PostError unless the answer is 2xx."""
        # Late: what only looks at runs posts nothing.
        from http.client import HTTPException
        from urllib.error import HTTPError
        from urllib.request import HTTPRedirectHandler, Request, build_opener

        class NoRedirect(HTTPRedirectHandler):
            def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
                return None

        headers = {"Content-Type": "application/json", "User-Agent": "curate"}
        request = Request(self.url, orjson.dumps(message), headers, method="POST")
        try:
            with build_opener(NoRedirect).open(request, timeout=ATTEMPT_S) as answer:
                answer.read(1024)
        except HTTPError as error:
            with error:
                again = error.code in _AGAIN or error.code >= 500
                raise PostError(f"{self.name} answered HTTP {error.code}", again=again) from None
        except (OSError, HTTPException, ValueError) as error:
            # Of its text only what the system says: some errors quote the address.
            reason = getattr(error, "reason", error)
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
    secret = url.partition(parts.netloc)[2]
    log.hide(secret, secret.strip("/"))
    return Receiver(url)


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
