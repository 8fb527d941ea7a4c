"""Requests to S3 with our retries, our throttle and our counts around each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from curate.errors import ObjectNotFound, TransientStorageError
from curate.requests.reached import Place
from curate.requests.retry import Retry
from curate.requests.shared import HeldClient, SharedClient
from curate.requests.throttle import Limiter, limiter_of
from curate.storage.protocol import Calls, Object
from curate.storage.uris import bucket_and_key
from curate.stores.s3.answers import Response, cut
from curate.stores.s3.client import Client, Kind, Request

T = TypeVar("T")

SHA256 = "x-amz-meta-curate-sha256"
"""The header with the checksum of what curate wrote."""

_clients = SharedClient(Client)


class Service:
    """The S3 that a store speaks to. Connects nowhere before the first request; safe to share between threads."""

    def __init__(self, retry: Retry, limiter: Limiter | None) -> None:
        """`limiter` says how many requests are made at once; by default one for all stores of the process."""
        self.retry = retry
        self.calls = Calls()
        self._counting = threading.Lock()
        self.transient_failures = 0
        self._limiter = limiter
        self._held = HeldClient(_clients)

    @property
    def endpoint(self) -> str:
        """The URL of a service that is not AWS itself, else empty."""
        return self._client.endpoint

    @property
    def place(self) -> Place:
        """The service, as a place that has answered or not."""
        return self._client.place

    @property
    def limiter(self) -> Limiter:
        """What this process lets through: one for all stores that were not given their own."""
        return self._limiter or limiter_of(f"s3 {self.endpoint}")

    @property
    def _client(self) -> Client:
        return self._held.client

    def once(self, request: Request) -> Response:
        """Makes the request, once; once more with credentials that are new."""

        def make(client: Client) -> Response:
            with self.limiter.request():
                return client.answer(request, self._count, self.retry)

        try:
            return self._held.ask(make)
        except TransientStorageError:
            self.transient_failures += 1
            raise

    def _count(self, kind: Kind) -> None:
        with self._counting:
            setattr(self.calls, kind, getattr(self.calls, kind) + 1)

    def ask(self, request: Request, parse: Callable[[Response], T]) -> T:
        """Returns what `parse` makes of the answer. Makes the request until it is answered in whole: `parse` raises
        TransientStorageError for an answer that is cut, whatever its status."""
        return self.retry.call(request.what, lambda: parse(self.once(request)), self.place)

    def look(self, uri: str) -> tuple[Object, str]:
        """Returns an object as it is now, and its SHA-256; empty if others wrote it. Raises ObjectNotFound."""

        def parse(response: Response) -> tuple[Object, str]:
            size = response.headers.get("content-length", "")
            if not size.isdigit():
                raise cut("it has no size")
            return Object(uri, int(size), response.etag), response.headers.get(SHA256, "")

        return self.ask(request_for(uri, f"stat {uri}", "get", "HEAD"), parse)

    def stat_or_none(self, uri: str) -> Object | None:
        """Returns an object as it is now, if it exists."""
        try:
            return self.look(uri)[0]
        except ObjectNotFound:
            return None


def request_for(
    uri: str,
    what: str,
    kind: Kind | None,
    method: str,
    params: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    data: bytes = b"",
    answers: tuple[int, ...] = (),
) -> Request:
    """Returns a request for an object; see `Request`."""
    bucket, key = bucket_and_key(uri, "s3")
    return Request(what, kind, method, bucket, key, params or {}, headers or {}, data, frozenset(answers))
