"""The cluster: its address, its nodes, and Ray's messages about them."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import ray

from curate.backends.ray.find import answers
from curate.dataclass import dataclass
from curate.errors import ConfigError
from curate.log import get_logger

VIEW_MAX_AGE_S = 2.0
"""How long what is known of the cluster's nodes is trusted."""
NOTICE_INTERVAL_S = 10.0
"""What Ray tells of the cluster is passed on at most this often."""
MAX_NOTICE = 300
"""Characters of a notice of Ray's."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster, dead or alive."""

    id: str
    name: str
    resources: Mapping[str, float]
    """What it has, whether in use or not."""
    alive: bool
    draining: bool

    @property
    def stays(self) -> bool:
        """Whether it lives and is not about to leave."""
        return self.alive and not self.draining


class ClusterView:
    """The nodes of the cluster, read every two seconds at most."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._read_s = -math.inf
        self.version = 0
        """Changes when the nodes are read."""
        self.names: dict[str, str] = {}
        """Names of nodes, those that died too, by their id, as last read."""
        self.drains = 0
        """How often nodes were found to drain that did not before."""
        self._drained: frozenset[str] = frozenset()
        self.kinds: list[dict[str, float]] = []
        """What the nodes have that the autoscaler may start, as last read."""

    def forget(self) -> None:
        """Makes the next look a new one."""
        self._read_s = -math.inf

    def nodes(self) -> Mapping[str, Node]:
        """Returns the nodes by their id, the dead ones too."""
        now = time.monotonic()
        if now - self._read_s > VIEW_MAX_AGE_S:
            self._read_s = now
            leaving = draining()
            self.drains += not leaving <= self._drained
            self._drained |= leaving
            self._nodes = {
                one["NodeID"]: Node(
                    one["NodeID"],
                    one["NodeManagerHostname"],
                    one["Resources"],
                    one["Alive"],
                    one["NodeID"] in leaving,
                )
                for one in ray.nodes()
            }
            self.names = {one.id: one.name for one in self._nodes.values()}
            self.kinds = configurable()
            self.version += 1
        return self._nodes


def leaves(node_id: str) -> bool:
    """Returns whether a node is dead or about to be. What takes a machine away may kill its processes one by one."""
    if not node_id:
        return False
    return node_id in draining() or any(n["NodeID"] == node_id and not n["Alive"] for n in ray.nodes())


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def cluster_address() -> str | None:
    """Returns where Ray would find a cluster, None if it would make one. Raises ConfigError if no cluster is there."""
    wanted = os.environ.get("RAY_ADDRESS", "")
    if "://" in wanted:
        raise ConfigError(
            f"RAY_ADDRESS is {wanted}, but a driver must run inside the cluster: submit the script with `ray job "
            "submit`, or set host:port of the head of this machine's cluster"
        )
    try:
        from ray._private import services

        address: str | None = services.canonicalize_bootstrap_address(None)
    except (ImportError, AttributeError):
        address = wanted if wanted != "local" else None
    except (ValueError, ConnectionError) as error:
        raise ConfigError(f"RAY_ADDRESS is {wanted!r}: {first_line(error)}") from error
    if not address:
        return None
    if (problem := answers(address)) is not None:
        found = f"RAY_ADDRESS is {wanted}" if wanted else f"the last cluster started on this machine was at {address}"
        raise ConfigError(
            f"{found}, but no cluster answers there ({problem}); "
            "start it, or set RAY_ADDRESS=local to use this machine only"
        ) from problem
    return address


def node_here() -> Any:
    """Returns what Ray knows of the node that this process is connected to, another object for each connection. None
    without one; Ray has no public call for it."""
    from ray._private import worker

    return getattr(worker, "_global_node", None)


def made_by_this_process() -> bool:
    """Returns whether the cluster is one of this process alone. `ray.init` may have joined another unasked."""
    node = node_here()
    return node is not None and bool(node.is_head())


def draining() -> frozenset[str]:
    """Returns the ids of the nodes that are about to leave. Ray has no public call for it; none if it has no other."""
    try:
        from ray._private.state import state

        return frozenset(state.get_draining_nodes())
    except (ImportError, AttributeError):
        return frozenset()


def configurable() -> list[dict[str, float]]:
    """Returns the resources of the kinds of nodes that the autoscaler may start, as far as it has told."""
    try:
        from ray._private.state import state

        config = state.get_cluster_config()
    except (ImportError, AttributeError):
        return []
    groups = config.node_group_configs if config else []
    # -1 means that there is no bound.
    return [{k: n if n >= 0 else sys.maxsize for k, n in g.resources.items()} for g in groups if g.max_count]


def hush() -> Callable[[], None]:
    """Makes one short log line of what Ray tells of the cluster, now and then; returns what undoes this.

    Ray prints it to standard output whatever it is told: a page for every node that dies, of which there are many.
    """
    try:
        from ray._private import worker

        before = worker.print_to_stdstream
    except (ImportError, AttributeError):
        return lambda: None
    log, told_s, untold = get_logger(), -math.inf, 0

    def notice(data: dict[str, Any], *_: Any, **__: Any) -> None:
        nonlocal told_s, untold
        now = time.monotonic()
        if now - told_s < NOTICE_INTERVAL_S:
            untold += 1
            return
        text = " ".join(" ".join(data.get("lines", ())).split())
        log.warning("Ray says", notice=text[:MAX_NOTICE], untold=untold)
        told_s, untold = now, 0

    worker.print_to_stdstream = notice

    def undo() -> None:
        worker.print_to_stdstream = before

    return undo
