"""A job of several steps: rows are cleaned, go through the actors of a pool, and are cleaned again."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curate.dataset.dataset import Dataset
from curate.job.job import Job
from curate.job.params import param
from curate.pipeline.step import ActorPool


class Measure:
    """Says how long texts are, in a while. Leaves word of its process, and of every call."""

    def __init__(self, trace: str, pause_s: float, broken: bool) -> None:
        if broken:
            raise OSError("there is no model here")
        self.trace = Path(trace) if trace else None
        self.pause_s = pause_s
        self._note("made")

    def __call__(self, batch: pa.Table) -> pa.Table:
        self._note(f"called {batch.num_rows}")
        time.sleep(self.pause_s)
        return batch.append_column("length", pc.cast(pc.utf8_length(batch["text"]), pa.int64()))

    def _note(self, text: str) -> None:
        if self.trace is not None:
            with self.trace.open("a") as out:
                out.write(f"{os.getpid()} {text}\n")


def halved(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row with half its length beside it."""
    return {**row, "half": row["length"] / 2}


class Pooled(Job):
    """CPU, pool, CPU."""

    version = "1"
    columns = {"file": pa.string(), "id": pa.int64(), "text": pa.string()}  # noqa: RUF012
    batch_size = 20
    trace: str = param("", help="where to leave word", identity=False)
    pause_s: float = param(0.0, help="how long a batch takes", identity=False)
    actors: int = param(1, help="actors of the pool", identity=False)
    actor_cpus: float = param(1.0, help="CPUs of an actor", identity=False)
    ordered: bool = param(False, help="whether rows are sorted at the end")
    broken: bool = param(False, help="whether actors cannot be made", identity=False)

    def build(self, ds: Dataset) -> Dataset:
        long = ds.filter(pc.utf8_length(pc.field("text")) > 8, reason="short")
        measured = long.map_batches(
            Measure,
            batch_size=8,
            fn_constructor_args=[self.trace, self.pause_s, self.broken],
            compute=ActorPool(size=self.actors),
            num_cpus=self.actor_cpus,
        )
        halves = measured.map(halved).filter(pc.field("half") > 5, reason="still short")
        return halves.sort(["text", "file", "id"]) if self.ordered else halves


if __name__ == "__main__":
    Pooled.main()
