"""Corpora whose reports are looked at: one that a job with a threshold made, and one whose every text is hostile."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from curate.job.job import Job
from curate.job.params import param
from curate.report.make import make_report, wanted
from tests.job.inline import run_job
from tests.pages.samples import HOSTILE

SOURCES = ("cc", "wiki", "forum", None)
ROWS = 120
FILES = 3
DAY = dt.date(2024, 1, 1)
TEXTS = (HOSTILE, "\u05e9\u05dc\u05d5\u05dd \u202eright to left", "\x1b[31mred\x1b[0m", "\ufffd\ud7ff", "")


class Scored(Job):
    """Keeps what scores high enough, and nearly nothing of forums; sets some rows aside."""

    version = "1"
    max_bad_rows = "100%"
    threshold: float = param(0.25, help="the least score that is kept")

    def process(self, batch: pa.Table) -> pa.Table:
        low = pc.less(batch["score"], self.threshold)
        forum = pc.and_(pc.equal(pc.fill_null(batch["source"], ""), "forum"), pc.less(batch["score"], 0.97))
        for row in batch.filter(pc.equal(batch["words"], 7)).to_pylist():
            self.quarantine({"id": row["id"]}, "it has seven words")
        seven = pc.equal(batch["words"], 7)
        self.drop(pc.sum(pc.and_not(low, seven)).as_py() or 0, "low score")
        self.drop(pc.sum(pc.and_not(pc.and_not(forum, low), seven)).as_py() or 0, "forum")
        return batch.filter(pc.invert(pc.or_(pc.or_(low, forum), seven)))


def rows(number: int) -> pa.Table:
    """Returns rows of all kinds of columns."""
    rng = random.Random(number)
    words = [rng.randrange(20) for _ in range(ROWS)]
    return pa.table(
        {
            "id": [f"{number}-{at}" for at in range(ROWS)],
            "text": [" ".join(rng.choices(["alpha", "beta", "ü"], k=count)) if count else None for count in words],
            "source": [rng.choice(SOURCES) for _ in range(ROWS)],
            "score": [rng.randrange(1000) / 1000 for _ in range(ROWS)],
            "words": pa.array(words, pa.int16()),
            "day": [DAY + dt.timedelta(days=rng.randrange(400)) for _ in range(ROWS)],
            "tags": [[str(tag) for tag in range(rng.randrange(4))] for _ in range(ROWS)],
            "about": [{"lang": rng.choice(["de", "en"]), "seen": rng.random() < 0.5} for _ in range(ROWS)],
            "blob": [bytes(rng.randrange(5)) for _ in range(ROWS)],
        }
    )


def scored(folder: Path) -> str:
    """Makes the corpus of a job."""
    (folder / "in").mkdir(parents=True)
    for number in range(FILES):
        pq.write_table(rows(number), folder / "in" / f"{number}.parquet")
    assert run_job(Scored(), folder / "in", folder / "out").state == "complete"
    return str(folder / "out")


def hostile(folder: Path) -> str:
    """Makes a corpus of no job: texts that are markup, scripts, controls, right to left, or 10 MB long, and columns
    that are called so."""
    (folder / "in").mkdir(parents=True)
    texts = [*TEXTS, "w" * 10_000_000] * 2
    pq.write_table(pa.table({HOSTILE: texts, "source": texts}), folder / "in" / "a.parquet")
    return str(folder / "in")


def empty(folder: Path) -> str:
    """Makes a corpus without rows."""
    (folder / "in").mkdir(parents=True)
    pq.write_table(rows(0).slice(0, 0), folder / "in" / "a.parquet")
    return str(folder / "in")


CORPORA: dict[str, Callable[[Path], str]] = {"scored": scored, "hostile": hostile, "empty": empty}


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The reports of all of these corpora by their sources, by name."""
    made = {name: make(tmp_path_factory.mktemp(name)) for name, make in CORPORA.items()}
    return {name: make_report(wanted(corpus, by="source", backend="inline")) for name, corpus in made.items()}
