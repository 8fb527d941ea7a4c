"""Jobs whose `build` has exchanges: one job to who runs it, whatever stages it is made of."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import curate
from curate.dataset.dataset import Dataset
from curate.errors import BadRow, ConfigError, CurateError, RetryLater
from curate.job.job import Job
from curate.job.params import param
from curate.ledger import layout
from curate.ledger.summary import RunState
from curate.observe.browse import quarantined as browse_quarantined
from curate.observe.job import find_job
from curate.observe.verify import verify
from curate.pipeline.step import ActorPool
from curate.plan import rewrites
from curate.stores.open import open_store
from curate.testing.stores import faulty_stores
from tests.graph.test_graph import dies
from tests.job.inline import everything, output_rows, outputs, quarantined, refusing, run_job
from tests.job.modules import Modules
from tests.support.sweeps import Sweep, Trace

BAD_LINE = b"no line of JSON\n"
numbers = itertools.count()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files of ten numbers, their order mixed; in the second one a line is bad."""
    source = tmp_path / "in"
    source.mkdir()
    for k in range(3):
        rows = [{"n": (7 * (10 * k + i)) % 30, "k": f"k{i % 3}"} for i in range(10)]
        lines = [json.dumps(row).encode() + b"\n" for row in rows]
        (source / f"{k}.jsonl").write_bytes(b"".join(lines) + (BAD_LINE if k == 1 else b""))
    return source


@pytest.fixture(autouse=True)
def small_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is a map shard."""
    monkeypatch.setattr(rewrites, "LEAST_MAP_BYTES", 250)


calls: list[int] = []
"""How many rows each call of a `process` was given, in this process."""


@pytest.fixture(autouse=True)
def no_calls() -> Iterator[None]:
    calls.clear()
    yield
    calls.clear()


class Sorted(Job):
    """Even numbers from the largest down, doubled; those that are small then are dropped."""

    version = "1"
    columns = {"n": pa.int64(), "k": pa.string()}  # noqa: RUF012
    least: int = param(10, help="smallest that is kept")

    def process(self, batch: pa.Table) -> pa.Table:
        calls.append(len(batch))
        even = batch.filter(pc.equal(pc.bit_wise_and(batch["n"], 1), 0))
        self.drop(len(batch) - len(even), "odd")
        self.count("batches")
        return even

    def build(self, ds: Dataset) -> Dataset:
        down = super().build(ds).sort("n", descending=True)
        return down.with_column("n", pc.field("n") * 2).filter(pc.field("n") >= self.least, reason="small")


EVEN = [{"n": 2 * n, "k": f"k{next(i for i in range(30) if (7 * i) % 30 == n) % 10 % 3}"} for n in range(28, 4, -2)]


def test_books_and_outputs_are_those_of_one_job(folder: Path, tmp_path: Path) -> None:
    """Rows that were read by the first stage came out of the last one, were dropped by either, or are in quarantine."""
    summary = run_job(Sorted(), folder, tmp_path / "out")
    assert (summary.state, summary.job) == (RunState.COMPLETE, "sorted")
    assert output_rows(tmp_path / "out") == EVEN
    books = summary.books
    assert (books.rows_in, books.rows_out, books.quarantined) == (31, 12, 1)
    assert books.dropped == {"odd": 15, "small": 3}
    assert books.balanced()
    assert books.counters == {"batches": 3}
    assert len(calls) >= 3


def test_a_finished_job_says_the_same_and_runs_nothing(folder: Path, tmp_path: Path) -> None:
    """Its stages are gone; what they dropped and set aside is not."""
    first = run_job(Sorted(), folder, tmp_path / "out")
    before = everything(tmp_path / "out")
    assert not any(name.startswith(layout.STAGES) for name in before)
    calls.clear()
    again = run_job(Sorted(), folder, tmp_path / "out")
    assert (again.state, again.dispatched, again.books) == (RunState.COMPLETE, 0, first.books)
    assert (calls, everything(tmp_path / "out")) == ([], before)


def test_rows_set_aside_before_the_exchange_are_kept(folder: Path, tmp_path: Path) -> None:
    """In the job's own quarantine, where `curate quarantine` finds them, and `curate verify` finds nothing wrong."""
    run_job(Sorted(), folder, tmp_path / "out")
    [row] = quarantined(tmp_path / "out")
    assert row["row"] == BAD_LINE.decode().strip()
    [(shard, shown)] = browse_quarantined(find_job(str(tmp_path / "out")))
    assert (shard.startswith("map-"), shown.row) == (True, row["row"])
    found = verify(str(tmp_path / "out"))
    assert not found.findings, found.findings
    # An output that is made again does not cost them.
    (tmp_path / "out" / next(iter(outputs(tmp_path / "out")))).unlink()
    summary = run_job(Sorted(), folder, tmp_path / "out")
    assert (summary.state, summary.books.quarantined) == (RunState.COMPLETE, 1)
    assert quarantined(tmp_path / "out") == [row]


def test_the_budget_of_bad_rows_holds_before_the_exchange(folder: Path, tmp_path: Path) -> None:
    """A shard with more of them fails, and the job with it; the next run, with a larger budget, ends it."""
    summary = run_job(Sorted(max_bad_rows="0"), folder, tmp_path / "out")
    assert (summary.state, summary.failed) == (RunState.FAILED, 1)
    assert not outputs(tmp_path / "out")
    calls.clear()
    assert run_job(Sorted(max_bad_rows="1"), folder, tmp_path / "out").state is RunState.COMPLETE
    # What was done before is not done again.
    assert sum(calls) == 10
    assert output_rows(tmp_path / "out") == EVEN


@pytest.mark.ci(1)
@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_call_and_run_again(sweep: Sweep, after: bool) -> None:
    """The same outputs, books and rows set aside, each once: wherever the first run ended."""
    root = f"memory://jobs-{next(numbers)}"
    store = open_store(root, scratch="unused")
    lines = [json.dumps({"n": n, "k": "k"}).encode() + b"\n" for n in range(30)]
    for k in range(3):
        store.publish(f"{root}/in/{k}.jsonl", b"".join(lines[k::3]) + (BAD_LINE if k == 1 else b""))

    def everything() -> dict[str, bytes]:
        start = f"{root}/out/"
        return {one.uri[len(start) :]: store.read(one.uri) for one in store.list(start)}

    def kept() -> dict[str, bytes]:
        return {name: data for name, data in everything().items() if name.startswith((layout.QUARANTINE, "part-"))}

    trace = Trace()
    with faulty_stores(trace, retry=None):
        whole = run_job(Sorted(), f"{root}/in", f"{root}/out")
    expected, calls = kept(), trace.kinds
    assert len(expected) == 2
    for number in sweep(calls, 8):
        where = f"call {number} of {len(calls)}: {calls[number]}"
        for item in list(store.list(f"{root}/out/")):
            store.delete(item.uri)
        with dies(number + 1, after=after), suppress(CurateError):
            run_job(Sorted(), f"{root}/in", f"{root}/out")
        ended = run_job(Sorted(), f"{root}/in", f"{root}/out")
        assert (ended.state, ended.books) == (RunState.COMPLETE, whole.books), where
        assert kept() == expected, where
        assert not any(name.startswith(layout.STAGES) for name in everything())


class Flaky(Sorted):
    """Raises for some rows what it is told to."""

    name = "flaky"
    error: str = param("", help="what to raise", identity=False)

    def process(self, batch: pa.Table) -> Any:
        if self.error and 8 in batch["n"].to_pylist():
            raise {"later": RetryLater(0.1), "bad": BadRow("eight"), "broken": ValueError("eight")}[self.error]
        return super().process(batch)


def test_poison_before_the_exchange_stops_nobody(folder: Path, tmp_path: Path) -> None:
    """The other shards are done; mended, one runs."""
    summary = run_job(Flaky(error="broken"), folder, tmp_path / "out")
    assert (summary.state, summary.failed, summary.done) == (RunState.FAILED, 1, 2)
    assert "eight" in summary.failures[0].error
    calls.clear()
    assert run_job(Flaky(), folder, tmp_path / "out").state is RunState.COMPLETE
    assert sum(calls) == 10


def test_a_row_that_raises_before_the_exchange_is_set_aside_where_that_was_asked_for(
    folder: Path, tmp_path: Path
) -> None:
    """`BadRow` always, what else is raised with `quarantine_errors`."""
    summary = run_job(Flaky(error="broken", quarantine_errors=True), folder, tmp_path / "out")
    assert (summary.state, summary.books.quarantined) == (RunState.COMPLETE, 2)
    assert summary.books.balanced()
    assert len(quarantined(tmp_path / "out")) == 2


@pytest.mark.slow
def test_retry_later_waits_before_the_exchange(folder: Path, tmp_path: Path) -> None:
    """As it does in a plain job: many more tries than for an error, and then the shard fails."""
    summary = run_job(Flaky(error="later"), folder, tmp_path / "out")
    assert (summary.state, summary.failed) == (RunState.FAILED, 1)
    assert summary.attempts > 10


def test_any_exchange_is_deterministic_and_resumable_from_its_identity(folder: Path, tmp_path: Path) -> None:
    """Other parameters are another job; the same ones, another output, the same bytes."""
    run_job(Sorted(), folder, tmp_path / "one")
    run_job(Sorted(), folder, tmp_path / "two")
    for name in outputs(tmp_path / "one"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    with pytest.raises(ConfigError, match="another identity"):
        run_job(Sorted(least=11), folder, tmp_path / "one")


class Two(Job):
    """Two outputs of one exchange, and steps that they share after it."""

    version = "1"

    def build(self, ds: Dataset) -> dict[str, Dataset]:
        down = ds.sort("n", descending=True).with_column("m", pc.field("n") * 3)
        return {
            "main": down.filter(pc.field("n") >= 20, reason="small"),
            "low": down.filter(pc.field("n") < 20).select_columns(["m"]),
        }


def test_outputs_part_after_the_last_exchange(folder: Path, tmp_path: Path) -> None:
    """As those of a plain job do: each has an object for every output of the exchange."""
    summary = run_job(Two(), folder, tmp_path / "out")
    assert (summary.state, summary.books.dropped) == (RunState.COMPLETE, {"small": 20})
    assert summary.books.counters == {"side low": 20}
    main = curate.read_parquet(str(tmp_path / "out")).take_all()
    assert [row["n"] for row in main] == list(range(29, 19, -1))
    low = pq.read_table(tmp_path / "out/_side/low")
    assert low["m"].to_pylist() == [3 * n for n in range(19, -1, -1)]


class Sided(Sorted):
    """`process` after an exchange, with an extra output."""

    name = "sided"
    sides = ("odd",)

    def process(self, batch: pa.Table) -> Any:
        odd = pc.equal(pc.bit_wise_and(batch["n"], 1), 1)
        return {"main": batch.filter(pc.invert(odd)), "odd": batch.filter(odd)}

    def build(self, ds: Dataset) -> Dataset:
        return Job.build(self, ds.sort("n"))


def test_process_after_an_exchange_may_have_extra_outputs(folder: Path, tmp_path: Path) -> None:
    """They are those of its class."""
    assert run_job(Sided(), folder, tmp_path / "out").state is RunState.COMPLETE
    assert [row["n"] for row in curate.read_parquet(str(tmp_path / "out")).take_all()] == list(range(0, 30, 2))
    assert pq.read_table(tmp_path / "out/_side/odd")["n"].to_pylist() == list(range(1, 30, 2))


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "below",
    [
        lambda rows: rows.sort("n"),
        lambda rows: rows.zip(rows),
        lambda rows: rows.union(rows.filter(pc.field("n") > 3)).limit(4),
        lambda rows: rows.sort("n").limit(4),
    ],
)
def test_process_before_an_exchange_has_one_output(below: Any, folder: Path, tmp_path: Path) -> None:
    """What it gives goes into the exchange: a table of another output is said to be none of its own."""

    class Before(Sided):
        def build(self, ds: Dataset) -> Any:
            down = below(Job.build(self, ds))
            return {"main": down, "odd": down}

    summary = run_job(Before(), folder, tmp_path / "out")
    assert (summary.state, summary.failed) == (RunState.FAILED, 3)
    assert "returned a table of 'odd', which is not an output of the job" in summary.failures[0].error


class Again(Sorted):
    """An exchange, a checkpoint, and another exchange."""

    name = "again"
    kept: str = param(help="where the checkpoint is", identity=False)

    def build(self, ds: Dataset) -> Dataset:
        return super().build(ds).checkpoint(self.kept).groupby("k").count().sort("count")


def test_a_checkpoint_between_exchanges(folder: Path, tmp_path: Path) -> None:
    """It is written, outlives the job, and is used again."""
    job = Again(kept=str(tmp_path / "kept"))
    assert run_job(job, folder, tmp_path / "out").state is RunState.COMPLETE
    assert curate.read_parquet(str(tmp_path / "kept")).take_all() == EVEN
    assert sum(row["count"] for row in output_rows(tmp_path / "out")) == len(EVEN)
    calls.clear()
    assert run_job(job, folder, tmp_path / "other").state is RunState.COMPLETE
    assert calls == []
    assert output_rows(tmp_path / "other") == output_rows(tmp_path / "out")


@pytest.mark.slow
def test_where_a_checkpoint_lies_changes_nothing(folder: Path, tmp_path: Path) -> None:
    """Bytes and identity, of the checkpoint too; but a job goes on with the one that it began with."""
    for name in ("a", "b"):
        job = Again(kept=str(tmp_path / name / "kept"))
        assert run_job(job, folder, tmp_path / name / "out").state is RunState.COMPLETE
    for name in ("out", "kept"):
        before, after = (everything(tmp_path / one / name) for one in "ab")
        identities = [json.loads(one["_curate/job.json"])["fingerprint"] for one in (before, after)]
        assert identities[0] == identities[1]
        assert outputs(tmp_path / "a" / name) == outputs(tmp_path / "b" / name)
    done = run_job(Again(kept=str(tmp_path / "b/kept")), folder, tmp_path / "a/out")
    assert (done.state, done.dispatched) == (RunState.COMPLETE, 0)


class Pooled(Sorted):
    """The same, in actors."""

    name = "sorted"
    compute = ActorPool(size=2)
    num_cpus = 0.5


def test_where_process_runs_changes_nothing(folder: Path, tmp_path: Path) -> None:
    """Bytes, books and identity; actors hold what the job asks for, tasks a CPU."""
    here, there = (run_job(job, folder, tmp_path / name) for job, name in ((Sorted(), "here"), (Pooled(), "there")))
    assert here.books == there.books
    for name in outputs(tmp_path / "here"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()


def test_what_a_job_says_of_its_tasks_holds_in_every_stage(folder: Path, tmp_path: Path) -> None:
    """Limits, guards and the code they are about."""
    job = Sorted(max_bad_rows="3", task_timeout_s=5, max_tasks=2, quarantine_errors=True, memory=123, num_cpus=2)
    spec = job.spec()
    assert spec.from_inputs is not None
    last = spec.from_inputs(job.options(input=folder, output=tmp_path / "out", backend="inline"))
    [before] = last.before
    for stage in (before.stage, last):
        tasks = stage.tasks
        assert (tasks.max_bad_rows, tasks.task_timeout_s, tasks.max_tasks, tasks.quarantine_errors) == (
            "3",
            5.0,
            2,
            True,
        )
        assert (stage.record.code_digest, stage.record.parameters) == (spec.record.code_digest, {"least": 10})
        assert (tasks.resources.num_cpus, tasks.resources.memory) == (2.0, 123)
    assert last.record.fingerprint == spec.record.fingerprint
    assert before.stage.record.identity["version"] == "1"
    assert before.stage.record.fingerprint != spec.record.fingerprint


def test_two_exchanges_alike_are_two_stages(folder: Path, tmp_path: Path) -> None:
    """What a step does is not part of the identity where a version stands for it; where it is in the plan, is."""

    class Both(Job):
        version = "1"

        def build(self, ds: Dataset) -> Dataset:
            few = ds.filter(pc.field("n") < 5).sort("n")
            return few.union(ds.filter(pc.field("n") >= 25).sort("n")).sort("n", descending=True)

    assert run_job(Both(), folder, tmp_path / "out").state is RunState.COMPLETE
    assert [row["n"] for row in output_rows(tmp_path / "out")] == [29, 28, 27, 26, 25, 4, 3, 2, 1, 0]


def test_inputs_are_frozen(folder: Path, tmp_path: Path) -> None:
    """What an exchange gives depends on all of them: a new one is refused, and named."""
    run_job(Sorted(), folder, tmp_path / "out")
    (folder / "new.jsonl").write_text('{"n": 1, "k": "k0"}\n')
    with refusing("new.jsonl"):
        run_job(Sorted(), folder, tmp_path / "out")


def test_a_seed_that_nobody_gave_is_chosen_once(folder: Path, tmp_path: Path) -> None:
    """And kept with the job: what is made again is the same."""

    class Mixed(Job):
        version = "1"

        def build(self, ds: Dataset) -> Dataset:
            return ds.random_shuffle(num_shards=3).with_column("m", pc.field("n") + 1)

    run_job(Mixed(), folder, tmp_path / "out")
    before = {name: (tmp_path / "out" / name).read_bytes() for name in outputs(tmp_path / "out")}
    assert len(before) == 3
    (tmp_path / "out" / max(before)).unlink()
    assert run_job(Mixed(), folder, tmp_path / "out").state is RunState.COMPLETE
    assert {name: (tmp_path / "out" / name).read_bytes() for name in before} == before


def test_files_of_several_formats_come_to_one_exchange(folder: Path, tmp_path: Path) -> None:
    """Read as the job's columns say; refused where their columns differ."""
    pq.write_table(pa.table({"n": [100], "k": ["k9"]}), folder / "3.parquet")
    assert run_job(Sorted(), folder, tmp_path / "out").books.rows_in == 32
    assert output_rows(tmp_path / "out")[0] == {"n": 200, "k": "k9"}

    class Loose(Sorted):
        columns = None

    pq.write_table(pa.table({"n": ["text"], "k": ["k9"]}), folder / "3.parquet")
    with refusing("whose columns differ: jsonl (n: int64, k: string), parquet (n: string, k: string)"):
        run_job(Loose(), folder, tmp_path / "loose")


class Shaped(Job):
    """What is written as an exchange, though it may not be called one."""

    version = "1"
    columns: ClassVar = {"n": pa.int64(), "k": pa.string()}
    what: str = param(help="what to build")

    def build(self, ds: Dataset) -> Dataset:
        match self.what:
            case "top":
                return ds.sort("n", descending=True).limit(4)
            case "some":
                return ds.filter(pc.field("n") > 3).sort("n").filter(pc.field("k") == "k1").limit(3)
            case "zip":
                return ds.sort("n").zip(ds.sort("n", descending=True).select_columns("n"))
            case "twice":
                return ds.union(ds)
            case "parts":
                return ds.filter(pc.field("n") < 2).union(ds.filter(pc.field("n") > 27))
        raise AssertionError(self.what)


@pytest.mark.slow
@pytest.mark.quick(2)
@pytest.mark.parametrize("what", ["top", "some", "zip", "twice", "parts"])
def test_what_is_written_as_an_exchange(folder: Path, tmp_path: Path, what: str) -> None:
    """The same rows as plain Python has; and the same bytes where they are made again."""
    given = [{"n": (7 * n) % 30, "k": f"k{n % 10 % 3}"} for n in range(30)]
    up = sorted(given, key=lambda row: row["n"])
    expected = {
        "top": up[:-5:-1],
        "some": [row for row in up if row["n"] > 3 and row["k"] == "k1"][:3],
        "zip": [{**row, "n_1": 29 - row["n"]} for row in up],
        "twice": given + given,
        "parts": [row for row in given if row["n"] < 2] + [row for row in given if row["n"] > 27],
    }[what]
    ended = run_job(Shaped(what=what), folder, tmp_path / "out")
    assert (ended.state, ended.books.balanced()) == (RunState.COMPLETE, True)
    assert output_rows(tmp_path / "out") == expected
    before = {name: (tmp_path / "out" / name).read_bytes() for name in outputs(tmp_path / "out")}
    (tmp_path / "out" / max(before)).unlink()
    assert run_job(Shaped(what=what), folder, tmp_path / "out").state is RunState.COMPLETE
    assert {name: (tmp_path / "out" / name).read_bytes() for name in before} == before


class Refused(Job):
    """Builds what it is told to."""

    version = "1"
    what: str = param(help="what to build")
    other: str = param("", help="other rows")

    def build(self, ds: Dataset) -> Any:
        match self.what:
            case "limit":
                return ds.limit(3).sort("n")
            case "others":
                return curate.range(3).sort("id")
            case "two exchanges":
                return {"main": ds.sort("n"), "other": ds.sort("k")}
            case "one of two":
                return {"main": ds.sort("n"), "other": ds}
            case "a pool aside":
                down = ds.sort("n")
                return {"main": down, "other": down.map_batches(Nothing, compute=ActorPool(size=1))}
            case "no such key":
                return ds.sort("m")
        raise AssertionError(self.what)


class Nothing:
    """Gives what it gets."""

    def __call__(self, batch: Any) -> Any:
        return batch


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("limit", "Refused.build: limit(3) of the rows of the job's input, which would need the complete input"),
        ("others", "Refused.build returned a Dataset that does not use its input"),
        ("two exchanges", "the output 'other' begins with sort(k), and 'main' with sort(n)"),
        ("one of two", "the output 'other' begins with input, and 'main' with sort(n)"),
        ("a pool aside", "which runs in actors, is used by the output 'other' only"),
        ("no such key", "'m'"),
    ],
)
def test_what_cannot_be_done_is_refused(folder: Path, tmp_path: Path, what: str, told: str) -> None:
    """Before anything is written, with a sentence that says what and where."""
    with refusing(told):
        run_job(Refused(what=what), folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_inputs_that_are_not_there_or_in_the_way(folder: Path, tmp_path: Path) -> None:
    """Refused as for any job."""
    with refusing("no input"):
        run_job(Sorted(), tmp_path / "nothing", tmp_path / "out")
    with pytest.raises(ConfigError, match="output"):
        run_job(Sorted(), folder, folder / "out")


def test_two_inputs_of_one_name_are_refused(folder: Path, tmp_path: Path) -> None:
    """What is random in an exchange, and where equal keys lie, is by name: two of one would be one shard."""
    (folder / "more").mkdir()
    (folder / "more/0.jsonl").write_text('{"n": 1, "k": "k0"}\n')
    with refusing("have the same name, '0'"):
        run_job(Sorted(), [folder / "*.jsonl", folder / "more"], tmp_path / "out")
    assert run_job(Sorted(), folder, tmp_path / "out").state is RunState.COMPLETE


def test_inputs_without_rows(tmp_path: Path) -> None:
    """Give an output without rows, with the columns that the job has declared."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/0.jsonl").write_bytes(b"")
    summary = run_job(Sorted(), tmp_path / "in", tmp_path / "out")
    assert (summary.state, summary.books.rows()) == (
        RunState.COMPLETE,
        {"in": 0, "created": 0, "out": 0, "dropped": {}, "quarantined": 0},
    )
    [table] = outputs(tmp_path / "out").values()
    assert table.column_names == ["n", "k"]


def test_an_input_that_cannot_be_read_fails_alone(folder: Path, tmp_path: Path) -> None:
    """The other map shards are done; once it is mended, the job starts over: its inputs are others."""
    (folder / "0.parquet").write_bytes(b"no such file" * 20)
    (folder / "0.jsonl").unlink()
    summary = run_job(Sorted(), folder, tmp_path / "out")
    assert (summary.state, summary.failed, summary.done) == (RunState.FAILED, 1, 2)
    assert "0.parquet" in summary.failures[0].error


def test_a_dry_run_says_where_it_begins(folder: Path, tmp_path: Path) -> None:
    """And writes nothing."""
    from curate.graph.entry import dry_run

    job = Sorted()
    prepared, text, _ = dry_run(job.spec(), job.options(input=folder, output=tmp_path / "out", backend="inline"))
    assert len(prepared.todo) == 3
    assert "sorted: sort(n descending): map" in text
    assert not (tmp_path / "out").exists()


def test_the_code_of_build_is_guarded(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under one version, what its functions do may not change in the middle of a job; in whichever stage that is."""

    def job(code: str, error: str) -> Job:
        found: Job = modules.load(EDITED.format(code=code)).Edited(error=error)
        return found

    modules = Modules(tmp_path / "modules", monkeypatch)
    assert run_job(job("+ 1", "yes"), folder, tmp_path / "out").state is RunState.FAILED
    with refusing("changed"):
        run_job(job("+ 22", ""), folder, tmp_path / "out")
    summary = run_job(job("+ 22", ""), folder, tmp_path / "out", accept_code_change=True)
    assert summary.state is RunState.COMPLETE
    assert [row["n"] for row in output_rows(tmp_path / "out")] == [n + 22 for n in range(30)]


def test_code_that_changed_between_stages_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one stage is done and the next one has no output yet."""
    modules = Modules(tmp_path / "modules", monkeypatch)
    failing = modules.load(EDITED.format(code="+ {}[1]")).Edited()
    summary = run_job(failing, folder, tmp_path / "out")
    assert (summary.state, summary.total) == (RunState.FAILED, 1)
    mended = modules.load(EDITED.format(code="+ 22")).Edited()
    with refusing("changed"):
        run_job(mended, folder, tmp_path / "out")
    assert run_job(mended, folder, tmp_path / "out", accept_code_change=True).state is RunState.COMPLETE


EDITED = """
import pyarrow.compute as pc
from curate import Job, param

def changed(batch):
    return batch.set_column(0, "n", pc.add(batch["n"], 0 {code}))

class Edited(Job):
    version = "1"
    error: str = param("", identity=False)

    def process(self, batch):
        if self.error and 8 in batch["n"].to_pylist():
            raise ValueError("eight")
        return batch

    def build(self, ds):
        return super().build(ds).sort("n").map_batches(changed)
"""


class Apart(Sorted):
    """Numbers without copies of a key; those below ten are an output of their own."""

    called: str = param("small")

    def build(self, ds: Dataset) -> Any:
        unique = ds.dedup_exact("n", id_column="n")
        small = pc.field("n") < 10
        return {"main": unique.filter(~small, reason="small"), self.called: unique.filter(small)}


def test_a_deduplication_before_outputs_part_has_its_own(folder: Path, tmp_path: Path) -> None:
    """What was dropped as a copy is told beside the extra outputs of the job, under a name that none of them may have;
    of all of these `verify` knows."""
    (folder / "3.jsonl").write_bytes(b'{"n": 3, "k": "a copy"}\n')
    summary = run_job(Apart(), folder, tmp_path / "out")
    assert (summary.state, summary.books.dropped) == (RunState.COMPLETE, {"duplicate": 1, "small": 10})
    found = outputs(tmp_path / "out")
    assert {name.rpartition("/")[0] for name in found} == {"", "_side/duplicates", "_side/small"}
    assert [row["kept_id"] for name, one in found.items() if "duplicates" in name for row in one.to_pylist()] == [3]
    assert sorted(n for name, one in found.items() if "small" in name for n in one["n"].to_pylist()) == [*range(10)]
    assert verify(str(tmp_path / "out")).state == "ok"
    with refusing(
        "returned the output 'duplicates', but a step of 'main', or one before it, already has an extra output"
    ):
        run_job(Apart(called="duplicates"), folder, tmp_path / "other")


@pytest.mark.parametrize("tags", [["x", "y"], [["x"], []], [{"a": "b"}]], ids=["list", "list of lists", "of objects"])
def test_lists_of_several_formats_are_of_one_type(tags: Any, tmp_path: Path) -> None:
    """Parquet and JSON call what is in a list by other names, which is no difference."""
    (tmp_path / "in").mkdir()
    pq.write_table(pa.Table.from_pylist([{"n": 2, "tags": tags}]), tmp_path / "in/a.parquet")
    (tmp_path / "in/b.jsonl").write_text(json.dumps({"n": 1, "tags": tags}) + "\n")

    class Tagged(Job):
        version = "1"

        def build(self, rows: Any) -> Any:
            return rows.sort("n")

    assert run_job(Tagged(), tmp_path / "in", tmp_path / "out").state is RunState.COMPLETE
    assert [row["n"] for row in output_rows(tmp_path / "out")] == [1, 2]
    assert [row["tags"] for row in output_rows(tmp_path / "out")] == [tags, tags]


@pytest.mark.slow
@pytest.mark.parametrize("other", [{"n": "1", "tags": ["x"]}, {"n": 1}, {"n": 1, "tags": ["x"], "more": 1}])
def test_other_columns_in_another_format_are_refused(other: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.Table.from_pylist([{"n": 2, "tags": ["x"]}]), tmp_path / "in/a.parquet")
    (tmp_path / "in/b.jsonl").write_text(json.dumps(other) + "\n")

    class Tagged(Job):
        version = "1"

        def build(self, rows: Any) -> Any:
            return rows.sort("n")

    with refusing("an exchange reads inputs of several formats whose columns differ"):
        run_job(Tagged(), tmp_path / "in", tmp_path / "out")
