"""What becomes of a stream when nodes are lost."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from curate.runtime.protocol import Resources
from curate.streaming.engine import stream_blocks
from curate.units import MIB
from tests.streaming.streaming import Blocks
from tests.streaming.test_stream import in_order, places
from tests.support.ray_head import losing_nodes

pytestmark = [pytest.mark.slow, pytest.mark.ray_lane]


def test_a_node_is_lost_with_blocks_that_were_taken(tmp_path: Path) -> None:
    """Those blocks, and what ran there, are made again on another node; the consumer gets each once."""
    from curate.backends.ray.backend import RayBackend

    with losing_nodes() as cluster:
        backend = RayBackend()
        try:
            nodes = [cluster.add_node(num_cpus=1, object_store_memory=80 * MIB) for _ in range(2)]
            cluster.wait_for_nodes()
            backend.start(Resources())
            program = Blocks(tmp_path, 20_000)
            stream = stream_blocks(program, [(i, 30) for i in range(4)], backend, budget_bytes=8 * MIB)
            tables = [next(stream) for _ in range(8)]
            while len({path.read_text() for path in tmp_path.iterdir()} - {""}) < 2:
                # Ray may tell of the second node late, and whoever takes nothing has nothing launched there.
                time.sleep(0.5)
                tables.append(next(stream))
            cluster.remove_node(nodes[0])
            tables += [next(stream) for _ in range(8)]
            cluster.add_node(num_cpus=1, object_store_memory=80 * MIB)
            cluster.remove_node(nodes[1])
            tables += stream
            assert places(tables) == in_order(4, 30)
        finally:
            backend.close()
