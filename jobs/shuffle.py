"""Put a corpus in random order: `python jobs/shuffle.py --input 'gs://b/*.parquet' --output gs://b/train --shards 64`.

Every row goes to a random place in the whole corpus, not only in its file. All orders are equally likely, and the same
`--seed` gives the same bytes on any cluster. The job writes `--shards` files whose row counts differ by one at most, so
that training workers get equal parts; each file is a random sample of the corpus. All rows and columns are kept; rows
that cannot be read are in quarantine.

One exchange does this for any number of files: it reads the corpus once, writes run files below the output, and reads
them once. Until the job is complete, it needs space for the corpus twice.
"""

from __future__ import annotations

from curate.dataset.dataset import Dataset
from curate.dataset.exchanges import SHARDS
from curate.errors import ConfigError
from curate.job.params import param
from curate.job.shapes import RowsJob


class Shuffle(RowsJob):
    """Shuffle all rows into training shards of equal size.

    A row's place depends on --seed and on its file and line: renamed or differently split input files give another
    order.
    """

    version = "1"
    shards: int = param(help="number of output files; their row counts differ by one at most")
    seed: int = param(0, help="seed of the random order; another seed gives another order")

    def check(self) -> None:
        """Raises ConfigError for invalid numbers."""
        if not 1 <= self.shards <= SHARDS:
            raise ConfigError(f"--shards {self.shards} is no number of files; give 1 to {SHARDS:,}")
        if self.seed < 0:
            raise ConfigError(f"--seed {self.seed} is below 0; seeds are whole numbers from 0 on")

    def build(self, ds: Dataset) -> Dataset:
        return ds.random_shuffle(seed=self.seed, num_shards=self.shards)


if __name__ == "__main__":
    Shuffle.main()
