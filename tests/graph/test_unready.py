"""Whatever a run is refused for, a dry run is refused for in the same words; and neither writes a file."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import curate
from curate.dataset.dataset import Dataset
from curate.errors import ConfigError
from curate.graph.entry import dry_run, run
from curate.job.job import Job
from curate.pipeline.step import ActorPool
from tests.job.inline import run_job, write_parquet

MUCH = 1e6
"""CPUs that no machine has."""


class Plain(Job):
    """Copies rows; may hold what cannot be sent."""

    version = "1"
    kept: str = curate.param("", help="where the checkpoint is")
    word: str = curate.param("a", help="part of the identity")

    def holding(self) -> Plain:
        """Returns the job with a lock."""
        self.lock = threading.Lock()
        return self

    def process(self, batch: Any) -> Any:
        return batch


class Sorted(Plain):
    def build(self, ds: Dataset) -> Dataset:
        return super().build(ds).sort("n")  # type: ignore[return-value, union-attr]


class Kept(Plain):
    """Of which what lies before the checkpoint can be done, and what lies behind it may not."""

    def build(self, ds: Dataset) -> Dataset:
        return super().build(ds.checkpoint(self.kept))  # type: ignore[return-value]


class SortedKept(Plain):
    def build(self, ds: Dataset) -> Dataset:
        return super().build(ds.checkpoint(self.kept)).sort("n")  # type: ignore[return-value, union-attr]


SHAPES = {one.__name__: one for one in (Plain, Sorted, Kept, SortedKept)}


class World:
    """A folder with two inputs, and what is asked of a job."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.input, self.output, self.kept = base / "in", base / "out", str(base / "kept")
        for number in range(2):
            write_parquet(self.input / f"{number}.parquet", [{"n": k, "texts": ["a"]} for k in range(3)])
        self.options: dict[str, Any] = {"input": self.input, "output": self.output, "backend": "local"}

    def job(self, shape: str, **given: Any) -> Plain:
        kept = {"kept": self.kept} if "Kept" in shape else {}
        return SHAPES[shape](**kept, **given)

    def made(self, shape: str, **given: Any) -> None:
        """Runs a job to its end."""
        assert run_job(self.job(shape, **given), self.input, self.output).state == "complete"

    def files(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.base.rglob("*") if path.is_file()}


def refused(world: World, job: Job) -> str:
    """Returns why a run is refused, as a dry run is; nothing is changed by either."""
    before, texts = world.files(), []
    for way in (dry_run, run):
        with pytest.raises(ConfigError) as caught:
            way(job.spec(), job.options(**world.options))
        texts.append(str(caught.value))
        assert world.files() == before
    assert texts[0] == texts[1]
    return texts[0]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    return World(tmp_path)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_cannot_be_sent(world: World, shape: str) -> None:
    """Behind a checkpoint, too: before that is written."""
    assert "cannot pickle '_thread.lock' object" in refused(world, world.job(shape).holding())
    assert not Path(world.kept).exists()


@pytest.mark.parametrize("shape", SHAPES)
def test_what_has_no_room_on_this_machine(world: World, shape: str) -> None:
    """Of a job with an exchange before its first stage is run."""
    assert "1000000" in refused(world, world.job(shape, num_cpus=MUCH))


@pytest.mark.ci(1)
@pytest.mark.slow
@pytest.mark.parametrize("shape", ["Sorted", "SortedKept"])
def test_a_stage_that_is_done_may_have_had_a_larger_machine(
    world: World, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun where there is room for its actors, it is finished where there is none."""
    monkeypatch.setattr(SHAPES[shape], "compute", ActorPool(size=1))
    job = world.job(shape, num_cpus=MUCH)
    assert "1000000" in refused(world, job) or "1e+06" in refused(world, job)
    assert run_job(job, world.input, world.output, keep_stages=True).state == "complete"
    for path in world.output.glob("*.parquet"):
        path.unlink()
    assert run(job.spec(), job.options(**world.options)).state == "complete"


@pytest.mark.parametrize("shape", SHAPES)
def test_ray_is_not_installed(world: World, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    world.options["backend"] = "ray"
    assert "Ray is not installed here" in refused(world, world.job(shape))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"input": "in/none-*.parquet"}, "none-"),
        ({"input": "elsewhere"}, "elsewhere"),
        ({"limit": 0}, "limit=0"),
        ({"overwrite": True, "retry_failed": True}, "retry_failed"),
        ({"output": "in"}, "in"),
        ({"output": "in/0.parquet"}, "0.parquet"),
    ],
    ids=str,
)
def test_options_that_cannot_be(world: World, shape: str, options: dict[str, Any], told: str) -> None:
    world.options |= options
    assert told in refused(world, world.job(shape))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_output_of_another_job(world: World, shape: str) -> None:
    """Before a checkpoint is written for it, and in the words that are for the output."""
    world.made("Plain", word="b")
    told = refused(world, world.job(shape))
    assert "another identity" in told or "another job" in told
    assert "overwrite=True" in told
    assert not Path(world.kept).exists()


@pytest.mark.ci(3)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("overwrite", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_link_where_the_ledger_is(world: World, shape: str, overwrite: bool) -> None:
    world.made(shape)
    ledger = world.output / "_curate" / "runs"
    ledger.rename(world.base / "runs")
    ledger.symlink_to(world.base / "runs")
    for path in world.output.glob("*.parquet"):
        path.unlink()
    world.options |= {"overwrite": overwrite, "confirm": lambda _: True}
    assert "is a link" in refused(world, world.job(shape))


@pytest.mark.parametrize("shape", SHAPES)
def test_what_no_format_holds(world: World, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema([("texts", pa.list_(pa.string()))])
    monkeypatch.setattr(SHAPES[shape], "output_schema", schema)
    assert "csv" in refused(world, world.job(shape, format="csv")).lower()


@pytest.mark.parametrize("shape", ["Plain", "Sorted"])
def test_a_checkpoint_in_its_own_output(world: World, shape: str) -> None:
    kind = {"Plain": "Kept", "Sorted": "SortedKept"}[shape]
    world.kept = str(world.output / "kept")
    assert "lie in each other" in refused(world, world.job(kind))


def test_keys_of_two_types(world: World) -> None:
    write_parquet(world.input / "9.parquet", [{"n": "text", "texts": ["a"]}])
    assert "n" in refused(world, world.job("Sorted"))
