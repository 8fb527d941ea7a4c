"""What was written is what is read with `schema=` of it, value and type, or it was refused with what to do instead."""

from __future__ import annotations

import decimal
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from curate.errors import ConfigError
from curate.formats.encoding import Format, ReadAs, detect
from curate.formats.file_slice import FileSlice
from curate.formats.rows import check_declared, read
from curate.objects.record import OutputFormat
from curate.writers.jsonl import json_lines
from curate.writers.writer import suffix
from tests.support.fake_store import FakeStore
from tests.support.writes import file_of

READ = {OutputFormat.PARQUET: Format.PARQUET, OutputFormat.JSONL: Format.JSONL, OutputFormat.CSV: Format.CSV}
RECORD: dict[str, Any] = {"rows": {}}
FLOATS = [0.5, -0.0, 1.5, math.nan, math.inf, -math.inf, 5.0]
TEXTS = ["", " a", 'q"u\n,ote', "NA", "null", "é\u2028", "007", "-1", "true", "\r", "'"]
COUNTS = [0, 1, -1, 86_399, 1_582_934_400, -(2**33)]


def numbers(type: pa.DataType, low: int, high: int) -> pa.Array:
    return pa.array([0, 1, low, high], type)


def arrays() -> dict[str, pa.Array]:
    """Returns an array with values of each type."""
    found = [pa.array([True, False]), pa.nulls(3)]
    for bits in (8, 16, 32, 64):
        found.append(numbers(getattr(pa, f"int{bits}")(), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
        found.append(numbers(getattr(pa, f"uint{bits}")(), 2, 2**bits - 1))
    found += [pa.array(np.array(FLOATS, np.float16)), pa.array(FLOATS, pa.float32()), pa.array([*FLOATS, 0.1, 1e300])]
    found.append(pa.array([0.1, 3.4e38], pa.float32()))
    for make, precision in ((pa.decimal32, 9), (pa.decimal64, 18), (pa.decimal128, 38), (pa.decimal256, 70)):
        digits = "9" * (precision - 3)
        found.append(pa.array([decimal.Decimal(f"-{digits}.125"), decimal.Decimal("0.500")], make(precision, 3)))
    found.append(pa.array([decimal.Decimal("1200"), decimal.Decimal("-100")], pa.decimal128(5, -2)))
    found += [pa.array(TEXTS, type) for type in (pa.string(), pa.large_string(), pa.string_view())]
    found += [
        pa.array([b"", b"a\x00", b"\xff,\n"], type) for type in (pa.binary(), pa.large_binary(), pa.binary_view())
    ]
    found.append(pa.array([b"abc", b"\x00\xff\n"], pa.binary(3)))
    found += [pa.array([0, 1, 18_321, -40_000], pa.int32()).cast(pa.date32())]
    found += [pa.array([0, 86_400_000, -86_400_000], pa.int64()).cast(pa.date64())]
    found += [pa.array([0, 1, 86_399], pa.time32("s")), pa.array([0, 1, 64, 86_399_999], pa.time32("ms"))]
    found += [pa.array([0, 1, 86_399_999_999], pa.time64("us")), pa.array([0, 1, 86_399_999_999_999], pa.time64("ns"))]
    for unit in ("s", "ms", "us", "ns"):
        counts = pa.array(COUNTS, pa.int64())
        found += [
            counts.cast(pa.timestamp(unit)),
            counts.cast(pa.timestamp(unit, "UTC")),
            counts.cast(pa.duration(unit)),
        ]
        found += [counts.cast(pa.timestamp(unit, "America/New_York")), counts.cast(pa.timestamp(unit, "+05:30"))]
    found.append(pa.array([pa.MonthDayNano([1, 2, 3]), pa.MonthDayNano([-1, 0, 0])]))
    found += [pa.array(["a", "b", "a", ""]).dictionary_encode(), pa.array([5, 7, 5]).dictionary_encode()]
    found += [pa.array([[1, 2], []], make(pa.int64())) for make in (pa.list_, pa.large_list, pa.list_view)]
    found.append(pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)))
    found += [pa.array([[[0.5]], [], [[], [math.inf, 2.0]]]), pa.array([{"a": 1, "b": "x"}, {"a": -1, "b": ""}])]
    found.append(pa.array([[("k", 1), ("l", 2)], []], pa.map_(pa.string(), pa.int64())))
    found.append(pa.array([[(1, 1), (2, 2)], []], pa.map_(pa.int64(), pa.int64())))
    found.append(pa.array([[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int64())))
    found.append(pa.array([[], []], pa.list_(pa.int64(), 0)))
    texts = [["a", "b", "a"], [], ["b"]]
    found += [pa.array(texts, make(pa.string())) for make in (pa.list_, pa.large_list, pa.list_view)]
    found.append(pa.array([[{"s": "a"}, {"s": "a"}], []], pa.list_view(pa.struct([("s", pa.string())]))))
    found.append(pa.array([{"v": one} for one in texts], pa.struct([("v", pa.list_view(pa.string()))])))
    for leaf in list(found):
        if leaf.type in _LEAVES:
            found.append(pa.ListArray.from_arrays([0, len(leaf)], leaf))
            found.append(pa.StructArray.from_arrays([leaf, pa.array(range(len(leaf)))], ["x", "n"]))
    found.append(pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["a", "b"])))
    tensor = pa.fixed_shape_tensor(pa.int32(), [2, 2])
    found.append(pa.ExtensionArray.from_storage(tensor, pa.array([[1, 2, 3, 4]], pa.list_(pa.int32(), 4))))
    found.append(pa.array([b"0123456789abcdef"], pa.uuid()))
    found.append(pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]))
    found.append(pa.array([{}, {}], pa.struct([])))
    return {f"{number} {array.type}": array for number, array in enumerate(found)}


_LEAVES = {
    pa.timestamp("us"),
    pa.timestamp("ns", "UTC"),
    pa.time32("s"),
    pa.time32("ms"),
    pa.time64("ns"),
    pa.duration("ms"),
    pa.date32(),
    pa.date64(),
    pa.decimal128(38, 3),
    pa.binary(),
    pa.string_view(),
    pa.binary_view(),
    pa.binary(3),
    pa.float64(),
    pa.float16(),
    pa.uint64(),
    pa.bool_(),
}
ARRAYS = arrays()


def written(table: pa.Table, format: OutputFormat) -> bytes:
    return file_of(table, format, record=RECORD)


def read_back(data: bytes, format: OutputFormat, schema: pa.Schema) -> pa.Table:
    """Returns what a dataset reads that was given `schema=`."""
    store = FakeStore()
    object = store.put(f"a{suffix(format, 'zstd')}", data)
    held = check_declared("read", READ[format], schema)
    how = ReadAs(READ[format], held)
    bad: list[Any] = []
    file = FileSlice(store, object, detect(object.uri, how))  # type: ignore[arg-type]
    tables = list(read(file, held, 1000, bad.append))
    assert bad == []
    return pa.concat_tables([held.empty_table(), *tables])


@pytest.mark.ci(300)
@pytest.mark.quick(100)
@pytest.mark.parametrize("format", READ)
@pytest.mark.parametrize("nulls", ["none", "first", "all", "sliced"])
@pytest.mark.parametrize("name", ARRAYS)
def test_what_is_written_is_read_or_was_refused(name: str, nulls: str, format: OutputFormat) -> None:
    array = ARRAYS[name]
    if nulls != "none":
        if pa.types.is_run_end_encoded(array.type) or pa.types.is_union(array.type):
            return
        values = array[:0] if nulls == "all" else array
        array = pa.concat_arrays([pa.nulls(2, array.type), values])[nulls == "sliced" :]
    table = pa.table({"v": array, "n": range(len(array))})
    refused = ""
    try:
        data = written(table, format)
    except ConfigError as error:
        refused = str(error)
    if refused:
        assert f"column 'v' is {array.type}" in refused
        assert "; " in refused
        return
    found = read_back(data, format, table.schema)
    assert found.schema == table.schema
    assert repr(found["v"].to_pylist()) == repr(table["v"].to_pylist())


@pytest.mark.parametrize("format", READ)
def test_what_is_refused(format: OutputFormat) -> None:
    """No more than that, or the rule above would hold of nothing."""
    refused = set()
    for name, array in ARRAYS.items():
        try:
            written(pa.table({"v": array}), format)
        except ConfigError:
            refused.add(name.partition(" ")[2].partition("<")[0].partition("(")[0].partition("[")[0])
    common = {"sparse_union", "struct", "month_day_nano_interval"}
    assert (
        refused
        == {
            OutputFormat.PARQUET: common
            | {"decimal128", "run_end_encoded", "fixed_size_list"},  # of a scale below 0, and of no elements
            OutputFormat.JSONL: common | {"map", "run_end_encoded", "extension"},  # of keys that are no text
            OutputFormat.CSV: common
            | {"binary", "large_binary", "binary_view", "fixed_size_binary", "run_end_encoded", "extension"}
            | {"list", "large_list", "list_view", "fixed_size_list", "map"},
        }[format]
    )
    plain = {name.partition(" ")[2] for name in ARRAYS} & {"struct<a: int64, b: string>", "map<string, int64>"}
    for name in plain if format is not OutputFormat.CSV else ():
        written(pa.table({"v": pa.nulls(1, ARRAYS[next(one for one in ARRAYS if one.endswith(name))].type)}), format)


def test_a_null_that_is_alone_in_its_row_is_no_empty_text() -> None:
    """A line with nothing in it is no row of CSV."""
    for array in (pa.array([1, None]), pa.array([0.5, None, math.nan]), pa.array(["a", ""])):
        table = pa.table({"v": array})
        found = read_back(written(table, OutputFormat.CSV), OutputFormat.CSV, table.schema)
        assert repr(found.to_pylist()) == repr(table.to_pylist())
    with pytest.raises(ConfigError, match="column 'v' is string and alone in its rows, and CSV cannot distinguish"):
        written(pa.table({"v": ["a", None]}), OutputFormat.CSV)


DAY = 86_400
DATED = (pa.date32(), pa.date64(), *(pa.timestamp(u, z) for u in ("s", "ms", "us") for z in (None, "UTC", "-08:00")))


def days(type: pa.DataType, *values: int) -> pa.Array:
    """Returns dates or instants as many days from 1970."""
    each = {"date32[day]": 1, "date64[ms]": DAY * 1000}.get(str(type)) or DAY * 1000 ** ["s", "ms", "us"].index(
        type.unit
    )
    return pa.array([each * one for one in values], pa.int32() if pa.types.is_date32(type) else pa.int64()).view(type)


@pytest.mark.parametrize("format", READ)
@pytest.mark.parametrize("type", DATED, ids=str)
def test_a_year_that_has_no_text_is_refused_where_there_is_text(type: pa.DataType, format: OutputFormat) -> None:
    """The last days that have one are read back; what came as text of five digits, or of another year, was a bad row
    for its reader, or a wrong one. Behind nulls, in slices, and within lists and structs, too."""
    wrapped = 36_525 * 655 + 2_400 * 100  # a year that 16 bits hold as one of four digits
    for array in (days(type, -719_528, 0, 2_932_896), pa.nulls(2, type)):
        assert read_back(written(pa.table({"v": array}), format), format, pa.schema([("v", type)]))["v"].equals(
            pa.chunked_array([array])
        )
    for bad in (-719_529, 2_932_897, wrapped):
        array = days(type, 0, bad)
        nested = [pa.ListArray.from_arrays([0, 2], array), pa.StructArray.from_arrays([array], ["x"])]
        for one in [array, *(nested if format is not OutputFormat.CSV else [])]:
            table = pa.table({"v": one})
            if format is OutputFormat.PARQUET:
                assert read_back(written(table, format), format, table.schema)["v"].equals(table["v"])
                continue
            with pytest.raises(
                ConfigError, match=rf"^column 'v' is .* and has {array[1].value} .* cast the column to int"
            ):
                written(table, format)
        if format is not OutputFormat.PARQUET:
            written(pa.table({"v": days(type, 0, bad).slice(0, 1)}), format)


def test_what_is_only_shown_has_a_count_for_a_year_without_text() -> None:
    """And no other year: `curate head` showed one, or called the file a broken one."""
    for type, shown in ((pa.date32(), "days"), (pa.timestamp("s"), "s"), (pa.timestamp("ms", "UTC"), "ms")):
        line = json_lines(pa.table({"v": days(type, 40_000_000)}))[0]
        assert line == f'{{"v":"{days(type, 40_000_000)[0].value} {shown} from 1970"}}\n'.encode()


@pytest.mark.parametrize(
    "value", [pa.map_(pa.string(), pa.int64()), pa.list_(pa.int8()), pa.struct([("x", pa.int8())])]
)
def test_a_dictionary_of_what_has_values_within_is_refused_by_json(value: pa.DataType) -> None:
    """Arrow makes none of values: each row was a bad one for who read it, or the reader failed."""
    of_two = pa.DictionaryArray.from_arrays(pa.array([0, None, 0], pa.int8()), pa.nulls(1, value))
    with pytest.raises(ConfigError, match=r"^column 'v' is dictionary<.* which JSON lines cannot store; "):
        written(pa.table({"v": of_two}), OutputFormat.JSONL)


def test_a_key_twice_in_a_map_is_refused_by_json() -> None:
    table = pa.table({"v": pa.array([[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int64()))})
    with pytest.raises(ConfigError, match=r"column 'v' is map<string, int64> and has a map with the key 'k' twice"):
        written(table, OutputFormat.JSONL)


@pytest.mark.parametrize("format", [OutputFormat.JSONL, OutputFormat.CSV])
@pytest.mark.parametrize("zone", ["UTC", "Europe/Paris", "America/New_York"])
def test_the_first_and_last_instant_of_years_with_four_digits(zone: str, format: OutputFormat) -> None:
    """They are in the year 10000, or 0, where the zone is."""
    instants = pa.array([-62_135_596_800, 253_402_300_799], pa.int64()).cast(pa.timestamp("s", zone))
    table = pa.table({"v": instants})
    assert read_back(written(table, format), format, table.schema).equals(table)
