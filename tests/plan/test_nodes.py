"""What is read less of, what is refused when the plan is made, and what errors say."""

from __future__ import annotations

import gzip
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

import curate
from curate.backends.inline import InlineBackend
from curate.dataset.dataset import Dataset
from curate.dataset.execute import blocks
from curate.errors import ConfigError, SchemaMismatch
from curate.operators.columns import WithColumn
from curate.plan.explain import explain_logical
from curate.plan.nodes import Checkpoint, Limit, Scan, known_row_count, name_of, schema_of, transform, walk
from curate.plan.physical import End, StagePlan, lower
from curate.runtime.protocol import Program
from curate.sources import slice_rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files of four row groups of ten rows: n counts on through all of them."""
    for number in range(3):
        start = number * 40
        table = pa.table({"n": range(start, start + 40), "s": [f"{k}" for k in range(40)], "u": [0] * 40})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=10)
    return tmp_path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int, list[str]]]:
    """What is read: file, first row group, row group behind the last (0, 0: all), columns."""
    found: list[tuple[str, int, int, list[str]]] = []
    whole = slice_rows.read

    def read(file: Any, schema: Any, *rest: Any) -> Any:
        found.append((file.uri.rpartition("/")[2], file.start, file.stop or 0, schema.names))
        return whole(file, schema, *rest)

    monkeypatch.setattr(slice_rows, "read", read)
    return found


class TestPushed:
    def test_only_columns_that_are_needed_are_read(self, folder: Path, reads: list[Any]) -> None:
        """A column that is neither selected nor looked at stays in the file."""
        found = curate.read_parquet(folder / "0.parquet").filter(pc.field("n") < 2).rename_columns({"s": "text"})
        assert found.select_columns("text").take_all() == [{"text": "0"}, {"text": "1"}]
        assert reads[0][3] == ["n", "s"]

    def test_row_groups_that_cannot_match_are_not_read(self, folder: Path, reads: list[Any]) -> None:
        """By their statistics: of twelve row groups, those two that hold the rows."""
        found = curate.read_parquet(folder, filter=(pc.field("n") >= 15) & (pc.field("n") < 25))
        assert [row["n"] for row in found.take_all()] == [*range(15, 25)]
        assert [one[:3] for one in reads] == [("0.parquet", 1, 3)]

    def test_a_filter_on_what_was_computed_is_not_pushed(self, folder: Path) -> None:
        """n is another column by then."""
        found = curate.read_parquet(folder).with_column("n", pc.field("n") * -1).filter(pc.field("n") < -118)
        assert [row["n"] for row in found.take_all()] == [-119]

    def test_a_column_that_is_replaced_keeps_its_place(self, folder: Path) -> None:
        """Although its values are not looked at."""
        found = curate.read_parquet(folder).with_column("n", pc.field("u") + 1).drop_columns("s")
        assert found.take(1) == [{"n": 1, "u": 0}]
        assert list(found.take(1)[0]) == ["n", "u"]

    def test_a_limit_stops_reading(self, folder: Path, reads: list[Any]) -> None:
        """No piece is begun beyond those that the rows come from, and the one beside it that a free slot takes."""
        assert len(curate.read_parquet(folder).take(5)) == 5
        assert {one[0] for one in reads} <= {"0.parquet", "1.parquet"}

    def test_a_function_runs_only_for_the_rows_of_a_limit(self, folder: Path) -> None:
        """Five rows are taken: five are mapped."""
        seen: list[int] = []

        def see(row: dict[str, Any]) -> dict[str, Any]:
            seen.append(row["n"])
            return row

        assert len(curate.read_parquet(folder / "0.parquet").map(see).take(5)) == 5
        assert seen == [0, 1, 2, 3, 4]

    def test_count_is_in_the_footers(self, folder: Path, reads: list[Any]) -> None:
        """Nothing is read for it where every row is kept; with a filter, one column is."""
        found = curate.read_parquet(folder)
        assert found.with_column("x", pc.field("n") + 1).drop_columns("s").count() == 120
        assert found.limit(50).count() == 50
        assert not reads
        assert found.filter(pc.field("n") > 100).count() == 19
        assert {tuple(one[3]) for one in reads} == {("n",)}

    def test_explain_says_so(self, folder: Path) -> None:
        """What is fused and what is pushed, with files and bytes."""
        found = curate.read_parquet(folder, columns=["n"], filter=pc.field("n") > 3).map(same).limit(2)
        text = found.explain()
        assert "reads 1 of 3 columns: n" in text
        assert "leaves out row groups by: (n > 3)" in text
        assert "fused: filter((n > 3)) -> select_columns('n') -> map(same)" in text
        assert "3 files" in text

    def test_explain_tells_pools_and_tasks(self, folder: Path) -> None:
        """What runs where, with how much of the cluster; what is in a pool of its own is fused with nothing."""
        found = (
            curate.read_parquet(folder)
            .map_batches(same, num_cpus=2)
            .map_batches(same, compute=curate.ActorPool(max_size=4), num_cpus=1, num_gpus=1)
            .map_batches(same, compute=curate.ActorPool(size=2), memory=1 << 30, resources={"tpu": 2})
            .map_batches(same, compute=curate.ActorPool())
            .map(same)
            .map(same)
        )
        lines = [line.strip() for line in found.explain().partition("physical\n")[2].splitlines()]
        assert lines[0] == "tasks (2 CPUs each)"
        assert lines[1].endswith(", 3 shards]")
        assert lines[2:] == [
            "fused: map_batches(same)",
            "pool of 1 to 4 actors (1 CPU, 1 GPU each): map_batches(same)",
            "pool of 2 actors (1 CPU, 1.00 GiB, 2 tpu each): map_batches(same)",
            "pool of 1 or more actors (1 CPU each): map_batches(same)",
            "fused: map(same) -> map(same)",
        ]

    def test_explain_tells_what_a_filter_leaves(self, tmp_path: Path) -> None:
        """Row groups, as the footers of the first eight files say; the others are not looked at."""
        for number in range(10):
            table = pa.table({"n": range(number * 100, number * 100 + 100)})
            pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=25)
        found = curate.read_parquet(tmp_path, filter=pc.field("n") >= 150)
        assert "(n >= 150)  [26 of 32 row groups left in the first 8 files]" in found.explain()
        (tmp_path / "9.parquet").unlink()
        found.explain()

    def test_explain_estimates_shards(self, tmp_path: Path) -> None:
        """From the listing: a file that can be split is as many as its bytes say, a compressed one is one."""
        (tmp_path / "a.txt").write_text("text\n" * 2000)
        source = replace(curate.read_text(tmp_path)._plan.source, shard_bytes=3000)  # type: ignore[union-attr]
        assert source.describe() == "1 file, 9.77 KiB, 4 shards"
        (tmp_path / "a.txt").unlink()
        (tmp_path / "a.txt.gz").write_bytes(gzip.compress(os.urandom(5000).hex().encode(), mtime=0))
        source = replace(curate.read_text(tmp_path)._plan.source, shard_bytes=3000)  # type: ignore[union-attr]
        assert source.describe().endswith("KiB compressed, 1 shard")

    def test_neighbours_are_one_task(self) -> None:
        """A union of chains, and an operator behind it, are one set of tasks."""
        found = curate.range(3).union(curate.range(2)).map(same)
        physical = lower(found._plan, End.BLOCKS)
        assert isinstance(physical, StagePlan)
        assert [len(one.operators) for one in physical.scans] == [1, 1]


class TestRefused:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda ds: ds.select_columns(["idd"]), "no column 'idd'; did you mean 'id'"),
            (lambda ds: ds.drop_columns("x"), "no column 'x'; there are 'id'"),
            (lambda ds: ds.rename_columns({"ids": "x"}), "did you mean 'id'"),
            (lambda ds: ds.filter(pc.field("idd") > 1), "no column 'idd'; did you mean 'id'"),
            (lambda ds: ds.filter(pc.field("id")), "expected a boolean expression"),
            (lambda ds: ds.with_column("x", pc.utf8_upper(pc.field("id"))), "the rows have id: int64"),
            (lambda ds: ds.with_column("x", 3), "takes a pyarrow.compute expression"),
            (lambda ds: ds.map_batches(dict, batch_size=2), "define __call__"),
            (lambda ds: ds.map_batches(len, batch_size=0), "at least 1"),
            (lambda ds: ds.map_batches(len, batch_format="nump"), "did you mean 'numpy'"),
            (lambda ds: ds.limit(-1), "at least 0"),
            (lambda ds: ds.select_columns(["id", "id"]), "named 2 times"),
            (lambda ds: ds.select_columns({"id"}), r"a list of names, found \{'id'\}: a set has another order"),
            (
                lambda ds: ds.drop_columns(None),
                "drop_columns takes the name of a column, or a list of names, found None",
            ),
            (lambda ds: ds.select_columns([curate.col("id")]), "takes the name of a column, or a list of names, found"),
            (lambda ds: ds.groupby({"id"}), "a set has another order"),
            (lambda ds: ds.groupby([]), r"groupby takes the name of a column, or a list of names, found \[\]$"),
            (lambda ds: ds.sort("id", "text"), "sort: descending is 'text', expected True or False"),
            (lambda ds: ds.sort([("id", "descending")]), "sort takes the name of a column, or a list of names, found"),
            (lambda ds: ds.rename_columns({"id": 5}), "5 cannot be the name of a column; expected text"),
            (lambda ds: ds.rename_columns({"a"}), "expected the new names of all 1 columns"),
            (lambda ds: ds.rename_columns(5), "expected the new names of all 1 columns"),
            (lambda ds: ds.with_column(5, curate.col("id")), "5 cannot be the name of a column; expected text"),
            (
                lambda ds: ds.rename_columns({"id": "\ud800"}),
                r"'\\ud800' cannot be the name of a column",
            ),
            (lambda ds: ds.with_column("\ud800", curate.lit(1)), r"'\\ud800' cannot be the name of a column"),
            (lambda ds: ds.sort("\ud800"), r"there is no column '\\ud800'"),
            (lambda ds: ds.groupby("\ud800"), r"there is no column '\\ud800'"),
            (lambda _: curate.from_items([{"\ud800": 1}]), r"the key '\\ud800', which is not text that UTF-8 has"),
            (lambda ds: ds.with_column("x", "a"), r"write a text with curate.lit\('a'\)"),
            (lambda ds: ds.with_column("x", 3), r"write curate.lit\(3\)"),
            (lambda ds: ds.with_columns({"x": len}), "use map_batches for a function"),
            (
                lambda ds: ds.filter("id > 5"),
                r"filter: text is not an expression: 'id > 5'; name a column with curate.col",
            ),
            (lambda ds: ds.filter(polars.col("id") > 1), "write it with curate.col and functions of pyarrow.compute"),
            (lambda _: curate.from_items([]).sort("a"), "there is no column 'a', nor any other"),
        ],
    )
    def test_when_the_plan_is_made(self, make: Any, message: str) -> None:
        """Before anything runs, with what to do."""
        with pytest.raises(ConfigError, match=message):
            make(curate.range(3))

    def test_two_columns_of_one_name(self) -> None:
        """A row as a dictionary could not hold both."""
        with pytest.raises(ConfigError, match="2 columns called 'a'"):
            curate.from_arrow(pa.table([[1], [2]], names=["a", "a"]))

    def test_files_of_another_format(self, tmp_path: Path) -> None:
        """The extension says what a file is."""
        (tmp_path / "a.jsonl").write_text("{}\n")
        with pytest.raises(ConfigError, match=r"read_parquet was given .*a.jsonl"):
            curate.read_parquet(tmp_path)


class TestErrors:
    def failing(self, found: Dataset, kind: type[Exception]) -> str:
        with pytest.raises(kind) as caught:
            found.take_all()
        return "\n".join([str(caught.value), *caught.value.__notes__])

    def test_an_exception_names_operator_rows_and_input(self, folder: Path) -> None:
        """It is the exception that was raised, with notes."""

        text = self.failing(curate.read_parquet(folder).map_batches(broken_at_60, batch_size=20), ZeroDivisionError)
        assert "in map_batches(broken_at_60), in rows 20 to 39 of its input" in text
        assert "1.parquet was read" in text

    def test_another_schema(self) -> None:
        """Both schemas are shown."""

        def changing(batch: pa.Table) -> pa.Table:
            return pa.table({"x": [1]}) if batch["id"][0].as_py() else pa.table({"y": ["a"]})

        text = self.failing(curate.range(4).map_batches(changing, batch_size=2), SchemaMismatch)
        assert "map_batches(changing) returned a batch with (x: int64) after batches with (y: string)" in text

    def test_another_length(self) -> None:
        """The lengths are told."""
        found = curate.range(4).map_batches(lambda _: {"a": [1], "b": [1, 2]})
        assert "'a' has 1, 'b' has 2 rows" in self.failing(found, SchemaMismatch)

    @pytest.mark.parametrize("value", [5, "text", b"text"])
    def test_a_column_that_is_no_list(self, value: object) -> None:
        """Not even a text, which Python would take for a list of its letters."""
        found = curate.range(4).map_batches(lambda _: {"x": value})
        assert "column 'x' that is not a list of values" in self.failing(found, SchemaMismatch)

    def test_a_file_of_another_type(self, folder: Path) -> None:
        """Pruning row groups does not hide what reading them says."""
        pq.write_table(pa.table({"n": ["1"], "s": ["x"], "u": [0]}), folder / "3.parquet")
        found = curate.read_parquet(folder, filter=pc.field("n") > 3)
        assert "column 'n' is string, expected int64" in self.failing(found, SchemaMismatch)

    @pytest.mark.parametrize("value", [5, "text", [1], None])
    def test_another_type(self, value: object) -> None:
        """What was found, and what is expected."""
        found = curate.range(4).map_batches(lambda _: value)
        what = f"returned {type(value).__name__}{' (is a `return` missing?)' if value is None else ''}, expected"
        assert f"{what} a pyarrow.Table" in self.failing(found, TypeError)
        text = self.failing(curate.range(4).map(lambda _: value), TypeError)
        assert f"{what} a dictionary" in text
        assert ("flat_map takes several rows for each" in text) is isinstance(value, list)
        if not isinstance(value, list):
            assert f"{what} a list" in self.failing(curate.range(4).flat_map(lambda _: value), TypeError)

    def test_a_row_with_other_keys(self) -> None:
        """A column that only some rows have would come and go with the batch."""
        found = curate.range(2).map(lambda row: {"a": 1} if row["id"] else {"b": 1})
        assert "put all keys in every row" in self.failing(found, SchemaMismatch)

    def test_an_unknown_column_behind_a_function(self) -> None:
        """Said when the columns are known."""
        found = curate.range(2).map(lambda _: {"text": "a"}).select_columns(["txt"])
        assert "did you mean 'text'" in self.failing(found, ConfigError)


def same(row: dict[str, Any]) -> dict[str, Any]:
    """Changes nothing."""
    return row


def broken_at_60(batch: pa.Table) -> pa.Table:
    """Fails for the batch that holds 60."""
    1 // (0 if 60 in batch["n"].to_pylist() else 1)
    return batch


class TestConsuming:
    def test_batches(self) -> None:
        """Of the size that was asked for across blocks, the last one smaller or left out."""
        found = curate.range(10).union(curate.range(5))
        sizes = [len(batch) for batch in found.iter_batches(batch_size=4)]
        assert sizes == [4, 4, 4, 3]
        assert [len(batch) for batch in found.iter_batches(batch_size=4, drop_last=True)] == [4, 4, 4]
        (batch,) = found.iter_batches(batch_size=100, batch_format="numpy")
        assert batch["id"].tolist() == [*range(10), *range(5)]

    def test_blocks_are_of_a_size(self) -> None:
        """The same rows each time."""
        found = curate.range(100_000).using(block_bytes=200_000)
        sizes = [len(block) for block in blocks(lower(found._plan, End.BLOCKS), found._how)]
        assert sizes == [32_768, 32_768, 32_768, 1_696]

    def test_large_rows_are_blocks_of_their_own(self) -> None:
        """A batch of many is cut; a row that is larger than a block by itself is allowed, and said."""
        rows = pa.table({"text": ["x" * 1000] * 20 + ["y" * 50_000]})
        with capture_logs() as logs:
            blocks = list(curate.from_arrow(rows).using(block_bytes=4_000).iter_batches(batch_size=None))
        assert sum(map(len, blocks)) == 21
        assert max(map(len, blocks)) <= 4
        assert [one["event"] for one in logs] == ["a row is larger than block_bytes, and is a block of its own"]
        assert [one["row_bytes"] for one in logs] == ["48.8 KiB"]

    def test_rows_of_more_than_half_a_block_are_none_that_is_larger(self) -> None:
        """Nothing is said where a slice has one row only because two are too many."""
        with capture_logs() as logs:
            rows = curate.from_arrow(pa.table({"text": ["x" * 3_000] * 5}))
            blocks = list(rows.using(block_bytes=4_000).iter_batches(batch_size=None))
        assert (sum(map(len, blocks)), logs) == (5, [])

    def test_nothing(self) -> None:
        """An empty source, and a filter that keeps nothing, have their schema."""
        assert curate.from_items([]).to_arrow().num_rows == 0
        assert curate.range(0).take_all() == []
        assert curate.range(3).filter(pc.field("id") > 5).to_arrow().schema.names == ["id"]
        assert curate.range(0).map(same).count() == 0
        with pytest.raises(ConfigError, match="no rows"):
            curate.range(0).take_batch()

    def test_the_first_rows_come_before_the_last_are_read(self, folder: Path, reads: list[Any]) -> None:
        """A consumer that has a row has not waited for the last file."""
        rows = curate.read_parquet(folder).iter_rows()
        assert next(rows)["n"] == 0
        assert "2.parquet" not in {one[0] for one in reads}
        rows.close()  # type: ignore[attr-defined]

    def test_types_are_filled_in_and_widened(self) -> None:
        """A column that is null in one file and of numbers in another is of numbers."""
        found = curate.range(4).map_batches(
            lambda b: {"x": [None] * len(b) if b["id"][0].as_py() == 0 else [1.5] * len(b)}, batch_size=2
        )
        assert found.to_arrow()["x"].to_pylist() == [None, None, 1.5, 1.5]


def test_workers_never_take_one_program_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time that rows are consumed, the program has a key of its own: by it, workers that live on keep programs."""
    keys: list[str] = []
    load = InlineBackend.load

    def watched(self: InlineBackend, program: Program, *rest: Any, **options: Any) -> None:
        keys.append(program.key)
        load(self, program, *rest, **options)

    monkeypatch.setattr(InlineBackend, "load", watched)
    for least in (0, 1, 2):
        assert curate.range(3).filter(pc.field("id") >= least).take_all()[0] == {"id": least}
    assert len(set(keys)) == len(keys) == 3


class TestNotANumber:
    """Statistics leave NaN out: a filter that may keep it looks at all row groups."""

    @pytest.mark.parametrize(
        ("keep", "groups"),
        [
            (lambda: pc.is_nan(pc.field("x")), 4),
            (lambda: pc.field("x") != 3, 4),
            (lambda: ~(pc.field("x") <= 5), 4),
            (lambda: ~pc.field("x").isin([1.0, 3.0]), 4),
            (lambda: (pc.field("n") >= 0) & ~(pc.field("x") <= 5), 4),
            (lambda: pc.field("x") > 3, 1),
            (lambda: (pc.field("n") < 4) & (pc.field("x") >= 3), 1),
            (lambda: pc.field("n") >= 6, 1),
        ],
    )
    def test_as_of_rows_in_memory(self, tmp_path: Path, reads: list[Any], keep: Any, groups: int) -> None:
        """The same rows, of as few row groups as that allows."""
        nan = float("nan")
        table = pa.table({"x": [1.0, 1.0, 3.0, nan, 3.0, 3.0, nan, 9.0], "n": range(8)})
        pq.write_table(table, tmp_path / "0.parquet", row_group_size=2)
        of_file = curate.read_parquet(tmp_path).filter(keep())
        expected = curate.from_arrow(table).filter(keep()).to_arrow()["n"].to_pylist()
        assert of_file.to_arrow()["n"].to_pylist() == expected
        assert sum(stop - start if stop else 4 for _, start, stop, _ in reads) == groups
        assert of_file.sort("n").to_arrow()["n"].to_pylist() == expected


def test_what_a_broadcast_join_adds_is_dropped_and_renamed(folder: Path) -> None:
    """Though it was not read from the file."""
    other = curate.from_arrow(pa.table({"n": [1, 2], "m": [10, 20]}))
    joined = curate.read_parquet(folder).join(other, on="n", broadcast=True)
    for ds in (
        joined.drop_columns("m"),
        joined.rename_columns({"m": "q"}),
        joined.rename_columns({"m": "q"}).filter(pc.field("q") > 15),
        joined.drop_columns([name for name in joined.schema().names if name not in ("n", "m")]).rename_columns(
            {"n": "m", "m": "n"}
        ),
    ):
        assert ds.to_arrow().schema.names == ds.schema().names
        assert len(ds.take_all()) == ds.count()
    assert [row["q"] for row in joined.rename_columns({"m": "q"}).take_all()] == [10, 20]


class TestNodes:
    """One way over all nodes of a plan."""

    def plan(self) -> Any:
        first = curate.range(9).sort("id").limit(4).checkpoint("memory://nodes/kept")
        return first.union(curate.range(3)).zip(curate.range(7)).dedup_exact("id").random_sample(1.0, seed=1)._plan

    def test_all_are_met_the_last_one_first(self) -> None:
        """Of what is read twice, marks after the rows; and not what is before a checkpoint, if that is asked for."""
        plan = self.plan()
        names = [name_of(node) for node in walk(plan)]
        assert names[:3] == ["random_sample(1.0, seed=1)", "dedup_exact('id')", "hold"]
        rows = ["hold", "zip", "union", "checkpoint('memory://nodes/kept')", "limit(4)", "sort(id)", "range(9)"]
        assert names[2:9] == rows
        assert names[9:11] == ["range(3)", "range(7)"]
        assert names[12:21] == names[2:11]
        before = {"limit(4)", "sort(id)", "range(9)"}
        assert [name for name in names if name not in before] == [
            name_of(node) for node in walk(plan, until=(Checkpoint,))
        ]

    def test_what_changes_nothing_makes_no_other_plan(self) -> None:
        plan = self.plan()
        assert transform(plan, lambda node: node) is plan
        assert transform(plan, lambda node: Scan(node.source) if isinstance(node, Scan) else node) == plan

    def test_the_first_ones_are_changed_first(self) -> None:
        """What a change is given is made of what was changed; what it is not to look into stays as it is."""
        plan = curate.range(9).limit(5).limit(4)._plan

        def one_less(node: Any) -> Any:
            return Limit(node.input, node.rows - 1) if isinstance(node, Limit) else node

        assert transform(plan, one_less) == curate.range(9).limit(4).limit(3)._plan
        kept = curate.range(9).limit(5).checkpoint("memory://nodes/kept").limit(4)._plan
        changed = curate.range(9).limit(5).checkpoint("memory://nodes/kept").limit(3)._plan
        assert transform(kept, one_less, until=(Checkpoint,)) == changed

    def test_a_way_over_thousands_of_nodes(self) -> None:
        """Nothing that looks at a plan goes deeper with it, as a loop makes them."""
        ds = curate.range(3)
        for _ in range(2_000):
            ds = ds.filter(pc.field("id") < 5).union(curate.range(1)).limit(9)
        plan = ds._plan
        assert len(list(walk(plan))) == 1 + 4 * 2_000
        assert transform(plan, lambda node: node) is plan
        assert ds.schema().names == ["id"]
        assert len(list(explain_logical(plan))) == len(list(walk(plan)))
        assert known_row_count(curate.range(3)._plan) == 3

    def test_a_step_is_asked_for_its_schema_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """And not again with each that follows: twice the steps are twice the questions."""
        asked: list[str] = []
        made = WithColumn.made

        def counted(self: WithColumn, found: pa.Schema) -> pa.Schema:
            asked.append(self.column)
            return made(self, found)

        monkeypatch.setattr(WithColumn, "made", counted)
        ds = curate.range(3)
        for number in range(20):
            ds = ds.with_column(f"n{number}", pc.field("id") + number)
        assert asked == [f"n{number}" for number in range(20)]
        assert ds.schema().names == ["id", *asked]

    def test_what_a_node_keeps_is_no_part_of_it(self) -> None:
        """Nodes that were asked for their schemas are equal to those that were not, and are sent without them."""
        asked, other = self.plan(), self.plan()
        schema_of(asked)
        assert asked == other
        assert repr(asked) == repr(other)
        assert not hasattr(pickle.loads(pickle.dumps(curate.range(3).limit(1)._plan)), "_schema")
        assert not hasattr(replace(curate.range(3).limit(1)._plan, rows=2), "_schema")
