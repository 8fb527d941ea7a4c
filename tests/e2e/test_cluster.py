"""A cluster of several nodes, one of which dies under its tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import (
    CURATION,
    Driver,
    Place,
    alive,
    balanced,
    corpus,
    executions,
    outputs,
    run,
    totals,
    wait_until,
    workers,
)

pytestmark = [pytest.mark.slow, pytest.mark.ray_lane]
ONE_CPU = {"num_cpus": 1, "object_store_memory": 100 << 20}


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head without CPUs: all tasks run on nodes that can be taken away."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    yield made
    made.shutdown()


def test_a_node_that_dies_loses_no_shard(cluster: Any, local: Place, tmp_path: Path) -> None:
    """Its tasks are requeued at once, on the node that is left: exit 0, same bytes, exact books."""
    nodes = [cluster.add_node(**ONE_CPU) for _ in range(2)]
    cluster.wait_for_nodes()
    env = {"RAY_ADDRESS": cluster.address, "CURATE_BACKEND": "ray"}
    source = local.write("in", corpus(sizes=(60, 30, 60, 0, 70, 10, 40)))
    whole = run(CURATION, "--backend", "inline", "--json", "--input", source, "--output", f"{local.root}/whole")
    hold, trace = tmp_path / "hold", tmp_path / "trace"
    argv = [CURATION, "--json", "--input", source, "--output", f"{local.root}/out"]
    assert run(*argv, "--limit", "1", env=env).code == 0
    hold.touch()
    with Driver([*argv, "--hold", str(hold), "--trace", str(trace)], env) as driver:
        wait_until(lambda: len(executions(trace)) == 2, "both nodes are busy")
        cluster.remove_node(nodes[1], allow_graceful=False)
        # A worker may live on for a second, and hand in what it has finished.
        wait_until(lambda: not all(alive(pid) for pid in workers(trace)), "a worker is gone")
        hold.unlink()
        ended = driver.end()
    assert ended.code == 0, ended.err
    result = ended.json
    assert totals(result) == totals(whole.json)
    assert balanced(result["rows"])
    assert outputs(local.objects("out")) == outputs(local.objects("whole"))
    assert result["tasks"]["attempts"] > result["shards"]["total"] - result["shards"]["skipped"]
    assert json.loads(local.objects("out")["_curate/summary.json"])["shards"]["done"] == 7


def test_no_node_yet_is_waited_for(cluster: Any, local: Place) -> None:
    """Tasks are launched although no slot is there: they are the demand that an autoscaler sees."""
    source = local.write("in", corpus(sizes=(60, 30)))
    argv = [CURATION, "--json", "--input", source, "--output", f"{local.root}/out"]
    with Driver(argv, {"RAY_ADDRESS": cluster.address, "CURATE_BACKEND": "ray"}) as driver:
        wait_until(lambda: any(name.endswith("heartbeat.json") for name in local.objects("out")), "the run begins")
        assert driver.running()
        cluster.add_node(**ONE_CPU)
        ended = driver.end()
    assert ended.code == 0, ended.err
