"""Keep one of nearly equal texts: `python jobs/dedup_minhash.py --input 'gs://b/*.parquet' --output gs://b/unique`.

A text is a set of n-grams: five words in a row, whatever their case and what stands between them, or so many characters
(`--unit character`, for languages that are written without blanks). Two texts are near duplicates if their sets have a
Jaccard similarity of `--threshold`; what is connected by such pairs is a cluster, and of each cluster the first row in
input order is kept. Rows stay in their order and in their files, with all columns. Null, and texts without a word, are
kept.

Which pairs are looked at, MinHash decides: those that agree in one of `--bands` bands of `--rows` places. Of pairs with
a similarity of s it finds a share of 1 - (1 - s**rows)**bands:

    similarity          0.7     0.75    0.8     0.85    0.9     0.95
    14 bands of 8      56.5 %  77.2 %  92.4 %  98.8 %  100 %   100 %
    20 bands of 8      69.5 %  87.9 %  97.5 %  99.8 %  100 %   100 %
    32 bands of 6      98.2 %  99.8 %  100 %   100 %   100 %   100 %

Looked at, a pair has the similarity that its sets have, not an estimate: texts that are less alike than the threshold
are never one cluster by that pair. More bands find more, and cost as much more.

What was dropped is told in an extra output, `<output>/_side/duplicates/`, one row each: `id`, `cluster`, `kept_id`, and
the `similarity` to the text of the cluster that is most similar to it. The input is read four times.
"""

from __future__ import annotations

from curate.dataset.dataset import Dataset
from curate.job.job import Job
from curate.job.params import param


class DedupMinhash(Job):
    """Keep one of all rows whose texts are nearly the same.

    All columns are kept, and the rows in their order. The extra output `duplicates` tells which rows were dropped, and
    which are kept in their place.
    """

    version = "1"
    sides = ("duplicates",)
    text_column: str = param("text", help="column that holds the text")
    id_column: str = param("id", help="column by which duplicates are told")
    threshold: float = param(0.8, help="similarity from which two texts are near duplicates, up to 1")
    ngram: int = param(5, help="words, or characters, of an n-gram")
    unit: str = param("word", help="what n-grams are made of: word or character")
    bands: int = param(14, help="bands of a signature")
    rows: int = param(8, help="places of a band")
    seed: int = param(0, help="another seed misses other pairs")

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
