"""Samples of dropped rows beside an output: published while a shard runs, the same each time, no part of its bytes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import curate
from curate.errors import ConfigError, StorageError
from curate.job.job import Job
from curate.job.params import param
from curate.job.shapes import FileJob
from curate.ledger import layout
from curate.objects.samples import MOST_SAMPLED, DroppedRow, decode_samples, shard_samples
from curate.observe.verify import verify
from curate.storage.faults import Fault
from curate.testing.stores import faulty_stores
from tests.job.inline import numbered, run_job, write_jsonl, write_parquet

SHARDS = 3


class Odd(Job):
    """Drops odd rows, and says which."""

    version = "1"
    least: int = param(0, help="the least number that is kept")

    def process(self, batch: pa.Table) -> pa.Table:
        odd = pc.equal(pc.bit_wise_and(batch["n"], 1), 1)
        self.drop(batch.filter(odd), "odd")
        return batch.filter(pc.invert(odd))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for shard in range(SHARDS):
        write_jsonl(tmp_path / "in" / f"s{shard}.jsonl", numbered(100 * shard, 100 * shard + 100))
    return tmp_path / "in"


def kept(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((out / layout.SAMPLES).glob("*"))}


def rows(out: Path) -> list[DroppedRow]:
    return [row for name, data in kept(out).items() for row in decode_samples(data, name)]


def whole(out: Path) -> dict[str, bytes]:
    """Returns the outputs, without the ledger."""
    found = {str(path.relative_to(out)): path for path in out.rglob("*.parquet")}
    return {name: path.read_bytes() for name, path in found.items() if layout.LEDGER not in path.parts}


@pytest.fixture
def done(source: Path, tmp_path: Path) -> Path:
    """A job that is complete."""
    assert run_job(Odd(), source, tmp_path / "out").state == "complete"
    return tmp_path / "out"


class TestRuns:
    """What a run leaves, and what it costs."""

    def test_each_shard_keeps_some_rows_of_a_reason(self, done: Path) -> None:
        assert kept(done).keys() == {f"{shard_samples(f's{n}')}.jsonl.zst" for n in range(SHARDS)}
        found = rows(done)
        assert len(found) == SHARDS * MOST_SAMPLED
        assert {row.reason for row in found} == {"odd"}
        assert {row.shard for row in found} == {"s0", "s1", "s2"}

    @pytest.mark.parametrize("how", [{"target_task_seconds": 1e-6}, {"max_in_flight": 1}, {"limit": 1}])
    def test_they_are_the_same_however_it_runs(self, done: Path, source: Path, how: Any, tmp_path: Path) -> None:
        run_job(Odd(), source, tmp_path / "again", **how)
        run_job(Odd(), source, tmp_path / "again")
        assert kept(tmp_path / "again") == kept(done)

    def test_without_them_the_outputs_are_the_same(self, done: Path, source: Path, tmp_path: Path) -> None:
        ended = run_job(Odd(), source, tmp_path / "bare", no_samples=True)
        assert kept(tmp_path / "bare") == {}
        assert whole(tmp_path / "bare") == whole(done)
        again = run_job(Odd(), source, tmp_path / "more")
        assert again.calls.put == ended.calls.put + SHARDS

    def test_a_shard_that_drops_nothing_costs_nothing(self, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "in" / "s.jsonl", [{"n": 0}, {"n": 2}])
        puts = [
            run_job(Odd(), tmp_path / "in", tmp_path / name, no_samples=bare).calls.put
            for name, bare in (("with", False), ("without", True))
        ]
        assert puts[0] == puts[1]
        assert kept(tmp_path / "with") == {}

    def test_a_finished_job_writes_none(self, done: Path, source: Path) -> None:
        shutil.rmtree(done / layout.SAMPLES)
        run_job(Odd(), source, done)
        assert kept(done) == {}

    def test_an_output_that_was_removed_is_made_again_with_them(self, done: Path, source: Path) -> None:
        before, outputs = kept(done), whole(done)
        (done / "s1.parquet").unlink()
        assert run_job(Odd(), source, done).state == "complete"
        assert (kept(done), whole(done)) == (before, outputs)

    def test_they_are_there_before_the_output(self, source: Path, tmp_path: Path) -> None:
        """A run that ends between the two is resumed to the same."""
        out = tmp_path / "out"
        with faulty_stores(Fault("publish", name="s1.parquet", times=100, error=StorageError("as scripted"))):
            run_job(Odd(), source, out, max_failed_shards=0)
        assert not (out / "s1.parquet").exists()
        before = kept(out)
        assert f"{shard_samples('s1')}.jsonl.zst" in before
        assert run_job(Odd(), source, out, retry_failed=True).state == "complete"
        assert kept(out).items() >= before.items()

    def test_nothing_that_looks_for_foreign_files_minds(self, done: Path, source: Path) -> None:
        assert not verify(str(done)).findings
        run_job(Odd(least=1), source, done, overwrite=True, yes=True, no_samples=True)
        assert kept(done) == {}


class TestChangedInputs:
    """What was sampled of an input that is another now is not shown."""

    def test_they_are_replaced_with_the_output(self, done: Path, source: Path) -> None:
        before = kept(done)
        write_jsonl(source / "s1.jsonl", [{"n": 5}, {"n": 6}])
        run_job(Odd(), source, done, redo_stale=True)
        changed = {name for name, data in kept(done).items() if data != before[name]}
        assert changed == {f"{shard_samples('s1')}.jsonl.zst"}

    def test_they_go_where_nothing_is_dropped_any_more(self, done: Path, source: Path) -> None:
        write_jsonl(source / "s1.jsonl", [{"n": 6}])
        run_job(Odd(), source, done, redo_stale=True)
        assert kept(done).keys() == {f"{shard_samples(name)}.jsonl.zst" for name in ("s0", "s2")}

    def test_they_go_with_an_input_that_was_removed(self, done: Path, source: Path) -> None:
        (source / "s1.jsonl").unlink()
        run_job(Odd(), source, done, drop_removed=True)
        assert kept(done).keys() == {f"{shard_samples(name)}.jsonl.zst" for name in ("s0", "s2")}

    @pytest.mark.parametrize("lost", ["the run was killed", "the output was removed"])
    def test_they_go_where_the_output_was_not_there(self, source: Path, tmp_path: Path, lost: str) -> None:
        """They are published before it: of a shard that is to be done there may be some of an earlier input."""
        out = tmp_path / "out"
        with faulty_stores(Fault("publish", name="s1.parquet", times=100, error=StorageError("as scripted"))):
            run_job(Odd(), source, out)
        if lost == "the output was removed":
            run_job(Odd(), source, out)
            (out / "s1.parquet").unlink()
        assert f"{shard_samples('s1')}.jsonl.zst" in kept(out)
        write_jsonl(source / "s1.jsonl", [{"n": 6}])
        assert run_job(Odd(), source, out).state == "complete"
        assert kept(out).keys() == {f"{shard_samples(name)}.jsonl.zst" for name in ("s0", "s2")}

    def test_they_go_with_a_shard_that_was_never_done(self, source: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        with faulty_stores(Fault("publish", name="s1.parquet", times=100, error=StorageError("as scripted"))):
            run_job(Odd(), source, out)
        (source / "s1.jsonl").unlink()
        assert run_job(Odd(), source, out, drop_removed=True).state == "complete"
        assert kept(out).keys() == {f"{shard_samples(name)}.jsonl.zst" for name in ("s0", "s2")}


class TestOperators:
    """What drops rows says which."""

    @pytest.mark.parametrize(
        ("steps", "reasons"),
        [
            (lambda ds: ds.filter(pc.field("n") > 30, reason="small"), {"small"}),
            (lambda ds: ds.filter(lambda row: row["n"] > 30, reason="small"), {"small"}),
            (lambda ds: ds.filter(pc.field("n") > 30, reason="small").sort("n"), {"small"}),
            (lambda ds: ds.dedup_exact("half"), {"duplicate"}),
            (lambda ds: ds.dedup_minhash("text", id_column="n"), {"duplicate"}),
            (lambda ds: ds.distinct(["half"]), {"duplicate"}),
            (lambda ds: ds.join(curate.from_items([{"n": 7}]), on="n", how="semi"), {"unmatched"}),
            (lambda ds: ds.random_sample(0.5, seed=1), set()),
            (lambda ds: ds.limit(10), set()),
        ],
    )
    def test_rows_are_known(self, steps: Callable[[Any], Any], reasons: set[str], tmp_path: Path) -> None:
        some = [{"n": n, "half": n // 2, "text": " ".join(map(str, range(n // 2, n // 2 + 40)))} for n in range(100)]
        for part in range(2):
            write_parquet(tmp_path / "in" / f"s{part}.parquet", some[50 * part : 50 * part + 50])
        ds = steps(curate.read_parquet(tmp_path / "in"))
        assert ds.write_parquet(tmp_path / "out", backend="inline").state == "complete"
        found = rows(tmp_path / "out")
        assert {row.reason for row in found} == reasons
        assert all('"n":' in row.row for row in found)

    def test_rows_of_a_stage_that_is_removed_stay(self, tmp_path: Path) -> None:
        """As one file, with the stage, at most 20 of all its shards."""
        ds = curate.range(200).filter(lambda row: row["id"] % 2 == 0, reason="odd").sort("id")
        ds.write_parquet(tmp_path / "out", backend="inline")
        found = rows(tmp_path / "out")
        assert len(kept(tmp_path / "out")) == 1
        assert len(found) == MOST_SAMPLED
        assert len({row.stage for row in found}) == 1
        assert found[0].stage


class TestJobs:
    """`self.drop` takes rows, or a number."""

    @pytest.mark.parametrize(
        ("dropped", "count", "known"),
        [
            (3, 3, 0),
            (pa.table({"n": [1, 2]}), 2, 2),
            (pa.RecordBatch.from_pydict({"n": [1, 2]}), 2, 2),
            (pa.table({"n": []}), 0, 0),
            ([{"n": 1}], 1, 1),
            ([], 0, 0),
            ([{"n": 1}, {"n": "no number"}, {"m": b"\xff"}], 3, 3),
        ],
    )
    def test_what_it_is_given(self, dropped: Any, count: int, known: int, tmp_path: Path) -> None:
        class Given(FileJob):
            version = "1"

            def process_file(self, file: Any) -> Any:
                del file
                self.drop(dropped, "why")
                yield {"n": 1}

        write_jsonl(tmp_path / "in" / "s.jsonl", [{"n": 1}])
        ended = run_job(Given(), tmp_path / "in", tmp_path / "out")
        assert ended.books.dropped.get("why", 0) == count
        assert len(rows(tmp_path / "out")) == known

    @pytest.mark.parametrize("wrong", ["three", None, {"n": 1}, 2.5])
    def test_what_is_no_rows_is_refused(self, wrong: Any) -> None:
        with pytest.raises(TypeError, match=r"drop\("):
            Odd().drop(wrong, "why")

    def test_secrets_are_not_in_them(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        class Told(Job):
            version = "1"
            key: str = param(secret=True, help="a key")

            def process(self, batch: pa.Table) -> pa.Table:
                self.drop([{"text": f"with {self.key}"}], "why")
                return batch

        monkeypatch.setenv("A_KEY", "hush-hush")
        write_jsonl(tmp_path / "in" / "s.jsonl", [{"n": 1}])
        run_job(Told(key="A_KEY"), tmp_path / "in", tmp_path / "out")
        [row] = rows(tmp_path / "out")
        assert "hush-hush" not in row.row


def test_the_option_is_no_part_of_the_identity(done: Path, source: Path) -> None:
    """A run without it goes on with the output of one with it."""
    (done / "s2.parquet").unlink()
    assert run_job(Odd(), source, done, no_samples=True).state == "complete"
    with pytest.raises(ConfigError):
        run_job(Odd(least=1), source, done, no_samples=True)
