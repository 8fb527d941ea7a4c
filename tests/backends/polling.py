"""What tests of backends share: which there are, and polling until enough was told."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from curate.runtime.protocol import BackendEvent, TaskFinished
from tests.support.fakes import NEVER_S

WORKERS = ["local", pytest.param("ray", marks=[pytest.mark.slow, pytest.mark.ray_lane])]
"""Backends that run tasks in other processes."""


def polled(backend: Any, enough: Callable[[list[BackendEvent]], bool], within_s: float = NEVER_S) -> list[BackendEvent]:
    """Returns the news until there is enough of it."""
    news: list[BackendEvent] = []
    until = time.monotonic() + within_s
    while not enough(news):
        assert time.monotonic() < until, f"only {news} within {within_s} s"
        news += backend.poll(0.5)
    return news


def ends(count: int) -> Callable[[list[BackendEvent]], bool]:
    return lambda news: sum(isinstance(one, TaskFinished) for one in news) == count


def the_end(news: list[BackendEvent]) -> TaskFinished:
    (end,) = [one for one in news if isinstance(one, TaskFinished)]
    assert news[-1] == end
    return end


def begun(path: Path, count: int = 1) -> list[int]:
    """Returns the processes that wait for a file to vanish, once there are as many as that."""
    until = time.monotonic() + NEVER_S
    while len(found := [int(one.suffix[1:]) for one in path.parent.glob(f"{path.name}.*")]) < count:
        assert time.monotonic() < until
        time.sleep(0.01)
    return found
