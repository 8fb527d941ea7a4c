"""Inputs without rows: outputs have the columns that they would have, so that what follows finds them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate import Dataset, col, param
from curate.errors import ConfigError
from curate.job.job import Job
from curate.keywords import on_command_line
from jobs.dedup_exact import DedupExact
from jobs.dedup_minhash import DedupMinhash
from jobs.langid import LangId
from jobs.paragraphs import Paragraphs
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


@pytest.mark.parametrize("job", [DedupExact, DedupMinhash, Paragraphs])
def test_lines_without_a_row_have_no_column_to_choose(job: type[Job], tmp_path: Path) -> None:
    """Files of JSON lines that are empty name no columns: what is said blames no option for that."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").touch()
    with on_command_line(), pytest.raises(ConfigError, match=r"no input has a row; run it once there are rows$"):
        job().run(input=str(tmp_path / "in"), output=str(tmp_path / "out"), backend="inline")
    assert not (tmp_path / "out").exists()


STEPS: dict[str, Callable[[Dataset], Dataset]] = {
    "filter": lambda ds: ds.filter(col("n") > 1),
    "filter by a function": lambda ds: ds.filter(lambda row: row["n"] > 1),
    "with_column": lambda ds: ds.with_column("m", col("n") * 2),
    "select_columns": lambda ds: ds.select_columns(["n"]),
    "rename_columns": lambda ds: ds.rename_columns({"n": "m"}),
    "map": lambda ds: ds.map(lambda row: {"m": row["n"]}),
    "random_sample": lambda ds: ds.random_sample(0.5, seed=1),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_checkpoint_of_no_rows_changes_nothing(name: str, tmp_path: Path) -> None:
    """What comes behind it is done as without it: its files have no column that an expression could name."""

    class Steps(Job):
        version = "1"
        kept: bool = param(False, help="whether there is a checkpoint")

        def build(self, ds: Dataset) -> Dataset:
            found = ds.filter(col("n") < 8)
            return STEPS[name](found.checkpoint(tmp_path / "kept") if self.kept else found)

    (tmp_path / "a.jsonl").write_text("")
    for kept in (False, True):
        summary = Steps(kept=kept).run(input=tmp_path / "a.jsonl", output=tmp_path / f"out-{kept}", backend="inline")
        assert (summary.state, summary.failures) == ("complete", ())
    (tmp_path / "b.jsonl").write_text('{"n": 5}\n{"n": 1}\n')
    found = [
        Steps(kept=kept).run(input=tmp_path / "*.jsonl", output=tmp_path / f"new-{kept}", backend="inline", **more)
        for kept, more in ((False, {}), (True, {"redo_stale": True}))
    ]
    assert [one.state for one in found] == ["complete", "complete"]
    assert found[0].books.rows_out == found[1].books.rows_out
