"""Keep one of each text: `python jobs/dedup_exact.py --input 'gs://b/*.parquet' --output gs://b/unique --by text`.

Rows are the same whose columns `--by` have the same values; texts, if they differ in case, white space and how they
compose characters alone (`--no-normalise`: not even that). The first in input order is kept, or the last (`--keep
last`); with `--priority score`, the one with the largest score, and the first or last of those. Rows stay in their
order and in their files, with all columns.

What was dropped is told in an extra output, `<output>/_side/duplicates/`, one row each: `id`, `cluster` (the same for
all copies of one text), `kept_id` and `similarity` (1.0). As many rows as the summary says were dropped as `duplicate`.

Null is a value: of all rows without a text one is kept. Hashes are of 128 bits: among 10 billion texts no two are taken
for one by chance. The input is read twice, and no text leaves the task that reads it.

Run it again with more inputs: if they sort behind all others, only their outputs are written, and all outputs are those
of a run from nothing. Old inputs are read once more, for their hashes, unless the run before had `--keep-stages`. This
does not go with `--keep last` or `--priority`, where a new row may take the place of an old one: the job says what to
make anew.
"""

from __future__ import annotations

from curate.dataset.dataset import Dataset
from curate.job.job import Job
from curate.job.params import param


class DedupExact(Job):
    """Keep one of all rows with the same text, or the same values.

    All columns are kept, and the rows in their order. The extra output `duplicates` tells which rows were dropped, and
    which are kept in their place.
    """

    version = "1"
    sides = ("duplicates",)
    by: list[str] = param(["text"], help="columns whose values make two rows the same")
    normalise: bool = param(True, help="whether case and white space of texts do not matter")
    keep: str = param("first", help="which is kept in input order: first or last")
    priority: str = param("", help="column whose largest value is kept, whatever the order")
    id_column: str = param("id", help="column by which duplicates are told")

    def build(self, ds: Dataset) -> Dataset:
        return ds.dedup_exact(
            self.by, self.keep, priority=self.priority or None, normalise=self.normalise, id_column=self.id_column
        )


if __name__ == "__main__":
    DedupExact.main()
