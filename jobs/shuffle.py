"""Put a corpus in random order: `python jobs/shuffle.py --input 'gs://b/*.parquet' --output gs://b/train --shards 64`.

Every row goes to a random place of the whole corpus, not of its file. Every order is as likely, and the same `--seed`
gives the same bytes on any cluster. There come out `--shards` files of as many rows each, to one, as training wants
them that gives each of its workers as many files; any of them is a random sample of the corpus. All columns are kept,
and all rows: those that cannot be read are in quarantine.

One exchange does it, however many files go in and come out: the corpus is read once, written to run files below the
output, and read from there once. Until the job is complete there has to be room for it twice.
"""

from __future__ import annotations

from curate.dataset.dataset import Dataset
from curate.errors import ConfigError
from curate.job.job import Job
from curate.job.params import param


class Shuffle(Job):
    """Shuffle all rows into training shards of equal size.

    A row's place depends on --seed, and on the file and the line that it was read from: input files that were renamed,
    or split otherwise, give another order.
    """

    version = "1"
    shards: int = param(help="files to write, of as many rows each, to one")
    seed: int = param(0, help="another seed is another order")

    def check(self) -> None:
        """Refuses numbers that there cannot be."""
        if self.shards < 1:
            raise ConfigError(f"--shards {self.shards} is no number of files; give at least 1")
        if self.seed < 0:
            raise ConfigError(f"--seed {self.seed} is below 0; seeds are whole numbers from 0 on")

    def build(self, ds: Dataset) -> Dataset:
        return ds.random_shuffle(seed=self.seed, num_shards=self.shards)


if __name__ == "__main__":
    Shuffle.main()
