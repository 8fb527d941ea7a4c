"""Both classifiers give one score in [0, 1] per text, in order, whatever the batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from curate.errors import ConfigError
from jobs.toxicity import BundledClassifier, Classifier, FastTextClassifier, choose_label
from tests.support.fasttext_model import expected_probability, write_fasttext_model

LABELS = ["__label__toxic", "__label__nontoxic"]
VOTES = {"idiot": [6.0, 0.0], "lovely": [0.0, 4.0]}
TEXTS = ["", "you idiot", "what a lovely day", "two\nlines\r\n", "nul\0byte", "🎉", "idiot " * 5000, "__label__toxic"]


@pytest.fixture(scope="module", params=["bundled", "fasttext"])
def classifier(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    if request.param == "bundled":
        return BundledClassifier()
    path = tmp_path_factory.mktemp("model") / "model.bin"
    return FastTextClassifier(str(write_fasttext_model(path, LABELS, VOTES)))


@pytest.mark.quick(1)
def test_every_text_gets_a_score_between_0_and_1(classifier: Classifier) -> None:
    """No text is refused, and fastText's probabilities of more than 1 are cut."""
    scores = classifier.score(TEXTS)
    assert scores.shape == (len(TEXTS),)
    assert scores.dtype == np.float64
    assert ((scores >= 0) & (scores <= 1)).all()


def test_rude_scores_above_0_5_and_kind_below(classifier: Classifier) -> None:
    rude, kind = classifier.score(["you idiot", "a lovely garden"])
    assert rude > 0.5 > kind


def test_no_texts_no_scores(classifier: Classifier) -> None:
    """A batch may be empty, at the end of a shard whose rows were all quarantined."""
    assert classifier.score([]).shape == (0,)


def test_scores_do_not_depend_on_the_batch(classifier: Classifier) -> None:
    """The same text gets the same bits in any company."""
    together = classifier.score(TEXTS)
    alone = np.concatenate([classifier.score([text]) for text in TEXTS])
    assert together.tobytes() == alone.tobytes()


def test_fasttext_scores_what_follows_a_line_break_or_an_end_of_line_mark(tmp_path: Path) -> None:
    """fastText itself stops reading at either, which would let anything hide behind them."""
    model = FastTextClassifier(str(write_fasttext_model(tmp_path / "model.bin", LABELS, VOTES)))
    expected = min(1.0, expected_probability([6 / 3, 4 / 3], 0))
    assert model.score(["lovely\nidiot", "lovely </s> idiot", "lovely idiot"]) == pytest.approx(
        [expected] * 3, abs=1e-6
    )


@pytest.mark.parametrize(
    ("labels", "wanted", "chosen"),
    [
        (["toxic", "nontoxic"], None, "toxic"),
        (["non-toxic", "Toxic"], None, "Toxic"),
        (["hate_speech", "neither"], None, "hate_speech"),
        (["0", "1"], None, "1"),
        (["toxic", "obscene", "clean"], "obscene", "obscene"),
        (["toxic", "nontoxic"], "__label__nontoxic", "nontoxic"),
        (["Spam", "ham"], "spam", "Spam"),
    ],
)
def test_the_toxic_label_is_found_by_its_name(labels: list[str], wanted: str | None, chosen: str) -> None:
    assert choose_label(labels, wanted) == chosen


@pytest.mark.parametrize(
    ("labels", "wanted", "message"),
    [
        (["spam", "ham"], None, r"none of .* known to mean toxic; it has: ham, spam\. .*--model-label"),
        (["toxic", "nsfw"], None, r"2 of .* could be meant; it has: nsfw, toxic\."),
        (["clean", "toxic"], "toxik", r"no label 'toxik'; did you mean 'toxic'\?; it has: clean, toxic"),
        (["NSFW", "nsfw"], "Nsfw", r"2 of .* could be meant"),
    ],
)
def test_a_label_in_doubt_is_refused_with_the_list(labels: list[str], wanted: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_label(labels, wanted)


@pytest.mark.parametrize("content", [None, b"", b"not a model at all"])
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "model.bin"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"model\.bin cannot be used as a fastText model .*\.bin or \.ftz"):
        FastTextClassifier(str(path))


def test_word_vectors_are_refused(tmp_path: Path) -> None:
    """They load, but cannot predict; better said when the model is loaded than at the first batch."""
    path = write_fasttext_model(tmp_path / "vectors.bin", LABELS, VOTES, supervised=False)
    with pytest.raises(ConfigError, match="needs to be supervised"):
        FastTextClassifier(str(path))
