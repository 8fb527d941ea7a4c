"""scripts/corpus: the same bytes every time, in the shapes that real dumps have."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "corpus"
FIELDS = ["id", "author", "subreddit", "body", "link_id", "parent_id", "created_utc", "score", "edited"]


def make(output: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--output", str(output), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("corpus") / "reddit"
    result = make(output)
    assert result.returncode == 0, result.stderr
    return output


def lines(path: Path) -> list[bytes]:
    return gzip.decompress(path.read_bytes()).splitlines()


def parsed(path: Path) -> Iterator[dict[str, object]]:
    """Yields the comments of a `.jsonl.gz` file, without the lines that are none."""
    for line in lines(path):
        try:
            comment = json.loads(line)
        except ValueError:
            continue
        if comment["body"] is not None:
            yield comment


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_same_options_same_bytes(tmp_path: Path) -> None:
    """Nothing but the options decides: no clock, no hash seed, no order of files."""
    options = ("--comments", "500", "--files", "7")
    assert make(tmp_path / "a", *options).returncode == make(tmp_path / "b", *options).returncode == 0
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    make(tmp_path / "c", *options, "--seed", "8")
    assert contents(tmp_path / "a") != contents(tmp_path / "c")


@pytest.mark.slow
def test_counts(corpus: Path) -> None:
    """20,000 comments with ids of their own in 24 files; one file empty, one with nearly half of all."""
    sizes, ids = {}, set()
    for path in corpus.rglob("*"):
        if path.suffix == ".gz":
            found = [comment["id"] for comment in parsed(path)]
        elif path.suffix == ".parquet":
            found = pq.read_table(path)["id"].to_pylist()
        else:
            continue
        sizes[path.name] = len(found)
        ids.update(found)
    assert len(sizes) == 24
    assert sum(sizes.values()) == len(ids) == 20_000
    assert min(sizes.values()) == 0
    assert max(sizes.values()) > 8_000
    assert sum(size < 300 for size in sizes.values()) > 12


def test_the_largest_file_holds_the_three_bad_lines(corpus: Path) -> None:
    """One is cut off, one not UTF-8, one without a body: all that a quarantine should show, and no more."""
    bad = {path: len(lines(path)) - len(list(parsed(path))) for path in corpus.rglob("*.jsonl.gz")}
    largest = max(bad, key=lambda path: path.stat().st_size)
    assert {path: count for path, count in bad.items() if count} == {largest: 3}
    cut_off, not_utf8, no_body = lines(largest)[-3:]
    with pytest.raises(json.JSONDecodeError):
        json.loads(cut_off)
    with pytest.raises(UnicodeDecodeError):
        not_utf8.decode()
    assert json.loads(no_body)["body"] is None


def test_fields_are_those_of_pushshift_with_edited_of_two_types(corpus: Path) -> None:
    """`edited` is false or a time; in Parquet, where a column has one type, the same as JSON text."""
    comments = list(parsed(corpus / "RC_2022-02.jsonl.gz"))
    assert all(list(comment) == FIELDS for comment in comments)
    assert {type(comment["edited"]) for comment in comments} == {bool, float}
    table = pq.read_table(corpus / "2023" / "RC_2023-03.parquet")
    assert table.column_names == FIELDS
    assert {type(json.loads(edited)) for edited in table["edited"].to_pylist()} == {bool, float}


def test_a_link_that_leads_nowhere_is_left_alone(tmp_path: Path) -> None:
    """In a line, as a folder is that exists."""
    (tmp_path / "reddit").symlink_to(tmp_path / "gone")
    result = make(tmp_path / "reddit")
    assert result.returncode == 1
    assert result.stderr.startswith("Error: ")
    assert "exists; remove it" in result.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "reddit"]


def test_an_output_that_exists_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "reddit").mkdir()
    result = make(tmp_path / "reddit")
    assert result.returncode == 1
    assert "exists; remove it" in result.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "reddit"]
