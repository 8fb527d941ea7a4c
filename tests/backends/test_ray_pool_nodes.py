"""What becomes of a pool when nodes drain, die and come: tasks run on the head, each actor on a node of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from curate.runtime.protocol import PoolSpec, Resources
from tests.backends.calling import Calling
from tests.backends.pooling import Conducting, Serving, held, slowly
from tests.backends.test_pools import Pooled, values
from tests.backends.test_ray_nodes import Nodes
from tests.support.harness import alive
from tests.support.ray_head import losing_nodes

pytestmark = [pytest.mark.slow, pytest.mark.ray_lane]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with losing_nodes(resources={"task": 4}) as made:
        yield made


@pytest.fixture(scope="module")
def backend(cluster: Any) -> Iterator[Any]:
    from curate.backends.ray.backend import RayBackend

    made = RayBackend()
    assert cluster.address
    made.start(Resources(num_cpus=0, custom={"task": 1}))
    yield made
    made.close()


@pytest.fixture
def nodes(cluster: Any, backend: Any) -> Iterator[Nodes]:
    made = Nodes(cluster, backend)
    yield made
    backend.cancel()
    backend.load(Calling())
    for node in list(made.made):
        made.kill(node)


@pytest.fixture
def pooled(backend: Any, tmp_path: Path) -> Pooled:
    (tmp_path / "pids").mkdir()
    return Pooled(backend, tmp_path / "pids")


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """While it is there, no call ends."""
    (tmp_path / "gate").touch()
    return tmp_path / "gate"


def spec(folder: Path, size: int) -> PoolSpec:
    return PoolSpec("serving", Serving(folder), Resources(num_cpus=1), min_size=size, max_size=size, max_in_flight=2)


def test_a_node_is_lost_with_its_actor(nodes: Nodes, backend: Any, pooled: Pooled, gate: Path) -> None:
    """All answers come, in order, from those that are left, and from the one that a new node brings."""
    first, _ = nodes.add(), nodes.add()
    backend.load(Conducting(), [spec(pooled.folder, 2)])
    pooled.until(lambda state: state.ready == 2)
    backend.launch(0, [(held, k, gate) for k in range(400)], 1)
    pooled.until(lambda state: state.queued > 0)
    nodes.kill(first)
    pooled.until(lambda state: state.ready == 1)
    gate.unlink()
    assert (backend.pools()[0].starting, len(pooled.pids())) == (1, 2)
    nodes.add()
    (items,) = pooled.told(1)
    assert values(items) == list(range(400))
    pooled.until(lambda state: state.ready == 2)
    assert len(pooled.pids()) == 3


def test_a_draining_node_gets_no_calls(nodes: Nodes, backend: Any, pooled: Pooled, gate: Path) -> None:
    """As soon as another actor is ready; the one there goes on until then, and ends with what it has."""
    first = nodes.add()
    backend.load(Conducting(), [spec(pooled.folder, 1)])
    (before,) = pooled.pids()
    # Both that it has at first: two calls made while a task finds its actor come there in any order.
    backend.launch(0, [(held, 0, gate), (held, 1, gate), *((slowly, k, 0.02) for k in range(2, 700))], 1)
    pooled.until(lambda state: state.queued > 0)
    nodes.drain(first)
    pooled.until(lambda state: state.starting == 1)
    nodes.add()
    pooled.until(lambda state: state.starting == 0 and len(pooled.pids()) == 2)
    gate.unlink()
    (items,) = pooled.told(1)
    assert values(items) == list(range(700))
    (after,) = pooled.pids() - {before}
    served = [pid for _, pid in items[:-1]]
    assert (served[0], served[-1]) == (before, after)
    # The one there gets none once the other one does.
    assert served == [before] * served.count(before) + [after] * served.count(after)
    pooled.until(lambda state: state.ready == 1 and not alive(before))
