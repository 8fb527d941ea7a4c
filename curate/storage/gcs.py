"""Google Cloud Storage over its JSON API. The one file that knows gcsfs.

gcsfs gives credentials, a session and an event loop. Its calls are not used: they retry by themselves, which hides
throttling from whoever should slow down, and they judge an answer by words in its body, which loses the status of
some. So `_Client._request` replaces theirs: one HTTP request, counted, its failure named by its status. Retrying is
done here, around one request at a time (a page, a range, a chunk), and within it each attempt takes a place among those
of its process: a store that throttles gets fewer requests at once (see `throttle`).

Objects are read as they are stored: one with `Content-Encoding: gzip` comes compressed, at the size it was listed with.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import os
import secrets
import ssl
import tempfile
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, BinaryIO, Literal, cast

# Read when gcsfs is imported: with it, every bucket is first asked over gRPC what kind it is.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

import aiohttp
import google_crc32c
import yarl
from fsspec.asyn import sync
from gcsfs import GCSFileSystem
from gcsfs.retry import HttpError, NonRetryableError
from google.auth.exceptions import GoogleAuthError, TransportError

from curate.errors import ObjectNotFound, PermissionDenied, StorageError, TransientStorageError
from curate.storage.protocol import LIST_PAGE, Calls, Object, Outcome, Published, clip, mismatch
from curate.storage.ranges import range_stream
from curate.storage.retry import Retry
from curate.storage.throttle import Limiter
from curate.storage.uris import bucket_and_key
from curate.storage.writer import BaseWriter

SIMPLE_BYTES = 8 << 20
"""The largest upload made in one request, and the most of one that a writer keeps in memory."""
CHUNK_BYTES = 32 << 20
"""One request of a resumable upload; a multiple of 256 KiB, as GCS asks."""
_SESSIONS = 3
"""Resumable uploads started for one publish before giving up: GCS may forget a session."""
_COMPARISONS = 5
_CONNECT_S = 20.0
_PIECE_BYTES = 256 << 10
"""What is sent between two looks at how fast it goes."""
_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
_THROTTLED = ("rateLimitExceeded", "userRateLimitExceeded")

_Kind = Literal["list", "get", "put", "delete"]

_limiters: dict[tuple[int, str], Limiter] = {}
"""By process and server."""


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

    def json(self) -> dict[str, Any]:
        return cast("dict[str, Any]", json.loads(_plain(self.headers, self.body)))


@dataclass(frozen=True, slots=True)
class _Content:
    """What is to be uploaded."""

    file: IO[bytes] | None
    data: bytes | None
    """The bytes themselves, where they are in memory."""
    size: int
    crc32c: str

    def bytes_at(self, start: int, stop: int) -> bytes:
        if self.data is not None:
            return self.data[start:stop]
        assert self.file is not None
        self.file.seek(start)
        return self.file.read(stop - start)

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
        self._calls = Calls()
        self._client: _Client | None = None
        self._transient_failures = 0

    def __reduce__(self) -> tuple[type[GCSStore], tuple[Retry]]:
        return GCSStore, (self._retry,)

    @property
    def calls(self) -> Calls:
        return self._calls

    @property
    def transient_failures(self) -> int:
        """Requests that were throttled, timed out or reset so far."""
        return self._transient_failures

    @property
    def limiter(self) -> Limiter:
        """What this process lets through to GCS: one for all stores that were not given their own."""
        if self._limiter is not None:
            return self._limiter
        # The child of a fork has none of the threads that its parent's limiter waits for.
        return _limiters.setdefault((os.getpid(), os.environ.get("STORAGE_EMULATOR_HOST", "")), Limiter())

    def list(self, prefix: str) -> Iterator[Object]:
        bucket, start = bucket_and_key(prefix, "gs")
        page: str | None = ""
        while page is not None:
            params = {
                "prefix": start,
                "maxResults": str(LIST_PAGE),
                "fields": "nextPageToken,items(name,size,generation)",
            }
            if page:
                params["pageToken"] = page
            found = self._ask(_Request(f"list {prefix}", "list", "GET", "b/{}/o", (bucket,), params)).json()
            for item in found.get("items", ()):
                yield Object(f"gs://{bucket}/{item['name']}", int(item["size"]), item["generation"])
            page = found.get("nextPageToken")

    def stat(self, uri: str) -> Object:
        return _object(uri, self._metadata(uri, "name,size,generation"))

    def read(self, uri: str, start: int = 0, stop: int | None = None) -> bytes:
        clip(start, stop, 0)
        if start >= 0 and stop is not None and stop <= start:
            self.stat(uri)
            return b""
        ranges = f"bytes={start}" if start < 0 else f"bytes={start}-" if stop is None else f"bytes={start}-{stop - 1}"
        request = _Request(
            f"read {uri}",
            "get",
            "GET",
            "b/{}/o/{}",
            bucket_and_key(uri, "gs"),
            {"alt": "media"},
            {} if start == 0 and stop is None else {"Range": ranges},
            answers=frozenset({416}),
        )
        response = self._ask(request, _whole_body)
        if response.status == 416:
            return b""
        if response.status == 206:
            first, size = _content_range(response)
            begin, end = clip(start, stop, size)
            return response.body if end - begin == len(response.body) else response.body[begin - first : end - first]
        begin, end = clip(start, stop, len(response.body))
        return response.body[begin:end]

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
        written = self._upload(uri, content, create=False)
        assert written is not None
        return written

    def delete(self, uri: str, generation: str | None = None) -> bool:
        request = _Request(
            f"delete {uri}",
            "delete",
            "DELETE",
            "b/{}/o/{}",
            bucket_and_key(uri, "gs"),
            {} if generation is None else {"ifGenerationMatch": generation},
            answers=frozenset({404, 412}),
        )
        status = self._ask(request).status
        if status == 412:
            try:
                raise mismatch(uri, str(generation), self.stat(uri).generation)
            except ObjectNotFound:
                return False
        return status != 404

    def may_delete(self, uri: str) -> bool:
        # What may be done is looked at before the precondition, which holds for no object that exists. Rights can be
        # tested of a bucket too, but not those that are given for a part of its names only.
        request = _Request(
            f"delete {uri}",
            "delete",
            "DELETE",
            "b/{}/o/{}",
            bucket_and_key(uri, "gs"),
            {"ifGenerationMatch": "0"},
            answers=frozenset({404, 412}),
        )
        try:
            self._ask(request)
        except PermissionDenied:
            return False
        return True

    def _publish(self, uri: str, content: _Content, over: str = "") -> Published:
        """Uploads create-only, or in place of the generation `over`; compares checksums if the name is taken."""
        for number in range(_COMPARISONS):
            if not over or number:
                created = self._upload(uri, content, create=True)
                if created is not None:
                    return Published(Outcome.CREATED, created)
            try:
                theirs = self._metadata(uri, "name,size,generation,md5Hash,crc32c")
            except ObjectNotFound:
                continue
            same = int(theirs["size"]) == content.size and theirs["crc32c"] == content.crc32c
            # Composed objects have no MD5; where there is one, 32 bits of CRC need not be enough.
            if same and "md5Hash" in theirs:
                same = theirs["md5Hash"] == content.md5()
            if not same and over and str(theirs["generation"]) == over:
                created = self._upload(uri, content, create=True, over=over)
                if created is not None:
                    return Published(Outcome.CREATED, created)
                continue  # it is another one by now, or gone
            return Published(Outcome.IDENTICAL if same else Outcome.DIFFERENT, _object(uri, theirs))
        raise StorageError(
            f"{uri} was refused as taken {_COMPARISONS} times and was gone each time it was looked at; "
            "something else creates and deletes it; find that, or choose another output"
        )

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
            frozenset({412}),
        )
        response = self._ask(request)
        return None if response.status == 412 else _object(uri, response.json())

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
            frozenset({412}),
        )
        for _ in range(_SESSIONS):
            response = self._ask(start)
            if response.status == 412:
                return None
            response = self._send_chunks(uri, content, response.headers["Location"])
            if response.status == 412:
                return None
            if response.status < 300:
                return _object(uri, response.json())
        raise StorageError(
            f"{uri}: GCS forgot {_SESSIONS} resumable uploads of {content.size:,} bytes before they were complete; "
            "run the shard again, and look at the status of Google Cloud if it happens again"
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
                    return response
                offset = _received(response)
            begin, offset = offset, None
            end = min(content.size, begin + CHUNK_BYTES)
            headers = {"Content-Range": f"bytes {begin}-{end - 1}/{content.size}"}
            data = content.bytes_at(begin, end)
            return self._once(
                _Request(
                    f"upload bytes {begin} to {end} of {uri}", None, "PUT", session, (), {}, headers, data, answers
                )
            )

        while True:
            response = self._retry.call(f"upload {uri}", attempt)
            if response.status != 308:
                return response
            offset = _received(response)

    def _read_generation(self, object: Object, start: int, stop: int) -> bytes:
        """Returns exactly these bytes of exactly this generation."""
        uri = object.uri
        request = _Request(
            f"read {uri}",
            "get",
            "GET",
            "b/{}/o/{}",
            bucket_and_key(uri, "gs"),
            {"alt": "media", "generation": object.generation},
            {"Range": f"bytes={start}-{stop - 1}"},
            answers=frozenset({404}),
        )

        def complete(response: _Response) -> None:
            if response.status == 206 and len(response.body) != stop - start:
                raise TransientStorageError(f"{len(response.body)} bytes came, {stop - start} were asked for")

        response = self._ask(request, complete)
        if response.status == 404:
            raise mismatch(uri, object.generation, self.stat(uri).generation)
        return response.body if response.status == 206 else response.body[start:stop]

    def _metadata(self, uri: str, fields: str) -> dict[str, Any]:
        args = bucket_and_key(uri, "gs")
        return self._ask(_Request(f"stat {uri}", "get", "GET", "b/{}/o/{}", args, {"fields": fields})).json()

    def _ask(self, request: _Request, check: Callable[[_Response], None] | None = None) -> _Response:
        """Makes the request until it is answered; `check` may find an answer incomplete by TransientStorageError."""

        def attempt() -> _Response:
            response = self._once(request)
            if check:
                check(response)
            return response

        return self._retry.call(request.what, attempt)

    def _once(self, request: _Request) -> _Response:
        """Makes the request, once."""
        client = self._client
        if client is None or client.pid != os.getpid():
            # After a fork the parent's event loop does not run here. Two threads may both make one: no harm.
            client = self._client = _Client(self._calls, self._retry)
        try:
            with self.limiter.request():
                return cast(_Response, sync(client.loop, client.answer, request))
        except TransientStorageError:
            self._transient_failures += 1
            raise


class GCSWriter(BaseWriter):
    """Collects an object's bytes, in memory and beyond 8 MiB on disk, until they are published."""

    def __init__(self, store: GCSStore, uri: str) -> None:
        super().__init__(uri)
        self._store = store
        self._file = tempfile.SpooledTemporaryFile(max_size=SIMPLE_BYTES)  # noqa: SIM115
        self._crc32c = 0

    def _append(self, data: bytes | memoryview) -> int:
        data = bytes(data)
        try:
            self._file.write(data)
        except OSError as error:
            raise StorageError(
                f"{self._uri}: its bytes cannot be kept in {tempfile.gettempdir()} until they are uploaded "
                f"({error.strerror}); free space there or set TMPDIR"
            ) from error
        self._crc32c = google_crc32c.extend(self._crc32c, data)
        return len(data)

    def _finish(self) -> Published:
        with self._file as file:
            content = _Content(cast("IO[bytes]", file), None, self._size, _crc32c(self._crc32c))
            return self._store._publish(self._uri, content, self._over)

    def _discard(self) -> None:
        self._file.close()


class _Client(GCSFileSystem):  # type: ignore[misc]  # gcsfs has no types
    """gcsfs, going under its retry: credentials, session and loop of one process."""

    cachable = False

    def __init__(self, calls: Calls, retry: Retry) -> None:
        # Looking for credentials takes seconds where there are none, and an emulator wants none.
        emulated = os.environ.get("STORAGE_EMULATOR_HOST", "") not in ("", "default")
        super().__init__(
            token="anon" if emulated else None,
            use_listings_cache=False,
            skip_instance_cache=True,
            session_kwargs={"auto_decompress": False},
        )
        self.pid = os.getpid()
        self._counted = calls
        self._retry = retry
        self._times = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=retry.stall_s)

    async def answer(self, request: _Request) -> _Response:
        """Makes the request once. Counted in the loop's thread, so that counts need no lock."""
        if request.kind is not None:
            setattr(self._counted, request.kind, getattr(self._counted, request.kind) + 1)
        try:
            status, headers, _, body = await self._request(
                request.method,
                request.path,
                *request.args,
                headers=request.headers,
                data=request.data,
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
        except (aiohttp.ClientError, OSError) as error:
            # A TimeoutError, which is an OSError, comes without a message when the whole took too long.
            error = (
                error if str(error) else TimeoutError(f"slower than {self._retry.slow_bytes_per_s:,} bytes a second")
            )
            raise TransientStorageError(f"{type(error).__name__}: {error}") from error
        response = _Response(status, headers, body)
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
        clock = asyncio.get_running_loop()
        started_s, moved, body = clock.time(), 0, []
        async with asyncio.timeout(self._retry.stall_s) as limit:

            def progress(size: int) -> None:
                nonlocal moved
                moved += size
                limit.reschedule(started_s + self._retry.attempt_s(moved))

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
                timeout=self._times,
            ) as response:
                async for part in response.content.iter_any():
                    body.append(part)
                    progress(len(part))
        return response.status, response.headers, response.request_info, b"".join(body)


def _error(request: _Request, response: _Response) -> StorageError:
    """Returns the error that a refusing answer stands for."""
    status, (message, reason) = response.status, _reason(response)
    said = f"GCS answered {status}{f' ({message})' if message else ''}"
    if status in _TRANSIENT or reason in _THROTTLED:
        return TransientStorageError(said)
    if status in (401, 403):
        return _denied(request.what, said)
    if status == 404:
        return ObjectNotFound(f"{request.what}: it does not exist, or its bucket does not; {said}")
    return StorageError(f"{request.what}: {said}, which trying again would not change; expected success")


def _denied(what: str, why: str) -> PermissionDenied:
    return PermissionDenied(
        f"{what}: {why}; expected credentials that may; log in with: gcloud auth application-default login, "
        "or grant the service account a role on the bucket"
    )


def _reason(response: _Response) -> tuple[str, str]:
    """Returns message and reason of an error's body; proxies answer in other formats, or not at all."""
    try:
        text = _plain(response.headers, response.body).decode(errors="replace")
        error = json.loads(text)["error"]
        return str(error["message"]), str(error.get("errors", [{}])[0].get("reason", ""))
    except (OSError, EOFError):
        return "", ""
    except (ValueError, LookupError, TypeError, AttributeError):
        return text.strip()[:200], ""


def _plain(headers: Mapping[str, str], body: bytes) -> bytes:
    return gzip.decompress(body) if headers.get("Content-Encoding") == "gzip" else body


def _object(uri: str, metadata: Mapping[str, Any]) -> Object:
    return Object(uri, int(metadata["size"]), str(metadata["generation"]))


def _create_only(create: bool, over: str) -> dict[str, str]:
    return {"ifGenerationMatch": over} if create else {}


def _crc32c(checksum: int) -> str:
    """Returns the checksum as GCS writes it."""
    return b64encode(checksum.to_bytes(4, "big")).decode()


def _whole_body(response: _Response) -> None:
    """Compares a whole object with the checksum that comes with it."""
    if response.status != 200:
        return
    for part in response.headers.get("x-goog-hash", "").split(","):
        name, _, expected = part.strip().partition("=")
        if name == "crc32c" and (found := _crc32c(google_crc32c.value(response.body))) != expected:
            raise TransientStorageError(f"the bytes that came have the CRC-32C {found}, expected {expected}")


def _content_range(response: _Response) -> tuple[int, int]:
    """Returns the first byte's position and the object's size from `Content-Range: bytes 0-9/100`."""
    ranges, _, size = response.headers["Content-Range"].removeprefix("bytes ").partition("/")
    return int(ranges.partition("-")[0]), int(size)


def _received(response: _Response) -> int:
    """Returns how many bytes an upload session holds, from `Range: bytes=0-9`."""
    ranges = response.headers.get("Range")
    return int(ranges.rpartition("-")[2]) + 1 if ranges else 0
