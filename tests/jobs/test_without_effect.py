"""Options that have no effect in the mode that is chosen are named before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from curate.job.job import Job
from curate.testing.local import run_local
from jobs.corpus import Corpus
from jobs.decontaminate import Decontaminate
from jobs.paragraphs import Paragraphs
from jobs.quality import SETS, Quality

ROWS = [{"id": "a", "text": "One line of text.\nAnd one more, of the same length.\nOne line of text."}]


@pytest.fixture
def sets(tmp_path: Path) -> list[str]:
    path = tmp_path / "set.jsonl"
    path.write_text('{"text": "no such words are there"}\n')
    return [str(path)]


def said(job: Job) -> list[str]:
    """Returns what a job says of options when it is made ready."""
    with capture_logs() as logs:
        job.spec()
    return [one["event"] for one in logs if "no effect" in one["event"]]


@pytest.mark.slow
def test_what_has_no_effect_is_said(sets: list[str]) -> None:
    """With the mode that it needs; in that mode, and of what is as by default, nothing is said."""
    cut: dict[str, Any] = {"sets": sets, "n": 2, "margin": 200, "min_words": 5}
    assert said(Decontaminate(**cut)) == ["--margin, --min-words have no effect without --action cut"]
    assert said(Decontaminate(sets=sets, n=2, action="annotate", margin=1)) == [
        "--margin has no effect without --action cut"
    ]
    assert said(Decontaminate(**cut, action="cut")) == said(Decontaminate(sets=sets, n=2)) == []
    assert said(Paragraphs(sentences=5)) == ["--sentences has no effect without --unit sentences"]
    assert said(Paragraphs(sentences=5, unit="sentences")) == said(Paragraphs()) == []
    assert said(Quality(phrases=["lorem ipsum"])) == ["--phrases has no effect without --rules dolma"]
    assert said(Quality(phrases=["lorem ipsum"], rules=["dolma"])) == said(Quality()) == []
    assert said(Quality(rules=["c4"], min_words=1)) == ["--min-words has no effect without --rules gopher or dolma"]
    corpus: dict[str, Any] = {"work": "work", "shards": 1}
    assert said(Corpus(max_breaks=0.1, **corpus)) == ["--max-breaks has no effect without --rules fineweb"]


@pytest.mark.parametrize("name", SETS)
def test_a_set_of_rules_reads_the_parameters_that_say_so(name: str) -> None:
    """What stands before the help of a parameter is what reads it."""
    read: set[str] = set()

    class Watched(Quality):
        def __getattribute__(self, one: str) -> Any:
            read.add(one)
            return super().__getattribute__(one)

        def process(self, batch: pa.Table) -> Any:
            read.clear()
            return super().process(batch)

    run_local(Watched(rules=[name]), ROWS)
    of = {one.name: set(one.help.partition(": ")[0].split(", ")) for one in Quality._params.values()}
    expected = {one for one, theirs in of.items() if theirs <= set(SETS) and name in theirs}
    assert {one for one in read if one in of and of[one] <= set(SETS)} == expected
