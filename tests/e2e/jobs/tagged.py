"""Texts that are kept by what an attributes job has written of them: with `--scores` the job that reads these."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

import curate
from curate.dataset.dataset import Dataset


class Tagged(curate.TextJob):
    """Counts characters; with scores, keeps the texts of which an earlier run counted many."""

    version = "1"
    keep_positions = True
    shard_bytes = 2000
    scores: str = curate.param("", help="attributes to go by", identity=False)

    def build(self, ds: Dataset) -> Dataset:
        if not self.scores:
            return super().build(ds)
        return ds.with_attributes(self.scores).filter(curate.col("length") > 20, reason="short")

    def process(self, batch: pa.Table) -> pa.Table:
        return self.passed_through(batch).append_column("length", pc.utf8_length(batch[self.text_column]))


class Tags(Tagged):
    """The attributes."""

    attributes = True
    keep_positions = False
    build = curate.Job.build


if __name__ == "__main__":
    import sys

    (Tagged if "--scores" in sys.argv else Tags).main()
