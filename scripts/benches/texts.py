"""Texts as they are in corpora: sentences of words that occur as often as those of a language."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

WORDS = 30_000
"""Different words."""
SENTENCE_WORDS = 14
"""Words of a sentence, on average."""
COMMAS = 0.06
"""Share of the words that a comma follows."""
SPREAD = 0.5
"""How much the lengths of texts differ: the deviation of their logarithm."""
_PLAIN, _FIRST, _COMMA, _LAST = range(4)


@dataclass(frozen=True)
class Texts:
    """Texts of many sentences, no two of them the same: how often words occur is as in natural language (Zipf's law),
    and so is how well the texts can be compressed: zstd makes them 2.5 times smaller, as it does with texts of the web.
    """

    size_bytes: int
    """How long they are on average; one of them, from a quarter to four times that."""

    def make(self, random: np.random.Generator, rows: int) -> pa.Array:
        """Returns that many texts, which `random` decides."""
        words, chances, mean = _words()
        lengths = self.size_bytes / mean * np.exp(SPREAD * random.standard_normal(rows) - SPREAD**2 / 2)
        counts = np.clip(np.round(lengths), max(1.0, lengths.mean() / 4), max(1.0, lengths.mean() * 4)).astype(np.int64)
        ends = np.cumsum(counts)
        chosen = np.searchsorted(chances, random.random(int(ends[-1])) * chances[-1])
        last = random.random(len(chosen)) < 1 / SENTENCE_WORDS
        last[ends - 1] = True
        form = np.where(random.random(len(chosen)) < COMMAS, _COMMA, _PLAIN)
        form[np.append(0, np.flatnonzero(last)[:-1] + 1)] = _FIRST
        form[last] = _LAST
        taken = words.take(pa.array(form * WORDS + chosen))
        return pc.binary_join(pa.ListArray.from_arrays(np.append(0, ends).astype(np.int32), taken), " ")


def _words() -> tuple[pa.Array, Any, float]:
    """Returns each word in its four forms, one form after the other; sums of how often they occur; and the bytes of a
    word in a text, on average."""
    letters = np.random.default_rng(0).integers(97, 123, (WORDS, 12), dtype=np.uint8)
    lengths = np.random.default_rng(1).integers(2, 12, WORDS)
    plain = [bytes(row[:length]).decode() for row, length in zip(letters, lengths, strict=True)]
    forms = [plain, [one.capitalize() for one in plain], [f"{one}," for one in plain], [f"{one}." for one in plain]]
    chances = np.cumsum(1.0 / (np.arange(WORDS) + 2.7))
    mean = float(np.average(lengths + 1, weights=np.diff(chances, prepend=0.0))) + COMMAS + 1 / SENTENCE_WORDS
    return pa.array([one for form in forms for one in form]), chances, mean
