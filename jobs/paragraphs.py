"""Cut out what other texts have, too: `python jobs/paragraphs.py --input 'gs://b/*.parquet' --output gs://b/unique`.

Three published ways, by `--unit`; the first of equal parts in the order of the input is kept:

- `line` (default): lines, compared in lower case, with digits as 0 and without punctuation beyond ASCII, as CCNet does
  (Wenzek et al. 2020, section 3.1). With `--normalise exact` as Dolma's deduper, whose paragraphs are lines.
- `paragraph`: what is between blank lines, as it is.
- `sentences`: windows of `--sentences` 3 sentences, as C4 (Raffel et al. 2020, section 2.2). All sentences of a window
  that is there before go. With `--words spacy` these are the sentences, and the decisions, of datatrove 0.10.1.

Blank lines are never compared. What is left keeps its separators, and nothing else in a text changes. Rows keep their
order, files and columns. A row is dropped if something was cut out of its text and fewer than `--min-words` words are
left (`too few words left`, or `nothing left`); other rows are kept, however short. Nulls are kept.

The extra output `<output>/_side/removed/` has one row for each unit that was cut out: `id`, `start` and `end` in
characters of the text as it was, `kind` (the unit), `cluster` (the same for all copies), `kept_id` and `kept_start`,
the place where it is kept. The text without these spans is the text that is written. Spans of dropped rows are there,
too.

Hashes of 128 bits are exchanged, and no text leaves the task that reads it. A line that is on every page, such as
"Share this", is exchanged once for each shard. The input is read twice. Run it again with more inputs: if they sort
behind all others, only their outputs are written.

It differs from datatrove's `sentence_dedup` in this: there, the first is the one with the lowest number in its file, of
several files with the same number the first; sentences of a language are its own; hashes have 64 bits; a document with
fewer than 3 sentences left is dropped, too, and nothing is cut out of one at all that has fewer words than a bound.
"""

from __future__ import annotations

from typing import Literal

from curate.dataset.dataset import Dataset
from curate.job.params import param
from curate.job.shapes import RowsJob
from curate.keywords import option
from curate.texts.words import check_installed


class Paragraphs(RowsJob):
    """Cut out lines, paragraphs or sentences of earlier texts.

    Rows keep their order and columns. The extra output `removed` lists what was cut out, each with where it is kept.
    """

    version = "1"
    sides = ("removed",)
    text_column: str = param("text", help="column with the text")
    id_column: str = param("id", help="column that identifies rows in the list of what was cut out")
    unit: Literal["line", "paragraph", "sentences"] = param("line", help="what is compared")
    normalise: Literal["exact", "folded", "ccnet", "datatrove"] | None = param(
        None, help="what of a unit is compared; default: line as ccnet, paragraph as exact, sentences as datatrove"
    )
    sentences: int = param(3, help="sentences: number in a row that is compared")
    words: Literal["whitespace", "spacy"] = param(
        "whitespace", help="how words are counted and sentences are found; spacy needs the package"
    )
    min_unit_words: int = param(0, help="minimum words of a unit that is compared; Dolma and CCNet have none")
    min_words: int = param(50, help="minimum words of a text of which something was cut out, as datatrove has it")

    def check(self) -> None:
        """Raises ConfigError where spaCy is asked for and not installed. Says which parameters have no effect."""
        check_installed(self.words)
        if self.unit != "sentences":
            self._say_unused(("sentences",), option("unit", "sentences"))

    def build(self, ds: Dataset) -> Dataset:
        return ds.dedup_paragraphs(
            self.text_column,
            id_column=self.id_column,
            unit=self.unit,
            normalise=self.normalise,
            sentences=self.sentences,
            words=self.words,
            min_unit_words=self.min_unit_words,
            min_words=self.min_words,
        )


if __name__ == "__main__":
    Paragraphs.main()
