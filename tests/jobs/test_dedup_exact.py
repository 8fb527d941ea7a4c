"""The job of exact deduplication."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from curate.errors import ConfigError
from curate.testing.local import run_local
from jobs.dedup_exact import DedupExact
from tests.dedup.corpus import corpus
from tests.job.inline import everything, run_job

ROOT = Path(__file__).parents[2]
TEXTS = [("A b", 1.0), ("a  b", 3.0), ("c", 2.0), (None, 1.0), ("a b ", 2.0), (None, 5.0)]
ROWS = [{"id": str(n), "text": text, "score": score} for n, (text, score) in enumerate(TEXTS)]


def kept(job: DedupExact) -> tuple[list[str], list[tuple[str, str]]]:
    """Ids that are kept, and those of the others with what is kept in their place."""
    ran = run_local(job, ROWS)
    told = [(row["id"], row["kept_id"]) for row in ran.sides["duplicates"].to_pylist()]
    assert ran.summary.books.dropped == ({"duplicate": len(told)} if told else {})
    assert ran.rows == [row for row in ROWS if row["id"] in {one["id"] for one in ran.rows}]
    return [row["id"] for row in ran.rows], told


def test_the_first_of_each_text_is_kept() -> None:
    """Case and white space do not matter; a null is a value; all columns are kept."""
    assert kept(DedupExact()) == (["0", "2", "3"], [("1", "0"), ("4", "0"), ("5", "3")])


def test_a_priority_decides_and_then_the_order() -> None:
    """The largest score is kept, wherever it is."""
    assert kept(DedupExact(priority="score")) == (["1", "2", "5"], [("0", "1"), ("3", "5"), ("4", "1")])


def test_texts_as_they_are_and_the_last_of_each() -> None:
    """Without normalising only equal texts are the same; other columns may be compared with them."""
    assert kept(DedupExact(normalise=False, keep="last")) == (["0", "1", "2", "4", "5"], [("3", "5")])
    assert kept(DedupExact(by=["text", "score"])) == ([row["id"] for row in ROWS], [])


def test_what_there_is_not_is_refused() -> None:
    """Columns and words are looked at before anything runs."""
    with pytest.raises(ConfigError, match="no column 'body'"):
        run_local(DedupExact(by=["body"]), ROWS)
    with pytest.raises(ConfigError, match="keep='frist'; did you mean 'first'"):
        run_local(DedupExact(keep="frist"), ROWS)


def deduplicated(script: str, folder: Path, *options: str) -> dict[str, Any]:
    """Deduplicates a corpus of 2,000 texts in seven files with the script itself; returns what it printed."""
    for number, table in enumerate(corpus(2_000, 7, seed=5, words=100).shards):
        (folder / "in").mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / "in" / f"{number}.parquet")
    argv = ["--input", str(folder / "in"), "--output", str(folder / "out"), "--json", *options]
    ran = subprocess.run(
        [sys.executable, str(ROOT / "jobs" / script), *argv],
        capture_output=True,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    found: dict[str, Any] = orjson.loads(ran.stdout)
    return found


@pytest.mark.slow
def test_the_script_itself_finds_all_exact_copies(tmp_path: Path) -> None:
    """Of 2,000 texts all exact copies go, and nothing else; files are named as in the input; a rerun does nothing."""
    texts = [text for shard in corpus(2_000, 7, seed=5, words=100).shards for text in shard["text"].to_pylist()]
    summary = deduplicated("dedup_exact.py", tmp_path, "--backend", "inline")
    assert summary["rows"]["out"] == len(set(texts))
    assert summary["rows"]["dropped"] == {"duplicate": 2_000 - len(set(texts))}
    assert sorted(one.name for one in (tmp_path / "out").glob("*.parquet")) == [f"{n}.parquet" for n in range(7)]
    found = pq.read_table(tmp_path / "out")["id"].to_pylist()
    assert found == [texts.index(text) for text in dict.fromkeys(texts)]
    assert pq.read_table(tmp_path / "out/_side/duplicates").num_rows == 2_000 - len(found)
    before = everything(tmp_path / "out")
    assert run_job(DedupExact(), tmp_path / "in", tmp_path / "out").dispatched == 0
    assert everything(tmp_path / "out") == before


@pytest.mark.slow
@pytest.mark.ray_lane
@pytest.mark.nightly
@pytest.mark.usefixtures("on_ray")
@pytest.mark.parametrize("script", ["dedup_exact.py", "dedup_minhash.py"])
def test_on_ray(script: str, tmp_path: Path) -> None:
    """The same bytes as in one process."""
    deduplicated(script, tmp_path / "ray")
    deduplicated(script, tmp_path / "here", "--backend", "inline")
    for path in (tmp_path / "here/out").rglob("*.parquet"):
        name = path.relative_to(tmp_path / "here")
        if "_curate" not in name.parts:
            assert (tmp_path / "ray" / name).read_bytes() == path.read_bytes(), name
