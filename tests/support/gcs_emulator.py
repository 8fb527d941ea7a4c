"""A strict, scriptable Google Cloud Storage for tests: the part of the JSON API that curate and gcsfs use, over HTTP.

Written anew rather than put in front of the package `gcp-storage-emulator`, whose gaps are those that matter here: it
knows no preconditions, lists without pages, and reads whatever generation there is. A front could refuse by looking
first, but not atomically with the write behind it, and create-only publishing is all about that moment. Here every
effect, with its precondition, happens under one lock.

What it holds to: 412 for `ifGenerationMatch` on simple uploads, at the start *and* at the completion of resumable ones,
and on deletes; generations that grow and are never reused; 404 for a read of an old generation; checksums, also
compared with those in an upload's metadata; ranges; pages.

    with GcsEmulator() as emulator:
        emulator.fail(operation="put", nth=2, status=503, when="after")
        subprocess.run([...], env=os.environ | emulator.environ)
        assert emulator.objects() == {"gs://bucket/a": b"..."}
"""

from __future__ import annotations

import bisect
import contextlib
import gzip
import hashlib
import itertools
import json
import random
import re
import socket
import struct
import threading
import time
from base64 import b64encode
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO, Any, Literal, Self
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import google_crc32c

KINDS = ("list", "get", "put", "delete")
"""The operations that are counted; there are also "chunk" (of a resumable upload) and "bucket"."""

_BUCKETS = re.compile(r"/storage/v1/b/?")
_BUCKET = re.compile(r"/storage/v1/b/([^/]+)")
_LIST = re.compile(r"/storage/v1/b/([^/]+)/o/?")
_OBJECT = re.compile(r"(?:/download)?/storage/v1/b/([^/]+)/o/([^/]+)")
_UPLOAD = re.compile(r"/upload/storage/v1/b/([^/]+)/o")


class Cut(StrEnum):
    """What is wrong with an answer whose status, and whose length, say that all is well: what a proxy makes of it."""

    HALF = "half"
    """Half of its body came."""
    EMPTY = "empty"
    """Nothing came but the status."""
    CHANGED = "changed"
    """A byte of its body is another one."""
    BARE = "bare"
    """The headers are lost that say what it is of: session, range."""
    PROXY = "proxy"
    """Something else came in its place."""
    PACKED = "packed"
    """It came packed, and half of that."""


def cut_off(answer: _Answer, cut: Cut) -> _Answer:
    """Returns an answer with the same status that is not whole."""
    body, headers = answer.body, dict(answer.headers)
    if answer.status == 204:
        # It has no body, and none can be made up for it.
        return answer
    match cut:
        case Cut.HALF:
            body = body[: len(body) // 2]
        case Cut.EMPTY:
            body = b""
        case Cut.CHANGED:
            # No digit: a JSON answer does not carry its own checksum, and would be another one that is whole.
            body = bytes([body[0] ^ 0x80]) + body[1:] if body else b""
        case Cut.BARE:
            headers = {name: value for name, value in headers.items() if name not in ("Location", "Content-Range")}
        case Cut.PROXY:
            body = b"<html>one moment, please</html>"
        case Cut.PACKED:
            body, headers["Content-Encoding"] = gzip.compress(body)[:-6], "gzip"
    return _Answer(answer.status, body, headers)


@dataclass(slots=True)
class Fault:
    """A failure that happens to the requests that match, from the `nth` on, `times` times."""

    operation: str | None
    method: str | None
    name: str | None
    nth: int
    times: int
    status: int | None
    when: Literal["before", "after"]
    reset: bool
    truncate: bool
    cut: Cut | None
    slow_s: float
    drip_s: float
    matched: int = 0
    fired: int = 0


@dataclass(slots=True)
class Capacity:
    """What the server takes at once; whatever comes on top of it is refused."""

    concurrent: int | None
    per_s: float | None
    takes_s: float
    under_way: int = 0
    tokens: float = 0.0
    filled_s: float = 0.0
    served: int = 0
    refused: int = 0
    most: int = 0
    """The most requests that were made at once, those refused included."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One object."""

    content: bytes
    generation: int
    encoding: str | None = None


@dataclass(slots=True)
class _Bucket:
    objects: dict[str, Stored] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    """Sorted, so that a page costs its own length."""


@dataclass(slots=True)
class _Upload:
    """A resumable upload in progress, or the answer that it ended with."""

    bucket: str
    name: str
    condition: str | None
    crc32c: str | None
    received: bytearray = field(default_factory=bytearray)
    done: _Answer | None = None


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Asked:
    """One request, read."""

    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: bytes
    operation: str
    bucket: str = ""
    name: str = ""


class GcsEmulator:
    """Serves on 127.0.0.1 while its block lasts. Contents, counts and faults are reached directly."""

    def __init__(self, buckets: Iterable[str] = ("bucket",)) -> None:
        self._lock = threading.Lock()
        self._buckets = {name: _Bucket() for name in buckets}
        self._uploads: dict[str, _Upload] = {}
        self._generations = itertools.count(1_700_000_000_000_001)
        self._faults: list[Fault] = []
        self._random: tuple[random.Random, float, int, frozenset[str]] | None = None
        self._capacity: Capacity | None = None
        self._over = _refusal(503, "too many requests", "rateLimitExceeded")
        self._counts: Counter[str] = Counter()
        self._stopped = threading.Event()
        self.requests: deque[tuple[str, str, int]] = deque(maxlen=10_000)
        """The latest requests: operation, path with query, status (0 if the connection was reset)."""
        self._server = _Server(("127.0.0.1", 0), _handler(self))

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def environ(self) -> dict[str, str]:
        """What a process must have in its environment to use this server as GCS."""
        return {
            "STORAGE_EMULATOR_HOST": self.url,
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            "NO_GCE_CHECK": "true",
        }

    def fail(
        self,
        *,
        operation: str | None = None,
        method: str | None = None,
        name: str | None = None,
        nth: int = 1,
        times: int = 1,
        status: int | None = 503,
        when: Literal["before", "after"] = "before",
        reset: bool = False,
        truncate: bool = False,
        cut: Cut | None = None,
        slow_s: float = 0.0,
        drip_s: float = 0.0,
    ) -> Fault:
        """Makes the `nth` matching request from now on, and `times - 1` after it, fail; returns the fault, to look at.

        `name` is part of an object's name, for listings of the prefix. `when="after"`: the effect happens, the answer
        is lost. `reset` closes the connection instead of answering, `truncate` in the middle of the answer's body;
        `slow_s` waits first (with `status=None`, the answer is then the true one), and with `drip_s` its body
        comes byte by byte, each after that time. `cut` leaves the status as it is and spoils the rest: see `Cut`.
        """
        fault = Fault(operation, method, name, nth, times, status, when, reset, truncate, cut, slow_s, drip_s)
        with self._lock:
            self._faults.append(fault)
        return fault

    def fail_randomly(
        self, one_in: float, seed: int = 0, status: int = 503, operations: Iterable[str] = (*KINDS, "chunk")
    ) -> None:
        """Makes one in `one_in` requests fail, before or after its effect, in a sequence drawn from `seed`."""
        with self._lock:
            self._random = (random.Random(seed), 1 / one_in, status, frozenset(operations))

    def limit(
        self, *, concurrent: int | None = None, per_s: float | None = None, takes_s: float = 0.0, status: int = 503
    ) -> Capacity:
        """Refuses what comes beyond `concurrent` requests at once, or `per_s` a second; returns what happened.

        Each request that is served takes `takes_s`, a refusal no time. All kinds count alike.
        """
        capacity = Capacity(concurrent, per_s, takes_s, tokens=per_s or 0.0, filled_s=time.monotonic())
        with self._lock:
            self._capacity, self._over = capacity, _refusal(status, "too many requests", "rateLimitExceeded")
        return capacity

    def heal(self) -> None:
        """Forgets all faults and limits."""
        with self._lock:
            self._faults.clear()
            self._random = self._capacity = None

    def counts(self) -> dict[str, int]:
        """Returns the requests so far by kind, those that failed included: what `Store.calls` should say."""
        with self._lock:
            return {kind: self._counts[kind] for kind in KINDS}

    def reset_counts(self) -> None:
        """Starts counting anew."""
        with self._lock:
            self._counts.clear()
            self.requests.clear()

    def create_bucket(self, name: str) -> None:
        """Creates an empty bucket, unless there is one."""
        with self._lock:
            self._buckets.setdefault(name, _Bucket())

    def objects(self, prefix: str = "gs://") -> dict[str, bytes]:
        """Returns the contents by URI, of those whose URI starts with `prefix`, in order."""
        with self._lock:
            found = {f"gs://{b}/{k}": held.objects[k].content for b, held in self._buckets.items() for k in held.names}
        return {uri: content for uri, content in sorted(found.items()) if uri.startswith(prefix)}

    def generation(self, uri: str) -> int:
        """Returns the generation of an object. Raises KeyError."""
        bucket, name = _split(uri)
        with self._lock:
            return self._buckets[bucket].objects[name].generation

    def put(self, uri: str, content: bytes, encoding: str | None = None) -> int:
        """Writes an object behind everyone's back; returns its generation. `encoding` is its Content-Encoding."""
        bucket, name = _split(uri)
        with self._lock:
            self._buckets.setdefault(bucket, _Bucket())
            return self._store(bucket, name, content, encoding).generation

    def remove(self, uri: str) -> None:
        """Deletes an object behind everyone's back. Raises KeyError."""
        bucket, name = _split(uri)
        with self._lock:
            self._remove(bucket, name)

    # What follows is the server's side.

    def respond(self, asked: _Asked) -> tuple[_Answer | None, Fault | None]:
        """Returns the answer, or None for a reset; and the fault that says how it is sent."""
        with self._lock:
            capacity, admitted = self._capacity, self._admit()
            if not admitted:
                self._counts[asked.operation] += 1
                self.requests.append((asked.operation, asked.path, self._over.status))
        if not admitted:
            return self._over, None
        try:
            if capacity is not None:
                self._stopped.wait(capacity.takes_s)
            return self._respond(asked)
        finally:
            if capacity is not None:
                with self._lock:
                    capacity.under_way -= 1

    def _admit(self) -> bool:
        """Takes a place in the server, if there is one; the caller holds the lock."""
        capacity = self._capacity
        if capacity is None:
            return True
        capacity.most = max(capacity.most, capacity.under_way + 1)
        full = capacity.concurrent is not None and capacity.under_way >= capacity.concurrent
        if capacity.per_s is not None:
            now_s = time.monotonic()
            earned = (now_s - capacity.filled_s) * capacity.per_s
            capacity.tokens, capacity.filled_s = min(capacity.per_s, capacity.tokens + earned), now_s
            full = full or capacity.tokens < 1
        if full:
            capacity.refused += 1
            return False
        capacity.tokens -= 1
        capacity.under_way += 1
        capacity.served += 1
        return True

    def _respond(self, asked: _Asked) -> tuple[_Answer | None, Fault | None]:
        fault = self._fault(asked)
        if fault and fault.slow_s:
            self._stopped.wait(fault.slow_s)
        failure = _refusal(fault.status, "scripted fault") if fault and fault.status and not fault.cut else None
        broken = fault is not None and (fault.reset or fault.truncate or failure is not None)
        answer: _Answer | None = None
        if fault is None or not broken or fault.when == "after" or fault.truncate:
            answer = self._effect(asked)
        if fault is not None and fault.reset:
            answer = None
        elif fault is not None and fault.cut and answer is not None:
            answer = cut_off(answer, fault.cut)
        elif fault is not None and not fault.truncate and failure is not None:
            answer = failure
        query = f"?{'&'.join(f'{k}={v}' for k, v in asked.query.items())}" if asked.query else ""
        with self._lock:
            self.requests.append((asked.operation, f"{asked.path}{query}", answer.status if answer else 0))
        return answer, fault

    def drip(self, sink: IO[bytes], body: bytes, each_s: float) -> None:
        """Sends a body byte by byte, until the client or the server is gone."""
        for byte in body:
            if self._stopped.wait(each_s):
                return
            sink.write(bytes([byte]))
            sink.flush()

    def _fault(self, asked: _Asked) -> Fault | None:
        with self._lock:
            self._counts[asked.operation] += 1
            for fault in self._faults:
                if (
                    fault.operation in (None, asked.operation)
                    and fault.method in (None, asked.method)
                    and (fault.name is None or fault.name in asked.name)
                ):
                    fault.matched += 1
                    if fault.nth <= fault.matched < fault.nth + fault.times:
                        fault.fired += 1
                        return fault
            if self._random is not None:
                chance, rate, status, operations = self._random
                if asked.operation in operations and chance.random() < rate:
                    when: Literal["before", "after"] = "before" if chance.random() < 0.5 else "after"
                    return Fault(None, None, None, 1, 1, status, when, chance.random() < 0.25, False, None, 0.0, 0.0)
        return None

    def _effect(self, asked: _Asked) -> _Answer:
        """Does what was asked, in one piece."""
        with self._lock:
            if asked.operation == "bucket":
                return self._bucket(asked)
            if asked.operation == "chunk":
                return self._chunk(asked)
            if asked.bucket not in self._buckets:
                return _refusal(404, "The specified bucket does not exist.", "notFound")
            if asked.operation == "list":
                return self._list(asked)
            if asked.operation == "put":
                return self._upload(asked)
            if asked.operation == "delete":
                return self._delete(asked)
            if asked.operation == "get":
                return self._get(asked)
        return _refusal(501, f"the emulator does not know {asked.method} {asked.path}")

    def _bucket(self, asked: _Asked) -> _Answer:
        name = asked.bucket or json.loads(asked.body or b"{}").get("name", "")
        if asked.method == "POST":
            if name in self._buckets:
                return _refusal(409, "You already own this bucket.", "conflict")
            self._buckets[name] = _Bucket()
        if name not in self._buckets:
            return _refusal(404, "The specified bucket does not exist.", "notFound")
        return _json({"kind": "storage#bucket", "name": name, "id": name})

    def _list(self, asked: _Asked) -> _Answer:
        query, held = asked.query, self._buckets[asked.bucket]
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        room = max(1, min(int(query.get("maxResults", 1000)), 1000))
        after = query.get("pageToken")
        at = bisect.bisect_left(held.names, prefix)
        if after is not None:
            at = max(at, bisect.bisect_right(held.names, bytes.fromhex(after).decode()))
        items: list[dict[str, object]] = []
        prefixes: list[str] = []
        token = None
        for name in itertools.islice(held.names, at, None):
            if not name.startswith(prefix):
                break
            if delimiter and delimiter in name[len(prefix) :]:
                group = prefix + name[len(prefix) :].partition(delimiter)[0] + delimiter
                if not prefixes or prefixes[-1] != group:
                    prefixes.append(group)
                continue
            if len(items) == room:
                token = str(items[-1]["name"]).encode().hex()
                break
            items.append(_resource(asked.bucket, name, held.objects[name]))
        answer: dict[str, object] = {"kind": "storage#objects"}
        if wanted := re.search(r"items\(([^)]*)\)", query.get("fields", "")):
            answer = {}
            items = [{key: item[key] for key in wanted.group(1).split(",") if key in item} for item in items]
        answer |= {"items": items} if items else {}
        answer |= {"prefixes": prefixes} if prefixes else {}
        answer |= {"nextPageToken": token} if token else {}
        return _json(answer)

    def _get(self, asked: _Asked) -> _Answer:
        stored = self._buckets[asked.bucket].objects.get(asked.name)
        if stored is None or asked.query.get("generation", str(stored.generation)) != str(stored.generation):
            return _refusal(404, f"No such object: {asked.bucket}/{asked.name}", "notFound")
        if asked.query.get("alt") != "media":
            return _fields(_resource(asked.bucket, asked.name, stored), asked.query)
        content, size = stored.content, len(stored.content)
        headers = {
            "Content-Type": "application/octet-stream",
            "X-Goog-Generation": str(stored.generation),
            "X-Goog-Hash": f"crc32c={_crc32c(content)},md5={_md5(content)}",
        }
        if stored.encoding:
            headers["Content-Encoding"] = stored.encoding
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", asked.headers.get("Range", ""))
        if match is None or match.groups() == ("", ""):
            return _Answer(200, content, headers)
        first, last = match.groups()
        start = int(first) if first else max(0, size - int(last))
        stop = min(size, int(last) + 1) if first and last else size
        if start >= size or stop <= start:
            return _refusal(416, "The requested range cannot be satisfied.", "requestedRangeNotSatisfiable")
        return _Answer(206, content[start:stop], headers | {"Content-Range": f"bytes {start}-{stop - 1}/{size}"})

    def _delete(self, asked: _Asked) -> _Answer:
        stored = self._buckets[asked.bucket].objects.get(asked.name)
        if stored is None:
            return _refusal(404, f"No such object: {asked.bucket}/{asked.name}", "notFound")
        if refused := self._refused(asked.bucket, asked.name, asked.query.get("ifGenerationMatch")):
            return refused
        self._remove(asked.bucket, asked.name)
        return _Answer(204)

    def _upload(self, asked: _Asked) -> _Answer:
        condition = asked.query.get("ifGenerationMatch")
        kind = asked.query.get("uploadType")
        if kind == "media":
            return self._finish(asked, asked.query["name"], condition, asked.body, None)
        if kind == "multipart":
            metadata, content = _parts(asked.headers["Content-Type"], asked.body)
            name = asked.query.get("name") or metadata["name"]
            return self._finish(asked, name, condition, content, metadata.get("crc32c"))
        if kind != "resumable":
            return _refusal(400, f"Unknown uploadType {kind!r}", "invalid")
        metadata = json.loads(asked.body or b"{}")
        name = asked.query.get("name") or metadata["name"]
        if refused := self._refused(asked.bucket, name, condition):
            return refused
        upload_id = f"session-{next(self._generations)}"
        self._uploads[upload_id] = _Upload(asked.bucket, name, condition, metadata.get("crc32c"))
        query = "&".join(f"{key}={quote(value, safe='')}" for key, value in asked.query.items())
        location = f"{self.url}/upload/storage/v1/b/{quote(asked.bucket)}/o?{query}&upload_id={upload_id}"
        return _Answer(200, headers={"Location": location, "X-GUploader-UploadID": upload_id})

    def _chunk(self, asked: _Asked) -> _Answer:
        """Takes a chunk of a resumable upload, or says how far it is. The precondition counts when it is complete."""
        upload = self._uploads.get(asked.query["upload_id"])
        if upload is None:
            return _refusal(404, "No such upload session", "notFound")
        if upload.done is not None:
            return upload.done
        if asked.method == "DELETE":
            del self._uploads[asked.query["upload_id"]]
            return _Answer(499)
        match = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", asked.headers.get("Content-Range", ""))
        if match is None:
            return _refusal(400, "A chunk needs a Content-Range", "invalid")
        first, last, total = match.groups()
        if first is not None:
            if int(last) - int(first) + 1 != len(asked.body) or int(first) > len(upload.received):
                return _refusal(400, f"Chunk {asked.headers['Content-Range']} does not fit", "invalid")
            if (total == "*" or int(last) + 1 < int(total)) and len(asked.body) % (256 << 10):
                return _refusal(400, "A chunk that is not the last must be a multiple of 256 KiB", "invalid")
            upload.received[int(first) :] = asked.body
        if total != "*" and len(upload.received) == int(total):
            content = bytes(upload.received)
            answer = self._finish(asked, upload.name, upload.condition, content, upload.crc32c)
            upload.done, upload.received = answer, bytearray()
            return answer
        held = {"Range": f"bytes=0-{len(upload.received) - 1}"} if upload.received else {}
        return _Answer(308, headers=held)

    def _finish(self, asked: _Asked, name: str, condition: str | None, content: bytes, crc32c: str | None) -> _Answer:
        if refused := self._refused(asked.bucket, name, condition):
            return refused
        if crc32c is not None and crc32c != _crc32c(content):
            return _refusal(400, f'Provided CRC32C "{crc32c}" doesn\'t match "{_crc32c(content)}".', "invalid")
        stored = self._store(asked.bucket, name, content, None)
        return _fields(_resource(asked.bucket, name, stored), asked.query)

    def _refused(self, bucket: str, name: str, condition: str | None) -> _Answer | None:
        if condition is None:
            return None
        stored = self._buckets[bucket].objects.get(name)
        if int(condition) == (stored.generation if stored else 0):
            return None
        return _refusal(412, "At least one of the pre-conditions you specified did not hold.", "conditionNotMet")

    def _store(self, bucket: str, name: str, content: bytes, encoding: str | None) -> Stored:
        held = self._buckets[bucket]
        if name not in held.objects:
            bisect.insort(held.names, name)
        stored = held.objects[name] = Stored(content, next(self._generations), encoding)
        return stored

    def _remove(self, bucket: str, name: str) -> None:
        held = self._buckets[bucket]
        del held.objects[name]
        del held.names[bisect.bisect_left(held.names, name)]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or was killed, is nothing to report."""


def _handler(emulator: GcsEmulator) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Buffered, so that an answer leaves in one packet rather than waiting for an acknowledgement of its head.
        wbufsize = 1 << 16
        disable_nagle_algorithm = True

        def handle_any(self) -> None:
            asked = _read(self)
            answer, fault = emulator.respond(asked)
            truncated = fault is not None and fault.truncate
            if answer is None:
                self._abort()
                return
            self.send_response_only(answer.status)
            for key, value in answer.headers.items():
                self.send_header(key, value)
            if answer.status != 204:
                self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            body = answer.body[: len(answer.body) // 2] if truncated else answer.body
            if fault is not None and fault.drip_s:
                emulator.drip(self.wfile, body, fault.drip_s)
            else:
                self.wfile.write(body)
            self.wfile.flush()
            if truncated:
                self._abort()

        do_GET = do_POST = do_PUT = do_DELETE = handle_any  # noqa: N815

        def _abort(self) -> None:
            """Closes with a reset rather than in good order."""
            with contextlib.suppress(OSError):
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Keeps quiet."""

    return Handler


def _read(handler: BaseHTTPRequestHandler) -> _Asked:
    """Reads a request whole and finds out what it asks for."""
    split = urlsplit(handler.path)
    query = dict(parse_qsl(split.query, keep_blank_values=True))
    headers = handler.headers
    if headers.get("Transfer-Encoding") == "chunked":
        pieces = []
        while size := int(handler.rfile.readline(), 16):
            pieces.append(handler.rfile.read(size))
            handler.rfile.readline()
        handler.rfile.readline()
        body = b"".join(pieces)
    else:
        body = handler.rfile.read(int(headers.get("Content-Length", 0)))
    method = str(handler.command)

    def asked(operation: str, bucket: str = "", name: str = "") -> _Asked:
        return _Asked(method, split.path, query, dict(headers.items()), body, operation, unquote(bucket), name)

    if match := _UPLOAD.fullmatch(split.path):
        operation = "chunk" if "upload_id" in query else "put"
        found = query.get("name", "")
        if not found and operation == "put":
            with contextlib.suppress(ValueError, KeyError):
                found = _parts(headers["Content-Type"], body)[0]["name"]
        return asked(operation, match.group(1), found)
    if match := _LIST.fullmatch(split.path):
        return asked("list", match.group(1), query.get("prefix", ""))
    if match := _OBJECT.fullmatch(split.path):
        return asked("delete" if method == "DELETE" else "get", match.group(1), unquote(match.group(2)))
    if match := _BUCKET.fullmatch(split.path):
        return asked("bucket", match.group(1))
    return asked("bucket" if _BUCKETS.fullmatch(split.path) else "unknown")


def _parts(content_type: str, body: bytes) -> tuple[dict[str, Any], bytes]:
    """Returns the metadata and the content of a multipart upload. Raises ValueError."""
    match = re.search(r'boundary="?([^";]+)"?', content_type)
    if match is None:
        raise ValueError(f"no boundary in {content_type!r}")
    line = b"--" + match.group(1).encode()
    # Clients end lines with either; only the breaks around the boundaries are not content.
    head, rest = re.split(rb"\r?\n\r?\n", body.split(line, 1)[1], maxsplit=1)[0:2]
    metadata, rest = re.split(rb"\r?\n" + re.escape(line), rest, maxsplit=1)
    content = re.split(rb"\r?\n\r?\n", rest, maxsplit=1)[1]
    end = content.rindex(b"\n" + line + b"--")
    return json.loads(metadata), content[: end - 1 if b"\r" in head else end]


def _resource(bucket: str, name: str, stored: Stored) -> dict[str, object]:
    resource: dict[str, object] = {
        "kind": "storage#object",
        "id": f"{bucket}/{name}/{stored.generation}",
        "bucket": bucket,
        "name": name,
        "size": str(len(stored.content)),
        "generation": str(stored.generation),
        "metageneration": "1",
        "contentType": "application/octet-stream",
        "timeCreated": "2024-01-01T00:00:00.000Z",
        "updated": "2024-01-01T00:00:00.000Z",
        "md5Hash": _md5(stored.content),
        "crc32c": _crc32c(stored.content),
    }
    return resource | ({"contentEncoding": stored.encoding} if stored.encoding else {})


def _fields(resource: dict[str, object], query: Mapping[str, str]) -> _Answer:
    wanted = query.get("fields")
    return _json({key: resource[key] for key in wanted.split(",") if key in resource} if wanted else resource)


def _json(value: object) -> _Answer:
    return _Answer(200, json.dumps(value).encode(), {"Content-Type": "application/json; charset=UTF-8"})


def _refusal(status: int, message: str, reason: str = "backendError") -> _Answer:
    error = {"code": status, "message": message, "errors": [{"domain": "global", "reason": reason, "message": message}]}
    return _Answer(status, json.dumps({"error": error}).encode(), {"Content-Type": "application/json; charset=UTF-8"})


def _split(uri: str) -> tuple[str, str]:
    bucket, _, name = uri.removeprefix("gs://").partition("/")
    return bucket, name


def _md5(content: bytes) -> str:
    return b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()


def _crc32c(content: bytes) -> str:
    return b64encode(google_crc32c.value(content).to_bytes(4, "big")).decode()
