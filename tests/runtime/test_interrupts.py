"""A Ctrl-C waits for what must not be left half done."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from curate.runtime.interrupts import uninterrupted


@pytest.fixture(autouse=True)
def _as_at_a_terminal() -> Iterator[None]:
    """What a shell starts in the background ignores interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted(done: list[str], says: str = "", error: Exception | None = None) -> None:
    """Is interrupted twice within a block, which may end with an error."""
    with uninterrupted(says):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        done.append("all")
        if error is not None:
            raise error


def test_it_is_raised_when_the_block_has_ended(capfd: pytest.CaptureFixture[str]) -> None:
    """All of the block runs, however often it came; who waits is told."""
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(done, "not yet")
    assert done == ["all"]
    assert capfd.readouterr().err == "not yet\nnot yet\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_goes_first() -> None:
    with pytest.raises(ValueError, match="mine"):
        interrupted([], error=ValueError("mine"))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_who_handles_interrupts_is_asked_at_once() -> None:
    """A run that is interrupted while Ray starts ends then, as its own handler says."""
    came: list[bool] = []
    ended = False
    signal.signal(signal.SIGINT, lambda *_: came.append(ended))
    try:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            ended = True
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert came == [False]
