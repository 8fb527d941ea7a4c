"""A checkpoint: written once, by whoever comes first; used again by whoever asks for the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

import curate
from curate.dataset.dataset import Dataset
from curate.errors import CheckpointFailed, ConfigError
from tests.support.writes import failed_write, files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files of four rows."""
    source = tmp_path / "in"
    source.mkdir()
    for k in range(3):
        (source / f"{k}.jsonl").write_text("".join(f'{{"n": {4 * k + i}}}\n' for i in range(4)))
    return source


seen: list[int] = []
"""Numbers of the rows that `_double` was called with."""


def kept(folder: Path, path: Path) -> Dataset:
    return curate.read_json(folder).map(_double).checkpoint(path)


def _double(row: dict[str, Any]) -> dict[str, Any]:
    seen.append(row["n"])
    return {"n": row["n"] * 2}


@pytest.fixture(autouse=True)
def _forget() -> None:
    seen.clear()


def test_it_is_made_once(folder: Path, tmp_path: Path) -> None:
    """Two writes and a look later, each row went through the function once; all get the same rows."""
    ds = kept(folder, tmp_path / "kept")
    assert ds.filter(pc.field("n") > 10).write_parquet(tmp_path / "one", backend="inline").state == "complete"
    # The first rows are looked at for the schema.
    made = len(seen)
    assert made >= 12
    kept(folder, tmp_path / "kept").write_json(tmp_path / "two", backend="inline")
    assert ds.take_all() == [{"n": 2 * n} for n in range(12)]
    assert len(seen) == made
    assert curate.read_parquet(tmp_path / "one").take_all() == [{"n": 2 * n} for n in range(6, 12)]
    assert [path.name for path in sorted((tmp_path / "two").glob("*.zst"))] == [f"{k}.jsonl.zst" for k in range(3)]


@pytest.mark.parametrize("exchange", [False, True], ids=["rows stay", "rows move"])
@pytest.mark.parametrize(
    ("place", "output"),
    [("out", "out"), ("out/kept", "out"), ("kept", "kept/out"), ("in/kept", "out"), ("in", "out")],
    ids=lambda one: str(one),
)
def test_one_that_lies_in_the_output_or_the_input_is_refused(
    place: str, output: str, exchange: bool, folder: Path, tmp_path: Path
) -> None:
    """Before anything is written, of the checkpoint either: a rerun would take files of one for those of the other."""
    ds = kept(folder, tmp_path / place)
    with pytest.raises(ConfigError, match=r"lies? in|is input"):
        (ds.sort("n") if exchange else ds).write_parquet(tmp_path / output, backend="inline")
    assert [path.name for path in tmp_path.rglob("*") if path.suffix != ".jsonl"] == ["in"]
    assert not seen


def test_what_was_lost_of_it_is_made_again(folder: Path, tmp_path: Path) -> None:
    """One file deleted: one shard runs, to the same bytes."""
    kept(folder, tmp_path / "kept").take_all()
    before = files(tmp_path / "kept")
    (tmp_path / "kept" / "1.parquet").unlink()
    seen.clear()
    assert kept(folder, tmp_path / "kept").count() == 12
    assert seen == [4, 5, 6, 7]
    assert files(tmp_path / "kept") == before


def test_other_operators_are_refused(folder: Path, tmp_path: Path) -> None:
    """What lies there is another's."""
    kept(folder, tmp_path / "kept").take_all()
    other = curate.read_json(folder).filter(pc.field("n") > 3).checkpoint(tmp_path / "kept")
    with pytest.raises(ConfigError, match="another identity"):
        other.take_all()
    with pytest.raises(ConfigError, match="another identity"):
        other.write_parquet(tmp_path / "out", backend="inline")
    assert not (tmp_path / "out").exists()


def test_what_it_was_made_of_counts_in_what_is_made_of_it(folder: Path, tmp_path: Path) -> None:
    """Two checkpoints of other operators are not one and the same to a write."""
    kept(folder, tmp_path / "kept").write_parquet(tmp_path / "out", backend="inline")
    other = curate.read_json(folder).filter(pc.field("n") > 3).checkpoint(tmp_path / "other")
    with pytest.raises(ConfigError, match="another identity"):
        other.write_parquet(tmp_path / "out", backend="inline")


def test_one_that_fails(folder: Path, tmp_path: Path) -> None:
    """Nothing is read from it; the other shards are done, and the next run goes on from there."""
    (folder / "1.jsonl").write_text("{\n" * 1000)
    ds = kept(folder, tmp_path / "kept")
    with pytest.raises(CheckpointFailed, match="1 of 3 shards failed"):
        ds.take_all()
    assert failed_write(ds.write_parquet, tmp_path / "out", backend="inline").state == "failed"
    assert not (tmp_path / "out").exists()
    (folder / "1.jsonl").write_text('{"n": 100}\n')
    assert ds.count() == 9


def test_one_on_top_of_another(folder: Path, tmp_path: Path) -> None:
    """Both are there, and each is a dataset of its own."""
    ds = kept(folder, tmp_path / "a").filter(pc.field("n") < 8).checkpoint(tmp_path / "b").limit(3)
    assert ds.take_all() == [{"n": 0}, {"n": 2}, {"n": 4}]
    assert curate.read_parquet(tmp_path / "a").count() == 12
    assert curate.read_parquet(tmp_path / "b").count() == 4


def test_the_plan_says_so(folder: Path, tmp_path: Path) -> None:
    """And schema and plan run nothing."""
    ds = curate.read_json(folder).filter(pc.field("n") > 3).checkpoint(tmp_path / "kept")
    assert ds.schema().names == ["n"]
    assert f"checkpoint('{tmp_path / 'kept'}')" in ds.explain()
    assert "which is written first, and kept" in ds.explain()
    assert not (tmp_path / "kept").exists()


def test_a_tilde_is_the_home_wherever_a_path_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written below it is read below it; nothing lies in a folder called ~."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("HOME", str(tmp_path))
    curate.range(3).checkpoint("~/kept").write_parquet("~/out", backend="inline")
    for path in ("~/kept", "~/out", "~/out/*.parquet"):
        assert curate.read_parquet(path).count() == 3
    assert list((tmp_path / "cwd").iterdir()) == []
