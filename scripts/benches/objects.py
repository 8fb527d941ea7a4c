"""Small files in a bucket, where each request takes its time, beside threads that do the same and nothing else."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import click
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from curate.stores.open import open_store
from tests.support.s3_emulator import S3Emulator

from .common import ROWS, SCRIPT, Report, expect, small_files
from .tasks import CODEC, SCHEMA

BUCKET = "s3://bucket"
THREADS = 16
"""Of the rival: as many as two workers of curate have for reading, or for uploads."""
REQUESTS = 1.1
"""Target: reads, and uploads, for each file; what a run asks for beside its files is in it."""


def copy_object(name: str, output: str) -> None:
    """Reads a file, and writes its rows as Parquet, create-only."""
    store = open_store(BUCKET)
    rows = [orjson.loads(line) for line in store.read(f"{BUCKET}/in/{name}").splitlines()]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), sink, compression=CODEC)
    store.publish(f"{output}/{name}.parquet", sink.getvalue().to_pybytes())


def copy_objects(output: str) -> None:
    """The rival, as a program: a pool of threads over a listing."""
    with ThreadPoolExecutor(THREADS) as threads:
        names = [one.uri.removeprefix(f"{BUCKET}/in/") for one in open_store(BUCKET).list(f"{BUCKET}/in/")]
        list(threads.map(copy_object, names, [output] * len(names)))


@contextmanager
def filled(scratch: Path, files: int, answer_s: float) -> Iterator[S3Emulator]:
    """Serves a bucket with as many files, in which each request takes so long."""
    folder = small_files(scratch / f"in-{files}", files)
    with S3Emulator() as service:
        for path in sorted(folder.rglob("*.jsonl")):
            service.put(f"{BUCKET}/in/{path.relative_to(folder)}", path.read_bytes())
        service.limit(takes_s=answer_s)
        yield service


def measure_objects(report: Report, scratch: Path, files: int, answer_s: float, rounds: int) -> None:
    """Whole processes in alternation, and the requests of each."""
    programs = {
        "curate, worker processes": ["copy", "--input", f"{BUCKET}/in", "--backend", "local", "--output"],
        f"{THREADS} threads": ["copy-objects"],
    }
    click.echo(f"\n{files:,} files of {ROWS} rows, {1000 * answer_s:.0f} ms a request, {rounds} alternated rounds")
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    counts: dict[str, dict[str, int]] = {}
    with filled(scratch, files, answer_s) as service:
        for number in range(rounds):
            for place, (name, arguments) in enumerate(programs.items()):
                output = f"{BUCKET}/out-{number}-{place}"
                service.reset_counts()
                started = time.perf_counter()
                done = subprocess.run(
                    [sys.executable, str(SCRIPT), *arguments, output],
                    env=os.environ | service.environ,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                seconds[name].append(time.perf_counter() - started)
                if done.returncode:
                    raise click.ClickException(f"{name} ended with {done.returncode}:\n{done.stderr[-4000:]}")
                counts[name] = service.counts()
                written = [uri for uri in service.objects(f"{output}/") if "/_curate/" not in uri]
                expect("the number of outputs", len(written), files)
    for name, found in seconds.items():
        single = "  ".join(f"{one:.2f}" for one in found)
        asked = ", ".join(f"{count:,} {kind}" for kind, count in counts[name].items())
        click.echo(f"  {name:<28}{statistics.median(found):>7.2f} s   {asked}   [{single}]")
    for kind in ("get", "put"):
        each = counts["curate, worker processes"][kind] / files
        report.target(f"{kind} for each file", f"{each:.3f}", f"<= {REQUESTS}", each <= REQUESTS)
