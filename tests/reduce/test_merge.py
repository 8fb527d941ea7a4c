"""The merge level: run files are merged in parts before outputs read them, to the same rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import curate
from curate.graph import reads

ROWS = 4000


@pytest.fixture
def small(tiny: pytest.MonkeyPatch) -> None:
    """Sizes at which a few thousand rows have the shape of 100 TB: very small ranges of many run files."""
    tiny.setattr(reads, "FEWEST_SEGMENTS", 4)


@pytest.fixture
def rows(tmp_path: Path) -> curate.Dataset:
    (tmp_path / "in").mkdir()
    for number in range(16):
        at = range(number, ROWS, 16)
        table = pa.table({"key": [one * 7919 % 97 for one in at], "id": list(at)})
        pq.write_table(table, tmp_path / f"in/{number:02d}.parquet")
    return curate.read_parquet(tmp_path / "in").using(backend="inline")


def read(folder: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("*.parquet"))])


@pytest.mark.usefixtures("small")
def test_outputs_read_few_files_and_the_rows_are_the_same(rows: curate.Dataset, tmp_path: Path) -> None:
    rows.sort("key").write_parquet(tmp_path / "out", keep_stages=True)
    wanted = rows.to_arrow().sort_by([("key", "ascending")])
    assert read(tmp_path / "out").equals(wanted)
    stages = [folder for folder in (tmp_path / "out/_curate/stages").iterdir() if list(folder.glob("*.run"))]
    names = sorted(min(path.name[:4] for path in folder.glob("*.run")) for folder in stages)
    assert names == ["map-", "part"]
    again = rows.sort("key").write_parquet(tmp_path / "again")
    assert again.total == len(list((tmp_path / "out").glob("*.parquet"))) > 4


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_every_exchange_gives_the_same_with_it(
    rows: curate.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = rows.rename_columns({"id": "other"})
    made = {
        "shuffle": rows.random_shuffle(seed=3, num_shards=7),
        "groups": rows.groupby("key").aggregate([("id", "sum"), ("id", "list")]),
        "join": rows.join(others, on="key").filter(lambda row: row["id"] < 99),
        "distinct": rows.distinct("key", keep="last"),
    }
    for name, ds in made.items():
        ds.write_parquet(tmp_path / f"with/{name}")
    monkeypatch.setattr(reads, "FEWEST_SEGMENTS", 1 << 30)
    for name, ds in made.items():
        ds.write_parquet(tmp_path / f"without/{name}")
        assert read(tmp_path / f"with/{name}").equals(read(tmp_path / f"without/{name}")), name


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("most", [1, 300, 3999])
def test_of_the_first_rows(rows: curate.Dataset, tmp_path: Path, most: int) -> None:
    ended = rows.sort("key").limit(most).write_parquet(tmp_path / "out", keep_stages=True)
    assert read(tmp_path / "out").equals(rows.to_arrow().sort_by([("key", "ascending")]).slice(0, most))
    assert (ended.books.balanced(), ended.books.rows_in, ended.books.dropped) == (True, ROWS, {"limit": ROWS - most})
    assert most == 1 or list((tmp_path / "out/_curate/stages").rglob("part-*.run"))


@pytest.mark.usefixtures("small")
def test_it_goes_on_where_it_was_killed(rows: curate.Dataset, tmp_path: Path) -> None:
    """What was merged is not merged again; a run file that is gone is made again, and only what reads it."""
    rows.sort("key").write_parquet(tmp_path / "out", keep_stages=True)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.run")}
    outputs = sorted((tmp_path / "out").glob("*.parquet"))
    content = outputs[0].read_bytes()
    outputs[0].unlink()
    gone = min(path for path in before if path.name.startswith("part"))
    gone.unlink()
    summary = rows.sort("key").write_parquet(tmp_path / "out", keep_stages=True)
    assert summary.state == "complete"
    assert outputs[0].read_bytes() == content
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.run")}
    assert [path for path in before if before[path] != after[path]] == [gone]
