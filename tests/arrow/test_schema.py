from __future__ import annotations

import pyarrow as pa
import pytest

from curate.arrow.schema import conform
from curate.errors import SchemaMismatch

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
        (pa.timestamp("s"), pa.timestamp("us"), True),
        (pa.timestamp("us"), pa.timestamp("s"), False),
        (pa.timestamp("s", "UTC"), pa.timestamp("s"), False),
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
