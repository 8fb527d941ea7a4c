"""Any chain of operators, over any rows in any files, is what plain Python makes of the list of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import curate
from curate.dataset.dataset import Dataset
from tests.support.examples import examples
from tests.support.ray_head import own_ray

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("text", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("who", pa.struct([("name", pa.string()), ("age", pa.int64())])),
    ]
)
Row = dict[str, Any]

ROW = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-100, 100),
        "x": st.none() | st.floats(allow_nan=False, allow_infinity=False, width=32),
        "text": st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=6),
        "tags": st.none() | st.lists(st.none() | st.sampled_from(["a", "b", "ü"]), max_size=3),
        "who": st.none() | st.fixed_dictionaries({"name": st.none() | st.just("ann"), "age": st.none() | st.just(3)}),
    }
)
FILES = st.lists(st.lists(ROW, max_size=8), min_size=1, max_size=4).filter(lambda files: any(files))


@dataclass(frozen=True)
class Op:
    """An operator, and what it does to a list of rows."""

    name: str
    apply: Callable[[Dataset], Dataset]
    plain: Callable[[list[Row]], list[Row]]

    def __repr__(self) -> str:
        return self.name


class AddOne:
    """A class that a pool makes instances of."""

    def __init__(self, amount: int) -> None:
        self.amount = amount

    def __call__(self, batch: pa.Table) -> pa.Table:
        return batch.set_column(0, "n", pc.add(batch["n"], self.amount))


def add_one(batch: pa.Table) -> pa.Table:
    return batch.set_column(0, "n", pc.add(batch["n"], 1))


def two_tables(batch: pa.Table) -> Iterator[pa.Table]:
    yield batch.slice(0, 1)
    yield batch.slice(1)


def upper(row: Row) -> Row:
    return {**row, "text": None if row["text"] is None else row["text"].upper()}


def twice(row: Row) -> list[Row]:
    return [] if row["n"] is None else [row] * (abs(row["n"]) % 3)


def is_tagged(row: Row) -> bool:
    return bool(row["tags"])


def plus(rows: list[Row], amount: int) -> list[Row]:
    return [{**row, "n": None if row["n"] is None else row["n"] + amount} for row in rows]


def by_n(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["n"] is None, row["n"] or 0))


def first_of_n(rows: list[Row]) -> list[Row]:
    found: dict[Any, Row] = {}
    for row in rows:
        found.setdefault(row["n"], row)
    return list(found.values())


OPS = [
    Op("map", lambda ds: ds.map(upper), lambda rows: [upper(row) for row in rows]),
    Op("flat_map", lambda ds: ds.flat_map(twice), lambda rows: [one for row in rows for one in twice(row)]),
    Op("filter(function)", lambda ds: ds.filter(is_tagged), lambda rows: [row for row in rows if is_tagged(row)]),
    Op(
        "filter(expression)",
        lambda ds: ds.filter(pc.field("n") > 0),
        lambda rows: [row for row in rows if row["n"] is not None and row["n"] > 0],
    ),
    Op("map_batches", lambda ds: ds.map_batches(add_one, batch_size=3), lambda rows: plus(rows, 1)),
    Op("map_batches(iterator)", lambda ds: ds.map_batches(two_tables, batch_size=2), lambda rows: rows),
    Op(
        "map_batches(class)",
        lambda ds: ds.map_batches(
            AddOne, batch_size=2, fn_constructor_args=[5], compute=curate.ActorPool(size=1), num_cpus=0.5
        ),
        lambda rows: plus(rows, 5),
    ),
    Op(
        "with_column",
        lambda ds: ds.with_column("n", pc.negate(pc.field("n"))),
        lambda rows: [{**row, "n": None if row["n"] is None else -row["n"]} for row in rows],
    ),
    Op(
        "drop, rename and back",
        lambda ds: ds.rename_columns({"text": "body"}).rename_columns({"body": "text"}),
        lambda rows: rows,
    ),
    Op("limit", lambda ds: ds.limit(5), lambda rows: rows[:5]),
    Op("union", lambda ds: ds.union(ds), lambda rows: rows + rows),
    Op(
        "union of what is not alike",
        lambda ds: ds.union(ds.filter(is_tagged)),
        lambda rows: rows + [row for row in rows if is_tagged(row)],
    ),
    Op("sort", lambda ds: ds.sort("n"), lambda rows: by_n(rows)),
    Op("sort and limit", lambda ds: ds.sort("n").limit(3), lambda rows: by_n(rows)[:3]),
    Op("repartition", lambda ds: ds.repartition(3), lambda rows: rows),
    Op("dedup_exact", lambda ds: ds.dedup_exact("n"), lambda rows: first_of_n(rows)),
    Op("distinct", lambda ds: ds.distinct("n"), lambda rows: by_n(first_of_n(rows))),
    Op(
        "join",
        lambda ds: ds.join(ds.filter(pc.field("n") > 0), on="n", how="semi"),
        lambda rows: by_n([row for row in rows if row["n"] is not None and row["n"] > 0]),
    ),
    Op("zip", lambda ds: ds.zip(ds.select_columns(["n"])).drop_columns(["n_1"]), lambda rows: rows),
    Op(
        "select",
        lambda ds: ds.select_columns(["n", "x", "text", "tags", "who"]),
        lambda rows: rows,
    ),
]


def write(folder: Path, files: list[list[Row]], kind: str) -> Dataset:
    folder.mkdir(parents=True)
    for number, rows in enumerate(files):
        if kind == "parquet":
            table = pa.Table.from_pylist(rows, schema=SCHEMA)
            pq.write_table(table, folder / f"{number}.parquet", row_group_size=3)
        else:
            (folder / f"{number}.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return curate.read_parquet(folder) if kind == "parquet" else curate.read_json(folder, schema=SCHEMA)


def same(found: list[Row], expected: list[Row]) -> bool:
    return len(found) == len(expected) and all(_equal(a, b) for a, b in zip(found, expected, strict=True))


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b) or a == b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    return bool(a == b)


def check(tmp: Path, files: list[list[Row]], kind: str, ops: list[Op], backend: str) -> None:
    ds = write(tmp / "in", files, kind).using(backend=backend)
    expected = [row for rows in files for row in rows]
    for op in ops:
        ds, expected = op.apply(ds), op.plain(expected)
    assert same(ds.take_all(), expected)
    assert ds.count() == len(expected)
    assert same(ds.take(3), expected[:3])
    batches = list(ds.iter_batches(batch_size=4))
    assert [len(batch) for batch in batches] == [min(4, len(expected) - at) for at in range(0, len(expected), 4)]
    summary = ds.write_parquet(tmp / "out", backend=backend)
    assert (summary.state, summary.books.balanced()) == ("complete", True)
    assert same(curate.read_parquet(tmp / "out").take_all() if expected else [], expected)
    assert ds.write_parquet(tmp / "out", backend=backend).dispatched == 0


@pytest.mark.ci(8)
@pytest.mark.quick(8)
@pytest.mark.parametrize("op", OPS, ids=repr)
@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_every_operator_alone(op: Op, kind: str, tmp_path: Path) -> None:
    """Over some files, of which one is empty."""
    rows = [
        {"n": 1, "x": 0.5, "text": "a", "tags": ["a", None], "who": {"name": "ann", "age": None}},
        {"n": None, "x": None, "text": None, "tags": None, "who": None},
        {"n": -2, "x": -1.5, "text": "ü", "tags": [], "who": {"name": None, "age": 3}},
    ]
    check(tmp_path, [rows, [], rows * 4], kind, [op], "inline")


@pytest.mark.slow
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(FILES, st.sampled_from(["parquet", "json"]), st.lists(st.sampled_from(OPS), min_size=1, max_size=5))
def test_chains(tmp_path_factory: pytest.TempPathFactory, files: list[list[Row]], kind: str, ops: list[Op]) -> None:
    """Random rows, files and operators."""
    check(tmp_path_factory.mktemp("chain"), files, kind, ops, "inline")


@pytest.mark.slow
@pytest.mark.ray_lane
class TestRay:
    """The same on Ray, on one cluster."""

    @pytest.fixture(scope="class", autouse=True)
    @staticmethod
    def _cluster() -> Iterator[None]:
        with own_ray(4):
            yield

    ROWS: ClassVar[list[Row]] = [
        {"n": n, "x": None, "text": "b", "tags": ["a"] * (n % 2), "who": None} for n in range(6)
    ]

    @pytest.mark.ray(1)
    @pytest.mark.parametrize("first", range(0, len(OPS), 4))
    def test_every_operator(self, first: int, tmp_path: Path) -> None:
        """Four in a chain, each in one, of both formats; alone, at night. One file is empty."""
        kind = ("parquet", "json")[first // 4 % 2]
        check(tmp_path, [self.ROWS, [], self.ROWS * 3], kind, OPS[first : first + 4], "ray")

    @pytest.mark.ci(16)
    @pytest.mark.nightly
    @pytest.mark.parametrize("op", OPS, ids=repr)
    def test_every_operator_alone(self, op: Op, tmp_path: Path) -> None:
        """One file is empty."""
        check(tmp_path, [self.ROWS, [], self.ROWS * 3], "parquet", [op], "ray")

    @pytest.mark.nightly
    @settings(
        max_examples=examples(3),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
    @given(FILES, st.sampled_from(["parquet", "json"]), st.lists(st.sampled_from(OPS), min_size=1, max_size=4))
    def test_chains(
        self, tmp_path_factory: pytest.TempPathFactory, files: list[list[Row]], kind: str, ops: list[Op]
    ) -> None:
        """Random rows, files and operators: by day on one process alone, as each operator runs on Ray above."""
        check(tmp_path_factory.mktemp("chain"), files, kind, ops, "ray")
