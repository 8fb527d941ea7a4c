"""A job that a single row can stop, and what else may happen to a shard, by what the row's text says."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from curate.job.job import Job
from curate.job.params import param


class Choosy(Job):
    """Measure texts; choke on poison."""

    version = "1"
    columns = {"id": pa.string(), "text": pa.string()}  # noqa: RUF012
    batch_size = 2
    word: str = param("poison", help="text that the job cannot take")

    def process(self, batch: pa.Table) -> pa.Table:
        measured = list(map(self.measure, batch["text"].to_pylist()))
        self.count("characters", sum(measured))
        kept = batch.filter(pc.not_equal(batch["text"], "boring"))
        self.drop(len(batch) - len(kept), "boring")
        lengths = pa.array([n for n, text in zip(measured, batch["text"].to_pylist(), strict=True) if text != "boring"])
        return kept.append_column("length", lengths.cast(pa.int64()))

    def measure(self, text: str) -> int:
        """Returns the length of a text."""
        if text == self.word:
            raise ValueError(f"cannot measure {text!r}")
        if text == "exit":
            raise SystemExit(3)
        return len(text)


if __name__ == "__main__":
    Choosy.main()
