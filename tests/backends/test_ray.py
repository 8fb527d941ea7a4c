"""The Ray backend against real clusters: what it tells of a dead worker, what nodes can hold, which addresses it takes.

What it has in common with other backends is in test_backends.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from curate.errors import ConfigError
from curate.runtime.protocol import Message, Resources, TaskEnd, TaskFinished
from tests.backends.calling import Calling
from tests.backends.polling import ends, polled
from tests.support.ray_head import own_ray

pytestmark = [pytest.mark.slow, pytest.mark.ray_lane]


@pytest.fixture(scope="module")
def machine() -> Iterator[Any]:
    """A cluster of this process alone, with two CPUs, and a backend on it."""
    from curate.backends.ray.backend import RayBackend

    with own_ray(2, object_store_memory=80 << 20):
        backend = RayBackend()
        backend.start(Resources())
        backend.load(Calling())
        yield backend
        backend.close()


def test_a_single_piece_is_a_plain_task(machine: Any) -> None:
    """Its message and its end come together, and nothing else: no stream, which would cost more than the task."""
    machine.launch(1, [(abs, -7)], 1)
    assert polled(machine, ends(1)) == [Message(1, [7]), TaskFinished(1, TaskEnd.RETURNED)]


def test_a_task_can_ask_for_the_memory_of_a_node(machine: Any) -> None:
    """As much as the cluster has."""
    import ray

    assert machine.largest_memory() == int(ray.cluster_resources()["memory"])


def test_looking_at_the_nodes_is_rare(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dispatcher asks for the slots after every harvest; Ray is asked every two seconds."""
    import ray

    asked: list[int] = []
    nodes = ray.nodes
    monkeypatch.setattr(ray, "nodes", lambda: asked.append(1) or nodes())
    machine._view.forget()
    assert {machine.slots() for _ in range(1000)} == {2}
    assert machine.largest_memory() > 0
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("ray://127.0.0.1:10001", "submit the script with `ray job submit`"),
        ("http://127.0.0.1:8265", "submit the script with `ray job submit`"),
        ("127.0.0.1", "Invalid address format"),
    ],
)
def test_an_address_that_is_none_is_refused(address: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to do instead."""
    import ray

    from curate.backends.ray.backend import RayBackend

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match=says):
        RayBackend().start(Resources())


def test_a_cluster_that_does_not_answer_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would try for minutes."""
    import ray

    from curate.backends.ray.backend import RayBackend

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(ConfigError, match=r"no cluster answers there .*set RAY_ADDRESS=local to use this machine"):
            RayBackend().start(Resources())
