"""Which cluster a backend works on: one of its own, or that of others, which it leaves as it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.support.fakes import NEVER_S

pytestmark = [pytest.mark.slow, pytest.mark.ray_lane]
ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from curate.errors import ConfigError
from curate.runtime.protocol import Resources
from curate.backends.ray.backend import RayBackend
from curate.backends.ray.cluster import made_by_this_process
from tests.backends.calling import Calling

backend = RayBackend()
try:
    backend.start(Resources(num_cpus=float(sys.argv[1])))
except ConfigError as error:
    print("refused:", error)
else:
    backend.load(Calling())
    print(made_by_this_process(), backend.slots() > 0)
    if backend.slots():
        backend.launch(1, [(abs, -7)], 1)
        print(backend.poll(30.0))
backend.close()
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Where Ray keeps what it runs, here: nobody else's cluster is found, and nobody finds ours."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield Path(made)


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[str]:
    """A cluster that somebody has started on this machine, as `ray start` does."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(folder))
        made: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        yield made.address
        made.shutdown()


def driver(num_cpus: float, folder: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Starts a backend in a process of its own, with nothing of Ray's in its environment but what is given."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(num_cpus)],
        cwd=ROOT,
        env=clean | {"RAY_TMPDIR": str(folder), "HOME": str(folder), "PYTHONPATH": str(ROOT)} | env,
        capture_output=True,
        text=True,
        timeout=NEVER_S,
    )


@pytest.mark.parametrize("named", [False, True])
def test_a_cluster_of_others_is_joined_and_left_as_it_is(cluster: str, folder: Path, named: bool) -> None:
    """By its address, or because it is what was last started here. It may grow, so a task too large for it waits."""
    env = {"RAY_AUTH_MODE": "disabled"} | ({"RAY_ADDRESS": cluster} if named else {})
    for num_cpus, says in (
        (64, ["False False"]),
        (1, ["False True", "[Message(task=1, items=[7]), TaskFinished(task=1,"]),
    ):
        ended = driver(num_cpus, folder, env)
        assert ended.returncode == 0, ended.stderr
        for line, expected in zip(ended.stdout.splitlines(), says, strict=True):
            assert line.startswith(expected)


@pytest.mark.usefixtures("cluster")
def test_a_cluster_of_its_own_beside_that_of_others(folder: Path) -> None:
    """On request; that it starts is said, and no more: it asks for a token, without a word. What it cannot hold it
    never will: refused, with figures."""
    wanted = {"RAY_ADDRESS": "local"}
    ended = driver(1, folder, wanted)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[0] == "True True"
    said = [orjson.loads(line)["event"] for line in ended.stderr.splitlines()]
    assert said == ["starting Ray on this machine", "Ray is ready"]
    assert (folder / ".ray" / "auth_token").exists()
    ended = driver(640, folder, wanted)
    assert ended.stdout.startswith("refused: a task needs {'CPU': 640.0}, but this machine has {'CPU': ")
    assert "point RAY_ADDRESS at a larger cluster" in ended.stdout


@pytest.mark.usefixtures("cluster")
def test_what_was_started_here_and_is_gone(folder: Path) -> None:
    """Ray keeps the address; nothing answers there. Said at once, with the way out."""
    path = next(folder.rglob("ray_current_cluster"))
    path.write_text("127.0.0.1:9")
    ended = driver(1, folder, {})
    refused = (
        r"refused: the last cluster started on this machine was at [\d.]+:9, but no cluster answers there "
        r".*RAY_ADDRESS=local"
    )
    assert re.match(refused, ended.stdout), ended
