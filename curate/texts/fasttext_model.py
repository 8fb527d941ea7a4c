"""Supervised fastText models: the probabilities of labels, by the names that people call them by."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

from curate.errors import ConfigError, did_you_mean
from curate.imports import need
from curate.texts.pieces import Array

PREFIX = "__label__"


class FastTextModel:
    """A supervised fastText model (`.bin` or `.ftz`).

    Text is passed as one line and otherwise untouched: a model trained on lower-cased text wants it lower-cased first.
    """

    def __init__(self, path: str) -> None:
        """Loads the model at a local `path`. Raises ConfigError if it is no supervised fastText model, or if the
        package that reads them is not installed."""
        check_installed()
        import fasttext

        try:
            self._model = fasttext.load_model(path)
            # A threshold below 0 asks for the labels of probability 0 as well.
            labels, _ = self._model.predict("", k=-1, threshold=-1.0)
        except ValueError as error:
            raise ConfigError(
                f"{path} cannot be used as a fastText model ({error}); give a supervised .bin or .ftz file"
            ) from error
        self.labels = tuple(sorted(label.removeprefix(PREFIX) for label in labels))
        """All labels, without fastText's prefix."""

    def best(self, text: str) -> tuple[str, float]:
        """Returns the most probable label of a text and its probability, 0 to 1; an empty label if there is none."""
        labels, probabilities = self._model.predict(_line(text), k=1)
        # fastText adds 1e-5 within its logarithm, so a sure label comes out above 1.
        return (labels[0].removeprefix(PREFIX), min(float(probabilities[0]), 1.0)) if labels else ("", 0.0)

    def scores(self, texts: Sequence[str], label: str) -> Array:
        """Returns the probability of a label for each text, 0 to 1; 0 for a text of which the model names no label."""
        scores = np.zeros(len(texts))
        full = PREFIX + label
        for row, text in enumerate(texts):
            # Its predict() for lists is broken in this build, hence one call a text.
            labels, probabilities = self._model.predict(_line(text), k=-1)
            if full in labels:
                scores[row] = probabilities[labels.index(full)]
        return np.clip(scores, 0.0, 1.0, out=scores)


_MAGIC, _SUPERVISED = 793712314, 3
_HEAD = struct.Struct("<2i12id3i2q")
"""Two numbers of the format; thirteen arguments, of which the eighth is the kind of model; how many words and labels
there are, words, labels, and two more."""
_COUNTS = 9
"""Bytes of an entry of the dictionary behind its text."""
_BLOCK = 1 << 20


def labels_of(file: BinaryIO, name: str) -> tuple[str, ...]:
    """Returns the labels of a supervised model, sorted and without fastText's prefix; of its file it reads the
    dictionary, which is at the beginning. Raises ConfigError, which calls the file `name`, if it is no such model."""
    head = file.read(_HEAD.size)
    found = _HEAD.unpack(head) if len(head) == _HEAD.size else (0,) * 20
    entries, words, labels = found[15:18]
    if found[0] != _MAGIC or found[9] != _SUPERVISED or entries != words + labels or labels < 1:
        raise ConfigError(f"{name} cannot be used as a fastText model; give a supervised .bin or .ftz file")
    texts: list[str] = []
    rest, at = b"", 0
    for number in range(entries):
        while (end := rest.find(b"\0", at)) < 0 or end + _COUNTS >= len(rest):
            if not (more := file.read(_BLOCK)):
                raise ConfigError(f"{name} cannot be used as a fastText model: its file is cut off; copy it again")
            rest, at = rest[at:] + more, 0
        if number >= words:
            texts.append(rest[at:end].decode(errors="replace").removeprefix(PREFIX))
        at = end + 1 + _COUNTS
    return tuple(sorted(texts))


def check_installed() -> None:
    """Raises ConfigError if the package that reads these models is not installed here."""
    need("fasttext", "fastText models need the package fasttext-predict", "jobs")


def _line(text: str) -> str:
    # fastText predicts one line and stops at its end, also where the text spells that end out as `</s>`: the rest of
    # such a text would go unscored.
    return text.replace("\n", " ").replace("</s>", " ")


def named_label(labels: Sequence[str], wanted: str) -> str:
    """Returns the one of `labels` that is called `wanted`; case, punctuation and fastText's prefix do not count.

    Raises ConfigError, listing the labels, if none or several fit.

    >>> named_label(["hq", "cc"], "__label__HQ")
    'hq'
    """
    name = wanted.removeprefix(PREFIX)
    fitting = [name] if name in labels else [label for label in labels if plain_label(label) == plain_label(name)]
    if len(fitting) == 1:
        return fitting[0]
    problem = f"the model has no label {name!r}{did_you_mean(name, labels)}"
    if fitting:
        problem = f"{len(fitting)} of the model's labels could be meant by {name!r}"
    raise ConfigError(f"{problem}; it has: {', '.join(labels) or 'none'}")


def plain_label(label: str) -> str:
    """Returns a label as it is compared: letters and digits, without case.

    >>> plain_label("Non-Toxic")
    'nontoxic'
    """
    return "".join(character for character in label.casefold() if character.isalnum())
