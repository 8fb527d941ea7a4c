from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.errors import ConfigError, CorruptInput, SchemaMismatch
from curate.formats.encoding import detect
from curate.formats.file_slice import FileSlice
from curate.formats.read.parquet import row_groups
from curate.formats.rows import read, sample_schema
from curate.objects.bad_line import RejectedRow
from curate.storage.protocol import Object
from curate.tasks.shard import SliceKind
from tests.support.fake_store import FakeStore
from tests.support.reading import read_all


def put(store: FakeStore, table: pa.Table, **options: Any) -> Object:
    stream = io.BytesIO()
    pq.write_table(table, stream, **options)
    return store.put("a.parquet", stream.getvalue())


@given(st.integers(0, 50), st.integers(1, 20), st.integers(1, 20), st.integers(0, 50))
def test_slices_of_row_groups_give_the_rows_of_the_whole(rows: int, group: int, batch: int, cut: int) -> None:
    """In order, in tables of the size asked for, however the file is cut into row groups."""
    store = FakeStore()
    table = pa.table({"a": list(range(rows)), "b": [str(n) for n in range(rows)]})
    object = put(store, table, row_group_size=group)
    count = len(row_groups(store, object))
    schema = pa.schema([("b", pa.string()), ("a", pa.int64())])
    whole, _ = read_all(store, object, schema, batch_rows=batch)
    assert whole == [{"b": str(n), "a": n} for n in range(rows)]
    cut = min(cut, count)
    left, _ = read_all(store, object, schema, SliceKind.ROW_GROUPS, 0, cut, batch)
    right, _ = read_all(store, object, schema, SliceKind.ROW_GROUPS, cut, count, batch)
    assert left + right == whole


def test_row_group_sizes_are_the_stored_bytes(store: FakeStore) -> None:
    object = put(store, pa.table({"a": list(range(100)), "b": ["x"] * 100}), row_group_size=40)
    sizes = row_groups(store, object)
    assert len(sizes) == 3
    assert 0 < sum(sizes) < object.size


def test_columns_are_widened_to_the_held_schema(store: FakeStore) -> None:
    """Narrow integers, floats, dictionaries and large strings are read as what the plan holds."""
    table = pa.table(
        {
            "i": pa.array([1, None], pa.int32()),
            "f": pa.array([1.5, None], pa.float32()),
            "d": pa.array(["x", None]).dictionary_encode(),
            "s": pa.array(["y", None], pa.large_string()),
            "n": pa.nulls(2),
            "if": pa.array([1, None], pa.int64()),
        }
    )
    schema = pa.schema(
        [
            ("s", pa.string()),
            ("i", pa.int64()),
            ("f", pa.float64()),
            ("d", pa.string()),
            ("n", pa.bool_()),
            ("if", pa.float64()),
        ]
    )
    rows, _ = read_all(store, put(store, table), schema)
    assert rows == [
        {"s": "y", "i": 1, "f": 1.5, "d": "x", "n": None, "if": 1.0},
        dict.fromkeys(schema.names),
    ]


def test_a_column_that_does_not_widen_is_a_mismatch(store: FakeStore) -> None:
    object = put(store, pa.table({"a": ["x"], "b": [2**53 + 1]}))
    with pytest.raises(SchemaMismatch, match=r"a\.parquet: column 'a' is string, expected int64"):
        read_all(store, object, pa.schema([("a", pa.int64())]))
    with pytest.raises(SchemaMismatch, match=r"a\.parquet: column 'b' is int64, expected double: .*9007199254740993"):
        read_all(store, object, pa.schema([("b", pa.float64())]))
    with pytest.raises(SchemaMismatch, match=r"a\.parquet: no column 'c'; it has 'a', 'b'"):
        read_all(store, object, pa.schema([("c", pa.int64())]))


def test_a_dot_in_a_name_is_no_path(store: FakeStore) -> None:
    object = put(store, pa.table({"a.b": [1], "a": [{"b": "x"}]}))
    rows, _ = read_all(store, object, pa.schema([("a.b", pa.int64())]))
    assert rows == [{"a.b": 1}]


def test_the_sampled_schema_is_the_footers_without_what_is_not_its_values(store: FakeStore) -> None:
    """No metadata, no dictionary encoding, nullable: another file may have nulls."""
    table = pa.table(
        {"a": [1], "d": pa.array(["x"]).dictionary_encode()},
        schema=pa.schema(
            [pa.field("a", pa.int64(), nullable=False), ("d", pa.dictionary(pa.int32(), pa.string()))],
            metadata={"pandas": "{}"},
        ),
    )
    object = put(store, table)
    file = FileSlice(store, object, detect(object.uri))
    expected = pa.schema([("a", pa.int64()), ("d", pa.string())])
    assert sample_schema(file).equals(expected, check_metadata=True)
    wanted = {"d": None, "a": pa.float64()}
    assert sample_schema(file, wanted) == pa.schema([("d", pa.string()), ("a", pa.float64())])
    with pytest.raises(ConfigError, match=r"column 'd' of a\.parquet is string; it cannot be read as int64"):
        sample_schema(file, {"d": pa.int64()})
    with pytest.raises(ConfigError, match=r"no column 'x' in a\.parquet; it has 'a', 'd'"):
        sample_schema(file, {"x": None})


@pytest.mark.parametrize("below", ["nothing", "struct", "list", "map", "list of one size", "view of lists"])
def test_texts_that_are_views_are_read_as_plain_ones(store: FakeStore, below: str) -> None:
    """Arrow has no kernel that chooses rows of views, as a job does that filters a batch. It casts no views of lists,
    and chooses rows of them: these stay as they are."""
    text = pa.string_view()
    values, found, expected = {
        "nothing": (["a", None], text, pa.string()),
        "struct": ([{"v": "a"}, None], pa.struct([("v", text)]), pa.struct([("v", pa.string())])),
        "list": ([["a"], None], pa.list_(text), pa.list_(pa.string())),
        "map": ([[("a", "b")], None], pa.map_(text, text), pa.map_(pa.string(), pa.string())),
        "list of one size": ([["a", None], None], pa.list_(text, 2), pa.list_(pa.string(), 2)),
        "view of lists": ([["a"], None], pa.list_view(text), pa.list_view(text)),
    }[below]
    object = put(store, pa.table({"a": [1, None], "v": pa.array(values, found)}))
    file = FileSlice(store, object, detect(object.uri))
    schema = sample_schema(file)
    assert schema.field("v").type == expected
    rows, _ = read_all(store, object, schema)
    assert [row["v"] for row in rows] == pa.array(values, expected).to_pylist()
    held = pa.schema([pa.field("a", pa.int64(), nullable=False), schema.field("v")])
    bad: list[RejectedRow] = []
    (kept,) = read(file, held, 1000, bad.append)
    assert (kept["a"].to_pylist(), len(bad)) == ([1], 1)


@pytest.mark.parametrize("damage", ["empty", "truncated", "footer", "data", "csv"])
def test_a_broken_file_is_corrupt_input(store: FakeStore, damage: str) -> None:
    object = put(store, pa.table({"a": [str(n) for n in range(1000)]}), compression="zstd")
    data = bytearray(store.objects[object.uri][0])
    if damage == "empty":
        data = bytearray()
    elif damage == "truncated":
        del data[-100:]
    elif damage == "footer":
        data[-60:-20] = b"\xff" * 40
    elif damage == "data":
        data[10:400] = b"\xff" * 390
    else:
        data = bytearray(b"a,b\n1,2\n")
    object = store.put("a.parquet", bytes(data))
    with pytest.raises(CorruptInput, match=r"a\.parquet: not a whole Parquet file"):
        read_all(store, object, pa.schema([("a", pa.string())]))


def test_row_groups_that_are_not_there_are_corrupt_input(store: FakeStore) -> None:
    object = put(store, pa.table({"a": [1]}))
    with pytest.raises(CorruptInput, match=r"a\.parquet: has 1 row groups, expected at least 2"):
        read_all(store, object, pa.schema([("a", pa.int64())]), SliceKind.ROW_GROUPS, 1, 2)


def test_byte_slices_are_refused(store: FakeStore) -> None:
    object = put(store, pa.table({"a": [1]}))
    with pytest.raises(ValueError, match="has no slices of kind 'bytes'"):
        read_all(store, object, pa.schema([("a", pa.int64())]), SliceKind.BYTES, 0, 2)
