"""Everything that a dataset is cut at, one behind the other: what a kill leaves of one is where the next goes on.

Each seam takes rows of `id`, `k` and `text`, and gives such rows, so that any can follow any.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

import curate
from curate import log
from curate.dataset.dataset import Dataset
from curate.pipeline.step import ActorPool
from curate.plan import rewrites
from curate.reduce import ranges

SMALL_BYTES = 400
"""What a map shard reads, and an output has, so that a few rows make several of each."""
WORDS = ("a brown fox", "the lazy dog", "some old river", "this green hill", "one long road")


def make_small() -> None:
    """Has this process plan several shards for a few rows."""
    rewrites.LEAST_MAP_BYTES = ranges.LEAST_BYTES = SMALL_BYTES


def rows(number: int, count: int = 6) -> pa.Table:
    """Returns the rows of an input: some texts are there twice, and some nearly."""
    ids = [f"r{number * count + k:03d}" for k in range(count)]
    texts = [
        f"{WORDS[(number + k) % 4]} went far away and came home with {WORDS[k % 3]} before the night fell on"
        f" {WORDS[4] if k % 4 else 'it'}"
        for k in range(count)
    ]
    return pa.table({"id": ids, "k": pa.array([(7 * k + number) % 5 for k in range(count)]), "text": texts})


class Marking:
    """Adds one to `k`, in an actor."""

    def __call__(self, batch: pa.Table) -> pa.Table:
        at = batch.column_names.index("k")
        return batch.set_column(at, "k", pc.add(batch["k"], 1))


def grouped(ds: Dataset) -> Dataset:
    found = ds.groupby("text").aggregate([("id", "min"), ("k", "max")])
    return found.rename_columns({"id_min": "id", "k_max": "k"}).select_columns(["id", "k", "text"])


def joined(ds: Dataset) -> Dataset:
    other = curate.from_items([{"k": k, "more": k % 2} for k in range(6)])
    return ds.join(other, on="k", how="left").drop_columns("more").select_columns(["id", "k", "text"])


def zipped(ds: Dataset) -> Dataset:
    return ds.zip(ds.select_columns("k")).drop_columns("k_1")


def united(ds: Dataset) -> Dataset:
    return ds.union(curate.from_arrow(rows(9, 3)))


SEAMS: dict[str, Callable[[Dataset, str], Dataset]] = {
    "sort": lambda ds, _: ds.sort("id", descending=True),
    "group": lambda ds, _: grouped(ds),
    "shuffle": lambda ds, _: ds.random_shuffle(seed=3, num_shards=2),
    "repartition": lambda ds, _: ds.repartition(2),
    "join": lambda ds, _: joined(ds),
    "distinct": lambda ds, _: ds.distinct(["k", "text"]),
    "checkpoint": lambda ds, path: ds.checkpoint(path),
    "pool": lambda ds, _: ds.map_batches(Marking, compute=ActorPool(size=1)),
    "limit": lambda ds, _: ds.limit(11),
    "zip": lambda ds, _: zipped(ds),
    "union": lambda ds, _: united(ds),
    "dedup_exact": lambda ds, _: ds.dedup_exact("text", id_column="id"),
    "dedup_minhash": lambda ds, _: ds.dedup_minhash("text", id_column="id"),
}


def chained(ds: Dataset, names: tuple[str, ...], root: str) -> Dataset:
    """Returns a dataset through seams; checkpoints lie below `root`, each called by its place in the chain."""
    for number, name in enumerate(names):
        ds = SEAMS[name](ds, f"{root}/kept-{number}")
    return ds


def main(argv: list[str]) -> int:
    """Writes through pairs of seams, one after the other, each below `ROOT/<pair>`; prints how each has ended.

    seams.py BACKEND INPUT ROOT sort,zip ...
    """
    backend, source, root, *pairs = argv
    make_small()
    log.configure()
    for pair in pairs:
        ds = chained(curate.read_parquet(source), tuple(pair.split(",")), f"{root}/{pair}")
        ended = ds.write_parquet(f"{root}/{pair}/out", backend=backend)
        sys.stdout.write(json.dumps(ended.as_dict()) + "\n")
        sys.stdout.flush()
        if ended.state != "complete":
            return ended.state.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
