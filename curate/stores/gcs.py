"""Google Cloud Storage over its JSON API. The one file that knows gcsfs.

gcsfs gives credentials, a session and an event loop. Its calls are not used: they retry by themselves, which hides
throttling from whoever should slow down, and they judge an answer by words in its body, which loses the status of
some. So `_Client._request` replaces theirs: one HTTP request, counted, its failure named by its status. Retrying is
done here, around one request at a time (a page, a range, a chunk), and within it each attempt takes a place among those
of its process: a store that throttles gets fewer requests at once (see `throttle`).

That a status is 200 does not say that the answer came in whole: proxies cut answers, or make up their own. So each is
read where it can be asked for again, and one that lacks what it must have is transient. What cannot be told from its
answer is told by comparison: a create that is refused (409, 412) may have found its own object, a delete its own work.

Objects are read as they are stored: one with `Content-Encoding: gzip` comes compressed, at the size it was listed with.

Long because requests, their retries and what is made of each answer are one contract with one service, kept in the
one file that knows gcsfs.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import secrets
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from operator import attrgetter, itemgetter
from typing import IO, Any, BinaryIO, Literal, TypeVar, cast

import aiohttp
import google_crc32c
import yarl
from fsspec.asyn import sync
from gcsfs import GCSFileSystem
from gcsfs.retry import HttpError, NonRetryableError
from google.auth.exceptions import GoogleAuthError, TransportError

from curate.dataclass import dataclass, field
from curate.errors import ObjectNotFound, PermissionDenied, StorageError, TransientStorageError
from curate.requests.listing import PagedListing
from curate.requests.ranges import NOT_PLAIN, clip, exact_part, part_of, plain, range_header, range_stream
from curate.requests.reached import REACHED, Place
from curate.requests.retry import Retry
from curate.requests.shared import HeldClient, SharedClient
from curate.requests.throttle import Limiter, limiter_of
from curate.storage.listing import Columns, Listing
from curate.storage.protocol import LIST_PAGE, Calls, Object, Published, mismatch
from curate.storage.uris import bucket_and_key
from curate.storage.writer import SIMPLE_BYTES, Content, SpooledWriter, upload_compared

# Read when gcsfs is imported: with it, every bucket is first asked over gRPC what kind it is.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")


CHUNK_BYTES = 32 << 20
"""One request of a resumable upload; a multiple of 256 KiB, as GCS asks."""
_SESSIONS = 3
"""Resumable uploads started for one publish before giving up: GCS may forget a session."""
_CONNECT_S = 5.0
_PIECE_BYTES = 256 << 10
"""What is sent between two looks at how fast it goes."""
_TRANSIENT = frozenset({408, 409, 429, 500, 502, 503, 504})
"""409: a call of others is under way there; as an answer to a create it may be of our own, see `_taken`."""
_THROTTLED = ("rateLimitExceeded", "userRateLimitExceeded")
_DISABLED = "the project, or what pays for it, is disabled: enable it, then run again"
_NEXT_STEPS = {
    "quotaExceeded": "a quota of the project is used up: raise it, or wait until it is renewed, then run again",
    "accountDisabled": _DISABLED,
    "userProjectAccountProblem": _DISABLED,
    "retentionPolicyNotMet": "the bucket keeps each object for some time: choose an output in a bucket without that",
    "objectUnderActiveHold": "the object is on hold: release it, or choose another output",
}
"""What to do where a 403 is for no want of a right, by its reason
(https://cloud.google.com/storage/docs/json_api/v1/status-codes)."""


T = TypeVar("T")
_Kind = Literal["list", "get", "put", "delete"]


@dataclass(frozen=True, slots=True)
class _Request:
    """One HTTP request, ready to be made any number of times."""

    what: str
    """What it does, for messages: "read gs://b/k"."""
    kind: _Kind | None
    """The counter it adds to; None for what is not billed by itself, as a chunk of an upload."""
    method: str
    path: str
    args: tuple[str, ...] = ()
    """Quoted, and put into the path's braces."""
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    data: bytes | None = None
    answers: frozenset[int] = frozenset()
    """Statuses from 300 on that are answers to the caller, not errors."""


@dataclass(frozen=True, slots=True)
class _Response:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self, **fields: Callable[[Any], object]) -> dict[str, Any]:
        """Returns the body, an object with these fields, each of which its function takes.

        Raises TransientStorageError for any other: a 200 may be cut on its way, or be a proxy's own.
        """
        try:
            value = json.loads(plain(self.headers.get("Content-Encoding"), self.body))
            if not isinstance(value, dict):
                raise ValueError(f"{type(value).__name__} instead of an object")
            for name, takes in fields.items():
                takes(value[name])
        except (ValueError, TypeError, LookupError, *NOT_PLAIN) as error:
            raise _cut(f"no whole answer in {len(self.body)} bytes: {type(error).__name__}: {error}") from error
        return value


@dataclass(frozen=True, slots=True)
class _Content(Content):
    """What is to be uploaded, with its checksums."""

    crc32c: str

    def md5(self) -> str:
        digest = hashlib.md5(usedforsecurity=False)
        for start in range(0, self.size, CHUNK_BYTES):
            digest.update(self.bytes_at(start, min(self.size, start + CHUNK_BYTES)))
        return b64encode(digest.digest()).decode()


class GCSStore:
    """Objects of Google Cloud Storage, with the credentials that gcloud, the metadata server or the environment give.

    Asks nothing and connects nowhere before the first call. STORAGE_EMULATOR_HOST in the environment is honoured.
    """

    def __init__(self, retry: Retry | None = None, limiter: Limiter | None = None) -> None:
        """`limiter` says how many requests are made at once; by default one for all stores of the process."""
        self._retry = retry or Retry()
        self._limiter = limiter
        self._place = _place()
        self.calls = Calls()
        self._held = HeldClient(_clients)
        self.transient_failures = 0
        """Requests that were throttled, timed out or reset so far."""

    def __reduce__(self) -> tuple[type[GCSStore], tuple[Retry]]:
        return GCSStore, (self._retry,)

    @property
    def limiter(self) -> Limiter:
        """What this process lets through to GCS: one for all stores that were not given their own."""
        return self._limiter or limiter_of(f"gs {os.environ.get('STORAGE_EMULATOR_HOST', '')}")

    def region(self, uri: str) -> str:
        """Returns where a bucket is, as "GCP us-east1"; empty if that is not known, or many regions. Not counted."""
        if _is_emulated():
            return ""
        fields = {"fields": "location,locationType"}
        request = _Request(f"look at {uri}", None, "GET", "b/{}", (bucket_and_key(uri, "gs")[0],), fields)
        try:
            found = self._once(request).json(location=_text, locationType=_text)
        except StorageError:
            return ""
        return f"GCP {found['location'].lower()}" if found["locationType"] == "region" else ""

    def list(self, prefix: str) -> Iterator[Object]:
        bucket, start = bucket_and_key(prefix, "gs")

        def request(begins: str, after: str, **more: str) -> _Request:
            params = {"prefix": begins, "startOffset": after, "maxResults": str(LIST_PAGE), **more}
            given = {name: value for name, value in params.items() if value}
            return _Request(f"list {prefix}", "list", "GET", "b/{}/o", (bucket,), given)

        fields = "nextPageToken,items(name,size,generation)"
        listing = PagedListing[dict[str, Any]](
            start,
            lambda after, token: self._ask(request(start, after, pageToken=token, fields=fields), _page),
            lambda above, after: self._ask(request(above, after, delimiter="/", fields="prefixes"), _folders),
            itemgetter("name"),
            f"list {prefix} at {self._place.name}",
        )
        return Listing(
            Columns.of(f"gs://{bucket}/", [(one["name"], int(one["size"]), str(one["generation"])) for one in page])
            for page in listing.pages()
        )

    def stat(self, uri: str) -> Object:
        return _object(uri, self._metadata(uri, "name,size,generation"))

    def read(self, uri: str, start: int = 0, stop: int | None = None) -> bytes:
        clip(start, stop, 0)
        if start >= 0 and stop is not None and stop <= start:
            self.stat(uri)
            return b""
        request = _of_object(uri, "read", "get", "GET", {"alt": "media"}, range_header(start, stop), {416})

        def parse(response: _Response) -> bytes:
            if response.status == 416:
                return b""
            if response.status == 206:
                return part_of(response.body, response.headers.get("Content-Range"), start, stop, _cut)
            body = _whole_body(response)
            begin, end = clip(start, stop, len(body))
            return body[begin:end]

        return self._ask(request, parse)

    def open(self, object: Object) -> BinaryIO:
        return range_stream(lambda start, stop: self._read_generation(object, start, stop), object.size)

    def writer(self, uri: str, *, durable: bool = True) -> GCSWriter:
        del durable  # all of it is
        bucket_and_key(uri, "gs")
        return GCSWriter(self, uri)

    def publish(self, uri: str, data: bytes) -> Published:
        return self._publish(uri, _Content(None, data, len(data), _crc32c(google_crc32c.value(data))))

    def replace(self, uri: str, data: bytes) -> Object:
        content = _Content(None, data, len(data), _crc32c(google_crc32c.value(data)))
        if (written := self._upload(uri, content, create=False)) is None:
            raise StorageError(f"{uri}: 412 to a write without a condition: does a proxy answer for GCS? Run it again")
        return written

    def delete(self, uri: str, generation: str | None = None) -> bool:
        request = _delete(uri, {} if generation is None else {"ifGenerationMatch": generation})
        tries = 0

        def attempt() -> int:
            nonlocal tries
            tries += 1
            return self._once(request).status

        status = self._retry.call(request.what, attempt, self._place)
        if tries > 1 and status in (404, 412):
            # The answer of an earlier try was lost, and what was to go is gone, by it or by others.
            return True
        if status == 412:
            try:
                raise mismatch(uri, str(generation), self.stat(uri).generation)
            except ObjectNotFound:
                return False
        return status != 404

    def may_delete(self, uri: str) -> bool:
        # What may be done is looked at before the precondition, which holds for no object that exists. Rights can be
        # tested of a bucket too, but not those that are given for a part of its names only.
        try:
            self._ask(_delete(uri, {"ifGenerationMatch": "0"}), attrgetter("status"))
        except PermissionDenied:
            return False
        return True

    def _publish(self, uri: str, content: _Content, over: str = "") -> Published:
        """Uploads create-only, or in place of the generation `over`; compares checksums if the name is taken."""

        def look() -> tuple[Object, Callable[[], bool]]:
            theirs = self._metadata(uri, "name,size,generation,md5Hash,crc32c")
            same = int(theirs["size"]) == content.size and theirs["crc32c"] == content.crc32c
            # Composed objects have no MD5; where there is one, 32 bits of CRC need not be enough.
            return _object(uri, theirs), lambda: same and theirs.get("md5Hash") in (None, content.md5())

        return upload_compared(uri, over, lambda over: self._upload(uri, content, True, over or "0"), look)

    def _upload(self, uri: str, content: _Content, create: bool, over: str = "0") -> Object | None:
        """Returns the object as uploaded, or None if its name is taken; by another generation than `over`."""
        if content.size > SIMPLE_BYTES:
            return self._upload_resumable(uri, content, create, over)
        bucket, key = bucket_and_key(uri, "gs")
        boundary = secrets.token_hex(16)
        # In the metadata, the checksum is compared by GCS before the object becomes visible.
        metadata = json.dumps({"name": key, "crc32c": content.crc32c})
        head = (
            f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{metadata}\r\n"
            f"--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n"
        )
        request = _Request(
            f"upload {uri}",
            "put",
            "POST",
            "upload/b/{}/o",
            (bucket,),
            {"uploadType": "multipart", "fields": "name,size,generation"} | _create_only(create, over),
            {"Content-Type": f'multipart/related; boundary="{boundary}"'},
            b"".join((head.encode(), content.bytes_at(0, content.size), f"\r\n--{boundary}--".encode())),
            frozenset({409, 412}),
        )

        def parse(response: _Response) -> Object | None:
            return None if self._taken(uri, response, create) else _uploaded(uri, response, content.size)

        return self._ask(request, parse)

    def _taken(self, uri: str, response: _Response, create: bool) -> bool:
        """Returns whether an upload was refused because its name is taken, by whomever: it may be by an earlier try
        whose answer was lost. Raises TransientStorageError for a conflict with what goes on there."""
        if response.status == 409:
            try:
                if create and self.stat(uri):
                    return True
            except ObjectNotFound:
                pass
            raise TransientStorageError("GCS answered 409: a conflict with another call")
        return response.status == 412

    def _upload_resumable(self, uri: str, content: _Content, create: bool, over: str) -> Object | None:
        """The same in chunks. The precondition is looked at when the upload starts and again when it is complete."""
        bucket, key = bucket_and_key(uri, "gs")
        start = _Request(
            f"start the upload of {uri}",
            "put",
            "POST",
            "upload/b/{}/o",
            (bucket,),
            {"uploadType": "resumable", "name": key, "fields": "name,size,generation"} | _create_only(create, over),
            {
                "Content-Type": "application/json; charset=UTF-8",
                "X-Upload-Content-Type": "application/octet-stream",
                "X-Upload-Content-Length": str(content.size),
            },
            json.dumps({"name": key, "crc32c": content.crc32c}).encode(),
            frozenset({409, 412}),
        )

        def parse(response: _Response) -> str | None:
            return None if self._taken(uri, response, create) else _session(response)

        for _ in range(_SESSIONS):
            session = self._ask(start, parse)
            if session is None:
                return None
            response = self._send_chunks(uri, content, session)
            if response.status == 412:
                return None
            if response.status < 300:
                return _uploaded(uri, response, content.size)
        raise StorageError(
            f"{uri}: GCS forgot {_SESSIONS} resumable uploads of {content.size:,} bytes before they were complete; "
            "run the shard again, and check the status of Google Cloud if it happens again"
        )

    def _send_chunks(self, uri: str, content: _Content, session: str) -> _Response:
        """Sends the content to an upload session; returns the last answer: done, refused (412) or gone (404, 410)."""
        answers = frozenset({308, 404, 410, 412})
        offset: int | None = 0

        def attempt() -> _Response:
            nonlocal offset
            if offset is None:
                # The last attempt failed with part of its bytes, or all of them, perhaps taken in.
                headers = {"Content-Range": f"bytes */{content.size}"}
                response = self._once(
                    _Request(f"look at the upload of {uri}", None, "PUT", session, headers=headers, answers=answers)
                )
                if response.status != 308:
                    return whole(response)
                offset = _received(response, content.size)
            begin, offset = offset, None
            end = min(content.size, begin + CHUNK_BYTES)
            headers = {"Content-Range": f"bytes {begin}-{end - 1}/{content.size}"}
            data = content.bytes_at(begin, end)
            response = self._once(
                _Request(
                    f"upload bytes {begin} to {end} of {uri}", None, "PUT", session, (), {}, headers, data, answers
                )
            )
            if response.status == 308:
                offset = _received(response, content.size)
            return whole(response)

        def whole(response: _Response) -> _Response:
            if response.status < 300:
                # That of a last chunk; cut, or not its own, it is looked at again.
                _uploaded(uri, response, content.size)
            return response

        while True:
            response = self._retry.call(f"upload {uri}", attempt, self._place)
            if response.status != 308:
                return response

    def _read_generation(self, object: Object, start: int, stop: int) -> bytes:
        """Returns exactly these bytes of exactly this generation."""
        uri = object.uri
        params = {"alt": "media", "generation": object.generation}
        request = _of_object(uri, "read", "get", "GET", params, range_header(start, stop), {404})

        def parse(response: _Response) -> bytes | None:
            if response.status == 404:
                return None
            told = response.headers.get("Content-Range")
            body = exact_part(response.status, response.body, told, start, stop, object.size, _cut)
            if len(response.body) == object.size:
                # The checksum is that of the whole object; of a part there is none.
                _compare_checksum(response, response.body)
            return body

        found = self._ask(request, parse)
        if found is None:
            raise mismatch(uri, object.generation, self.stat(uri).generation)
        return found

    def _metadata(self, uri: str, fields: str) -> dict[str, Any]:
        # All that an object has, but for the MD5, which one that was composed lacks.
        named = {name: _FIELDS[name] for name in fields.split(",") if name != "md5Hash"}
        return self._ask(_of_object(uri, "stat", "get", "GET", {"fields": fields}), lambda found: found.json(**named))

    def _ask(self, request: _Request, parse: Callable[[_Response], T]) -> T:
        """Returns what `parse` makes of the answer. Makes the request until it is answered in whole: `parse` raises
        TransientStorageError for an answer that is cut, whatever its status."""
        return self._retry.call(request.what, lambda: parse(self._once(request)), self._place)

    def _once(self, request: _Request) -> _Response:
        """Makes the request, once; once more with credentials that are new."""

        def make(client: _Client) -> _Response:
            with self.limiter.request():
                return cast(_Response, sync(client.loop, client.answer, request, self.calls, self._retry))

        try:
            return self._held.ask(make)
        except TransientStorageError:
            self.transient_failures += 1
            raise


class GCSWriter(SpooledWriter):
    """Collects an object's bytes until they are published."""

    def __init__(self, store: GCSStore, uri: str) -> None:
        super().__init__(uri)
        self._store = store
        self._crc32c = 0

    def _digest(self, data: bytes) -> None:
        self._crc32c = google_crc32c.extend(self._crc32c, data)

    def _upload(self, file: IO[bytes]) -> Published:
        content = _Content(file, None, self._size, _crc32c(self._crc32c))
        return self._store._publish(self._uri, content, self._over)


class _Client(GCSFileSystem):  # type: ignore[misc]  # gcsfs has no types
    """gcsfs, going under its retry: credentials, session and loop of one process."""

    cachable = False

    def __init__(self) -> None:
        # Looking for credentials takes seconds where there are none, and an emulator wants none.
        super().__init__(
            token="anon" if _is_emulated() else None,
            use_listings_cache=False,
            skip_instance_cache=True,
            session_kwargs={"auto_decompress": False},
        )
        self.pid = os.getpid()

    def who(self) -> object:
        """Returns what tells a login, or a key, from another one; tokens are renewed with it."""
        found = self.credentials.credentials
        key = getattr(getattr(found, "signer", None), "key_id", None)
        return type(found), getattr(found, "refresh_token", None), key

    async def answer(self, request: _Request, calls: Calls, retry: Retry) -> _Response:
        """Makes the request once. Counted in the loop's thread, so that counts need no lock."""
        if request.kind is not None:
            setattr(calls, request.kind, getattr(calls, request.kind) + 1)
        try:
            status, headers, _, body = await self._request(
                request.method,
                request.path,
                *request.args,
                headers=request.headers,
                data=request.data,
                retry=retry,
                **request.params,
            )
        except (aiohttp.ClientConnectorCertificateError, ssl.SSLCertVerificationError) as error:
            raise StorageError(
                f"{request.what}: the server's certificate is refused: {error}; check proxies"
            ) from error
        except HttpError as error:
            # Raised by gcsfs for credentials that could not be refreshed.
            if getattr(error.__cause__, "retryable", False):
                raise TransientStorageError(f"credentials could not be refreshed: {error.__cause__}") from error
            raise _denied(request.what, f"credentials could not be refreshed: {error.__cause__ or error}") from error
        except TransportError as error:
            raise TransientStorageError(f"credentials could not be refreshed: {error}") from error
        except (GoogleAuthError, NonRetryableError) as error:
            raise _denied(request.what, str(error)) from error
        except (aiohttp.ClientError, OSError, EOFError) as error:
            # A TimeoutError, which is an OSError, comes without a message when the whole took too long.
            error = error if str(error) else TimeoutError(f"slower than {retry.slow_bytes_per_s:,} bytes a second")
            raise TransientStorageError(f"{type(error).__name__}: {error}") from error
        response = _Response(status, headers, body)
        if _is_page(response):
            raise _not_gcs(request, response)
        if _is_of_gcs(response):
            # Also if it refuses: it is there.
            REACHED.add(_place())
        if status >= 300 and status not in request.answers:
            raise _error(request, response)
        return response

    async def _request(
        self,
        method: str,
        path: str,
        *args: str,
        headers: Mapping[str, str] | None = None,
        json: object = None,
        data: bytes | None = None,
        retry: Retry | None = None,
        **params: str,
    ) -> tuple[int, Mapping[str, str], aiohttp.RequestInfo, bytes]:
        if self._session is None:
            await self._set_session()
            # aiohttp repeats a request by itself if a kept-alive connection turns out to be closed.
            self.session._retry_connection = False
        path = f"{self._location}/upload/storage/v1/{path[7:]}" if path.startswith("upload/") else path
        # Quoted already; requoting would undo the escapes of characters that it holds to be safe.
        url = yarl.URL(self._format_path(path, args), encoded=True)
        given = {**(headers or {}), "Accept-Encoding": "gzip"}
        if data is not None:
            given["Content-Length"] = str(len(data))
        given = self._get_headers(given)
        retry = retry or Retry()
        silence_s = retry.silence_s(_place(), len(data or b""))
        clock = asyncio.get_running_loop()
        started_s, moved, body = clock.time(), 0, []
        async with asyncio.timeout(retry.stall_s) as limit:

            def progress(size: int) -> None:
                nonlocal moved
                moved += size
                limit.reschedule(started_s + retry.attempt_s(moved))

            async def pieces(whole: bytes) -> AsyncIterator[memoryview]:
                for start in range(0, len(whole), _PIECE_BYTES):
                    yield memoryview(whole)[start : start + _PIECE_BYTES]
                    progress(min(_PIECE_BYTES, len(whole) - start))

            async with self.session.request(
                method,
                url,
                params=self._get_params(params),
                headers=given,
                json=json,
                data=pieces(data) if data is not None and len(data) > _PIECE_BYTES else data,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=silence_s),
            ) as response:
                async for part in response.content.iter_any():
                    body.append(part)
                    progress(len(part))
        return response.status, response.headers, response.request_info, b"".join(body)


_clients = SharedClient(_Client)


def _is_emulated() -> bool:
    return os.environ.get("STORAGE_EMULATOR_HOST", "") not in ("", "default")


def _place() -> Place:
    """Returns the service, as a place that has answered or not."""
    if _is_emulated():
        return Place(f"GCS at {os.environ['STORAGE_EMULATOR_HOST']}", "STORAGE_EMULATOR_HOST")
    return Place("GCS", "proxies")


def _error(request: _Request, response: _Response) -> StorageError:
    """Returns the error that a refusing answer stands for."""
    status, (message, reason) = response.status, _reason(response)
    said = f"GCS answered {status}{f' ({message})' if message else ''}"
    if status in _TRANSIENT or reason in _THROTTLED:
        return TransientStorageError(said)
    if status in (401, 403):
        return _denied(request.what, said, reason)
    if status == 404:
        uri = request.what[request.what.index("gs://") :]
        return ObjectNotFound(f"{request.what}: it does not exist, or its bucket does not; {said}", uri)
    return StorageError(f"{request.what}: {said}, which a retry would not change; expected success")


def _is_of_gcs(response: _Response) -> bool:
    """Returns whether GCS, or what speaks its language, made an answer, and no proxy or web server."""
    named = any(name.lower().startswith(("x-guploader-", "x-goog-")) for name in response.headers)
    return named or b'"error"' in response.body[:1000]


def _is_page(response: _Response) -> bool:
    """Returns whether a proxy answered with a page of its own: whatever its status, it tells nothing of an object."""
    # What is empty GCS calls HTML, too.
    is_html = bool(response.body) and response.headers.get("Content-Type", "").lower().startswith("text/html")
    return is_html and response.status not in _TRANSIENT and not _is_of_gcs(response)


def _not_gcs(request: _Request, response: _Response) -> StorageError:
    """Returns the error of what a proxy answered: it will pass where GCS has answered before."""
    place, said = _place(), " ".join(response.body[:1000].decode(errors="replace").split())[:80]
    passes = response.status < 300 or place in REACHED
    return (TransientStorageError if passes else StorageError)(
        f"{request.what}: what answers is not {place.name} (found {response.status}, {said!r}; expected JSON, or an "
        f"object); check {place.check}, then run again"
    )


def _denied(what: str, why: str, reason: str = "") -> PermissionDenied:
    access = (
        "expected credentials with access; log in with: gcloud auth application-default login, or grant the service "
        "account a role on the bucket"
    )
    return PermissionDenied(f"{what}: {why}; {_NEXT_STEPS.get(reason, access)}")


def _reason(response: _Response) -> tuple[str, str]:
    """Returns message and reason of an error's body; proxies answer in other formats, or not at all."""
    try:
        text = plain(response.headers.get("Content-Encoding"), response.body).decode(errors="replace")
        error = json.loads(text)["error"]
        return str(error["message"]), str(error.get("errors", [{}])[0].get("reason", ""))
    except NOT_PLAIN:
        return "", ""
    except (ValueError, LookupError, TypeError, AttributeError):
        return " ".join(text.split())[:200], ""


def _object(uri: str, metadata: Mapping[str, Any]) -> Object:
    return Object(uri, int(metadata["size"]), str(metadata["generation"]))


def _folders(response: _Response) -> list[str]:
    """Returns the folders of a page of a listing."""
    found = response.json().get("prefixes", [])
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise _cut("a page of a listing has malformed prefixes")
    return found


def _page(response: _Response) -> tuple[list[dict[str, Any]], str | None]:
    """Returns the items of a page of a listing, and the token of the next one."""
    found = response.json()
    items, token = found.get("items", []), found.get("nextPageToken")
    named = ("name", "size", "generation")
    whole = isinstance(items, list) and all(isinstance(item, dict) for item in items)
    if not whole or not isinstance(token, str | None):
        raise _cut("a page of a listing has malformed items")
    for item in items:
        for name in named:
            try:
                _FIELDS[name](item[name])
            except (LookupError, ValueError, TypeError) as error:
                raise _cut(f"a page of a listing has an item without {name}") from error
    return items, token or None


def _uploaded(uri: str, response: _Response, size: int) -> Object:
    """Returns the object that an upload says it made."""
    made = _object(uri, response.json(size=int, generation=_text))
    if made.size != size:
        raise _cut(f"an upload of {size:,} bytes was answered with an object of {made.size:,}")
    return made


def _session(response: _Response) -> str:
    session = response.headers.get("Location")
    if not session:
        raise _cut("the answer to the start of an upload has no session")
    return session


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise TypeError(f"expected text, found {value!r}")
    return str(value)


_FIELDS: Mapping[str, Callable[[Any], object]] = {
    "name": _text,
    "size": int,
    "generation": _text,
    "crc32c": _text,
}
"""What takes the fields of an object's metadata."""


def _of_object(
    uri: str,
    what: str,
    kind: _Kind,
    method: str,
    params: Mapping[str, str],
    headers: Mapping[str, str] | None = None,
    answers: Iterable[int] = (),
) -> _Request:
    args = bucket_and_key(uri, "gs")
    return _Request(f"{what} {uri}", kind, method, "b/{}/o/{}", args, params, headers or {}, answers=frozenset(answers))


def _delete(uri: str, params: Mapping[str, str]) -> _Request:
    return _of_object(uri, "delete", "delete", "DELETE", params, answers=(404, 412))


def _cut(problem: str) -> TransientStorageError:
    """Returns the error of an answer that did not come in whole, though its status says that all is well."""
    return TransientStorageError(f"the answer of GCS is not what was asked for: {problem}")


def _create_only(create: bool, over: str) -> dict[str, str]:
    return {"ifGenerationMatch": over} if create else {}


def _crc32c(checksum: int) -> str:
    """Returns the checksum as GCS writes it."""
    return b64encode(checksum.to_bytes(4, "big")).decode()


def _whole_body(response: _Response) -> bytes:
    """Returns a whole object. Raises TransientStorageError if it is not that which its length and checksum tell of."""
    stored = response.headers.get("x-goog-stored-content-length", "")
    if stored.isdigit() and int(stored) != len(response.body):
        raise _cut(f"{len(response.body)} bytes arrived, but the object has {stored}")
    _compare_checksum(response, response.body)
    return response.body


def _compare_checksum(response: _Response, body: bytes) -> None:
    for part in response.headers.get("x-goog-hash", "").split(","):
        name, _, expected = part.strip().partition("=")
        if name == "crc32c" and (found := _crc32c(google_crc32c.value(body))) != expected:
            raise _cut(f"the bytes that arrived have the CRC-32C {found}, expected {expected}")


def _received(response: _Response, size: int) -> int:
    """Returns how many of `size` bytes an upload session holds, from `Range: bytes=0-9`."""
    ranges = response.headers.get("Range")
    if ranges is None:
        return 0
    found = re.fullmatch(r"bytes=0-(\d+)", ranges)
    if found is None or int(found.group(1)) >= size:
        raise _cut(f"a session of {size:,} bytes reported the range {ranges!r}")
    return int(found.group(1)) + 1
