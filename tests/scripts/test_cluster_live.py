"""scripts/cluster submit, to a token-protected head without CPUs and two workers that run here."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripts.clusters.connect import Api
from tests.support.fakes import NEVER_S
from tests.support.harness import (
    ROOT,
    Place,
    corpus,
    end_all,
    json_line,
    marked,
    outputs,
    run,
    totals,
    wait_until,
    write_files,
)
from tests.support.ports import free_port
from tests.support.ray_head import lists_jobs

pytestmark = [pytest.mark.slow, pytest.mark.ray_lane]
BIN = Path(sys.executable).parent
LOOK_S = 0.2
"""How often the head is asked what there is, which takes its time."""
SECRET = "s3cr3t-value-of-the-key"
POOLED = r'''
"""Counts the words of texts in a pool of actors, sorts them, and knows a key."""

import pyarrow.compute as pc

from curate import ActorPool, Dataset, TextJob, param


class Counter:
    def __call__(self, batch):
        return batch.append_column("words", pc.count_substring_regex(batch["text"], r"\S+"))


class Words(TextJob):
    version = "1"
    text_column = "text"
    key: str = param(secret=True)

    def build(self, ds: Dataset) -> Dataset:
        assert len(self.key) == 23
        long = ds.filter(pc.utf8_length(pc.field("text")) > 5, reason="short")
        counted = long.map_batches(Counter, compute=ActorPool(size=1)).filter(pc.field("words") > 2, reason="few words")
        return counted.sort(["words", "id"])


if __name__ == "__main__":
    Words.main()
'''


TALKING = """
import sys, time
from pathlib import Path
gate = Path(sys.argv[1])
for number in range(200):
    print(f"line {number}", flush=True)
    if number == 99:
        (gate / "half").touch()
        while not (gate / "go").exists():
            time.sleep(0.05)
"""


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster of three nodes on this machine."""

    address: str
    env: Mapping[str, str]
    work: Path
    """The working directory that jobs are submitted from: a checkout of its own."""
    mark: str

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        """Starts scripts/cluster in the working directory."""
        return subprocess.Popen(
            [sys.executable, str(ROOT / "scripts/cluster"), *words],
            cwd=self.work,
            env={**self.env, "CURATE_TEST_HEAD": "", **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def submit(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Submits a job and follows it to its end."""
        process = self.start("submit", "--address", self.address, *words, **env)
        out, err = process.communicate(timeout=NEVER_S)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def jobs(self) -> str:
        """Returns all that Ray tells of the jobs that it knows."""
        return json.dumps(Api(self.address, self.env["RAY_AUTH_TOKEN"]).get("/api/jobs/"), sort_keys=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # Paths of sockets are limited to 107 characters.
    temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    mark = f"CURATE_TEST_HEAD={uuid.uuid4().hex}"
    env = {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "HOME": temporary,
        "CURATE_HOME": f"{temporary}/curate",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": uuid.uuid4().hex,
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }
    work = tmp_path_factory.mktemp("work")
    for name in ("curate", "jobs", "scripts/clusters"):
        shutil.copytree(ROOT / name, work / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", ".gitignore"):
        shutil.copy(ROOT / name, work)
    shutil.copy(ROOT / "tests/e2e/jobs/curation.py", work / "jobs")
    write_files(work, {"jobs/pooled.py": POOLED.encode(), "demo/big": bytes(1000)})
    gcs, port = free_port(), free_port()
    start = [str(BIN / "ray"), "start", "--block", "--disable-usage-stats", "--object-store-memory=100000000"]
    head = [
        "--head",
        "--node-ip-address=127.0.0.1",
        f"--port={gcs}",
        f"--dashboard-port={port}",
        "--dashboard-host=127.0.0.1",
        "--num-cpus=0",
    ]
    head += [f"--ray-client-server-port={free_port()}"]
    processes = []

    def begin(*words: str) -> subprocess.Popen[bytes]:
        # As on machines of their own: each agent listens at another port and unpacks the code of a job elsewhere. In
        # one folder the last agent would remove what others unpacked and unpack it again, while the job reads it.
        apart = [f"--dashboard-agent-listen-port={free_port()}", f"--temp-dir={temporary}/{len(processes)}"]
        command = [*start, *words, *apart]
        with (work / "ray.log").open("a") as log:
            marked_env = env | dict([mark.split("=")])
            process = subprocess.Popen(command, env=marked_env, stdout=log, stderr=log, start_new_session=True)
        processes.append(process)
        return process

    found = Cluster(f"http://127.0.0.1:{port}", env, work, mark)
    (work / ".gitignore").open("a").write("ray.log\n")
    try:
        begin(*head)
        wait_until(lambda: lists_jobs(found.address, env["RAY_AUTH_TOKEN"]), "the head is up", NEVER_S, LOOK_S)
        for number in (1, 2):
            _join(found, number, lambda: begin(f"--address=127.0.0.1:{gcs}", "--num-cpus=1"))
        yield found
    finally:
        for process in processes:
            process.kill()
            process.wait(NEVER_S)
        end_all(mark)
        shutil.rmtree(temporary, ignore_errors=True)


def _join(cluster: Cluster, number: int, begin: Callable[[], subprocess.Popen[bytes]]) -> None:
    """Starts a worker, and again where Ray gives it up: after 30 seconds, which are few beside other tests."""
    for _ in range(4):
        process = begin()

        def settled(process: subprocess.Popen[bytes] = process) -> bool:
            return _cpus(cluster) == number or process.poll() is not None

        wait_until(settled, "a worker joins", NEVER_S, LOOK_S)
        if process.poll() is None:
            return
    raise AssertionError("no worker joins")


def _cpus(cluster: Cluster) -> float:
    """Returns the CPUs that the cluster has."""
    api = Api(cluster.address, cluster.env["RAY_AUTH_TOKEN"])
    nodes = api.get("/nodes?view=summary")["data"]["summary"]
    return sum(node["raylet"]["resourcesTotal"].get("CPU", 0) for node in nodes if node["raylet"]["state"] == "ALIVE")


@pytest.fixture
def source(local: Place) -> str:
    return local.write("in", corpus(sizes=(120, 3, 60, 0, 200)))


@pytest.fixture
def local(tmp_path: Path) -> Place:
    return Place(str(tmp_path / "data"))


@pytest.mark.nightly
def test_the_main_job(cluster: Cluster, local: Place, source: str) -> None:
    """The same bytes as here; submitted again, nothing is left to do, and that is said."""
    argv = ("jobs/toxicity.py", "--json", "--input", source, "--output")
    here = run(*argv, f"{local.root}/here", "--backend", "inline")
    assert here.code == 0, here.err
    words = (argv[0], "--", *argv[1:], f"{local.root}/there")
    there = cluster.submit(*words)
    assert there.returncode == 0, there.stdout + there.stderr
    assert outputs(local.objects("there")) == outputs(local.objects("here"))
    assert totals(json_line(there.stdout)) == totals(here.json)
    assert "$ ray job submit --address" in there.stderr
    assert "nothing to resume at" in there.stderr
    again = cluster.submit(*words)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "5 of 5 shards done, 0 left" in again.stderr
    assert json_line(again.stdout)["tasks"]["dispatched"] == 0


def test_without_the_token_nothing_runs(cluster: Cluster, local: Place, source: str) -> None:
    """Neither with a wrong one nor with none: refused in one line before anything is sent."""
    before = cluster.jobs()
    words = ("jobs/toxicity.py", "--", "--input", source, "--output", f"{local.root}/out")
    for env in ({"RAY_AUTH_TOKEN": "0" * 32}, {"RAY_AUTH_MODE": "disabled"}):
        ended = cluster.submit(*words, **env)
        assert ended.returncode == 2
        assert "token" in ended.stderr
        assert ended.stderr.count("\n") == 1, ended.stderr
    assert cluster.jobs() == before
    assert not Path(f"{local.root}/out").exists()


def test_a_pool_an_exchange_and_a_secret(cluster: Cluster, local: Place, source: str, tmp_path: Path) -> None:
    """The same bytes as here. Neither Ray's records of the job, nor its log, nor its ledger hold the secret."""
    (tmp_path / "key").write_text(f"{SECRET}\n")
    words = ("--key", "API_KEY", "--input", source, "--output")
    script = str(cluster.work / "jobs/pooled.py")
    here = run(script, *words, f"{local.root}/here", "--backend", "inline", env={"API_KEY": SECRET})
    assert here.code == 0, here.err
    given = ("--secret", f"API_KEY={tmp_path}/key", "jobs/pooled.py", *words)
    ended = cluster.submit(*given, f"{local.root}/out")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert outputs(local.objects("out")) == outputs(local.objects("here"))
    for text in (ended.stdout, ended.stderr, cluster.jobs()):
        assert SECRET not in text
    assert f"API_KEY={tmp_path}/key" in cluster.jobs()
    assert not [name for name, data in local.objects("out").items() if SECRET.encode() in data]


def test_exit_codes_are_the_jobs(cluster: Cluster, local: Place) -> None:
    """A refusal on the cluster is 2 here, too, and is not tried again."""
    words = ("jobs/toxicity.py", "--input", f"{local.root}/none", "--output", f"{local.root}/out")
    ended = cluster.submit("--resubmit", "3", *words)
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert ended.stderr.count("submitted as") == 1


def test_a_driver_that_is_killed_is_submitted_again(
    cluster: Cluster, local: Place, source: str, tmp_path: Path
) -> None:
    """And goes on: what was done is not done twice."""
    hold, trace = tmp_path / "hold", tmp_path / "trace"
    argv = ("jobs/curation.py", "--input", source, "--output", f"{local.root}/out", "--trace", str(trace))
    assert cluster.submit(*argv, "--limit", "1").returncode == 0
    hold.touch()
    trace.unlink()
    process = cluster.start("submit", "--address", cluster.address, "--resubmit", "2", *argv, "--hold", str(hold))
    try:
        wait_until(trace.exists, "a task begins")
        drivers = [pid for pid, line in marked(cluster.mark).items() if line.startswith("python jobs/curation.py")]
        assert drivers, marked(cluster.mark)
        hold.unlink()
        for pid in drivers:
            os.kill(pid, signal.SIGKILL)
        out, err = process.communicate(timeout=NEVER_S)
    finally:
        process.kill()
    assert process.returncode == 0, out + err
    assert "the driver died (exit code" in err
    assert "submitting it again (1 of 2)" in err
    assert "1 of 5 shards done, 4 left" in err


def test_a_job_that_nobody_follows(cluster: Cluster, tmp_path: Path) -> None:
    """Its log is shown later, and it is ended by name; what was stopped is no success."""
    (cluster.work / "jobs/talking.py").write_text(TALKING)
    started = cluster.submit("--no-wait", "jobs/talking.py", str(tmp_path))
    assert started.returncode == 0, started.stderr
    (name,) = re.findall(r"submitted as (\S+)", started.stderr)
    wait_until((tmp_path / "half").exists, "half of the log is written")
    follower = cluster.start("logs", "--follow", "--address", cluster.address, name)
    stopped = cluster.start("stop", "--address", cluster.address, name)
    stopped.communicate(timeout=NEVER_S)
    assert stopped.returncode == 0
    out, _ = follower.communicate(timeout=NEVER_S)
    assert follower.returncode == 1
    assert [line for line in out.splitlines() if line.startswith("line ")] == [f"line {k}" for k in range(100)]
    unknown = cluster.start("logs", "--follow", "--address", cluster.address, "nothing-of-that-name")
    _, err = unknown.communicate(timeout=NEVER_S)
    assert unknown.returncode == 2
    assert "knows no job nothing-of-that-name" in err


class Wire:
    """Connections to an address, which can be cut: then those that stand break, and no new one is made."""

    def __init__(self, port: int) -> None:
        self._there = port
        self._up = threading.Event()
        self._up.set()
        self._open: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        self._up.clear()
        while self._open:
            with suppress(OSError):
                self._open.pop().shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._up.set()

    def _serve(self) -> None:
        while True:
            near, _ = self._server.accept()
            if not self._up.is_set():
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self._there))
            self._open += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._copy, args=(one, other), daemon=True).start()

    @staticmethod
    def _copy(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def test_a_lost_connection_is_made_anew(cluster: Cluster, tmp_path: Path) -> None:
    """Half way through the log the line is cut, and the job goes on. Every line is shown once."""
    (cluster.work / "jobs/talking.py").write_text(TALKING)
    wire = Wire(int(cluster.address.rpartition(":")[2]))
    process = cluster.start("submit", "--address", wire.address, "jobs/talking.py", str(tmp_path))
    said = ""
    try:
        assert process.stderr is not None
        wait_until((tmp_path / "half").exists, "half of the log is written")
        wire.cut()
        while "connection lost" not in (line := process.stderr.readline()):
            assert line, said
            said += line
        (tmp_path / "go").touch()
        wire.mend()
        out, err = process.communicate(timeout=NEVER_S)
    finally:
        process.kill()
    assert process.returncode == 0, out + said + err
    assert [line for line in out.splitlines() if line.startswith("line ")] == [f"line {k}" for k in range(200)]
