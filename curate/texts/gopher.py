"""Gopher's rules for quality: Rae et al. 2021, "Scaling Language Models: Methods, Analysis & Insights from Training
Gopher", appendix A, as FineWeb's code reads them (`GopherQualityFilter` of datatrove 0.10.1).

The article leaves open what a word, a symbol and a bullet point is; that code says: words that have only punctuation do
not count for the number of words and their mean length, and do for all else; a bullet point is `•` or `-`; stop words
are compared as they are written.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from curate.texts.characters import symbols
from curate.texts.pieces import Array, occurrences, ratio, split_lines
from curate.texts.words import Words, different

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
ELLIPSES = ("...", "…")


def measure(texts: pa.Array, words: Words) -> dict[str, Array]:
    """Returns what Gopher's rules are about, for each text: counts, and shares from 0 to 1."""
    plain = words.having(symbols())
    plain_count = words.total(plain)
    lines = split_lines(texts)
    trimmed = pc.utf8_trim_whitespace(lines.text)
    bullets = pc.or_(pc.starts_with(trimmed, "•"), pc.starts_with(trimmed, "-"))
    unfinished = pc.or_(*(pc.ends_with(trimmed, mark) for mark in ELLIPSES))
    return {
        "gopher_words": plain_count,
        "gopher_mean_word_length": ratio(words.total(words.length * plain), plain_count),
        "gopher_hash_signs": ratio(occurrences(texts, "#"), words.count),
        "gopher_ellipses": ratio(occurrences(texts, *ELLIPSES), words.count),
        "gopher_bullet_lines": ratio(lines.count(bullets), lines.count()),
        "gopher_ellipsis_lines": ratio(lines.count(unfinished), lines.count()),
        "gopher_alpha_words": ratio(words.total(words.having()), words.count),
        "gopher_stop_words": different(words, STOP_WORDS),
    }
