"""Keep one of each text: `python jobs/dedup_exact.py --input 'gs://b/*.parquet' --output gs://b/unique --by text`.

Rows are duplicates if their columns `--by` have the same values. Texts are also the same if they differ only in case,
white space and Unicode composition, unless `--no-normalise` is given. The job keeps the first row in input order, or
the last (`--keep last`). With `--priority score` it keeps the row with the largest score; of several such rows, the
first or last. Rows keep their order, files and columns.

The extra output `<output>/_side/duplicates/` has one row for each dropped row: `id`, `cluster` (the same for all copies
of one text), `kept_id` and `similarity` (1.0). The summary counts these rows as dropped for `duplicate`.

Null is a value: of all rows without a text, one is kept. Hashes have 128 bits, so two different texts among 10 billion
do not get the same one by chance. The input is read twice, and no text leaves the task that reads it.

Run it again with more inputs: if they sort behind all others, only their outputs are written, and all outputs are those
of a run from nothing. Old inputs are read once more, for their hashes, unless the run before had `--keep-stages`. This
does not go with `--keep last` or `--priority`, where a new row may take the place of an old one: the job says what to
make anew.
"""

from __future__ import annotations

from curate.dataset.dataset import Dataset
from curate.errors import ConfigError
from curate.job.params import param
from curate.job.shapes import RowsJob


class DedupExact(RowsJob):
    """Keep one of all rows with the same text, or the same values.

    Rows keep their order and columns. The extra output `duplicates` lists the dropped rows, each with the row that was
    kept instead.
    """

    version = "1"
    sides = ("duplicates",)
    by: list[str] = param(["text"], help="columns to compare: rows with equal values are duplicates")
    normalise: bool = param(True, help="ignore case and white space of texts")
    keep: str = param("first", help="which row to keep, in input order: first or last")
    priority: str = param("", help="column: keep the row with its largest value, before --keep applies")
    id_column: str = param("id", help="column that identifies rows in the list of duplicates")

    def check(self) -> None:
        """Raises ConfigError where there is nothing to compare."""
        if not self.by:
            raise ConfigError("--by names no column, so there is nothing to compare; name one or several")

    def build(self, ds: Dataset) -> Dataset:
        return ds.dedup_exact(
            self.by, self.keep, priority=self.priority or None, normalise=self.normalise, id_column=self.id_column
        )


if __name__ == "__main__":
    DedupExact.main()
