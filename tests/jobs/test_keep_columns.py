"""Sources seldom have the same columns: jobs that keep whole rows read those that are named, and no others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate import RowsJob
from curate.errors import ConfigError, SchemaMismatch
from jobs.decontaminate import Decontaminate
from jobs.dedup_exact import DedupExact
from jobs.dedup_minhash import DedupMinhash
from jobs.filter import Filter
from jobs.mix import Mix
from jobs.paragraphs import Paragraphs
from jobs.shuffle import Shuffle
from jobs.split import Split
from jobs.urls import Urls
from tests.job.inline import run_job

WORDS = ["ant", "bee", "cat", "dog"]
WEB = [{"id": f"w{at}", "text": f"web text {word}", "url": f"https://a.de/{at}"} for at, word in enumerate(WORDS)]
BOOKS = [{"id": f"b{at}", "text": f"book text {word}", "pages": at, "author": None} for at, word in enumerate(WORDS)]
MIXTURE = """
budget = 8
[sources.web]
weight = 1
files = ["source=web/*"]
[sources.books]
weight = 1
files = ["books/*"]
"""

Make = Callable[..., RowsJob]
JOBS: dict[str, Make] = {
    "decontaminate": lambda folder, **kept: Decontaminate(sets=[str(folder / "sets.jsonl")], n=2, **kept),
    "dedup_exact": lambda _, **kept: DedupExact(**kept),
    "dedup_minhash": lambda _, **kept: DedupMinhash(**kept),
    "filter": lambda _, **kept: Filter(where=["id != 'x'"], **kept),
    "mix": lambda folder, **kept: Mix(mixture=str(folder / "mix.toml"), **kept),
    "paragraphs": lambda _, **kept: Paragraphs(min_words=0, **kept),
    "shuffle": lambda _, **kept: Shuffle(shards=2, **kept),
    "split": lambda _, **kept: Split(parts={"train": 0.5, "test": 0.5}, **kept),
    # Whatever column it is that has them.
    "urls": lambda folder, **kept: Urls(url_column="id", block_domains=str(folder / "domains.txt"), **kept),
}


@pytest.fixture(params=["parquet", "jsonl"])
def sources(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with a file for each of two sources of different columns, the one of books first."""
    for name, rows in (("source=web", WEB), ("books", BOOKS)):
        path = tmp_path / "in" / name / f"0.{request.param}"
        path.parent.mkdir(parents=True)
        if request.param == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        else:
            path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "sets.jsonl").write_text('{"text": "no such words"}\n')
    (tmp_path / "domains.txt").write_text("a.de\n")
    (tmp_path / "mix.toml").write_text(MIXTURE)
    return tmp_path


@pytest.mark.parametrize("name", JOBS)
def test_named_columns_are_kept_of_all_sources(name: str, sources: Path) -> None:
    """All rows, with these columns and no others, and nothing is said of the others."""
    ended = run_job(JOBS[name](sources, keep_columns=["id", "text"]), sources / "in", sources / "out")
    assert (ended.state.exit_code, ended.books.quarantined) == (0, 0)
    assert not [one for one in ended.books.counters if "left_out" in one]
    files = sorted(one for one in (sources / "out").rglob("*.parquet") if "_curate" not in one.parts)
    rows = [
        row for one in files if "_side" not in one.parts or name == "split" for row in pq.read_table(one).to_pylist()
    ]
    own = {"mix": ["source"]}.get(name, [])
    assert {tuple(row) for row in rows} == {("id", "text", *own)}
    assert sorted((row["id"], row["text"]) for row in rows) == sorted((row["id"], row["text"]) for row in WEB + BOOKS)


def test_without_them_it_says_what_every_input_needs(tmp_path: Path) -> None:
    """A column of the first input that another one lacks."""
    for name, rows in (("a", WEB), ("b", BOOKS)):
        (tmp_path / "in").mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in" / f"{name}.parquet")
    ended = run_job(Split(), tmp_path / "in", tmp_path / "out")
    (failed,) = ended.failures
    said = failed.error
    assert said.startswith(SchemaMismatch.__name__)
    assert "no column 'url'; it has 'id', 'text', 'pages', 'author'; every input needs the columns of the first" in said
    assert "reads by name (columns, keep_columns)" in said


def test_they_are_part_of_the_identity_and_none_is_as_it_was() -> None:
    """Rows of other columns are another output."""

    def identity(**given: Any) -> Any:
        return DedupExact(**given).spec().record.identity

    assert "keep_columns" not in identity()["parameters"]
    assert (identity()["columns"], identity(keep_columns=["id"])["columns"]) == (None, ["id"])


@pytest.mark.parametrize(
    ("named", "says"),
    [
        (["id", "txt"], r"no column 'txt' in .*; did you mean 'text'\?; it has 'id', 'text', 'url'"),
        (["id"], "there is no column 'text'; there are 'id'"),
    ],
)
def test_a_name_that_is_wrong_or_missing(named: list[str], says: str, tmp_path: Path) -> None:
    """Before anything runs."""
    (tmp_path / "in").mkdir()
    pq.write_table(pa.Table.from_pylist(WEB), tmp_path / "in" / "a.parquet")
    with pytest.raises(ConfigError, match=says):
        run_job(DedupExact(keep_columns=named), tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()
