"""The books balance: in + created = out + dropped + quarantined, per shard and per job, whatever `process` does."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.job.job import Job
from curate.job.operator import check_count, check_name, row_json, rows_as_table
from curate.ledger.summary import RunState
from curate.objects.record import OutputFormat, read_record
from curate.stores.open import open_store
from curate.tasks.books import Books
from tests.job.inline import failures, numbered, outputs, quarantined, run_job, write_jsonl
from tests.support.examples import examples

ACTIONS = ("keep", "drop", "drop silently", "quarantine", "double", "make one more")


class Scripted(Job):
    """Does to each row what the row says, and counts what it did."""

    version = "1"
    columns = ("id", "do")
    batch_size = 3
    max_bad_rows = "100%"

    def process(self, batch: pa.Table) -> Any:
        for row in batch.to_pylist():
            self.count("rows")
            self.count("half", 0.5)
            one = pa.table({"id": [row["id"]]})
            match row["do"]:
                case "drop":
                    self.drop(1, f"because {row['id'][-1]}")
                case "quarantine":
                    self.quarantine(row, "set aside")
                case "keep":
                    yield one
                case "double":
                    yield pa.concat_tables([one, one])
                case "make one more":
                    yield one
                    yield pa.table({"id": ["made"]})


def expected(actions: list[str]) -> dict[str, int]:
    """What should be booked, worked out by hand. Rows lost without a word and rows made cancel out within a shard."""
    n = Counter(actions)
    gap = n["drop silently"] - n["double"] - n["make one more"]
    return {
        "in": len(actions),
        "created": max(0, -gap),
        "out": n["keep"] + 2 * n["double"] + 2 * n["make one more"],
        "dropped": n["drop"] + max(0, gap),
        "unspecified": max(0, gap),
        "quarantined": n["quarantine"],
    }


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.lists(st.sampled_from(ACTIONS), max_size=12), min_size=1, max_size=4))
def test_the_books_balance_for_any_pattern_of_drops_copies_and_quarantines(shards: list[list[str]]) -> None:
    """Each shard's record, the summary and the rows that are really there all say the same."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for k, actions in enumerate(shards):
            rows = [{"id": f"{k}-{n}", "do": action} for n, action in enumerate(actions)]
            write_jsonl(root / "in" / f"{k}.jsonl", rows)
        summary = run_job(Scripted(), root / "in", root / "out")
        assert summary.state is RunState.COMPLETE
        assert summary.books.balanced()
        total: Counter[str] = Counter()
        for k, actions in enumerate(shards):
            want = expected(actions)
            total.update(want)
            record = _record(root / "out" / f"{k}.parquet")
            books = Books.parse(record["rows"], record["counters"])
            assert books.balanced()
            assert (books.rows_in, books.created, books.rows_out) == (want["in"], want["created"], want["out"])
            assert sum(books.dropped.values()) == want["dropped"]
            assert books.dropped.get("unspecified", 0) == want["unspecified"]
            assert books.counters == ({"half": len(actions) / 2, "rows": len(actions)} if actions else {})
        tables = outputs(root / "out")
        assert sum(len(table) for table in tables.values()) == summary.books.rows_out == total["out"]
        assert len(quarantined(root / "out")) == summary.books.quarantined == total["quarantined"]
        again = run_job(Scripted(), root / "in", root / "out")
        assert again.books == summary.books
        assert again.dispatched == 0


def _record(path: Path) -> Any:
    store = open_store(str(path))
    return read_record(store, store.stat(str(path)), OutputFormat.PARQUET, "zstd")


def do(*actions: str) -> list[dict[str, str]]:
    return [{"id": f"r{k}", "do": action} for k, action in enumerate(actions)]


def test_rows_that_process_swallows_are_dropped_unspecified(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl", do("keep", "drop silently", "drop silently", "drop"))
    books = run_job(Scripted(), tmp_path / "in", tmp_path / "out").books
    assert books.rows() == {
        "in": 4,
        "created": 0,
        "out": 1,
        "dropped": {"because 3": 1, "unspecified": 2},
        "quarantined": 0,
    }


def test_counters_and_reasons_survive_a_run_that_stops_in_the_middle(tmp_path: Path) -> None:
    """They travel with each output; the second run adds up what it did not do itself."""
    for k in range(4):
        write_jsonl(tmp_path / "in" / f"{k}.jsonl", do("keep", "drop", "double", "quarantine"))
    partly = run_job(Scripted(), tmp_path / "in", tmp_path / "out", limit=3)
    assert (partly.done, partly.total, partly.books.counters) == (3, 3, {"rows": 12, "half": 6.0})
    whole = run_job(Scripted(), tmp_path / "in", tmp_path / "out")
    assert (whole.done, whole.skipped) == (4, 3)
    assert whole.books.counters == {"rows": 16, "half": 8.0}
    # In each: one row is kept, one dropped, one doubled, one set aside.
    assert whole.books.rows() == {"in": 16, "created": 4, "out": 12, "dropped": {"because 1": 4}, "quarantined": 4}


def test_they_survive_the_loss_of_all_telemetry(tmp_path: Path) -> None:
    """Events are telemetry: without them, the outputs' own records are read."""
    for k in range(3):
        write_jsonl(tmp_path / "in" / f"{k}.jsonl", do("keep", "drop", "quarantine"))
    first = run_job(Scripted(), tmp_path / "in", tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "_curate" / "runs")
    (tmp_path / "out" / "_curate" / "summary.json").unlink()
    assert run_job(Scripted(), tmp_path / "in", tmp_path / "out").books == first.books


def test_a_shard_that_is_tried_again_is_counted_once(tmp_path: Path) -> None:
    """What the failed tries had counted is forgotten with them."""

    tries = itertools.count(1)

    class Flaky(Scripted):
        def process(self, batch: pa.Table) -> Any:
            yield from super().process(batch)
            if next(tries) < 4:
                raise OSError("not yet")

    write_jsonl(tmp_path / "in" / "a.jsonl", do("keep", "drop", "quarantine", "keep"))
    summary = run_job(Flaky(), tmp_path / "in", tmp_path / "out")
    assert summary.state is RunState.COMPLETE
    assert summary.books.counters == {"rows": 4, "half": 2.0}
    assert len(failures(tmp_path / "out")) >= 1
    assert summary.books.rows() == {
        "in": 4,
        "created": 0,
        "out": 2,
        "dropped": {"because 1": 1},
        "quarantined": 1,
    }


class TestQuarantine:
    def test_a_row_is_kept_with_its_reason(self, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "in" / "a.jsonl", do("quarantine", "keep"))
        run_job(Scripted(), tmp_path / "in", tmp_path / "out")
        assert quarantined(tmp_path / "out") == [
            {
                "line": 0,
                "at": "lines 1 to 2 of the shard",
                "reason": "set aside",
                "row": '{"id":"r0","do":"quarantine"}',
            }
        ]

    @pytest.mark.parametrize(
        ("bad", "rows", "budget", "complete"),
        [
            (10, 20, None, True),
            (11, 20, None, False),
            (20, 20_000, None, True),
            (21, 20_000, None, False),
            (2, 20, 2, True),
            (3, 20, 2, False),
            (0, 20, 0, True),
            (1, 20, 0, False),
            (29, 100, "29%", True),
            (30, 100, "29%", False),
            (20, 20, "100%", True),
        ],
    )
    def test_the_budget(self, tmp_path: Path, bad: int, rows: int, budget: Any, complete: bool) -> None:
        """0.1 % of a shard's rows, at least 10; or N; or P%. Beyond it the shard fails, once, with the reasons."""

        class Strict(Scripted):
            max_bad_rows = budget
            batch_size = 5000

            def process(self, batch: pa.Table) -> Any:
                for row in batch.filter(batch["do"].to_numpy() == "quarantine").to_pylist():
                    self.quarantine(row, "set aside")
                yield batch.filter(batch["do"].to_numpy() != "quarantine")

        write_jsonl(tmp_path / "in" / "a.jsonl", do(*["quarantine"] * bad, *["keep"] * (rows - bad)))
        summary = run_job(Strict(), tmp_path / "in", tmp_path / "out")
        assert summary.attempts == 1
        assert (summary.state is RunState.COMPLETE) == complete
        if complete:
            assert summary.books.quarantined == bad
        else:
            error = summary.failures[0].error
            assert "TooManyBadRows" in error
            assert f"{bad} x set aside" in error
            assert "max_bad_rows" in error
            assert not (tmp_path / "out" / "_curate" / "quarantine").exists()


class TestChecks:
    """A slip in what is booked shows at the call, not when the record is written."""

    @pytest.mark.parametrize(("n", "value"), [(3, 3), (np.int64(3), 3), (pa.scalar(3), 3), (0, 0)])
    def test_numbers_of_rows(self, n: Any, value: int) -> None:
        assert check_count(n, "drop(..)") == value

    @pytest.mark.parametrize("n", [1.0, True, "1", None, float("nan"), np.float64(2)])
    def test_no_numbers_of_rows(self, n: Any) -> None:
        with pytest.raises(TypeError, match=r"drop\(\.\.\): expected a (whole )?number"):
            check_count(n, "drop(..)")

    @pytest.mark.parametrize("n", [float("nan"), float("inf")])
    def test_a_counter_stays_finite(self, n: float) -> None:
        """JSON has no such number, and one of them would hide all others."""
        with pytest.raises(ValueError, match="cannot be added up"):
            check_count(n, "count(..)", whole=False)

    @pytest.mark.parametrize("n", [2**64, -(2**63) - 1, 2**70])
    def test_a_number_fits_in_64_bits(self, n: int) -> None:
        """Larger ones are nowhere in JSON; sums of those that fit may be."""
        with pytest.raises(ValueError, match=r"count\(\.\.\): .* cannot be added up; .* a whole one of 64 bits"):
            check_count(n, "count(..)", whole=False)
        fits = n - 1 if n == 2**64 else n + 1
        assert n == 2**70 or check_count(fits, "count(..)", whole=False) == fits

    @pytest.mark.parametrize("name", [None, 3, "", "\ud800"])
    def test_names_are_text(self, name: Any) -> None:
        with pytest.raises((TypeError, ValueError), match="text"):
            check_name(name, "count(..)")

    def test_a_negative_number_of_rows_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"drop\(-1, 'x'\): the number of rows cannot be negative"):
            Scripted().drop(-1, "x")

    @pytest.mark.parametrize(
        ("row", "text"),
        [
            ({"a": 1, "b": None}, '{"a":1,"b":null}'),
            ({"a": b"text"}, '{"a":"text"}'),
            ({"a": b"\xff"}, '{"a":"/w=="}'),
            ({"a": np.int64(3), "b": pa.scalar(4)}, '{"a":3,"b":4}'),
            ({1: "x"}, '{"1":"x"}'),
            ({"a": {1}}, '{"a":"{1}"}'),
            ({"a": 2**70}, '{"a":"1180591620717411303424"}'),
            ({"a": "\udc80"}, r"""{"a":"'\\udc80'"}"""),
        ],
    )
    def test_any_row_can_be_set_aside(self, row: Any, text: str) -> None:
        assert row_json(row) == text

    def test_a_row_is_a_dictionary(self) -> None:
        with pytest.raises(TypeError, match="expected a row as a dictionary, found Table"):
            Scripted().quarantine(pa.table({"a": [1]}), "x")  # type: ignore[arg-type]

    def test_names_that_hold_data_fail_the_shard(self, tmp_path: Path) -> None:
        """They would all travel in the output's record."""

        class Chatty(Job):
            version = "1"

            def process(self, batch: pa.Table) -> pa.Table:
                for one in batch["id"].to_pylist():
                    self.count(f"seen {one}")
                return batch

        write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 300))
        summary = run_job(Chatty(), tmp_path / "in", tmp_path / "out")
        assert (summary.state, summary.attempts) == (RunState.FAILED, 1)
        assert "more than 200 different counters in one shard" in summary.failures[0].error


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 9)), min_size=1, max_size=5))
def test_rows_that_are_dropped_keep_all_of_their_columns(rows: list[dict[str, int]]) -> None:
    """Also those that the first row does not have."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    found = rows_as_table(rows)
    assert found.column_names == names
    assert not names or found.to_pylist() == [{name: row.get(name) for name in names} for row in rows]
