"""Keys of several types in the files of one exchange."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import curate
from curate.errors import ConfigError
from curate.sources import columns as looked_into
from curate.sources.columns import refuse_other_types
from curate.storage.protocol import Object
from curate.stores.open import open_store


def files(folder: Path, columns: list[dict[str, Any]]) -> list[Object]:
    folder.mkdir(exist_ok=True)
    found = []
    for number, one in enumerate(columns):
        path = folder / f"{number:03d}.parquet"
        pq.write_table(pa.table(one), path)
        found.append(open_store(str(path)).stat(str(path)))
    return found


def refused(held: dict[str, pa.DataType], found: list[Object], *, nulls_for_missing: bool = True) -> str | None:
    try:
        refuse_other_types("sort", list(held), pa.schema(held), found, nulls_for_missing=nulls_for_missing)
    except ConfigError as error:
        return str(error)
    return None


def test_what_widens_is_of_one_type(tmp_path: Path) -> None:
    narrow = pa.array([1], pa.int8())
    coded = pa.array([1]).dictionary_encode()
    found = files(tmp_path, [{"n": [1]}, {"n": narrow}, {"n": coded}, {"n": pa.nulls(1)}])
    assert refused({"n": pa.int64()}, found) is None
    assert refused({"n": pa.int8()}, found) is not None
    assert refused({"n": pa.dictionary(pa.int32(), pa.int64())}, found) is None


def test_all_types_are_told_with_files(tmp_path: Path) -> None:
    found = files(tmp_path, [{"n": [1]}, {"n": ["a"]}, *[{"n": [1.5]}] * 5, {"m": [1]}])
    told = refused({"n": pa.int64()}, found)
    assert told is not None
    assert told.startswith("sort: the key 'n' is read as int64, and it is string in ")
    assert "001.parquet; double in " in told
    assert "004.parquet, 2 more" in told
    assert "missing" not in told
    assert "missing in " in str(refused({"n": pa.int64()}, [found[0], found[-1]], nulls_for_missing=False))


def test_what_cannot_be_read_is_left_to_who_reads_it(tmp_path: Path) -> None:
    found = files(tmp_path, [{"n": [1]}, {"n": [1]}, {"n": [1]}])
    Path(found[1].uri).write_bytes(b"no Parquet")
    Path(found[2].uri).unlink()
    assert refused({"n": pa.int64()}, found) is None


def test_of_very_many_files_some_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    monkeypatch.setattr(looked_into, "LOOKED_AT", 4)
    monkeypatch.setattr(looked_into, "_schema_of", lambda item: looked.append(item.uri))
    assert refused({"n": pa.int64()}, [Object(str(number), 1, "") for number in range(10)]) is None
    assert sorted(looked) == ["0", "3", "6", "9"]
    looked.clear()
    refuse_other_types("sort", ["made here"], pa.schema([]), [Object("x", 1, "")], nulls_for_missing=True)
    assert looked == []


class ByKey(curate.Job):
    """A job that sorts its inputs."""

    name = "by_key"
    version = "1"

    def build(self, ds: curate.Dataset) -> curate.Dataset:
        return ds.sort("n")


@pytest.mark.parametrize("other", [{"n": ["a"]}, {"m": [1]}])
def test_a_job_refuses_before_it_writes(other: dict[str, Any], tmp_path: Path) -> None:
    files(tmp_path / "in", [{"n": [2]}, {"n": [1]}, other])
    with pytest.raises(ConfigError, match=r"(string|missing) in .*002\.parquet"):
        ByKey().run(input=str(tmp_path / "in"), output=str(tmp_path / "out"), backend="inline")
    assert not (tmp_path / "out").exists()


def test_both_sides_of_a_join_are_looked_at(tmp_path: Path) -> None:
    files(tmp_path / "left", [{"n": [2], "x": [1]}])
    files(tmp_path / "right", [{"n": [2]}, {"n": ["b"]}])
    left, right = (curate.read_parquet(tmp_path / side).using(backend="inline") for side in ("left", "right"))
    with pytest.raises(ConfigError, match=r"string in .*right.*001\.parquet"):
        left.join(right, on="n", broadcast=False).write_parquet(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_other_columns_are_no_matter(tmp_path: Path) -> None:
    files(tmp_path / "in", [{"n": [2], "x": [1]}, {"n": [1], "x": ["a"]}])
    rows = curate.read_parquet(tmp_path / "in", columns=["n"]).using(backend="inline")
    assert rows.sort("n").take_all() == [{"n": 1}, {"n": 2}]
