"""What notebooks show of a dataset, a summary and a status: text, escaped; nothing runs for it."""

from __future__ import annotations

from pathlib import Path

import pytest

import curate
from curate.observe.job import read_status


def test_a_dataset_runs_nothing(tmp_path: Path) -> None:
    """Plan and columns; a function that was not run yet, and files that are gone, do no harm."""

    def never(_: dict[str, int]) -> dict[str, int]:
        pytest.fail("it was run")

    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    read = curate.read_json(tmp_path / "a.jsonl").filter(curate.col("n") > 2)
    (tmp_path / "a.jsonl").unlink()
    told = read._repr_html_()
    assert "<pre>filter((n &gt; 2))\n  read_json(" in told
    assert "<tr><td>n</td><td>int64</td></tr>" in told
    assert "map(never)" in curate.range(2).map(never)._repr_html_()


def test_rows_that_are_there() -> None:
    """The first ones of a dataset in memory, as text."""
    ds = curate.from_items([{"a": "<script>alert(1)</script>"}] * 9)
    told = ds._repr_html_()
    assert told.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 5
    assert "<script" not in told
    assert "alert" not in ds.limit(2)._repr_html_()
    assert "alert" in ds.limit(2).materialize()._repr_html_()


def test_a_summary_and_a_status(tmp_path: Path) -> None:
    """State, shards, rows and where the output is; what is none has no line."""
    out = str(tmp_path / "<out>")
    summary = curate.range(5).filter(curate.col("id") > 1, reason="small").write_parquet(out, backend="inline")
    for told in (summary._repr_html_(), read_status(out, 0)._repr_html_()):
        assert "<tr><td>state</td><td>complete</td></tr>" in told
        assert "<td>1 of 1 done</td>" in told
        assert "&lt;out&gt;</td>" in told
        assert "failed" not in told
    assert "<td>5 in + 0 created = 3 out</td>" in summary._repr_html_()
    assert "<tr><td>dropped: small</td><td>2</td></tr>" in summary._repr_html_()
