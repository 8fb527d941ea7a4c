"""C4's rules: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
section 2.2, as its code (`c4_utils.py` of tensorflow_datasets) and `C4QualityFilter` of datatrove 0.10.1 apply them.

They remove lines, and drop a text for what is in a line that would stay, or for too few sentences in all that stay. Two
rules of the article are no part of them: the list of bad words, and the removal of sentences that other texts have.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.dataclass import dataclass
from curate.late_pandas import numbers
from curate.texts.pieces import Array, Pieces, per_text, split_lines
from curate.texts.words import Splitter, by_whitespace

CITATION = r"\[\d*\]|\[edit\]|\[citation needed\]"
"""Wikipedia's marks, which are taken out of lines."""
ENDS = (".", "?", "!", '"', "'")
ELLIPSIS = "..."
POLICY = "terms of use|privacy policy|cookie policy|uses cookies|use of cookies|use cookies"
"""What the lines say that are taken for a notice."""


@dataclass(frozen=True)
class Lines:
    """Bounds of C4's rules for lines; a bound of 0 is none."""

    min_words: int
    max_word_chars: int
    ended: bool
    """Whether a line must end in a mark of punctuation, and not in an ellipsis."""


@dataclass(frozen=True)
class Kept:
    """What is left of texts."""

    lines: Pieces
    removed: dict[str, Array]
    """How many lines of each text are removed, blank ones left out, by the first rule that they fail."""
    measures: dict[str, Array]


def measure(texts: pa.Array, split: Splitter, bounds: Lines) -> Kept:
    """Returns the lines of texts that C4 keeps, and what its rules for texts are about."""
    lines = split_lines(texts)
    trimmed = pc.utf8_trim_whitespace(lines.text)
    words = by_whitespace(trimmed)
    text = pc.replace_substring_regex(trimmed, CITATION, "")
    lower = pc.utf8_lower(text)
    mark = pc.is_in(pc.utf8_slice_codeunits(text, -1), pa.array(ENDS, pa.string()))
    ended = pc.and_not(mark, pc.ends_with(text, ELLIPSIS))
    lorem = pc.match_substring(lower, "lorem ipsum")
    curly = pc.match_substring(text, "{")
    some = words.count > 0
    kept = np.ones(len(text), dtype=bool)
    removed: dict[str, Array] = {}
    drops: dict[str, Array] = {}

    def remove(reason: str, fails: Array) -> None:
        nonlocal kept
        removed[reason] = lines.count(kept & fails & some)
        kept = kept & ~fails

    def drop(reason: str, fails: Array) -> None:
        """Notes where a line drops its text, as the place of the first such line."""
        nonlocal kept
        first = np.full(lines.texts, len(text))
        at = np.flatnonzero(kept & fails)
        np.minimum.at(first, lines.owner[at], at)
        drops[reason] = first
        kept = kept & ~fails

    if bounds.max_word_chars:
        remove("a word is too long", words.total(words.length > bounds.max_word_chars) > 0)
    if bounds.ended:
        remove("no end of a sentence", ~numbers(ended))
    remove("too few words", words.count < bounds.min_words)
    drop("lorem", numbers(lorem))
    remove("javascript", numbers(pc.match_substring(lower, "javascript")))
    drop("curly", numbers(curly))
    remove("policy", numbers(pc.match_substring_regex(lower, POLICY)))
    # The line that comes first gives the reason.
    first_lorem, first_curly = drops["lorem"], drops["curly"]
    stay = Pieces(text.filter(pa.array(kept)), lines.owner[kept], lines.texts)
    found = split.sentences(stay.text)
    return Kept(
        stay,
        removed,
        {
            "c4_lorem_ipsum": (first_lorem < len(text)) & (first_lorem <= first_curly),
            "c4_curly_bracket": first_curly < len(text),
            "c4_sentences": per_text(stay.owner, lines.texts, found),
        },
    )
