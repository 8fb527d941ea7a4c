"""Options that have no effect in the mode that is chosen are named before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from curate.errors import ConfigError
from curate.job.job import Job
from curate.keywords import on_command_line
from curate.objects.places import POSITION
from curate.testing.local import run_local
from jobs.corpus import Corpus
from jobs.decontaminate import Decontaminate
from jobs.langid import LangId
from jobs.paragraphs import Paragraphs
from jobs.quality import SETS, Quality
from jobs.urls import Urls
from tests.job.inline import run_job
from tests.jobs.test_classify import model  # noqa: F401 - a fixture
from tests.jobs.test_numbers import KINDS, jobs, needed, of, source  # noqa: F401 - fixtures

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
    assert said(Decontaminate(**cut)) == ["margin=..., min_words=... have no effect without action='cut'"]
    assert said(Decontaminate(sets=sets, n=2, action="annotate", margin=1)) == [
        "margin=... has no effect without action='cut'"
    ]
    assert said(Decontaminate(**cut, action="cut")) == said(Decontaminate(sets=sets, n=2)) == []
    assert said(Paragraphs(sentences=5)) == ["sentences=... has no effect without unit='sentences'"]
    assert said(Paragraphs(sentences=5, unit="sentences")) == said(Paragraphs()) == []
    assert said(Quality(phrases=["lorem ipsum"])) == ["phrases=... has no effect without rules=['dolma']"]
    assert said(Quality(phrases=["lorem ipsum"], rules=["dolma"])) == said(Quality()) == []
    assert said(Quality(rules=["c4"], min_words=1)) == [
        "min_words=... has no effect without rules=['gopher'] or rules=['dolma']"
    ]
    corpus: dict[str, Any] = {"work": "work", "shards": 1}
    assert said(Corpus(max_breaks=0.1, **corpus)) == ["max_breaks=... has no effect without rules=['fineweb']"]


def test_a_number_of_soft_words_needs_a_list_of_these(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("word\n")
    words = str(tmp_path / "words.txt")
    assert said(Urls(block_words=words, max_soft_words=3)) == [
        "max_soft_words=... has no effect without soft_words=..."
    ]
    assert said(Urls(soft_words=words, max_soft_words=3)) == said(Urls(block_words=words)) == []


def test_columns_that_are_kept_are_no_attributes() -> None:
    """Attributes are joined to the rows that have these columns."""
    assert said(LangId(keep_columns=["lang"], attributes=True)) == [
        "keep_columns=... has no effect with attributes=True"
    ]
    with on_command_line():
        assert said(LangId(keep_columns=["lang"], attributes=True)) == [
            "--keep-columns ... has no effect with --attributes"
        ]
        assert said(Quality(rules=["c4"], min_words=1)) == [
            "--min-words ... has no effect without --rules gopher or --rules dolma"
        ]
    assert said(LangId(keep_columns=["lang"])) == said(LangId(attributes=True)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in jobs() if KINDS.get(name) is None])
def test_places_are_written_where_they_are_asked_for_or_refused(
    name: str,
    needed: dict[str, dict[str, Any]],  # noqa: F811
    source: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    (job,) = of(name)
    options = {**needed.get(name, {}), **({"work": str(tmp_path / "work")} if name == "corpus" else {})}
    made = job(**options, keep_positions=True)
    if name in ("threads",):
        with pytest.raises(ConfigError, match=r"^--keep-positions: a thread is of many comments"):
            made.spec()
        return
    assert run_job(made, source / "rows", tmp_path / "out").state == "complete"
    found = [pq.read_schema(one).names for one in (tmp_path / "out").glob("*.parquet")]
    assert found
    assert all(POSITION in names for names in found)


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
