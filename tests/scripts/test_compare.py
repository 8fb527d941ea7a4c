"""scripts/compare: texts are made for each rule, on both sides of its threshold; what agrees is what it counts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from jobs.quality import Quality

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from comparisons import clusters  # noqa: E402
from comparisons.dolma_texts import BELOW_IN_DOLMA, DOLMA, REASONS_IN_DOLMA, languages  # noqa: E402
from comparisons.texts import BELOW, MAKES, REASONS, Writer, made  # noqa: E402


@pytest.mark.slow
def test_texts_follow_from_the_seed() -> None:
    assert list(made(70, seed=3)) == list(made(70, seed=3)) != list(made(70, seed=4))


@pytest.mark.ci(6)
@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("name", "reason"),
    [(name, reason) for name, reason in REASONS.items() if name not in ("top_3", "top_4", "sentences")],
)
def test_each_kind_is_on_both_sides_of_its_threshold(name: str, reason: str) -> None:
    """Far on one side most are dropped for that rule, and far on the other most are kept by it."""
    writer = Writer(1)
    job = Quality(rules=["gopher-repetition", "gopher", "fineweb"], annotate=True, max_words=500)
    job.setup()
    [rule] = [one for one in (*job.repetition(), *job.gopher(), *job.fineweb()) if one.reason == reason]
    dropped = []
    for ratio in (0.6, 1.6):
        texts = [MAKES[name](writer, ratio) for _ in range(20)]
        [table] = job.process(pa.table({"id": list(range(20)), "text": texts}))
        fails = rule.fails({rule.measure: table[rule.measure].to_numpy()})
        dropped.append(int(fails.sum()))
    assert (dropped if name not in BELOW else dropped[::-1]) <= [4, 20]
    assert max(dropped) >= 16
    assert min(dropped) <= 4


@pytest.mark.ci(7)
@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        one
        for one in REASONS_IN_DOLMA.items()
        if one[0] not in ("max_words", "letters", "top_2", "top_4", *(f"recurring_{n}" for n in range(6, 10)))
    ],
)
def test_each_kind_for_dolma_is_on_both_sides_of_its_threshold(name: str, reason: str) -> None:
    """Not far from it, most on one side are dropped for that rule, and most on the other are kept by it."""
    job = Quality(rules=["dolma"], annotate=True, ended_lines=False)
    job.setup()
    [rule] = [one for one in job.dolma() if one.reason == reason]
    writer = Writer(1)
    dropped = []
    for ratio in (0.85, 1.15):
        texts = [DOLMA[name](writer, ratio) for _ in range(20)]
        [table] = job.process(pa.table({"id": list(range(20)), "text": texts}))
        dropped.append(int(rule.fails({rule.measure: table[rule.measure].to_numpy()}).sum()))
    kept, gone = dropped[::-1] if name in BELOW_IN_DOLMA else dropped
    assert kept <= 5
    assert gone >= 15


def test_the_languages_are_mixed() -> None:
    texts = languages(50, seed=1)
    assert texts == languages(50, seed=1) != languages(50, seed=2)
    assert len(set(texts)) == 50


@pytest.mark.parametrize("rival", ["datatrove", "dolma"])
def test_a_wrong_argument_is_said(rival: str) -> None:
    ran = subprocess.run(
        [sys.executable, str(ROOT / "scripts/compare"), rival, "--count", "1"], capture_output=True, text=True
    )
    assert ran.returncode == 2
    assert "Invalid value for '--count'" in ran.stderr


class TestClusters:
    """Near duplicates beside those of others: which pairs differ, and why."""

    @pytest.mark.nightly
    @pytest.mark.slow
    def test_texts_are_copies_of_every_similarity_and_short_ones(self) -> None:
        texts = clusters.texts(600, seed=2)
        assert texts == clusters.texts(600, seed=2)
        sets = [clusters.grams(text) for text in texts]
        short = sum(len(text.split()) < clusters.NGRAM for text in texts)
        assert 3 < short < 40
        alike = [len(u & v) / len(u | v) for n, u in enumerate(sets) for v in sets[:n]]
        assert all(sum(low <= one <= low + 0.1 for one in alike) > 5 for low in (0.6, 0.7, 0.8, 0.9))

    def test_what_differs_is_told_by_its_reason(self, capsys: pytest.CaptureFixture[str]) -> None:
        words = [f"w{n}" for n in range(60)]
        rows = [" ".join(one) for one in (words, [*words[1:], "x"], [*words[20:], *"abcdefghij"], ["a"], ["a"])]
        own = {"component": ({0: 0, 1: 0, 3: 3, 4: 3}, {1: 0, 4: 3}), "verified": ({}, {1: 0, 4: 3})}
        clusters.compare("theirs", rows, own, {0: 0, 1: 0, 2: 0})
        said = capsys.readouterr().out
        assert "pairs in one cluster: 1 of 4 agree, 25.00%" in said
        assert "2  theirs alone: below the threshold" in said
        assert "1  curate alone: a text shorter than an n-gram" in said
        assert "rows, theirs and drop='verified': decisions: 3 of 5 agree, 60.00%" in said
        assert "1  theirs alone drops: like no row that curate keeps" in said
        assert "1  curate alone drops: a text shorter than an n-gram" in said
