"""Run a model in a pool of actors: `python jobs/examples/pool.py --input 'in/*.parquet' --output out`.

A model that takes long to load, or much memory, or a GPU, is loaded once in each actor of a pool, not in each task.
Tasks read and write the shards and send their batches to the pool, which grows and shrinks with its queue. The model
here is that of `jobs/langid.py` (`pip install 'curate[jobs]'`); a model on a GPU differs in two lines.
"""

from __future__ import annotations

import pyarrow as pa

from curate import ActorPool, Dataset, TextJob, param


class Model:
    """Made once in each actor; called with one batch at a time."""

    def __init__(self, text_column: str) -> None:
        from curate.jobs.langid import LanguageModel  # what only actors need: the driver and the tasks do not import it

        self._model = LanguageModel()
        self._text_column = text_column

    def __call__(self, batch: pa.Table) -> pa.Table:
        languages, scores = self._model.identify(batch[self._text_column].to_pylist())
        batch = batch.append_column("lang", pa.array(languages, pa.string()))
        return batch.append_column("lang_score", pa.array(scores, pa.float64()))


class Pool(TextJob):
    """Identify the language of texts, in a pool of actors."""

    version = "1"
    batch_size = 512
    actors: int = param(2, help="actors at most", identity=False)

    def build(self, ds: Dataset) -> Dataset:
        pool = ActorPool(min_size=1, max_size=self.actors)
        # On a GPU: map_batches(..., num_gpus=1), and Model moves its weights there.
        return ds.map_batches(Model, fn_constructor_args=[self.text_column], compute=pool)


if __name__ == "__main__":
    Pool.main()
