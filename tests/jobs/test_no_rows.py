"""Inputs without rows: outputs have the columns that they would have, so that what follows finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.job.job import Job
from jobs.langid import LangId
from jobs.pii import Pii
from jobs.quality import Quality
from jobs.split import Split
from jobs.toxicity import Toxicity
from jobs.urls import Urls
from tests.job.inline import run_job

JOBS: dict[str, tuple[type[Job], dict[str, Any], list[str]]] = {
    "langid": (LangId, {}, ["id", "text", "language", "language_score"]),
    "pii": (Pii, {}, ["id", "text"]),
    "quality": (Quality, {}, ["id", "text"]),
    "split": (Split, {}, ["id", "text", "url"]),
    "toxicity": (Toxicity, {}, ["id", "text", "toxicity", "toxic"]),
    "urls": (Urls, {"block_domains": "block.txt"}, ["id", "text", "url"]),
}


@pytest.mark.parametrize("name", JOBS)
def test_columns_are_there_without_a_row(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "block.txt").write_text("example.org\n")
    (tmp_path / "in").mkdir()
    schema = pa.schema([("id", pa.string()), ("text", pa.string()), ("url", pa.string())])
    pq.write_table(schema.empty_table(), tmp_path / "in" / "a.parquet")
    job, options, columns = JOBS[name]
    run_job(job(**options), tmp_path / "in", tmp_path / "out")
    assert pq.read_schema(tmp_path / "out" / "a.parquet").names == columns


@pytest.mark.parametrize("name", JOBS)
def test_rows_that_come_later_are_written_as_from_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first run without a row settles no other schema than one with rows does."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "block.txt").write_text("example.org\n")
    (tmp_path / "in").mkdir()
    rows = pa.table({"id": ["1"], "text": ["Hello."], "url": ["http://example.com/"]})
    pq.write_table(rows.schema.empty_table(), tmp_path / "in" / "a.parquet")
    job, options, _ = JOBS[name]
    run_job(job(**options), tmp_path / "in", tmp_path / "out")
    pq.write_table(rows, tmp_path / "in" / "b.parquet")
    for output in ("out", "anew"):
        run_job(job(**options), tmp_path / "in", tmp_path / output)
    for file in ("a.parquet", "b.parquet"):
        assert (tmp_path / "out" / file).read_bytes() == (tmp_path / "anew" / file).read_bytes()
