"""Checks within seconds that a cluster answers, accepts the token, and has the same versions of Ray and Python."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from .problems import Refused

TIMEOUT_S = 4.0
"""Of one request; two of them make the check."""


class ConnectionLost(Exception):
    """The cluster did not answer."""


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Follows nobody: the answer is an HTTPError."""


@dataclass(frozen=True)
class Api:
    """The job API of one cluster."""

    address: str
    """http://host:port of the dashboard."""
    token: str | None

    def get(self, path: str) -> Any:
        """Returns the answer to a request. Raises HTTPError for a refusal, ConnectionLost where there is none."""
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        request = Request(f"{self.address}{path}", headers=headers)
        # A proxy would be told the token, and does not reach a tunnel; whoever is redirected to would be told, too.
        opener = build_opener(ProxyHandler({}), _NoRedirect)
        try:
            with opener.open(request, timeout=TIMEOUT_S) as answer:
                return json.load(answer)
        except HTTPError:
            raise
        except (URLError, OSError, HTTPException) as error:
            raise ConnectionLost(str(getattr(error, "reason", error)) or type(error).__name__) from error


@dataclass(frozen=True)
class Versions:
    """What has to agree."""

    ray: str
    python: str
    """Major, minor and patch."""

    @classmethod
    def here(cls) -> Versions:
        """Returns those of this process."""
        from importlib.metadata import version

        return cls(version("ray"), platform.python_version())


def versions_of(api: Api) -> Versions:
    """Returns what the cluster has. Raises Refused, with the next step, if it does not answer or let one in."""
    try:
        ray = api.get("/api/version")["ray_version"]
        python = api.get("/api/v0/cluster_metadata")["data"]["pythonVersion"]
    except HTTPError as error:
        raise Refused(_refusal(api, error.code)) from error
    except ConnectionLost as error:
        raise Refused(
            f"no cluster answers at {api.address} ({error}): `scripts/cluster status` shows whether it is up, "
            "`scripts/cluster up` brings it up, and --address names another one"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(f"what answers at {api.address} is not a Ray dashboard: pass its URL to --address") from error
    return Versions(ray, python)


def _refusal(api: Api, code: int) -> str:
    if code == 401:
        return (
            f"the cluster at {api.address} needs a token, but none was found: ask the administrator for it, and set "
            "RAY_AUTH_TOKEN_PATH to its file"
        )
    if code == 403:
        return (
            f"the cluster at {api.address} rejects this token: it was rotated, or belongs to another cluster; ask the "
            "administrator, and set RAY_AUTH_TOKEN_PATH to its file"
        )
    return f"what answers at {api.address} is not a Ray dashboard (status {code}): pass its URL to --address"


def agree(here: Versions, there: Versions) -> None:
    """Raises Refused where versions differ: Ray's by any digit, Python's by the minor version."""
    if here.ray != there.ray:
        raise Refused(
            f"Ray is {here.ray} here and {there.ray} on the cluster: install this checkout's requirements.lock "
            "(scripts/test does), or bring the cluster to it with scripts/cluster image, render and up"
        )
    if _minor(here.python) != _minor(there.python):
        raise Refused(
            f"Python is {here.python} here and {there.python} on the cluster: make .venv with Python "
            f"{_minor(there.python)}, or set `python` in infra/parameters.yaml and bring the cluster to it"
        )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def normal(address: str) -> str:
    """Returns the URL of a dashboard as it is used. Raises Refused for what is none.

    >>> normal("head:8265/")
    'http://head:8265'
    """
    address = address if "://" in address else f"http://{address}"
    try:
        found = urlsplit(address)
        # Looked at here: a port that is none raises when it is asked for.
        fine = found.scheme in ("http", "https") and found.hostname and found.username is None and found.port != 0
    except ValueError:
        fine = False
    if not fine:
        raise Refused(f"{address!r} is not the address of a dashboard: expected http://HOST:8265")
    return address.rstrip("/")


def details(api: Api, submission: str) -> Mapping[str, Any] | None:
    """Returns what the cluster knows of a job; None if it knows none of that name. Raises ConnectionLost."""
    try:
        found: Mapping[str, Any] = api.get(f"/api/jobs/{submission}")
    except HTTPError as error:
        if error.code == 404:
            return None
        if error.code in (401, 403):
            raise Refused(_refusal(api, error.code)) from error
        raise ConnectionLost(f"status {error.code}") from error
    except ValueError as error:
        raise ConnectionLost("the answer is not JSON") from error
    return found
