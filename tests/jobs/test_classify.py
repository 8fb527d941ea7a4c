"""The job that scores with any fastText model: by one label, or by the most probable one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from curate.errors import ConfigError
from curate.testing.local import run_local
from curate.texts.fasttext_model import FastTextModel, labels_of
from jobs.classify import Classify
from jobs.langid import model_path
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
    """Before anything runs, though no model is loaded there."""
    with pytest.raises(ConfigError) as refused:
        run_local(Classify(model=model, **given), ROWS)
    assert str(refused.value) == f"--{next(iter(given))}: {message}"


@pytest.mark.parametrize("length", [0, 8, 100, 150])
def test_a_file_that_is_no_model_is_said(model: str, tmp_path: Path, length: int) -> None:
    """Also one that is cut off."""
    path = tmp_path / "model.bin"
    path.write_bytes(Path(model).read_bytes()[:length])
    with pytest.raises(ConfigError, match=rf"--model {path} cannot be used as a fastText model"):
        run_local(Classify(model=str(path)), ROWS)


def test_labels_are_read_as_the_model_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the beginning of its file, a block at a time, of models of words and of those that are compressed."""
    words = {f"w\u00f6rd{number}": [0.5, 0.25] for number in range(50)}
    path = write_fasttext_model(tmp_path / "model.bin", ["__label__b c", "__label__\u00e4"], words)
    for block in (1, 7, 1 << 20):
        monkeypatch.setattr("curate.texts.fasttext_model._BLOCK", block)
        with path.open("rb") as file:
            assert labels_of(file, "it") == FastTextModel(str(path)).labels
    with Path(model_path()).open("rb") as file:
        assert labels_of(file, "it") == FastTextModel(str(model_path())).labels
    skipgrams = write_fasttext_model(tmp_path / "words.bin", ["__label__a", "__label__b"], words, supervised=False)
    with skipgrams.open("rb") as file, pytest.raises(ConfigError, match="give a supervised"):
        labels_of(file, "it")
