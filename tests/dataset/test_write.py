"""A write is a job: resumable, with books, of one output a shard, whose identity is that of its operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import curate
from curate.backends.inline import InlineBackend
from curate.dataset.dataset import Dataset
from curate.errors import ConfigError
from tests.support.writes import files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(3):
        pq.write_table(
            pa.table({"n": range(number * 10, number * 10 + 10), "s": ["x"] * 10}), tmp_path / f"{number}.parquet"
        )
    return tmp_path / "*.parquet"


def pipeline(folder: Path, least: int = 5) -> Dataset:
    found = curate.read_parquet(folder).filter(pc.field("n") >= least, reason="too small")
    return found.map_batches(lambda b: b.append_column("m", pc.multiply(b["n"], 2)), batch_size=4).drop_columns("s")


class TestWrite:
    def test_books_and_rows(self, folder: Path, tmp_path: Path) -> None:
        """What is written is what would be consumed; what is dropped is booked."""
        summary = pipeline(folder).write_parquet(tmp_path / "out", backend="inline")
        assert summary.state == "complete"
        assert summary.books.dropped == {"too small": 5}
        assert curate.read_parquet(tmp_path / "out").take_all() == pipeline(folder).take_all()
        assert list(files(tmp_path / "out")) == ["0.parquet", "1.parquet", "2.parquet"]

    def test_it_runs_where_the_dataset_says(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As what is consumed does; `backend` has the last word."""
        asked = []

        def make(name: str) -> InlineBackend:
            asked.append(name)
            return InlineBackend()

        monkeypatch.setattr("curate.backends.choose.make_backend", make)
        for number, (found, options) in enumerate(
            [
                (pipeline(folder), {}),
                (pipeline(folder).using(backend="inline"), {}),
                (pipeline(folder).using(backend="local"), {"backend": "inline"}),
            ]
        ):
            found.write_parquet(tmp_path / f"out{number}", **options)
        assert asked == ["local", "inline", "inline"]

    def test_an_output_that_was_deleted_is_all_that_runs(self, folder: Path, tmp_path: Path) -> None:
        """One shard, to the same bytes; and then none."""
        out = tmp_path / "out"
        pipeline(folder).write_json(out, backend="inline")
        before = files(out)
        (out / "1.jsonl.zst").unlink()
        assert pipeline(folder).write_json(out, backend="inline").dispatched == 1
        assert pipeline(folder).write_json(out, backend="inline").dispatched == 0
        assert files(out) == before

    def test_another_pipeline_is_refused(self, folder: Path, tmp_path: Path) -> None:
        """By an expression's value, or by what a function closes over."""
        pipeline(folder).write_parquet(tmp_path / "out", backend="inline")
        with pytest.raises(ConfigError, match="identity"):
            pipeline(folder, least=6).write_parquet(tmp_path / "out", backend="inline")

    def test_a_foreign_folder_is_left_alone(self, folder: Path, tmp_path: Path) -> None:
        """An object with the name of an output that no job wrote."""
        out = tmp_path / "out"
        out.mkdir()
        pq.write_table(pa.table({"mine": [1]}), out / "0.parquet")
        with pytest.raises(ConfigError, match="not written by curate"):
            pipeline(folder).write_parquet(out, backend="inline")
        assert pq.read_table(out / "0.parquet").column_names == ["mine"]

    @pytest.mark.nightly
    @pytest.mark.slow
    @pytest.mark.ray_lane
    @pytest.mark.usefixtures("on_ray")
    def test_the_same_bytes_on_ray(self, folder: Path, tmp_path: Path) -> None:
        """And the same rows when they are consumed there."""
        pipeline(folder).write_parquet(tmp_path / "here", backend="inline")
        pipeline(folder).write_parquet(tmp_path / "ray", backend="ray")
        assert files(tmp_path / "here") == files(tmp_path / "ray")
        assert pipeline(folder).using(backend="ray").take_all() == pipeline(folder).take_all()


class TestIdentity:
    def identity(self, fn: Any) -> Any:
        from curate.operators.rows import MapRows
        from curate.operators.udf import Udf

        return MapRows(Udf(fn), flat=False).identity()

    def test_what_a_function_closes_over_counts(self) -> None:
        """The value, not where it lies."""

        def make(value: Any) -> Any:
            return lambda _: {"x": value}

        assert self.identity(make([1, 2])) == self.identity(make([1, 2]))
        assert self.identity(make([1, 2])) != self.identity(make([1, 3]))

    def test_a_value_without_identity_is_refused_by_name(self) -> None:
        """It says which variable."""
        classifier = object()
        with pytest.raises(ConfigError, match="classifier is a object"):
            self.identity(lambda _: {"x": classifier})

    def test_what_the_module_says_counts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Helpers and constants that a function or a lambda names, of its own module."""
        import importlib
        import sys

        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        source = "LIMIT = {limit}\nOTHER = {other}\ndef helper(x):\n    return x + LIMIT\n"
        source += "def row(r):\n    return dict(r, n=helper(r['n']))\nrows = [lambda r: dict(r, n=helper(r['n']))]\n"

        def identities(name: str, limit: int, other: int) -> list[Any]:
            (tmp_path / f"{name}.py").write_text(source.format(limit=limit, other=other))
            importlib.invalidate_caches()
            module = importlib.import_module(name)
            return [self.identity(module.row), self.identity(module.rows[0])]

        first = identities("first_of_lazy", 1, 1)
        assert identities("second_of_lazy", 1, 2) == first
        changed = identities("third_of_lazy", 2, 1)
        assert changed[0] != first[0]
        assert changed[1] != first[1]

    def test_long_lists_in_expressions_count(self) -> None:
        """The text of an expression leaves the middle of a list out; its identity does not."""
        from curate.operators.columns import expression_text

        one = pc.field("n").isin([*range(100)])
        other = pc.field("n").isin([*range(50), 1000, *range(51, 100)])
        assert str(one) == str(other)
        assert expression_text(one) != expression_text(other)


class TestRowsOfNoFiles:
    """Ranges and tables are written in pieces, as jobs."""

    @pytest.mark.slow
    def test_a_range(self, tmp_path: Path) -> None:
        """One output a piece, in order; what is lost of it is all that runs."""
        ds = curate.range(2_500_000).filter(pc.field("id") > 9, reason="small")
        summary = ds.write_parquet(tmp_path / "out", backend="inline")
        assert (summary.state, summary.total, summary.books.dropped) == ("complete", 3, {"small": 10})
        found = curate.read_parquet(tmp_path / "out")
        assert found.to_arrow()["id"].to_pylist() == list(range(10, 2_500_000))
        before = files(tmp_path / "out")
        (tmp_path / "out" / "part-00001-of-00003.parquet").unlink()
        assert ds.write_parquet(tmp_path / "out", backend="inline").dispatched == 1
        assert files(tmp_path / "out") == before

    def test_tables(self, tmp_path: Path) -> None:
        """Other rows are another job, however they are cut in memory."""
        rows = pa.table({"n": [1, 2, 3], "text": ["a", None, "c"]})
        curate.from_arrow([rows, rows.slice(1)]).write_json(tmp_path / "out", backend="inline")
        assert curate.read_json(tmp_path / "out").take_all() == [*rows.to_pylist(), *rows.slice(1).to_pylist()]
        again = pa.concat_tables([rows.slice(0, 1), rows.slice(1)])
        alike = curate.from_arrow([again, rows.slice(1).combine_chunks()])
        assert alike.write_json(tmp_path / "out", backend="inline").dispatched == 0
        with pytest.raises(ConfigError, match="another identity"):
            curate.from_arrow(rows).write_json(tmp_path / "out", backend="inline")

    def test_a_union(self, folder: Path, tmp_path: Path) -> None:
        """Of parts that are read and processed alike: of files, and of rows in memory."""
        more = tmp_path / "more"
        more.mkdir()
        pq.write_table(curate.read_parquet(folder).to_arrow().slice(0, 3), more / "more.parquet")
        both = curate.read_parquet(folder).union(curate.read_parquet(more)).map(lambda row: row)
        assert both.write_parquet(tmp_path / "out", backend="inline").state == "complete"
        assert curate.read_parquet(tmp_path / "out").count() == both.count()
        numbers = curate.range(3).union(curate.range(2))
        numbers.write_parquet(tmp_path / "numbers", backend="inline")
        assert curate.read_parquet(tmp_path / "numbers").take_all() == numbers.take_all()


class TestLimit:
    """The first rows are written, by shards that are known from then on."""

    @pytest.mark.parametrize("rows", [0, 1, 5, 10, 13, 10_000])
    def test_brute_force(self, folder: Path, tmp_path: Path, rows: int) -> None:
        """They are those that a list has first, with operators before and after that drop some."""
        ds = curate.read_parquet(folder).filter(pc.field("n") != 3, reason="three").limit(rows)
        ds = ds.filter(lambda row: row["n"] % 2 == 0, reason="odd")
        summary = ds.write_parquet(tmp_path / "out", backend="inline")
        assert (summary.state, summary.books.balanced()) == ("complete", True)
        found = curate.read_parquet(tmp_path / "out")
        assert found.take_all() == ds.take_all()
        assert ds.write_parquet(tmp_path / "out", backend="inline").dispatched == 0

    def test_what_comes_later_changes_nothing(self, folder: Path, tmp_path: Path) -> None:
        """Files that are there by now are none of its own; what is lost is made again, to the same bytes."""
        ds = curate.read_parquet(folder).limit(8)
        ds.write_json(tmp_path / "out", backend="inline")
        before = files(tmp_path / "out")
        rows = pq.read_table(tmp_path / "0.parquet")
        pq.write_table(rows, tmp_path / "00.parquet")
        next(iter(sorted((tmp_path / "out").glob("*.zst")))).unlink()
        again = curate.read_parquet(folder).limit(8).write_json(tmp_path / "out", backend="inline")
        assert (again.state, again.dispatched) == ("complete", 1)
        assert files(tmp_path / "out") == before

    def test_no_more_than_needed_is_planned(self, tmp_path: Path) -> None:
        """A thousand rows of a billion: one shard."""
        summary = curate.range(10**9).limit(1000).write_parquet(tmp_path / "out", backend="inline")
        assert (summary.total, summary.books.rows_out) == (1, 1000)

    def test_another_limit_is_another_job(self, folder: Path, tmp_path: Path) -> None:
        """It is part of the identity."""
        curate.read_parquet(folder).limit(8).write_json(tmp_path / "out", backend="inline")
        with pytest.raises(ConfigError, match="another identity"):
            curate.read_parquet(folder).limit(9).write_json(tmp_path / "out", backend="inline")
