"""Drop near copies of texts: `python jobs/dedup_minhash.py --input 'gs://b/*.parquet' --output gs://b/unique`.

A text is a set of n-grams: five consecutive words, without case and punctuation, or characters (`--unit character`, for
languages that are written without spaces). Two texts are near duplicates if the Jaccard similarity of their sets is at
least `--threshold`. The first row is kept, then each that is no near duplicate of a row that is kept (`--drop-by
verified`): every row that is dropped is at least that similar to the row that is kept in its place. With
`--drop-by component` texts that a chain of near duplicates connects are a cluster, and the first row of each is kept,
however unlike it the others are. Rows keep their order, files and columns. Nulls, and texts without a word, are kept.

    --exempt-column is_gold                           rows in which it is true are never dropped
    --exempt-column source --exempt-values wiki       nor are rows of these values; rows like them are
    --priority-column source --priority books,web     of rows that are alike, those of books stay, then those of web

Rows that may not be dropped come first, then those of each value of `--priority`, then all others, each in input order.
The summary counts the rows of each value that is listed: 0 of one that no row has.

MinHash selects the pairs to compare: those that agree in one of `--bands` bands of `--rows` places. It finds a share of
1 - (1 - s**rows)**bands of the pairs with similarity s:

    similarity          0.7     0.75    0.8     0.85    0.9     0.95
    14 bands of 8      56.5 %  77.2 %  92.4 %  98.8 %  100 %   100 %
    20 bands of 8      69.5 %  87.9 %  97.5 %  99.8 %  100 %   100 %
    32 bands of 6      98.2 %  99.8 %  100 %   100 %   100 %   100 %

The similarity of a selected pair is computed exactly, so no row is dropped for a pair below the threshold. More
bands find more pairs, and cost proportionally more.

The extra output `<output>/_side/duplicates/` has one row for each dropped row: `id`, `cluster`, `kept_id`, and its
`similarity` to that row, which is the most similar one that is kept (component: to the most similar text of the
cluster). With `--source-column`, which is `--priority-column` unless given, it has `source` and `kept_source`, too, and
`curate report` shows what each source lost to which. The input is read four times.
"""

from __future__ import annotations

from typing import Literal

from curate.dataset.dataset import Dataset
from curate.errors import ConfigError
from curate.job.params import param
from curate.job.shapes import RowsJob


class DedupMinhash(RowsJob):
    """Drop rows whose text is nearly that of a row that is kept.

    Rows keep their order and columns. The extra output `duplicates` lists the dropped rows, each with the row that was
    kept instead.
    """

    version = "2"
    sides = ("duplicates",)
    text_column: str = param("text", help="column with the text")
    id_column: str = param("id", help="column that identifies rows in the list of duplicates")
    threshold: float = param(0.8, help="Jaccard similarity from which two texts are near duplicates, up to 1")
    drop_by: Literal["verified", "component"] = param(
        "verified", help="rows to drop: verified (like a row that is kept) or component (connected to one)"
    )
    exempt_column: str | None = param(None, help="column of rows that are never dropped: true, or of --exempt-values")
    exempt_values: list[str] = param([], help="values of --exempt-column whose rows are never dropped")
    priority_column: str | None = param(None, help="column that says which of similar rows is kept")
    priority: list[str] = param([], help="values of --priority-column, the one to keep first; others come last")
    source_column: str | None = param(None, help="column to list for dropped and kept rows; default: --priority-column")
    ngram: int = param(5, help="length of an n-gram, in words or characters")
    unit: str = param("word", help="unit of n-grams: word or character")
    bands: int = param(14, help="number of bands of a signature")
    rows: int = param(8, help="number of places of a band")
    seed: int = param(0, help="seed of the hashes; another seed misses other pairs")

    def check(self) -> None:
        """Raises ConfigError for values without a column, and a column without them."""
        if self.exempt_values and self.exempt_column is None:
            raise ConfigError("--exempt-values needs --exempt-column, the column that has them")
        if bool(self.priority) != (self.priority_column is not None):
            raise ConfigError("--priority-column and --priority go together: a column, and its values in order")

    def build(self, ds: Dataset) -> Dataset:
        exempt = self.exempt_column
        return ds.dedup_minhash(
            self.text_column,
            id_column=self.id_column,
            threshold=self.threshold,
            drop=self.drop_by,
            exempt={exempt: self.exempt_values} if exempt is not None and self.exempt_values else exempt,
            priority=None if self.priority_column is None else {self.priority_column: self.priority},
            source_column=self.source_column,
            ngram=self.ngram,
            bands=self.bands,
            rows=self.rows,
            seed=self.seed,
            unit=self.unit,
        )


if __name__ == "__main__":
    DedupMinhash.main()
