"""What `setup` and `process` may do, what they are given, and what is said when they give something else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from curate.backends.inline import InlineBackend
from curate.errors import BadRow, ConfigError, RetryLater
from curate.graph.entry import run
from curate.job.job import Job
from curate.job.params import param
from curate.job.shapes import FileJob
from curate.ledger.summary import RunState
from tests.job.inline import (
    failures,
    numbered,
    output_rows,
    outputs,
    quarantined,
    refusing,
    run_job,
    write_jsonl,
    write_parquet,
)
from tests.support.errors import UNTOUCHABLE
from tests.support.fakes import FakeClock


class Shaped(Job):
    """Gives back each batch in the shape that the test asks for."""

    version = "1"
    columns = ("id", "n")
    batch_size = 4
    shape: str = "table"
    SHAPES: ClassVar[dict[str, Callable[[pa.Table], Any]]] = {
        "table": lambda table: table,
        "record batch": lambda table: table.to_batches()[0],
        "list": lambda table: [table.slice(0, 1), table.slice(1)],
        "list of record batches": lambda table: table.to_batches(max_chunksize=1),
        "tuple": lambda table: (table,),
        "generator": lambda table: (table.slice(k, 1) for k in range(len(table))),
        "reader": lambda table: table.to_reader(),
        "with nothing in between": lambda table: [table.slice(0, 1), None, table.slice(1)],
        "empty tables too": lambda table: [table.slice(0, 0), table, table.slice(0, 0)],
        "columns in another order": lambda table: table.select(["n", "id"]) if table["n"][0].as_py() else table,
    }

    def process(self, batch: pa.Table) -> Any:
        return self.SHAPES[self.shape](batch)


@pytest.mark.parametrize("shape", Shaped.SHAPES)
def test_process_gives_a_table_or_several_in_any_shape(tmp_path: Path, shape: str) -> None:
    """The output is the same."""
    write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 10))
    summary = run_job(Shaped(shape=shape), tmp_path / "in", tmp_path / "out")
    assert summary.state is RunState.COMPLETE
    assert output_rows(tmp_path / "out") == [{"id": f"r{k}", "n": k} for k in range(10)]
    assert summary.books.rows() == {"in": 10, "created": 0, "out": 10, "dropped": {}, "quarantined": 0}


@pytest.mark.parametrize("nothing", [None, (), [None]])
def test_process_may_give_nothing(tmp_path: Path, nothing: Any) -> None:
    """The rows are then dropped, and the output is empty; its schema was declared."""

    class Nothing(Job):
        version = "1"
        output_schema = pa.schema([("id", pa.string())])

        def process(self, batch: pa.Table) -> Any:
            del batch
            return nothing

    write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 3))
    summary = run_job(Nothing(), tmp_path / "in", tmp_path / "out")
    assert summary.books.rows()["dropped"] == {"unspecified": 3}
    assert outputs(tmp_path / "out")["a.parquet"].schema == Nothing.output_schema


class Frame:
    """What pandas calls a table, as far as curate can see."""

    def __iter__(self) -> Iterator[str]:
        return iter(["id"])


Frame.__module__ = "pandas.core.frame"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "text",
            "Wrong.process returned str, expected a pyarrow.Table, an iterable of tables, or None; "
            r"make a table of values, one for each row, with pa.table\({name: values}\)",
        ),
        (
            pa.array([1]),
            r"returned Int64Array, expected .*, or None; add a column .* batch.append_column\(name, column\)",
        ),
        (pa.chunked_array([["a"]]), r"returned ChunkedArray, expected .*, or None; add a column to the batch"),
        ([pa.array([1])], "returned a list of Int64Array, expected pyarrow.Tables in it; add a column to the batch"),
        (b"x", "Wrong.process returned bytes, expected"),
        (3, "Wrong.process returned int, expected"),
        ({"a": [1]}, "Wrong.process returned dict, expected .*; make a table with pa.table"),
        ([{"a": 1}], "Wrong.process returned a list of dict, expected .*pa.Table.from_pylist"),
        ([[]], "Wrong.process returned a list of list, expected pyarrow.Tables in it"),
        (["a"], "Wrong.process returned a list of str, expected pyarrow.Tables in it; make a table of values"),
        (Frame(), r"Wrong.process returned Frame, expected .*; make a table with pa.Table.from_pandas\(frame\)"),
    ],
)
def test_anything_else_is_named(tmp_path: Path, given: Any, message: str) -> None:
    """The shard fails; like everything that user code does, it is tried again first."""

    class Wrong(Job):
        version = "1"

        def process(self, batch: pa.Table) -> Any:
            del batch
            return given

    write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 1))
    summary = run_job(Wrong(), tmp_path / "in", tmp_path / "out")
    assert (summary.state, summary.attempts) == (RunState.FAILED, 4)
    assert re.search(message, summary.failures[0].error)


def test_a_column_that_is_there_twice_is_an_error_of_the_job(tmp_path: Path) -> None:
    """No writer could write it; it is the job's fault like any other of what it returns, and tried as often."""

    class Twice(Job):
        version = "1"

        def process(self, batch: pa.Table) -> pa.Table:
            return batch.append_column("id", batch["id"])

    write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 1))
    summary = run_job(Twice(), tmp_path / "in", tmp_path / "out")
    assert (summary.state, summary.attempts) == (RunState.FAILED, 4)
    assert "Twice.process returned a table with 2 columns called 'id'" in summary.failures[0].error


@dataclass
class Seen:
    """What a job saw of the world, by event."""

    events: list[str]
    """`setup`, and the ids of each batch."""


SEEN = Seen([])


class Recording(Job):
    """Notes what it is called with."""

    version = "1"
    columns = ("id",)
    batch_size = 4
    greeting: str = param("hello")

    def setup(self) -> None:
        SEEN.events.append(f"setup {self.greeting}")
        self.loaded = True

    def process(self, batch: pa.Table) -> pa.Table:
        assert self.loaded
        SEEN.events.append(",".join(batch["id"].to_pylist()))
        return batch


@pytest.fixture(autouse=True)
def _forget() -> None:
    SEEN.events.clear()


class TestCalls:
    def test_setup_runs_once_with_the_parameters_on_the_job(self, tmp_path: Path) -> None:
        """Once a process, however many shards, batches and tasks."""
        for name in "abc":
            write_jsonl(tmp_path / "in" / f"{name}.jsonl", numbered(0, 6))
        run_job(Recording(greeting="hi"), tmp_path / "in", tmp_path / "out", target_task_seconds=1e-9)
        assert SEEN.events.count("setup hi") == 1
        assert len([event for event in SEEN.events if event.startswith("setup")]) == 1

    def test_what_setup_loads_stays_out_of_the_job_that_the_user_made(self, tmp_path: Path) -> None:
        """It could not be sent to workers any more: models and connections cannot be pickled."""
        write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 1))
        job = Recording()
        run_job(job, tmp_path / "in", tmp_path / "out")
        assert not hasattr(job, "loaded")

    def test_batches_have_at_most_batch_size_rows_and_never_cross_shards(self, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 6))
        write_jsonl(tmp_path / "in" / "b.jsonl", numbered(6, 7))
        write_jsonl(tmp_path / "in" / "c.jsonl", numbered(7, 12))
        run_job(Recording(), tmp_path / "in", tmp_path / "out")
        batches = [event for event in SEEN.events if not event.startswith("setup")]
        # The first one was looked at before, for the schema that it gives.
        assert batches[0] == batches[1]
        assert sorted(batches[1:]) == ["r0,r1,r2,r3", "r11", "r4,r5", "r6", "r7,r8,r9,r10"]

    def test_batch_size_may_be_given(self, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 5))
        run_job(Recording(batch_size=2), tmp_path / "in", tmp_path / "out")
        assert SEEN.events[-3:] == ["r0,r1", "r2,r3", "r4"]

    def test_process_can_be_called_without_a_run(self) -> None:
        """A unit test of the rule alone; what it books goes nowhere."""

        class Short(Job):
            def process(self, batch: pa.Table) -> pa.Table:
                kept = batch.filter(pc.greater(batch["n"], 1))
                self.drop(len(batch) - len(kept), "small")
                self.count("seen", len(batch))
                self.quarantine({"n": 0}, "zero")
                return kept

        assert Short().process(pa.table({"n": [1, 2, 3]}))["n"].to_pylist() == [2, 3]

    def test_a_setup_that_fails_fails_every_shard(self, tmp_path: Path) -> None:
        """Each of them says why; the job ends."""

        class Broken(Job):
            version = "1"

            def setup(self) -> None:
                raise OSError("no model here")

            def process(self, batch: pa.Table) -> pa.Table:
                return batch

        for name in "ab":
            write_jsonl(tmp_path / "in" / f"{name}.jsonl", numbered(0, 1))
        summary = run_job(Broken(), tmp_path / "in", tmp_path / "out")
        assert (summary.state, summary.failed) == (RunState.FAILED, 2)
        assert [(group.error, group.count) for group in summary.failures] == [("OSError: no model here", 2)]

    @pytest.mark.parametrize("call", ["drop(1, 'x')", "count('x')", "quarantine({}, 'x')"])
    def test_setup_has_no_shard_to_book_to(self, tmp_path: Path, call: str) -> None:
        class Eager(Job):
            version = "1"

            def setup(self) -> None:
                eval(f"self.{call}")

            def process(self, batch: pa.Table) -> pa.Table:
                return batch

        write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 1))
        summary = run_job(Eager(), tmp_path / "in", tmp_path / "out")
        name = call.partition("(")[0]
        assert f"Eager.setup called {name}(), but setup runs outside of any shard" in summary.failures[0].error

    def test_check_refuses_parameters_before_anything_is_looked_at(self, tmp_path: Path) -> None:
        class Checked(Job):
            version = "1"
            low: float = 0.0
            high: float = 1.0

            def check(self) -> None:
                if self.low > self.high:
                    raise ConfigError(f"low {self.low} is above high {self.high}")

            def process(self, batch: pa.Table) -> pa.Table:
                return batch

        with refusing("low 2.0 is above high 1.0"):
            run_job(Checked(low=2), tmp_path / "nowhere", tmp_path / "out")
        assert list(tmp_path.iterdir()) == []

    def test_a_raising_process_is_tried_four_times_with_backoff_and_the_others_finish(self, tmp_path: Path) -> None:
        class Raising(Job):
            version = "1"

            def process(self, batch: pa.Table) -> pa.Table:
                if "r5" in batch["id"].to_pylist():
                    raise ValueError("not r5")
                return batch

        for k, name in enumerate("abc"):
            write_jsonl(tmp_path / "in" / f"{name}.jsonl", numbered(4 * k, 4 * k + 4))
        clock = FakeClock()
        summary = run_job(Raising(), tmp_path / "in", tmp_path / "out", clock=clock)
        assert (summary.state, summary.done, summary.failed) == (RunState.FAILED, 2, 1)
        events = failures(tmp_path / "out")
        assert [(event["shard"], event["attempt"], event["outcome"]) for event in events] == [
            ("b", 1, "retry"),
            ("b", 2, "retry"),
            ("b", 3, "retry"),
            ("b", 4, "failed"),
        ]
        assert "not r5" in events[-1]["traceback"]
        assert events[-1]["input"].endswith("in/b.jsonl")
        assert sorted(outputs(tmp_path / "out")) == ["a.parquet", "c.parquet"]


class Watching(InlineBackend):
    """Remembers how many tasks were in flight at most."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def launch(self, task: int, payload: Any, pieces: int, **how: Any) -> None:
        super().launch(task, payload, pieces, **how)
        self.most = max(self.most, len(self._queue))


class TestTasks:
    """How many tasks are in flight: some, so that no slot waits; fewer where the job or the user says so."""

    @pytest.mark.parametrize(
        ("given", "options", "most"),
        [
            ({}, {}, 16),
            ({"max_tasks": 3}, {}, 3),
            ({}, {"max_in_flight": 2}, 2),
            ({"max_tasks": 3}, {"max_in_flight": 2}, 2),
            ({"max_tasks": 1}, {"max_in_flight": 20}, 1),
            ({}, {"max_in_flight": 20}, 20),
        ],
    )
    def test_the_lower_bound_holds(
        self, tmp_path: Path, given: dict[str, Any], options: dict[str, Any], most: int
    ) -> None:
        for k in range(40):
            write_jsonl(tmp_path / "in" / f"{k}.jsonl", numbered(k, k + 1))
        job, backend = Recording(**given), Watching()
        checked = job.options(input=tmp_path / "in", output=tmp_path / "out", target_task_seconds=1e-9, **options)
        summary = run(job.spec(), checked, clock=FakeClock(), backend=backend)
        assert (summary.state, summary.done) == (RunState.COMPLETE, 40)
        assert backend.most == most


class TestColumns:
    """What is read, and as what."""

    EDITED: ClassVar[list[Any]] = [False, 1512345.0, False, None, 1512346.5]

    def _job(self, columns: Any) -> Job:
        body = {
            "__module__": __name__,
            "version": "1",
            "columns": columns,
            "process": lambda self, batch: batch,  # noqa: ARG005
        }
        made: Job = type("Reads", (Job,), body)()
        return made

    @pytest.mark.parametrize(
        ("columns", "schema"),
        [
            (["n", "id"], [("n", pa.int64()), ("id", pa.string())]),
            ({"n": pa.int8(), "id": None}, [("n", pa.int8()), ("id", pa.string())]),
            ([pa.field("n", pa.float64()), "id"], [("n", pa.float64()), ("id", pa.string())]),
            (pa.schema([("n", pa.int32())]), [("n", pa.int32())]),
            (None, [("id", pa.string()), ("text", pa.string()), ("n", pa.int64())]),
        ],
    )
    def test_names_types_and_fields(self, tmp_path: Path, columns: Any, schema: Any) -> None:
        write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 3))
        run_job(self._job(columns), tmp_path / "in", tmp_path / "out")
        table = outputs(tmp_path / "out")["a.parquet"]
        assert table.schema == pa.schema(schema)
        assert table["n"].to_pylist() == [0, 1, 2]

    def test_pushshifts_edited_does_no_harm_where_it_is_not_read(self, tmp_path: Path) -> None:
        """`edited` is false or a time. Arrow's own reader gives the file up."""
        rows = [{"id": str(k), "edited": edited} for k, edited in enumerate(self.EDITED)]
        write_jsonl(tmp_path / "in" / "a.jsonl", rows)
        assert run_job(self._job(["id"]), tmp_path / "in", tmp_path / "out").state is RunState.COMPLETE
        assert len(output_rows(tmp_path / "out")) == 5

    def test_pushshifts_edited_does_no_harm_where_all_columns_are_read(self, tmp_path: Path) -> None:
        rows = [{"id": str(k), "edited": edited} for k, edited in enumerate(self.EDITED)]
        write_jsonl(tmp_path / "in" / "a.jsonl", rows)
        assert run_job(self._job(None), tmp_path / "in", tmp_path / "out").state is RunState.COMPLETE
        found = [row["edited"] for row in output_rows(tmp_path / "out")]
        assert found == ["false", "1512345.0", "false", None, "1512346.5"]

    def test_a_null_in_a_field_that_is_not_nullable_is_a_bad_row(self, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "in" / "a.jsonl", [{"id": "a"}, {"id": None}])
        write_parquet(tmp_path / "in" / "b.parquet", [{"id": "a"}, {"id": None}])
        job = self._job([pa.field("id", pa.string(), nullable=False)])
        summary = run_job(job, tmp_path / "in", tmp_path / "out")
        assert (summary.books.rows_in, summary.books.rows_out, summary.books.quarantined) == (4, 2, 2)


class Picky(Job):
    """Raises what the test asks for, for the rows that it names."""

    version = "1"
    columns = ("id", "n")
    batch_size = 8
    max_bad_rows = "50%"
    quarantine_errors = True
    bad: list[int] = param([], identity=False)
    poison: list[int] = param([], identity=False)
    down: int = param(0, identity=False, help="times that the service is down")
    CALLS: ClassVar[list[str]] = []

    def process(self, batch: pa.Table) -> pa.Table:
        numbers = batch["n"].to_pylist()
        self.count("batches")
        if 5 in numbers and self.down:
            self.CALLS.append("a call")
            if len(self.CALLS) <= self.down:
                raise ConnectionError("503") from RetryLater(30.0)
        for n in numbers:
            if n in self.bad:
                raise BadRow(f"{n} is bad")
            if n in self.poison:
                raise ValueError(f"{n} is poison")
        return batch


class TestBadRows:
    def test_rows_go_to_quarantine_and_the_output_is_that_of_the_others(self, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 20))
        summary = run_job(Picky(bad=[3, 11]), tmp_path / "in", tmp_path / "out")
        assert (summary.state, summary.attempts) == (RunState.COMPLETE, 1)
        assert summary.books.rows() == {"in": 20, "created": 0, "out": 18, "dropped": {}, "quarantined": 2}
        assert summary.books.counters == {"batches": 3}
        good = [row for row in numbered(0, 20) if row["n"] not in (3, 11)]
        assert [row["n"] for row in output_rows(tmp_path / "out")] == [row["n"] for row in good]
        assert [(row["reason"], row["row"]) for row in quarantined(tmp_path / "out")] == [
            ("3 is bad", '{"id":"r3","n":3}'),
            ("11 is bad", '{"id":"r11","n":11}'),
        ]

    def test_other_errors_are_pinned_on_a_row_at_the_last_try(self, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 20))
        summary = run_job(Picky(bad=[3], poison=[4]), tmp_path / "in", tmp_path / "out")
        assert (summary.state, summary.attempts) == (RunState.COMPLETE, 4)
        assert [row["reason"] for row in quarantined(tmp_path / "out")] == ["3 is bad", "ValueError: 4 is poison"]
        assert [event["kind"] for event in failures(tmp_path / "out")] == ["user_error"] * 3

    def test_a_service_that_is_down_quarantines_nothing(self, tmp_path: Path) -> None:
        """However often it fails, and whatever its error is called."""

        class Declared(Picky):
            """Its rows are not asked for a schema first, which is waited for too."""

            output_schema = pa.schema([("id", pa.string()), ("n", pa.int64())])

        write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 20))
        Picky.CALLS.clear()
        clock = FakeClock()
        summary = run_job(Declared(down=7), tmp_path / "in", tmp_path / "out", clock=clock)
        assert (summary.state, summary.books.quarantined) == (RunState.COMPLETE, 0)
        kinds = {event["kind"] for event in failures(tmp_path / "out")}
        assert kinds == {"retry_later"}
        assert sum(clock.sleeps) >= 30 * len(failures(tmp_path / "out"))

    def test_a_file_has_no_rows_to_set_aside(self, tmp_path: Path) -> None:
        class Files(FileJob):
            version = "1"
            output_schema = pa.schema([("n", pa.int64())])

            def process_file(self, file: Any) -> Iterator[Any]:
                yield {"n": file.size}
                raise BadRow("the second line")

        write_jsonl(tmp_path / "in" / "a.warc", b"x")
        summary = run_job(Files(), tmp_path / "in" / "a.warc", tmp_path / "out")
        assert summary.state is RunState.FAILED
        assert "call self.quarantine(row, reason) and continue" in summary.failures[0].error


class Raises(Job):
    """Raises what takes no attributes."""

    version = "1"
    which: int = param(0)

    def process(self, batch: pa.Table) -> pa.Table:
        del batch
        raise UNTOUCHABLE[self.which]()


@pytest.mark.parametrize("which", range(len(UNTOUCHABLE)))
def test_an_error_that_takes_no_attributes_is_in_the_ledger_as_itself(tmp_path: Path, which: int) -> None:
    """With where it was raised."""
    summary = run_job(Raises(which=which), write_jsonl(tmp_path / "in.jsonl", [{"a": 1}]), tmp_path / "out")
    (failed,) = summary.failures
    assert failed.error.startswith(f"{type(UNTOUCHABLE[which]()).__name__}: ")
    assert "in process" in failed.at
