"""Arrays as numpy stores them: read as rows of `data`, written from one column, with the record behind the array."""

from __future__ import annotations

import gzip
import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import curate
from curate.errors import (
    ConfigError,
    CorruptInput,
    CurateError,
    PermissionDenied,
    SchemaMismatch,
    TransientStorageError,
)
from curate.formats.encoding import Encoding, Format, ReadAs
from curate.formats.file_slice import FileSlice
from curate.formats.read.npy import ArrayHeader, read_npy, sample_npy
from curate.objects.record import OutputFormat, read_record
from curate.observe.job import find_job
from curate.observe.preview import preview
from curate.observe.verify import verify
from curate.writers.writer import suffix
from tests.support.fake_store import FakeStore
from tests.support.writes import file_of, slices

RECORD: dict[str, Any] = {"shard": "a"}
ENCODING = Encoding(Format.NUMPY, how=ReadAs(Format.NUMPY))
ARRAYS = {
    "floats": np.arange(12, dtype="f4").reshape(3, 2, 2),
    "numbers": np.arange(5, dtype="u2"),
    "not finite": np.array([0.5, -0.0, np.nan, np.inf]),
    "big-endian": np.arange(5, dtype=">i4"),
    "by column": np.asfortranarray(np.arange(60.0).reshape(3, 4, 5)),
    "booleans": np.array([True, False]),
    "masks": np.array([[True, False], [False, False]]),
    "halves": np.full((2, 3), 0.5, "f2"),
    "more than a block": np.arange(300_000, dtype="i8").reshape(-1, 3),
}


def written(table: pa.Table, cuts: int = 1) -> bytes:
    return file_of(slices(table, cuts), OutputFormat.NUMPY, "none", RECORD)


def stored(array: Any, version: Any = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    return file.getvalue()


@pytest.mark.parametrize("name", ARRAYS)
def test_what_is_read_and_written_is_the_array(name: str, tmp_path: Path) -> None:
    """Value and type, as `numpy.load` and `ray.data` read it; `verify` and `head` know it, and a rerun has no work."""
    array = ARRAYS[name]
    np.save(tmp_path / "a.npy", array)
    ds = curate.read_numpy(tmp_path / "a.npy")
    assert np.array_equal(ds.take_batch(10**6, batch_format="numpy")["data"], array, equal_nan=True)
    out = tmp_path / "out"
    assert ds.write_numpy(out, column="data", backend="inline").state == "complete"
    found = np.load(out / "a.npy")
    assert np.array_equal(found, array, equal_nan=True)
    assert found.dtype == array.dtype.newbyteorder("=")
    assert np.array_equal(np.load(out / "a.npy", mmap_mode="r"), array, equal_nan=True)
    assert verify(str(out)).state == "ok"
    assert ds.write_numpy(out, column="data", backend="inline").dispatched == 0
    job = find_job(str(out))
    first = next(preview(job.ledger.store, job.output(0), *job.written_as))
    assert np.array_equal(orjson.loads(first)["data"], array[0].ravel() if array.ndim > 1 else array[0])
    changed = bytearray((out / "a.npy").read_bytes())
    changed[150] ^= 1
    (out / "a.npy").write_bytes(changed)
    assert [one.kind for one in verify(str(out)).findings] == ["damaged"]


@pytest.mark.parametrize(
    "first", [np.arange(3), np.arange(400_000), np.zeros((0, 2)), np.asfortranarray(np.ones((2, 2)))]
)
@pytest.mark.parametrize(
    ("behind", "refused"),
    [
        (stored(np.arange(2)), "another array begins behind its end; save each one in a file of its own"),
        (b"\1" * 8, "something else lies behind its .* entries, expected the end of the file"),
        (bytes(64), ""),
        (written(pa.table({"n": [1]}))[128 + 8 :], ""),
    ],
    ids=["array", "bytes", "zeros", "record"],
)
def test_what_lies_behind_an_array_is_no_row_that_is_lost(first: Any, behind: bytes, refused: str) -> None:
    """`numpy.save` appends to a file that is open, and `numpy.load` reads the first array without a word."""
    store = FakeStore()
    object = store.put("a.npy", stored(first) + behind)
    file = FileSlice(store, object, ENCODING)  # type: ignore[arg-type]
    tables = read_npy(file, sample_npy(file) or pa.schema([("data", pa.float64())]))
    if refused:
        with pytest.raises(CorruptInput, match=rf"^a\.npy: {refused}"):
            list(tables)
        return
    assert sum(map(len, tables)) == len(first)


def test_a_shape_below_nothing_is_no_array_without_rows() -> None:
    """It had no row to be missed."""
    store = FakeStore()
    object = store.put("a.npy", stored(np.ones((3, 2))).replace(b"(3, 2)", b"(-3,2)"))
    with pytest.raises(CorruptInput, match=r"has the shape \(-3, 2\)"):
        sample_npy(FileSlice(store, object, ENCODING))  # type: ignore[arg-type]


def test_versions_and_compression(tmp_path: Path) -> None:
    """Headers of all versions; compressed as a whole, too."""
    (tmp_path / "1.npy").write_bytes(stored(np.arange(2), (1, 0)))
    (tmp_path / "2.npy").write_bytes(stored(np.arange(2, 4), (2, 0)))
    (tmp_path / "3.npy").write_bytes(stored(np.arange(4, 5), (3, 0)))
    (tmp_path / "4.npy.gz").write_bytes(gzip.compress(stored(np.arange(5, 6, dtype="i2"))))
    rows = curate.read_numpy(tmp_path, include_paths=True).take_all()
    assert [(row["data"], Path(row["path"]).name[0]) for row in rows] == [
        (0, "1"), (1, "1"), (2, "2"), (3, "2"), (4, "3"), (5, "4")
    ]  # fmt: skip


@given(st.lists(st.text("a\0é😀", max_size=4), min_size=1, max_size=9), st.sampled_from(["U", ">U", "S"]))
def test_texts_are_what_numpy_says(texts: list[str], kind: str) -> None:
    """Wherever they have a NUL: of a file, in memory, as what a function returns; numpy knows none at the end."""
    array = np.array([one.encode() for one in texts] if kind == "S" else texts, kind)
    store = FakeStore()
    object = store.put("a.npy", stored(array))
    file = FileSlice(store, object, ENCODING)  # type: ignore[arg-type]
    [table] = read_npy(file, sample_npy(file))
    assert table["data"].to_pylist() == array.tolist()
    made = curate.range(len(array)).map_batches(lambda _: {"data": array}, batch_size=len(array))
    for ds in (curate.from_numpy(array), made):
        assert [row["data"] for row in ds.take_all()] == array.tolist()
    pairs = curate.from_numpy(np.stack([array, array], axis=1))
    assert [row["data"] for row in pairs.take_all()] == [[one, one] for one in array.tolist()]


@pytest.mark.parametrize("code", [0xD800, 0x110000, 0xFFFFFFFF])
def test_a_text_that_is_not_unicode_is_refused(code: int, tmp_path: Path) -> None:
    data = stored(np.array(["a", "b"]))
    (tmp_path / "a.npy").write_bytes(data[:-4] + code.to_bytes(4, "little"))
    with pytest.raises(CorruptInput, match=r"a\.npy: has a text that is not Unicode"):
        curate.read_numpy(tmp_path / "a.npy").take_all()


@pytest.mark.parametrize("error", [TransientStorageError("busy"), PermissionDenied("no"), ConnectionError("cut")])
def test_what_is_wrong_with_the_way_to_a_file_is_not_wrong_with_the_file(error: Exception) -> None:
    """It is read again, or refused for what it is, and not taken for a damaged array."""
    store = FakeStore()
    object = store.put("a.npy", stored(np.arange(3)))
    store.fail = error
    with pytest.raises(type(error), match=str(error)):
        sample_npy(FileSlice(store, object, ENCODING))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.array([{}]), "contains pickled Python objects"),
        (np.array(3), r"has the shape \(\)"),
        (np.zeros((2, 0)), r"has the shape \(2, 0\)"),
        (np.zeros(2, "c8"), "has entries of complex64"),
        (np.array([["a"]]), r"has entries of <U1 of the shape \(1,\)"),
    ],
)
def test_what_is_not_read(array: Any, reason: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises(CorruptInput, match=reason):
        curate.read_numpy(tmp_path / "a.npy")


def test_files_of_another_shape_or_type_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 3)))
    np.save(tmp_path / "b.npy", np.zeros((2, 4)))
    with pytest.raises(SchemaMismatch, match=r"b\.npy.*a\.npy has"):
        curate.read_numpy(tmp_path).take_all()
    np.save(tmp_path / "b.npy", np.zeros((0, 4)))
    assert len(curate.read_numpy(tmp_path).take_all()) == 2


@given(st.integers(0, 400), st.integers(0, 200), st.integers(0, 255))
def test_spoiled_files_end_in_an_error_of_curate(cut: int, at: int, value: int) -> None:
    """Also those that say that they have more rows than any memory."""
    from curate.formats.encoding import detect
    from curate.formats.rows import read, sample_schema

    data = bytearray(stored(np.arange(30.0).reshape(10, 3)))
    data[min(at, len(data) - 1)] = value
    store = FakeStore()
    object = store.put("a.npy", bytes(data[: max(1, len(data) - cut)]))
    encoding = detect("a.npy")
    try:
        schema = sample_schema(FileSlice(store, object, encoding))  # type: ignore[arg-type]
        bad: list[Any] = []
        for table in read(FileSlice(store, object, encoding), schema, 9, bad.append):  # type: ignore[arg-type]
            table.validate(full=True)
    except CurateError:
        pass


def test_an_array_that_says_more_than_there_is(tmp_path: Path) -> None:
    with (tmp_path / "a.npy").open("wb") as file:
        said: Any = {"descr": "<i8", "fortran_order": False, "shape": (9_999_999_999_999,)}
        np.lib.format.write_array_header_1_0(file, said)
    with pytest.raises(CorruptInput, match="ends after 0 of 9,999,999,999,999 entries"):
        curate.read_numpy(tmp_path).take_all()


@pytest.mark.parametrize("type", [pa.list_(pa.float32()), pa.large_list(pa.float32()), pa.list_(pa.float32(), 2)])
def test_lists_of_one_length_are_rows_of_a_matrix(type: pa.DataType) -> None:
    """The bytes do not depend on the tables that rows come in, and the record is behind them."""
    table = pa.table({"v": pa.array([[1, 2], [3, 4], [5, 6]], type)})
    data = written(table)
    assert data == written(table, cuts=3) == written(table.slice(0, 3), cuts=2)
    assert np.load(io.BytesIO(data)).tolist() == [[1, 2], [3, 4], [5, 6]]
    store = FakeStore()
    object = store.put("a" + suffix(OutputFormat.NUMPY, "none"), data)
    assert read_record(store, object, OutputFormat.NUMPY, "none") == RECORD  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1, None], "column 'v' has null"),
        ([[1], [1, 2]], r"column 'v' has .*\(1,\) and \(2,\)"),
        ([[1, None]], "column 'v' has null"),
        ([[]], "column 'v' has lists of 0 values"),
        (["a"], "column 'v' is string, which an array of numpy cannot store"),
        ([{"a": 1}], "column 'v' is struct<a: int64>, which an array of numpy cannot store"),
    ],
)
def test_what_is_not_written(values: list[Any], reason: str) -> None:
    table = pa.table({"v": values if values != [[]] else pa.array([[]], pa.list_(pa.int64()))})
    with pytest.raises(ConfigError, match=reason):
        written(table)


def test_lists_of_two_lengths_in_one_table() -> None:
    with pytest.raises(ConfigError, match="column 'v' has lists of 1 and of 2 values"):
        written(pa.table({"v": [[1], [1, 2]]}), cuts=2)


def test_one_column_of_several(tmp_path: Path) -> None:
    """`column=` names it; folders of values have the others; no row makes an array without entries."""
    ds = curate.from_items([{"n": 1, "v": [0.5], "year": 2024}, {"n": 2, "v": [1.5], "year": 2025}])
    ds.write_numpy(tmp_path / "out", column="v", partition_cols=["year"], backend="inline")
    read = curate.read_numpy(tmp_path / "out", partitioning="hive").take_all()
    assert [(row["data"].tolist(), row["year"]) for row in read] == [([0.5], 2024), ([1.5], 2025)]
    ds.filter(curate.col("n") > 2).write_numpy(tmp_path / "none", column="n", backend="inline")
    assert np.load(next((tmp_path / "none").glob("*.npy"))).shape == (0,)
    assert verify(str(tmp_path / "none")).state == "ok"
    with pytest.raises(ConfigError, match="there is no column 'w'"):
        ds.write_numpy(tmp_path / "x", column="w", backend="inline")
    with pytest.raises(ConfigError, match="expected the name of a column"):
        ds.write_numpy(tmp_path / "x", column=["v"], backend="inline")  # type: ignore[arg-type]


class Slow(io.BytesIO):
    """A stream that returns a byte at a time, as one of a store may."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(1, size) if size is not None and size >= 0 else size)


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_a_header_is_read_from_a_stream_that_returns_little(version: tuple[int, int]) -> None:
    """And from threads at once, of which each gets its own."""
    stored = []
    for rows in range(8):
        data = io.BytesIO()
        np.lib.format.write_array(data, np.zeros((rows, 3), np.int16), version=version)
        stored.append(data.getvalue())
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda data: ArrayHeader("a.npy", Slow(data)).rows, stored * 20))
    assert found == list(range(8)) * 20
