"""The hand-written fastText models are real ones: the library reads them, and predicts what arithmetic says."""

from __future__ import annotations

from pathlib import Path

import fasttext
import pytest

from tests.support.fasttext_model import expected_probability, write_fasttext_model

LABELS = ["__label__toxic", "__label__nontoxic"]
VOTES = {"idiot": [6.0, 0.0], "lovely": [0.0, 4.0]}


@pytest.mark.parametrize(
    ("text", "logits"),
    [
        ("idiot", [6 / 2, 0]),
        ("lovely", [0, 4 / 2]),
        ("lovely idiot", [6 / 3, 4 / 3]),
        ("you lovely idiot", [6 / 3, 4 / 3]),
        ("idiot idiot idiot", [18 / 4, 0]),
        ("", [0, 0]),
    ],
)
def test_a_line_is_the_mean_of_its_known_words_and_its_end(tmp_path: Path, text: str, logits: list[float]) -> None:
    """Every word that the model knows, and the end of the line, weighs the same; unknown ones weigh nothing."""
    model = fasttext.load_model(str(write_fasttext_model(tmp_path / "model.bin", LABELS, VOTES)))
    predicted = dict(zip(*model.predict(text, k=-1), strict=True))
    assert predicted == pytest.approx(
        {label: expected_probability(logits, index) for index, label in enumerate(LABELS)}, abs=1e-6
    )


def test_any_number_of_labels(tmp_path: Path) -> None:
    """Labels and words are told apart in the dictionary, whatever their numbers."""
    labels = [f"__label__{name}" for name in "abcde"]
    path = write_fasttext_model(tmp_path / "model.bin", labels, {"third": [0, 0, 9, 0, 0]})
    best, probability = fasttext.load_model(str(path)).predict("third")
    assert best == ("__label__c",)
    assert probability[0] == pytest.approx(expected_probability([0, 0, 4.5, 0, 0], 2), abs=1e-6)


def test_a_file_of_word_vectors_cannot_predict(tmp_path: Path) -> None:
    """`supervised=False` gives the file that people pass by mistake."""
    path = write_fasttext_model(tmp_path / "vectors.bin", LABELS, VOTES, supervised=False)
    with pytest.raises(ValueError, match="needs to be supervised"):
        fasttext.load_model(str(path)).predict("idiot")
