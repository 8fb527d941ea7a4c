"""The backend `auto`: what it is, by facts alone; that these are found where Ray looks; and that it is said why."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from structlog.testing import capture_logs

import curate
from curate.backends import choose as choosing
from curate.backends.choose import Ask, Chosen, Facts, choose
from curate.backends.make import make_backend
from curate.backends.ray.find import Found, find
from curate.errors import ConfigError
from curate.job.job import Job
from curate.runtime.protocol import PoolSpec, Resources
from curate.stores import memory
from tests.job.inline import run_job
from tests.support.fakes import NEVER_S

HAS = {"CPU": 4.0, "memory": 8e9}
NONE = "there is no Ray cluster to join"


def pool(**asked: Any) -> PoolSpec:
    size = asked.pop("size", 1)
    return PoolSpec("embed", program=None, resources=Resources(**asked), min_size=size)  # type: ignore[arg-type]


class Copy(Job):
    """Copies its input."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        return batch


class Pid:
    def __call__(self, batch: Any) -> dict[str, list[int]]:
        return {"n": [os.getpid()] * len(batch)}


@pytest.mark.parametrize(
    ("facts", "name", "why"),
    [
        (Facts(), "local", NONE),
        (Facts(has=HAS, asks=(Ask(Resources()),)), "local", NONE),
        (Facts(gone="10.0.0.1:6379"), "local", f"{NONE}; the one that was started at 10.0.0.1:6379 does not answer"),
        (Facts(cluster="RAY_ADDRESS is 10.0.0.1:6379"), "ray", "RAY_ADDRESS is 10.0.0.1:6379"),
        # The cluster counts, whatever is asked for.
        (Facts(cluster="there is one", has=HAS, asks=(Ask(Resources(num_cpus=9)),)), "ray", "there is one"),
        # What is in the memory of this process is seen by none that would be in another one.
        (Facts(cluster="there is one", here="memory://b/out"), "inline", "memory://b/out is in its memory"),
        (Facts(asks=(Ask(Resources(custom={"TPU": 4})),), here="memory://b"), "inline", "memory://b is in its memory"),
        (Facts(has=HAS, asks=(Ask(Resources(num_cpus=4, memory=8_000_000_000)),)), "local", NONE),
        # Ray on this machine would have no more of these: `local` refuses with the arithmetic, at once.
        (Facts(has=HAS, asks=(Ask(Resources(num_cpus=5.0)),)), "local", NONE),
        (Facts(has=HAS, asks=(Ask(Resources(memory=9 << 30)),)), "local", NONE),
        (Facts(has=HAS, asks=(Ask(Resources(), (pool(size=4),)),)), "local", NONE),
        (Facts(has=HAS, asks=(Ask(Resources(num_gpus=1), (pool(num_gpus=2),)),)), "local", NONE),
        (Facts(has=HAS, asks=(Ask(Resources(custom={"TPU": 4})),)), "ray", "a task needs {'TPU': 4}"),
        (Facts(has=HAS, asks=(Ask(Resources(), (pool(size=3),)),)), "local", NONE),
        (
            Facts(has=HAS, asks=(Ask(Resources(), (pool(num_cpus=0, custom={"TPU": 4}),)),)),
            "ray",
            "embed: 1 actor x 4 TPU = 4 TPU, but this machine has 0 TPU",
        ),
        # Any stage of a job decides for all of it.
        (Facts(has=HAS, asks=(Ask(Resources()), Ask(Resources(custom={"TPU": 1})))), "ray", "a task needs {'TPU': 1}"),
    ],
)
def test_what_is_chosen(facts: Facts, name: str, why: str) -> None:
    chosen, reason = choose(facts)
    assert chosen == name
    assert reason.startswith(why)
    assert "\n" not in reason


@pytest.mark.parametrize(("cpus", "name"), [(3.0, "local"), (2.0, "inline")])
def test_rows_are_consumed_where_there_is_room(cpus: float, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two actors and a task need three CPUs. Who names a backend gets that one, which refuses."""
    monkeypatch.setattr(choosing, "facts_now", lambda asks: Facts(has={**HAS, "CPU": cpus}, asks=tuple(asks)))
    ask = Ask(Resources(), (pool(size=2),))
    found = choosing.for_many(ask)
    assert found.name == name
    assert ("3 CPU, but this machine has 2 CPU" in found.why) == (name == "inline")
    # Where GPUs are, and whether there are enough, `local` says.
    assert choosing.for_many(Ask(Resources(), (pool(size=2, num_cpus=0, num_gpus=1),))).name == "local"
    monkeypatch.setenv("CURATE_BACKEND", "local")
    assert choosing.for_many(ask).name == "local"


class TestInMemory:
    """`memory://` is of one process: whatever is read or written there, `auto` is that process, and a backend whose
    tasks run in others is refused before anything runs."""

    @pytest.fixture
    def rows(self) -> Iterator[str]:
        memory.clear("chosen")
        curate.range(4).write_parquet("memory://chosen/in", backend="inline")
        yield "memory://chosen/in"
        memory.clear("chosen")

    def made(self, rows: str, folder: Path) -> dict[str, Callable[..., Any]]:
        ids, read, out = curate.range(4), curate.read_parquet(rows), str(folder / "out")
        return {
            "output": lambda **how: ids.write_parquet("memory://chosen/out", **how),
            "input": lambda **how: read.write_parquet(out, **how),
            "input of a stage": lambda **how: read.sort("id").write_parquet(out, **how),
            "checkpoint": lambda **how: ids.checkpoint("memory://chosen/kept").write_parquet(out, **how),
            "consumed": lambda **how: read.using(**how).take(4),
            "consumed checkpoint": lambda **how: ids.checkpoint("memory://chosen/kept").using(**how).take(4),
        }

    KINDS = ("output", "input", "input of a stage", "checkpoint", "consumed", "consumed checkpoint")

    @pytest.mark.parametrize("kind", KINDS)
    def test_auto_is_this_process(self, kind: str, rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def started(name: str) -> Any:
            assert name == "inline"
            return make_backend(name)

        monkeypatch.setattr(choosing, "make_backend", started)
        ended = self.made(rows, tmp_path)[kind](backend="auto")
        assert ended == [{"id": n} for n in range(4)] if kind.startswith("consumed") else ended.state == "complete"

    @pytest.mark.parametrize("kind", KINDS)
    def test_others_are_refused(self, kind: str, rows: str, tmp_path: Path) -> None:
        for backend in ("local", "ray"):
            with pytest.raises(ConfigError, match=r"memory://chosen/\S* is in the memory of .*take backend='inline'"):
                self.made(rows, tmp_path)[kind](backend=backend)
        assert not list(tmp_path.iterdir())

    def test_actors_that_are_consumed_through(self, rows: str) -> None:
        """Several of them are asked for, which would run in other processes."""
        found = curate.read_parquet(rows).map_batches(Pid, concurrency=2).unique("n")
        assert found == [os.getpid()]

    def test_parts_have_a_memory_each(self, rows: str) -> None:
        with pytest.raises(ConfigError, match=r"part='0/2': the output memory://chosen/out is in the memory of this"):
            run_job(Copy(), rows, "memory://chosen/out", part="0/2")


@contextlib.contextmanager
def listening() -> Iterator[str]:
    """Yields an address that takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("environ", "noted", "cluster"),
    [
        ({}, "", ""),
        ({"RAY_ADDRESS": ""}, "", ""),
        ({"RAY_ADDRESS": "local"}, "{there}", ""),
        ({"RAY_ADDRESS": "10.0.0.1:6379"}, "{there}", "RAY_ADDRESS is 10.0.0.1:6379"),
        ({}, "{there}\n", "ray start runs on this machine, at {there}"),
        ({"RAY_ADDRESS": "auto"}, "{there}", "RAY_ADDRESS is auto, and a cluster was started here at {there}"),
        ({"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}", "RAY_ADDRESS": "10.0.0.1:6379"}, "", "this runs under ray job submit"),
    ],
)
def test_a_cluster_is_found_where_ray_finds_it(
    environ: dict[str, str], noted: str, cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address that is named, else the one that `ray start` noted."""
    services = pytest.importorskip("ray._private.services")
    monkeypatch.setattr("sys.modules", {**sys.modules, "ray": None})
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name, value in {**environ, "RAY_TMPDIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    with listening() as there:
        if noted:
            (tmp_path / "ray").mkdir()
            (tmp_path / "ray" / "ray_current_cluster").write_text(noted.format(there=there))
        found = find()
        assert found == Found(cluster=cluster.format(there=there))
        if environ.get("RAY_ADDRESS") != "auto":
            # That asks for all processes of this machine, which may be of other tests.
            assert bool(services.canonicalize_bootstrap_address(None)) == bool(found.cluster)


def test_a_cluster_of_this_machine_that_is_gone(tmp_path: Path) -> None:
    """Its note stays behind where it was killed: it is said, and nobody waits for it."""
    (tmp_path / "ray").mkdir()
    with listening() as there:
        pass
    (tmp_path / "ray" / "ray_current_cluster").write_text(there)
    assert find({"RAY_TMPDIR": str(tmp_path)}) == Found(gone=there)


def test_a_program_that_has_called_ray_init(monkeypatch: pytest.MonkeyPatch) -> None:
    class Initialised:
        @staticmethod
        def is_initialized() -> bool:
            return True

    monkeypatch.setitem(sys.modules, "ray", Initialised)  # type: ignore[arg-type]
    assert find({"RAY_ADDRESS": "local"}).cluster == "this process is connected to Ray"


def test_a_name_is_taken_as_it_is() -> None:
    """And a backend that is given, as it is: nothing is chosen, and nothing said."""
    inline = make_backend("inline")
    for chosen in (Chosen.of("inline", ()), Chosen.of("auto", (), inline)):
        assert (chosen.name, chosen.why) == ("inline", "")
    with capture_logs() as logs:
        assert Chosen.of("auto", (), inline).backend() is inline
    assert logs == []


class TestWithoutRay:
    """A run by default, where there is no cluster: in other processes, and ray is imported nowhere."""

    def written(self, folder: Path, **options: Any) -> Any:
        return curate.range(10).map(lambda _: {"n": os.getpid()}).write_json(folder, **options)

    @pytest.mark.slow
    def test_one_line_says_where_and_why(self, tmp_path: Path) -> None:
        """Once a run; none where nothing is left to do, and none where it was named."""
        out = tmp_path / "out"
        with capture_logs() as logs:
            assert self.written(out).state == "complete"
        said = [one for one in logs if one["event"].startswith("tasks run on")]
        assert said == [
            {
                "event": "tasks run on worker processes of this machine",
                "log_level": "info",
                "backend": "local",
                "reason": NONE,
            }
        ]
        assert os.getpid() not in curate.read_json(out).unique("n")
        (run,) = (out / "_curate" / "runs").iterdir()
        assert orjson.loads((run / "run.json").read_bytes())["backend"] == "local"
        for options in ({}, {"backend": "local", "overwrite": True, "yes": True}):
            with capture_logs() as logs:
                self.written(out, **options)
            assert [one for one in logs if one["event"].startswith("tasks run on")] == []

    @pytest.mark.slow
    def test_several_stages_are_told_of_once(self, tmp_path: Path) -> None:
        with capture_logs() as logs:
            ended = curate.range(10).random_shuffle(seed=1, num_shards=2).write_json(tmp_path / "out")
        assert ended.state == "complete"
        assert len([one for one in logs if one["event"].startswith("tasks run on")]) == 1

    def test_the_environment_has_the_word_that_nothing_else_has(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CURATE_BACKEND", "inline")
        self.written(tmp_path / "out")
        assert curate.read_json(tmp_path / "out").unique("n") == [os.getpid()]
        monkeypatch.setenv("CURATE_BACKEND", "inlin")
        with pytest.raises(ConfigError, match="no backend 'inlin'; did you mean 'inline'"):
            self.written(tmp_path / "other")

    @pytest.mark.slow
    def test_consumed_here_unless_it_is_asked_for_elsewhere(self) -> None:
        """By `using`, or by a pool of several actors."""
        here, rows = os.getpid(), curate.range(10)

        processes = rows.map(lambda _: {"n": os.getpid()})
        assert processes.unique("n") == [here]
        assert rows.map_batches(Pid).unique("n") == [here]
        assert rows.map_batches(Pid, concurrency=1).unique("n") == [here]
        for found in (processes.using(backend="auto"), rows.map_batches(Pid, concurrency=(1, 2), num_cpus=0)):
            with capture_logs() as logs:
                assert here not in found.unique("n")
            assert [one["backend"] for one in logs if one["event"].startswith("tasks run on")] == ["local"]

    def test_gpus_that_are_not_there(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Refused before anything is written, with what there is."""
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
        rows = curate.range(10).map_batches(abs, num_gpus=2, batch_format="pyarrow")
        with pytest.raises(ConfigError, match="1 actor x 2 GPU = 2 GPU, but this machine has 1 GPU; shrink the pool"):
            rows.write_parquet(tmp_path / "out")
        assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.ray_lane
def test_a_cluster_is_joined_unasked(on_ray: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says so; the bytes are those that worker processes make."""
    monkeypatch.delenv("CURATE_BACKEND")
    made = curate.range(10).map(lambda row: {"n": row["id"] + 1})
    with capture_logs() as logs:
        assert made.write_json(tmp_path / "out").state == "complete"
    (said,) = (one for one in logs if one["event"] == "tasks run on Ray")
    assert said["reason"] in (f"RAY_ADDRESS is {on_ray}", "this runs under ray job submit")
    (run,) = (tmp_path / "out" / "_curate" / "runs").iterdir()
    assert orjson.loads((run / "run.json").read_bytes())["backend"] == "ray"
    assert made.write_json(tmp_path / "local", backend="local").state == "complete"
    name = "part-00000-of-00001.jsonl.zst"
    assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()


WITHOUT_RAY = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "ray":
            raise ModuleNotFoundError(f"No module named {name!r}", name="ray")
sys.meta_path.insert(0, Refuse())
from importlib import metadata
found = metadata.Distribution.from_name
def without(name):
    if name == "ray":
        raise metadata.PackageNotFoundError(name)
    return found(name)
metadata.Distribution.from_name = without
"""
JOB = """
import curate
class Copy(curate.Job):
    version = "1"
    def process(self, batch):
        return batch
if __name__ == "__main__":
    Copy.main()
"""


@pytest.mark.slow
def test_ray_is_not_installed(tmp_path: Path) -> None:
    """Jobs, datasets and status do without, in workers too; who asks for Ray is told what to install."""
    # Each process of this environment reads it when it starts: workers, too.
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_RAY)
    (tmp_path / "job.py").write_text(JOB)
    environ = os.environ | {"PYTHONPATH": str(tmp_path)}

    def ended(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *argv], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=NEVER_S
        )

    dataset = (
        "import curate\n"
        "made = curate.range(20).random_shuffle(seed=1, num_shards=2).write_json('in')\n"
        "assert made.state == 'complete'\n"
        "assert curate.read_json('in').using(backend='local').count() == 20\n"
    )
    assert (ran := ended("-c", dataset)).returncode == 0, ran.stderr
    assert (ran := ended("job.py", "--input", "in", "--output", "out")).returncode == 0, ran.stderr
    assert '"reason": "there is no Ray cluster to join"' in ran.stderr
    status = ended("-m", "curate.cli.main", "status", "out")
    assert (status.returncode, status.stdout.split()[:2]) == (0, ["copy", "complete"]), status.stderr
    refused = ended("job.py", "--input", "in", "--output", "other", "--backend", "ray")
    assert refused.returncode == 2
    assert "Ray is not installed here: pip install 'ray[default]" in refused.stderr
    assert not (tmp_path / "other").exists()
