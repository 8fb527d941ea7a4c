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
from jobs.mix import Mix
from jobs.paragraphs import Paragraphs
from jobs.quality import SETS, Quality
from jobs.tokens import Tokenize
from jobs.urls import Urls
from tests.job.inline import run_job
from tests.jobs.test_classify import model  # noqa: F401 - a fixture
from tests.jobs.test_mix import mixture
from tests.jobs.test_numbers import KINDS, jobs, needed, of, source  # noqa: F401 - fixtures
from tests.support.tiny_tokenizers import END, PAD, byte_level

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


@pytest.mark.parametrize(
    ("given", "unused"),
    [
        ({"pack_by": "best-fit", "long": "cut", "tail": "drop", "pad_token": PAD}, "without pack=..."),
        ({"pack": 8, "pack_by": "best-fit", "tail": "drop", "long": "cut"}, "without pack_by='concatenate'"),
        ({"pack": 8, "long": "drop", "pad_token": PAD}, "without pack_by='best-fit'"),
        ({"pack": 8, "tail": "drop", "pad_token": PAD}, "without tail='pad'"),
        ({"pack": 8, "tail": "drop"}, ""),
        ({"pack": 8, "pad_token": PAD}, ""),
        ({"pack": 8, "pack_by": "best-fit", "long": "cut", "pad_token": PAD}, ""),
        ({}, ""),
    ],
)
def test_what_packs_no_tokens_is_said(tmp_path: Path, given: dict[str, Any], unused: str) -> None:
    """And leaves the rows, or the sequences, as they are without it."""
    job: dict[str, Any] = {"tokenizer": str(byte_level(tmp_path / "tokenizer.json")), "end_token": END}
    told = said(Tokenize(**job, **given))
    assert [one.partition("effect ")[2] for one in told] == [unused] * bool(unused)
    names = [one.removesuffix("=...") for one in "".join(told).partition(" ha")[0].split(", ") if one]
    without = {name: value for name, value in given.items() if name not in names}
    assert run_local(Tokenize(**job, **given), ROWS).rows == run_local(Tokenize(**job, **without), ROWS).rows


def test_a_token_of_padding_is_looked_up_though_none_is_needed(tmp_path: Path) -> None:
    tokenizer = str(byte_level(tmp_path / "tokenizer.json"))
    packings: list[dict[str, Any]] = [{}, {"pack": 8, "tail": "drop"}, {"pack": 8}]
    for packing in packings:
        with pytest.raises(ConfigError, match=r"^--pad-token '<nonsense>': the tokenizer has no such token"):
            Tokenize(tokenizer=tokenizer, end_token=END, pad_token="<nonsense>", **packing).spec()


def test_a_text_that_a_mixture_does_not_measure_is_said(tmp_path: Path) -> None:
    def mix(unit: str, **given: str) -> list[str]:
        path = mixture(tmp_path, 10, unit, web=1.0)
        return [one.replace(path, "mix.toml") for one in said(Mix(mixture=path, text_column="body", **given))]

    assert mix("characters") == []
    assert mix("characters", count_column="n") == ["text_column=... has no effect with count_column=..."]
    without = ['text_column=... has no effect without unit = "characters" in mix.toml']
    assert mix("documents") == mix("tokens", count_column="n") == without


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
