"""Keep one of nearly equal texts: `python jobs/dedup_minhash.py --input 'gs://b/*.parquet' --output gs://b/unique`.

A text is a set of n-grams: five consecutive words, without case and punctuation, or characters (`--unit character`, for
languages that are written without spaces). Two texts are near duplicates if the Jaccard similarity of their sets is at
least `--threshold`. Texts that are connected by such pairs are a cluster, and the first row of each cluster in input
order is kept. Rows keep their order, files and columns. Nulls, and texts without a word, are kept.

MinHash selects the pairs to compare: those that agree in one of `--bands` bands of `--rows` places. It finds a share of
1 - (1 - s**rows)**bands of the pairs with similarity s:

    similarity          0.7     0.75    0.8     0.85    0.9     0.95
    14 bands of 8      56.5 %  77.2 %  92.4 %  98.8 %  100 %   100 %
    20 bands of 8      69.5 %  87.9 %  97.5 %  99.8 %  100 %   100 %
    32 bands of 6      98.2 %  99.8 %  100 %   100 %   100 %   100 %

The similarity of a selected pair is computed exactly, so a pair below the threshold never joins a cluster. More bands
find more pairs, and cost proportionally more.

The extra output `<output>/_side/duplicates/` has one row for each dropped row: `id`, `cluster`, `kept_id`, and its
`similarity` to the most similar text of the cluster. The input is read four times.
"""

from __future__ import annotations

from curate.dataset.dataset import Dataset
from curate.job.job import Job
from curate.job.params import param


class DedupMinhash(Job):
    """Keep one of all rows whose texts are nearly the same.

    Rows keep their order and columns. The extra output `duplicates` lists the dropped rows, each with the row that was
    kept instead.
    """

    version = "1"
    sides = ("duplicates",)
    text_column: str = param("text", help="column with the text")
    id_column: str = param("id", help="column that identifies rows in the list of duplicates")
    threshold: float = param(0.8, help="Jaccard similarity from which two texts are near duplicates, up to 1")
    ngram: int = param(5, help="length of an n-gram, in words or characters")
    unit: str = param("word", help="unit of n-grams: word or character")
    bands: int = param(14, help="number of bands of a signature")
    rows: int = param(8, help="number of places of a band")
    seed: int = param(0, help="seed of the hashes; another seed misses other pairs")

    def build(self, ds: Dataset) -> Dataset:
        return ds.dedup_minhash(
            self.text_column,
            id_column=self.id_column,
            threshold=self.threshold,
            ngram=self.ngram,
            bands=self.bands,
            rows=self.rows,
            seed=self.seed,
            unit=self.unit,
        )


if __name__ == "__main__":
    DedupMinhash.main()
