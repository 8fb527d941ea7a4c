"""Small shards, on Ray and in worker processes, beside a bare loop of Ray tasks; reruns beside the bare listings."""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import click
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from curate.job.job import Job

from .common import ROWS, SCRIPT, Report, Run, Runs, alternate, expect, forget, ran, settle, small_files, warm_ray

CODEC = "zstd"
WARM_UP_SHARDS = 200
FEW_SHARDS = 20
BARE_BUNDLE = 100
"""Files in one task of the bare loop that bundles; a guess that its author would make, curate's is measured."""
ONE_SHARD_A_TASK = 1e-6
"""`target_task_seconds` that no shard is done in, so that none is bundled with another."""
SCHEMA = pa.schema([("id", pa.string()), ("body", pa.string()), ("score", pa.int64())])


class CopyRows(Job):
    """Copy three columns: as little work as a job can do, so that what is left is curate's."""

    version = "1"
    columns: ClassVar = dict(zip(SCHEMA.names, SCHEMA.types, strict=True))
    codec = CODEC

    def process(self, batch: pa.Table) -> pa.Table:
        return batch


# The rival: what a careful person writes on one page


def copy_file(source: str, target: str, scratch: str) -> int:
    with open(source, "rb") as file:
        rows = [orjson.loads(line) for line in file]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    temporary = f"{scratch}/{os.getpid()}-{time.monotonic_ns()}"
    with open(temporary, "xb") as out:
        pq.write_table(table, out, compression=CODEC)
        out.flush()
        os.fsync(out.fileno())
    os.link(temporary, target)
    os.unlink(temporary)  # noqa: PTH108 - the bare loop makes no object that it does not need
    return int(table.num_rows)


def copy_files(pairs: Sequence[tuple[str, str]], scratch: str) -> int:
    return sum(copy_file(source, target, scratch) for source, target in pairs)


def bare_loop(source: Path, output: Path, bundle: int) -> int:
    """Copies every file under `source` by a loop of `ray.remote` and `ray.wait`; returns the number of rows."""
    import ray

    run = ray.remote(max_retries=0)(copy_file if bundle == 1 else copy_files)
    scratch = output / "tmp"
    scratch.mkdir(parents=True)
    pairs = []
    for path in sorted(source.rglob("*.jsonl")):
        target = output / path.relative_to(source).with_suffix(".parquet")
        target.parent.mkdir(exist_ok=True)
        pairs.append((str(path), str(target)))
    chunks = (pairs[at : at + bundle] for at in range(0, len(pairs), bundle))
    window = max(16, 2 * int(ray.cluster_resources()["CPU"]))
    pending: list[Any] = []
    rows = 0
    while True:
        for chunk in itertools.islice(chunks, window - len(pending)):
            pending.append(run.remote(*chunk[0], str(scratch)) if bundle == 1 else run.remote(chunk, str(scratch)))
        if not pending:
            return rows
        ray.wait(pending, num_returns=1)
        ready, pending = ray.wait(pending, num_returns=len(pending), timeout=0)
        rows += sum(ray.get(ready))


def curate_run(source: Path, output: Path, target_task_seconds: float, backend: str = "ray") -> int:
    """Copies every file under `source` by curate; returns the number of rows."""
    summary = CopyRows().run(
        input=str(source), output=str(output), target_task_seconds=target_task_seconds, backend=backend
    )
    if summary.state.exit_code or summary.skipped:
        raise click.ClickException(f"the run was meant to do every shard, and ended so: {summary}")
    if target_task_seconds == ONE_SHARD_A_TASK and summary.dispatched != summary.total:
        raise click.ClickException(f"{summary.dispatched} tasks for {summary.total} shards; expected one a shard")
    return summary.books.rows_out


# What is measured


def show(runs: Runs, shards: int) -> str:
    """Returns the line of a contender over so many shards."""
    single = "  ".join(f"{shards / seconds:,.0f}" for seconds in runs.seconds)
    cpu_ms = statistics.median(runs.cpu_s) / shards * 1000
    return f"  {runs.name:<28}{rate(runs, shards):>7,.0f} shards/s   driver {cpu_ms:.3f} ms/shard   [{single}]"


def rate(runs: Runs, shards: int) -> float:
    return shards / runs.median_s


def copied(shards: int) -> Any:
    """Returns what checks that as many rows were copied as so many shards have."""
    return lambda _, rows: expect("the number of copied rows", rows, shards * ROWS)


def measure_dispatch(report: Report, scratch: Path, shards: int, rounds: int) -> None:
    """4,000 small shards: curate beside the bare loop, at one shard a task and bundled."""
    import ray

    source = small_files(scratch / f"in-{shards}", shards)
    small = small_files(scratch / f"in-{WARM_UP_SHARDS}", WARM_UP_SHARDS)
    settle(scratch)
    # Nothing is removed before the end, so that no run pays for what the one before it left.
    runs = Path(tempfile.mkdtemp(dir=scratch, prefix="runs-"))
    warm_ray()
    try:
        click.echo(
            f"\n{shards:,} shards of {ROWS} rows, {rounds} alternated rounds, whole runs (planning, ledger and all)"
        )

        def contenders(folder: Path) -> dict[str, Run]:
            return {
                "bare loop, 1 shard a task": lambda output: bare_loop(folder, output, 1),
                "curate, 1 shard a task": lambda output: curate_run(folder, output, ONE_SHARD_A_TASK),
                f"bare loop, {BARE_BUNDLE} shards a task": lambda output: bare_loop(folder, output, BARE_BUNDLE),
                "curate, bundled": lambda output: curate_run(folder, output, 120.0),
                "local, 1 shard a task": lambda output: curate_run(folder, output, ONE_SHARD_A_TASK, "local"),
                "local, bundled": lambda output: curate_run(folder, output, 120.0, "local"),
            }

        alternate(contenders(small), runs / "warm-up", 1, copied(WARM_UP_SHARDS))
        results = alternate(contenders(source), runs, rounds, copied(shards))
        few = small_files(scratch / f"in-{FEW_SHARDS}", FEW_SHARDS)
        (trivial,) = alternate(
            {"curate, 20 shards": lambda output: curate_run(few, output, ONE_SHARD_A_TASK)},
            runs / "few",
            rounds,
            copied(FEW_SHARDS),
        )
    finally:
        ray.shutdown()
        forget(scratch, runs)
    for result in results:
        click.echo(show(result, shards))
    bare, single, bare_bundled, bundled, local_single, local_bundled = results
    ratio = rate(single, shards) / rate(bare, shards)
    report.target("one shard a task, to the bare loop", f"{ratio:.2f} x", ">= 0.8 x", ratio >= 0.8)
    ratio = rate(bundled, shards) / rate(bare, shards)
    report.target("bundled, to the bare loop at one shard a task", f"{ratio:.2f} x", ">= 2 x", ratio >= 2)
    for what, ours, theirs in (("one shard a task", local_single, single), ("bundled", local_bundled, bundled)):
        ratio = rate(ours, shards) / rate(theirs, shards)
        report.target(f"--backend local to curate on this Ray, {what}", f"{ratio:.2f} x", ">= 1.2 x", ratio >= 1.2)
    ratio = rate(local_bundled, shards) / rate(bare_bundled, shards)
    says = f"--backend local, bundled, to the bare loop of {BARE_BUNDLE} shards a task"
    report.target(says, f"{ratio:.2f} x", ">= 0.8 x", ratio >= 0.8)
    cpu_ms = statistics.median(single.cpu_s) / shards * 1000
    report.target("driver CPU a task", f"{cpu_ms:.3f} ms", "<= 1 ms", cpu_ms <= 1)
    few_s = statistics.median(trivial.seconds)
    report.target(f"{FEW_SHARDS} small tasks, the whole run", f"{few_s:.2f} s", "<= 0.5 s", few_s <= 0.5)


# A job that is done


@dataclass
class Finished:
    """A finished job of `shards` shards."""

    shards: int
    source: Path
    output: Path
    run_rss_mb: float | None
    """Peak memory of the driver that ran it."""


def finish(scratch: Path, shards: int) -> Finished:
    """Runs the job over `shards` inputs, unless that was done before."""
    source = small_files(scratch / f"in-{shards}", shards)
    output, note = scratch / f"out-{shards}", scratch / f"out-{shards}.rss"
    if not note.exists():
        shutil.rmtree(output, ignore_errors=True)
        started = time.perf_counter()
        _, rss_mb = job_process(source, output)
        note.write_text(str(rss_mb))
        click.echo(f"  made a finished job of {shards:,} shards in {time.perf_counter() - started:.0f} s")
    return Finished(shards, source, output, float(note.read_text()))


def job_process(source: Path, output: Path) -> tuple[float, float]:
    """Runs the job as a program; returns the seconds it took, start to end, and the driver's peak memory in MB."""
    started = time.perf_counter()
    done = ran(sys.executable, SCRIPT, "copy", "--input", source, "--output", output)
    return time.perf_counter() - started, int(done.stderr.rsplit(maxsplit=1)[-1]) / 1024


def listing_process(*folders: Path) -> float:
    """Returns the seconds that listing the folders takes in a process of its own, whose start is not counted."""
    arguments = [sys.executable, str(SCRIPT), "listing", *map(str, folders)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    return float(done.stdout)


def measure_finished(report: Report, scratch: Path, shards: int, rounds: int) -> None:
    """A rerun that finds nothing to do, beside the bare listings; and what a driver's memory grows to."""
    click.echo(f"\nA finished job of {shards:,} shards, {rounds} alternated rounds")
    few, many = finish(scratch, 1000), finish(scratch, shards)
    listings: list[float] = []
    reruns: list[tuple[float, float]] = []
    starts: list[tuple[float, float]] = []
    for _ in range(rounds):
        listings.append(listing_process(many.source, many.output))
        reruns.append(job_process(many.source, many.output))
        starts.append(job_process(few.source, few.output))
    listing_s = statistics.median(listings)
    rerun_s = statistics.median(seconds for seconds, _ in reruns)
    start_s = statistics.median(seconds for seconds, _ in starts)
    for name, values in (
        ("both listings", listings),
        ("rerun, process and all", [seconds for seconds, _ in reruns]),
        ("the same of 1,000 shards", [seconds for seconds, _ in starts]),
    ):
        single = "  ".join(f"{value:.2f}" for value in values)
        click.echo(f"  {name:<28}{statistics.median(values):>7.2f} s   [{single}]")
    report.target("start-up: the rerun of 1,000 shards", f"{start_s:.2f} s", "<= 2 s", start_s <= 2)
    ratio = (rerun_s - start_s) / listing_s
    report.target("rerun less start-up, to the listings", f"{ratio:.2f} x", "<= 1.5 x", ratio <= 1.5)
    grown = statistics.median(rss for _, rss in reruns) - statistics.median(rss for _, rss in starts)
    report.target(
        "driver memory of the rerun, above that of 1,000 shards", f"{grown:.0f} MB", "<= 100 MB", grown <= 100
    )
    if many.run_rss_mb is not None and few.run_rss_mb is not None:
        grown = many.run_rss_mb - few.run_rss_mb
        report.target(
            "driver memory of the run, above that of 1,000 shards", f"{grown:.0f} MB", "<= 100 MB", grown <= 100
        )
