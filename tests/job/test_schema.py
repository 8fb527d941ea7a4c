"""Every output of a job has one schema: declared, or what the first rows of the plan become; the empty ones too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from curate.job.job import Job
from curate.job.shapes import TextJob
from curate.ledger.summary import RunState
from tests.job.inline import numbered, outputs, refusing, run_job, write_jsonl, write_parquet

SCORED = pa.schema([("id", pa.string()), ("score", pa.float32())])


class Scored(TextJob):
    """Gives each text a score."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        return self.passed_through(batch).append_column("score", pc.utf8_length(batch["text"]).cast(pa.float32()))


class Loose(Job):
    """Gives what the test asks for."""

    version = "1"
    columns = ("id", "n")
    rule: str = ""

    def process(self, batch: pa.Table) -> Any:
        rules: dict[str, Any] = {
            "": lambda: batch,
            "none if small": lambda: None if batch["n"][0].as_py() < 2 else batch,
            "empty if small": lambda: batch.filter(pc.greater(batch["n"], 1)),
            "float if large": lambda: (
                batch if batch["n"][0].as_py() < 2 else batch.set_column(1, "n", pc.divide(batch["n"], 2.5))
            ),
            "text if large": lambda: (
                batch if batch["n"][0].as_py() < 2 else batch.set_column(1, "n", pc.cast(batch["n"], pa.string()))
            ),
            "more if large": lambda: batch if batch["n"][0].as_py() < 2 else batch.append_column("m", batch["n"]),
            "less if large": lambda: batch if batch["n"][0].as_py() < 2 else batch.select(["id"]),
            "null by turns": lambda: batch.append_column(
                "m", pa.nulls(len(batch)) if batch["n"][0].as_py() % 4 else batch["n"]
            ).append_column("k", batch["n"] if batch["n"][0].as_py() % 4 else pa.nulls(len(batch))),
            "null first": lambda: batch.append_column(
                "m", pa.nulls(len(batch)) if batch["n"][0].as_py() < 2 else batch["n"]
            ),
            "always null": lambda: batch.append_column("m", pa.nulls(len(batch))),
            "small float": lambda: (
                batch if batch["n"][0].as_py() < 2 else batch.set_column(1, "n", pc.cast(batch["n"], pa.int8()))
            ),
        }
        return rules[self.rule]()


def three_inputs(root: Path) -> Path:
    for k, name in enumerate("abc"):
        write_jsonl(root / f"{name}.jsonl", numbered(2 * k, 2 * k + 2))
    return root


def schemas(root: Path) -> set[pa.Schema]:
    return {table.schema for table in outputs(root).values()}


class TestEmptyInputs:
    @pytest.mark.parametrize("name", ["empty.jsonl", "empty.jsonl.gz", "empty.csv", "header.csv", "empty.txt"])
    def test_an_empty_input_gives_an_empty_output_with_the_schema_of_the_others(
        self, tmp_path: Path, name: str
    ) -> None:
        columns = {"text_column": "text", "id_column": "line" if name.endswith("txt") else "id"}
        source = tmp_path / "in"
        if name.endswith("csv"):
            write_jsonl(source / "full.csv", b"id,text\nr0,hello\n")
        elif name.endswith("txt"):
            write_jsonl(source / "full.txt", b"hello\n")
        else:
            write_jsonl(source / "full.jsonl", numbered(0, 1))
        write_jsonl(source / name, b"id,text\n" if name == "header.csv" else b"")
        summary = run_job(Scored(**columns), source, tmp_path / "out")
        assert summary.state is RunState.COMPLETE
        found = outputs(tmp_path / "out")
        assert sorted(len(table) for table in found.values()) == [0, 1]
        assert len(schemas(tmp_path / "out")) == 1

    def test_a_parquet_file_without_rows(self, tmp_path: Path) -> None:
        write_parquet(
            tmp_path / "in" / "a.parquet", pa.table({"id": pa.array([], "string"), "text": pa.array([], "string")})
        )
        assert run_job(Scored(), tmp_path / "in", tmp_path / "out").state is RunState.COMPLETE
        assert outputs(tmp_path / "out")["a.parquet"].schema == SCORED

    def test_all_inputs_empty(self, tmp_path: Path) -> None:
        """The columns are known by name; what they become is asked of an empty table."""
        for name in ("a.jsonl", "b.jsonl.gz"):
            write_jsonl(tmp_path / "in" / name, b"")
        summary = run_job(Scored(), tmp_path / "in", tmp_path / "out")
        assert (summary.state, summary.books.rows_in) == (RunState.COMPLETE, 0)
        assert schemas(tmp_path / "out") == {SCORED}

    def test_blank_lines_only(self, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "in" / "a.jsonl", b"\n  \n\r\n")
        assert run_job(Scored(), tmp_path / "in", tmp_path / "out").state is RunState.COMPLETE
        assert schemas(tmp_path / "out") == {SCORED}


class TestDerived:
    @pytest.mark.parametrize("rule", ["none if small", "empty if small"])
    def test_a_first_shard_that_is_filtered_away_does_not_decide(self, tmp_path: Path, rule: str) -> None:
        summary = run_job(Loose(rule=rule), three_inputs(tmp_path / "in"), tmp_path / "out")
        assert summary.state is RunState.COMPLETE
        assert [len(table) for table in outputs(tmp_path / "out").values()] == [0, 2, 2]
        assert schemas(tmp_path / "out") == {pa.schema([("id", pa.string()), ("n", pa.int64())])}

    def test_a_first_shard_that_is_broken_does_not_decide(self, tmp_path: Path) -> None:
        three_inputs(tmp_path / "in")
        (tmp_path / "in" / "0.jsonl.gz").write_bytes(b"this is not gzip")
        summary = run_job(Loose(), tmp_path / "in", tmp_path / "out")
        assert (summary.state, summary.done, summary.failed) == (RunState.FAILED, 3, 1)
        assert schemas(tmp_path / "out") == {pa.schema([("id", pa.string()), ("n", pa.int64())])}

    @pytest.mark.parametrize(
        ("rule", "message"),
        [
            ("float if large", "'n' is double, expected int64"),
            ("text if large", "'n' is string, expected int64"),
            ("more if large", "'m' (int64) is not expected"),
            ("less if large", "'n' is missing, expected int64"),
        ],
    )
    def test_a_table_with_another_schema_is_an_error_of_the_job(self, tmp_path: Path, rule: str, message: str) -> None:
        """Both sides are shown. It is tried again as for any other error of the job."""
        summary = run_job(Loose(rule=rule), three_inputs(tmp_path / "in"), tmp_path / "out")
        assert (summary.state, summary.done, summary.failed, summary.attempts) == (RunState.FAILED, 1, 2, 9)
        assert all(message in group.error for group in summary.failures)

    def test_what_fits_is_widened(self, tmp_path: Path) -> None:
        summary = run_job(Loose(rule="small float"), three_inputs(tmp_path / "in"), tmp_path / "out")
        assert summary.state is RunState.COMPLETE
        assert schemas(tmp_path / "out") == {pa.schema([("id", pa.string()), ("n", pa.int64())])}

    @pytest.mark.parametrize("rule", ["null first", "null by turns"])
    @pytest.mark.parametrize("batch_size", [1, 2])
    def test_a_column_that_is_null_at_first_gets_the_type_of_its_first_values(
        self, tmp_path: Path, rule: str, batch_size: int
    ) -> None:
        """They may come in a later batch, or in a later shard."""
        summary = run_job(Loose(rule=rule, batch_size=batch_size), three_inputs(tmp_path / "in"), tmp_path / "out")
        assert summary.state is RunState.COMPLETE, summary.failures
        assert {schema.field("m").type for schema in schemas(tmp_path / "out")} == {pa.int64()}

    def test_a_column_that_is_always_null_is_one(self, tmp_path: Path) -> None:
        summary = run_job(Loose(rule="always null"), three_inputs(tmp_path / "in"), tmp_path / "out")
        assert summary.state is RunState.COMPLETE
        assert {schema.field("m").type for schema in schemas(tmp_path / "out")} == {pa.null()}

    def test_a_job_that_only_counts_has_outputs_without_columns(self, tmp_path: Path) -> None:
        class Counting(Job):
            version = "1"

            def process(self, batch: pa.Table) -> None:
                self.count("rows", len(batch))

        summary = run_job(Counting(), three_inputs(tmp_path / "in"), tmp_path / "out")
        assert (summary.state, summary.books.counters) == (RunState.COMPLETE, {"rows": 6})
        assert schemas(tmp_path / "out") == {pa.schema([])}

    def test_a_table_behind_many_shards_without_one_decides(self, tmp_path: Path) -> None:
        """The first rows tell the schema, wherever they are in the plan."""
        for k in range(40):
            write_jsonl(tmp_path / "in" / f"{k:02d}.jsonl", [{"id": "x", "n": k // 20}])
        small = Loose(rule="none if small")
        write_jsonl(tmp_path / "in" / "99.jsonl", [{"id": "x", "n": 5}])
        summary = run_job(small, tmp_path / "in", tmp_path / "out")
        assert (summary.state, summary.done) == (RunState.COMPLETE, 41)
        assert schemas(tmp_path / "out") == {pa.schema([("id", pa.string()), ("n", pa.int64())])}

    def test_it_does_not_depend_on_what_is_asked_for_first(self, tmp_path: Path) -> None:
        """`--limit` and `--sample` leave outputs that a full run keeps."""
        source = three_inputs(tmp_path / "in")
        run_job(Loose(rule="float if large"), source, tmp_path / "out", sample="1%")
        assert schemas(tmp_path / "out") <= {pa.schema([("id", pa.string()), ("n", pa.int64())])}

    def test_it_is_kept_for_inputs_that_come_later(self, tmp_path: Path) -> None:
        source = three_inputs(tmp_path / "in")
        run_job(Loose(), source, tmp_path / "out")
        write_jsonl(source / "0.jsonl", [{"id": "x", "n": None}])
        assert run_job(Loose(), source, tmp_path / "out").state is RunState.COMPLETE
        assert len(schemas(tmp_path / "out")) == 1


class TestDeclared:
    def test_outputs_have_the_declared_schema(self, tmp_path: Path) -> None:
        class Declared(Loose):
            output_schema = pa.schema([("n", pa.float64()), ("id", pa.large_string())])

        summary = run_job(Declared(rule="empty if small"), three_inputs(tmp_path / "in"), tmp_path / "out")
        assert summary.state is RunState.COMPLETE
        assert schemas(tmp_path / "out") == {Declared.output_schema}

    def test_what_does_not_fit_fails_with_both_sides(self, tmp_path: Path) -> None:
        class Declared(Loose):
            output_schema = pa.schema([("id", pa.string()), ("nn", pa.int64())])

        summary = run_job(Declared(), three_inputs(tmp_path / "in"), tmp_path / "out")
        assert (summary.state, summary.failed) == (RunState.FAILED, 3)
        assert "'nn' is missing, expected int64; 'n' (int64) is not expected" in summary.failures[0].error

    def test_another_schema_on_an_existing_output_is_refused(self, tmp_path: Path) -> None:
        class Declared(Loose):
            name = "loose"
            output_schema = pa.schema([("id", pa.string())])

        class Again(Loose):
            name = "loose"
            output_schema = pa.schema([("id", pa.large_string())])

        source = three_inputs(tmp_path / "in")
        run_job(Declared(), source, tmp_path / "out")
        with refusing("output_schema: made with 'id: string', you asked for 'id: large_string'"):
            run_job(Again(), source, tmp_path / "out")
