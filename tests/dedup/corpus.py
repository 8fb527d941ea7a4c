"""A corpus of which it is known what is a copy of what."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa


@dataclass(frozen=True)
class Corpus:
    """Texts in shards, and the number of the original of each, by id: it is its own if it is no copy."""

    shards: list[pa.Table]
    origin: dict[int, int]


def corpus(rows: int, shards: int, seed: int = 0, *, words: int = 60, edits: int = 1) -> Corpus:
    """Returns texts of `words` to three times as many words, of which 20 % are exact and 10 % near copies of others.

    A near copy is an original with a few words replaced: one in a hundred, at least `edits`. Replacing one word of n
    changes five 5-grams of n - 4: with 60 words its similarity is 51/61, which is 0.84; with 100, 0.90; and with 180,
    0.95. Words are drawn with frequencies of 1/rank, as in text; copies lie anywhere after their original.
    """
    random = np.random.default_rng(seed)
    vocabulary = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in ("a", "ei", "o", "u") for c in "bdfgklmnprstvwz"]
    weights = 1 / np.arange(1, len(vocabulary) + 1)
    weights /= weights.sum()
    originals: list[list[str]] = []
    texts: list[str] = []
    origin: dict[int, int] = {}
    own: list[int] = []
    for number in range(rows):
        kind = random.random() if originals else 1.0
        if kind >= 0.3:
            origin[number] = number
            own.append(number)
            originals.append(
                [vocabulary[w] for w in random.choice(len(vocabulary), random.integers(words, 3 * words), p=weights)]
            )
            tokens = originals[-1]
        else:
            at = int(random.integers(len(originals)))
            origin[number], tokens = own[at], list(originals[at])
            if kind < 0.1:
                for place in random.choice(len(tokens), max(edits, len(tokens) // 100), replace=False):
                    tokens[place] = "replaced" + str(random.integers(10**6))
        texts.append(" ".join(tokens))
    whole = pa.table({"id": range(rows), "text": texts, "n": random.random(rows)})
    edges = np.linspace(0, rows, shards + 1).astype(int)
    return Corpus([whole.slice(a, b - a) for a, b in pairwise(edges.tolist())], origin)


def found_share(similarity: float, bands: int, rows: int) -> float:
    """Returns which share of pairs of a similarity has a band in common: 92.4 % at 0.8, of 14 bands of 8 rows."""
    return float(1 - (1 - similarity**rows) ** bands)
