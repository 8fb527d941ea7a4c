"""From pages to training shards: `python jobs/corpus.py --input 'gs://b/pages/*.jsonl.gz' --output gs://b/train
--work gs://b/train-work --shards 64`.

Keeps the texts that `jobs/quality.py` and `jobs/langid.py` keep, drops exact copies, and texts that are nearly one that
is kept, and writes the rest in random order.

    read -> quality rules -> language -> checkpoint <work>/filtered
         -> dedup_exact              -> checkpoint <work>/exact
         -> dedup_minhash            -> checkpoint <work>/unique
         -> random_shuffle -> shards

Deduplication reads its input twice, or four times, so slow steps come before a checkpoint. Each checkpoint is a
separate dataset, in the order of the input, with its own ledger (`curate status <work>/filtered`), and stays after the
job. The last two list the dropped texts in `_side/duplicates/`. Other parameters need another `--work` and another
`--output`.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from curate.dataset.dataset import Dataset
from curate.dataset.exchanges import SHARDS
from curate.errors import ConfigError
from curate.job.params import param
from curate.jobs.langid import LANGUAGE, OTHER_LANGUAGE, SCORE, LanguageModel, check_languages
from curate.jobs.quality import Quality
from curate.pipeline.step import ActorPool


class Languages:
    """Adds the language of each text and its score. One instance in each actor."""

    def __init__(self, column: str) -> None:
        self._column = column
        self._model = LanguageModel()

    def __call__(self, batch: pa.Table) -> pa.Table:
        languages, scores = self._model.identify(batch[self._column].to_pylist())
        batch = batch.append_column(LANGUAGE, pa.array(languages, pa.string()))
        return batch.append_column(SCORE, pa.array(scores, pa.float32()))


class Corpus(Quality):
    """Make training shards: filtered, deduplicated, in random order.

    Texts are filtered by quality and language. Rows have the id, the text, the columns to keep, `language` and
    `language_score`. The parameters of the quality rules are those of the job `quality`.
    """

    version = "2"
    work: str = param(help="output prefix for the checkpoints, separate from the output", identity=False)
    languages: list[str] = param(["en"], help="languages to keep, such as en,de")
    threshold: float = param(0.8, help="Jaccard similarity from which two texts are near duplicates, up to 1")
    shards: int = param(help="number of output files; their row counts differ by one at most")
    seed: int = param(0, help="seed of the random order; another seed gives another order")

    def check(self) -> None:
        """Raises ConfigError for parameters that would keep no row, or the wrong ones."""
        if self.attributes:
            raise ConfigError("attributes are columns of each row, and this job drops and shuffles rows; leave it out")
        super().check()
        if not self.work:
            raise ConfigError("--work is empty; give a path, below which the checkpoints are written")
        if self.annotate:
            raise ConfigError("--annotate drops nothing; run the job quality with it, to choose thresholds")
        if not self.languages:
            raise ConfigError("--languages is empty, so no text would be kept; give at least one, such as en")
        check_languages("--languages", self.languages)
        self._check_own(LANGUAGE, SCORE)
        if not 1 <= self.shards <= SHARDS:
            raise ConfigError(f"--shards {self.shards} is no number of files; give 1 to {SHARDS:,}")

    def build(self, ds: Dataset) -> Dataset:
        work = self.work.rstrip("/")
        good = super().build(ds)
        assert isinstance(good, Dataset)
        told = good.map_batches(Languages, fn_constructor_args=[self.text_column], compute=ActorPool(), batch_size=4096)
        filtered = told.filter(pc.field(LANGUAGE).isin(pa.array(self.languages, pa.string())), reason=OTHER_LANGUAGE)
        exact = filtered.checkpoint(f"{work}/filtered").dedup_exact(
            self.text_column, normalise=True, id_column=self.id_column
        )
        unique = exact.checkpoint(f"{work}/exact").dedup_minhash(
            self.text_column, id_column=self.id_column, threshold=self.threshold
        )
        return unique.checkpoint(f"{work}/unique").random_shuffle(seed=self.seed, num_shards=self.shards)


if __name__ == "__main__":
    Corpus.main()
