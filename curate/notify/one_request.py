"""One HTTP request with an end: the timeout of a socket is for each call, so a server that answers a byte now and then
could hold its client for ever."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from http.client import HTTPConnection
from typing import Any
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, Request, build_opener


def answered(request: Request, within_s: float) -> None:
    """Makes a request, follows no redirect, and returns once the header of an answer of 2xx is there. Raises what
    `urllib` raises, and TimeoutError where that takes longer, a look for the address included."""
    made: list[HTTPConnection] = []
    raised: list[Exception] = []
    given_up = threading.Event()

    class Kept:
        def do_open(self, http_class: Any, req: Any, **given: Any) -> Any:
            def make(*args: Any, **more: Any) -> Any:
                link = http_class(*args, **more)
                connect = link.connect

                def connect_in_time() -> None:
                    connect()
                    if given_up.is_set():
                        link.close()
                        raise TimeoutError

                link.connect = connect_in_time
                made.append(link)
                return link

            return super().do_open(make, req, **given)  # type: ignore[misc]

    class Plain(Kept, HTTPHandler): ...

    class Secure(Kept, HTTPSHandler): ...

    class NoRedirect(HTTPRedirectHandler):
        def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
            return None

    def work() -> None:
        try:
            build_opener(Plain, Secure, NoRedirect).open(request, timeout=within_s).close()
        except Exception as error:  # noqa: BLE001 - raised again by who waits
            raised.append(error)

    # A daemon: a system that does not say where a host is keeps no process from ending.
    thread = threading.Thread(target=work, name="curate-post", daemon=True)
    thread.start()
    thread.join(within_s)
    if thread.is_alive():
        # Before it looks for sockets: one that is connected after that look is closed by its thread.
        given_up.set()
        for one in made:
            if one.sock is not None:
                with suppress(OSError):
                    # Of the socket below TLS, whose own would wait for the other side.
                    socket.socket.shutdown(one.sock, socket.SHUT_RDWR)
        raise TimeoutError(f"no answer within {within_s:g} s")
    if raised:
        raise raised[0]
