"""The job of shuffling: all rows, in equal parts, in an order that the seed alone decides."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from curate.job.job import Job
from curate.testing.local import run_local
from jobs.dedup_exact import DedupExact
from jobs.shuffle import Shuffle
from tests.e2e.test_tweets import TWEETS
from tests.job.inline import everything, outputs, refusing, run_job, write_parquet

ROOT = Path(__file__).parents[2]


def shuffled(folder: Path, *options: str) -> dict[str, Any]:
    """Shuffles 1,003 rows of three files with the script itself; returns what it printed."""
    for k, rows in enumerate((500, 3, 500)):
        write_parquet(folder / "in" / f"{k}.parquet", [{"n": 1000 * k + n, "text": f"text {n}"} for n in range(rows)])
    argv = ["--input", str(folder / "in"), "--output", str(folder / "out"), "--json", "--shards", "7", *options]
    ran = subprocess.run(
        [sys.executable, str(ROOT / "jobs/shuffle.py"), *argv],
        capture_output=True,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    value: dict[str, Any] = orjson.loads(ran.stdout)
    return value


def check(folder: Path) -> None:
    found = outputs(folder / "out")
    assert list(found) == [f"part-{k:05d}-of-00007.parquet" for k in range(7)]
    assert {len(table) for table in found.values()} == {143, 144}
    numbers = [n for table in found.values() for n in table["n"].to_pylist()]
    assert sorted(numbers) == pq.read_table(folder / "in")["n"].to_pylist()
    assert numbers != sorted(numbers)


@pytest.mark.slow
def test_the_script_itself(tmp_path: Path) -> None:
    """Seven files of as many rows each, to one, of all rows; run again, it does nothing."""
    summary = shuffled(tmp_path, "--backend", "inline")
    assert summary["rows"] == {"in": 1003, "created": 0, "out": 1003, "dropped": {}, "quarantined": 0}
    check(tmp_path)
    before = everything(tmp_path / "out")
    assert run_job(Shuffle(shards=7), tmp_path / "in", tmp_path / "out").dispatched == 0
    assert everything(tmp_path / "out") == before


@pytest.mark.slow
@pytest.mark.ray_lane
@pytest.mark.nightly
@pytest.mark.usefixtures("on_ray")
def test_on_ray(tmp_path: Path) -> None:
    """The same bytes as in one process."""
    shuffled(tmp_path / "ray")
    check(tmp_path / "ray")
    shuffled(tmp_path / "here", "--backend", "inline")
    for name in outputs(tmp_path / "ray" / "out"):
        assert (tmp_path / "ray/out" / name).read_bytes() == (tmp_path / "here/out" / name).read_bytes()


def test_the_seed_decides_the_order() -> None:
    """The same seed gives the same order, another one another."""
    rows = [{"n": n} for n in range(200)]
    first, again, other = (run_local(Shuffle(shards=2, seed=seed), rows) for seed in (1, 1, 2))
    assert first.outputs == again.outputs
    assert first.rows != other.rows
    assert sorted(row["n"] for row in other.rows) == list(range(200))


def test_more_files_than_rows() -> None:
    """As many files as were asked for: some have no row, and the columns all the same."""
    ran = run_local(Shuffle(shards=5), [{"n": 1}, {"n": 2}])
    assert len(ran.outputs) == 5
    assert sorted(row["n"] for row in ran.rows) == [1, 2]


def test_refused() -> None:
    """Numbers that there cannot be."""
    with refusing("--shards 0 is no number of files"):
        Shuffle(shards=0).spec()
    with refusing("--seed -1 is below 0"):
        Shuffle(shards=1, seed=-1).spec()


@pytest.mark.skipif(not TWEETS.exists(), reason="the labelled tweets are not here")
def test_labelled_tweets(tmp_path: Path) -> None:
    """24,783 real texts in 8 parts: all of them, whole, and the classes as even in every part as chance has it."""
    run_job(Shuffle(shards=8), TWEETS, tmp_path / "out")
    options = pa.csv.ParseOptions(newlines_in_values=True)
    tweets = pa.csv.read_csv(TWEETS, parse_options=options)
    parts = outputs(tmp_path / "out")
    found = pa.concat_tables(parts.values())
    assert sorted(found["tweet"].to_pylist()) == sorted(tweets["tweet"].to_pylist())
    assert {len(part) for part in parts.values()} == {3097, 3098}
    share = tweets["class"].to_pylist().count(2) / len(tweets)
    for part in parts.values():
        # Five standard deviations.
        assert (
            abs(part["class"].to_pylist().count(2) / len(part) - share) < 5 * (share * (1 - share) / len(part)) ** 0.5
        )


@pytest.mark.parametrize(
    ("job", "inside", "lost"),
    [
        (Shuffle(shards=1), False, [["year", "lang"]]),
        (Shuffle(shards=1), True, []),
        (Shuffle(shards=1, keep_columns=["id"]), False, []),
        (DedupExact(), False, []),
    ],
    ids=["lost", "in the files too", "not to be kept", "outputs lie in the same folders"],
)
def test_what_folders_say_is_lost_with_a_word(job: Job, inside: bool, lost: list[list[str]], tmp_path: Path) -> None:
    """Folders like `year=2024` are columns for datasets: where the outputs of a job lie in others, it says what rows
    lose. One that all files lie in says nothing of a row."""
    for year, lang in ((2023, "de"), (2024, "en")):
        own = {"year": year, "lang": lang} if inside else {}
        folder = tmp_path / "in" / "crawl=1" / f"year={year}" / f"lang={lang}"
        write_parquet(folder / "a.parquet", [{"id": str(year), "text": str(year), **own}])
    with capture_logs() as logs:
        summary = job.run(input=str(tmp_path / "in"), output=str(tmp_path / "out"), backend="inline")
    assert summary.state == "complete"
    assert [one["columns"] for one in logs if "rows lose what their folders say" in one["event"]] == lost
