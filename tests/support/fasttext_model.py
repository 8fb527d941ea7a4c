"""Writes tiny fastText classifiers, byte by byte, so that tests need neither a download nor a trainer.

The layout is that of `FastText::saveModel` in fastText 0.9.2, version 12 of the format: header, arguments, dictionary,
input matrix, output matrix; all little-endian. The model is one-dimensional per label: a word's vector *is* its vote
for each label, and the output matrix is the identity. A line's logits are the mean of its words' votes, which makes
every prediction one that a test can work out by hand.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

_MAGIC, _VERSION = 793712314, 12
_LOSS_SOFTMAX, _MODEL_SUPERVISED, _MODEL_SKIPGRAM = 3, 3, 2
_WORD, _LABEL = 0, 1
_NOT_PRUNED = -1
_END_OF_LINE = "</s>"


def write_fasttext_model(
    path: Path,
    labels: Sequence[str],
    votes: Mapping[str, Sequence[float]],
    *,
    supervised: bool = True,
) -> Path:
    """Writes a classifier over `labels` to `path`; `votes` gives each known word its logit per label.

    The end of the line, a word in every fastText model, votes 0 for all labels unless `votes` names it (`</s>`).
    With `supervised=False` the file holds word vectors only, which is what people pass by mistake.
    """
    words = {_END_OF_LINE: [0.0] * len(labels), **votes}
    dim = len(labels)
    identity = [[float(row == column) for column in range(dim)] for row in range(dim)]
    path.write_bytes(
        struct.pack("<2i", _MAGIC, _VERSION)
        + _arguments(dim, _MODEL_SUPERVISED if supervised else _MODEL_SKIPGRAM)
        + _dictionary(list(words), labels)
        + _matrix(list(words.values()))
        + _matrix(identity)
    )
    return path


def expected_probability(logits: Sequence[float], index: int) -> float:
    """Returns what fastText gives for label `index`: the softmax, plus the 1e-5 that it adds within its logarithm."""
    return math.exp(logits[index]) / sum(math.exp(logit) for logit in logits) + 1e-5


def _arguments(dim: int, model: int) -> bytes:
    window, epochs, min_count, negatives, word_ngrams = 5, 5, 1, 5, 1
    buckets, min_ngram, max_ngram, update_rate, sampling = 0, 0, 0, 100, 1e-4
    head = (dim, window, epochs, min_count, negatives, word_ngrams, _LOSS_SOFTMAX, model)
    return struct.pack("<12id", *head, buckets, min_ngram, max_ngram, update_rate, sampling)


def _dictionary(words: Sequence[str], labels: Sequence[str]) -> bytes:
    size, count = len(words) + len(labels), 1
    entries = [(word, _WORD) for word in words] + [(label, _LABEL) for label in labels]
    return struct.pack("<3i2q", size, len(words), len(labels), size * count, _NOT_PRUNED) + b"".join(
        text.encode() + b"\0" + struct.pack("<qb", count, kind) for text, kind in entries
    )


def _matrix(rows: Sequence[Sequence[float]]) -> bytes:
    quantized, columns = False, len(rows[0])
    return struct.pack("<?2q", quantized, len(rows), columns) + b"".join(
        struct.pack(f"<{columns}f", *row) for row in rows
    )
