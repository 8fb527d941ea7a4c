"""Workers, nodes and tasks that really die, run out of memory, hang or leave, under a job run as users run it."""

from __future__ import annotations

import os
import platform
import re
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from curate.observe.failures import read_failures
from tests.support.harness import (
    Driver,
    Ended,
    Place,
    balanced,
    check_same,
    corpus,
    executions,
    run,
    totals,
    wait_until,
    workers,
)

pytestmark = [pytest.mark.slow, pytest.mark.ray_lane]
TROUBLE = "tests/e2e/jobs/trouble.py"
FILES = corpus(sizes=(60, 30, 60, 40, 70, 10, 45, 20))
NAMES = sorted(FILES)
GIB = 1 << 30
TIMEOUT_S = 25.0
"""Of the task that hangs. The others hold until a node has come, however long that takes, and then need far less."""


@dataclass
class Work:
    """A job over the files of this module on a cluster, and the same job undisturbed."""

    place: Place
    source: str
    trace: Path
    hold: Path
    address: str

    @property
    def argv(self) -> list[str]:
        marks = str(self.trace.parent)
        own = ["--input", self.source, "--output", f"{self.place.root}/out", "--once-dir", marks]
        return [TROUBLE, "--json", *own, "--trace", str(self.trace), "--hold", str(self.hold)]

    @property
    def env(self) -> dict[str, str]:
        return {"RAY_ADDRESS": self.address, "CURATE_BACKEND": "ray"}

    def begin(self) -> None:
        """Does the first shard inline: what follows needs no task to find out the schema."""
        assert run(*self.argv, "--backend", "inline", "--limit", "1").code == 0
        self.trace.unlink()

    def failure(self, kind: str) -> dict[str, Any]:
        """Returns what the ledger says of the one try that failed, of that kind, at a known place."""
        (group,) = read_failures(f"{self.place.root}/out").all_groups()
        assert group.kinds == {kind: 1}
        assert group.example["node"] == platform.node()
        return dict(group.example)

    def begun(self) -> dict[str, int]:
        """Returns how often each input was begun, on the cluster."""
        return {name.split(":")[0]: count for name, count in executions(self.trace).items()}

    def check(self, ended: Ended, attempts: int) -> None:
        """Checks that the output and all that is counted are those of a job in which nothing happened."""
        assert ended.code == 0, ended.err
        result = ended.json
        whole = run(TROUBLE, "--backend", "inline", "--json", "--input", self.source, "--output", self.whole)
        assert whole.code == 0, whole.err
        assert totals(result) == totals(whole.json)
        assert balanced(result["rows"])
        check_same(self.place.objects("out"), self.place.objects("whole"))
        assert result["tasks"]["attempts"] == attempts

    @property
    def whole(self) -> str:
        return f"{self.place.root}/whole"


def make_cluster(**head: Any) -> Any:
    """Returns a cluster of this test alone: nobody else finds it, and joins it unasked."""
    from ray.cluster_utils import Cluster

    return Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **head})


@pytest.fixture(scope="module", autouse=True)
def environment() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(dir="/tmp") as folder:
        patch.setenv("RAY_TMPDIR", folder)
        # A dead node is found dead in a second, not in ten.
        patch.setenv("RAY_health_check_period_ms", "300")
        patch.setenv("RAY_health_check_failure_threshold", "3")
        yield patch


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without CPUs: all tasks run on nodes that can be taken away."""
    made = make_cluster(num_cpus=0)
    yield made
    made.shutdown()


@dataclass
class Nodes:
    """Nodes with one CPU each."""

    cluster: Any

    def add(self, **arguments: Any) -> Any:
        before = len(self.cluster.worker_nodes)
        node = self.cluster.add_node(num_cpus=1, object_store_memory=80 << 20, **arguments)
        assert len(self.cluster.worker_nodes) == before + 1
        return node

    def live(self) -> set[str]:
        """Returns the ids of the nodes that the cluster takes to be alive."""
        return {node["NodeID"] for node in self.cluster.global_state.node_table() if node["Alive"]}

    def drain(self, node: Any) -> None:
        """What a notice of preemption does."""
        from ray._raylet import GcsClient
        from ray.core.generated.autoscaler_pb2 import DrainNodeReason

        preemption = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        accepted, why = GcsClient(address=self.cluster.address).drain_node(node.node_id, preemption, "a test", 0)
        assert accepted, why


@pytest.fixture
def nodes(cluster: Any) -> Iterator[Nodes]:
    yield Nodes(cluster)
    for node in list(cluster.worker_nodes):
        cluster.remove_node(node, allow_graceful=True)


@pytest.fixture
def work(local: Place, tmp_path: Path, cluster: Any) -> Work:
    made = Work(local, local.write("in", FILES), tmp_path / "trace", tmp_path / "hold", cluster.address)
    made.begin()
    return made


def test_a_worker_is_killed_in_a_bundle(work: Work, nodes: Nodes) -> None:
    """The shard that it died of runs again; those before and behind it in the task run once."""
    nodes.add()
    # With a time limit, each task says where it is when it begins; else quick ones do not.
    ended = run(*work.argv, "--kills", NAMES[3], "--task-timeout-s", "600", env=work.env)
    work.check(ended, attempts=len(NAMES))
    assert work.begun() == dict.fromkeys(NAMES[1:], 1) | {NAMES[3]: 2}
    failure = work.failure("crashed")
    assert failure["pid"] in workers(work.trace)
    assert failure["error"] == "crashed: the worker died: killed, a segmentation fault, or an exit"


def test_a_task_hangs(work: Work, nodes: Nodes) -> None:
    """Once the shard has taken `task_timeout_s`, its worker is killed, and it runs again."""
    nodes.add()
    started = time.monotonic()
    ended = run(*work.argv, "--hangs", NAMES[5], "--task-timeout-s", str(TIMEOUT_S), env=work.env)
    assert time.monotonic() - started > TIMEOUT_S
    work.check(ended, attempts=len(NAMES))
    assert work.begun() == dict.fromkeys(NAMES[1:], 1) | {NAMES[5]: 2}
    assert work.failure("timed_out")["pid"] in workers(work.trace)


@pytest.mark.nightly
def test_a_raylet_is_killed(work: Work, nodes: Nodes) -> None:
    """Its worker lives on and hands in what it makes; all else runs on the other node. Nothing is done twice."""
    first = nodes.add()
    nodes.add()
    work.hold.touch()
    with Driver(work.argv, work.env) as driver:
        wait_until(lambda: len(workers(work.trace)) == 2, "both nodes are busy")
        os.kill(first.all_processes["raylet"][0].process.pid, signal.SIGKILL)
        wait_until(lambda: first.node_id not in nodes.live(), "its death is known")
        work.hold.unlink()
        ended = driver.end()
    work.check(ended, attempts=len(NAMES) - 1)
    assert work.begun() == dict.fromkeys(NAMES[1:], 1)


def test_a_machine_is_taken_away(work: Work, nodes: Nodes) -> None:
    """Raylet and worker die together: what ran there runs again on the other node, at once."""
    nodes.add()
    second = nodes.add()
    work.hold.touch()
    with Driver(work.argv, work.env) as driver:
        wait_until(lambda: len(workers(work.trace)) == 2, "both nodes are busy")
        raylet = second.all_processes["raylet"][0].process.pid
        (worker,) = (pid for pid in workers(work.trace) if parent(pid) == raylet)
        for pid in (raylet, worker):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: second.node_id not in nodes.live(), "its death is known")
        work.hold.unlink()
        ended = driver.end()
    assert sum(work.begun().values()) == len(NAMES)
    work.check(ended, attempts=len(NAMES))


def test_a_node_that_drains_finishes_what_it_has(work: Work, nodes: Nodes) -> None:
    """Its task ends well, it gets no other and leaves; the rest waits for, and runs on, a node that comes."""
    leaving = nodes.add()
    work.hold.touch()
    with Driver(work.argv, work.env) as driver:
        (stays,) = wait_until(lambda: workers(work.trace), "the node is busy")
        nodes.drain(leaving)
        nodes.add()
        wait_until(lambda: len(workers(work.trace)) == 2, "the new node is busy")
        work.hold.unlink()
        ended = driver.end()
    work.check(ended, attempts=len(NAMES) - 1)
    assert work.begun() == dict.fromkeys(NAMES[1:], 1)
    assert stays in workers(work.trace)
    wait_until(lambda: leaving.node_id not in nodes.live(), "it has left, being idle")


def parent(pid: int) -> int:
    """Returns the process that started another."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.usefixtures("gigabytes")
def test_a_task_leaks_until_ray_kills_it(local: Place, tmp_path: Path, environment: pytest.MonkeyPatch) -> None:
    """The shard alone is launched again, with twice what it had; with that much it does not leak, and all is well."""
    with environment.context() as patch:
        # Other tests take gigabytes, or give them back, meanwhile: drivers and workers of their own, files in memory.
        patch.setenv("RAY_memory_usage_threshold", f"{memory_in_use(and_bytes=4 * GIB):.4f}")
        # As seldom as Ray looks by default: what was killed is to be gone by the next time, else another one is killed.
        patch.setenv("RAY_memory_monitor_refresh_ms", "250")
        cluster = make_cluster(num_cpus=1, memory=16 * GIB, object_store_memory=80 << 20)
    try:
        work = Work(local, local.write("in", FILES), tmp_path / "trace", tmp_path / "hold", cluster.address)
        work.begin()
        ended = run(*work.argv, "--leaks", NAMES[2], "--task-timeout-s", "600", env=work.env)
        work.check(ended, attempts=len(NAMES))
        assert work.begun() == dict.fromkeys(NAMES[1:], 1) | {NAMES[2]: 2}
        failure = work.failure("out_of_memory")
        assert failure["pid"] in workers(work.trace)
        assert re.fullmatch(
            r"out of memory: the worker used [\d.]+ [GM]iB when its node ran out of memory", failure["error"]
        )
        assert "Considered workers" in failure["traceback"]
        assert GIB // 2 < failure["peak_bytes"] < 7 * GIB
    finally:
        cluster.shutdown()


def memory_in_use(and_bytes: int) -> float:
    """Returns the share of this machine's memory that is in use, and some more of it."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return 1 - (kib["MemAvailable"] - and_bytes / 1024) / kib["MemTotal"]
