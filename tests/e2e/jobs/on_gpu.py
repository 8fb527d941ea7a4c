"""A job whose texts are measured on a GPU, some of which break it."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa

from curate.dataset.dataset import Dataset
from curate.job.job import Job
from curate.job.params import param
from curate.pipeline.step import ActorPool
from tests.e2e.jobs.curation import _first_time


class Weigh:
    """Gives texts a weight, by a table on the GPU; one whose row there is none of leaves the GPU with an error."""

    def __init__(self, once: str) -> None:
        import torch

        self._torch, self._once = torch, once
        self._table = torch.arange(256, dtype=torch.float64, device="cuda").sqrt()

    def __call__(self, batch: pa.Table) -> pa.Table:
        batch = batch.append_column("weight", pa.array([self._weight(one) for one in batch["text"].to_pylist()]))
        return batch.append_column("gpus", pa.array([os.environ["CUDA_VISIBLE_DEVICES"]] * len(batch)))

    def _weight(self, text: str) -> float:
        letters: Any = list(text.encode())
        if text.startswith("breaks") and (not self._once or _first_time(self._once)):
            letters.append(1 << 20)
        return float(self._table[self._torch.tensor(letters, device="cuda")].sum().item())


class OnGpu(Job):
    """Weigh texts."""

    version = "1"
    columns = {"file": pa.string(), "id": pa.int64(), "text": pa.string()}  # noqa: RUF012
    batch_size = 8
    once: str = param("", identity=False, help="path: only while there is no file, what breaks the GPU does so")
    actors: int = param(1, identity=False, help="actors of the pool")
    share: float = param(1.0, identity=False, help="what each has of a GPU")

    def build(self, ds: Dataset) -> Dataset:
        pool = ActorPool(size=self.actors)
        return ds.map_batches(Weigh, fn_constructor_args=[self.once], compute=pool, num_gpus=self.share)


if __name__ == "__main__":
    OnGpu.main()
