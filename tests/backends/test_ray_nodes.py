"""What becomes of tasks and of slots when nodes drain, die and come: a cluster of a head without CPUs, and nodes."""

from __future__ import annotations

import os
import platform
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from curate.runtime.protocol import Message, Resources, Started, TaskEnd, TaskFinished
from tests.backends.calling import Calling, die, process_while
from tests.backends.polling import begun, ends, polled, the_end
from tests.support.fakes import NEVER_S
from tests.support.ray_head import losing_nodes

pytestmark = [pytest.mark.slow, pytest.mark.ray_lane]
HERE = platform.node()
MEMORY = 1 << 30


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with losing_nodes() as made:
        yield made


@pytest.fixture(scope="module")
def connected(cluster: Any) -> Iterator[Any]:
    """A backend that joined the cluster. It had no node that could hold a task, which is no reason to refuse."""
    from curate.backends.ray.backend import RayBackend

    backend = RayBackend()
    assert os.environ["RAY_ADDRESS"] == cluster.address
    backend.start(Resources())
    backend.load(Calling())
    assert backend.slots() == 0
    yield backend
    backend.close()


def wait(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + NEVER_S
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.02)


class Nodes:
    """Adds nodes with one CPU each, and takes them away."""

    def __init__(self, cluster: Any, backend: Any) -> None:
        self.cluster = cluster
        self.backend = backend
        self.made: list[Any] = []

    def add(self, memory: int = MEMORY) -> Any:
        self.made.append(self.cluster.add_node(num_cpus=1, memory=memory, object_store_memory=80 << 20))
        # Not `wait_for_nodes`, which also waits for the dead to be found dead.
        wait(lambda: self.made[-1].node_id in self.live(), "the node is up")
        return self.made[-1]

    def live(self) -> set[str]:
        """Returns the ids of the nodes that live."""
        import ray

        return {node["NodeID"] for node in ray.nodes() if node["Alive"]}

    def drain(self, node: Any) -> None:
        """What an autoscaler or a preemption notice does."""
        from ray._raylet import GcsClient
        from ray.core.generated.autoscaler_pb2 import DrainNodeReason

        accepted, why = GcsClient(address=self.cluster.address).drain_node(
            node.node_id, DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"), "a test", 0
        )
        assert accepted, why

    def kill(self, node: Any) -> None:
        """Takes the machine away: all its processes at once, its workers too."""
        self.made.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)

    def slots(self) -> int:
        """Returns what the backend sees now."""
        self.backend._view.forget()
        slots: int = self.backend.slots()
        return slots


@pytest.fixture
def nodes(cluster: Any, connected: Any) -> Iterator[Nodes]:
    made = Nodes(cluster, connected)
    yield made
    connected.cancel()
    for node in list(made.made):
        cluster.remove_node(node, allow_graceful=True)
    wait(lambda: made.slots() == 0, "all nodes are gone")


@pytest.mark.ray(1)
@pytest.mark.parametrize("announce", [False, True])
def test_a_task_whose_node_dies_is_lost(nodes: Nodes, connected: Any, announce: bool, tmp_path: Path) -> None:
    """Which node it was is known either way; the task next in the queue runs on a node that comes."""
    hold = tmp_path / "hold"
    hold.touch()
    node = nodes.add()
    assert nodes.slots() == 1
    connected.launch(1, [(process_while, str(hold))], 1, announce=announce)
    begun(hold)
    connected.launch(2, [(abs, -2)], 1)
    nodes.kill(node)
    end = the_end(polled(connected, ends(1)))
    assert (end.task, end.end, end.node) == (1, TaskEnd.LOST, HERE)
    first, message = end.detail.splitlines()
    assert first == "the node died"
    assert message.startswith("NodeDiedError: ")
    assert node.node_id in message
    nodes.add()
    assert polled(connected, ends(1)) == [Message(2, [2]), TaskFinished(2, TaskEnd.RETURNED)]


def test_a_draining_node_has_no_slot_and_gets_no_task(nodes: Nodes, connected: Any, tmp_path: Path) -> None:
    """What runs there may finish; what is launched then waits for another node."""
    hold = tmp_path / "hold"
    hold.touch()
    leaving = nodes.add()
    connected.launch(1, [(process_while, str(hold))], 1, announce=True)
    (busy,) = begun(hold)
    assert nodes.slots() == 1
    nodes.drain(leaving)
    assert nodes.slots() == 0
    assert connected.largest_memory() is None
    connected.launch(2, [(os.getpid,)], 1, announce=True)
    hold.unlink()
    news = polled(connected, ends(1))
    assert (the_end(news).task, the_end(news).end) == (1, TaskEnd.RETURNED)
    assert Message(1, [busy]) in news
    assert connected.poll(0.0) == []
    nodes.add()
    assert nodes.slots() == 1
    news = polled(connected, ends(1))
    assert [type(one) for one in news] == [Started, Message, TaskFinished]


def test_a_worker_that_dies_on_a_draining_node_is_lost(nodes: Nodes, connected: Any, tmp_path: Path) -> None:
    """Whoever takes a machine away kills its processes in any order: no shard is to blame for that."""
    hold = tmp_path / "hold"
    hold.touch()
    leaving = nodes.add()
    connected.launch(1, [(process_while, str(hold))], 1, announce=True)
    (pid,) = begun(hold)
    # What it says of itself would be lost with it.
    polled(connected, lambda news: any(isinstance(one, Started) for one in news))
    nodes.drain(leaving)
    os.kill(pid, signal.SIGKILL)
    end = the_end(polled(connected, ends(1)))
    assert (end.end, end.node, end.pid) == (TaskEnd.LOST, HERE, pid)


def test_a_raylet_that_is_killed_loses_nothing(nodes: Nodes, connected: Any, tmp_path: Path) -> None:
    """Its worker lives on, and hands in what it makes; what waits for the node's slot goes elsewhere."""
    hold = tmp_path / "hold"
    hold.touch()
    node = nodes.add()
    connected.launch(1, [(process_while, str(hold))], 1, announce=True)
    (pid,) = begun(hold)
    os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)
    nodes.add()
    connected.launch(2, [(abs, -2)], 1)
    assert Message(2, [2]) in polled(connected, ends(1))
    hold.unlink()
    assert Message(1, [pid]) in polled(connected, ends(1))


def test_the_largest_memory_is_that_of_a_node_which_has_the_rest(nodes: Nodes, connected: Any) -> None:
    """The head has more, but no CPU."""
    nodes.add(memory=2 * MEMORY)
    nodes.add(memory=3 * MEMORY)
    assert nodes.slots() == 2
    assert connected.largest_memory() == 3 * MEMORY
    connected.launch(1, [(die, "kill")], 1, memory=3 * MEMORY, announce=True)
    assert the_end(polled(connected, ends(1))).end is TaskEnd.CRASHED


def test_a_slot_has_the_least_that_one_has_on_any_node(nodes: Nodes, connected: Any) -> None:
    """The head has no CPU, and none of it."""
    assert connected.slot_memory() is None
    nodes.add(memory=2 * MEMORY)
    assert nodes.slots() == 1
    assert connected.slot_memory() == 2 * MEMORY
    nodes.add(memory=MEMORY)
    assert nodes.slots() == 2
    assert connected.slot_memory() == MEMORY


def test_what_the_autoscaler_may_start_counts(nodes: Nodes, connected: Any) -> None:
    """A request that only a node to come can hold is what makes it come."""
    from ray._raylet import GcsClient
    from ray.core.generated.autoscaler_pb2 import ClusterConfig, NodeGroupConfig

    def group(max_count: int, cpus: int, memory: int) -> Any:
        return NodeGroupConfig(max_count=max_count, resources={"CPU": cpus, "memory": memory}, name=f"{cpus}-{memory}")

    gcs = GcsClient(address=nodes.cluster.address)
    nodes.add()
    try:
        groups = [group(4, 8, 5 * MEMORY), group(0, 8, 9 * MEMORY), group(2, 0, 7 * MEMORY)]
        gcs.report_cluster_config(ClusterConfig(node_group_configs=groups).SerializeToString())
        assert nodes.slots() == 1
        assert connected.largest_memory() == 5 * MEMORY
    finally:
        gcs.report_cluster_config(ClusterConfig().SerializeToString())
    assert nodes.slots() == 1
    assert connected.largest_memory() == MEMORY
