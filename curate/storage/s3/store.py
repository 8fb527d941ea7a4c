"""The store over S3: list, read ranges, publish create-only by `If-None-Match: *`.

An ETag is the generation. It is a checksum of the content, so the same bytes published again have the generation that
they had before. What curate writes carries its SHA-256 as metadata: a create that is refused (412) compares it, and
finds its own object where an answer was lost. Objects of others are read and compared.

An upload beyond 8 MiB goes in parts, whose condition is looked at when it is completed. One that a kill leaves behind
is invisible, and is paid for until the bucket's rule for incomplete uploads removes it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, BinaryIO, TypeVar
from xml.sax.saxutils import escape

from curate.errors import ObjectNotFound, PermissionDenied, StorageError, TransientStorageError
from curate.log import get_logger
from curate.storage.protocol import LIST_PAGE, Calls, Object, Published, clip, mismatch
from curate.storage.ranges import range_stream
from curate.storage.retry import Retry
from curate.storage.s3.answers import Response, content_range, cut, page
from curate.storage.s3.client import Client, Request
from curate.storage.throttle import Limiter
from curate.storage.uris import bucket_and_key
from curate.storage.writer import SIMPLE_BYTES, Content, SpooledWriter, upload_compared

T = TypeVar("T")

PART_BYTES = 32 << 20
"""One request of an upload in parts; S3 asks for 5 MiB and more, and R2 for parts of one size."""
_PARTS = 10_000
"""The most that S3 takes."""
_UPLOADS = 3
"""Uploads in parts started for one publish before giving up."""
_TAKEN_CODES = ("PreconditionFailed", "ConditionalRequestConflict", "NoSuchUpload")
_SHA256 = "x-amz-meta-curate-sha256"

_limiters: dict[tuple[int, str], Limiter] = {}
"""By process and endpoint."""
_deletes_by_generation: dict[str, bool] = {}
"""Whether the service at an endpoint looks at `If-Match` before it deletes."""


@dataclass(frozen=True, slots=True)
class _Content(Content):
    """What is to be uploaded, with its checksum."""

    sha256: str


class S3Store:
    """Objects of S3, with the credentials and the endpoint that AWS tools would use.

    Asks nothing and connects nowhere before the first call. Without credentials, what is public can be read.
    """

    def __init__(self, retry: Retry | None = None, limiter: Limiter | None = None) -> None:
        """`limiter` says how many requests are made at once; by default one for all stores of the process."""
        self._retry = retry or Retry()
        self._limiter = limiter
        self._calls = Calls()
        self._made: Client | None = None
        self._transient_failures = 0

    def __reduce__(self) -> tuple[type[S3Store], tuple[Retry]]:
        return S3Store, (self._retry,)

    @property
    def calls(self) -> Calls:
        return self._calls

    @property
    def transient_failures(self) -> int:
        """Requests that were throttled, timed out or reset so far."""
        return self._transient_failures

    @property
    def limiter(self) -> Limiter:
        """What this process lets through to the service: one for all stores that were not given their own."""
        if self._limiter is not None:
            return self._limiter
        # The child of a fork has none of the threads that its parent's limiter waits for.
        return _limiters.setdefault((os.getpid(), self._client.endpoint), Limiter())

    def list(self, prefix: str) -> Iterator[Object]:
        bucket, start = bucket_and_key(prefix, "s3")
        after: str | None = ""
        while after is not None:
            params = {"list-type": "2", "prefix": start, "max-keys": str(LIST_PAGE), "encoding-type": "url"}
            if after:
                params["continuation-token"] = after
            request = Request(f"list {prefix}", "list", "GET", bucket, params=params)
            found, after = self._ask(request, lambda response: page(response, bucket))
            yield from found

    def stat(self, uri: str) -> Object:
        return self._look(uri)[0]

    def read(self, uri: str, start: int = 0, stop: int | None = None) -> bytes:
        clip(start, stop, 0)
        if start >= 0 and stop is not None and stop <= start:
            self.stat(uri)
            return b""
        ranges = f"bytes={start}" if start < 0 else f"bytes={start}-" if stop is None else f"bytes={start}-{stop - 1}"
        headers = {} if start == 0 and stop is None else {"Range": ranges}
        request = self._request(f"read {uri}", "get", "GET", uri, headers=headers, answers=frozenset({416}))

        def parse(response: Response) -> bytes:
            if response.status == 416:
                return b""
            if response.status == 206:
                first, size = content_range(response)
                begin, end = clip(start, stop, size)
                if first > begin or first + len(response.body) < end:
                    raise cut(f"bytes {first} to {first + len(response.body)} arrived, expected {begin} to {end}")
                return response.body[begin - first : end - first]
            _compare_checksum(response)
            begin, end = clip(start, stop, len(response.body))
            return response.body[begin:end]

        return self._ask(request, parse)

    def open(self, object: Object) -> BinaryIO:
        return range_stream(lambda start, stop: self._read_generation(object, start, stop), object.size)

    def writer(self, uri: str, *, durable: bool = True) -> S3Writer:
        del durable  # all of it is
        bucket_and_key(uri, "s3")
        return S3Writer(self, uri)

    def publish(self, uri: str, data: bytes) -> Published:
        return self._publish(uri, _Content(None, data, len(data), hashlib.sha256(data).hexdigest()), "")

    def replace(self, uri: str, data: bytes) -> Object:
        written = self._upload(uri, _Content(None, data, len(data), hashlib.sha256(data).hexdigest()), {})
        assert written is not None
        return written

    def delete(self, uri: str, generation: str | None = None) -> bool:
        if not self._deletes_conditionally(uri):
            found = self._stat_or_none(uri)
            if found is None:
                return False
            if generation not in (None, found.generation):
                raise mismatch(uri, str(generation), found.generation)
            self._ask(self._request(f"delete {uri}", "delete", "DELETE", uri), _status)
            return True
        request = self._delete(uri, "*" if generation is None else f'"{generation}"')
        tries = 0

        def attempt() -> int:
            nonlocal tries
            tries += 1
            return self._once(request).status

        status = self._retry.call(request.what, attempt)
        if tries > 1 and status in (404, 412):
            # The answer of an earlier try was lost, and what was to go is gone, by it or by others.
            return True
        if status != 412:
            return status != 404
        found = self._stat_or_none(uri)
        if found is None:
            return False
        if generation is None:
            # A service that takes the star for an ETag.
            return self.delete(uri, found.generation)
        raise mismatch(uri, generation, found.generation)

    def may_delete(self, uri: str) -> bool:
        try:
            self._delete_nothing(uri)
        except PermissionDenied:
            return False
        return True

    # Requests

    @property
    def _client(self) -> Client:
        client = self._made
        if client is None or client.pid != os.getpid():
            # After a fork the parent's connections are its own. Two threads may both make one: no harm.
            client = self._made = Client(self._calls, self._retry)
        return client

    def _deletes_conditionally(self, uri: str) -> bool:
        """Returns whether the service looks at the ETag before it deletes; AWS does, others are asked once."""
        endpoint = self._client.endpoint
        if endpoint and endpoint not in _deletes_by_generation:
            self._delete_nothing(uri)
        return not endpoint or _deletes_by_generation[endpoint]

    def _delete_nothing(self, uri: str) -> None:
        """Deletes what does not exist, beside an object: which tells of rights, and of what the service looks at."""
        status, endpoint = self._ask(self._delete(_unused(uri), '"0"'), _status), self._client.endpoint
        known = _deletes_by_generation.get(endpoint)
        _deletes_by_generation[endpoint] = status in (404, 412)
        if known is None and not _deletes_by_generation[endpoint]:
            get_logger().warning(
                "this store cannot delete an object only if it is unchanged (If-Match): curate looks at it first; do "
                "not start two runs on one output there",
                endpoint=endpoint,
            )

    def _delete(self, uri: str, etag: str) -> Request:
        answers = frozenset({404, 412})
        return self._request(f"delete {uri}", "delete", "DELETE", uri, headers={"If-Match": etag}, answers=answers)

    def _stat_or_none(self, uri: str) -> Object | None:
        try:
            return self.stat(uri)
        except ObjectNotFound:
            return None

    def _look(self, uri: str) -> tuple[Object, str]:
        """Returns the object as it is now, and its SHA-256; empty if others wrote it."""

        def parse(response: Response) -> tuple[Object, str]:
            size = response.headers.get("content-length", "")
            if not size.isdigit():
                raise cut("it has no size")
            return Object(uri, int(size), response.etag), response.headers.get(_SHA256, "")

        return self._ask(self._request(f"stat {uri}", "get", "HEAD", uri), parse)

    def _read_generation(self, object: Object, start: int, stop: int) -> bytes:
        """Returns exactly these bytes of exactly this generation."""
        uri = object.uri
        headers = {"If-Match": f'"{object.generation}"', "Range": f"bytes={start}-{stop - 1}"}
        request = self._request(f"read {uri}", "get", "GET", uri, headers=headers, answers=frozenset({404, 412, 416}))

        def parse(response: Response) -> bytes | None:
            if response.status >= 400:
                return None
            if response.etag != object.generation:
                # Not all services look at the condition of a read.
                return None
            if response.status == 206:
                if content_range(response)[0] != start:
                    raise cut(f"the range {response.headers['content-range']} arrived, expected {start} to {stop}")
                body = response.body
            else:
                body = response.body[start:stop]
            if len(body) != stop - start:
                raise cut(f"{len(body)} bytes arrived, expected {stop - start}")
            if len(body) == object.size:
                # The checksum is that of the whole object; of a part there is none.
                _compare_checksum(response)
            return body

        found = self._ask(request, parse)
        if found is None:
            raise mismatch(uri, object.generation, self.stat(uri).generation)
        return found

    def _request(
        self,
        what: str,
        kind: str | None,
        method: str,
        uri: str,
        params: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        data: bytes = b"",
        answers: frozenset[int] = frozenset(),
    ) -> Request:
        bucket, key = bucket_and_key(uri, "s3")
        return Request(what, kind, method, bucket, key, params or {}, headers or {}, data, answers)  # type: ignore[arg-type]

    def _ask(self, request: Request, parse: Callable[[Response], T]) -> T:
        """Returns what `parse` makes of the answer. Makes the request until it is answered in whole: `parse` raises
        TransientStorageError for an answer that is cut, whatever its status."""
        return self._retry.call(request.what, lambda: parse(self._once(request)))

    def _once(self, request: Request) -> Response:
        """Makes the request, once."""
        client = self._client
        try:
            with self.limiter.request():
                return client.answer(request)
        except TransientStorageError:
            self._transient_failures += 1
            raise

    # Uploads

    def _publish(self, uri: str, content: _Content, over: str) -> Published:
        """Uploads create-only, or in place of the generation `over`; compares checksums if the name is taken."""

        def upload(over: str) -> Object | None:
            return self._upload(uri, content, {"If-Match": f'"{over}"'} if over else {"If-None-Match": "*"})

        def look() -> tuple[Object, Callable[[], bool]]:
            theirs, sha256 = self._look(uri)
            same_size = theirs.size == content.size
            return theirs, lambda: same_size and (sha256 or self._sha256(theirs)) == content.sha256

        return upload_compared(uri, over, upload, look)

    def _sha256(self, object: Object) -> str:
        """Returns the checksum of an object that does not carry it."""
        digest = hashlib.sha256()
        with self.open(object) as stream:
            while data := stream.read(SIMPLE_BYTES):
                digest.update(data)
        return digest.hexdigest()

    def _upload(self, uri: str, content: _Content, condition: dict[str, str]) -> Object | None:
        """Returns the object as uploaded, or None if the condition does not hold."""
        if content.size > SIMPLE_BYTES:
            return self._upload_parts(uri, content, condition)
        data, headers = content.bytes_at(0, content.size), {_SHA256: content.sha256, **condition}
        answers = frozenset({404, 412} if "If-Match" in condition else {412})
        request = self._request(f"upload {uri}", "put", "PUT", uri, None, headers, data, answers)

        def parse(response: Response) -> Object | None:
            return None if response.status in answers else Object(uri, content.size, response.etag)

        return self._ask(request, parse)

    def _upload_parts(self, uri: str, content: _Content, condition: dict[str, str]) -> Object | None:
        """The same in parts. The condition is looked at when the upload is completed."""
        begin = self._request(
            f"start the upload of {uri}", "put", "POST", uri, {"uploads": ""}, {_SHA256: content.sha256}
        )
        for _ in range(_UPLOADS):
            upload_id = self._ask(begin, _upload_id)
            try:
                etags = self._send_parts(uri, content, upload_id)
                made = self._complete(uri, content, upload_id, etags, condition) if etags is not None else None
            except Exception:
                self._abort(uri, upload_id)
                raise
            if made is not None:
                return made
            self._abort(uri, upload_id)
            if condition and self._stat_or_none(uri) is not None:
                # It is taken: by another, or by this upload, whose answer was lost. Its content tells.
                return None
        raise StorageError(
            f"{uri}: S3 forgot or refused {_UPLOADS} uploads of {content.size:,} bytes before they were complete; run "
            "the shard again, and check the status of the service if it happens again"
        )

    def _send_parts(self, uri: str, content: _Content, upload_id: str) -> Sequence[str] | None:
        """Returns the ETags of the parts, or None if the upload is gone."""
        size = max(PART_BYTES, -(-content.size // _PARTS))
        etags: tuple[str, ...] = ()
        for number, start in enumerate(range(0, content.size, size), 1):
            stop = min(content.size, start + size)
            params = {"partNumber": str(number), "uploadId": upload_id}
            what, data = f"upload bytes {start} to {stop} of {uri}", content.bytes_at(start, stop)
            request = self._request(what, None, "PUT", uri, params, None, data, frozenset({404}))
            etag = self._ask(request, lambda response: "" if response.status == 404 else response.etag)
            if not etag:
                return None
            etags += (etag,)
        return etags

    def _complete(
        self, uri: str, content: _Content, upload_id: str, etags: Sequence[str], condition: dict[str, str]
    ) -> Object | None:
        """Returns the object as uploaded, or None if the condition does not hold, or the upload is gone."""
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>&quot;{escape(etag)}&quot;</ETag></Part>"
            for number, etag in enumerate(etags, 1)
        )
        data = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        answers = frozenset({404, 409, 412})
        request = self._request(
            f"complete the upload of {uri}", None, "POST", uri, {"uploadId": upload_id}, dict(condition), data, answers
        )

        def parse(response: Response) -> Object | None:
            # An error can follow a status of 200, because the work takes long.
            code = response.failure()[0] if b"<Error" in response.body[:200] else ""
            if response.status in answers or code in _TAKEN_CODES:
                return None
            if code:
                raise TransientStorageError(f"S3 answered {response.status}, and then {code}")
            etag = response.xml("CompleteMultipartUploadResult").findtext("ETag", "").strip('"')
            if not etag:
                raise cut("a completed upload has no ETag")
            return Object(uri, content.size, etag)

        return self._ask(request, parse)

    def _abort(self, uri: str, upload_id: str) -> None:
        """Gives an upload up, so that its parts cost nothing. Best effort: a bucket's rule removes the rest."""
        params, answers = {"uploadId": upload_id}, frozenset({404})
        try:
            self._once(self._request(f"give up the upload of {uri}", None, "DELETE", uri, params, None, b"", answers))
        except StorageError as error:
            get_logger().warning("an incomplete upload is left in the bucket", uri=uri, error=str(error))


class S3Writer(SpooledWriter):
    """Collects an object's bytes until they are published."""

    def __init__(self, store: S3Store, uri: str) -> None:
        super().__init__(uri)
        self._store = store
        self._sha256 = hashlib.sha256()

    def _digest(self, data: bytes) -> None:
        self._sha256.update(data)

    def _upload(self, file: IO[bytes]) -> Published:
        content = _Content(file, None, self._size, self._sha256.hexdigest())
        return self._store._publish(self._uri, content, self._over)


def _compare_checksum(response: Response) -> None:
    """Raises TransientStorageError if a whole object is not the one that was written."""
    expected = response.headers.get(_SHA256)
    if expected and (found := hashlib.sha256(response.body).hexdigest()) != expected:
        raise cut(f"the bytes that arrived have the SHA-256 {found}, expected {expected}")


def _upload_id(response: Response) -> str:
    found = response.xml("InitiateMultipartUploadResult").findtext("UploadId", "")
    if not found:
        raise cut("the answer to the start of an upload has no id")
    return found


def _status(response: Response) -> int:
    return response.status


def _unused(uri: str) -> str:
    """Returns a name beside an object that no object has."""
    return f"{uri.rpartition('/')[0]}/.curate-{secrets.token_hex(8)}"
