"""The toxicity job: what it reads, what it gives, and what makes it another job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pytest

from curate.errors import ConfigError
from curate.ledger.summary import RunState, Summary
from curate.stores.memory import clear
from curate.stores.open import open_store
from jobs.toxicity import BundledClassifier, Toxicity
from tests.job.inline import outputs, quarantined, refusing, run_job, write_jsonl
from tests.support.fasttext_model import expected_probability, write_fasttext_model

ROOT = Path(__file__).parents[2]
TWEETS = ROOT.parent / "shared" / "data" / "labeled-tweets" / "labeled_data.csv"
LABELS = ["__label__toxic", "__label__nontoxic"]
VOTES = {"idiot": [6.0, 0.0], "lovely": [0.0, 4.0]}
COMMENTS: list[dict[str, Any]] = [
    {"id": "a", "text": "you stupid idiot", "edited": False, "score": 1},
    {"id": "b", "text": "a lovely garden", "edited": 1512345.0, "score": 2},
    {"id": "c", "text": "", "edited": False, "score": 3},
]
SCHEMA = pa.schema([("id", pa.string()), ("text", pa.string()), ("toxicity", pa.float32()), ("toxic", pa.bool_())])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / "in" / "a.jsonl.gz", COMMENTS)
    return tmp_path / "in"


def only(root: Path) -> pa.Table:
    [table] = outputs(root).values()
    return table


def test_three_lines_without_ray(source: Path, tmp_path: Path) -> None:
    """A job is testable like that; `run` returns the summary."""
    summary = Toxicity(threshold=0.7).run(input=str(source), output=str(tmp_path / "out"), backend="inline")
    assert (summary.state, summary.books.rows_in, summary.books.rows_out) == (RunState.COMPLETE, 3, 3)
    assert only(tmp_path / "out")["toxic"].to_pylist() == [True, False, False]


def test_id_score_and_whether_it_is_toxic(source: Path, tmp_path: Path) -> None:
    run_job(Toxicity(), source, tmp_path / "out")
    table = only(tmp_path / "out")
    assert table.schema == SCHEMA
    scores = BundledClassifier().score([row["text"] for row in COMMENTS])
    assert table["toxicity"].to_numpy().tobytes() == scores.astype(np.float32).tobytes()
    assert table["toxic"].to_pylist() == (scores >= 0.5).tolist()


def test_further_columns_are_passed_through(source: Path, tmp_path: Path) -> None:
    run_job(Toxicity(keep_columns=["score", "text"]), source, tmp_path / "out")
    assert only(tmp_path / "out").column_names == ["id", "text", "score", "toxicity", "toxic"]


def test_the_text_may_be_left_out(source: Path, tmp_path: Path) -> None:
    run_job(Toxicity(keep_text=False), source, tmp_path / "out")
    assert only(tmp_path / "out").column_names == ["id", "toxicity", "toxic"]
    run_job(Toxicity(keep_text=False, keep_columns=["score", "text"]), source, tmp_path / "named")
    assert only(tmp_path / "named").column_names == ["id", "score", "text", "toxicity", "toxic"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"threshold": 70}, "--threshold 70 is no score; scores are between 0 and 1"),
        ({"threshold": -0.1}, "--threshold -0.1 is no score"),
        ({"model_label": "toxic"}, "--model-label 'toxic' names a label of a --model, and there is none"),
        ({"keep_columns": ["toxic"]}, "the output's column 'toxic' is the job's own"),
        ({"text_column": "toxicity"}, "the output's column 'toxicity' is the job's own"),
        ({"id_column": "toxicity"}, "the output's column 'toxicity' is the job's own"),
        ({"model": "/nowhere/model.bin"}, "asset '/nowhere/model.bin' does not exist"),
        ({"text_column": "body"}, "no column 'body' in"),
    ],
)
def test_what_makes_no_sense_is_refused(source: Path, tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with refusing(message):
        run_job(Toxicity(**given), source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


class Fixed(Toxicity):
    """Scores by number instead of by model."""

    name = "toxicity"

    def setup(self) -> None:
        class Numbers:
            def score(self, texts: Any) -> Any:
                return np.array([float(text) for text in texts])

        self.classifier = Numbers()


@pytest.mark.parametrize("threshold", [0.1, 0.3, 0.5, 0.7, 1.0])
def test_a_score_that_is_stored_as_the_threshold_reaches_it(tmp_path: Path, threshold: float) -> None:
    """0.7 as float32 is below 0.7 as a double; who reads the output compares with what is stored."""
    below = float(np.nextafter(np.float32(threshold), np.float32(0)))
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"id": "x", "text": repr(score)} for score in (threshold, below)])
    run_job(Fixed(threshold=threshold), tmp_path / "in", tmp_path / "out")
    assert only(tmp_path / "out")["toxic"].to_pylist() == [True, False]


def test_another_threshold_is_another_job(source: Path, tmp_path: Path) -> None:
    run_job(Toxicity(), source, tmp_path / "out")
    with refusing("parameters.threshold: made with 0.5, you asked for 0.7"):
        run_job(Toxicity(threshold=0.7), source, tmp_path / "out")


def expected(label: int) -> Any:
    """What the model below gives for the comments: the mean of the votes of known words and of the line's end."""
    logits = ([6 / 2, 0], [0, 4 / 2], [0, 0])
    return pytest.approx([expected_probability(one, label) for one in logits], abs=1e-6)


class TestModel:
    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        return write_fasttext_model(tmp_path / "model.bin", LABELS, VOTES)

    def test_a_fasttext_model_takes_the_bundled_ones_place(self, source: Path, tmp_path: Path, model: Path) -> None:
        run_job(Toxicity(model=str(model)), source, tmp_path / "out")
        table = only(tmp_path / "out")
        assert table.schema == SCHEMA
        assert table["toxicity"].to_pylist() == expected(0)

    def test_it_may_lie_in_a_bucket(self, source: Path, tmp_path: Path, model: Path, monkeypatch: Any) -> None:
        monkeypatch.setenv("CURATE_CACHE", str(tmp_path / "cache"))
        open_store("memory://models").publish("memory://models/tox/model.bin", model.read_bytes())
        run_job(Toxicity(model="memory://models/tox/model.bin"), source, tmp_path / "out")
        run_job(Toxicity(model=str(model)), source, tmp_path / "local")
        assert only(tmp_path / "out") == only(tmp_path / "local")
        clear("models")

    def test_the_label_may_be_named(self, source: Path, tmp_path: Path, model: Path) -> None:
        run_job(Toxicity(model=str(model), model_label="nontoxic"), source, tmp_path / "out")
        assert only(tmp_path / "out")["toxicity"].to_pylist() == expected(1)

    def test_another_model_is_another_job(self, source: Path, tmp_path: Path, model: Path) -> None:
        run_job(Toxicity(model=str(model)), source, tmp_path / "out")
        write_fasttext_model(model, LABELS, {**VOTES, "garden": [1.0, 1.0]})
        with refusing(f"parameters.model: {model} was written again since"):
            run_job(Toxicity(model=str(model)), source, tmp_path / "out")

    @pytest.mark.parametrize("content", [b"no model", b""])
    def test_a_file_that_is_no_model_is_refused_with_what_it_should_be(
        self, source: Path, tmp_path: Path, content: bytes
    ) -> None:
        (tmp_path / "model.bin").write_bytes(content)
        with pytest.raises(ConfigError, match=r"--model .*; give a supervised \.bin or \.ftz file"):
            run_job(Toxicity(model=str(tmp_path / "model.bin")), source, tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_a_label_in_doubt_lists_the_labels(self, source: Path, tmp_path: Path) -> None:
        path = write_fasttext_model(tmp_path / "model.bin", ["__label__x", "__label__y"], VOTES)
        with pytest.raises(ConfigError, match=r"it has: x, y\. Name the toxic one with --model-label"):
            run_job(Toxicity(model=str(path)), source, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_texts_that_are_none_are_set_aside(tmp_path: Path) -> None:
    rows = [*COMMENTS, {"id": "d", "text": None}, {"id": "e", "text": 5}, {"id": "f"}]
    write_jsonl(tmp_path / "in" / "a.jsonl", rows)
    summary = run_job(Toxicity(), tmp_path / "in", tmp_path / "out")
    assert summary.books.rows() == {"in": 6, "created": 0, "out": 3, "dropped": {}, "quarantined": 3}
    assert [row["line"] for row in quarantined(tmp_path / "out")] == [4, 5, 6]


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Summary, pa.Table]:
    """The summary of scoring the labelled tweets, and their scores."""
    out = tmp_path_factory.mktemp("tweets")
    job = Toxicity(text_column="tweet", id_column="", keep_columns=["class"])
    return run_job(job, TWEETS, out / "out"), only(out / "out")


@pytest.mark.skipif(not TWEETS.exists(), reason="the labelled tweets are not here")
class TestTweets:
    """24,783 tweets that people have labelled, read in place."""

    def test_every_tweet_is_scored(self, scored: tuple[Summary, pa.Table]) -> None:
        summary, table = scored
        assert summary.books.rows() == {"in": 24_783, "created": 0, "out": 24_783, "dropped": {}, "quarantined": 0}
        assert pc.all(pc.and_(pc.greater_equal(table["toxicity"], 0), pc.less_equal(table["toxicity"], 1))).as_py()

    def test_ids_are_the_files_own(self, scored: tuple[Summary, pa.Table]) -> None:
        """Its first column has no name, and some numbers are missing in it."""
        expected = pa_csv.read_csv(TWEETS, parse_options=pa_csv.ParseOptions(newlines_in_values=True))
        assert scored[1][""].to_pylist() == expected[""].to_pylist()

    def test_rude_ones_rank_above_the_others(self, scored: tuple[Summary, pa.Table]) -> None:
        """ROC AUC of "class is not 2" is at least 0.98."""
        _, table = scored
        rude = np.array(table["class"]) != 2
        assert auc(np.array(table["toxicity"]), rude) >= 0.98


def auc(scores: Any, positive: Any) -> float:
    """Returns the area under the ROC curve: how often a positive outranks a negative, ties counting half."""
    values, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    del values
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    n = int(positive.sum())
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * (len(scores) - n)))


def test_auc_agrees_with_counting_pairs() -> None:
    rng = np.random.default_rng(3)
    scores, positive = rng.integers(0, 9, 60) / 8, rng.random(60) < 0.4
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[positive] for b in scores[~positive]]
    assert auc(scores, positive) == pytest.approx(np.mean(pairs))
