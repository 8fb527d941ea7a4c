"""Every type of Arrow comes through every operator with its values and its type, or is refused with a reason.

`TYPES` has some values of each type, `WAYS` what is done to rows that changes nothing of them. Nulls are first (as many
as the middle batch size, so that a batch has nothing else), none or all; batches are of one row, of three, and of all.
"""

from __future__ import annotations

import decimal
import itertools
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import pytest

import curate
from curate.dataset.dataset import Dataset
from tests.support.sweeps import Mode

pytest.importorskip("pandas")

BATCHES = (1, 3, 4096)
NULLS = ("first", "none", "all")

D = decimal.Decimal
EARLY, LATE = datetime(1969, 12, 31, 23, 59, 59), datetime(2026, 3, 29, 1, 30, 7)
EAST = timezone(timedelta(hours=5, minutes=30))
TENSOR = np.arange(30, dtype=np.uint8).reshape(5, 2, 3)


def of(type: pa.DataType, *values: Any) -> pa.Array:
    return pa.array(values, type)


def numbers(type: pa.DataType, *values: int) -> pa.Array:
    """Returns values of a type as they are stored: more than Python may have a type for."""
    return pa.array(values, pa.int64() if type.bit_width == 64 else pa.int32()).view(type)


def zoned(zone: timezone) -> list[datetime]:
    return [one.replace(tzinfo=zone) for one in (EARLY, LATE) * 2]


def union(mode: str) -> pa.Array:
    codes = pa.array([0, 1, 0, 1, 0], pa.int8())
    if mode == "sparse":
        children = [pa.array([1, 0, 2, 0, 3]), pa.array(["", "a", "", "b", ""])]
        return pa.UnionArray.from_sparse(codes, children, ["n", "s"])
    children = [pa.array([1, 2, 3]), pa.array(["a", "b"])]
    return pa.UnionArray.from_dense(codes, pa.array([0, 0, 1, 1, 2], pa.int32()), children, ["n", "s"])


DATES = (date(1, 1, 1), date(1969, 12, 31), date(2026, 3, 29), date(9999, 12, 31), date(1970, 1, 1))
TEXTS = ("", "a", "ü\n", "a,b", "nan")
STRUCT = pa.struct([("n", pa.int32()), ("t", pa.timestamp("ns", "UTC")), ("l", pa.list_(pa.float32()))])
STRUCTS = ({"n": 1, "t": LATE.replace(tzinfo=UTC), "l": [0.5, None]}, {"n": None, "t": None, "l": None})

TYPES: dict[str, pa.Array] = {
    "null": pa.nulls(5),
    "bool": of(pa.bool_(), True, False, True, True, False),
    "int8": of(pa.int8(), -128, 127, 0, 1, 2),
    "int16": of(pa.int16(), -(2**15), 2**15 - 1, 0, 1, 2),
    "int32": of(pa.int32(), -(2**31), 2**31 - 1, 0, 1, 2),
    "int64": of(pa.int64(), -(2**53), 2**53, 0, 1, 2),
    "int64 beyond floats": of(pa.int64(), -(2**63), 2**63 - 1, 2**53 + 1, 1, 2),
    "uint8": of(pa.uint8(), 255, 0, 1, 2, 3),
    "uint16": of(pa.uint16(), 2**16 - 1, 0, 1, 2, 3),
    "uint32": of(pa.uint32(), 2**32 - 1, 0, 1, 2, 3),
    "uint64": of(pa.uint64(), 2**64 - 1, 0, 1, 2, 3),
    "float16": of(pa.float16(), *np.array([0.1, -0.0, np.inf, np.nan, 1], np.float16)),
    "float32": of(pa.float32(), *np.array([0.1, -0.0, np.inf, np.nan, 1], np.float32)),
    "float64": of(pa.float64(), 0.1, -0.0, float("inf"), float("nan"), 1.0),
    "float64, whole": of(pa.float64(), 0.0, 1.0, 2.0, 3.0, 4.0),
    "decimal32": of(pa.decimal32(7, 2), D("0.25"), D("10.25"), D("-99999.99"), D(0), D(1)),
    "decimal64": of(pa.decimal64(15, 3), D("0.25"), D("10.25"), D("-99999.99"), D(0), D(1)),
    "decimal128": of(pa.decimal128(12, 2), D("0.25"), D("10.25"), D("-99999.99"), D(0), D(1)),
    "decimal256": of(pa.decimal256(50, 10), D("0.25"), D("1" * 40), D("-99999.99"), D(0), D(1)),
    "decimal, negative scale": of(pa.decimal128(5, -2), D(100), D(1200), D(-100), D(0), D("1e6")),
    "string": of(pa.string(), *TEXTS),
    "large_string": of(pa.large_string(), *TEXTS),
    "string_view": of(pa.string_view(), *TEXTS),
    "binary": of(pa.binary(), b"", b"\xff", b"a\0b", b"abc", b" "),
    "large_binary": of(pa.large_binary(), b"", b"\xff", b"a\0b", b"abc", b" "),
    "binary_view": of(pa.binary_view(), b"", b"\xff", b"a\0b", b"more than twelve bytes", b" "),
    "fixed_size_binary": of(pa.binary(3), b"abc", b"\0\0\0", b"\xff\xfe\xfd", b"xyz", b"   "),
    "date32": of(pa.date32(), *DATES),
    "date64": of(pa.date64(), *DATES),
    "time32[s]": numbers(pa.time32("s"), 0, 1, 86_399, 5, 6),
    "time32[ms]": numbers(pa.time32("ms"), 0, 1, 86_399_999, 5, 6),
    "time64[us]": numbers(pa.time64("us"), 0, 1, 86_399_999_999, 5, 6),
    "time64[ns]": numbers(pa.time64("ns"), 0, 1_000, 86_399_999_999_000, 5_000, 6_000),
    "time64[ns], finer": numbers(pa.time64("ns"), 1, 1_001, 86_399_999_999_999, 5, 6),
    "timestamp[s]": of(pa.timestamp("s"), EARLY, LATE, datetime(9999, 1, 1), datetime(1, 1, 1), datetime(1970, 1, 1)),
    "timestamp[ms]": numbers(pa.timestamp("ms"), -1, 1, 1_700_000_000_123, 0, 5),
    "timestamp[us]": numbers(pa.timestamp("us"), -1, 1, 1_700_000_000_000_123, 0, 5),
    "timestamp[ns]": numbers(pa.timestamp("ns"), -1, 1, 1_700_000_000_000_000_123, 1_000_000_001, 0),
    "timestamp[us, UTC]": of(pa.timestamp("us", "UTC"), *zoned(UTC), None),
    "timestamp[ns, Paris]": numbers(pa.timestamp("ns", "Europe/Paris"), -1, 1, 1_774_744_200_000_000_001, 0, 5),
    "timestamp[s, +05:30]": of(pa.timestamp("s", "+05:30"), *zoned(EAST), None),
    "duration[s]": numbers(pa.duration("s"), -1, 1, 86_400, 0, 5),
    "duration[ms]": numbers(pa.duration("ms"), -1, 1, 86_400, 0, 5),
    "duration[us]": numbers(pa.duration("us"), -1, 1, 86_400, 0, 5),
    "duration[ns]": numbers(pa.duration("ns"), -1, 1, 1_000_000_001, 0, 5),
    "interval": of(pa.month_day_nano_interval(), *(pa.MonthDayNano([n, -n, n * 7]) for n in range(5))),
    "list": of(pa.list_(pa.int64()), [1, 2], [], [3], [2**62 + 1], [0]),
    "list with nulls": of(pa.list_(pa.int16()), [1, None], [], [None], [3], None),
    "list of floats": of(pa.list_(pa.float32()), [0.5, float("nan")], [], [1.0], [2.0], [3.0]),
    "list of texts": of(pa.list_(pa.large_string()), ["a", None], [], ["b"], ["c"], [""]),
    "list of views": of(pa.list_(pa.string_view()), ["a", None], [], ["more than twelve bytes"], ["c"], None),
    "list of fixed_size_binary": of(pa.list_(pa.binary(2)), [b"ab", None], [], [b"\0\xff"], [b"cd"], None),
    "list of dictionaries": of(pa.list_(pa.dictionary(pa.int8(), pa.string())), ["a", "b"], [], ["a", None], [], None),
    "list of times": of(pa.list_(pa.timestamp("ns", "UTC")), [LATE.replace(tzinfo=UTC)], [], [None], [], []),
    "list of decimals": of(pa.list_(pa.decimal128(9, 3)), [D("0.5"), None], [], [D(7)], [], []),
    "list of lists": of(pa.list_(pa.list_(pa.int8())), [[1], [], None], [], [[2, 3]], [], [[4]]),
    "list of structs": of(pa.list_(STRUCT), [STRUCTS[0], None], [], [STRUCTS[1]], [], []),
    "large_list": of(pa.large_list(pa.string()), ["a"], [], ["b", None], [], ["c"]),
    "fixed_size_list": of(pa.list_(pa.float32(), 2), [0.5, 1.5], [2.0, None], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]),
    "fixed_size_list of none": of(pa.list_(pa.float32(), 0), [], [], [], [], []),
    "fixed_size_list of views": of(
        pa.list_(pa.string_view(), 2), ["a", None], ["more than twelve bytes", ""], None, ["b", "c"], None
    ),
    "list_view": of(pa.list_view(pa.int32()), [1], [], [2, None], [], [3]),
    "large_list_view": of(pa.large_list_view(pa.int32()), [1], [], [2, None], [], [3]),
    "struct": of(STRUCT, *STRUCTS, *STRUCTS, STRUCTS[0]),
    "struct of structs": of(pa.struct([("s", STRUCT)]), {"s": STRUCTS[0]}, {"s": None}, {"s": STRUCTS[1]}, {}, {}),
    "struct of views": of(pa.struct([("v", pa.string_view())]), {"v": "a"}, {"v": None}, {"v": "c"}, {}, {}),
    "map": of(pa.map_(pa.string(), pa.int32()), [("a", 1), ("b", None)], [], [("a", 2), ("a", 3)], [], []),
    "map of lists": of(pa.map_(pa.int8(), pa.list_(pa.string())), [(1, ["x"])], [], [(2, None)], [(3, [])], []),
    "dictionary": of(pa.string(), "a", "b", "a", "c", "b").dictionary_encode(),
    "dictionary, small": of(pa.dictionary(pa.uint8(), pa.large_string()), "a", "b", "a", "c", "b"),
    "dictionary, ordered": of(pa.dictionary(pa.int16(), pa.string(), ordered=True), "a", "b", "a", "c", "b"),
    "dictionary of numbers": of(pa.dictionary(pa.int32(), pa.int16()), 5, 6, 5, 7, 6),
    "dictionary of dates": of(pa.date32(), *(date(2026, 1, n) for n in (1, 2, 1, 3, 2))).dictionary_encode(),
    "dictionary of durations": numbers(pa.duration("ms"), -1, 1, -1, 86_400_001, 1).dictionary_encode(),
    "dictionary of times": numbers(pa.timestamp("ns", "UTC"), -1, 1, -1, 5, 1).dictionary_encode(),
    "runs": pc.run_end_encode(of(pa.string(), "a", "a", "b", "b", "b"), run_end_type=pa.int16()),
    "runs of numbers": pc.run_end_encode(of(pa.int8(), 1, 1, 2, 2, 2)),
    "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(TENSOR),
    "tensor, plain": pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.float32(), (2,)), of(pa.list_(pa.float32(), 2), *([n, n + 0.5] for n in range(5)))
    ),
    "tensor, permuted": pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.uint8(), (2, 3), permutation=[1, 0]),
        of(pa.list_(pa.uint8(), 6), *TENSOR.reshape(5, 6).tolist()),
    ),
    "tensor of none": pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.float32(), (2, 0)), of(pa.list_(pa.float32(), 0), [], [], [], [], [])
    ),
    "uuid": of(pa.uuid(), *(uuid.UUID(int=n * 2**100 + 1) for n in range(5))),
    "json": of(pa.json_(), "{}", "[1]", "null", '"a"', "1"),
    "bool8": pa.ExtensionArray.from_storage(pa.bool8(), of(pa.int8(), 1, 0, 1, 1, 0)),
    "sparse_union": union("sparse"),
    "dense_union": union("dense"),
}  # fmt: skip


def with_nulls(array: pa.Array, nulls: str) -> pa.ChunkedArray:
    none = pa.nulls(3 if nulls == "first" else len(array), array.type)
    return pa.chunked_array({"first": [none, array], "none": [array], "all": [none]}[nulls])


def rows_of(columns: dict[str, pa.ChunkedArray]) -> pa.Table:
    count = len(next(iter(columns.values())))
    return pa.table({"id": range(count), "k": [n // 2 for n in range(count)], **columns})


def identity(value: Any) -> Any:
    return value


# What is done

Way = Callable[[Dataset, int, Path], Dataset]
"""Does something to rows in batches of a size, which leaves them what they are."""


def cut(ds: Dataset, size: int) -> Dataset:
    return ds.map_batches(identity, batch_size=size)


BY_CODE: dict[str, Way] = {
    "map": lambda ds, size, _: cut(ds, size).map(identity),
    "flat_map": lambda ds, size, _: cut(ds, size).flat_map(lambda row: [row]),
    "filter": lambda ds, size, _: cut(ds, size).filter(lambda row: row["id"] >= 0),
    "map_batches pyarrow": lambda ds, size, _: ds.map_batches(identity, batch_size=size),
    "map_batches numpy": lambda ds, size, _: ds.map_batches(identity, batch_size=size, batch_format="numpy"),
    "map_batches pandas": lambda ds, size, _: ds.map_batches(identity, batch_size=size, batch_format="pandas"),
    "filter by an expression": lambda ds, size, _: cut(ds, size).filter(pc.field("id") >= 0),
    "with_column": lambda ds, size, _: cut(ds, size).with_column("k", pc.field("k") + 0),
}

EXCHANGES: dict[str, Way] = {
    "sort": lambda ds, size, _: cut(ds, size).sort("id", descending=True).sort("id"),
    "join": lambda ds, size, _: cut(ds, size).join(curate.range(8), on="id"),
    "map_groups pyarrow": lambda ds, size, _: cut(ds, size).groupby("k").map_groups(identity),
    "map_groups numpy": lambda ds, size, _: cut(ds, size).groupby("k").map_groups(identity, batch_format="numpy"),
    "map_groups pandas": lambda ds, size, _: cut(ds, size).groupby("k").map_groups(identity, batch_format="pandas"),
}


def written(ds: Dataset, folder: Path, format: str) -> Dataset:
    """Writes and reads back, with the schema of what was written."""
    summary = getattr(ds, f"write_{format}")(folder / "out", backend="inline")
    if summary.state != "complete":
        [error, *_] = {failure.error for failure in summary.failures}
        raise NotWritten(error)
    return getattr(curate, f"read_{format}")(folder / "out", schema=ds.schema())


class NotWritten(Exception):
    """A write that is not complete."""


WRITES: dict[str, Way] = {
    "parquet": lambda ds, _, folder: written(ds, folder, "parquet"),
    "json": lambda ds, _, folder: written(ds, folder, "json"),
    "csv": lambda ds, _, folder: written(ds, folder, "csv"),
    "map, and parquet": lambda ds, size, folder: written(cut(ds, size).map(identity), folder, "parquet"),
}


# What is the same


def told(array: pa.Array) -> list[Any]:
    """Returns the values of an array as what can be compared, with all that they have."""
    type = array.type
    if pt.is_dictionary(type):
        return told(array.dictionary_decode())
    if pt.is_run_end_encoded(type):
        return told(pc.run_end_decode(array))
    if isinstance(type, pa.BaseExtensionType):
        return told(array.storage)
    if pt.is_union(type):
        return [repr(one) for one in array.to_pylist()]
    if pt.is_struct(type):
        fields = [told(field) for field in array.flatten()]
        values = [dict(zip(type.names, one, strict=True)) for one in zip(*fields, strict=True)]
        return [value if valid else None for value, valid in zip(values, array.is_valid().to_pylist(), strict=True)]
    if pt.is_map(type):
        return [None if one is None else [tuple(map(repr, pair)) for pair in one] for one in array.to_pylist()]
    if pt.is_nested(type):
        return [told(one.values) if one.is_valid else None for one in array]
    if pt.is_temporal(type) and not pt.is_interval(type):
        return array.view(pa.int32() if type.bit_width == 32 else pa.int64()).to_pylist()
    return [repr(one) for one in array.to_pylist()]


def compare(found: pa.Table, expected: pa.Table) -> None:
    assert found.column_names == expected.column_names
    for name in expected.column_names:
        assert found[name].type == expected[name].type, name
        assert told(found[name].combine_chunks()) == told(expected[name].combine_chunks()), name


# What is refused, and why: nothing else is

Refused = dict[tuple[str, str], str]
"""Why, by way and type."""

NO_PYTHON = "with values that Python cannot represent exactly"
NO_EXCHANGE = "which an exchange cannot move"
UNMOVED = ("list_view", "large_list_view", "sparse_union", "dense_union")
FINER = "time64[ns], finer"

REFUSED: Refused = {
    **{(way, FINER): NO_PYTHON for way in ("map", "flat_map", "filter", "map_batches numpy", "map_groups numpy")},
    **{(way, name): NO_EXCHANGE for way in EXCHANGES for name in UNMOVED},
}


def names_for(way: str, nulls: str) -> list[str]:
    """Returns the types that are not refused there; a union has no nulls of its own."""
    return [name for name in TYPES if (way, name) not in REFUSED and (nulls == "none" or "union" not in name)]


def check(way: Way, names: list[str], nulls: str, size: int, folder: Path) -> None:
    table = rows_of({name: with_nulls(TYPES[name], nulls) for name in names})
    compare(way(curate.from_arrow(table), size, folder).to_arrow(), table)


@pytest.mark.ci(12)
@pytest.mark.quick(4)
@pytest.mark.parametrize("size", BATCHES)
@pytest.mark.parametrize("nulls", NULLS)
@pytest.mark.parametrize("way", BY_CODE)
def test_what_user_code_returns_as_it_came_is_what_came(way: str, nulls: str, size: int, tmp_path: Path) -> None:
    """In every format, whatever the batches: the same values, of the same types."""
    check(BY_CODE[way], names_for(way, nulls), nulls, size, tmp_path)


@pytest.mark.ci(7)
@pytest.mark.quick(2)
@pytest.mark.parametrize("nulls", NULLS)
@pytest.mark.parametrize("way", EXCHANGES)
def test_what_goes_through_an_exchange_is_what_came(way: str, nulls: str, tmp_path: Path) -> None:
    """Also what run files hold in a plainer way, and where user code before it leaves the schema to its rows."""
    check(EXCHANGES[way], names_for(way, nulls), nulls, 3, tmp_path)


@pytest.mark.parametrize(("way", "name"), REFUSED)
def test_what_cannot_be_is_refused_with_a_reason(way: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(curate.CurateError, match=REFUSED[way, name]):
        check({**BY_CODE, **EXCHANGES}[way], [name], "none", 3, tmp_path)


@pytest.mark.slow
@pytest.mark.ci(6)
@pytest.mark.parametrize("name", TYPES)
def test_each_type_alone(name: str, tmp_path: Path, mode: Mode) -> None:
    """What holds beside other columns holds alone, at every batch size and with all nulls: each way at one of them but
    for the night, and at another one with the next type."""
    every = [*itertools.product(NULLS, BATCHES)]
    for number, (way, do) in enumerate({**BY_CODE, **EXCHANGES}.items()):
        found = [(nulls, size) for nulls, size in every if name in names_for(way, nulls)]
        one = ([*TYPES].index(name) + number) % max(1, len(found))
        for nulls, size in found if mode is Mode.NIGHTLY else found[one : one + 1]:
            check(do, [name], nulls, size, tmp_path / f"{nulls}-{number}-{size}")


# Written and read back


NO_PARQUET = (
    "decimal, negative scale",
    "interval",
    "fixed_size_list of none",
    "runs",
    "runs of numbers",
    "tensor of none",
    "sparse_union",
    "dense_union",
)
NO_TEXT = (
    "map",
    "map of lists",
    "runs",
    "runs of numbers",
    "tensor",
    "tensor, plain",
    "tensor, permuted",
    "tensor of none",
    "uuid",
    "json",
    "bool8",
    "sparse_union",
    "dense_union",
)
"""Types that neither JSON nor CSV has anything for."""
UNWRITTEN: dict[str, tuple[str, ...]] = {
    "parquet": NO_PARQUET,
    "json": (
        "interval",
        "list of dictionaries",
        *NO_TEXT,
    ),
    "csv": (
        "binary",
        "large_binary",
        "binary_view",
        "fixed_size_binary",
        "interval",
        "list",
        "list with nulls",
        "list of floats",
        "list of texts",
        "list of views",
        "list of fixed_size_binary",
        "list of dictionaries",
        "list of times",
        "list of decimals",
        "list of lists",
        "list of structs",
        "large_list",
        "fixed_size_list",
        "fixed_size_list of none",
        "fixed_size_list of views",
        "list_view",
        "large_list_view",
        "struct",
        "struct of structs",
        "struct of views",
        *NO_TEXT,
    ),
    "map, and parquet": (*NO_PARQUET, FINER),
}
"""Types that a format refuses, by the way that they are written: with the column and its type."""


@pytest.mark.ci(6)
@pytest.mark.parametrize("nulls", NULLS)
@pytest.mark.parametrize("way", WRITES)
def test_what_is_written_is_read_back(way: str, nulls: str, tmp_path: Path) -> None:
    """In each format, with the schema of what was written: the same values, of the same types."""
    names = [name for name in names_for(way, nulls) if name not in UNWRITTEN[way]]
    check(WRITES[way], names, nulls, 3, tmp_path)


@pytest.mark.ci(12)
@pytest.mark.slow
@pytest.mark.usefixtures("no_backoff")
@pytest.mark.parametrize(("way", "name"), [(way, name) for way, names in UNWRITTEN.items() for name in names])
def test_what_cannot_be_written_is_refused(way: str, name: str, tmp_path: Path) -> None:
    ds = curate.from_arrow(rows_of({"v": with_nulls(TYPES[name], "none")}))
    with pytest.raises((curate.CurateError, NotWritten), match="column 'v'"):
        WRITES[way](ds, 3, tmp_path)
