"""Serves pages of jobs to a browser on this machine: made anew for each request, and nothing is written.

Each request lists the outputs that it is about, and reads what is new in them: what was read before is remembered.

The standard library's server is enough: one reader, a handful of addresses, no state. It listens on the loopback
address alone. It answers only requests that name this machine as their host, so that no web page gets at it through a
name that leads here. GET and HEAD are all it knows; neither changes anything.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from curate.clock import Clock
from curate.errors import ConfigError, CurateError
from curate.keywords import option
from curate.ledger.heartbeat import RUNNING
from curate.log import get_logger
from curate.observe.place import NoJobError, root_of
from curate.observe.registry import list_jobs
from curate.observe.status import JobStatus
from curate.pages.document import document, index, refusal
from curate.pages.known import look_at
from curate.pages.read import read_page
from curate.pages.serve.metrics import CONTENT_TYPE, open_metrics
from curate.pages.serve.remembered import Memory
from curate.pages.shell import policy
from curate.stores.open import wrap_stores

LOOPBACK = "127.0.0.1"
HTML = "text/html; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
HTTP_PORT = 80
"""The port that browsers leave out where they name a host."""
REFRESH_S = 15
"""How often the browser asks again for what changes."""


class PageServer(ThreadingHTTPServer):
    """Serves the pages of some jobs, or of all known ones."""

    daemon_threads = True

    def __init__(self, outputs: Sequence[str], port: int, clock: Clock) -> None:
        """`outputs` are those of the jobs to serve; none: all known jobs. Raises ConfigError if the port is taken."""
        # One that is given twice is served once: numbers of a job that come twice are none to a monitor.
        self.outputs = list(dict.fromkeys(root_of(one) for one in outputs))
        self.clock = clock
        # One page at a time: each may take a second of a core, and listens for what is logged while it is read.
        self.reading = threading.Lock()
        self._remembering = ExitStack()
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OSError as error:
            given = option("port", ...)
            raise ConfigError(f"cannot listen on port {port} ({error.strerror}); choose another: {given}") from error
        self._remembering.enter_context(wrap_stores(Memory().of))

    def server_close(self) -> None:
        """Stops listening, and forgets what was read."""
        super().server_close()
        self._remembering.close()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        """Where a browser finds it."""
        return f"http://{LOOPBACK}:{self.port}/"

    def handle_error(self, *_: Any) -> None:
        """Says in a line what went wrong with a request; nothing of a browser that went away."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError):
            get_logger().warning("a request was not answered", error=f"{type(error).__name__}: {error}")

    def entries(self) -> list[dict[str, Any]]:
        """Returns the jobs that it serves, as the list of known jobs has them."""
        if not self.outputs:
            return list_jobs()
        return [{"output": one, "job": one.rpartition("/")[2], "started": 0.0} for one in self.outputs]

    def outputs_now(self) -> list[str]:
        """Returns the outputs of the jobs that it serves."""
        return [entry["output"] for entry in self.entries()]


class _Answer(Exception):
    """What is answered in place of a page."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version = "curate"
    sys_version = ""
    timeout = 60

    def do_GET(self) -> None:
        """Answers a request."""
        try:
            self._refuse_others()
            self._answer(*self._found())
        except _Answer as answer:
            self._answer(refusal(str(answer)), HTML, answer.status)
        except NoJobError as error:
            self._answer(refusal(str(error)), HTML, HTTPStatus.NOT_FOUND)
        except CurateError as error:
            self._answer(refusal(str(error)), HTML, HTTPStatus.BAD_GATEWAY)

    do_HEAD = do_GET  # noqa: N815 - as above

    def _refuse_others(self) -> None:
        names = {LOOPBACK, "localhost"}
        hosts = {f"{name}:{self.server.port}" for name in names}
        if self.server.port == HTTP_PORT:
            hosts |= names
        if self.headers.get("Host", "").lower() not in hosts:
            raise _Answer(HTTPStatus.FORBIDDEN, f"This server answers at {self.server.url} only.")

    def _found(self) -> tuple[bytes, str, HTTPStatus, Mapping[str, str]]:
        """Returns what lies at the address that is asked for: content, type, status, and further headers."""
        try:
            address, now = urlsplit(self.path), self.server.clock.now()
        except ValueError:
            raise _Answer(HTTPStatus.BAD_REQUEST, "This is not a valid address; the list of jobs is at /") from None
        match address.path:
            case "/healthz":
                return b"ok\n", TEXT, HTTPStatus.OK, {}
            case "/favicon.ico":
                return b"", TEXT, HTTPStatus.NO_CONTENT, {}
            case "/metrics":
                return open_metrics(look_at(self.server.entries(), now)), CONTENT_TYPE, HTTPStatus.OK, {}
            case "/" if len(self.server.outputs) != 1:
                jobs = look_at(self.server.entries(), now)
                live = any(isinstance(one, JobStatus) and one.state == RUNNING for _, one in jobs)
                return index(jobs, now), HTML, HTTPStatus.OK, _refreshed(live=live)
            case "/" | "/job":
                return self._page(self._asked(address.query), now)
        raise _Answer(HTTPStatus.NOT_FOUND, "There is no such page; the list of jobs is at /")

    def _asked(self, query: str) -> str:
        if len(self.server.outputs) == 1:
            return self.server.outputs[0]
        asked = parse_qs(query).get("output", [""])[0]
        # Only what is listed: an address is no way to have anything else read.
        if asked not in {entry["output"] for entry in self.server.entries()}:
            raise _Answer(HTTPStatus.NOT_FOUND, "This server does not serve that output; the list of jobs is at /")
        return asked

    def _page(self, output: str, now: float) -> tuple[bytes, str, HTTPStatus, Mapping[str, str]]:
        with self.server.reading:
            page = read_page(output, now)
        return document(page), HTML, HTTPStatus.OK, _refreshed(live=page.head.state == RUNNING)

    def _answer(self, content: bytes, kind: str, status: HTTPStatus, more: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Content-Security-Policy": f"{policy()}; frame-ancestors 'none'",
            "Cross-Origin-Resource-Policy": "same-origin",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
            **(more or {}),
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: what was asked for is of no interest to anybody."""


def _refreshed(*, live: bool) -> Mapping[str, str]:
    return {"Refresh": str(REFRESH_S)} if live else {}
