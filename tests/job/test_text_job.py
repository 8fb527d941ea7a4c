"""TextJob: which columns are read and passed through, and what becomes of texts that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from curate.job.job import Job
from curate.job.shapes import TextJob
from curate.ledger.summary import RunState
from tests.job.inline import output_rows, outputs, quarantined, refusing, run_job, write_jsonl, write_parquet


class Length(TextJob):
    """Measures each text. Fails at a null, or at what is not text."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        text = batch[self.text_column]
        assert text.type == pa.string()
        assert text.null_count == 0
        return self.passed_through(batch).append_column("length", pc.utf8_length(text))


ROWS: list[dict[str, Any]] = [
    {"id": "a", "text": "one", "lang": "en", "extra": {"deep": 1}},
    {"id": "b", "text": "", "lang": None, "extra": {"deep": 2}},
]


class TestColumns:
    @pytest.mark.parametrize(
        ("keep", "names"),
        [
            ([], ["id", "length"]),
            (["lang"], ["id", "lang", "length"]),
            (["lang", "lang", "id"], ["id", "lang", "length"]),
            (["text"], ["id", "text", "length"]),
            (["text", "id", "lang"], ["id", "text", "lang", "length"]),
            (["extra"], ["id", "extra", "length"]),
        ],
    )
    @pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
    def test_id_and_kept_columns_are_passed_through_once(
        self, tmp_path: Path, keep: list[str], names: list[str], suffix: str
    ) -> None:
        """Whatever is named twice, the text and the id included."""
        write = write_jsonl if suffix == "jsonl" else write_parquet
        write(tmp_path / "in" / f"a.{suffix}", ROWS)
        run_job(Length(keep_columns=keep), tmp_path / "in", tmp_path / "out")
        table = outputs(tmp_path / "out")["a.parquet"]
        assert table.column_names == names
        assert table["length"].to_pylist() == [3, 0]

    def test_the_text_is_held_as_text_when_it_is_kept_as_well(self, tmp_path: Path) -> None:
        """Nulls in it stay bad rows."""
        write_jsonl(tmp_path / "in" / "a.jsonl", [*ROWS, {"id": "c", "text": None}])
        summary = run_job(Length(keep_columns=["text"]), tmp_path / "in", tmp_path / "out")
        assert (summary.state, summary.books.quarantined) == (RunState.COMPLETE, 1)

    def test_one_column_may_be_both_id_and_text(self, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "in" / "a.jsonl", [{"text": "one"}, {"text": None}])
        summary = run_job(Length(id_column="text"), tmp_path / "in", tmp_path / "out")
        assert output_rows(tmp_path / "out") == [{"text": "one", "length": 3}]
        assert summary.books.quarantined == 1

    def test_ids_may_be_numbers_and_null(self, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "in" / "a.jsonl", [{"id": 1, "text": "x"}, {"id": None, "text": "y"}])
        run_job(Length(), tmp_path / "in", tmp_path / "out")
        assert [row["id"] for row in output_rows(tmp_path / "out")] == [1, None]

    @pytest.mark.parametrize(
        ("name", "content"),
        [("a.csv", b"id,text\n1,one\n2,\n"), ("a.jsonl", b'{"id":1,"text":"one"}\n{"id":2,"text":""}\n')],
    )
    def test_formats_of_rows(self, tmp_path: Path, name: str, content: bytes) -> None:
        """An empty text is a text."""
        write_jsonl(tmp_path / "in" / name, content)
        run_job(Length(), tmp_path / "in", tmp_path / "out")
        assert output_rows(tmp_path / "out") == [{"id": 1, "length": 3}, {"id": 2, "length": 0}]

    def test_plain_text_has_its_lines_for_ids(self, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "in" / "a.txt", b"one\n\nthree\n")
        run_job(Length(id_column="line"), tmp_path / "in", tmp_path / "out")
        assert output_rows(tmp_path / "out") == [{"line": 1, "length": 3}, {"line": 3, "length": 5}]

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"text_column": "txt"}, "no column 'txt' in"),
            ({"text_column": "txt"}, "did you mean 'text'?; it has 'id', 'text', 'lang', 'extra'"),
            ({"id_column": "ids"}, "no column 'ids' in"),
            ({"keep_columns": ["lnag"]}, "did you mean 'lang'?"),
            ({"text_column": "txt"}, ". Another one is chosen with text_column=..."),
            ({"text_column": "x", "id_column": "x"}, ". Another one is chosen with text_column=... and id_column=..."),
        ],
    )
    @pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
    def test_a_missing_column_is_refused_with_those_there_are(
        self, tmp_path: Path, given: dict[str, Any], message: str, suffix: str
    ) -> None:
        write = write_jsonl if suffix == "jsonl" else write_parquet
        write(tmp_path / "in" / f"a.{suffix}", ROWS)
        with refusing(message):
            run_job(Length(**given), tmp_path / "in", tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_a_column_that_a_folder_names_is_said_to_be_one_for_datasets(self, tmp_path: Path) -> None:
        """Whoever knows it from a dataset of the same files would look for it inside of them."""
        write_jsonl(tmp_path / "in" / "year=2024" / "a.jsonl", ROWS)
        with refusing(
            "it has 'id', 'text', 'lang', 'extra'; the folder year=... is a column for datasets, and not for"
        ):
            run_job(Length(keep_columns=["year"]), tmp_path / "in", tmp_path / "out")

    def test_asked_for_in_process_says_which_it_is_given_and_how_others_are(self, tmp_path: Path) -> None:
        """A column of the input that the job does not read is no column of the batch."""
        write_jsonl(tmp_path / "in" / "a.jsonl", ROWS)

        class Asks(TextJob):
            """Takes a column that nobody named."""

            version = "1"

            def process(self, batch: pa.Table) -> pa.Table:
                return batch.filter(pc.is_valid(batch["lang"]))

        failed = run_job(Asks(), tmp_path / "in", tmp_path / "out").failures[0].error
        assert "KeyError" in failed
        assert failed.endswith("; the batch has 'id', 'text'; name others of the input in keep_columns")
        kept = run_job(Asks(keep_columns=["lang"]), tmp_path / "in", tmp_path / "kept")
        assert kept.state is RunState.COMPLETE

    def test_asked_for_where_all_are_read_says_which_there_are(self, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "in" / "a.jsonl", [{f"c{n:02}": n for n in range(21)}])

        class Asks(Job):
            """Takes a column that does not exist."""

            version = "1"

            def process(self, batch: pa.Table) -> pa.Table:
                return batch.select(["lang"])

        failed = run_job(Asks(), tmp_path / "in", tmp_path / "out").failures[0].error
        assert "; the batch has 'c00', 'c01', " in failed
        assert failed.endswith(", 'c19', ...")

    def test_a_key_of_something_else_is_left_as_it_is(self, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "in" / "a.jsonl", ROWS)

        class Asks(TextJob):
            """Looks something up in a dictionary of its own."""

            version = "1"

            def process(self, batch: pa.Table) -> pa.Table:
                return batch.slice({}["lang"])

        assert run_job(Asks(), tmp_path / "in", tmp_path / "out").failures[0].error == "KeyError: 'lang'"

    def test_a_text_column_that_is_no_text_throughout_is_refused(self, tmp_path: Path) -> None:
        """Parquet says so before anything is read."""
        write_parquet(tmp_path / "in" / "a.parquet", [{"id": 1, "text": 2}])
        with refusing(f"column 'text' of {tmp_path / 'in' / 'a.parquet'} is int64; it cannot be read as string"):
            run_job(Length(), tmp_path / "in", tmp_path / "out")

    def test_large_and_dictionary_encoded_texts_are_texts(self, tmp_path: Path) -> None:
        for name, kind in (("a", pa.large_string()), ("b", pa.dictionary(pa.int32(), pa.string()))):
            table = pa.table({"id": ["1"], "text": pa.array(["one"]).cast(kind)})
            write_parquet(tmp_path / "in" / f"{name}.parquet", table)
        assert run_job(Length(), tmp_path / "in", tmp_path / "out").state is RunState.COMPLETE


class TestBadTexts:
    """Null, number, broken line: the row goes to quarantine with its reason and line, the others are processed."""

    LINES = (
        b'{"id":"a","text":"fine"}',
        b'{"id":"b","text":null}',
        b'{"id":"c","text":3}',
        b'{"id":"d"}',
        b'{"id":"e","text":"cut',
        b'{"id":"f","text":"caf\xe9"}',
        b"[1]",
        b"",
        b'{"id":"g","text":"fine too"}',
        b'{"id":"h","text":["no"]}',
        b'{"id":"i","text":true}',
    )

    @pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
    def test_jsonl(self, tmp_path: Path, name: str) -> None:
        write_jsonl(tmp_path / "in" / name, b"\n".join(self.LINES))
        summary = run_job(Length(), tmp_path / "in", tmp_path / "out")
        assert summary.books.rows() == {"in": 10, "created": 0, "out": 2, "dropped": {}, "quarantined": 8}
        found = quarantined(tmp_path / "out")
        assert [(row["line"], row["reason"]) for row in found] == [
            (2, "column 'text' is null"),
            (3, "column 'text' is not a string: found number"),
            (4, "column 'text' is null"),
            (5, found[3]["reason"]),
            (6, "invalid UTF-8"),
            (7, "not an object"),
            (10, "column 'text' is not a string: found list"),
            (11, "column 'text' is not a string: found boolean"),
        ]
        assert found[3]["reason"].startswith("malformed JSON")
        assert found[0]["row"] == '{"id":"b","text":null}'
        assert found[4]["row_base64"]

    def test_parquet(self, tmp_path: Path) -> None:
        write_parquet(tmp_path / "in" / "a.parquet", [{"id": "a", "text": "x"}, {"id": "b", "text": None}])
        run_job(Length(), tmp_path / "in", tmp_path / "out")
        assert quarantined(tmp_path / "out") == [
            {"line": 2, "reason": "column 'text' is null", "row": '{"id":"b","text":null}'}
        ]

    def test_csv(self, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "in" / "a.csv", b"id,text\n1,fine\n2\n3,caf\xe9\n4,fine\n")
        run_job(Length(), tmp_path / "in", tmp_path / "out")
        assert [(row["line"], row["reason"]) for row in quarantined(tmp_path / "out")] == [
            (2, "wrong number of fields"),
            (3, "invalid UTF-8"),
        ]
        assert [row["id"] for row in output_rows(tmp_path / "out")] == [1, 4]

    def test_more_than_the_budget_fail_the_shard_and_leave_nothing(self, tmp_path: Path) -> None:
        """At once: the rows would be as bad when it is tried again. The message lists the reasons, and where one is."""
        write_jsonl(
            tmp_path / "in" / "a.jsonl", b'{"id":"a","text":null}\n' * 8 + b'{"id":\n' * 3 + b'{"id":"b","text":"x"}\n'
        )
        write_jsonl(tmp_path / "in" / "b.jsonl", ROWS)
        summary = run_job(Length(), tmp_path / "in", tmp_path / "out")
        assert (summary.state, summary.done, summary.failed, summary.attempts) == (RunState.FAILED, 1, 1, 2)
        error = summary.failures[0].error
        assert error.startswith("TooManyBadRows: 11 bad rows of 12, the budget is 0.1% of the rows, at least 10 (")
        assert "8 x column 'text' is null" in error
        assert "fix the input (such as line 1 of the shard)" in error
        assert sorted(outputs(tmp_path / "out")) == ["b.parquet"]
        assert quarantined(tmp_path / "out") == []

    def test_the_budget_can_be_given(self, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "in" / "a.jsonl", b'{"id":"a","text":null}\n' * 11 + b'{"id":"b","text":"x"}\n')
        assert run_job(Length(max_bad_rows="95%"), tmp_path / "in", tmp_path / "out").books.quarantined == 11
