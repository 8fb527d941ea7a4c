"""Dolma's rules: Soldaini et al. 2024, "Dolma: an Open Corpus of Three Trillion Tokens for Language Model Pretraining
Research", as the taggers of dolma 1.2 measure (`c4_v2`, `gopher_v1`, `pii_regex_with_counts_fast_v2`, and repetitions
as `tokenizer_repetitions_v2r2`) and the configuration of Dolma v1.5 and v1.6 decides on pages of the web.

Lines that do not end in a mark of punctuation are removed first; all but phrases is measured of what is left. Dolma
counts what is Gopher's in its own way: words are between white space, and those of punctuation alone count; so does
the median of their length, not the mean; a symbol is a word with a hash sign or `…` in it; each occurrence of a stop
word counts; bullet points are `*` and `-`; blank lines are lines; of what recurs the first one counts, too; shares of
characters are of those that are not white space. There is no rule about paragraphs.

Two things differ. What is repeated at once is words, where Dolma takes the tokens of a model, which are parts of words
or marks. Personal data is looked for in all texts, where Dolma skips those with more than 10,000 question marks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.dataclass import dataclass
from curate.late_pandas import numbers, text
from curate.texts.gopher import STOP_WORDS
from curate.texts.pieces import Array, Pieces, lengths, ratio, split
from curate.texts.repetition import NGrams
from curate.texts.words import Words, by_whitespace

ENDS = (".", "?", "!", '"')
ELLIPSIS = "…"
SYMBOLS = f"#|{ELLIPSIS}"
MOST_PERIOD = 13
"""The most words of what is counted when it follows itself."""
_BLANKS = r" \x1c-\x1f\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
_DOMAIN = rf"[^\t-\r{_BLANKS}@,?!;:)(]"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)"
PERSONAL = (
    # A mail address: a dot in what is behind the @, and white space behind it all.
    rf"[^\t-\r{_BLANKS}@]@(?:{_DOMAIN}*\.(?:{_DOMAIN}+[@,?!;:)(]?|[@,?!;:)(])|\.)[\t-\r{_BLANKS}]",
    # A phone number of ten digits, which does not begin a line.
    rf"[\t\x0b-\r{_BLANKS}]\(?\p{{Nd}}{{3}}\)?[-. ]*\p{{Nd}}{{3}}[-. ]?\p{{Nd}}{{4}}",
    # An IPv4 address, also a part of a longer number.
    rf"(?:{_BYTE}\.){{3}}{_BYTE}",
)
"""What counts as personal data; nothing in them tries a text from each of its characters to its end."""


@dataclass(frozen=True)
class Lines:
    """Which lines are kept: `ended` ones, in a mark of punctuation, of at least `min_words`."""

    ended: bool
    min_words: int


@dataclass(frozen=True)
class Kept:
    """What is left of texts."""

    texts: pa.Array
    removed: dict[str, Array]
    """How many lines of each text are removed, blank ones left out, by the first rule that they fail."""


def keep_lines(texts: pa.Array, bounds: Lines) -> Kept:
    """Returns texts without the lines that Dolma removes, each with the line feed behind it."""
    lines = split(texts, "\n")
    trimmed = pc.utf8_trim_whitespace(lines.text)
    blank = numbers(pc.equal(trimmed, text("")))
    kept = np.ones(len(blank), dtype=bool)
    removed: dict[str, Array] = {}
    if bounds.ended:
        ends = pc.is_in(pc.utf8_slice_codeunits(trimmed, -1), pa.array(ENDS, pa.string()))
        kept = numbers(ends)
        removed["no end of a sentence"] = lines.count(~kept & ~blank)
    if bounds.min_words:
        enough = by_whitespace(trimmed).count >= bounds.min_words
        removed["too few words"] = lines.count(kept & ~enough & ~blank)
        kept = kept & enough
    last = np.append(lines.owner[1:] != lines.owner[:-1], True)[: len(kept)]
    # A last line leaves the line feed before it.
    left = Pieces(pc.if_else(pa.array(kept), lines.text, text("")), lines.owner, lines.texts).where(kept | last)
    return Kept(left.joined("\n"), removed)


def phrases_in(texts: pa.Array, phrases: Sequence[str]) -> Array:
    """Returns how many of the phrases, of lower-case letters, each text has, in letters of any case."""
    lower = pc.utf8_lower(texts)
    found = np.zeros(len(texts), dtype=np.int64)
    for phrase in phrases:
        found += numbers(pc.match_substring(lower, phrase))
    return found


def measure(texts: pa.Array, words: Words, top: Sequence[int], recurring: Sequence[int]) -> dict[str, Array]:
    """Returns what Dolma's rules are about, for each text: counts, and shares from 0 to 1, which may be above 1 for
    what overlaps. `words` are between white space; `top` and `recurring` say of how many words n-grams are."""
    vocabulary = words.vocabulary
    chars = words.total(words.length)
    symbols = numbers(pc.match_substring_regex(vocabulary, SYMBOLS))
    stop_words = numbers(pc.is_in(vocabulary, pa.array(STOP_WORDS, pa.string())))
    lines = split(texts, "\n")
    bullets = pc.or_(pc.starts_with(lines.text, "*"), pc.starts_with(lines.text, "-"))
    recurs = lines.recurring()
    ngrams = NGrams(words)
    return {
        "dolma_words": words.count,
        "dolma_median_word_length": _median(words),
        "dolma_symbol_words": ratio(words.total(symbols), words.count),
        "dolma_alpha_words": ratio(words.total(words.having()), words.count),
        "dolma_stop_words": words.total(stop_words),
        "dolma_bullet_lines": ratio(lines.count(bullets), lines.count()),
        "dolma_ellipsis_lines": ratio(lines.count(pc.ends_with(lines.text, ELLIPSIS)), lines.count()),
        "dolma_recurring_lines": ratio(lines.count(recurs), lines.count()),
        "dolma_recurring_line_chars": ratio(lines.count(recurs * lengths(lines.text)), chars),
        **{f"dolma_top_{n}_gram_chars": ratio(ngrams.top(n, blanks=False), chars) for n in top},
        **{f"dolma_recurring_{n}_gram_chars": ratio(*ngrams.recurring(n)) for n in recurring},
        "dolma_personal_data": _personal(texts),
        "dolma_repeats": _repeats(words),
    }


def _median(words: Words) -> Array:
    """Returns the median length of each text's words; 0 where there are none."""
    length = words.length[words.code]
    # In order of their lengths, text by text.
    ordered = np.sort(words.owner.astype(np.int64) << 32 | length) & 0xFFFFFFFF
    ends = np.cumsum(words.count)
    some = words.count > 0
    low, high = (ends - words.count + (words.count - 1) // 2)[some], (ends - words.count + words.count // 2)[some]
    found = np.zeros(words.texts)
    found[some] = (ordered[low] + ordered[high]) / 2
    return found


def _personal(texts: pa.Array) -> Array:
    counts: list[Any] = [numbers(pc.count_substring_regex(texts, one)) for one in PERSONAL]
    found: Array = sum(counts)
    return found


def _repeats(words: Words) -> Array:
    """Returns how many times at most, if three or more, 1 to 13 words of each text follow each other again; else 0."""
    found = np.zeros(words.texts, dtype=np.int64)
    code, owner = words.code, words.owner
    for period in range(1, MOST_PERIOD + 1):
        equal = np.flatnonzero((code[period:] == code[:-period]) & (owner[period:] == owner[:-period]))
        if not len(equal):
            continue
        # Runs of words that equal the one a period before.
        first = np.flatnonzero(np.append(True, (np.diff(equal) > 1) | (np.diff(owner[equal]) > 0)))
        run = np.diff(np.append(first, len(equal)))
        times = (run + period) // period
        np.maximum.at(found, owner[equal[first]], np.where(times > 2, times, 0))
    return found
