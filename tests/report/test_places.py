"""Where a report keeps its files: nowhere where they are read as data, and all of them in one folder."""

from __future__ import annotations

from pathlib import Path

import pytest

import curate
from curate.errors import ConfigError
from curate.report.make import make_report, wanted


def lines(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"id": 1, "by": "a"}\n{"id": 2, "by": "b"}\n')


@pytest.mark.parametrize("corpus", ["in/a.jsonl", "in/x", "in/x/"])
@pytest.mark.parametrize("by", ["", "by", "a column"])
def test_whoever_reads_the_folder_around_a_corpus_reads_no_file_of_its_report(
    tmp_path: Path, corpus: str, by: str
) -> None:
    """A file of it, and a folder in it."""
    lines(tmp_path / "in", "a.jsonl", "x/b.jsonl")
    if by == "a column":
        for path in (tmp_path / "in").rglob("*.jsonl"):
            path.write_text(path.read_text().replace('"by"', '"a column"'))
    how = wanted(f"{tmp_path}/{corpus}", by=by, backend="inline", against=f"{tmp_path}/in/x", id_column="id")
    before = curate.read_json(tmp_path / "in").take_all()
    assert make_report(how)["rows"] == 2
    assert curate.read_json(tmp_path / "in").take_all() == before
    assert curate.read_json(f"{tmp_path}/**/*.jsonl*").take_all() == before
    assert [one.name for one in (tmp_path / "in").iterdir() if one.name not in ("a.jsonl", "x")] == [
        Path(how.work).name
    ]


@pytest.mark.parametrize(
    ("corpus", "place"),
    [
        ("in", "/home/me/_report-in"),
        (".", "/home/_report-me"),
        ("..", "/_report-home"),
        ("./in/", "/home/me/_report-in"),
        ("/in", "/_report-in"),
        ("gs://bucket/in", "gs://bucket/_report-in"),
        ("gcs://bucket/in/a.parquet", "gs://bucket/in/_report-a.parquet"),
    ],
)
def test_where_it_is_by_itself(monkeypatch: pytest.MonkeyPatch, corpus: str, place: str) -> None:
    monkeypatch.setattr("os.getcwd", lambda: "/home/me")
    assert wanted(corpus).work == place
    assert wanted(corpus, by="source").work == f"{place}-by-source"


@pytest.mark.parametrize("corpus", ["/", "gs://bucket", "s3://bucket/", "memory://b", "hf://datasets/a/b", "in/*.csv"])
def test_where_nothing_can_be_beside_a_corpus_a_place_is_asked_for(corpus: str) -> None:
    """`gs://bucket-report` is a bucket of somebody else."""
    with pytest.raises(ConfigError, match=r"needs work='PATH': "):
        wanted(corpus)
    assert wanted(corpus, work="out/").work == str(Path("out").absolute())
