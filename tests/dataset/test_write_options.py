"""A dataset is written with the options of a job's run; messages call them as Python gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import curate
from tests.job.inline import output_rows, refusing, write_jsonl


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"n": 1}, {"n": 2}])
    return tmp_path / "in"


def doubled(source: Path, factor: int = 2) -> Any:
    return curate.read_json(source).with_column("n", curate.col("n") * factor)


def test_overwrite_makes_it_anew(source: Path, tmp_path: Path) -> None:
    """What another plan made is refused, and replaced where that is asked for and confirmed."""
    out = tmp_path / "out"
    doubled(source).write_parquet(out, backend="inline")
    with refusing("replace what is there with overwrite=True"):
        doubled(source, 3).write_parquet(out, backend="inline")
    with refusing("overwrite=True was not confirmed"):
        doubled(source, 3).write_parquet(out, backend="inline", overwrite=True)
    assert output_rows(out) == [{"n": 2}, {"n": 4}]
    assert doubled(source, 3).write_parquet(out, backend="inline", overwrite=True, yes=True).state == "complete"
    assert output_rows(out) == [{"n": 3}, {"n": 6}]


def test_what_is_stale_is_made_again(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    doubled(source).write_json(out, backend="inline")
    write_jsonl(source / "a.jsonl", [{"n": 5}])
    assert doubled(source).write_json(out, backend="inline").stale == 1
    ended = doubled(source).write_json(out, backend="inline", redo_stale=True)
    assert (ended.stale, ended.books.rows_out) == (0, 1)


def test_what_failed_is_tried_again(source: Path, tmp_path: Path) -> None:
    with refusing("retry_failed=True"):
        doubled(source).write_csv(tmp_path / "out", backend="inline", retry_failed=True)
    assert not (tmp_path / "out").exists()


def test_rows_in_memory_are_overwritten_too(tmp_path: Path) -> None:
    for number in (1, 2):
        curate.from_items([number]).write_parquet(tmp_path / "out", backend="inline", overwrite=number > 1, yes=True)
        assert output_rows(tmp_path / "out") == [{"item": number}]


def test_an_unknown_option_is_refused(source: Path, tmp_path: Path) -> None:
    """With those that there are, before anything is read."""
    with refusing("a write has no option 'overwite'; did you mean 'overwrite'?; it has: "):
        doubled(source).write_parquet(tmp_path / "out", overwite=True)
