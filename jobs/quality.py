"""Keep texts that read like prose: `python jobs/quality.py --input 'gs://b/pages/*.jsonl.gz' --output gs://b/quality`.

Two published sets of rules, in the order in which they are applied:

- `gopher`: Rae et al. 2021, "Scaling Language Models: Methods, Analysis & Insights from Training Gopher", appendix A.
- `c4`: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", section
  2.2. The defaults are those of the code that made the corpus (`c4_utils.py` of tensorflow_datasets): at least
  5 words a line and 3 sentences a page. Descriptions of the article have 3 and 5 instead.

Both apply to the text as it was read. A row is dropped for the first rule that it fails, and the summary counts rows by
rule. C4's rules for lines also change the text: lines that fail are removed. Three parts of C4 are left out: the list
of bad words (it has no single version), citation marks, and the removal of repeated sentences (it needs other rows).

Words are separated by white space, lines by line feeds. Lines are trimmed, and blank lines do not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.errors import ConfigError, did_you_mean
from curate.job.params import param
from curate.job.shapes import TextJob

GOPHER, C4 = "gopher", "c4"

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
"""Gopher's, whatever their case, and without the punctuation around them."""
BULLET = r"^(?:[•‣⁃◦∙▪▫●○■□–-]|\* )"
"""How a line with a bullet point starts; Gopher does not say. Of asterisks only one before a blank: not `**bold**`."""
PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~…“”‘’«»"
ELLIPSES = ("...", "…")
POLICY = "terms of use|privacy policy|cookie policy|uses cookies|use of cookies|use cookies"
"""What the lines say that C4's code takes for a notice."""
TERMINAL = r"[.!?\"]$"
"""C4's ends of a line: a full stop, exclamation mark, question mark, or quotation mark; an ellipsis is none."""
SENTENCE_END = r"[.!?]+[\"'”’)\]]*(?:\s|$)"
"""Where a sentence ends: C4's code has a trained splitter here, which knows abbreviations; this takes them for ends."""


@dataclass(frozen=True)
class Pieces:
    """The pieces of each of a number of texts, words or lines, one after the other."""

    text: pa.Array
    """All pieces, those of the first text first."""
    owner: np.ndarray[Any, Any]
    """The number of the text that each piece is of."""
    texts: int
    """How many texts there are, with pieces or without."""

    def where(self, chosen: pa.Array) -> Pieces:
        """Returns the pieces for which `chosen` is true."""
        return Pieces(self.text.filter(chosen), self.owner[chosen.to_numpy(zero_copy_only=False)], self.texts)

    def count(self, chosen: pa.Array | None = None) -> pa.Array:
        """Returns for each text how many of its pieces there are, or are chosen."""
        return self.total(np.ones(len(self.owner)) if chosen is None else chosen.to_numpy(zero_copy_only=False))

    def total(self, amount: Any) -> pa.Array:
        """Returns for each text the sum of `amount`, whole numbers below 2**53, over its pieces."""
        return pa.array(np.bincount(self.owner, weights=amount, minlength=self.texts).astype(np.int64))

    def joined(self, separator: str) -> pa.Array:
        """Returns each text's pieces as one text, which is empty where there are none."""
        ends = np.cumsum(np.bincount(self.owner, minlength=self.texts))
        offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
        return pc.binary_join(pa.ListArray.from_arrays(offsets, self.text), separator)


def words(texts: pa.Array) -> Pieces:
    """Returns the words of texts."""
    return _pieces(pc.utf8_split_whitespace(texts))


def lines(texts: pa.Array) -> Pieces:
    """Returns the lines of texts, trimmed, without the blank ones."""
    return _pieces(pc.split_pattern(texts, "\n"))


def _pieces(split: pa.ListArray) -> Pieces:
    pieces = Pieces(pc.utf8_trim_whitespace(split.flatten()), pc.list_parent_indices(split).to_numpy(), len(split))
    return pieces.where(pc.not_equal(pieces.text, ""))


def _ratio(part: pa.Array, whole: pa.Array) -> pa.Array:
    """Returns part / whole as doubles; 0 where both are."""
    return pc.divide(pc.cast(part, pa.float64()), pc.cast(pc.max_element_wise(whole, 1), pa.float64()))


def _ends_in_ellipsis(text: pa.Array) -> pa.Array:
    return pc.or_(*(pc.ends_with(text, mark) for mark in ELLIPSES))


Rules = dict[str, pa.Array]
"""By the reason for which a text is dropped, whether it is: in the order of the rules."""


class Quality(TextJob):
    """Keep texts that pass the quality rules of Gopher and of C4.

    Defaults are the published values, which were chosen for whole web pages in English. --rules takes one of the two,
    or both.
    """

    version = "1"
    rules: list[str] = param([GOPHER, C4], help="sets of rules to apply: gopher, c4, or both")
    min_words: int = param(50, help="gopher: minimum words of a text")
    max_words: int = param(100_000, help="gopher: maximum words of a text")
    min_mean_word_length: float = param(3.0, help="gopher: minimum mean word length, in characters")
    max_mean_word_length: float = param(10.0, help="gopher: maximum mean word length, in characters")
    max_symbol_ratio: float = param(0.1, help="gopher: maximum ratio of hash signs to words, and of ellipses to words")
    max_bullet_lines: float = param(0.9, help="gopher: maximum share of lines that start with a bullet point")
    max_ellipsis_lines: float = param(0.3, help="gopher: maximum share of lines that end with an ellipsis")
    min_alpha_words: float = param(0.8, help="gopher: minimum share of words with a letter")
    min_stop_words: int = param(2, help="gopher: minimum number of different stop words, of 8 English ones")
    min_line_words: int = param(5, help="c4: minimum words of a line")
    max_word_length: int = param(1000, help="c4: maximum characters of a word of a line")
    min_sentences: int = param(3, help="c4: minimum sentences in the lines that are kept")

    def check(self) -> None:
        """Raises ConfigError for parameters that would keep no row, or the wrong ones."""
        for name in self.rules:
            if name not in (GOPHER, C4):
                raise ConfigError(f"--rules {name}: there are {GOPHER} and {C4}{did_you_mean(name, (GOPHER, C4))}")
        if not self.rules:
            raise ConfigError(f"--rules is empty, so every text would be kept; give {GOPHER}, {C4}, or both")
        for least, most in (("min_words", "max_words"), ("min_mean_word_length", "max_mean_word_length")):
            if getattr(self, least) > getattr(self, most):
                found = f"{_option(least)} {getattr(self, least):g} is above {_option(most)} {getattr(self, most):g}"
                raise ConfigError(f"{found}, so no text would be kept")
        for name in ("max_bullet_lines", "max_ellipsis_lines", "min_alpha_words"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{_option(name)} {getattr(self, name):g} is no share; shares are between 0 and 1")
        if not 0 <= self.min_stop_words <= len(STOP_WORDS):
            raise ConfigError(f"--min-stop-words {self.min_stop_words}: there are {len(STOP_WORDS)} stop words")
        if self.id_column == self.text_column:
            raise ConfigError(f"the text {self.text_column!r} is no id: lines are taken out of it; give --id-column")

    def process(self, batch: pa.Table) -> Iterator[pa.Table]:
        # By chunk: a list of words counts with 32 bits.
        for part in batch.to_batches():
            yield self._judged(pa.Table.from_batches([part]))

    def _judged(self, table: pa.Table) -> pa.Table:
        [text] = table[self.text_column].chunks
        kept_lines, removed = self.c4_lines(lines(text)) if C4 in self.rules else (None, {})
        failed: Rules = {}
        if GOPHER in self.rules:
            failed |= self.gopher(text)
        if kept_lines is not None:
            failed |= self.c4(text, kept_lines)
        kept = pa.array(np.ones(len(text), dtype=bool))
        for reason, fails in failed.items():
            self.drop(pc.sum(pc.and_(kept, fails), min_count=0), reason)
            kept = pc.and_not(kept, fails)
        for reason, counts in removed.items():
            if number := pc.sum(counts.filter(kept), min_count=0).as_py():
                self.count(f"lines removed: {reason}", number)
        return self._with_text(table, text if kept_lines is None else kept_lines.joined("\n")).filter(kept)

    def gopher(self, text: pa.Array) -> Rules:
        """Returns Gopher's rules for texts. A ratio to no words, or to no lines, is 0."""
        word = words(text)
        count = word.count()
        length = _ratio(word.total(pc.utf8_length(word.text).to_numpy()), count)
        hashes = _ratio(pc.count_substring(text, "#"), count)
        ellipses = _ratio(pc.add(*(pc.count_substring(text, mark) for mark in ELLIPSES)), count)
        line = lines(text)
        bullets = _ratio(line.count(pc.match_substring_regex(line.text, BULLET)), line.count())
        unfinished = _ratio(line.count(_ends_in_ellipsis(line.text)), line.count())
        alpha = _ratio(word.count(pc.match_substring_regex(word.text, r"\pL")), count)
        return {
            "gopher: too few words": pc.less(count, self.min_words),
            "gopher: too many words": pc.greater(count, self.max_words),
            "gopher: words too short": pc.less(length, self.min_mean_word_length),
            "gopher: words too long": pc.greater(length, self.max_mean_word_length),
            "gopher: too many hash signs": pc.greater(hashes, self.max_symbol_ratio),
            "gopher: too many ellipses": pc.greater(ellipses, self.max_symbol_ratio),
            "gopher: too many bullet points": pc.greater(bullets, self.max_bullet_lines),
            "gopher: too many lines end with an ellipsis": pc.greater(unfinished, self.max_ellipsis_lines),
            "gopher: too few words with a letter": pc.less(alpha, self.min_alpha_words),
            "gopher: too few stop words": pc.less(_stop_words(word), self.min_stop_words),
        }

    def c4_lines(self, line: Pieces) -> tuple[Pieces, Rules]:
        """Returns the lines that C4 keeps, and how many of each text it removes, by the first rule that they fail."""
        word = words(line.text)
        lower = pc.ascii_lower(line.text)
        ends = pc.and_not(pc.match_substring_regex(line.text, TERMINAL), pc.ends_with(line.text, "..."))
        long = pc.greater(word.count(pc.greater(pc.utf8_length(word.text), self.max_word_length)), 0)
        rules = {
            "a word is too long": long,
            "no end of a sentence": pc.invert(ends),
            "too few words": pc.less(word.count(), self.min_line_words),
            "javascript": pc.match_substring(lower, "javascript"),
            "policy": pc.match_substring_regex(lower, POLICY),
        }
        kept = pa.array(np.ones(len(line.text), dtype=bool))
        removed: Rules = {}
        for reason, fails in rules.items():
            removed[reason] = line.count(pc.and_(kept, fails))
            kept = pc.and_not(kept, fails)
        return line.where(kept), removed

    def c4(self, text: pa.Array, kept: Pieces) -> Rules:
        """Returns C4's rules for texts, of which the lines `kept` are left."""
        sentences = kept.total(pc.count_substring_regex(kept.text, SENTENCE_END).to_numpy())
        return {
            "c4: lorem ipsum": pc.match_substring(pc.ascii_lower(text), "lorem ipsum"),
            "c4: curly bracket": pc.match_substring_regex(text, "[{}]"),
            "c4: too few sentences": pc.less(sentences, self.min_sentences),
        }

    def _with_text(self, table: pa.Table, text: pa.Array) -> pa.Table:
        passed = self.passed_through(table)
        if self.text_column in self.keep_columns:
            return passed.set_column(passed.column_names.index(self.text_column), self.text_column, text)
        return passed.append_column(self.text_column, text)


def _stop_words(word: Pieces) -> pa.Array:
    """Returns how many different stop words each text has."""
    plain = pc.ascii_lower(pc.utf8_trim(word.text, characters=PUNCTUATION))
    found = [pc.min_element_wise(word.count(pc.equal(plain, stop)), 1).to_numpy() for stop in STOP_WORDS]
    return pa.array(np.sum(found, axis=0))


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


if __name__ == "__main__":
    Quality.main()
