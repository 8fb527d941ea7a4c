"""The job that scores with any fastText model: by one label, or by the most probable one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from curate.testing.local import run_local
from jobs.classify import Classify
from tests.job.inline import refusing
from tests.support.fasttext_model import expected_probability, write_fasttext_model

LABELS = ["__label__hq", "__label__spam", "__label__Forum-Post"]
VOTES = {"essay": [6.0, 0.0, 0.0], "buy": [0.0, 6.0, 0.0], "lol": [0.0, 0.0, 6.0]}
TEXTS = ["essay", "buy", "lol", "", "Essay"]
ROWS = [{"id": k, "text": text} for k, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_fasttext_model(tmp_path_factory.mktemp("model") / "model.bin", LABELS, VOTES))


def probability(votes: float, label: int) -> float:
    return expected_probability([votes * (label == k) for k in range(3)], label)


def test_the_probability_of_a_label(model: str) -> None:
    ran = run_local(Classify(model=model, label="HQ", column="quality"), ROWS)
    scores = [row["quality"] for row in ran.rows]
    assert ran.table.column_names == ["id", "text", "quality"]
    assert scores[0] == pytest.approx(probability(3, 0), abs=1e-6)
    assert scores[3] == scores[4] == pytest.approx(expected_probability([0, 0, 0], 0), abs=1e-6)
    assert ran.table.schema.field("quality").type == pa.float32()


def test_rows_below_a_score_are_dropped_and_counted(model: str) -> None:
    """The threshold is compared as what is stored."""
    all_rows = run_local(Classify(model=model, label="hq"), ROWS).rows
    least = all_rows[3]["score"]
    ran = run_local(Classify(model=model, label="hq", min_score=least), ROWS)
    assert [row["id"] for row in ran.rows] == [row["id"] for row in all_rows if row["score"] >= least]
    assert ran.summary.books.dropped == {"score too low": 2}


def test_the_most_probable_label(model: str) -> None:
    ran = run_local(Classify(model=model, min_score=0.9, keep=["spam", "forum post"], lower=True), ROWS)
    assert [(row["id"], row["score_label"]) for row in ran.rows] == [(1, "spam"), (2, "Forum-Post")]
    assert ran.rows[0]["score"] == pytest.approx(probability(3, 1), abs=1e-6)
    assert ran.summary.books.dropped["other label"] >= 2
    assert ran.summary.books.balanced


def test_the_text_is_left_out_unless_it_is_kept(model: str) -> None:
    ran = run_local(Classify(model=model, keep_text=False), ROWS)
    assert ran.table.column_names == ["id", "score_label", "score"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"min_score": 2.0}, "--min-score 2 is no probability; these are between 0 and 1"),
        ({"label": "hq", "keep": ["hq"]}, "--keep is for the most probable label, and --label names one"),
        ({"column": "text"}, "the output has a column 'text' already; give --column another name"),
        ({"column": "id"}, "the output has a column 'id' already"),
    ],
)
def test_what_makes_no_sense_is_refused(model: str, given: dict[str, Any], message: str) -> None:
    with refusing(message):
        run_local(Classify(model=model, **given), ROWS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"label": "spams"}, "the model has no label 'spams'; did you mean 'spam'?; it has: Forum-Post, hq, spam"),
        ({"keep": ["forum"]}, "the model has no label 'forum'; it has: Forum-Post, hq, spam"),
    ],
)
def test_a_model_with_other_labels_is_said(model: str, given: dict[str, Any], message: str) -> None:
    [failure] = run_local(Classify(model=model, **given), ROWS).summary.failures
    assert failure.count == 1
    assert message in failure.error


def test_a_file_that_is_no_model_is_said(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"no model")
    [failure] = run_local(Classify(model=str(tmp_path / "model.bin")), ROWS).summary.failures
    assert failure.count == 1
    assert "cannot be used as a fastText model" in failure.error
