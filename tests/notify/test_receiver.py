"""Where posts go: what is taken for a URL, that nobody sees it, and what an answer means."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection

import pytest

from curate import log
from curate.errors import ConfigError
from curate.notify import receiver as module
from curate.notify.receiver import PostError, Receiver, parse_receiver
from tests.support.receiver import receiving

HIDDEN_PART = "hush-hush-hush"


@pytest.mark.parametrize(
    "given",
    [
        f"ftp://hooks.example/{HIDDEN_PART}",
        f"https:///{HIDDEN_PART}",
        f"https://user:{HIDDEN_PART}@hooks.example/x",
        f"https://hooks.example:99999/{HIDDEN_PART}",
        f"https://hooks.example:0/{HIDDEN_PART}",
        f"https://hooks.example/{HIDDEN_PART}\r\nX: y",
        f"https://hooks.example/{HIDDEN_PART} x",
        f"https://[::1/{HIDDEN_PART}",
        f"hooks.example/{HIDDEN_PART}",
        f"{HIDDEN_PART} ",
        f"/{HIDDEN_PART}",
        "",
    ],
)
@pytest.mark.parametrize("by_name", [False, True])
def test_what_is_no_url_is_refused_and_not_shown(given: str, by_name: bool) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_receiver("HOOK" if by_name else given, {"HOOK": given})
    assert HIDDEN_PART not in str(refused.value)
    assert "notify=" in str(refused.value)


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(ConfigError, match="'SLACK_URL', which is not set"):
        parse_receiver("SLACK_URL", {})
    with pytest.raises(ConfigError, match="expected a URL"):
        parse_receiver(7)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["https://hooks.example/T1/{}?a={}", "HOOK"])
def test_nothing_of_this_process_shows_the_url(given: str) -> None:
    url = f"https://hooks.example:8443/T1/{HIDDEN_PART}?token=x"
    receiver = parse_receiver(url if given != "HOOK" else given, {"HOOK": url})
    assert receiver is not None
    assert (receiver.url, receiver.name) == (url, "hooks.example")
    assert HIDDEN_PART not in repr(receiver)
    for text in (f"--notify={url}", f"POST /T1/{HIDDEN_PART}?token=x", f"the path T1/{HIDDEN_PART}?token=x"):
        assert HIDDEN_PART not in log.redacted(text)


@pytest.mark.parametrize("path", ["/toxicity-in", "/c4-filter?x=1", "/hooks/toxicity", "", "/", "/hot-topic-2024"])
@pytest.mark.parametrize("host", ["ntfy.example", "http", "t", "s:8080"])
def test_a_path_that_is_a_name_is_shown_where_it_stands_alone(path: str, host: str, hidden: set[str]) -> None:
    """A job and a folder may be called as a topic is: messages would be full of [secret], and commands wrong."""
    given = parse_receiver(url := f"http://{host}{path}")
    assert (given, log.redacted(f"POST {path}: {path.strip('/')}")) == (
        Receiver(url),
        f"POST {path}: {path.strip('/')}",
    )
    assert log.redacted(f"--notify={url} ") == "--notify=[secret] "
    assert hidden == {url}


@pytest.mark.parametrize("path", ["/T1/B2/abc", "/hook/aB3", "/hook/SECRETSECRET", f"/{'a' * 20}", "/?key=Xy1"])
@pytest.mark.parametrize("host", ["hooks.example", "http", "t"])
def test_a_path_that_may_be_a_secret_is_hidden_alone_too(path: str, host: str, hidden: set[str]) -> None:
    parse_receiver(f"https://{host}{path}")
    assert hidden == {f"https://{host}{path}", path, path.strip("/")} - {
        one for one in (path, path[1:]) if len(one) < 8
    }


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What is hidden from now on."""
    monkeypatch.setattr(log, "_hidden", set())
    return log._hidden


@contextmanager
def answering(answer: Callable[[socket.socket], object]) -> Iterator[tuple[str, list[bytes]]]:
    """Yields the URL of a server that takes requests and answers as it is told, and what it was sent."""
    taken: list[bytes] = []
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            link, _ = server.accept()
            with link:
                taken.append(link.recv(65536))
                if not ended.is_set():
                    answer(link)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}/{HIDDEN_PART}", taken
        finally:
            ended.set()
            socket.create_connection(server.getsockname()).close()
            thread.join()


def test_what_is_connected_too_late_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the message to arrive after it was given up, it would be sent twice."""
    given_up, connected = threading.Event(), threading.Event()
    connect = HTTPConnection.connect

    def late(link: HTTPConnection) -> None:
        given_up.wait()
        connect(link)
        connected.set()

    monkeypatch.setattr(HTTPConnection, "connect", late)
    monkeypatch.setattr(module, "ATTEMPT_S", 0.01)
    with answering(lambda _: None) as (url, taken):
        with pytest.raises(PostError, match=r"did not answer within 0.01 s"):
            Receiver(url).post({"id": "x"})
        given_up.set()
        connected.wait()
        for thread in threading.enumerate():
            if thread.name == "curate-post":
                thread.join()
    assert not any(taken)


def test_an_attempt_ends_though_its_answer_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then is in time for each look at a socket, and never for the answer."""
    monkeypatch.setattr(module, "ATTEMPT_S", 0.2)
    left = threading.Event()

    def drip(link: socket.socket) -> None:
        link.settimeout(0.01)
        link.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        while True:
            try:
                link.sendall(b"a")
                if not link.recv(65536):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        left.set()

    with answering(drip) as (url, taken):
        with pytest.raises(PostError, match=r"127.0.0.1 did not answer within 0.2 s") as failed:
            Receiver(url).post({"id": "x"})
        assert failed.value.again
        # And the thread that reads it does not stay.
        assert left.wait(60)
        assert len([one for one in taken if one]) == 1


@pytest.mark.parametrize(
    "rest",
    [b"Transfer-Encoding: chunked\r\n\r\nzz", b"Content-Length: 9\r\n\r\n", b"Content-Length: 9\r\n\r\nabc", b"\r\n"],
)
def test_what_a_receiver_says_behind_200_is_not_waited_for(rest: bytes) -> None:
    """The message has arrived: to send it again would tell of it twice."""

    def answer(link: socket.socket) -> None:
        link.sendall(b"HTTP/1.1 200 OK\r\n" + rest)
        with suppress(OSError):
            while link.recv(65536):  # until it is left
                pass

    with answering(answer) as (url, taken):
        Receiver(url).post({"id": "x"})
    assert len([one for one in taken if one]) == 1  # of what ends this server nothing comes


@pytest.mark.parametrize(
    ("status", "again"),
    [(200, None), (204, None), (302, False), (307, False), (400, False), (404, False), (429, True), (503, True)],
)
def test_answers(status: int, again: bool | None) -> None:
    """A redirect is not followed: it would take the message elsewhere."""
    with receiving() as stub:
        stub.answers.append(status)
        receiver = Receiver(stub.url)
        if again is None:
            receiver.post({"id": "a/end", "event": "end", "state": "complete"})
        else:
            with pytest.raises(PostError, match=f"127.0.0.1 answered HTTP {status}") as failed:
                receiver.post({"id": "a/end", "event": "end", "state": "complete"})
            assert failed.value.again is again
        assert len(stub.posts) == 1


def test_nobody_answers() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/{HIDDEN_PART}"
    with pytest.raises(PostError, match="cannot be reached: Connection refused") as failed:
        Receiver(url).post({})
    assert failed.value.again
    assert HIDDEN_PART not in str(failed.value)
