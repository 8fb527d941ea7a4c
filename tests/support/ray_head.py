"""A Ray that many tests share, each with a driver of its own: a start of Ray takes longer than what most of them do."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

ROOT = Path(__file__).parents[2]
_OF_NO_WORKER = frozenset({"COLUMNS", "LINES", "PYTEST_CURRENT_TEST", "RAY_ADDRESS", "_"})

_environments: dict[str, dict[str, str]] = {}
"""By address of a head, what its workers find in their environment by themselves."""


@contextlib.contextmanager
def ray_head() -> Iterator[str]:
    """Starts a cluster of one node with the CPUs of this machine; returns its address.

    Its files are where none of this process is looked for: who does not name it does not join it.
    """
    from ray.cluster_utils import Cluster

    limits: dict[str, Any] = {"num_cpus": os.cpu_count() or 1, "object_store_memory": 200 << 20}
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_TMPDIR", folder)
            # Workers are where it was started: not in a folder of the test that came first, which goes with it.
            patch.chdir(ROOT)
            made = Cluster(initialize_head=True, head_node_args={**limits, "include_dashboard": False})
            _environments[made.address] = dict(os.environ)
        try:
            yield made.address
        finally:
            del _environments[made.address]
            made.shutdown()


@contextlib.contextmanager
def own_ray(num_cpus: float, **options: Any) -> Iterator[None]:
    """Starts a Ray of this process alone, whose workers import this checkout."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        ray.init("local", num_cpus=num_cpus, include_dashboard=False, log_to_driver=False, **options)
    try:
        yield
        assert ray.is_initialized(), "closing a backend ended what others had begun"
    finally:
        ray.shutdown()


@contextlib.contextmanager
def losing_nodes(**head: Any) -> Iterator[Any]:
    """Starts a cluster that this process joins, of a head without CPUs. A dead node is found dead in a second, not in
    ten. The backends of this process are to be closed before it ends, and it leaves the cluster."""
    from ray.cluster_utils import Cluster

    from curate.backends.ray import session

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("RAY_health_check_period_ms", "300")
        patch.setenv("RAY_health_check_failure_threshold", "3")
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **head})
        patch.setenv("RAY_ADDRESS", made.address)
        try:
            yield made
        finally:
            # A cluster does not end while this process is connected to it.
            session.leave_for_good()
            made.shutdown()


def for_workers(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns what a driver with this environment needs in it besides, so that its workers on a shared head have the
    same: as when the driver is a submitted job. Nothing for a cluster that is the driver's own."""
    there = _environments.get(environ.get("RAY_ADDRESS", ""))
    if there is None:
        return {}
    other = {name: value for name, value in environ.items() if there.get(name) != value and name not in _OF_NO_WORKER}
    return {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": {"env_vars": other}})}


def lists_jobs(address: str, token: str) -> bool:
    """Returns whether a head tells which jobs it knows: what `ray job list` asks for, which takes two seconds of a
    processor, however often it is asked."""
    from scripts.clusters.connect import Api, ConnectionLost

    try:
        Api(address, token).get("/api/jobs/")
    except (ConnectionLost, HTTPError):
        return False
    return True
