"""The pipeline from pages to training shards."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.testing import run_local
from jobs.corpus import Corpus
from tests.job.inline import refusing, run_job, write_jsonl

ROOT = Path(__file__).parents[2]

SENTENCES = [
    "The committee of {} met in the old hall to discuss the plans for the new {} bridge.",
    "Several engineers had prepared a report on the cost of the {} and of the {}.",
    "It was agreed that the work at {} would begin in the spring after the year of the {}.",
    "The mayor of {} said that the people of the town had waited long enough for the {}.",
    "A second meeting will be held with the owners of the {} by the river at {}.",
    "They have been asked to send their answers to the {} before the end of {}.",
]
NAMES = [f"{first}{last}" for first in ("Alder", "Birch", "Cedar", "Elm", "Hazel") for last in ("ton", "ham", "wick")]


def page(number: int) -> str:
    """A page of ninety lines, and no two alike."""
    drawn = random.Random(number)
    lines = [drawn.choice(SENTENCES).format(drawn.choice(NAMES), drawn.choice(NAMES)) for _ in range(30)]
    return "\n".join(lines)


def run(folder: Path, *options: str) -> dict[str, Any]:
    """Runs the script over what is in `folder`; returns what it printed."""
    argv = ["--input", str(folder / "in"), "--output", str(folder / "out"), "--work", str(folder / "work"), "--json"]
    ran = subprocess.run(
        [sys.executable, str(ROOT / "jobs/corpus.py"), *argv, "--backend", "inline", "--shards", "3", *options],
        capture_output=True,
        env=os.environ | {"RAY_ADDRESS": "local"},
    )
    assert ran.returncode == 0, ran.stderr.decode()
    found: dict[str, Any] = orjson.loads(ran.stdout)
    return found


@pytest.mark.slow
def test_only_good_and_unique_texts_come_out(tmp_path: Path) -> None:
    """Of pages, exact and near copies, pages of another language and texts that are none: the pages come out, once
    each, in shards of as many rows, in another order; what was dropped is told where it was.
    """
    pages = {f"page-{n}": page(n) for n in range(30)}
    copies = {f"copy-{n}": page(n) + "  " for n in range(8)}
    near = {f"near-{n}": page(n).replace("\n", "\nWell, ", 1) for n in range(10, 15)}
    german = {"german": " ".join(["Der Ausschuss traf sich im alten Saal, um die Brücke zu besprechen."] * 20)}
    others = {"short": "too short", **german}
    rows = {**pages, **copies, **near, **others}
    (tmp_path / "in").mkdir()
    table = pa.table({"id": list(rows), "text": list(rows.values())})
    for number, at in enumerate(range(0, len(rows), 15)):
        pq.write_table(table.slice(at, 15), tmp_path / "in" / f"{number}.parquet")
    summary = run(tmp_path, "--min-stop-words", "0", "--rules", "gopher")
    assert summary["rows"]["out"] == 30
    shards = [pq.read_table(path) for path in sorted((tmp_path / "out").glob("part-*.parquet"))]
    assert [len(shard) for shard in shards] == [10, 10, 10]
    ids = [one for shard in shards for one in shard["id"].to_pylist()]
    assert sorted(ids) == sorted(pages)
    assert ids != sorted(ids, key=list(pages).index)
    assert set(shards[0]["language"].to_pylist()) == {"en"}
    exact = pq.read_table(tmp_path / "work/exact/_side/duplicates").to_pylist()
    assert {one["id"]: one["kept_id"] for one in exact} == {f"copy-{n}": f"page-{n}" for n in range(8)}
    alike = pq.read_table(tmp_path / "work/unique/_side/duplicates").to_pylist()
    assert {one["id"]: one["kept_id"] for one in alike} == {f"near-{n}": f"page-{n}" for n in range(10, 15)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"languages": ["english"]}, "--languages english: the model has no language 'english'; it has: af, als"),
        ({"languages": []}, "--languages is empty, so no text would be kept"),
        ({"keep_columns": ["language"]}, "the output's column 'language' is the job's own; leave 'language' out"),
        ({"id_column": "language_score"}, "the output's column 'language_score' is the job's own"),
        ({"max_breaks": -1.0}, "--max-breaks -1 is below 0, so no text would be kept"),
        ({"work": ""}, "--work is empty; give a path"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    """Before anything runs: there is no checkpoint, either."""
    job = Corpus(**{"work": str(tmp_path / "work"), "shards": 1, **given})
    with refusing(message):
        run_local(job, [{"id": "1", "text": "Hello.", "language": "en", "language_score": 1.0}], directory=tmp_path)
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("work", ["in", "in/work", "out", "out/work"])
def test_no_checkpoint_lies_among_the_inputs_or_outputs(work: str, tmp_path: Path) -> None:
    """There the next run would read what this one wrote, or take the output for that of a job that is not complete."""
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"id": "1", "text": "Hello."}])
    with refusing("in"):
        run_job(Corpus(work=str(tmp_path / work), shards=1), tmp_path / "in", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.jsonl", "in"]
