"""`ray job submit --working-dir . -- python jobs/...` to a head with a dashboard that asks for a token."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from curate.clock import SystemClock
from curate.observe.job import read_status
from scripts.clusters.submit import NO_AGENT
from tests.support.fakes import NEVER_S
from tests.support.harness import ROOT, Place, corpus, end_all, json_line, outputs, run, totals, wait_until, write_files
from tests.support.ports import free_port
from tests.support.ray_head import lists_jobs

pytestmark = [pytest.mark.slow, pytest.mark.ray_lane]
BIN = Path(sys.executable).parent
LOOK_S = 0.2
"""How often the head is asked what there is, which takes its time."""
WHENCE = """
import sys
import curate
import pyarrow as pa
from curate import Job, param

class Whence(Job):
    version = "1"
    columns = ["text"]

    def process(self, batch):
        return pa.table({"worker": [curate.__file__], "said": [curate.SAID]})

if __name__ == "__main__":
    print("driver:", curate.__file__, curate.SAID, file=sys.stderr)
    Whence.main()
"""


@dataclass(frozen=True)
class Head:
    """A Ray head that runs here."""

    address: str
    env: Mapping[str, str]
    work: Path
    """The working directory that is submitted: a checkout of its own."""

    def ray(self, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Runs a command of Ray's against the head."""
        return subprocess.run(
            [BIN / "ray", *argv],
            env={**self.env, "RAY_ADDRESS": self.address, **env},
            cwd=self.work,
            capture_output=True,
            text=True,
            timeout=NEVER_S,
        )

    def submit(self, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Submits a command from the working directory and waits for its end; again as long as the head lists jobs, but
        has nobody yet who starts them."""
        while NO_AGENT in (done := self.ray("job", "submit", "--working-dir", ".", "--", *argv, **env)).stderr:
            pass
        return done


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    # Paths of sockets are limited to 107 characters.
    temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    mark = uuid.uuid4().hex
    env = {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "HOME": temporary,
        "CURATE_HOME": f"{temporary}/curate",
        "CURATE_TEST_HEAD": mark,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": uuid.uuid4().hex,
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }
    port = free_port()
    ports = {
        "port": free_port(),
        "dashboard-port": port,
        "dashboard-agent-listen-port": free_port(),
        "ray-client-server-port": free_port(),
    }
    command = [BIN / "ray", "start", "--head", "--block", "--disable-usage-stats", "--num-cpus=2"]
    command += ["--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", f"--temp-dir={temporary}"]
    command += [f"--{name}={value}" for name, value in ports.items()]
    work = tmp_path_factory.mktemp("work")
    for name in ("curate", "jobs"):
        shutil.copytree(ROOT / name, work / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", ".gitignore"):
        shutil.copy(ROOT / name, work)
    with (work / "curate/__init__.py").open("a") as module:
        module.write('\nSAID = "the submitted one"\n')
    write_files(work, {"jobs/whence.py": WHENCE.encode(), ".venv/lib/big": bytes(1000), "demo/x": b"x", ".git/x": b"x"})
    with (work / "ray.log").open("w") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    found = Head(f"http://127.0.0.1:{port}", env, work)
    try:
        wait_until(lambda: lists_jobs(found.address, env["RAY_AUTH_TOKEN"]), "the head is up", NEVER_S, LOOK_S)
        yield found
    finally:
        process.kill()
        process.wait(NEVER_S)
        end_all(f"CURATE_TEST_HEAD={mark}")
        shutil.rmtree(temporary, ignore_errors=True)


@pytest.fixture
def source(local: Place) -> str:
    return local.write("in", corpus(sizes=(120, 3, 60, 0, 200)))


def test_the_main_job(head: Head, local: Place, source: str) -> None:
    """Submitted, it makes the same bytes as run here, and submitted again it makes nothing."""
    argv = ("jobs/toxicity.py", "--json", "--input", source, "--output")
    here = run(*argv, f"{local.root}/here", "--backend", "inline")
    assert here.code == 0, here.err
    there = head.submit("python", *argv, f"{local.root}/there")
    assert there.returncode == 0, there.stdout + there.stderr
    assert outputs(local.objects("there")) == outputs(local.objects("here"))
    assert totals(json_line(there.stdout)) == totals(here.json)
    again = json_line(head.submit("python", *argv, f"{local.root}/there").stdout)
    assert (again["shards"]["skipped"], again["tasks"]["dispatched"], again["storage_calls"]["put"]) == (5, 0, 0)


def test_driver_and_workers_import_what_was_submitted(head: Head, local: Place, source: str) -> None:
    """Not the curate that is installed where the cluster runs."""
    ended = head.submit("python", "jobs/whence.py", "--input", source, "--output", f"{local.root}/out")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    temporary = head.env["HOME"]
    assert f"driver: {temporary}/" in ended.stdout
    rows = pq.read_table(f"{local.root}/out/2020/RC-00.parquet").to_pylist()
    assert {row["said"] for row in rows} == {"the submitted one"}
    assert all(row["worker"].startswith(f"{temporary}/") for row in rows)


def test_what_git_ignores_is_not_submitted(head: Head) -> None:
    """Ray leaves `.venv` and `.git` out, and what `.gitignore` names: 500 MiB is the most that it takes."""
    ended = head.submit("ls", "-A")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    names = set(ended.stdout.split())
    assert {"curate", "jobs", "pyproject.toml"} <= names
    assert not {".venv", ".git", "demo", "__pycache__"} & names


def test_a_relative_output_is_refused(head: Head, source: str) -> None:
    """It would vanish with the unpacked copy of the working directory."""
    ended = head.submit("python", "jobs/toxicity.py", "--input", source, "--output", "out")
    assert ended.returncode == 1
    assert "failed with exit code 2" in ended.stdout
    assert "error: output 'out' is relative, and this runs under `ray job submit`" in ended.stdout
    assert "give an absolute path on shared storage, or gs://" in ended.stdout


@pytest.mark.parametrize("env", [{"RAY_AUTH_TOKEN": "0" * 32}, {"RAY_AUTH_MODE": "disabled"}], ids=["wrong", "none"])
def test_without_the_token_nothing_runs(head: Head, env: dict[str, str]) -> None:
    ended = head.submit("touch", f"{head.env['HOME']}/ran", **env)
    assert ended.returncode != 0
    assert "AuthenticationError" in ended.stderr
    assert not Path(head.env["HOME"], "ran").exists()


def test_a_token_in_a_file(head: Head, tmp_path: Path) -> None:
    """As `ray get-auth-token --generate` leaves it."""
    (tmp_path / "token").write_text(head.env["RAY_AUTH_TOKEN"])
    env = {key: value for key, value in head.env.items() if key != "RAY_AUTH_TOKEN"}
    other = Head(head.address, env | {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}, head.work)
    assert other.ray("job", "list").returncode == 0


def test_stopping_a_job_flushes_its_ledger(head: Head, local: Place, tmp_path: Path) -> None:
    """`ray job stop` kills after three seconds; the driver has written down what it knows by then."""
    source = local.write("in", corpus(sizes=(40, 3, 20, 0, 30)))
    shutil.copy(ROOT / "tests/e2e/jobs/curation.py", head.work / "jobs")
    argv = ["python", "jobs/curation.py", "--input", source, "--output", f"{local.root}/out"]
    hold, trace = tmp_path / "hold", tmp_path / "trace"
    assert head.submit(*argv, "--limit", "1").returncode == 0
    hold.touch()
    name = f"stopped-{uuid.uuid4().hex}"
    given = ("--submission-id", name, "--no-wait", "--working-dir", ".", "--")
    started = head.ray("job", "submit", *given, *argv, "--hold", str(hold), "--trace", str(trace))
    assert started.returncode == 0, started.stderr
    wait_until(trace.exists, "a task begins")
    began = time.monotonic()
    assert head.ray("job", "stop", name).returncode == 0
    status = wait_until(lambda: _not_running(f"{local.root}/out"), "the run ends")
    sys.stdout.write(f"ended {time.monotonic() - began:.1f} s after `ray job stop` was called\n")
    assert (status.state, status.done) == ("interrupted", 1)
    assert "was stopped" in head.ray("job", "status", name).stdout
    hold.unlink()
    again = head.submit(*argv)
    assert again.returncode == 0, again.stdout
    assert read_status(f"{local.root}/out", SystemClock().now()).state == "complete"


def _not_running(output: str) -> object:
    status = read_status(output, SystemClock().now())
    return None if status.state == "running" else status
