"""Where posts go: what is taken for a URL, that nobody sees it, and what an answer means."""

from __future__ import annotations

import socket

import pytest

from curate import log
from curate.errors import ConfigError
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
