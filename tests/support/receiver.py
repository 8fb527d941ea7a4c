"""A server in this process that takes posts, as Slack does, and drops those whose id it has had."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson

SECRET = "T0K3N/B0/verysecretpath"
"""The path of its URL, which nobody is to see."""


class StubReceiver(ThreadingHTTPServer):
    """Takes posts, and answers as a test says."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.posts: list[dict[str, Any]] = []
        """All that arrived, repeats too."""
        self.answers: deque[int] = deque()
        """Status codes of the next answers; then 200."""
        self.changed = threading.Condition()

    @property
    def url(self) -> str:
        """Where to post to."""
        return f"http://127.0.0.1:{self.server_address[1]}/{SECRET}?key=hidden-as-well"

    @property
    def taken(self) -> list[dict[str, Any]]:
        """What was answered with 200, each id once."""
        return list({post["id"]: post for post in reversed(self.posts) if post["answered"] == 200}.values())[::-1]

    @property
    def states(self) -> list[str]:
        """The states of what was taken; of a run without progress, that."""
        return [post["state"] if post["event"] == "end" else post["event"] for post in self.taken]

    def wait_for(self, posts: int) -> None:
        """Waits until so many have arrived."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.posts) >= posts, 600)


class _Handler(BaseHTTPRequestHandler):
    server: StubReceiver

    def do_POST(self) -> None:
        """Takes a post."""
        data = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["Content-Type"] == "application/json"
        assert self.path.startswith(f"/{SECRET}")
        with self.server.changed:
            status = self.server.answers.popleft() if self.server.answers else 200
            self.server.posts.append(orjson.loads(data) | {"answered": status, "raw": data.decode()})
            self.server.changed.notify_all()
        self.send_response(status)
        if status in (301, 302, 307):
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@contextmanager
def receiving() -> Iterator[StubReceiver]:
    """Yields a server that runs while the block lasts."""
    with StubReceiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
