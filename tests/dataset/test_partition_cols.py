"""Rows are written to folders of their values: each output has rows of one folder; read back, they are the same."""

from __future__ import annotations

import datetime
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
from curate.errors import ConfigError
from curate.exchange.kinds import partition
from curate.exchange.kinds.partition import partition_folder
from curate.formats.file_columns import NO_VALUE, partition_values
from curate.observe.verify import verify
from curate.reduce import ranges

LANGS = ["", "a b/c=ü%", "..", None, "en", "\n"]
YEARS = [2024, None, 2025]


def rows(count: int = 60) -> list[dict[str, Any]]:
    return [{"n": n, "year": YEARS[n % 3], "lang": LANGS[n // 3 % 6]} for n in range(count)]


def inputs(folder: Path, files: int = 3) -> Dataset:
    """The rows, in several files."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows())
    for number in range(files):
        pq.write_table(table.slice(number * 20, 20), folder / f"{number}.parquet")
    return curate.read_parquet(folder)


def files(out: Path) -> dict[str, bytes]:
    """The outputs, by their names."""
    found = (path for path in out.rglob("part-*") if "_curate" not in path.parts)
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(found)}


def in_order(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda row: int(row["n"]))


@pytest.mark.parametrize(
    ("write", "read"),
    [("write_parquet", "read_parquet"), ("write_json", "read_json"), ("write_csv", "read_csv")],
)
def test_read_back(tmp_path: Path, write: str, read: str) -> None:
    """By curate; each output lacks the columns, and has rows of its own folder alone, as they came."""
    out = tmp_path / "out"
    ended = getattr(inputs(tmp_path / "in"), write)(out, partition_cols=["year", "lang"], backend="inline")
    assert (ended.state, ended.books.rows_in, ended.books.rows_out) == ("complete", 60, 60)
    found = getattr(curate, read)(out, include_paths=True).take_all()
    assert in_order([{name: row[name] for name in ("n", "year", "lang")} for row in found]) == rows()
    by_path: dict[str, list[int]] = {}
    for row in found:
        folders = partition_values(row["path"])
        assert (folders["year"], folders["lang"]) == (None if row["year"] is None else str(row["year"]), row["lang"])
        by_path.setdefault(row["path"], []).append(row["n"])
    assert len(by_path) == 18
    assert all(numbers == sorted(numbers) for numbers in by_path.values())


def test_read_back_by_arrow(tmp_path: Path) -> None:
    """Folders are those that Arrow writes, and it reads them."""
    table = pa.Table.from_pylist(rows())
    inputs(tmp_path / "in").write_parquet(tmp_path / "out", partition_cols=["year", "lang"], backend="inline")
    found = pads.dataset(tmp_path / "out", partitioning="hive").to_table()
    assert in_order(found.to_pylist()) == rows()
    pads.write_dataset(
        table, tmp_path / "arrow", format="parquet", partitioning=["year", "lang"], partitioning_flavor="hive"
    )
    made = {str(path.parent.relative_to(tmp_path / "arrow")) for path in (tmp_path / "arrow").rglob("*.parquet")}
    assert {name.rpartition("/")[0] for name in files(tmp_path / "out")} == made
    assert all(pq.read_schema(path).names == ["n"] for path in (tmp_path / "out").glob("year=*/*/*"))


@given(st.text(max_size=20) | st.none(), st.text(min_size=1, max_size=10))
def test_a_folder_says_its_value(value: str | None, key: str) -> None:
    """Whatever the text; but for names that readers skip."""
    try:
        name = partition_folder(key, value)
    except (ConfigError, UnicodeEncodeError):
        assert key[0] in "_." or value == NO_VALUE or not f"{key}{value}".isprintable()
        return
    assert "/" not in name
    assert partition_values(f"a/{name}/b") == {key: value}


def test_types_of_values(tmp_path: Path) -> None:
    """Texts in any way they are stored, integers, booleans, dates; nulls alone; what only functions tell."""
    day = datetime.date(2024, 2, 29)
    table = pa.table(
        {
            "n": [0, 1],
            "d": pa.array(["x", "y"]).dictionary_encode(),
            "b": [True, False],
            "day": [day, None],
            "z": pa.nulls(2),
        }
    )
    ds = curate.from_arrow(table).map_batches(lambda batch: batch)
    ds.write_parquet(tmp_path / "out", partition_cols=["d", "b", "day", "z"], backend="inline")
    assert list(files(tmp_path / "out")) == [
        f"d=x/b=true/day=2024-02-29/z={NO_VALUE}/part-00000-of-00001.parquet",
        f"d=y/b=false/day={NO_VALUE}/z={NO_VALUE}/part-00000-of-00001.parquet",
    ]
    declared = curate.read_parquet(tmp_path / "out", schema=table.schema)
    assert declared.sort("n").take_all() == table.to_pylist()


def test_large_partitions_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into outputs of rows as they came, one after the other; a small one is one output."""
    monkeypatch.setattr(ranges, "LEAST_BYTES", 1 << 20)
    count = 600_000
    table = pa.table({"n": range(count), "k": ["large"] * (count - 1) + ["small"]})
    ended = curate.from_arrow(table).write_parquet(tmp_path / "out", partition_cols="k", backend="inline")
    names = list(files(tmp_path / "out"))
    large = [name for name in names if name.startswith("k=large/")]
    assert ended.dispatched == len(names) > 3
    assert large == [f"k=large/part-{number:05d}-of-{len(large):05d}.parquet" for number in range(len(large))]
    assert names[len(large) :] == ["k=small/part-00000-of-00001.parquet"]
    found = [pq.read_table(tmp_path / "out" / name, partitioning=None)["n"].to_pylist() for name in large]
    assert [number for numbers in found for number in numbers] == list(range(count - 1))
    assert max(map(len, found)) < 2 * min(map(len, found))


def test_it_is_a_job(tmp_path: Path) -> None:
    """Free once it is done; an output that was deleted is all that runs, to the same bytes; `verify` holds; another
    partition is another output."""
    ds, out = inputs(tmp_path / "in"), tmp_path / "out"

    def write(*columns: str) -> int:
        return ds.write_parquet(out, partition_cols=columns, backend="inline").dispatched

    write("year", "lang")
    before = files(out)
    assert write("year", "lang") == 0
    assert verify(str(out)).state == "ok"
    (out / "year=2024/lang=en/part-00000-of-00001.parquet").unlink()
    assert [one.kind for one in verify(str(out)).findings] == ["missing"]
    assert write("year", "lang") == 1
    assert files(out) == before
    with pytest.raises(ConfigError, match="identity"):
        write("lang", "year")


def test_no_rows(tmp_path: Path) -> None:
    """One output, which says which columns there are."""
    ds = inputs(tmp_path / "in").filter(curate.col("n") < 0)
    assert ds.write_parquet(tmp_path / "out", partition_cols=["year"], backend="inline").state == "complete"
    assert curate.read_parquet(tmp_path / "out").schema().names == ["n", "lang"]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([], "takes the name of a column"),
        (["lang", "lang"], "named 2 times"),
        (["lnag"], "there is no column 'lnag'"),
        (["n", "lang", "year"], "would leave no column"),
        (["x"], "column 'x' is of type double.*cast it"),
        (["_y"], "readers skip folders.*rename it"),
    ],
)
def test_refused_before_anything_is_written(tmp_path: Path, columns: list[str], said: str) -> None:
    """Where it can be seen."""
    ds = inputs(tmp_path / "in")
    ds = ds.with_column("x", curate.col("n") * 0.5) if "x" in columns else ds
    ds = ds.with_column("_y", curate.col("n")) if "_y" in columns else ds
    with pytest.raises(ConfigError, match=said):
        ds.write_parquet(tmp_path / "out", partition_cols=columns, backend="inline")
    assert not (tmp_path / "out").exists()


def test_values_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of no value, names that file systems do not have, and too many: with what to do."""

    def write(values: Any, name: str) -> None:
        ds = curate.from_arrow(pa.table({"n": [1] * len(values), "k": values}))
        ds.write_parquet(tmp_path / name, partition_cols=["k"], backend="inline")

    with pytest.raises(ConfigError, match="take for null; replace it"):
        write([NO_VALUE], "a")
    with pytest.raises(ConfigError, match=r"a text of 100 characters.*something shorter"):
        write(["ü" * 100], "b")
    with pytest.raises(ConfigError, match=r"k is b'a\\xff' in some rows, which is not UTF-8.*replace it before"):
        write(pa.array([b"a", b"a\xff"]).view(pa.string()), "e")
    monkeypatch.setattr(partition, "PARTITIONS", 2)
    write(["a", "b"], "c")
    with pytest.raises(ConfigError, match=r"would make 3 folders.*at most 2.*fewer columns"):
        write(["a", "b", "c"], "d")


@pytest.mark.slow
@pytest.mark.ray_lane
@pytest.mark.nightly
@pytest.mark.usefixtures("on_ray")
def test_the_same_bytes_on_ray(tmp_path: Path) -> None:
    """In the same files, read back as the same rows."""
    ds = inputs(tmp_path / "in")
    for backend in ("inline", "ray"):
        assert (
            ds.write_parquet(tmp_path / backend, partition_cols=["year", "lang"], backend=backend).state == "complete"
        )
    assert files(tmp_path / "ray") == files(tmp_path / "inline")
    found = curate.read_parquet(tmp_path / "ray")
    assert found.using(backend="ray").take_all() == found.take_all()
