"""The schema of what functions give is that of its first rows, wherever they are; consumed and written alike."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import curate
from curate.dataset.dataset import Dataset
from curate.driver import stage_run
from curate.errors import CurateError, WriteFailed
from curate.job.job import Job
from curate.resume.schemas import PROBES
from tests.job.inline import run_job
from tests.support.workbench import complete

SHARDS = PROBES + 2
FIRST, LATE, LAST, NONE = 0, PROBES, SHARDS - 1, -1
"""The shard that gives rows: the first one, the first one beyond those of which a little is looked at, the last one, or
none."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in")
    for number in range(SHARDS):
        pq.write_table(pa.table({"id": pa.array([number, number], pa.int32())}), folder / f"{number:02d}.parquet")
    return folder


def outputs(folder: Path) -> dict[str, pa.Table]:
    """Returns the tables of the outputs, by name."""
    return {path.name: pq.ParquetFile(path).read() for path in sorted(folder.glob("*.parquet"))}


class Add:
    def __call__(self, batch: pa.Table) -> pa.Table:
        return batch.append_column("x", batch["id"])


Make = Callable[[Dataset, int], Dataset]
CHAINS: dict[str, Make] = {
    "map": lambda ds, k: ds.filter(lambda row: row["id"] == k).map(lambda row: {"x": row["id"], "y": row["id"] / 2}),
    "flat_map": lambda ds, k: ds.flat_map(lambda row: [{"x": row["id"], "y": {"a": "b"}}] if row["id"] == k else []),
    "map_batches": lambda ds, k: ds.filter(pc.field("id") == k).map_batches(
        lambda batch: batch.append_column("x", batch["id"])
    ),
    "map_batches, rows only": lambda ds, k: ds.filter(pc.field("id") == k).map_batches(
        lambda batch: {"x": [len(batch)]} if len(batch) else iter([])
    ),
    "map_batches, numpy": lambda ds, k: ds.map_batches(
        lambda batch: {"x": [n for n in batch["id"].tolist() if n == k]}, batch_format="numpy"
    ),
    "a class": lambda ds, k: ds.filter(pc.field("id") == k).map_batches(Add, compute=curate.ActorPool(size=1)),
    "map_groups": lambda ds, k: (
        ds.filter(pc.field("id") == k).groupby("id").map_groups(lambda rows: {"x": [len(rows)], "y": ["a"]})
    ),
    "broadcast join": lambda ds, k: ds.join(
        curate.from_arrow(pa.table({"id": [k], "x": [1.5]})), on="id", broadcast=True
    ),
    "join": lambda ds, k: ds.join(curate.from_arrow(pa.table({"id": [k], "x": [1.5]})), on="id"),
    "filter": lambda ds, k: ds.with_column("x", pc.field("id") * 2).filter(lambda row: row["id"] == k),
    "map after map": lambda ds, k: ds.map(lambda row: {"x": row["id"]}).filter(lambda row: row["x"] == k),
    "declared": lambda ds, k: ds.flat_map(
        lambda row: [{"x": row["id"]}] if row["id"] == k else [], output_schema=pa.schema([("x", pa.int16())])
    ),
}


MARKS = ([], [pytest.mark.slow, pytest.mark.nightly], [pytest.mark.slow], [pytest.mark.slow, pytest.mark.nightly])
"""Each chain is tried with two of the places but for the night, and each place with every other chain."""


@pytest.mark.slow
@pytest.mark.ci(3)
@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("chain", "where"),
    [
        pytest.param(chain, where, marks=MARKS[(at - number) % 4])
        for number, chain in enumerate(CHAINS)
        for at, where in enumerate([FIRST, LATE, LAST, NONE])
    ],
)
def test_consumed_is_written_whichever_shard_has_rows(chain: str, where: int, inputs: Path, tmp_path: Path) -> None:
    """In every sink: types and rows are those that are consumed; a rerun has nothing to do."""

    def made() -> Dataset:
        return CHAINS[chain](curate.read_parquet(inputs), where)

    consumed = made().to_arrow()
    assert bool(consumed.num_rows) == (where != NONE)
    assert made().schema().equals(consumed.schema)
    for block in made().iter_batches(batch_size=None):
        assert block.schema.equals(consumed.schema)

    complete(made().write_parquet(tmp_path / "out", backend="inline"))
    found = outputs(tmp_path / "out")
    assert {table.schema.remove_metadata() for table in found.values()} <= {consumed.schema}
    assert pa.concat_tables([consumed.slice(0, 0), *found.values()]).to_pylist() == consumed.to_pylist()
    assert made().write_parquet(tmp_path / "out", backend="inline").dispatched == 0

    assert made().checkpoint(tmp_path / "kept").to_arrow().equals(consumed)
    if not len(consumed.schema):
        return
    assert made().sort("x").to_arrow().equals(consumed)
    assert made().dedup_exact("x").count() == bool(consumed.num_rows)
    assert made().distinct("x").to_arrow().schema.equals(consumed.schema)
    complete(made().sort("x").write_parquet(tmp_path / "sorted", backend="inline"))
    assert all(table.schema.equals(consumed.schema) for table in outputs(tmp_path / "sorted").values())
    groups = made().groupby("x").count().to_arrow()
    assert groups.schema.equals(pa.schema([consumed.schema.field("x"), ("count", pa.int64())]))
    assert sum(groups["count"].to_pylist()) == consumed.num_rows
    complete(made().groupby("x").count().write_parquet(tmp_path / "groups", backend="inline"))
    assert all(table.schema.equals(groups.schema) for table in outputs(tmp_path / "groups").values())


# Types that change

LATER: dict[str, tuple[Any, Any]] = {
    "int, float": (1, 1.5),
    "float, int": (1.5, 1),
    "null, int": (None, 1),
    "int, null": (1, None),
    "decimal, wider": ("D1.25", "D1000.25"),
    "decimal, narrower": ("D1000.25", "D1.25"),
    "text, int": ("a", 1),
    "text, bytes": ("a", b"a"),
    "list of nulls, list": ([None], ["a"]),
    "list, list of nulls": (["a"], [None]),
    "struct of nulls, struct": ({"a": None}, {"a": 1}),
    "struct, another": ({"a": 1}, {"b": 1}),
    "null, null": (None, None),
}


def value_of(told: Any) -> Any:
    """Returns a value; of a decimal, no identity could be made."""
    return decimal.Decimal(told[1:]) if isinstance(told, str) and told.startswith("D") else told


def outcome(run: Callable[[], Any]) -> Any:
    """Returns what is given, or how it is refused."""
    try:
        return run()
    except CurateError as error:
        return f"{type(error).__name__}: {error}"


def written(ds: Dataset, folder: Path) -> Any:
    try:
        ds.write_parquet(folder, backend="inline")
    except WriteFailed as error:
        [group] = error.summary.failures
        return group.error
    found = outputs(folder)
    assert len({table.schema.remove_metadata() for table in found.values()}) == 1
    return pa.concat_tables(found.values()).replace_schema_metadata(None)


@pytest.mark.quick(7)
@pytest.mark.usefixtures("no_backoff")
@pytest.mark.parametrize("kind", LATER)
@pytest.mark.parametrize("by", ["shard", "batch"])
def test_a_type_that_changes_is_the_same_or_refused_in_the_same_words(kind: str, by: str, tmp_path: Path) -> None:
    """Of later shards, and of later batches: consumed, written, sorted and kept. The error names column, both types,
    and what to do."""
    values = LATER[kind]
    source = (
        curate.from_arrow([pa.table({"id": [0]}), pa.table({"id": [1]})])
        if by == "shard"
        else curate.from_arrow(pa.table({"id": [0, 1]}))
    )

    def made() -> Dataset:
        return source.map_batches(
            lambda batch: {"n": batch["id"], "x": [value_of(values[n]) for n in batch["id"].to_pylist()]}, batch_size=1
        )

    consumed = outcome(lambda: made().to_arrow())
    assert outcome(lambda: pa.concat_tables(made().iter_batches(batch_size=None))) == consumed
    assert outcome(lambda: written(made(), tmp_path / "out")) == consumed
    in_order = outcome(lambda: made().sort("n").to_arrow())
    if isinstance(consumed, pa.Table):
        assert in_order.equals(consumed)
        assert made().schema().equals(consumed.schema)
        assert consumed["x"].to_pylist() == list(map(value_of, values))
    elif "that is held" in consumed:
        # In the same words, but for who says them.
        assert consumed in in_order
        assert "'x' is " in consumed
        assert "expected" in consumed
        assert "declare" in consumed


def test_a_refusal_names_what_was_read() -> None:
    """Beside the words of the error, which are the same for every shard."""
    ds = curate.from_arrow([pa.table({"id": [0]}), pa.table({"id": [1]})])
    with pytest.raises(CurateError) as caught:
        ds.map(lambda row: {"x": row["id"] or "a"}).take_all()
    assert any("from_arrow table 1" in note for note in caught.value.__notes__)


# Unions


def two(ds: Dataset) -> Dataset:
    return ds.map(lambda row: {"x": row["id"] / 2, "z": "a"})


UNIONS: dict[str, Callable[[], Dataset]] = {
    "another type": lambda: curate.range(2).map(lambda row: {"x": row["id"], "z": "b"}).union(two(curate.range(3))),
    "other columns": lambda: curate.range(2).map(lambda row: {"y": row["id"]}).union(two(curate.range(3))),
    "of what is known": lambda: curate.range(2).rename_columns({"id": "x"}).union(two(curate.range(3))),
    "without rows": lambda: curate.range(2).flat_map(lambda _: []).union(two(curate.range(3))),
    "of three": lambda: curate.range(1).union(two(curate.range(2)), curate.range(2).map(lambda row: {"n": row["id"]})),
    "alike": lambda: two(curate.range(2)).union(two(curate.range(3))),
    "then a function": lambda: (
        curate.range(2)
        .map(lambda row: {"y": row["id"]})
        .union(two(curate.range(3)))
        .map(lambda row: {"sum": (row["x"] or 0.0) + (row["y"] or 0)})
    ),
    "of unions": lambda: two(curate.range(2)).union(
        curate.range(1).map(lambda row: {"q": row["id"]}).union(curate.range(2).map(lambda row: {"x": row["id"]}))
    ),
    "in a zip": lambda: curate.range(5).zip(
        curate.range(2).map(lambda row: {"x": row["id"]}).union(two(curate.range(3)))
    ),
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("union", UNIONS)
def test_parts_of_a_union_come_to_one_schema(union: str, tmp_path: Path) -> None:
    """Consumed as written, in every block, and before what follows sees them."""
    made = UNIONS[union]
    consumed = made().to_arrow()
    assert all(block.schema.equals(consumed.schema) for block in made().iter_batches(batch_size=None))
    assert made().schema().equals(consumed.schema)
    assert written(made(), tmp_path / "out").to_pylist() == consumed.to_pylist()
    assert written(made(), tmp_path / "out").schema.equals(consumed.schema)
    assert made().take(1) == consumed.slice(0, 1).to_pylist()


# Killed


class _KilledError(BaseException):
    """The driver dies."""


@pytest.mark.quick(1)
@pytest.mark.parametrize("where", [LATE, NONE])
def test_killed_once_the_schema_is_there(
    where: int, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first output: it goes on to the same bytes, and asks no shard again."""

    def made(asked: list[int]) -> Dataset:
        # What it asks is no part of what it is: the list is the same to whoever hashes it.
        del asked
        return CHAINS["map"](curate.read_parquet(inputs), where)

    complete(made([]).write_parquet(tmp_path / "whole", backend="inline"))
    with monkeypatch.context() as patched:

        def die(*_: Any) -> None:
            raise _KilledError

        patched.setattr(stage_run.Dispatcher, "run", die)
        with pytest.raises(_KilledError):
            made([]).write_parquet(tmp_path / "killed", backend="inline")
    assert (tmp_path / "killed/_curate/schema/output.arrow").exists()
    assert not list((tmp_path / "killed").glob("*.parquet"))
    complete(made([]).write_parquet(tmp_path / "killed", backend="inline"))
    for path in sorted((tmp_path / "whole").glob("*.parquet")):
        assert (tmp_path / "killed" / path.name).read_bytes() == path.read_bytes()


# Jobs


class Late(Job):
    """Gives rows, and rows of an extra output, of one shard each."""

    version = "1"
    sides = ("odd",)

    where: int = curate.param(0)
    odd: int = curate.param(0)

    def process(self, batch: pa.Table) -> Any:
        number = batch["id"][0].as_py()
        if number == self.where and number == self.odd:
            return {"main": batch, "odd": batch}
        if number == self.odd:
            return {"main": batch.slice(0, 0), "odd": batch.append_column("why", pa.array(["odd"] * len(batch)))}
        return batch if number == self.where else None


@pytest.mark.parametrize(("where", "odd"), [(LATE, LATE), (FIRST, LAST), (LAST, FIRST), (LATE, NONE), (NONE, NONE)])
def test_a_job_whose_first_shards_give_nothing(where: int, odd: int, inputs: Path, tmp_path: Path) -> None:
    """Its outputs, extra ones too, have the columns of the first rows; each shard counts once."""
    ended = run_job(Late(where=where, odd=odd), inputs, tmp_path / "out")
    complete(ended)
    assert (ended.books.rows_in, ended.done) == (2 * SHARDS, SHARDS)
    main, side = outputs(tmp_path / "out"), outputs(tmp_path / "out/_side/odd")
    assert len(main) == len(side) == SHARDS
    assert {table.schema.remove_metadata() for table in main.values()} == {
        pa.schema([] if where == odd == NONE else [("id", pa.int32())])
    }
    columns = [] if odd == NONE else [("id", pa.int32())] + [("why", pa.string())] * (odd != where)
    assert {table.schema.remove_metadata() for table in side.values()} == {pa.schema(columns)}
    assert run_job(Late(where=where, odd=odd), inputs, tmp_path / "out").dispatched == 0
