"""Split a corpus into train, validation and test: `python jobs/split.py --input 'gs://b/*.parquet' --output gs://b/split
--parts '{"train": 0.98, "validation": 0.01, "test": 0.01}'`.

The hash of `--id-column` decides where a row goes, never its number, its file or the rows beside it. So a document
stays in its part as the corpus grows, in whatever file and order it comes: run the job again with more inputs, and only
their shards are written.

The part `--main-part`, by default `train`, is the output. Each other one is an extra output: `<output>/_side/test/` and
`<output>/_side/validation/`, with a file for each file of the output, and the same columns. The shares sum to 1, and
hold on average: of 10,000 rows, a part of 1 % has 100, give or take 30. Rows keep their order and columns.

Texts that are nearly equal belong on one side, or a test asks for what was learnt by heart. With `--cluster-column
cluster`, all rows of one cluster go where the hash of the cluster says; a row without one goes by its id. So a cluster
may be called after one of its rows, which needs no cluster itself, as `kept_id` is in the duplicates that
`jobs/dedup_minhash.py` lists.

Rows without an id go to quarantine. Other shares move documents; another `--seed` splits anew. Parts of a corpus that
are drawn from by `jobs/mix.py` keep their rows: it hashes the id in another way.
"""

from __future__ import annotations

import math

from curate.dataset.dataset import Dataset
from curate.errors import ConfigError, did_you_mean
from curate.job.params import param
from curate.job.shapes import RowsJob
from curate.operators.parts import LITTLE


class Split(RowsJob):
    """Split rows into parts by the hash of their id.

    One part is the output, each other one an extra output. A row is in the same part however the corpus grows.
    """

    version = "1"
    parts: dict[str, float] = param(
        {"train": 0.98, "validation": 0.01, "test": 0.01}, help="name and share of each part; the shares sum to 1"
    )
    main_part: str = param("train", help="part that is the main output; the others are extra outputs")
    id_column: str = param("id", help="column whose hash decides; it identifies rows")
    cluster_column: str | None = param(
        None, help="column of clusters, each of which stays in one part; null: by the id"
    )
    seed: int = param(0, help="seed of the hash; another seed gives other parts")

    def check(self) -> None:
        """Raises ConfigError for shares that are no parts of 1, and for a main part that there is not."""
        for name, share in self.parts.items():
            if not 0 < share < 1:
                raise ConfigError(
                    f"--parts: the share of {name!r} is {share:g}, expected more than 0 and less than 1; leave out a "
                    "part that is to have no rows"
                )
        total = math.fsum(self.parts.values())
        if abs(total - 1) > LITTLE:
            told = " + ".join(f"{name} {share:g}" for name, share in self.parts.items())
            raise ConfigError(
                f"--parts: {told or 'nothing'} = {total:g}, expected 1; give {abs(1 - total):g} "
                f"{'more' if total < 1 else 'less'} to one of them"
            )
        if self.main_part not in self.parts:
            raise ConfigError(
                f"--main-part: there is no part {self.main_part!r}{did_you_mean(self.main_part, self.parts)}; there "
                f"are {', '.join(self.parts)}"
            )

    def build(self, ds: Dataset) -> Dataset:
        aside = {name: share for name, share in self.parts.items() if name != self.main_part}
        return ds.split_off(aside, column=self.id_column, cluster_column=self.cluster_column, seed=self.seed)


if __name__ == "__main__":
    Split.main()
