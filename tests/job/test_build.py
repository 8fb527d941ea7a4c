"""Jobs of several steps: `build`, pools, checkpoints; the books and bytes are those of `process` alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import curate
from curate.dataset.dataset import Dataset
from curate.errors import ConfigError
from curate.job.job import Job
from curate.job.params import param
from curate.job.shapes import FileJob
from curate.pipeline.step import ActorPool
from curate.runtime.protocol import Resources


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files of ten numbers."""
    source = tmp_path / "in"
    source.mkdir()
    for k in range(3):
        (source / f"{k}.jsonl").write_text("".join(f'{{"n": {10 * k + i}}}\n' for i in range(10)))
    return source


class Doubled(Job):
    """Doubles a number, drops what is odd."""

    version = "1"
    columns = {"n": pa.int64()}  # noqa: RUF012
    factor: int = param(2, help="what numbers are multiplied by")

    def setup(self) -> None:
        self.ready = True

    def process(self, batch: pa.Table) -> pa.Table:
        assert self.ready
        even = batch.filter(pc.equal(pc.bit_wise_and(batch["n"], 1), 0))
        self.drop(len(batch) - len(even), "odd")
        return even.set_column(0, "n", pc.multiply(even["n"], self.factor))


class Pooled(Doubled):
    """The same in actors."""

    name = "doubled"
    compute = ActorPool(size=2)


class Longer(Doubled):
    """Steps before and after."""

    def build(self, ds: Dataset) -> Dataset:
        ds = ds.filter(pc.field("n") >= 10, reason="small")
        return super().build(ds).with_column("half", pc.divide(pc.field("n"), 2))


class Minus:
    """A class that is made once in each actor."""

    def __init__(self, amount: int) -> None:
        self.amount = amount

    def __call__(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"n": batch["n"] - self.amount}


class Kept(Doubled):
    """A checkpoint between steps."""

    kept: str = param(help="where the checkpoint is", identity=False)

    def build(self, ds: Dataset) -> Dataset:
        doubled = super().build(ds).checkpoint(self.kept)
        return doubled.map_batches(Minus, fn_constructor_args=[1], batch_format="numpy", compute=ActorPool(size=1))


def rows(folder: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


EVEN = [n for n in range(30) if n % 2 == 0]


def test_process_in_a_pool_is_the_same_job(folder: Path, tmp_path: Path) -> None:
    """Bytes, books and identity: where it runs is nobody's business."""
    for job, name in ((Doubled(), "here"), (Pooled(), "there")):
        summary = job.run(input=folder, output=tmp_path / name, backend="inline")
        assert summary.books.dropped == {"odd": 15}
    for path in (tmp_path / "here").glob("*.parquet"):
        assert path.read_bytes() == (tmp_path / "there" / path.name).read_bytes()
    assert Doubled().spec().record.fingerprint == Pooled().spec().record.fingerprint


def test_steps_around_process(folder: Path, tmp_path: Path) -> None:
    """Every step books what it drops."""
    summary = Longer().run(input=folder, output=tmp_path / "out", backend="inline")
    assert summary.books.dropped == {"small": 10, "odd": 10}
    assert rows(tmp_path / "out") == [{"n": 2 * n, "half": n} for n in EVEN if n >= 10]


def test_a_checkpoint_of_a_job(folder: Path, tmp_path: Path) -> None:
    """Made by a stage of its own, kept when the output is made again, refused to a job of other parameters."""

    def run(output: str, **given: Any) -> Any:
        kept = Kept(kept=str(tmp_path / "kept"), **given)
        return kept.run(input=folder, output=tmp_path / output, backend="inline")

    assert run("out").state == "complete"
    assert rows(tmp_path / "out") == [{"n": 2 * n - 1} for n in EVEN]
    assert [row["n"] for row in rows(tmp_path / "kept")] == [2 * n for n in EVEN]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").rglob("*") if path.is_file()}
    again = run("again")
    assert (again.state, again.dispatched) == ("complete", 3)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    with pytest.raises(ConfigError, match="another identity"):
        run("other", factor=3)
    # The first stage of what is asked for has nothing left to do, nor has the second.
    assert run("out").dispatched == 0


def test_a_part_of_a_job_with_a_checkpoint(folder: Path, tmp_path: Path) -> None:
    """`--limit` is about its inputs; what is left is done when it is asked for."""
    kept = Kept(kept=str(tmp_path / "kept"))
    summary = kept.run(input=folder, output=tmp_path / "out", backend="inline", limit=1)
    assert (summary.state, len(rows(tmp_path / "out"))) == ("complete", 5)
    assert kept.run(input=folder, output=tmp_path / "out", backend="inline").state == "complete"
    assert len(rows(tmp_path / "out")) == 15


def test_what_asks_for_a_gpu_gets_a_pool() -> None:
    """Custom resources too; the tasks that read hold a CPU."""

    class Gpu(Doubled):
        num_gpus = 1
        memory = 2**30

    class Tpu(Doubled):
        resources = {"TPU": 4}  # noqa: RUF012
        num_cpus = 2

    for job, held in (
        (Gpu(), Resources(1.0, 1.0, 2**30)),
        (Tpu(), Resources(2.0, 0.0, None, {"TPU": 4})),
    ):
        spec = job.spec()
        (pool,) = spec.operator.pools
        assert (pool.resources, pool.min_size, pool.max_size) == (held, 1, None)
        assert spec.tasks.resources == Resources()
    assert Doubled(num_cpus=3).spec().tasks.resources == Resources(3.0)
    assert Doubled().spec().operator.pools == ()


def test_what_build_may_not_return() -> None:
    """Said when the job is about to run, with the next step."""

    def job(made: Any, **attributes: Any) -> Job:
        def build(_: Job, ds: Dataset) -> Any:
            return made(ds)

        return type("Odd", (Job,), {"build": build, "version": "1", **attributes})()

    for made, message in (
        (lambda _: None, "returned NoneType"),
        (lambda _: curate.range(3), "expected a Dataset derived from the one"),
        (lambda ds: ds.limit(3), "put it after an exchange such as sort"),
        (lambda ds: ds.take(3), "cannot read rows"),
        (lambda ds: ds.select_columns("m"), "there is no column 'm'"),
    ):
        with pytest.raises(ConfigError, match=message):
            job(made, columns={"n": pa.int64()}).spec()
    with pytest.raises(ConfigError, match="pass them to map_batches"):
        job(lambda ds: ds, num_gpus=1).spec()
    with pytest.raises(ConfigError, match="never called"):
        type("Files", (FileJob,), {"build": lambda _, ds: ds, "process_file": lambda *_: ()})
