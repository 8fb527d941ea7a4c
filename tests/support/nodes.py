"""Nodes of several kinds that join a local cluster and leave it, drained or killed, and what a job did on them."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.harness import alive, wait_until

KINDS: dict[str, dict[str, Any]] = {
    "small": {"num_cpus": 1},
    "large": {"num_cpus": 2},
    "tpu": {"num_cpus": 1, "resources": {"TPU": 4, "TPU-v4-8-head": 1}},
}
"""What nodes announce. The head announces no CPU."""
ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    # A dead node is found dead in one second, not in ten.
    "RAY_health_check_period_ms": "300",
    "RAY_health_check_failure_threshold": "3",
}


@dataclass(frozen=True)
class Look:
    """A line that a job left: something was begun, or ended, in a process on a node."""

    what: str
    begun: bool
    pid: int
    node: str

    @property
    def stage(self) -> str:
        return self.what.partition(":")[0]


def looks(trace: Path) -> list[Look]:
    """Returns what a job left word of so far, in order."""
    lines = trace.read_text().splitlines() if trace.exists() else []
    parts = [line.rsplit(" ", 3) for line in lines]
    return [Look(what, said == "begun", int(pid), node) for what, said, pid, node in parts]


def begun(trace: Path) -> Counter[str]:
    """Returns how often each shard was begun; actors are left out."""
    return Counter(one.what for one in looks(trace) if one.begun and one.stage != "actor")


class Fleet:
    """A Ray cluster whose nodes come and go. Used by the main thread: Ray starts nodes from no other."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self.nodes: dict[Any, str] = {}
        """Those that live and stay, and their kind."""
        self.draining: dict[Any, str] = {}
        self._killed: set[int] = set()
        """Processes that lived on nodes when those were killed."""
        self.came: Counter[str] = Counter()
        self.left: Counter[str] = Counter()
        self.drained = 0

    @property
    def env(self) -> dict[str, str]:
        return {"RAY_ADDRESS": self._cluster.address, "CURATE_BACKEND": "ray"}

    @property
    def head_id(self) -> str:
        found: str = self._cluster.head_node.node_id
        return found

    @property
    def slots(self) -> int:
        """CPUs of the nodes that live and stay."""
        return sum(KINDS[kind]["num_cpus"] for kind in self.nodes.values())

    def add(self, kind: str) -> Any:
        """Starts a node."""
        node = self._cluster.add_node(wait=False, object_store_memory=80 << 20, **KINDS[kind])
        self.nodes[node] = kind
        self.came[kind] += 1
        return node

    def drain(self, node: Any) -> None:
        """Tells the cluster that a node is about to leave, as an autoscaler or a notice of preemption does."""
        from ray._raylet import GcsClient
        from ray.core.generated.autoscaler_pb2 import DrainNodeReason

        accepted, why = GcsClient(address=self._cluster.address).drain_node(
            node.node_id, DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"), "a test", 0
        )
        assert accepted, why
        self.draining[node] = self.nodes.pop(node)
        self.drained += 1

    def kill(self, node: Any) -> None:
        """Takes a machine away: all its processes at once, its workers too."""
        kind = self.nodes.pop(node, "") or self.draining.pop(node)
        self.left[kind] += 1
        raylet = node.all_processes["raylet"][0].process.pid
        # Before anything dies: what runs there now is what is lost.
        workers = Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()
        self._killed.update(map(int, workers))
        self._cluster.remove_node(node, allow_graceful=False)
        wait_until(lambda: not any(alive(int(pid)) for pid in workers), "the workers of a killed node are gone")

    def lost(self, trace: Path) -> int:
        """Returns how many tasks may have been running on nodes that were killed: one a process that had begun any.

        A task that waits for a pool lets go of its CPU, and another one runs beside it: there may be more than CPUs.
        """
        return len({one.pid for one in looks(trace) if one.stage != "actor" and one.pid in self._killed})

    def close(self) -> None:
        self._cluster.shutdown()


@contextlib.contextmanager
def fleet(root: Path) -> Iterator[Fleet]:
    """Makes a cluster of a head without CPUs, whose nodes find modules below `root`."""
    before = {name: os.environ.get(name) for name in (*ENVIRONMENT, "PYTHONPATH")}
    os.environ.update(ENVIRONMENT, PYTHONPATH=str(root))
    made = None
    try:
        made = Fleet()
        yield made
    finally:
        if made is not None:
            made.close()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
