"""What emulated stores share: one lock, failures on script, limits, counts and a server on 127.0.0.1.

A service's own emulator reads a request, does what it asks for in one piece, and says how a failure looks.
"""

from __future__ import annotations

import bisect
import contextlib
import gzip
import random
import re
import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from typing import Any, Literal, Self

import pytest

from curate.clock import Clock, SystemClock

KINDS = ("list", "get", "put", "delete")
"""The operations that are counted. There are others, which are not: the parts of an upload, say."""


class Cut(StrEnum):
    """What is wrong with an answer whose status, and whose length, say that all is well: what a proxy makes of it."""

    HALF = "half"
    """Half of its body came."""
    EMPTY = "empty"
    """Nothing came but the status."""
    CHANGED = "changed"
    """A byte of its body is another one."""
    BARE = "bare"
    """The headers are lost that say what it is of: session, range, ETag."""
    PROXY = "proxy"
    """Something else came in its place."""
    PACKED = "packed"
    """It came packed, and half of that."""


def cut_off(answer: Answer, cut: Cut) -> Answer:
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
            headers = {name: headers[name] for name in headers if name not in ("Location", "Content-Range", "ETag")}
        case Cut.PROXY:
            body = b"<html>one moment, please</html>"
        case Cut.PACKED:
            body, headers["Content-Encoding"] = gzip.compress(body)[:-6], "gzip"
    return Answer(answer.status, body, headers)


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
    reason: str = ""
    matched: int = 0
    fired: int = 0


@dataclass(slots=True)
class Capacity:
    """What the server takes at once; whatever comes on top of it is refused."""

    concurrent: int | None
    per_s: float | None
    takes_s: float
    clock: Clock
    under_way: int = 0
    tokens: float = 0.0
    filled_s: float = 0.0
    served: int = 0
    refused: int = 0
    most: int = 0
    """The most requests that were made at once, those refused included."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def page(status: int) -> Answer:
    """Returns what a proxy answers in place of a store, with a page of its own."""
    return Answer(status, b"<html><body>Please sign in</body></html>", {"Content-Type": "text/html; charset=utf-8"})


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, read."""

    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: bytes
    operation: str
    bucket: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Stored:
    """One object."""

    content: bytes
    generation: Any
    encoding: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Bucket:
    """The objects of one bucket."""

    objects: dict[str, Stored] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    """Sorted, so that a page costs its own length."""


class Emulator(ABC):
    """Serves on 127.0.0.1 while its block lasts. Contents, counts and faults are reached directly."""

    SCHEME: str

    def __init__(self, buckets: Iterable[str] = ("bucket",)) -> None:
        self._lock = threading.Lock()
        self._buckets = {name: Bucket() for name in buckets}
        self._faults: list[Fault] = []
        self._random: tuple[random.Random, float, int, frozenset[str]] | None = None
        self._capacity: Capacity | None = None
        self._over = self._refusal(503, "too many requests", "rateLimitExceeded")
        self._counts: Counter[str] = Counter()
        self.bytes_got = 0
        """Bytes of objects in the answers so far, those that were lost included."""
        self.failed_randomly = 0
        """Requests so far that failed because of `fail_randomly`."""
        self._stopped = threading.Event()
        self.requests: deque[tuple[str, str, int]] = deque(maxlen=10_000)
        """The latest requests: operation, path with query, status (0 if the connection was reset)."""
        self.broken: Exception | None = None
        """What this server could not do for an error of its own: a store takes that for a reset, and tries again."""
        self._server = Server(("127.0.0.1", 0), handler(self))

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._server.shutdown()
        self._server.server_close()
        if self.broken is not None:
            raise AssertionError("the emulator of the store broke") from self.broken

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    @abstractmethod
    def environ(self) -> dict[str, str]:
        """What a process must have in its environment to use this server."""

    def here(self, monkeypatch: pytest.MonkeyPatch) -> Self:
        """Has this process use it while a test lasts; returns it."""
        for name, value in self.environ.items():
            monkeypatch.setenv(name, value)
        return self

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
        reason: str = "",
    ) -> Fault:
        """Makes the `nth` matching request from now on, and `times - 1` after it, fail; returns the fault, to look at.

        `name` is part of an object's name, for listings of the prefix. `when="after"`: the effect happens, the answer
        is lost. `reset` closes the connection instead of answering, `truncate` in the middle of the answer's body;
        `slow_s` waits first (with `status=None`, the answer is then the true one), and with `drip_s` its body
        comes byte by byte, each after that time. `cut` leaves the status as it is and spoils the rest: see `Cut`.
        `reason` is the service's own word for what went wrong, behind the status.
        """
        fault = Fault(operation, method, name, nth, times, status, when, reset, truncate, cut, slow_s, drip_s, reason)
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
        self,
        *,
        concurrent: int | None = None,
        per_s: float | None = None,
        takes_s: float = 0.0,
        status: int = 503,
        clock: Clock | None = None,
    ) -> Capacity:
        """Refuses what comes beyond `concurrent` requests at once, or `per_s` a second of `clock`, by default the
        machine's; returns what happened.

        Each request that is served takes `takes_s`, a refusal no time. All kinds count alike.
        """
        clock = clock or SystemClock()
        capacity = Capacity(concurrent, per_s, takes_s, clock, tokens=per_s or 0.0, filled_s=clock.monotonic())
        with self._lock:
            self._capacity, self._over = capacity, self._refusal(status, "too many requests", "rateLimitExceeded")
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
            self.bytes_got = 0

    def create_bucket(self, name: str) -> None:
        """Creates an empty bucket, unless there is one."""
        with self._lock:
            self._buckets.setdefault(name, Bucket())

    def answer_once(self, operation: str, answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
        """Has something in between answer the next request of this operation, which does not arrive here."""
        effect, left = self._effect, [answer]
        monkeypatch.setattr(
            self, "_effect", lambda asked: left.pop() if left and asked.operation == operation else effect(asked)
        )

    def hide_bucket(self, name: str) -> Bucket:
        """Takes a bucket away, with all that is in it; returns it, for `show_bucket`."""
        with self._lock:
            return self._buckets.pop(name)

    def show_bucket(self, name: str, bucket: Bucket) -> None:
        """Puts a bucket back."""
        with self._lock:
            self._buckets[name] = bucket

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """Returns the contents by URI, of those whose URI starts with `prefix`, in order."""
        with self._lock:
            found = {
                f"{self.SCHEME}://{bucket}/{name}": held.objects[name].content
                for bucket, held in self._buckets.items()
                for name in held.names
            }
        return {uri: content for uri, content in sorted(found.items()) if uri.startswith(prefix)}

    def generation(self, uri: str) -> Any:
        """Returns the generation of an object. Raises KeyError."""
        bucket, name = self._split(uri)
        with self._lock:
            return self._buckets[bucket].objects[name].generation

    def remove(self, uri: str) -> None:
        """Deletes an object behind everyone's back. Raises KeyError."""
        bucket, name = self._split(uri)
        with self._lock:
            self._remove(bucket, name)

    @abstractmethod
    def put(self, uri: str, content: bytes) -> Any:
        """Writes an object behind everyone's back; returns its generation."""

    # What follows is the server's side.

    def respond(self, asked: Asked) -> tuple[Answer | None, Fault | None]:
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
            now_s = capacity.clock.monotonic()
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

    def _respond(self, asked: Asked) -> tuple[Answer | None, Fault | None]:
        fault = self._fault(asked)
        if fault and fault.slow_s:
            self._stopped.wait(fault.slow_s)
        failure = None
        if fault and fault.status and not fault.cut:
            failure = self._refusal(fault.status, "scripted fault", *[fault.reason] * bool(fault.reason))
        broken = fault is not None and (fault.reset or fault.truncate or failure is not None)
        answer: Answer | None = None
        if fault is None or not broken or fault.when == "after" or fault.truncate:
            answer = self._effect(asked)
            if asked.operation == "get":
                with self._lock:
                    self.bytes_got += len(answer.body)
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

    def drip(self, sink: BufferedIOBase, body: bytes, each_s: float) -> None:
        """Sends a body byte by byte, until the client or the server is gone."""
        for byte in body:
            if self._stopped.wait(each_s):
                return
            sink.write(bytes([byte]))
            sink.flush()

    def _fault(self, asked: Asked) -> Fault | None:
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
                    self.failed_randomly += 1
                    when: Literal["before", "after"] = "before" if chance.random() < 0.5 else "after"
                    return Fault(None, None, None, 1, 1, status, when, chance.random() < 0.25, False, None, 0.0, 0.0)
        return None

    @abstractmethod
    def _read(self, handler: BaseHTTPRequestHandler) -> Asked:
        """Reads a request whole and finds out what it asks for."""

    @abstractmethod
    def _effect(self, asked: Asked) -> Answer:
        """Does what was asked, in one piece."""

    @abstractmethod
    def _refusal(self, status: int, message: str, reason: str = "") -> Answer:
        """Returns the answer of a request that failed."""

    def _split(self, uri: str) -> tuple[str, str]:
        bucket, _, name = uri.removeprefix(f"{self.SCHEME}://").partition("/")
        return bucket, name

    def _keep(self, bucket: str, name: str, stored: Stored) -> Stored:
        held = self._buckets[bucket]
        if name not in held.objects:
            bisect.insort(held.names, name)
        held.objects[name] = stored
        return stored

    def _remove(self, bucket: str, name: str) -> None:
        held = self._buckets[bucket]
        del held.objects[name]
        del held.names[bisect.bisect_left(held.names, name)]


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or was killed, is nothing to report."""


def handler(emulator: Emulator) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Buffered, so that an answer leaves in one packet rather than waiting for an acknowledgement of its head.
        wbufsize = 1 << 16
        disable_nagle_algorithm = True

        def handle_any(self) -> None:
            asked = emulator._read(self)
            try:
                answer, fault = emulator.respond(asked)
            except Exception as error:
                emulator.broken = error
                raise
            truncated = fault is not None and fault.truncate
            if answer is None:
                self._abort()
                return
            self.send_response_only(answer.status)
            for key, value in answer.headers.items():
                self.send_header(key, value)
            if answer.status != 204 and "Content-Length" not in answer.headers:
                self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            body = answer.body[: len(answer.body) // 2] if truncated else answer.body
            body = b"" if self.command == "HEAD" else body
            if fault is not None and fault.drip_s:
                emulator.drip(self.wfile, body, fault.drip_s)
            else:
                self.wfile.write(body)
            self.wfile.flush()
            if truncated:
                self._abort()

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_any  # noqa: N815

        def _abort(self) -> None:
            """Closes with a reset rather than in good order."""
            with contextlib.suppress(OSError):
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Keeps quiet."""

    return Handler


def wanted_range(header: str, size: int) -> tuple[int, int] | None:
    """Returns the bytes that a `Range` names of so many: none of them, if the end is not after the start; None: all."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", header)
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    start = int(first) if first else max(0, size - int(last))
    return start, min(size, int(last) + 1) if first and last else size


def body_of(handler: BaseHTTPRequestHandler) -> bytes:
    """Reads the body of a request."""
    if handler.headers.get("Transfer-Encoding") != "chunked":
        return handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
    pieces = []
    while size := int(handler.rfile.readline(), 16):
        pieces.append(handler.rfile.read(size))
        handler.rfile.readline()
    handler.rfile.readline()
    return b"".join(pieces)
