"""No output and no checkpoint lies among what is read, however many stages are between the two: the first run is
refused, and not the next one, which would find its own rows."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import curate
from curate.dataset.dataset import Dataset
from curate.errors import ConfigError
from curate.storage.uris import MEMORY
from curate.stores.open import open_store

ROOT = f"{MEMORY}reads-its-output"

SHAPES: dict[str, Callable[[Dataset, Dataset], Dataset]] = {
    "plain": lambda read, _: read,
    "sort": lambda read, _: read.sort("n"),
    "shuffle": lambda read, _: read.random_shuffle(seed=1, num_shards=2),
    "sorted twice": lambda read, _: read.sort("n").map_batches(lambda rows: rows).sort("n", descending=True),
    "checkpoint": lambda read, _: read.checkpoint(f"{ROOT}/kept"),
    "sorted before a checkpoint": lambda read, _: read.sort("n").checkpoint(f"{ROOT}/kept"),
    "the other side of a union": lambda read, other: other.union(read),
    "beside rows in memory": lambda read, _: curate.from_items([{"n": 1}]).union(read),
    "the other side of a join": lambda read, other: other.join(read, on="n", how="inner"),
    "zip": lambda read, other: other.zip(read.rename_columns({"n": "m"})),
}


@pytest.fixture(autouse=True)
def _made() -> None:
    for item in list(open_store(ROOT).list(f"{ROOT}/")):
        open_store(ROOT).delete(item.uri)
    for name in ("in/a", "other/b"):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"n": [3, 1, 2]}), sink)
        open_store(ROOT).publish(f"{ROOT}/{name}.parquet", sink.getvalue().to_pybytes())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("read", "output", "told"),
    [
        ("in", "in/out", "lies inside input"),
        ("in", "in", "is input"),
        ("**/*.parquet", "out", "lies inside input"),
        ("out/a.parquet", "out", "is input|lies inside the output"),
    ],
)
def test_an_output_among_what_is_read(shape: str, read: str, output: str, told: str) -> None:
    """Nothing is written, be it a checkpoint."""
    store = open_store(ROOT)
    if read.startswith("out/"):
        store.publish(f"{ROOT}/{read}", store.read(f"{ROOT}/in/a.parquet"))
    there = {item.uri for item in store.list(f"{ROOT}/")}
    ds = SHAPES[shape](curate.read_parquet(f"{ROOT}/{read}"), curate.read_parquet(f"{ROOT}/other"))
    with pytest.raises(ConfigError, match=told):
        ds.write_parquet(f"{ROOT}/{output}", backend="inline")
    assert {item.uri for item in store.list(f"{ROOT}/")} == there


@pytest.mark.parametrize("shape", [lambda ds: ds, lambda ds: ds.sort("n")])
def test_a_checkpoint_among_what_is_read(shape: Callable[[Dataset], Dataset]) -> None:
    """Be it read before the checkpoint, or behind it."""
    read, other = curate.read_parquet(f"{ROOT}/in"), curate.read_parquet(f"{ROOT}/other")
    for ds in (shape(read).checkpoint(f"{ROOT}/in/kept"), shape(other).checkpoint(f"{ROOT}/in/kept").union(read)):
        with pytest.raises(ConfigError, match="lies inside input"):
            ds.write_parquet(f"{ROOT}/out", backend="inline")


@pytest.mark.parametrize("shape", SHAPES)
def test_beside_it_an_output_is_written_and_found(shape: str) -> None:
    """Also one that a glob does not match."""
    for read in ("in", "i*/a.parquet"):
        ds = SHAPES[shape](curate.read_parquet(f"{ROOT}/{read}"), curate.read_parquet(f"{ROOT}/other"))
        output = f"{ROOT}/out-{'glob' if '*' in read else 'folder'}"
        made = [ds.write_parquet(output, backend="inline") for _ in range(2)]
        assert [(one.state, one.books) for one in made] == [("complete", made[0].books)] * 2
        for item in list(open_store(ROOT).list(f"{ROOT}/kept")):
            open_store(ROOT).delete(item.uri)
