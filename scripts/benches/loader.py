"""Batches of tokens for training, from a local disk: curate's TokenShards beside mosaicml's StreamingDataset and
Hugging Face's IterableDataset, which run in a virtual environment of their own.

Each reads the same sequences in random order, once, in one process, from the format that is its own: arrays of numpy,
MDS, Arrow. What counts is MB of stored tokens for each second of CPU, of all threads and of the kernel: on a machine
that others use too, that says more than the time. The files are in the page cache.
"""

from __future__ import annotations

import json
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from .common import Report, environment, once, ran

STREAMING, DATASETS = "0.13.0", "5.0.1"
REQUIREMENTS = (f"mosaicml-streaming=={STREAMING}", f"datasets=={DATASETS}")
PROGRAM = Path(__file__).with_name("loader_run.py")
LENGTH, BATCH = 2048, 256
SHARDS = 8
LEAST_MB_S = 500
READERS = {
    "curate": ("curate, as stored", "npy"),
    "curate-int64": ("curate, as int64", "npy"),
    "streaming": (f"StreamingDataset {STREAMING}", "mds"),
    "huggingface": (f"IterableDataset {DATASETS}", "arrow"),
}


def measure_loader(report: Report, scratch: Path, megabytes: int, rounds: int, python: Path | None) -> None:
    """Measures all in turn, `rounds` times over. `python`: of an environment that has the rivals; None: one is made."""
    python = python or environment(scratch / "loader-rivals", "StreamingDataset and datasets", REQUIREMENTS)
    folder = scratch / f"loader-{megabytes}"
    source = once(folder / "npy", lambda: make_tokens(folder / "npy", megabytes))
    for make, kind in (("make-streaming", "mds"), ("make-huggingface", "arrow")):
        once(folder / kind, partial(convert, python, make, source, folder / kind))
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in READERS}
    for _ in range(rounds):
        for name, (_, kind) in READERS.items():
            own = Path(sys.executable) if name.startswith("curate") else python
            found[name].append(json.loads(run(own, name, folder / kind, LENGTH, BATCH).splitlines()[-1]))
            expect_whole(name, found[name][-1]["bytes"], megabytes)
    click.echo(f"an epoch of {megabytes:,} MB of tokens in sequences of {LENGTH:,}, batches of {BATCH}, shuffled")
    speed = {name: statistics.median(map(mb_s, runs)) for name, runs in found.items()}
    for name, runs in found.items():
        one = sorted(runs, key=mb_s)[len(runs) // 2]
        cpu = f"{one['user_s']:.2f} + {one['system_s']:.2f} s of CPU, {one['seconds']:.2f} s"
        single = ", ".join(f"{mb_s(run):,.0f}" for run in runs)
        click.echo(f"  {READERS[name][0]:<28} {speed[name]:>7,.0f} MB/s a core   {cpu}   ({single})")
    for name in ("curate", "curate-int64"):
        report.target(
            READERS[name][0], f"{speed[name]:,.0f} MB/s a core", f"{LEAST_MB_S} MB/s", speed[name] >= LEAST_MB_S
        )


def mb_s(run: dict[str, Any]) -> float:
    return float(run["bytes"] / 1e6 / (run["user_s"] + run["system_s"]))


def expect_whole(name: str, read_bytes: int, megabytes: int) -> None:
    """Raises ClickException for a reader that saw not all sequences; a last batch that is not full may be left out."""
    whole = SHARDS * (_per_shard(megabytes) // LENGTH) * LENGTH * 2
    if not 0 <= whole - read_bytes < BATCH * LENGTH * 2:
        raise click.ClickException(
            f"{name} read {read_bytes:,} bytes of tokens, expected {whole:,}, or less than a batch below that"
        )


def _per_shard(megabytes: int) -> int:
    return megabytes * 500_000 // SHARDS


def make_tokens(folder: Path, megabytes: int) -> None:
    """Writes random tokens of 50,000 ids as arrays of numpy."""
    random = np.random.default_rng(0)
    for shard in range(SHARDS):
        tokens = random.integers(0, 50_000, _per_shard(megabytes), dtype=np.uint16)
        np.save(folder / f"part-{shard:05}.npy", tokens)


def convert(python: Path, make: str, source: Path, output: Path) -> None:
    run(python, make, source, output, LENGTH)


def run(python: Path, *arguments: Any) -> str:
    return ran("nice", python, PROGRAM, *arguments).stdout
