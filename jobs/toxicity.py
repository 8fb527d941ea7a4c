"""Score texts for toxicity: `python jobs/toxicity.py --input 'gs://b/reddit/*.jsonl.gz' --output gs://b/toxicity`.

Writes one row for each input row: its id, its text (unless `--no-keep-text`), `toxicity` (float32, 0 to 1) and `toxic`
(whether the score reaches the threshold; both compared as float32).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from curate.errors import ConfigError
from curate.job.asset import Asset
from curate.job.params import param
from curate.job.shapes import TextJob
from curate.texts.fasttext_model import FastTextModel, check_installed, labels_of, named_label, plain_label

Scores = npt.NDArray[np.float64]

SCORE, TOXIC = "toxicity", "toxic"
"""Columns of the output."""

# What published toxicity models call their positive class, as `plain_label` has it. Names of negative classes
# (`nontoxic`, `clean`, `0`) are deliberately no part of the rule: a label is toxic by its own name, not for want of
# another.
TOXIC_LABELS = frozenset(
    {"1", "abusive", "hate", "hatespeech", "nsfw", "obscene", "offensive", "profane", "toxic", "toxicity"}
)


class Classifier(Protocol):
    """Scores texts for toxicity."""

    def score(self, texts: Sequence[str]) -> Scores:
        """Returns one score in [0, 1] per text, in order; an empty sequence gives an empty array."""
        ...


class BundledClassifier:
    """Scores English text with the linear model inside the package `alt-profanity-check`; no file is needed.

    TF-IDF over words and a calibrated linear SVM: about 150,000 short texts a second on one core, if the batches hold
    a thousand texts or more (each call costs 2 ms whatever its size). A text without a known word, such as an empty
    one, gets 0.036. It finds rude words; it does not understand what is said.
    """

    def __init__(self) -> None:
        """Loads the model: about a second, nearly all of it importing scikit-learn. Do it once per process."""
        from profanity_check.profanity_check import model, vectorizer

        self._model = model
        self._vectorizer = vectorizer

    def score(self, texts: Sequence[str]) -> Scores:
        if not texts:
            return np.zeros(0)
        # The package's own predict_prob calls Python once per row; this is the same number, a fifth faster.
        probabilities: Scores = self._model.predict_proba(self._vectorizer.transform(texts))[:, 1]
        return probabilities


class FastTextClassifier:
    """Scores text with a supervised fastText model: the probability of its toxic label."""

    def __init__(self, path: str, label: str | None = None) -> None:
        """Loads the model at a local `path`; `label` names the toxic one, with or without `__label__`.

        Without `label`, the one label whose plain name is in TOXIC_LABELS is taken. Raises ConfigError if the file is
        no supervised fastText model, or if none or several of its labels could be meant.
        """
        self._model = FastTextModel(path)
        self.label = choose_label(self._model.labels, label)

    def score(self, texts: Sequence[str]) -> Scores:
        return self._model.scores(texts, self.label)


def choose_label(labels: Sequence[str], wanted: str | None) -> str:
    """Returns the one of a model's `labels` that means toxic: `wanted` if given, else the one in TOXIC_LABELS.

    Raises ConfigError, listing the labels, if none or several fit.

    >>> choose_label(["nontoxic", "toxic"], None)
    'toxic'
    >>> choose_label(["spam", "ham"], "spam")
    'spam'
    """
    name_it = "Name the toxic one with --model-label"
    if wanted is not None:
        try:
            return named_label(labels, wanted)
        except ConfigError as error:
            raise ConfigError(f"{error}. {name_it}") from None
    fitting = [label for label in labels if plain_label(label) in TOXIC_LABELS]
    if len(fitting) == 1:
        return fitting[0]
    problem = "none of the model's labels is known to mean toxic"
    if fitting:
        problem = f"{len(fitting)} of the model's labels could be meant"
    raise ConfigError(f"{problem}; it has: {', '.join(sorted(labels)) or 'none'}. {name_it}")


class Toxicity(TextJob):
    """Score each record's text for toxicity.

    Without --model, the linear classifier inside the package `alt-profanity-check` (English, nothing to download); with
    it, a supervised fastText model such as Dolma's taggers use.
    """

    version = "1"
    keep_text: bool = param(True, help="also write the text to the output")
    threshold: float = param(0.5, help="score from which a text counts as toxic, 0 to 1")
    model: Asset | None = param(None, help="fastText model (.bin or .ftz), local or a URI")
    model_label: str | None = param(None, help="the model's label for toxic texts, if it is not one of the usual names")

    def check(self) -> None:
        """Raises ConfigError for an invalid threshold or label, or a package that is not installed."""
        if not 0 <= self.threshold <= 1:
            raise ConfigError(f"--threshold {self.threshold:g} is no score; scores are between 0 and 1")
        if self.model_label is not None and self.model is None:
            raise ConfigError(f"--model-label {self.model_label!r} names a label of a --model, and there is none")
        for name in (SCORE, TOXIC):
            if name in (self.id_column, *[self.text_column] * self.keep_text, *self.keep_columns):
                raise ConfigError(f"the output's column {name!r} is the job's own; leave {name!r} out of what is kept")
        if self.model is not None:
            check_installed()
            with self.model.open() as file:
                choose_label(labels_of(file, f"--model {self.model.uri}"), self.model_label)
        elif importlib.util.find_spec("profanity_check") is None:
            raise ConfigError(
                "without --model, the classifier is that of the package alt-profanity-check, which is not installed: "
                "pip install 'curate[jobs]'"
            )

    def setup(self) -> None:
        if self.model is None:
            self.classifier: Classifier = BundledClassifier()
        else:
            self.classifier = FastTextClassifier(self.model.local(), self.model_label)

    def process(self, batch: pa.Table) -> pa.Table:
        score = pa.array(self.classifier.score(batch[self.text_column].to_pylist()), pa.float32())
        # Compared as what is stored: a score that reads as 0.7 reaches a threshold of 0.7, whichever double it was.
        toxic = pc.greater_equal(score, pa.scalar(self.threshold, pa.float32()))
        return self.passed_through(batch, text=self.keep_text).append_column(SCORE, score).append_column(TOXIC, toxic)


if __name__ == "__main__":
    Toxicity.main()
