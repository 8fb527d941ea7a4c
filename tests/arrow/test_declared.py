"""A schema that was declared for what a function gives: values stay what they are, or are refused."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import curate
from curate.arrow.declared import as_declared
from curate.dataset.dataset import Dataset
from curate.errors import ConfigError, SchemaMismatch

D = decimal.Decimal
TYPES = [
    *(pa.int8(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.decimal128(5, 2), pa.decimal128(38, 0), pa.decimal256(60, 10)),
    *(pa.bool_(), pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.binary(2), pa.large_binary()),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time64("ns"), pa.duration("ms"), pa.timestamp("s")),
    *(pa.timestamp("ns"), pa.timestamp("ms", "UTC"), pa.timestamp("us", "Europe/Paris")),
    *(pa.list_(pa.int64()), pa.large_list(pa.float32()), pa.list_(pa.int8(), 2), pa.dictionary(pa.int8(), pa.string())),
    *(pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int8())]), pa.map_(pa.string(), pa.int64()), pa.null()),
]
VALUES = [
    *([1, None], [200], [2**40], [2**53 + 1], [0.5, math.nan], [0.1], [1.0], [D("1.50")], [D("0.001")], [D(10) ** 30]),
    *([True], ["a", None], ["ab"], [b"ab"], [b"abc"], [[1, 2]], [[1, 2], None, [3]], [[0.1]], [{"a": 1}], [{"a": 300}]),
    *([], [None]),
]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)


@given(st.sampled_from(VALUES), st.sampled_from(TYPES))
def test_no_value_changes(values: list[Any], type: pa.DataType) -> None:
    """What is given as the declared type is what it was, of the same kind; all else is refused, with both types."""
    found, schema = pa.table({"x": pa.array(values)}), pa.schema([("x", type)])
    try:
        made = as_declared(found, schema, "map(f)", "the rows 0 to 1")
    except SchemaMismatch as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert f"'x' as {found.schema.field('x').type}" in refusal
        assert f"declares {type}" in refusal
        assert "the rows 0 to 1" in refusal
        return
    assert made.schema.equals(schema)
    made.validate(full=True)
    assert same(made["x"].to_pylist(), values)


@given(st.sampled_from(TYPES), st.sampled_from(TYPES))
def test_from_any_type_to_any(before: pa.DataType, type: pa.DataType) -> None:
    """Of nulls too: nothing else than SchemaMismatch comes."""
    for values in ([], [None]):
        found = pa.table({"x": pa.array(values, before)})
        try:
            made = as_declared(found, pa.schema([("x", type)]), "map(f)", "no rows")
        except SchemaMismatch:
            continue
        assert made["x"].to_pylist() == values


SCHEMA = pa.schema([("x", pa.int32()), ("y", pa.decimal128(12, 2)), ("z", pa.large_string())])


def rows_of(row: dict[str, Any]) -> dict[str, Any]:
    return {"z": None if row["id"] < 2 else "a", "y": decimal.Decimal(row["id"]), "x": row["id"]}


def batch_of(batch: Any) -> dict[str, Any]:
    ids = np.asarray(batch["id"])
    return {"x": ids, "y": ids, "z": pa.array([None if one < 2 else "a" for one in ids.tolist()])}


GIVEN: dict[str, Callable[[Dataset], Dataset]] = {
    "map": lambda ds: ds.map(rows_of, output_schema=SCHEMA),
    "map, isolated": lambda ds: ds.map(rows_of, isolate=True, output_schema=SCHEMA),
    "flat_map": lambda ds: ds.flat_map(lambda row: [rows_of(row)], output_schema=SCHEMA),
    "map_batches": lambda ds: ds.map_batches(batch_of, batch_size=1, output_schema=SCHEMA),
    "map_batches, numpy": lambda ds: ds.map_batches(batch_of, batch_format="numpy", output_schema=SCHEMA),
    "map_groups": lambda ds: ds.groupby("id").map_groups(batch_of, output_schema=SCHEMA),
}


@pytest.mark.ci(3)
@pytest.mark.quick(2)
@pytest.mark.parametrize("way", GIVEN)
def test_what_is_declared_is_known_before_anything_runs(way: str, tmp_path: Path) -> None:
    """It is what comes out, consumed and written, in the declared order; columns that are not there are refused."""
    made = GIVEN[way](curate.range(4))
    assert made.schema().equals(SCHEMA)
    with pytest.raises(ConfigError, match="there is no column 'q'"):
        made.select_columns(["q"])
    consumed = made.to_arrow()
    assert consumed.schema.equals(SCHEMA)
    expected = [{"x": n, "y": D(n), "z": None if n < 2 else "a"} for n in range(4)]
    assert consumed.to_pylist() == expected
    assert made.write_parquet(tmp_path / "out", backend="inline").state == "complete"
    files = sorted((tmp_path / "out").glob("*.parquet"))
    assert all(pq.read_schema(path).remove_metadata().equals(SCHEMA) for path in files)
    assert [row for path in files for row in pq.ParquetFile(path).read().to_pylist()] == expected
    assert made.sort("y", descending=True).to_arrow()["x"].to_pylist() == [3, 2, 1, 0]


def test_it_decides_bytes_and_so_is_part_of_the_identity(tmp_path: Path) -> None:
    ds = curate.range(2)
    other = pa.schema([("id", pa.int32())])
    assert ds.map(lambda row: row).write_parquet(tmp_path, backend="inline").state == "complete"
    with pytest.raises(ConfigError, match="int32"):
        ds.map(lambda row: row, output_schema=other).write_parquet(tmp_path, backend="inline")


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda _: {"x": 2**40, "y": None, "z": None}, "returned the column 'x' as int64 .* declares int32: .*2147"),
        (lambda _: {"x": 0.5, "y": None, "z": None}, "returned the column 'x' as double .* declares int32"),
        (lambda _: {"x": "1", "y": None, "z": None}, "returned the column 'x' as string .* declares int32"),
        (lambda _: {"x": 1, "y": None}, "'z' is missing"),
        (lambda _: {"x": 1, "y": None, "z": None, "q": 1}, "'q' is not declared"),
    ],
)
def test_what_does_not_fit_is_refused(function: Any, problem: str) -> None:
    """With the column, both types, and the rows that the function got; consumed and written."""
    made = curate.range(3).map(function, output_schema=SCHEMA)
    with pytest.raises(SchemaMismatch, match=problem) as caught:
        made.take_all()
    assert "the rows 0 to 2 of its input from part-00000-of-00001" in str(caught.value)


def test_what_is_no_schema_is_refused() -> None:
    for wrong in ([("a", pa.int64())], pa.schema([]), pa.schema([("a", pa.int8()), ("a", pa.int8())])):
        with pytest.raises(ConfigError, match="output_schema"):
            curate.range(1).map(lambda row: row, output_schema=wrong)


def test_a_null_where_none_is_declared() -> None:
    schema = pa.schema([pa.field("x", pa.int64(), nullable=False)])
    assert curate.range(2).map(lambda row: {"x": row["id"]}, output_schema=schema).schema().equals(schema)
    with pytest.raises(SchemaMismatch, match="declared not null"):
        curate.range(2).map(lambda _: {"x": None}, output_schema=schema).take_all()


@pytest.mark.parametrize("found", [pa.list_view(pa.int32()), pa.large_list_view(pa.int32()), pa.list_(pa.int32(), 2)])
@pytest.mark.parametrize("declared", [pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_view(pa.int32())])
def test_lists_are_the_same_in_any_way_of_storing(found: pa.DataType, declared: pa.DataType) -> None:
    """Also where Arrow's own cast makes broken lists of views with nulls."""
    values = [[1, 2], None, [3, 4], [5, 6]]
    table = pa.table({"v": pa.chunked_array([pa.array(values, found).slice(1), pa.array(values, found)])})
    made = as_declared(table, pa.schema([("v", declared)]), "f", "rows")
    made.validate(full=True)
    assert made["v"].type == declared
    assert made["v"].to_pylist() == values[1:] + values
