"""Extra outputs: published before the main one, with the same promises, and never instead of it."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import curate
from curate.clock import SystemClock
from curate.dataset.dataset import Dataset
from curate.errors import BadRow, ConfigError
from curate.formats.encoding import Format
from curate.graph.entry import run
from curate.graph.replay import replay
from curate.job.job import Job
from curate.job.params import param
from curate.job.shapes import FileJob
from curate.objects.record import OutputFormat, read_record
from curate.observe.failures import read_failures
from curate.observe.verify import verify
from curate.pipeline.branches import Branching
from curate.pipeline.pipeline import Pipeline, ShardContext
from curate.pipeline.shard_books import BadRowBudget, ShardBooks
from curate.pipeline.step import ActorPool, BatchPosition, Compute, SideTable
from curate.stage.messages import TaskInput
from curate.stage.program import StageProgram
from curate.stores.memory import clear
from curate.stores.open import open_store
from curate.tasks.shard import Shard
from curate.testing.local import run_local
from tests.job.inline import everything, numbered, refusing, run_job, write_jsonl, write_parquet
from tests.support.workbench import NoBackend, complete
from tests.support.writes import file_of

SHARDS = 3
ROWS = 20
begun: list[int] = []
"""The first `n` of each batch that a job here was given, in order."""


def even(batch: pa.Table) -> Any:
    return pc.equal(pc.bit_wise_and(batch["n"], 1), 0)


class Halves(Job):
    """Even numbers, and beside them the odd ones."""

    version = "1"
    sides = ("odd",)
    batch_size = 8
    columns = {"n": pa.int64()}  # noqa: RUF012
    format: str = "parquet"

    def process(self, batch: pa.Table) -> Any:
        begun.append(batch["n"][0].as_py())
        mask = even(batch)
        odd = batch.filter(pc.invert(mask))
        self.drop(len(odd), "odd")
        return {"main": batch.filter(mask), "odd": odd}


class Branched(Halves):
    """The same by `build`, and a second extra output; what all share is computed once."""

    sides = ()

    def process(self, batch: pa.Table) -> Any:
        begun.append(batch["n"][0].as_py())
        self.count("seen", len(batch))
        return batch.append_column("odd", pc.invert(even(batch)))

    def build(self, ds: Dataset) -> Mapping[str, Dataset]:
        seen = super().build(ds)
        assert isinstance(seen, Dataset)
        return {
            "tens": seen.map_batches(tens),
            "main": seen.filter(~pc.field("odd"), reason="odd").select_columns(["n"]),
            "odd": seen.filter(pc.field("odd"), reason="even").select_columns(["n"]),
        }


def tens(batch: pa.Table) -> pa.Table:
    return batch.filter(pa.array([n % 10 == 0 for n in batch["n"].to_pylist()])).select(["n"])


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    begun.clear()
    yield
    clear("sides")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Inputs of which the last one has no odd number."""
    for shard in range(SHARDS - 1):
        write_jsonl(tmp_path / "in" / f"s{shard}.jsonl", [{"n": ROWS * shard + k} for k in range(ROWS)])
    write_jsonl(tmp_path / "in" / f"s{SHARDS - 1}.jsonl", [{"n": 100}, {"n": 102}])
    return tmp_path / "in"


def numbers(folder: Path) -> list[int]:
    return [n for path in sorted(folder.glob("*.parquet")) for n in pq.read_table(path)["n"].to_pylist()]


ALL = [*range(ROWS * (SHARDS - 1)), 100, 102]
EVEN = [n for n in ALL if n % 2 == 0]
ODD = [n for n in ALL if n % 2 == 1]


def record_of(path: Path) -> dict[str, Any]:
    store = open_store(str(path))
    record = read_record(store, store.stat(str(path)), OutputFormat.PARQUET, "zstd")
    assert record is not None
    return record


class TestWhatIsWritten:
    @pytest.mark.parametrize("job", [Halves, Branched])
    def test_books_are_those_of_the_main_output(self, job: type[Job], source: Path, tmp_path: Path) -> None:
        """Rows of an extra output are a counter, and what is dropped on the way there is booked nowhere."""
        summary = complete(run_job(job(), source, tmp_path / "out"))
        assert numbers(tmp_path / "out") == EVEN
        assert numbers(tmp_path / "out/_side/odd") == ODD
        assert summary.books.rows() == {
            **{"in": len(ALL), "created": 0, "out": len(EVEN), "quarantined": 0},
            "dropped": {"odd": len(ODD)},
        }
        counters = {"side odd": len(ODD)}
        if job is Branched:
            assert numbers(tmp_path / "out/_side/tens") == [n for n in ALL if n % 10 == 0]
            counters |= {"seen": len(ALL), "side tens": len([n for n in ALL if n % 10 == 0])}
        assert summary.books.counters == counters
        # Each batch once (and once more for the schema), however many outputs there are.
        assert len(begun) <= 2 * 3 * 2 + 4

    def test_what_is_shared_runs_once_a_shard(self, source: Path, tmp_path: Path) -> None:
        complete(run_job(Branched(), source, tmp_path / "out"))
        begun.clear()
        (tmp_path / "out/s0.parquet").unlink()
        complete(run_job(Branched(), source, tmp_path / "out"))
        assert begun == [0, 8, 16]

    def test_each_shard_has_each_of_them_with_its_record(self, source: Path, tmp_path: Path) -> None:
        """Also where it has no row; the record is that of the main output, and says which extra one it is."""
        complete(run_job(Halves(), source, tmp_path / "out"))
        for shard in range(SHARDS):
            main, side = (tmp_path / "out" / place / f"s{shard}.parquet" for place in (".", "_side/odd"))
            assert record_of(side) == {**record_of(main), "side": "odd"}
        assert pq.read_table(tmp_path / "out/_side/odd/s2.parquet").num_rows == 0

    @pytest.mark.parametrize(("format", "codec"), [("parquet", "snappy"), ("jsonl", "zstd"), ("jsonl", "gzip")])
    def test_format_and_codec_are_the_same(self, source: Path, tmp_path: Path, format: str, codec: str) -> None:
        complete(run_job(Halves(format=format, codec=codec), source, tmp_path / "out"))
        mains = sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_file())
        assert len(mains) == SHARDS
        assert sorted(path.name for path in (tmp_path / "out/_side/odd").iterdir()) == mains
        assert verify(str(tmp_path / "out")).state == "ok"

    def test_bytes_do_not_depend_on_how_it_ran(self, source: Path, tmp_path: Path) -> None:
        """Nor on where `process` ran."""
        complete(run_job(Branched(), source, tmp_path / "one"))
        for limit in (1, 2, None):
            run_job(Branched(), source, tmp_path / "other", limit=limit, target_task_seconds=1)
        assert objects(tmp_path / "one") == objects(tmp_path / "other")

        class Pooled(Halves):
            name = "halves"
            compute = ActorPool(size=2)

        complete(run_job(Halves(), source, tmp_path / "here"))
        complete(run_job(Pooled(), source, tmp_path / "there"))
        assert objects(tmp_path / "here") == objects(tmp_path / "there")

    def test_a_finished_job_is_free(self, source: Path, tmp_path: Path) -> None:
        """Not a call more than without extra outputs."""
        for job, name in ((Halves(), "with"), (Single(), "without")):
            complete(run_job(job, source, tmp_path / name))
        made = [Halves().options(input=source, output=tmp_path / name) for name in ("with", "without")]
        with_sides, without = (
            run(job.spec(), one, backend=NoBackend()).calls  # type: ignore[arg-type]
            for job, one in zip((Halves(), Single()), made, strict=True)
        )
        assert with_sides == without
        assert (with_sides.list, with_sides.put, with_sides.delete) == (2, 0, 0)

    def test_they_are_inputs_of_other_jobs_and_not_in_the_way(self, source: Path, tmp_path: Path) -> None:
        """Who reads the main output sees none of them; each is a dataset by itself."""
        complete(run_job(Halves(), source, tmp_path / "out"))
        assert curate.read_parquet(tmp_path / "out").to_arrow()["n"].to_pylist() == EVEN
        assert curate.read_parquet(tmp_path / "out/_side/odd").to_arrow()["n"].to_pylist() == ODD
        (tmp_path / "out/s1.parquet").unlink()
        (tmp_path / "out/_curate/summary.json").unlink()
        with pytest.raises(ConfigError, match="incomplete job"):
            run_job(Single(), tmp_path / "out/_side/odd", tmp_path / "next")

    def test_a_local_run_has_them(self) -> None:
        ran = run_local(Halves, [{"n": n} for n in range(4)])
        assert ran.rows == [{"n": 0}, {"n": 2}]
        assert ran.sides["odd"].to_pylist() == [{"n": 1}, {"n": 3}]
        assert set(ran.outputs) == {"rows.parquet", "_side/odd/rows.parquet"}
        assert run_local(Single, [{"n": 0}]).sides == {}


class Single(Halves):
    """Even numbers alone."""

    name = "halves"
    sides = ()

    def process(self, batch: pa.Table) -> Any:
        begun.append(batch["n"][0].as_py())
        self.drop(len(batch) - len(kept := batch.filter(even(batch))), "odd")
        return kept


def objects(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in everything(root).items() if not name.startswith("_curate/")}


class TestIdentity:
    def test_another_output_is_another_job(self, source: Path, tmp_path: Path) -> None:
        """What is finished without it is not finished with it."""
        complete(run_job(Single(), source, tmp_path / "out"))
        with refusing("sides: made with nothing, you asked for {'odd': None}"):
            run_job(Named(), source, tmp_path / "out")

    def test_schemas_that_are_declared_are_part_of_it(self) -> None:
        class Declared(Halves):
            name = "halves"
            sides = {"odd": pa.schema([("n", pa.int64())])}  # noqa: RUF012

        assert Declared().spec().record.fingerprint != Named().spec().record.fingerprint
        assert Declared().spec().record.identity["sides"] == {"odd": "n: int64"}

    def test_without_any_it_is_as_ever(self) -> None:
        assert "sides" not in Single().spec().record.identity


class Named(Halves):
    """The same, under the name of the job without."""

    name = "halves"


class TestResuming:
    def test_killed_between_both_publishes_the_same_again(self, source: Path, tmp_path: Path) -> None:
        """The extra output that is there stays the object that it was."""
        complete(run_job(Halves(), source, tmp_path / "out"))
        expected, side = objects(tmp_path / "out"), tmp_path / "out/_side/odd/s1.parquet"
        seen = open_store(str(side)).stat(str(side))
        (tmp_path / "out/s1.parquet").unlink()
        begun.clear()
        assert complete(run_job(Halves(), source, tmp_path / "out")).attempts == 1
        assert begun == [20, 28, 36]
        assert objects(tmp_path / "out") == expected
        assert open_store(str(side)).stat(str(side)) == seen

    def test_a_stale_one_without_its_main_output_is_replaced(self, source: Path, tmp_path: Path) -> None:
        """Killed between both, and then the input changed: the shard is run twice in its one attempt."""
        complete(run_job(Halves(), source, tmp_path / "out"))
        (tmp_path / "out/s1.parquet").unlink()
        write_jsonl(source / "s1.jsonl", [{"n": 7}, {"n": 8}])
        complete(run_job(Halves(), source, tmp_path / "fresh"))
        begun.clear()
        assert complete(run_job(Halves(), source, tmp_path / "out")).attempts == 1
        assert begun == [7, 7]
        assert objects(tmp_path / "out") == objects(tmp_path / "fresh")

    def test_one_that_curate_did_not_write_is_left_alone(self, source: Path, tmp_path: Path) -> None:
        """Its shard fails at once, and says what to do."""
        side = write_parquet(tmp_path / "out/_side/odd/s1.parquet", [{"mine": 1}])
        data = side.read_bytes()
        summary = run_job(Halves(), source, tmp_path / "out")
        assert (summary.state, summary.failed, summary.done, summary.attempts) == ("failed", 1, 2, 3)
        assert "was not written by curate" in summary.failures[0].error
        assert "move it" in summary.failures[0].error
        assert side.read_bytes() == data
        assert not (tmp_path / "out/s1.parquet").exists()
        side.unlink()
        complete(run_job(Halves(), source, tmp_path / "out"))

    def test_a_main_output_by_another_attempt_counts(self, source: Path, tmp_path: Path) -> None:
        """An attempt that finds one beside an extra output that is not its own leaves both, and says so."""
        complete(run_job(Halves(), source, tmp_path / "out"))
        before = objects(tmp_path / "out")
        made, shard = program(tmp_path / "out")
        (source / "s1.jsonl").write_text('{"n": 7}\n{"n": 8}\n')
        [record] = made.run(piece(now(shard), attempt=1))
        assert (record.failure, record.existed, record.different) == (None, True, True)
        assert record.books is not None
        assert record.books.rows_in == ROWS
        assert objects(tmp_path / "out") == before

    def test_a_worker_whose_job_was_overwritten_replaces_nothing(self, source: Path, tmp_path: Path) -> None:
        """Nor does it remove what it finds in the place of its own."""
        complete(run_job(Halves(), source, tmp_path / "out"))
        made, shard = program(tmp_path / "out")
        (tmp_path / "out/s1.parquet").unlink()
        (source / "s1.jsonl").write_text('{"n": 7}\n{"n": 8}\n')
        job = tmp_path / "out/_curate/job.json"
        value = orjson.loads(job.read_bytes())
        job.write_bytes(orjson.dumps({**value, "fingerprint": "another"}))
        before = everything(tmp_path / "out")
        [record] = made.run(piece(now(shard), attempt=1))
        assert record.failure is not None
        assert "is now the output of another job" in record.failure.error
        assert objects(tmp_path / "out") == {k: v for k, v in before.items() if not k.startswith("_curate/")}

    def test_who_replaces_it_first_wins_and_is_told_apart(self, source: Path, tmp_path: Path) -> None:
        """What is removed is the object that was seen: another one that came meanwhile is looked at anew."""
        complete(run_job(Halves(), source, tmp_path / "out"))
        made, shard = program(tmp_path / "out")
        (tmp_path / "out/s1.parquet").unlink()
        side = tmp_path / "out/_side/odd/s1.parquet"
        replacing = Replacing(side)
        replacing.around(made.stage.operator)
        (source / "s1.jsonl").write_text('{"n": 7}\n{"n": 8}\n')
        [record] = made.run(piece(now(shard), attempt=1))
        assert record.failure is None
        assert replacing.runs == 3
        assert numbers(side.parent)[10:11] == [7]
        replacing.always, replacing.runs = True, 0
        (tmp_path / "out/s1.parquet").unlink()
        [record] = made.run(piece(now(shard), attempt=1))
        assert record.failure is not None
        assert record.failure.kind == "foreign_output"
        assert replacing.runs == 3
        assert not (tmp_path / "out/s1.parquet").exists()

    def test_redo_stale_removes_them_with_their_main_output(self, source: Path, tmp_path: Path) -> None:
        complete(run_job(Halves(), source, tmp_path / "out"))
        write_jsonl(source / "s1.jsonl", [{"n": 7}, {"n": 8}])
        begun.clear()
        ended = complete(run_job(Halves(), source, tmp_path / "out", redo_stale=True))
        assert (ended.attempts, begun) == (1, [7])
        complete(run_job(Halves(), source, tmp_path / "fresh"))
        assert objects(tmp_path / "out") == objects(tmp_path / "fresh")

    def test_overwrite_removes_them_and_nothing_else(self, source: Path, tmp_path: Path) -> None:
        """Also those of a shard that was not finished; what somebody else put there stays."""
        out = tmp_path / "out"
        complete(run_job(Halves(), source, out))
        (out / "s1.parquet").unlink()
        mine = write_parquet(out / "_side/odd/mine.parquet", [{"mine": 1}])
        also = write_parquet(out / "_side/more/s0.txt", [{"mine": 1}])
        other = write_parquet(out / "_side/other/s1.parquet", [{"mine": 1}])
        asked: list[str] = []
        confirmed = run_job(Single(), source, out, overwrite=True, confirm=lambda text: asked.append(text) or True)
        complete(confirmed)
        assert asked == [f"remove 5 outputs and the ledger of 'halves' under {out}?"]
        left = sorted(str(path.relative_to(out)) for path in (out / "_side").rglob("*") if path.is_file())
        assert left == ["_side/more/s0.txt", "_side/odd/mine.parquet", "_side/other/s1.parquet"]
        assert mine.exists()
        assert also.exists()
        assert other.exists()

    def test_one_under_the_name_of_a_main_output_is_not_taken_for_it(self, source: Path, tmp_path: Path) -> None:
        complete(run_job(Halves(), source, tmp_path / "out"))
        shutil.copy(tmp_path / "out/_side/odd/s1.parquet", tmp_path / "out/s1.parquet")
        shutil.rmtree(tmp_path / "out/_curate/runs")
        (tmp_path / "out/_curate/summary.json").unlink()
        with refusing("is the extra output 'odd', but it has the name of an output"):
            run_job(Halves(), source, tmp_path / "out")

    def test_a_replay_publishes_them(self, source: Path, tmp_path: Path) -> None:
        complete(run_job(Halves(), source, tmp_path / "out"))
        expected = objects(tmp_path / "out")
        (tmp_path / "out/s1.parquet").unlink()
        (tmp_path / "out/_side/odd/s1.parquet").unlink()
        found = read_failures(str(tmp_path / "out"))
        for publish in (False, True):
            done = replay(found, Halves().spec(), "s1", SystemClock(), publish=publish, whole=False, rows=3)
            assert done.record.failure is None
            assert [row["n"] for row in done.rows] == [20, 22, 24]
            assert (objects(tmp_path / "out") == expected) is publish


class Replacing:
    """Has an extra output replaced by another worker while a shard runs: on its second run, or always."""

    def __init__(self, side: Path) -> None:
        self.side = side
        self.runs = 0
        self.always = False

    def around(self, operator: Any) -> Any:
        stream = operator.stream

        def watched(*args: Any) -> Any:
            self.runs += 1
            if self.runs == 2 or self.always:
                table = pq.read_table(self.side)
                self.side.unlink()
                record = {"side": "odd", "by": f"another worker, {self.runs}"}
                other = table.slice(0, max(1, self.runs))
                self.side.write_bytes(file_of(other, OutputFormat.PARQUET, record=record))
            return stream(*args)

        operator.stream = watched
        return operator


def program(out: Path) -> tuple[Any, Shard]:
    """Returns what a worker of the job runs, and its shard s1."""
    spec = Halves().spec()
    spec = replace(spec, rows=spec.rows.holding({Format.JSONL: pa.schema([("n", pa.int64())])}))
    made = StageProgram(spec, "run-1", str(out), f"{out}/tmp")
    found = read_failures(str(out))
    return made, found.shard("s1")[1]


def now(shard: Shard) -> Shard:
    """Returns the shard over what its input is now."""
    seen = open_store(shard.uri).stat(shard.uri)
    return replace(shard, size_bytes=seen.size, object_bytes=seen.size, generation=seen.generation)


def piece(shard: Shard, attempt: int) -> TaskInput:
    schema = pa.schema([("n", pa.int64())])
    made = TaskInput(((0, shard),), attempt, schema, sides={"odd": schema})
    sent: TaskInput = pickle.loads(pickle.dumps(made))
    assert sent == made
    return sent


class TestSchemas:
    def test_each_is_derived_and_held(self, source: Path, tmp_path: Path) -> None:
        """Stored beside that of the main output, asked for once."""
        complete(run_job(Branched(), source, tmp_path / "out", limit=1))
        schemas = sorted(path.name for path in (tmp_path / "out/_curate/schema").iterdir())
        assert schemas == ["input-jsonl.arrow", "output.arrow", "side-odd.arrow", "side-tens.arrow"]
        begun.clear()
        complete(run_job(Branched(), source, tmp_path / "out"))
        assert len(begun) == 4

    @pytest.mark.parametrize("declared", [None, pa.schema([("n", pa.float64()), ("why", pa.string())])])
    def test_where_the_first_shards_have_no_row_the_first_that_has_one_tells_it(
        self, declared: pa.Schema | None, tmp_path: Path
    ) -> None:
        """It is looked for in all shards, if it is not declared: one has no row, and the schema, in all others."""

        class Rare(Job):
            version = "1"
            sides = {"rare": declared}  # noqa: RUF012

            def process(self, batch: pa.Table) -> Any:
                if batch["n"][0].as_py() < 90:
                    return {"main": batch}
                return {"main": batch, "rare": batch.append_column("why", pa.nulls(len(batch)))}

        for shard in range(10):
            write_jsonl(tmp_path / "in" / f"{shard}.jsonl", [{"n": 10 * shard}])
        summary = run_job(Rare(), tmp_path / "in", tmp_path / "out")
        complete(summary)
        (found,) = pq.read_table(tmp_path / "out/_side/rare/9.parquet").to_pylist()
        assert found == {"n": 90.0, "why": None}
        expected = declared or pa.schema([("n", pa.int64()), ("why", pa.null())])
        assert pq.read_schema(tmp_path / "out/_side/rare/0.parquet").equals(expected)

    def test_a_type_that_is_null_at_first_is_asked_for(self, tmp_path: Path) -> None:
        class Notes(Job):
            version = "1"
            sides = ("notes",)

            def process(self, batch: pa.Table) -> Any:
                notes = pa.array(["x" if n else None for n in batch["n"].to_pylist()])
                return {"main": batch, "notes": pa.table({"note": notes})}

        for n in range(3):
            write_jsonl(tmp_path / "in" / f"{n}.jsonl", [{"n": n}])
        complete(run_job(Notes(), tmp_path / "in", tmp_path / "out"))
        for n in range(3):
            note = pq.read_table(tmp_path / f"out/_side/notes/{n}.parquet")
            assert (note.schema.field("note").type, note["note"].to_pylist()) == (pa.string(), ["x" if n else None])

    def test_if_all_shards_fail_none_is_stored(self, tmp_path: Path) -> None:
        """With the main schema declared: otherwise what is mended would be held to no columns."""

        class Broken(Job):
            version = "1"
            sides = ("odd",)
            output_schema = pa.schema([("n", pa.int64())])
            mended: bool = param(False, identity=False, help="whether it works")

            def process(self, batch: pa.Table) -> Any:
                if not self.mended:
                    raise ValueError("not yet")
                return {"main": batch, "odd": batch}

        write_jsonl(tmp_path / "in/a.jsonl", [{"n": 1}])
        assert run_job(Broken(), tmp_path / "in", tmp_path / "out").state == "failed"
        assert not (tmp_path / "out/_curate/schema/side-odd.arrow").exists()
        job = Broken(mended=True)
        complete(run_job(job, tmp_path / "in", tmp_path / "out"))
        assert numbers(tmp_path / "out/_side/odd") == [1]


def made(result: Any, **attributes: Any) -> Job:
    """Returns a job whose `process` gives what a function makes of a batch."""

    def process(_: Job, batch: pa.Table) -> Any:
        return result(batch)

    return type("Made", (Job,), {"process": process, "version": "1", "sides": ("odd",), **attributes})()


class TestWhatProcessMayGive:
    @pytest.mark.parametrize(
        "result",
        [
            lambda batch: {"main": batch, "odd": [batch.slice(0, 1), None, batch.slice(1)]},
            lambda batch: iter([batch.slice(0, 1), {"main": batch.slice(1), "odd": batch}]),
            lambda batch: [{"main": batch.slice(0, 1)}, {"main": iter([batch.slice(1)]), "odd": batch}],
            lambda batch: {"odd": batch.to_batches()[0], "main": batch.combine_chunks()},
        ],
    )
    def test_tables_in_any_form(self, result: Any, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "in/a.jsonl", numbered(0, 5))
        complete(run_job(made(result), tmp_path / "in", tmp_path / "out"))
        assert numbers(tmp_path / "out") == numbers(tmp_path / "out/_side/odd") == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize(
        ("result", "attributes", "message"),
        [
            (lambda batch: {"odd": batch}, {}, "returned the outputs 'odd', but not 'main'"),
            (
                lambda batch: {"main": batch, "od": batch},
                {},
                "returned a table of 'od', which is not an output of the job; ",
            ),
            (
                lambda batch: {"main": batch, "odd": batch},
                {"sides": ()},
                "the outputs are 'main'; declare extra ones in sides",
            ),
            (lambda batch: {"n": batch["n"]}, {}, "returned a table of 'n'"),
            (lambda batch: {"n": batch["n"]}, {"sides": ()}, "make a table with pa.table"),
            (lambda batch: {"main": batch, "odd": "no"}, {}, "returned str, expected a pyarrow.Table"),
        ],
    )
    def test_what_it_may_not(self, result: Any, attributes: Any, message: str, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "in/a.jsonl", numbered(0, 5))
        summary = run_job(made(result, **attributes), tmp_path / "in", tmp_path / "out")
        assert summary.state == "failed"
        assert message in summary.failures[0].error

    def test_a_counter_of_that_name_is_taken(self, tmp_path: Path) -> None:
        class Counting(Halves):
            def process(self, batch: pa.Table) -> Any:
                self.count("side odd")
                return super().process(batch)

        write_jsonl(tmp_path / "in/a.jsonl", numbered(0, 5))
        summary = run_job(Counting(), tmp_path / "in", tmp_path / "out")
        assert "choose another name" in summary.failures[0].error

    def test_bad_rows_are_in_no_output(self, tmp_path: Path) -> None:
        """They are set aside once, whichever output they would have been in."""

        class Choosy(Halves):
            max_bad_rows = "50%"

            def process(self, batch: pa.Table) -> Any:
                for position, n in enumerate(batch["n"].to_pylist()):
                    if n % 5 == 0:
                        raise BadRow("a five", position)
                return super().process(batch)

        write_jsonl(tmp_path / "in/a.jsonl", [{"n": n} for n in range(20)])
        summary = complete(run_job(Choosy(), tmp_path / "in", tmp_path / "out"))
        assert summary.books.quarantined == 4
        assert numbers(tmp_path / "out") == [n for n in range(20) if n % 5 and n % 2 == 0]
        assert numbers(tmp_path / "out/_side/odd") == [n for n in range(20) if n % 5 and n % 2]


def built(build: Any, **attributes: Any) -> Job:
    return type("Built", (Job,), {"build": lambda _, ds: build(ds), "version": "1", **attributes})()


class Model:
    """A class for a pool."""

    def __call__(self, batch: pa.Table) -> pa.Table:
        return batch


class TestWhatBuildMayGive:
    @pytest.mark.parametrize(
        ("build", "attributes", "message"),
        [
            (lambda ds: {"odd": ds}, {}, "returned the outputs 'odd', but not 'main'"),
            (lambda ds: {"main": ds, "../x": ds}, {}, "'../x' cannot be the name of an extra output"),
            (
                lambda ds: {"main": ds, "bad": ds, "Bad": ds},
                {},
                "the extra outputs 'bad' and 'Bad' differ by small and",
            ),
            (lambda ds: {"main": ds, 3: ds}, {}, "3 cannot be the name of an extra output"),
            (lambda ds: {"main": ds, "odd": None}, {}, "returned NoneType for the output 'odd'"),
            (lambda ds: {"main": ds, "odd": curate.range(3)}, {}, "expected a Dataset derived from the one"),
            (lambda ds: {"main": ds, "odd": ds.limit(3)}, {}, "the output 'odd' begins with limit(3)"),
            (
                lambda ds: {"main": ds, "odd": ds},
                {"sides": ("even",)},
                "returned the extra outputs odd, but sides names even",
            ),
            (lambda ds: ds.drop_columns(["m"]), {"sides": ("odd",)}, "does not end in `process`"),
            (
                lambda ds: {"main": ds.map_batches(Model, compute=ActorPool(size=1)), "odd": ds},
                {},
                "map_batches(Model), which runs in actors, is used by the output 'main' only; apply it before",
            ),
            (
                lambda ds: {"main": ds, "odd": ds.checkpoint("/tmp/kept")},
                {},
                "the checkpoint at '/tmp/kept' is used by the output 'odd' only; apply it before the outputs part",
            ),
        ],
    )
    def test_what_it_may_not(self, build: Any, attributes: Any, message: str) -> None:
        with refusing(message):
            built(build, **attributes).spec()

    @pytest.mark.parametrize(
        ("sides", "message"),
        [
            ("odd", "expected list or tuple or"),
            (("main",), "that is the main output"),
            (("_odd",), "cannot be the name"),
            (("odd", "odd"), "twice"),
            ({"odd": pa.int64()}, "expected a pyarrow.Schema, or None"),
            ({"odd": pa.schema([])}, "it has no column"),
        ],
    )
    def test_what_sides_may_not_be(self, sides: Any, message: str) -> None:
        with refusing(message):
            type("Odd", (Job,), {"sides": sides, "version": "1", "process": lambda *_: None})
        with refusing("sides has no effect"):
            type("Files", (FileJob,), {"sides": ("odd",), "process_file": lambda *_: None})

    def test_main_alone_is_no_extra_output(self, source: Path, tmp_path: Path) -> None:
        alone = built(lambda ds: {"main": ds.filter(pc.field("n") > 3)})
        assert alone.spec().record.sides == {}
        complete(run_job(alone, source, tmp_path / "out"))
        assert numbers(tmp_path / "out") == ALL[4:]

    def test_pools_and_checkpoints_before_are_shared(self, source: Path, tmp_path: Path) -> None:
        """A checkpoint is the same whatever outputs follow on it."""

        def both(ds: Dataset) -> Mapping[str, Dataset]:
            kept = ds.with_column("m", pc.field("n") * 2).checkpoint(tmp_path / "kept")
            pooled = kept.map_batches(Model, compute=ActorPool(size=1))
            return {"main": pooled.select_columns(["n"]), "double": pooled.select_columns(["m"])}

        job = built(both, name="both")
        assert len(job.spec().operator.pools) == 1
        summary = complete(run_job(job, source, tmp_path / "out"))
        assert summary.books.counters == {"side double": len(ALL)}
        assert numbers(tmp_path / "out") == ALL
        found = [pq.read_table(path)["m"].to_pylist() for path in sorted((tmp_path / "out/_side/double").iterdir())]
        assert [m for one in found for m in one] == [2 * n for n in ALL]
        one = built(lambda ds: both(ds)["main"], name="both")
        begin = everything(tmp_path / "kept")
        complete(run_job(one, source, tmp_path / "one"))
        assert everything(tmp_path / "kept") == begin

    def test_what_only_an_extra_output_chokes_on(self, source: Path, tmp_path: Path) -> None:
        """A row that is in the main output cannot be set aside: the shard fails, and says where to look for them."""

        def choosy(batch: pa.Table) -> pa.Table:
            if 3 in batch["n"].to_pylist():
                raise BadRow("a three", batch["n"].to_pylist().index(3))
            return batch

        for quarantining in (False, True):
            job = built(
                lambda ds: {"main": ds, "odd": ds.map_batches(choosy)},
                quarantine_errors=quarantining,
                max_bad_rows="100%",
            )
            summary = run_job(job, source, tmp_path / f"out-{quarantining}")
            assert (summary.state, summary.failed, summary.done) == ("failed", 1, 2)
            assert "a step of the extra output 'odd' reported a bad row (a three)" in summary.failures[0].error

    def test_nor_are_rows_searched_that_only_an_extra_output_raises_for(self, source: Path, tmp_path: Path) -> None:
        """With `quarantine_errors` too: what was raised is what is told."""

        def poisoned(batch: pa.Table) -> pa.Table:
            if 3 in batch["n"].to_pylist():
                raise ValueError("not three")
            return batch

        job = built(lambda ds: {"main": ds, "odd": ds.map_batches(poisoned)}, quarantine_errors=True)
        summary = run_job(job, source, tmp_path / "out")
        assert (summary.state, summary.failed, summary.done) == ("failed", 1, 2)
        assert summary.failures[0].error == "ValueError: not three"


@dataclass(frozen=True)
class Placing:
    """A step that keeps what is not divisible, and notes for each row where it was; it gives each row by itself."""

    divisor: int
    batch_rows: int | None = None
    compute: Compute | None = None
    num_cpus: float | None = None
    one_schema: bool = True
    name: str = "placing"
    seen: list[int] = field(default_factory=list, compare=False)

    def opened(self) -> Placing:
        return self

    def apply(self, batch: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterable[pa.Table]:
        for position in range(len(batch)):
            n = batch["n"][position].as_py()
            if n % self.divisor:
                self.seen.append(place.row + position)
                yield pa.table({"n": [n]})
            else:
                tally.drop(1, "divisible")
        tally.count("rows", len(batch))

    def hide(self, text: str) -> str:
        return text


DIVISORS = st.lists(st.integers(2, 5), max_size=3)
ROWS_AT_A_TIME = st.sampled_from([None, 1, 3])


@given(
    shared=DIVISORS,
    tails=st.lists(DIVISORS, min_size=2, max_size=3),
    batches=st.lists(st.lists(st.integers(1, 60), max_size=9), max_size=6),
    rows=ROWS_AT_A_TIME,
)
def test_each_output_is_what_it_would_be_alone(
    shared: list[int], tails: list[list[int]], batches: list[list[int]], rows: int | None
) -> None:
    """By brute force: rows and their order, where each step saw them, the drops of the main output, all counters."""

    def steps(divisors: list[int]) -> Pipeline:
        return Pipeline(tuple(Placing(divisor, rows) for divisor in divisors))

    names = ["main", "a", "b"][: len(tails)]
    operator = Branching(
        steps(shared), steps(tails[0]), {name: steps(tail) for name, tail in zip(names[1:], tails[1:], strict=True)}
    )
    operator.setup()
    tally, got = ShardBooks(BadRowBudget()), {name: [] for name in names}  # type: ignore[var-annotated]
    tables = (pa.table({"n": pa.array(one, pa.int64())}) for one in batches)
    for table in operator.stream(tables, tally, ShardContext("s")):
        name, one = (table.side, table.table) if isinstance(table, SideTable) else ("main", table)
        got[name] += one["n"].to_pylist()
    given = [n for one in batches for n in one]
    rows_seen = 0
    for name, tail, pipeline in zip(names, tails, (operator.main, *operator.sides.values()), strict=True):
        left, met = given, []
        for divisor in [*shared, *tail]:
            met.append(left)
            left = [n for n in left if n % divisor]
        assert got[name] == left
        for step, before in zip(pipeline.steps, met[len(shared) :], strict=True):
            assert isinstance(step, Placing)
            assert step.seen == [row for row, n in enumerate(before) if n % step.divisor]
            rows_seen += len(before)
        if name == "main":
            assert sum(tally.books.dropped.values()) == len(given) - len(left)
            rows_seen += sum(map(len, met[: len(shared)]))
    assert tally.books.counters.get("rows", 0) == rows_seen


class TestVerify:
    @pytest.fixture
    def out(self, source: Path, tmp_path: Path) -> Path:
        complete(run_job(Halves(), source, tmp_path / "out"))
        assert verify(str(tmp_path / "out")).state == "ok"
        return tmp_path / "out"

    def found(self, out: Path) -> tuple[str, str, str]:
        report = verify(str(out))
        assert report.state == "damaged"
        (finding,) = report.findings
        return finding.kind, finding.object, finding.reason

    def test_one_that_is_gone(self, out: Path) -> None:
        (out / "_side/odd/s1.parquet").unlink()
        kind, name, reason = self.found(out)
        assert (kind, name) == ("missing", "_side/odd/s1.parquet")
        assert "s1.parquet is there" in reason

    @pytest.mark.parametrize("name", ["_side/odd/s9.parquet", "_side/even/s1.parquet", "_side/s1.parquet"])
    def test_what_is_none(self, out: Path, name: str) -> None:
        (out / name).parent.mkdir(exist_ok=True)
        shutil.copy(out / "_side/odd/s1.parquet", out / name)
        assert self.found(out)[:2] == ("foreign", name)

    def test_that_of_another_shard(self, out: Path) -> None:
        shutil.copy(out / "_side/odd/s0.parquet", out / "_side/odd/s1.parquet")
        kind, name, reason = self.found(out)
        assert (kind, name) == ("record", "_side/odd/s1.parquet")
        assert reason == "its record is not that of s1.parquet: they differ in shard"

    def test_a_main_output_in_its_place(self, out: Path) -> None:
        shutil.copy(out / "s1.parquet", out / "_side/odd/s1.parquet")
        assert self.found(out)[0] == "record"

    def test_one_in_the_place_of_a_main_output(self, out: Path) -> None:
        shutil.copy(out / "_side/odd/s1.parquet", out / "s1.parquet")
        assert verify(str(out)).counts["record"] == 1

    def test_what_somebody_else_wrote(self, out: Path) -> None:
        write_parquet(out / "_side/odd/s1.parquet", [{"n": 1}])
        assert self.found(out)[0] == "record"

    def test_bytes_that_changed(self, out: Path) -> None:
        path = out / "_side/odd/s1.parquet"
        data = bytearray(path.read_bytes())
        data[8] ^= 255
        path.write_bytes(data)
        assert self.found(out)[0] == "damaged"
        path.write_bytes(data[:50])
        assert self.found(out)[0] in ("damaged", "record")

    @pytest.mark.parametrize(
        ("schema", "kind"), [(pa.schema([("n", pa.int64())]), "rows"), (pa.schema([("n", pa.string())]), "schema")]
    )
    def test_other_rows_or_columns(self, out: Path, schema: pa.Schema, kind: str) -> None:
        path = out / "_side/odd/s1.parquet"
        other = pq.read_table(path).slice(1).cast(schema)
        path.write_bytes(file_of(other, OutputFormat.PARQUET, record=record_of(path)))
        assert self.found(out)[0] == kind

    def test_of_shards_that_are_not_done_nobody_asks(self, source: Path, tmp_path: Path) -> None:
        complete(run_job(Halves(), source, tmp_path / "out", limit=1))
        complete(run_job(Halves(), source, tmp_path / "all"))
        shutil.copy(tmp_path / "all/_side/odd/s1.parquet", tmp_path / "out/_side/odd/s1.parquet")
        assert verify(str(tmp_path / "out")).state == "incomplete"
