"""Rows have the path of their file, and what its folders say, as columns: of each format, consumed and written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import curate
from curate.dataset.dataset import Dataset
from curate.errors import ConfigError, SchemaMismatch
from curate.formats.file_columns import NO_VALUE, partition_schema, partition_values

Put = Callable[[Path, int], Any]


def put_parquet(path: Path, number: int) -> None:
    pq.write_table(pa.table({"text": [f"{number}", "x"]}), path)


PUT: dict[str, tuple[str, Put]] = {
    "read_parquet": (".parquet", put_parquet),
    "read_json": (".jsonl", lambda path, number: path.write_text(f'{{"text": "{number}"}}\n{{"text": "x"}}\n')),
    "read_csv": (".csv", lambda path, number: path.write_text(f"text\nt{number}\nx\n")),
    "read_text": (".txt", lambda path, number: path.write_text(f"{number}\nx\n")),
    "read_binary_files": (".bin", lambda path, number: path.write_bytes(b"%d" % number)),
}
FOLDERS = ["year=2023/lang=en", "year=2023/lang=de", f"year=2024/lang={NO_VALUE}"]


def fill(folder: Path, method: str, folders: list[str] = FOLDERS) -> None:
    """One file of a format in each of these folders."""
    suffix, put = PUT[method]
    for number, name in enumerate(folders):
        (folder / name).mkdir(parents=True)
        put(folder / name / f"a{suffix}", number)


@pytest.mark.parametrize("method", PUT)
def test_rows_have_path_and_folders(tmp_path: Path, method: str) -> None:
    """Behind the columns of the file, the path last; the same rows when they are written, in the same order."""
    fill(tmp_path / "in", method)
    ds: Dataset = getattr(curate, method)(tmp_path / "in", include_paths=True, partitioning="hive")
    assert ds.schema().names[1:] == ["year", "lang", "path"]
    assert [ds.schema().field(one).type for one in ("year", "lang", "path")] == [pa.int32(), pa.string(), pa.string()]
    rows = ds.take_all()
    assert len(rows) == (3 if method == "read_binary_files" else 6)
    for row in rows:
        named = partition_values(row["path"])
        assert Path(row["path"]).is_file()
        assert (row["year"], row["lang"]) == (int(named["year"] or 0), named["lang"])
    assert {row["lang"] for row in rows} == {"en", "de", None}
    assert ds.write_parquet(tmp_path / "out", backend="inline").state == "complete"
    assert curate.read_parquet(tmp_path / "out").take_all() == rows
    assert ds.select_columns(["path", "year"]).take_all() == [
        {"path": row["path"], "year": row["year"]} for row in rows
    ]
    assert ds.count() == ds.select_columns("lang").count() == len(rows)
    assert ds.sort("year", descending=True).take(1)[0]["year"] == 2024
    assert ds.filter(curate.col("year") == 2024).take_all() == [row for row in rows if row["year"] == 2024]


@pytest.mark.parametrize("method", ["read_parquet", "read_json", "read_csv"])
def test_folders_are_columns_unless_told_otherwise(tmp_path: Path, method: str) -> None:
    """As in ray.data. Without it nothing of an identity changes."""
    fill(tmp_path / "in", method)
    read = getattr(curate, method)
    assert read(tmp_path / "in").columns() == ["text", "year", "lang"]
    plain = read(tmp_path / "in", partitioning=None)
    assert plain.columns() == ["text"]
    assert not {"partitions", "include_paths"} & plain._plan.source.how.identity().keys()
    assert read(tmp_path / "in" / FOLDERS[0]).columns() == ["text", "year", "lang"]


@pytest.mark.parametrize("declared", [False, True], ids=["inferred", "declared"])
def test_they_are_behind_columns_that_only_later_files_have(tmp_path: Path, declared: bool) -> None:
    """Consumed and written; where a schema names them, they are where it does."""
    for year, text in ((2023, '{"a": 1}\n'), (2024, '{"a": 2, "b": "x"}\n')):
        (tmp_path / f"in/year={year}").mkdir(parents=True)
        (tmp_path / f"in/year={year}/rows.jsonl").write_text(text)
    expected = ["a", "year", "b", "path"] if declared else ["a", "b", "year", "path"]
    types = {"a": pa.int64(), "b": pa.string(), "year": pa.int32(), "path": pa.string()}
    schema = pa.schema([(name, types[name]) for name in expected]) if declared else None
    ds = curate.read_json(tmp_path / "in", include_paths=True, schema=schema)
    assert ds.schema().names == ds.to_arrow().column_names == expected
    assert ds.write_parquet(tmp_path / "out", backend="inline").state == "complete"
    written = [pq.ParquetFile(path).schema_arrow.names for path in sorted((tmp_path / "out").glob("year=*/*.parquet"))]
    assert written == [expected] * 2


def test_of_parquet_as_pyarrow_reads_them(tmp_path: Path) -> None:
    """Types, values and rows; of columns that are pushed into the read, and rows that one file is cut into."""
    fill(tmp_path / "in", "read_parquet")
    ds = curate.read_parquet(tmp_path / "in")
    expected = pads.dataset(tmp_path / "in", partitioning="hive").to_table()
    order = [("text", "ascending"), ("lang", "ascending")]
    assert ds.to_arrow().sort_by(order) == expected.sort_by(order)
    only = ds.filter((curate.col("year") == 2023) & (curate.col("text") == "x")).select_columns("lang")
    assert [row["lang"] for row in only.iter_rows()] == ["de", "en"]
    assert "reads" in only.explain()
    assert ds.drop_columns("text").take_all() == [{"year": row["year"], "lang": row["lang"]} for row in ds.iter_rows()]
    assert ds.repartition(4).write_parquet(tmp_path / "even", backend="inline").total == 4
    assert curate.read_parquet(tmp_path / "even").take_all() == ds.take_all()
    ds.sort("lang").write_parquet(tmp_path / "sorted", backend="inline")
    assert curate.read_parquet(tmp_path / "sorted").take_all() == ds.sort("lang").take_all()


@given(
    st.lists(st.sampled_from(["1", "007", "-3", "x", "1.5", "99999999999", NO_VALUE, "a%20b"]), min_size=1, max_size=4)
)
def test_types_are_those_of_pyarrow(tmp_path_factory: pytest.TempPathFactory, values: list[str]) -> None:
    """Numbers of 32 bits, if all values are; else texts, decoded."""
    folder = tmp_path_factory.mktemp("in")
    for value in dict.fromkeys(values):
        (folder / f"k={value}").mkdir()
        pq.write_table(pa.table({"n": [1]}), folder / f"k={value}" / "a.parquet")
    if set(values) == {NO_VALUE}:  # of which pyarrow says that it does not know
        assert partition_schema([f"{folder}/k={NO_VALUE}/a"]) == pa.schema([("k", pa.string())])
        return
    found = pads.dataset(folder, partitioning="hive")
    ds = curate.read_parquet(folder)
    assert ds.schema() == found.schema
    assert sorted(map(str, ds.to_arrow()["k"].to_pylist())) == sorted(map(str, found.to_table()["k"].to_pylist()))


def test_what_files_have_inside_is_read_from_them(tmp_path: Path) -> None:
    """So that what was written with such a column comes back as it was; a declared type reads the folders."""
    fill(tmp_path / "in", "read_parquet")
    ds = curate.read_parquet(tmp_path / "in").with_column("year", curate.col("year") + 100)
    ds.write_parquet(tmp_path / "out", backend="inline")
    assert curate.read_parquet(tmp_path / "out").take_all() == ds.take_all()
    declared = pa.schema([("year", pa.string()), ("text", pa.string())])
    found = curate.read_parquet(tmp_path / "in", schema=declared, include_paths=True)
    assert found.columns() == ["year", "text", "lang", "path"]
    assert found.take(1)[0]["year"] == "2023"


def test_a_file_without_a_folder_has_no_value(tmp_path: Path) -> None:
    """Null, as where a folder says so."""
    fill(tmp_path / "in", "read_json", ["year=2024", "other"])
    rows = curate.read_json(tmp_path / "in").take_all()
    assert {row["year"] for row in rows} == {2024, None}


def test_files_without_rows_tell_no_column(tmp_path: Path) -> None:
    """The first one that has rows does, as ever."""
    fill(tmp_path / "in", "read_json", ["year=2024"])
    (tmp_path / "in" / "year=2023").mkdir()
    (tmp_path / "in" / "year=2023" / "a.jsonl").touch()
    ds = curate.read_json(tmp_path / "in", include_paths=True)
    assert ds.columns() == ["text", "year", "path"]
    assert [row["year"] for row in ds.iter_rows()] == [2024, 2024]
    assert ds.write_json(tmp_path / "out", backend="inline").books.rows_out == 2


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    """With the file, and what to write."""
    fill(tmp_path / "in", "read_parquet")
    declared = pa.schema([("text", pa.string()), ("lang", pa.int8())])
    with pytest.raises(SchemaMismatch, match=r"its folder says lang=de, and lang is int8.*partitioning=None"):
        curate.read_parquet(tmp_path / "in", schema=declared).take_all()
    with pytest.raises(ConfigError, match=r"partitioning='dir'\): expected 'hive'"):
        curate.read_parquet(tmp_path / "in", partitioning="dir")
    curate.read_parquet(tmp_path / "in", include_paths=True).write_parquet(tmp_path / "out", backend="inline")
    with pytest.raises(ConfigError, match=r"a\.parquet already has a column 'path'; omit it"):
        curate.read_parquet(tmp_path / "out", include_paths=True)


def test_folders_of_two_names_have_two_values() -> None:
    """Whatever follows a percent sign: bytes that are no text in UTF-8 were no URL-encoding, and stay as they are."""
    names = [f"{before}%{byte:02X}{after}" for byte in range(256) for before in ("", "a") for after in ("", "é")]
    values = [partition_values(f"in/k={name}/a.jsonl")["k"] for name in names]
    assert len(set(values)) == len(names)
    assert [decoded for decoded, name in zip(values, names, strict=True) if decoded != name] == [
        f"{before}{chr(byte)}{after}" for byte in range(128) for before in ("", "a") for after in ("", "é")
    ]
