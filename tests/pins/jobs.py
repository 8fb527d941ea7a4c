"""Two jobs of which ledgers were kept: one of files, with everything that can be in its books, and one with a sort."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curate.dataset.dataset import Dataset
from curate.errors import BadRow
from curate.job.job import Job
from curate.job.params import param
from curate.job.shapes import TextJob


class Lengths(TextJob):
    """Measure texts: short ones are an extra output, some are dropped, some set aside, and one file cannot be done."""

    version = "1"
    text_column = "body"
    sides = ("short",)
    least: int = param(3, help="characters of a text, at least")

    def process(self, batch: Any) -> Any:
        lengths = pc.utf8_length(batch[self.text_column])
        if pc.any(pc.equal(batch[self.text_column], "poison")).as_py():
            raise ValueError("poison")
        if pc.any(pc.equal(batch[self.text_column], "odd")).as_py():
            raise BadRow("odd", row=pc.index(batch[self.text_column], "odd").as_py())
        told = batch.select([self.id_column]).append_column("length", pc.cast(lengths, pa.int32()))
        long = pc.greater_equal(lengths, self.least)
        self.drop(pc.sum(pc.equal(lengths, 0)).as_py() or 0, "empty")
        kept = told.filter(long)
        short = told.filter(pc.and_(pc.invert(long), pc.greater(lengths, 0)))
        self.drop(len(short), "short")
        self.count("characters", pc.sum(lengths).as_py() or 0)
        return {"main": kept, "short": short}


class Ordered(Job):
    """Sort rows by a number."""

    version = "1"
    columns = ("id", "n")

    def build(self, ds: Dataset) -> Dataset:
        return ds.filter(pc.field("n") > 2, reason="small").sort("n", descending=True)
