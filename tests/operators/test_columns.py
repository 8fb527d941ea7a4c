"""Every operator, alone and in chains, gives what the same thing done in plain Python gives, in the same order."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import curate
from curate.arrow.expressions import Columns
from curate.dataset.dataset import Dataset
from curate.errors import ConfigError
from curate.operators.columns import WithColumns
from curate.pipeline.shard_books import DetachedBooks
from curate.pipeline.step import BatchPosition
from tests.support.examples import examples

Row = dict[str, Any]
SCHEMA = pa.schema(
    [("a", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.int64())), ("t", pa.struct([("x", pa.int64())]))]
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "a": st.none() | st.integers(-100, 100),
            "s": st.none() | st.text("ab", max_size=3),
            "l": st.none() | st.lists(st.integers(0, 3), max_size=2),
            "t": st.none() | st.fixed_dictionaries({"x": st.none() | st.integers(0, 9)}),
        }
    ).map(lambda row: {name: row[name] for name in SCHEMA.names}),
    max_size=30,
)
Step = tuple[str, Callable[[Dataset], Dataset], Callable[[list[Row]], list[Row]]]


def plus_one(row: Row) -> Row:
    return {**row, "a": None if row["a"] is None else row["a"] + 1}


STEPS: list[Step] = [
    ("map", lambda ds: ds.map(plus_one), lambda rows: [plus_one(row) for row in rows]),
    (
        "flat_map",
        lambda ds: ds.flat_map(lambda r: [r] * ((r["a"] or 0) % 3)),
        lambda rows: [r for r in rows for _ in range((r["a"] or 0) % 3)],
    ),
    ("filter function", lambda ds: ds.filter(lambda r: r["s"] != "a"), lambda rows: [r for r in rows if r["s"] != "a"]),
    (
        "filter expression",
        lambda ds: ds.filter(pc.field("a") > 3),
        lambda rows: [r for r in rows if r["a"] is not None and r["a"] > 3],
    ),
    (
        "replace a column",
        lambda ds: ds.with_column("a", pc.field("a") * 2),
        lambda rows: [{**r, "a": None if r["a"] is None else r["a"] * 2} for r in rows],
    ),
    (
        "add, rename, drop",
        lambda ds: (
            ds.with_column("n", pc.field("a")).rename_columns({"a": "b"}).drop_columns("b").rename_columns({"n": "a"})
        ),
        lambda rows: [{**{k: v for k, v in r.items() if k != "a"}, "a": r["a"]} for r in rows],
    ),
    (
        "select in another order",
        lambda ds: ds.select_columns(["t", "s", "a", "l"]),
        lambda rows: [{k: r[k] for k in ("t", "s", "a", "l")} for r in rows],
    ),
    ("map_batches", lambda ds: ds.map_batches(lambda b: b.slice(1), batch_size=10_000), lambda rows: rows[1:]),
    ("limit", lambda ds: ds.limit(7), lambda rows: rows[:7]),
    ("union", lambda ds: ds.union(ds.limit(2)), lambda rows: rows + rows[:2]),
]


def same(found: Dataset, expected: list[Row]) -> None:
    rows = found.take_all()
    assert rows == expected
    assert [list(row) for row in rows] == [list(row) for row in expected]
    assert found.count() == len(expected)
    assert found.take(3) == expected[:3]


@settings(max_examples=examples(120), deadline=None)
@given(ROWS, st.lists(st.sampled_from(STEPS), max_size=5))
def test_chains_over_tables(rows: list[Row], steps: list[Step]) -> None:
    """One piece; `map_batches` and a table are then one batch, so that what it cuts off is known."""
    found = curate.from_arrow(pa.Table.from_pylist(rows, schema=SCHEMA))
    expected = rows
    if "map_batches" in [name for name, _, _ in steps] and "union" in [name for name, _, _ in steps]:
        steps = [step for step in steps if step[0] != "map_batches"]
    for _, step, oracle in steps:
        found, expected = step(found), oracle(expected)
    same(found, expected)


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=4), st.lists(st.sampled_from(STEPS), max_size=5), st.integers(1, 5))
def test_chains_over_parquet(tmp_path_factory: Any, files: list[list[Row]], steps: list[Step], group_rows: int) -> None:
    """Many files of many row groups, with columns and row groups left unread, give the same as all of them in one."""
    folder: Path = tmp_path_factory.mktemp("chain")
    for number, rows in enumerate(files):
        table = pa.Table.from_pylist(rows, schema=SCHEMA)
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=group_rows)
    found = curate.read_parquet(folder)
    expected = [row for rows in files for row in rows]
    for name, step, oracle in steps:
        if name != "map_batches":
            found, expected = step(found), oracle(expected)
    same(found, expected)
    only = found.select_columns("s") if found.schema().names else found
    assert only.take_all() == [{"s": row["s"]} for row in expected]


def test_rows_that_python_does_not_tell_the_types_of() -> None:
    """Large unsigned numbers, and maps: the type that the column had is kept."""
    table = pa.table(
        {"n": pa.array([2**64 - 1], pa.uint64()), "m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))}
    )
    assert curate.from_arrow(table).map(lambda row: row).to_arrow().equals(table)


@pytest.mark.parametrize(
    "expression", [pc.field(0) == 1, ~(pc.field("a") < pc.field(1)), pc.field("t", 0) == 1, pc.field(0)]
)
def test_a_column_has_a_name_and_no_number(expression: Any) -> None:
    """What is not needed is not read: then the number is that of another column, whose rows were kept."""
    ds = curate.from_items([{"a": 1, "b": 2, "t": {"x": 1}}])
    with pytest.raises(ConfigError, match=r"takes a column by its number.*; take it by its name, curate\.col\('n'\)"):
        ds.filter(expression)
    with pytest.raises(ConfigError, match="takes a column by its number"):
        ds.with_column("c", expression)
    with pytest.raises(ConfigError, match="takes a column by its number"):
        ds.with_columns({"c": expression})


def test_a_text_may_look_like_a_number_of_a_column() -> None:
    rows = [{"s": 'a"FieldPath(1)'}, {"s": "FieldPath(1)"}, {"s": " FieldPath(1)"}]
    for row in rows:
        assert curate.from_items(rows).filter(pc.field("s") == row["s"]).take_all() == [row]


HASHES = [0, 1, 5, 2**32, 2**63 - 1, 2**63, 2**63 + 5, 2**64 - 1]
COMPARED = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


@pytest.mark.parametrize("compared", COMPARED)
@pytest.mark.parametrize("number", [0, 5, 2**32, 2**63 - 1])
def test_unsigned_numbers_are_compared_as_such(
    compared: Callable[[Any, Any], Any], number: int, tmp_path: Path
) -> None:
    """Arrow would take both as int64, and fail for every second hash; in filters of row groups, too."""
    table = pa.table({"hash": pa.array(HASHES, pa.uint64()), "n": range(len(HASHES))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    wanted = [row for row in table.to_pylist() if compared(row["hash"], number)]
    for ds in (curate.from_arrow(table), curate.read_parquet(tmp_path / "a.parquet")):
        assert ds.filter(compared(pc.field("hash"), number)).take_all() == wanted
        both = compared(pc.field("hash"), number) & (pc.field("n") > 2) & (pc.field("n") != -1)
        assert ds.filter(both).take_all() == [row for row in wanted if row["n"] > 2]


@pytest.mark.parametrize(
    ("type", "value", "expression", "says"),
    [
        (pa.uint64(), 2**64 - 1, pc.field("n") + 1, r"pyarrow\.scalar\(1, pyarrow\.uint64\(\)\) in place of 1"),
        (pa.int64(), 2**53 + 1, pc.field("n") * 0.5, r"cast\('double', safe=False\)"),
        (pa.uint64(), 2**64 - 1, pc.field("n") > 0.5, r"cast\('double', safe=False\)"),
        (pa.int8(), 100, pc.field("n") * 100, r"cast\('int64'\)"),
        (pa.int8(), 100, pc.field("n") * pc.field("n"), r"cast\('int64'\)"),
    ],
)
def test_numbers_for_which_there_is_no_room_are_told_what_to_write(
    type: pa.DataType, value: int, expression: Any, says: str
) -> None:
    ds = curate.from_arrow(pa.table({"n": pa.array([value, 1], type)})).with_column("x", expression)
    with pytest.raises(pa.ArrowInvalid) as error:
        ds.to_arrow()
    assert re.search(says, "\n".join(error.value.__notes__))


def test_what_they_are_told_to_write_has_room() -> None:
    def made(type: pa.DataType, value: int, expression: Any) -> Any:
        return curate.from_arrow(pa.table({"n": pa.array([value], type)})).with_column("x", expression).take(1)[0]["x"]

    assert made(pa.uint64(), 2**64 - 2, pc.field("n") + pa.scalar(1, pa.uint64())) == 2**64 - 1
    assert made(pa.int64(), 2**53 + 1, pc.field("n").cast("double", safe=False) * 0.5) == 2.0**52
    assert made(pa.int8(), 100, pc.field("n").cast("int64") * 100) == 10_000


@pytest.mark.parametrize(
    ("expression", "plain"),
    [
        (pc.field("n") / 3.0, lambda row: row["n"] / 3.0),
        (pc.field("n") * 0.5, lambda row: row["n"] * 0.5),
        (pc.field("small") / 8.0 + pc.field("n"), lambda row: row["small"] / 8.0 + row["n"]),
        (pc.coalesce(pc.field("n"), 0.5), lambda row: float(row["n"])),
        (pc.utf8_length(pc.field("s")) / 7.0, lambda row: len(row["s"]) / 7.0),
        (pc.if_else(pc.field("n") > 0.5, pc.field("n"), 2.0), lambda row: float(row["n"])),
        (pc.field("n") == 16777217.0, lambda row: row["n"] == 16777217.0),
        ((pc.field("n") >= 1.5e9) & (pc.field("f") > 0.5), lambda row: row["n"] >= 1.5e9 and row["f"] > 0.5),
    ],
)
def test_a_float_beside_whole_numbers_is_a_double(expression: Any, plain: Callable[[Row], Any]) -> None:
    """Arrow makes both a float32 where that has room for the float: a third had 7 digits, and 16,777,217 failed."""
    rows = [{"n": n, "small": 3, "s": "a" * n, "f": 0.75} for n in (1, 7)]
    rows += [{"n": n, "small": 5, "s": "abc", "f": 0.75} for n in (16777217, 1_700_000_000, 2**53 - 1)]
    types = [("n", pa.int64()), ("small", pa.int8()), ("s", pa.string()), ("f", pa.float32())]
    ds = curate.from_arrow(pa.table({name: pa.array([row[name] for row in rows], type) for name, type in types}))
    assert [row["x"] for row in ds.with_column("x", expression).take_all()] == [plain(row) for row in rows]


@pytest.mark.parametrize(
    ("expression", "type"),
    [
        (pc.field("f") * 0.5, pa.float32()),
        (pc.coalesce(pc.field("f"), 0.0), pa.float32()),
        (pc.field("f") * 0.1, pa.float64()),
        (pc.scalar(0.5), pa.float64()),
        (pc.if_else(pc.field("n") > 1, 0.5, 0.25), pa.float64()),
        (pc.field("d") * 0.5, pa.float64()),
        (pc.field("n") + 1, pa.int64()),
    ],
)
def test_beside_other_columns_a_float_is_what_arrow_takes_it_for(expression: Any, type: pa.DataType) -> None:
    """So is one of which a dictionary, as which it is not made narrower, would be another value."""
    schema = pa.schema([("n", pa.int64()), ("f", pa.float32()), ("d", pa.decimal128(9, 2))])
    ds = curate.from_arrow(pa.Table.from_pylist([{"n": 2, "f": 0.5, "d": 1}], schema))
    made = ds.with_column("x", expression)
    assert made.schema().field("x").type == type == made.to_arrow().schema.field("x").type


def test_row_groups_are_left_out_by_a_float_beside_whole_numbers(tmp_path: Path) -> None:
    """A file whose statistics have a number above 2^24 could not be read so."""
    numbers = [1, 2, 16777217, 16777218, 1_700_000_000, 2**53 - 1]
    pq.write_table(pa.table({"n": numbers}), tmp_path / "a.parquet", row_group_size=2)
    for filtered in (
        curate.read_parquet(str(tmp_path / "*.parquet")).filter(pc.field("n") >= 1.5e9),
        curate.read_parquet(str(tmp_path / "*.parquet"), filter=pc.field("n") >= 1.5e9),
    ):
        assert [row["n"] for row in filtered.take_all()] == numbers[4:]


class Celsius(pa.ExtensionType):
    """A type of a user's: as all that are defined in Python, it has no hash."""

    def __init__(self) -> None:
        super().__init__(pa.float64(), "tests.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, data: bytes) -> Celsius:
        del storage, data
        return cls()


def test_expressions_take_rows_with_types_of_the_users() -> None:
    """Which they need not be about."""
    degrees = pa.ExtensionArray.from_storage(Celsius(), pa.array([20.5, None, 21.5]))
    ds = curate.from_arrow(pa.table({"degrees": degrees, "n": [1, 2, 3]}))
    assert ds.filter(curate.col("n") / 2 > 0.75).to_arrow()["degrees"].combine_chunks() == degrees[1:]
    assert ds.with_column("half", pc.field("n") / 2.0).to_arrow()["half"].to_pylist() == [0.5, 1.0, 1.5]


def test_what_is_looked_up_for_many_columns_does_not_grow_with_their_square(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of several expressions is looked up in names that were gone through once: 4,000 took two minutes."""
    gone_through: list[int] = []

    def counted(self: Columns, schema: pa.Schema, made: Callable[..., None] = Columns.__init__) -> None:
        gone_through.append(len(schema))
        made(self, schema)

    monkeypatch.setattr(Columns, "__init__", counted)

    def looked_up(columns: int) -> int:
        gone_through.clear()
        table = pa.table({f"c{number}": [1] for number in range(columns)})
        step = WithColumns(tuple((f"d{number}", pc.field(f"c{number}") + 1) for number in range(columns)))
        assert step.needs(table.schema, set()) == set(table.column_names)
        (made,) = step.apply(table, DetachedBooks(), BatchPosition("shard", 0))
        assert made.to_pylist() == [table.to_pylist()[0] | {f"d{number}": 2 for number in range(columns)}]
        return sum(gone_through)

    few, many = looked_up(10), looked_up(100)
    assert many <= 10 * few
