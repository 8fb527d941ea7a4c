"""TokenShards over stores: the order of a corpus on a disk, and what is fetched for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from curate.stores.open import open_store
from curate.training import TokenShards
from tests.support.emulator import Emulator
from tests.support.gcs_emulator import GcsEmulator
from tests.support.s3_emulator import S3Emulator
from tests.training.corpora import as_datatrove, as_megatron, as_npy, as_parquet

LAYOUTS = {"npy": as_npy, "megatron": as_megatron, "datatrove": as_datatrove, "parquet": as_parquet}
LENGTH = 512
SHARDS = [700, 1, 0, 1500, 900]
"""Sequences of each shard."""


@pytest.fixture(scope="module", params=LAYOUTS)
def corpus(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3 MB in each layout: flat files of which one has two chunks, or row groups of 1,000 packed sequences."""
    rng = np.random.default_rng(1)
    shards = [rng.integers(0, 1 << 16, LENGTH * size, np.uint16) for size in SHARDS]
    how = {"row_tokens": LENGTH, "group_rows": 1_000, "packed": True} if request.param == "parquet" else {}
    return LAYOUTS[request.param](tmp_path_factory.mktemp("corpus") / request.param, shards, **how)


@pytest.fixture(params=["memory", "gs", "s3"])
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Emulator | None]]:
    """A place in a store, and who counts what is fetched there."""
    if request.param == "memory":
        yield f"memory://{abs(hash(request.node.name))}", None
        return
    # Another may have had its port.
    monkeypatch.setattr("curate.stores.s3.probe._kept", set())
    with (GcsEmulator() if request.param == "gs" else S3Emulator()).here(monkeypatch) as running:
        yield f"{request.param}://bucket", running


@pytest.mark.quick(2)
def test_the_order_of_the_disk(corpus: Path, bucket: tuple[str, Emulator | None]) -> None:
    """A copy in a bucket has the same order, and takes a state of the local one. Each byte is fetched once an epoch:
    what is read before the first batch, ends of files and footers of Parquet, is little beside a chunk or row group."""
    root, emulator = bucket
    store = open_store(root)
    for file in corpus.iterdir():
        store.publish(f"{root}/here/{file.name}", file.read_bytes())
    stored = sum(file.stat().st_size for file in corpus.iterdir() if file.suffix not in (".idx", ".index"))
    local, remote = (
        TokenShards(path, LENGTH, 16, seed=2, dtype=None, shuffle_bytes=1 << 20)
        for path in (str(corpus), f"{root}/here")
    )
    if emulator is not None:
        emulator.reset_counts()
    for expected, found in zip(local, remote, strict=True):
        assert np.array_equal(found, expected)
    assert remote.state_dict() == local.state_dict()
    if emulator is not None:
        assert 0.95 < emulator.bytes_got / stored < (1.1 if corpus.name == "parquet" else 1.02), emulator.requests
    batches = iter(local)
    next(batches)
    remote.load_state_dict(local.state_dict())
    assert np.array_equal(next(iter(remote)), next(batches))
