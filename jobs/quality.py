"""Keep texts that read like prose: `python jobs/quality.py --input 'gs://b/pages/*.jsonl.gz' --output gs://b/quality`.

Published sets of rules, each in the module that measures what it is about, are applied in the order of `--rules`:

- `gopher`: Rae et al. 2021, appendix A: `curate/texts/gopher`
- `gopher-repetition`: the same, table A1: `curate/texts/repetition`
- `c4`: Raffel et al. 2020, section 2.2: `curate/texts/c4`
- `fineweb`: Penedo et al. 2024, section 3.4: `curate/texts/fineweb`
- `dolma`: Soldaini et al. 2024, as Dolma v1.5 and v1.6 were made: `curate/texts/dolma`; where its thresholds are those
  of Gopher, so are its parameters

A row is dropped for the first rule that it fails, and the summary counts rows by rule. C4's and Dolma's rules for lines
also change the text, for the sets after them, too. FineWeb itself is made with `--rules
gopher-repetition,gopher,c4,fineweb --no-ended-lines --words spacy`.

With `--annotate` nothing is dropped and no text is changed: what was measured is written as columns, with the reason
for which a row would have been dropped, so that thresholds can be chosen from `curate report`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.errors import ConfigError, did_you_mean
from curate.job.params import param
from curate.job.shapes import TextJob
from curate.keywords import option
from curate.texts import c4, dolma, fineweb, gopher, repetition
from curate.texts.pieces import Array, lengths
from curate.texts.rules import Measures, Rule, first_failed
from curate.texts.words import WHITESPACE, Splitter, Words, by_whitespace, check_installed, splitter

GOPHER, REPETITION, C4, FINEWEB, DOLMA = "gopher", "gopher-repetition", "c4", "fineweb", "dolma"
SETS = (GOPHER, REPETITION, C4, FINEWEB, DOLMA)
SHARES = (
    "max_bullet_lines",
    "max_ellipsis_lines",
    "min_alpha_words",
    "max_repeated_lines",
    "max_repeated_paragraphs",
    "max_repeated_line_chars",
    "max_repeated_paragraph_chars",
    "min_ended_lines",
    "max_short_lines",
    "max_duplicate_line_chars",
    "max_recurring_lines",
)
PERSONAL = "dolma: too much personal data"
REASON = "quality_reason"
"""The column that says for what a row would be dropped; null: it would be kept."""


@dataclass(frozen=True)
class _Judged:
    """What a set of rules makes of a number of texts."""

    measured: Measures
    rules: list[Rule]
    texts: pa.Array
    """As the set leaves them."""
    removed: Mapping[str, Array]
    """Lines that were removed of each text, by reason."""


class _Batch:
    """Texts with their words, which are split once as long as the texts stay as they are."""

    def __init__(self, texts: pa.Array, split: Splitter) -> None:
        self.texts = texts
        self.split = split
        self._words: Words | None = None

    @property
    def words(self) -> Words:
        if self._words is None:
            self._words = self.split.words(self.texts)
        return self._words

    def left(self, texts: pa.Array, kept: Array) -> _Batch:
        """Returns those of the `texts` that are kept, which a set of rules made of these."""
        if kept.all() and texts is self.texts:
            return self
        return _Batch(texts.filter(pa.array(kept)), self.split)


class Quality(TextJob):
    """Keep texts that pass published quality rules.

    Defaults are the published values, which were chosen for whole web pages in English.
    """

    version = "2"
    rules: list[str] = param([GOPHER, C4], help=f"sets of rules to apply, in this order: {', '.join(SETS)}")
    words: Literal["whitespace", "spacy"] = param(
        WHITESPACE, help="what a word is: what is between white space, or what spaCy's English rules make of it"
    )
    annotate: bool = param(False, help="drop nothing, and write what was measured as columns")
    min_words: int = param(50, help="gopher, dolma: minimum words of a text that are not punctuation alone")
    max_words: int = param(100_000, help="gopher, dolma: maximum words of a text that are not punctuation alone")
    min_mean_word_length: float = param(3.0, help="gopher: minimum mean length of these words, in characters")
    max_mean_word_length: float = param(10.0, help="gopher: maximum mean length of these words, in characters")
    max_symbol_ratio: float = param(
        0.1, help="gopher, dolma: maximum ratio of hash signs to words, and of ellipses to words"
    )
    max_bullet_lines: float = param(0.9, help="gopher, dolma: maximum share of lines that start with a bullet point")
    max_ellipsis_lines: float = param(0.3, help="gopher, dolma: maximum share of lines that end with an ellipsis")
    min_alpha_words: float = param(0.8, help="gopher, dolma: minimum share of words with a letter")
    min_stop_words: int = param(2, help="gopher, dolma: minimum number of different stop words, of 8 English ones")
    max_repeated_lines: float = param(0.3, help="gopher-repetition: maximum share of lines that repeat an earlier one")
    max_repeated_paragraphs: float = param(0.3, help="gopher-repetition: the same, of paragraphs")
    max_repeated_line_chars: float = param(0.2, help="gopher-repetition: maximum share of characters in such lines")
    max_repeated_paragraph_chars: float = param(0.2, help="gopher-repetition: the same, of such paragraphs")
    max_top_ngram_chars: dict[str, float] = param(
        {"2": 0.2, "3": 0.18, "4": 0.16},
        help="gopher-repetition, dolma: maximum share of characters in the most frequent n words in a row, by n",
    )
    max_repeated_ngram_chars: dict[str, float] = param(
        {"5": 0.15, "6": 0.14, "7": 0.13, "8": 0.12, "9": 0.11, "10": 0.1},
        help="gopher-repetition, dolma: maximum share of characters in n words in a row that repeat earlier ones, by n",
    )
    min_line_words: int = param(3, help="c4: minimum words of a line; the code that made C4 has 5")
    max_word_length: int = param(1000, help="c4: maximum characters of a word of a line")
    min_sentences: int = param(5, help="c4: minimum sentences in the lines that are kept; the code that made C4 has 3")
    ended_lines: bool = param(True, help="c4, dolma: keep only lines that end in a mark of punctuation")
    min_ended_lines: float = param(0.12, help="fineweb: minimum share of lines that end in a mark of punctuation")
    max_short_lines: float = param(0.67, help="fineweb: maximum share of short lines")
    short_line_chars: int = param(30, help="fineweb: maximum characters of a short line")
    max_duplicate_line_chars: float = param(0.01, help="fineweb: maximum share of characters in repeated lines")
    max_breaks: float = param(0.3, help="fineweb: maximum ratio of line feeds to words")
    dolma_line_words: int = param(0, help="dolma: minimum words of a line; Dolma's copy of C4 has 3")
    phrases: list[str] = param(
        [], help="dolma: what no text may have, in any case; Dolma's copy of C4 has {,lorem ipsum,javascript"
    )
    min_median_word_length: float = param(3.0, help="dolma: minimum median length of the words, in characters")
    max_median_word_length: float = param(10.0, help="dolma: maximum median length of the words, in characters")
    max_recurring_lines: float = param(0.3, help="dolma: maximum share of lines that occur more than once")
    max_recurring_line_chars: float = param(0.3, help="dolma: maximum ratio of characters in such lines to all")
    max_personal_data: int = param(5, help="dolma: maximum number of mail addresses, phone numbers and IP addresses")
    max_repeats: int = param(99, help="dolma: maximum times that 1 to 13 words follow each other again and again")

    def check(self) -> None:
        """Raises ConfigError for parameters that would keep no row, or the wrong ones."""
        known = f"{', '.join(SETS[:-1])} and {SETS[-1]}"
        for name in self.rules:
            if name not in SETS:
                raise ConfigError(f"--rules {name}: there are {known}{did_you_mean(name, SETS)}")
            if self.rules.count(name) > 1:
                raise ConfigError(f"--rules has {name} twice; name each set once")
        if not self.rules:
            raise ConfigError(f"--rules is empty, so every text would be kept; there are {known}")
        for one in self._params.values():
            # The sets that a parameter is of stand before its help.
            of = one.help.partition(": ")[0].split(", ")
            if set(of) <= set(SETS) and set(of).isdisjoint(self.rules):
                self._say_unused([one.name], " or ".join(option("rules", [name]) for name in of))
        for what in ("words", "mean_word_length", "median_word_length"):
            least, most = f"min_{what}", f"max_{what}"
            if getattr(self, least) > getattr(self, most):
                found = f"{_option(least)} {getattr(self, least):g} is above {_option(most)} {getattr(self, most):g}"
                raise ConfigError(f"{found}, so no text would be kept")
        for name in self._params:
            if name.startswith("max_") and isinstance(most := getattr(self, name), int | float) and most < 0:
                raise ConfigError(f"{_option(name)} {most:g} is below 0, so no text would be kept")
        if "" in self.phrases:
            raise ConfigError("--phrases has an empty one, which all texts have, so no text would be kept")
        for name in SHARES:
            _check_share(_option(name), getattr(self, name))
        for name in ("max_top_ngram_chars", "max_repeated_ngram_chars"):
            for n, share in getattr(self, name).items():
                if not re.fullmatch("[1-9][0-9]{0,5}", n):
                    found = f"{_option(name)} has the key {n!r}"
                    raise ConfigError(f"{found}; keys are numbers of words, from 1 to 999999")
                _check_share(f"{_option(name)} for {n} words", share)
        if not 0 <= self.min_stop_words <= len(gopher.STOP_WORDS):
            raise ConfigError(f"--min-stop-words {self.min_stop_words}: there are {len(gopher.STOP_WORDS)} stop words")
        for name in self._params:
            if isinstance(least := getattr(self, name), int) and least < 0:
                raise ConfigError(f"{_option(name)} {least} is below 0; give 0, which no text falls short of, or more")
        if self.id_column == self.text_column:
            raise ConfigError(f"the text {self.text_column!r} is no id: lines are taken out of it; give --id-column")
        if self.attributes and not self.annotate:
            raise ConfigError("attributes are columns of each row, and rows are dropped; add --annotate")
        if self.annotate:
            self._check_own(*(rule.measure for name in self.rules for rule in self._rules_of(name)), REASON)
        check_installed(self.words)

    def _check_own(self, *names: str) -> None:
        """Raises ConfigError for a column that is kept and is called like one of the output's own."""
        for name in names:
            if name in (self.id_column, self.text_column, *self.keep_columns):
                raise ConfigError(f"the output's column {name!r} is the job's own; leave {name!r} out of what is kept")

    def setup(self) -> None:
        self._split = splitter(self.words)

    def process(self, batch: pa.Table) -> Iterator[pa.Table]:
        # By chunk: a list of words counts with 32 bits. A table without rows has none, and tells the columns.
        for part in [pa.Table.from_batches([one]) for one in batch.to_batches()] or [batch]:
            yield self._walked(part)

    def _walked(self, table: pa.Table) -> pa.Table:
        """Returns a table as all sets of rules leave it: its rows, or what was measured of each."""
        batch = _Batch(table[self.text_column].combine_chunks(), self._split)
        rows = np.arange(len(table))
        reasons = np.full(len(table), None, dtype=object)
        has_reason = np.zeros(len(table), dtype=bool)
        measured: dict[str, Array] = {}
        removed: dict[str, Array] = {}
        for name in self.rules:
            judged = self._judged(name, batch)
            failed = first_failed(judged.rules, judged.measured, len(rows))
            new = (failed >= 0) & ~has_reason[rows]
            reasons[rows[new]] = [judged.rules[number].reason for number in failed[new]]
            has_reason[rows[new]] = True
            # What is annotated stays, and is measured by all sets.
            kept = (failed < 0) | self.annotate
            measured |= judged.measured
            removed = {reason: counts[kept] for reason, counts in {**removed, **judged.removed}.items()}
            rows, batch = rows[kept], batch.left(judged.texts, kept)
        if self.annotate:
            return self._annotated(table, measured, reasons)
        for reason in dict.fromkeys(rule.reason for name in self.rules for rule in self._rules_of(name)):
            if (dropped := reasons == reason).any():
                # Of rows with personal data a number alone: samples of these, beside the output, would keep it.
                self.drop(int(dropped.sum()) if reason == PERSONAL else table.filter(pa.array(dropped)), reason)
        for reason, counts in removed.items():
            if number := int(counts.sum()):
                self.count(f"lines removed: {reason}", number)
        return self._with_text(table.take(pa.array(rows)), batch.texts)

    def _annotated(self, table: pa.Table, measured: Measures, reasons: Array) -> pa.Table:
        result = self._with_text(table, table[self.text_column].combine_chunks())
        for measure, values in measured.items():
            result = result.append_column(measure, pa.array(values))
        return result.append_column(REASON, pa.array(reasons, pa.string()))

    def _judged(self, name: str, batch: _Batch) -> _Judged:
        """Returns what a set of rules makes of texts."""
        texts, rules = batch.texts, self._rules_of(name)
        if name == C4:
            bounds = c4.Lines(self.min_line_words, self.max_word_length, self.ended_lines)
            kept = c4.measure(texts, batch.split, bounds)
            return _Judged(kept.measures, rules, pc.utf8_trim_whitespace(kept.lines.joined("\n")), kept.removed)
        if name == DOLMA:
            return self._dolma(texts, rules)
        if name == GOPHER:
            return _Judged(gopher.measure(texts, batch.words), rules, texts, {})
        if name == FINEWEB:
            return _Judged(fineweb.measure(texts, batch.words, self.short_line_chars), rules, texts, {})
        ngrams = repetition.measure_words(lengths(texts), batch.words, *self._ngrams())
        return _Judged({**repetition.measure(texts), **ngrams}, rules, texts, {})

    def _dolma(self, texts: pa.Array, rules: list[Rule]) -> _Judged:
        kept = dolma.keep_lines(texts, dolma.Lines(self.ended_lines, self.dolma_line_words))
        phrases = dolma.phrases_in(texts, [one.lower() for one in self.phrases])
        measured = dolma.measure(kept.texts, by_whitespace(kept.texts), *self._ngrams())
        return _Judged({"dolma_phrases": phrases, **measured}, rules, kept.texts, kept.removed)

    def _ngrams(self) -> tuple[list[int], list[int]]:
        return [*map(int, self.max_top_ngram_chars)], [*map(int, self.max_repeated_ngram_chars)]

    def _rules_of(self, name: str) -> list[Rule]:
        """Returns the rules of the set of that name, in order."""
        makes = {GOPHER: self.gopher, REPETITION: self.repetition, C4: self.c4, FINEWEB: self.fineweb}
        return {**makes, DOLMA: self.dolma}[name]()

    def gopher(self) -> list[Rule]:
        """Returns Gopher's rules for quality, in order."""
        return [
            Rule("gopher: too few words", "gopher_words", least=self.min_words),
            Rule("gopher: too many words", "gopher_words", most=self.max_words),
            Rule("gopher: words too short", "gopher_mean_word_length", least=self.min_mean_word_length),
            Rule("gopher: words too long", "gopher_mean_word_length", most=self.max_mean_word_length),
            Rule("gopher: too many hash signs", "gopher_hash_signs", most=self.max_symbol_ratio),
            Rule("gopher: too many ellipses", "gopher_ellipses", most=self.max_symbol_ratio),
            Rule("gopher: too many bullet points", "gopher_bullet_lines", most=self.max_bullet_lines),
            Rule("gopher: too many lines end with an ellipsis", "gopher_ellipsis_lines", most=self.max_ellipsis_lines),
            Rule("gopher: too few words with a letter", "gopher_alpha_words", least=self.min_alpha_words),
            Rule("gopher: too few stop words", "gopher_stop_words", least=self.min_stop_words),
        ]

    def repetition(self) -> list[Rule]:
        """Returns Gopher's rules for repetition, in order."""
        whole = {
            "repeated_paragraphs": ("too many paragraphs", self.max_repeated_paragraphs),
            "repeated_paragraph_chars": ("too much text in paragraphs", self.max_repeated_paragraph_chars),
            "repeated_lines": ("too many lines", self.max_repeated_lines),
            "repeated_line_chars": ("too much text in lines", self.max_repeated_line_chars),
            **{
                f"top_{n}_gram_chars": (f"the most frequent {n} words", most)
                for n, most in self.max_top_ngram_chars.items()
            },
            **{f"repeated_{n}_gram_chars": (f"{n} words", most) for n, most in self.max_repeated_ngram_chars.items()},
        }
        return [Rule(f"repetition: {what}", measure, most=most) for measure, (what, most) in whole.items()]

    def c4(self) -> list[Rule]:
        """Returns C4's rules for texts, in order."""
        return [
            Rule("c4: lorem ipsum", "c4_lorem_ipsum", most=0),
            Rule("c4: curly bracket", "c4_curly_bracket", most=0),
            Rule("c4: too few sentences", "c4_sentences", least=self.min_sentences),
        ]

    def fineweb(self) -> list[Rule]:
        """Returns FineWeb's rules, in order."""
        return [
            Rule("fineweb: no line", "fineweb_lines", least=1),
            Rule("fineweb: too few lines end in punctuation", "fineweb_ended_lines", least=self.min_ended_lines),
            Rule("fineweb: too many short lines", "fineweb_short_lines", most=self.max_short_lines),
            Rule("fineweb: repeated lines", "fineweb_repeated_line_chars", most=self.max_duplicate_line_chars),
            Rule("fineweb: too many line feeds", "fineweb_breaks", most=self.max_breaks),
        ]

    def dolma(self) -> list[Rule]:
        """Returns Dolma's rules, in order."""
        whole = [
            Rule("dolma: unwanted phrase", "dolma_phrases", most=0),
            Rule("dolma: too few words", "dolma_words", least=self.min_words),
            Rule("dolma: too many words", "dolma_words", most=self.max_words),
            Rule("dolma: words too short", "dolma_median_word_length", least=self.min_median_word_length),
            Rule("dolma: words too long", "dolma_median_word_length", most=self.max_median_word_length),
            Rule("dolma: too many symbols", "dolma_symbol_words", most=self.max_symbol_ratio),
            Rule("dolma: too few words with a letter", "dolma_alpha_words", least=self.min_alpha_words),
            Rule("dolma: too few stop words", "dolma_stop_words", least=self.min_stop_words),
            Rule("dolma: too many bullet points", "dolma_bullet_lines", most=self.max_bullet_lines),
            Rule("dolma: too many lines end with an ellipsis", "dolma_ellipsis_lines", most=self.max_ellipsis_lines),
            Rule("dolma: too many recurring lines", "dolma_recurring_lines", most=self.max_recurring_lines),
            Rule(
                "dolma: too much text in recurring lines",
                "dolma_recurring_line_chars",
                most=self.max_recurring_line_chars,
            ),
        ]
        for n, most in self.max_top_ngram_chars.items():
            whole.append(Rule(f"dolma: the most frequent {n} words", f"dolma_top_{n}_gram_chars", most=most))
        for n, most in self.max_repeated_ngram_chars.items():
            whole.append(Rule(f"dolma: recurring {n} words", f"dolma_recurring_{n}_gram_chars", most=most))
        return [
            *whole,
            Rule(PERSONAL, "dolma_personal_data", most=self.max_personal_data),
            Rule("dolma: the same again and again", "dolma_repeats", most=self.max_repeats),
        ]

    def _with_text(self, table: pa.Table, text: pa.Array) -> pa.Table:
        passed = self.passed_through(table)
        if self.text_column in self.keep_columns:
            return passed.set_column(passed.column_names.index(self.text_column), self.text_column, text)
        return passed.append_column(self.text_column, text)


def _check_share(what: str, share: float) -> None:
    if not 0 <= share <= 1:
        raise ConfigError(f"{what} {share:g} is no share; shares are between 0 and 1")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


if __name__ == "__main__":
    Quality.main()
