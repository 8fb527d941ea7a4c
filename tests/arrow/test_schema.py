from __future__ import annotations

import datetime
import random
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt
import pytest

import curate
from curate.arrow.recast import recast
from curate.arrow.schema import conform, null_rows
from curate.errors import SchemaMismatch
from tests.support.writes import failed_write

SCHEMA = pa.schema([("id", pa.string()), ("n", pa.int64()), ("x", pa.float64())])


def test_columns_are_reordered_and_widened() -> None:
    table = pa.table({"x": pa.nulls(1), "n": pa.array([1], pa.int8()), "id": pa.array(["a"]).dictionary_encode()})
    table = table.replace_schema_metadata({"pandas": "{}"})
    held = conform(table, SCHEMA)
    assert held.schema.equals(SCHEMA, check_metadata=True)
    assert held.to_pylist() == [{"id": "a", "n": 1, "x": None}]


@pytest.mark.parametrize(
    "type",
    [
        pa.string_view(),
        pa.list_view(pa.int8()),
        pa.run_end_encoded(pa.int16(), pa.string()),
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.dictionary(pa.int8(), pa.string()),
        pa.uuid(),
    ],
)
def test_nulls_are_held_as_any_type(type: pa.DataType) -> None:
    held = conform(pa.table({"a": pa.nulls(2)}), pa.schema([("a", type)]))["a"]
    held.validate(full=True)
    assert held.type == type
    assert held.to_pylist() == [None, None]


def test_a_table_that_has_the_schema_is_returned_itself() -> None:
    table = pa.table({"id": ["a"], "n": [1], "x": [1.0]}, schema=SCHEMA)
    assert conform(table, SCHEMA) is table


def test_every_difference_is_shown_on_both_sides() -> None:
    table = pa.table({"Id": ["a"], "n": ["1"], "x": [1], "extra": [True]})
    with pytest.raises(SchemaMismatch) as caught:
        conform(table, SCHEMA, "gs://b/out")
    assert str(caught.value) == (
        "gs://b/out does not match the schema of the output: "
        "'id' is missing, expected string; 'n' is string, expected int64; "
        "'Id' (string) is not expected; 'extra' (bool) is not expected. "
        "Without output_schema, the schema is taken from the first rows: declare an output_schema that fits all values"
    )


def test_a_name_that_is_nearly_right_is_pointed_out() -> None:
    with pytest.raises(SchemaMismatch, match="'body' is missing, expected string; did you mean 'bdoy'"):
        conform(pa.table({"bdoy": ["a"]}), pa.schema([("body", pa.string())]))


def test_a_column_that_is_there_twice_is_refused() -> None:
    table = pa.Table.from_arrays([pa.array(["a"])] * 2, names=["id", "id"])
    with pytest.raises(SchemaMismatch, match="'id' occurs 2 times"):
        conform(table, pa.schema([("id", pa.string())]))


@pytest.mark.parametrize(
    ("found", "held", "widens"),
    [
        (pa.int64(), pa.int32(), False),
        (pa.uint32(), pa.int64(), True),
        (pa.uint64(), pa.int64(), False),
        (pa.int32(), pa.uint64(), False),
        (pa.int32(), pa.float32(), False),
        (pa.float64(), pa.float32(), False),
        (pa.float64(), pa.int64(), False),
        (pa.bool_(), pa.int64(), False),
        (pa.string(), pa.binary(), False),
        (pa.large_binary(), pa.binary(), True),
        (pa.large_string(), pa.dictionary(pa.int8(), pa.string()), True),
        (pa.dictionary(pa.int32(), pa.large_string()), pa.dictionary(pa.int8(), pa.string()), True),
        (pa.dictionary(pa.int32(), pa.int64()), pa.dictionary(pa.int32(), pa.string()), False),
        (pa.timestamp("s"), pa.timestamp("us"), True),
        (pa.timestamp("us"), pa.timestamp("s"), False),
        (pa.timestamp("s", "UTC"), pa.timestamp("s"), False),
        (pa.time32("s"), pa.time32("ms"), True),
        (pa.time32("ms"), pa.time64("ns"), True),
        (pa.time64("us"), pa.time32("ms"), False),
        (pa.duration("s"), pa.duration("ns"), True),
        (pa.duration("ms"), pa.duration("s"), False),
        (pa.date32(), pa.date64(), True),
        (pa.date64(), pa.date32(), False),
        (pa.date32(), pa.timestamp("s"), False),
        (pa.time32("s"), pa.duration("s"), False),
        (pa.decimal128(5, 2), pa.decimal128(7, 3), True),
        (pa.decimal128(5, 2), pa.decimal128(5, 3), False),
        (pa.list_(pa.int8()), pa.large_list(pa.int64()), True),
        (pa.list_(pa.string()), pa.list_(pa.int64()), False),
        (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int64())]), True),
        (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())]), False),
        (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int64()), True),
    ],
)
def test_types_widen_and_never_narrow(found: pa.DataType, held: pa.DataType, widens: bool) -> None:
    table, schema = pa.table({"v": pa.nulls(3, found)}), pa.schema([("v", held)])
    if widens:
        assert conform(table, schema).schema == schema
    else:
        with pytest.raises(SchemaMismatch, match=r"'v' is .*, expected "):
            conform(table, schema)


_DAYS = [datetime.date(2020, 1, 1), datetime.date(2021, 1, 1)]


@pytest.mark.parametrize(
    ("found", "values", "values_held"),
    [
        (pa.string(), ["a", "b"], pa.string()),
        (pa.int8(), [1, 2], pa.int64()),
        (pa.float64(), [1.5, 2.5], pa.float64()),
        (pa.date32(), _DAYS, pa.date32()),
        (pa.bool_(), [True, False], pa.bool_()),
        (pa.decimal128(5, 1), [Decimal("1.5"), Decimal(2)], pa.decimal128(7, 2)),
        (pa.binary(), [b"a", b"b"], pa.binary()),
    ],
)
@pytest.mark.parametrize("encoded", [True, False])
@pytest.mark.parametrize(
    "shape",
    [
        pa.list_,
        pa.large_list,
        lambda one: pa.list_(one, 2),
        lambda one: pa.struct([("x", one), ("n", pa.int8())]),
        lambda one: pa.map_(pa.string(), one),
        lambda one: pa.list_(pa.struct([("x", pa.list_(one))])),
    ],
)
def test_dictionaries_of_anything_are_held_within_anything(
    found: pa.DataType, values: list[Any], values_held: pa.DataType, encoded: bool, shape: Any
) -> None:
    """Of values and of other dictionaries, also in a file of Parquet, which keeps none but of texts."""
    a, b = values
    rows: list[Any] = [[a, b], None, [b, None], [None, a]]
    if pt.is_struct(shape(found)):
        rows = [{"x": a, "n": 1}, None, {"x": None, "n": 2}, {"x": b, "n": None}]
    elif pt.is_map(shape(found)):
        rows = [[("k", a), ("l", b)], None, [], [("m", None)]]
    elif pt.is_struct(getattr(shape(found), "value_type", None) or pa.null()):
        rows = [[{"x": [a, b]}, {"x": None}], None, [], [{"x": []}, {"x": [b]}]]
    column = pa.chunked_array([pa.array(rows, shape(found)), pa.array(rows[::-1], shape(found))])
    if encoded:
        chunks = [recast(chunk, shape(pa.dictionary(pa.int8(), found))) for chunk in column.chunks]
        column = pa.chunked_array([chunks[0], chunks[1].slice(1)])
    schema = pa.schema([("v", shape(pa.dictionary(pa.int32(), values_held)))])
    held = conform(pa.table({"v": column}), schema)
    held.validate(full=True)
    assert (held.schema, held["v"].to_pylist()) == (schema, column.to_pylist())


_N = None
_PAIRS = [[("a", _N), ("b", _N)], [], [("c", _N)] * 3, _N]


@pytest.mark.parametrize(
    ("values", "found", "held"),
    [
        ([[_N, _N, _N], [], [_N, _N], _N], pa.list_(pa.null()), pa.list_(pa.int64())),
        ([[_N, _N, _N], [], [_N, _N], _N], pa.list_(pa.null()), pa.large_list(pa.null())),
        ([[_N, _N, _N], [], [_N, _N], _N], pa.list_(pa.null()), pa.list_(pa.list_(pa.int8()))),
        ([[_N, _N], [_N, _N], _N], pa.list_(pa.null(), 2), pa.list_(pa.string(), 2)),
        ([[_N, _N], [_N, _N], _N], pa.list_(pa.null(), 2), pa.list_(pa.int64())),
        ([[[_N, _N, _N], [_N]], [[_N]], _N], pa.list_(pa.list_(pa.null())), pa.list_(pa.list_(pa.float64()))),
        (
            [{"l": [_N, _N, _N], "n": 1}, {"l": [], "n": _N}, _N],
            pa.struct([("l", pa.list_(pa.null())), ("n", pa.int8())]),
            pa.struct([("l", pa.list_(pa.null())), ("n", pa.int64())]),
        ),
        (
            [[{"a": _N, "b": 1}] * 3, [], [{"a": _N, "b": 2}] * 2],
            pa.list_(pa.struct([("a", pa.null()), ("b", pa.int8())])),
            pa.list_(pa.struct([("a", pa.string()), ("b", pa.int64())])),
        ),
        (_PAIRS, pa.map_(pa.string(), pa.null()), pa.map_(pa.string(), pa.int64())),
        (_PAIRS, pa.map_(pa.string(), pa.null()), pa.map_(pa.large_string(), pa.null())),
    ],
    ids=str,
)
def test_nulls_within_are_held_as_any_type(values: list[Any], found: pa.DataType, held: pa.DataType) -> None:
    """As many as there are, whole and in slices. Arrow made as many as there are rows: arrays that end a process,
    or are of what lies behind them in memory."""
    array = pa.array(values, found)
    for one in (array, array[1:], pa.concat_arrays([array, array])[1:-1]):
        made = conform(pa.table({"v": one}), pa.schema([("v", held)]))
        made.validate(full=True)
        assert made["v"].to_pylist() == one.to_pylist()


# Nulls within


def any_type(draw: random.Random, depth: int = 0) -> pa.DataType:
    def inner(name: str) -> pa.Field:
        return pa.field(name, any_type(draw, depth + 1), nullable=draw.random() < 0.5)

    makers = [
        lambda: pa.list_(inner("item")),
        lambda: pa.large_list(inner("item")),
        lambda: pa.list_(inner("item"), 2),
        lambda: pa.list_view(inner("item")),
        lambda: pa.struct([inner("a"), inner("b")]),
        lambda: pa.map_(pa.string(), inner("value")),
    ]
    return pa.int64() if depth == 3 else draw.choice([pa.int64, *makers])()


def any_value(draw: random.Random, type: pa.DataType) -> Any:
    if draw.random() < 0.12:
        return None
    if pt.is_struct(type):
        return {field.name: any_value(draw, field.type) for field in type.fields}
    if pt.is_map(type):
        return [("k", any_value(draw, type.item_type)) for _ in range(draw.randint(0, 2))]
    if pt.is_nested(type):
        size = 2 if pt.is_fixed_size_list(type) else draw.randint(0, 2)
        return [any_value(draw, type.value_type) for _ in range(size)]
    return 1


def has_null(value: Any, field: pa.Field) -> bool:
    type = field.type
    if value is None:
        return not field.nullable
    if pt.is_struct(type):
        return any(has_null(value[one.name], one) for one in type.fields)
    if pt.is_map(type):
        return any(has_null(one, type.item_field) for _, one in value)
    return pt.is_nested(type) and any(has_null(one, type.value_field) for one in value)


def test_rows_with_a_null_where_none_may_be_are_found_at_any_depth() -> None:
    """As by brute force, in any kind of lists, also in slices of them."""
    draw, some = random.Random(1), 0
    for _ in range(1000):
        field = pa.field("v", any_type(draw), nullable=draw.random() < 0.5)
        values = [any_value(draw, field.type) for _ in range(draw.randint(0, 8))]
        try:
            array = pa.array(values, field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError):  # Arrow refuses some of them
            continue
        at = draw.randint(0, len(array))
        column, rows = pa.chunked_array([array[at:], array]), values[at:] + values
        expected = [row for row, value in enumerate(rows) if has_null(value, field)]
        assert null_rows(column, field).tolist() == expected
        some += bool(expected)
    assert some > 100


def test_a_null_within_is_a_bad_row_where_the_first_file_has_none(tmp_path: Path) -> None:
    """Written as consumed."""
    strict = pa.list_(pa.field("element", pa.int64(), nullable=False))
    pq.write_table(pa.table({"id": [0], "v": pa.array([[1]], strict)}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"id": [1, 2, 3], "v": [[1, None], None, [2]]}), tmp_path / "1.parquet")
    ds = curate.read_parquet(str(tmp_path / "*.parquet"))
    assert ds.to_arrow()["id"].to_pylist() == [0, 2, 3]
    summary = ds.write_parquet(tmp_path / "out", backend="inline")
    assert (summary.state, summary.books.rows_out, summary.books.quarantined) == ("complete", 3, 1)
    assert curate.read_parquet(tmp_path / "out").to_arrow().equals(ds.to_arrow())


def test_a_null_within_is_refused_where_none_is_declared() -> None:
    strict = pa.schema([("v", pa.list_(pa.field("item", pa.int64(), nullable=False)))])
    ds = curate.range(2).map_batches(lambda batch: {"v": [[1], [None]][: len(batch)]}, output_schema=strict)
    with pytest.raises(SchemaMismatch, match="it has nulls, but is declared not null"):
        ds.to_arrow()


@pytest.mark.usefixtures("no_backoff")
def test_a_null_within_is_refused_where_the_first_rows_have_none(tmp_path: Path) -> None:
    """Consumed as written."""
    strict = pa.list_(pa.field("item", pa.int64(), nullable=False))

    def lists(batch: pa.Table) -> pa.Table:
        first = not batch["id"][0].as_py()
        return batch.append_column("v", pa.array([[1]], strict) if first else pa.array([[None]], pa.list_(pa.int64())))

    ds = curate.range(2).map_batches(lists, batch_size=1)
    refused = r"column 'v' has a null within, where list<item: int64 not null> has none\. Without output_schema"
    with pytest.raises(SchemaMismatch, match=refused):
        ds.to_arrow()
    [failure] = failed_write(ds.write_parquet, tmp_path / "out", backend="inline").failures
    assert re.search(refused, failure.error)
