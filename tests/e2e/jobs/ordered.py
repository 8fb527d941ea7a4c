"""A job with an exchange that fails on either side of it, for as long as a file says so."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa

from curate.dataset.dataset import Dataset
from curate.job.job import Job
from curate.job.params import param


class Ordered(Job):
    """Sorts by text."""

    version = "1"
    trouble: str = param("", help="file with the texts, one a line, that cannot be taken: before the sort, or after it")

    def build(self, ds: Dataset) -> Dataset:
        return ds.map_batches(self.before).sort("text").map_batches(self.after)

    def before(self, batch: pa.Table) -> pa.Table:
        return self._looked_at("before", batch)

    def after(self, batch: pa.Table) -> pa.Table:
        return self._looked_at("after", batch)

    def _looked_at(self, when: str, batch: pa.Table) -> pa.Table:
        self.log.info("looked", when=when)
        path = Path(self.trouble)
        bad = path.read_text().splitlines() if self.trouble and path.exists() else []
        for text in batch["text"].to_pylist():
            if f"{when} {text}" in bad:
                raise ValueError(f"cannot take {text!r} {when} the sort")
        return batch


if __name__ == "__main__":
    sys.exit(Ordered.main())
