"""Datasets beside Ray Data: the same rows, functions and codec, on the same warm Ray, in turn.

Ray Data runs with the defaults of its DataContext, so with all CPUs, and gives its rows in any order; its progress bars
and logs are off. Both read files that lie in the page cache. Each run's rows are compared with those that pyarrow gives
for the same work, sorted by `id`; a run that gives others ends the bench.
"""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq

import curate

from .checks import same_rows
from .common import (
    ON_LOCAL,
    ON_RAY,
    ROWS,
    SCRIPT,
    Check,
    Report,
    Run,
    Runs,
    alternate,
    expect,
    forget,
    judge,
    settle,
    show,
    small_files,
    wait_until_ready,
    warm_ray,
    written_on,
)
from .rivals import complete, quiet_ray_data
from .rows import CODEC, FILES, large_files

RARE = 0.01
"""Share of the rows that the filter keeps."""
PARQUET_FILES = 4_000
"""Small files of Parquet that both read in turn, at most: of 10,000, Ray Data's reader made a load of 4,700 on two
cores, and was not done with the first round after four minutes."""
PATIENCE = 6
"""Times the time of curate that Ray Data is given for all of the small files, before it is stopped."""
TINY_ROWS = 100
"""Rows of a block of those that go through a function that does nothing."""
BATCH_ROWS = 1024
BUSY_S = 0.05
"""What the actor takes for a batch."""
WARM_UP = 0.05
"""Size of what is run once before all rounds, to the size of a round."""
IDLE_S = 60.0
"""How long what was stopped may take to end."""


# Inputs, and what becomes of them


def measured(batch: pa.Table) -> pa.Table:
    """The function that both map over the large files."""
    doubled = batch.set_column(batch.column_names.index("score"), "score", pc.multiply(batch["score"], 2.0))
    return doubled.append_column("length", pc.utf8_length(batch["text"]))


def worded(batch: pa.Table) -> pa.Table:
    """The function that both map over the small files."""
    return batch.select(["id", "body", "score"]).append_column("length", pc.utf8_length(batch["body"]))


def unchanged(batch: pa.Table) -> pa.Table:
    return batch


class Sleeper:
    """Takes 50 ms a batch, and gives one row: when it was at work."""

    def __call__(self, batch: pa.Table) -> pa.Table:
        started_s = time.time()
        time.sleep(BUSY_S)
        return pa.table({"rows": [batch.num_rows], "started_s": [started_s], "ended_s": [time.time()]})


# The contests


@dataclass(frozen=True)
class Contest:
    """One kind of work, done by curate and by Ray Data."""

    name: str
    target: float
    """What share of Ray Data's time curate may take."""
    ours: Run
    rival: Run
    check: Check
    floor: Callable[[], Any] | None = None
    """The same by pyarrow alone, in this process, with its own threads."""
    also: tuple[str, Run] | None = None
    """Another way that is shown beside, and not judged."""
    local: Run | None = None
    """The same in worker processes; None: that is said by a variable."""
    names: tuple[str, str] = ("curate", "Ray Data")

    def on_local(self) -> Contest:
        """Returns the contest of curate in worker processes with curate on a warm Ray."""
        local = self.local or written_on("local", self.ours)
        return replace(self, ours=local, rival=self.ours, target=1.0, floor=None, also=None, names=(ON_LOCAL, ON_RAY))


def write_contest(scratch: Path, megabytes: int) -> Contest:
    """Read, map, write."""
    import ray.data

    source = large_files(scratch / f"rows-{megabytes}", megabytes)

    def ours(output: Path) -> None:
        complete(curate.read_parquet(source).map_batches(measured).write_parquet(output, codec=CODEC))

    def rival(output: Path) -> None:
        ray.data.read_parquet(str(source)).map_batches(measured, batch_format="pyarrow").write_parquet(
            str(output), compression=CODEC
        )

    def floor() -> None:
        with tempfile.TemporaryDirectory(dir=scratch) as output:
            for path in sorted(source.glob("*.parquet")):
                pq.write_table(measured(pq.read_table(path)), Path(output) / path.name, compression=CODEC)

    wanted = measured(pads.dataset(source).to_table().sort_by("id"))
    name = f"read, map, write: {megabytes:,} MB of rows in {FILES} Parquet files"
    return Contest(name, 1 / 3, ours, rival, same_rows(wanted), floor)


def filter_contest(scratch: Path, megabytes: int) -> Contest:
    """Filter by one column, keep two, write."""
    import ray.data
    from ray.data.expressions import col

    source = large_files(scratch / f"rows-{megabytes}", megabytes)

    def ours(output: Path) -> None:
        kept = curate.read_parquet(source).filter(pc.field("score") < RARE).select_columns(["id", "score"])
        complete(kept.write_parquet(output, codec=CODEC))

    def rival(output: Path) -> None:
        kept = ray.data.read_parquet(str(source), columns=["id", "score"]).filter(expr=col("score") < RARE)
        kept.write_parquet(str(output), compression=CODEC)

    def kept() -> pa.Table:
        return pads.dataset(source).to_table(columns=["id", "score"], filter=pc.field("score") < RARE)

    name = f"column filter, write: two columns, {RARE:.0%} of the rows of the same files"
    return Contest(name, 1 / 5, ours, rival, same_rows(kept().sort_by("id")), as_one_file(scratch, kept))


def write_worded(source: Path, output: Path) -> None:
    complete(curate.read_parquet(source).map_batches(worded).write_parquet(output, codec=CODEC))


def ray_write_worded(source: Path, output: Path) -> None:
    import ray.data

    found = ray.data.read_parquet(str(source)).map_batches(worded, batch_format="pyarrow")
    found.write_parquet(str(output), compression=CODEC)


def small_parquet(scratch: Path, files: int) -> Path:
    return parquet_files(scratch / f"parquet-{files}", small_files(scratch / f"in-{files}", files))


def small_contest(scratch: Path, files: int) -> Contest:
    """Small files of Parquet: read, map, write. Ray Data writes a file for hundreds of them, curate one for each."""
    source = small_parquet(scratch, files)

    def read() -> pa.Table:
        return pads.dataset(source).to_table()

    name = f"read, map, write: {files:,} Parquet files of {ROWS} rows"
    check = same_rows(worded(read().sort_by("id")))
    floor = as_one_file(scratch, lambda: worded(read()))
    return Contest(name, 1 / 4, partial(write_worded, source), partial(ray_write_worded, source), check, floor)


def lines_contest(scratch: Path, files: int) -> Contest:
    """The same of JSON lines. Ray Data reads them by pyarrow, as it does unasked, or by pandas with `lines=True`."""
    import ray.data

    source = small_files(scratch / f"in-{files}", files)

    def ours(output: Path) -> None:
        complete(curate.read_json(source).map_batches(worded).write_parquet(output, codec=CODEC))

    def rival(lines: bool) -> Run:
        def run(output: Path) -> None:
            found = ray.data.read_json(str(source), lines=lines).map_batches(worded, batch_format="pyarrow")
            found.write_parquet(str(output), compression=CODEC)

        return run

    def read() -> pa.Table:
        return read_json_files(source)

    name = f"read, map, write: {files:,} JSON files of {ROWS} lines"
    check = same_rows(worded(read().sort_by("id")))
    floor = as_one_file(scratch, lambda: worded(read()))
    return Contest(name, 1 / 4, ours, rival(False), check, floor, ("Ray Data, lines=True", rival(True)))


def parquet_files(folder: Path, source: Path) -> Path:
    """Writes each file of lines below `source` as Parquet, unless they are there."""
    if not folder.with_suffix(".made").exists():
        schema = pads.dataset(next(source.rglob("*.jsonl")), format="json").schema
        for path in sorted(source.rglob("*.jsonl")):
            target = (folder / path.relative_to(source)).with_suffix(".parquet")
            target.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pads.dataset(path, schema=schema, format="json").to_table(), target)
        folder.with_suffix(".made").touch()
    return folder


def read_json_files(source: Path) -> pa.Table:
    schema = pads.dataset(next(source.rglob("*.jsonl")), format="json").schema
    return pads.dataset(source, schema=schema, format="json").to_table()


def as_one_file(scratch: Path, make: Callable[[], pa.Table]) -> Callable[[], None]:
    """Returns what writes a table to a file that is gone afterwards."""

    def floor() -> None:
        with tempfile.TemporaryDirectory(dir=scratch) as output:
            pq.write_table(make(), Path(output) / "all.parquet", compression=CODEC)

    return floor


def block_contest(_: Path, blocks: int) -> Contest:
    """Blocks through a function that does nothing, to the consumer."""
    import ray.data

    tables = [pa.table({"id": np.arange(k * TINY_ROWS, (k + 1) * TINY_ROWS)}) for k in range(blocks)]

    def sums(batches: Iterator[pa.Table]) -> tuple[int, int]:
        rows = total = 0
        for batch in batches:
            rows += batch.num_rows
            total += pc.sum(batch["id"]).as_py()
        return rows, total

    def through(backend: str) -> Run:
        def run(_: Path) -> Any:
            mapped = curate.from_arrow(tables).map_batches(unchanged).using(backend=backend)
            return sums(mapped.iter_batches(batch_size=None))

        return run

    def rival(_: Path) -> Any:
        mapped = ray.data.from_arrow(tables).map_batches(unchanged, batch_format="pyarrow")
        return sums(iter(mapped.iter_batches(batch_size=None, batch_format="pyarrow")))

    rows = blocks * TINY_ROWS
    wanted = rows, rows * (rows - 1) // 2

    def check(_: Path, found: Any) -> None:
        expect("the number of rows and the sum of their ids", found, wanted)

    name = f"{blocks:,} blocks of {TINY_ROWS} rows through a function that does nothing, consumed"
    return Contest(
        name, 1 / 5, through("ray"), rival, check, None, ("curate in this process", through("inline")), through("local")
    )


CONTESTS: dict[str, Callable[[Path, int], Contest]] = {
    "write": write_contest,
    "filter": filter_contest,
    "small": small_contest,
    "lines": lines_contest,
    "blocks": block_contest,
}


def contest_of(scratch: Path, name: str, size: int, backend: str) -> Contest:
    contest = CONTESTS[name](scratch, size)
    return contest.on_local() if backend == "local" else contest


def measure(report: Report, scratch: Path, runs: Path, name: str, size: int, rounds: int, backend: str) -> None:
    """Runs a contest once at a small size, then in alternated rounds, and judges it."""
    small = contest_of(scratch, name, max(1, int(size * WARM_UP)), backend)
    alternate(contenders(small), runs / f"{name}-warm-up", 1, small.check)
    contest = contest_of(scratch, name, size, backend)
    click.echo(f"\n{contest.name}; {rounds} alternated rounds")
    results = alternate(contenders(contest), runs / name, rounds, contest.check)
    for one in results:
        click.echo(show(one))
    if contest.floor is not None:
        contest.floor()
        floor = Runs("pyarrow alone")
        for _ in range(rounds):
            started = time.perf_counter()
            contest.floor()
            floor.seconds.append(time.perf_counter() - started)
        click.echo(show(floor))
    judge(report, ", to ".join(contest.names), results[0], results[1], contest.target)


def contenders(contest: Contest) -> dict[str, Run]:
    both = dict(zip(contest.names, (contest.ours, contest.rival), strict=True))
    return both | dict([contest.also] if contest.also else [])


# The first batch


def measure_first(report: Report, scratch: Path, megabytes: int, rounds: int, backend: str) -> None:
    """The time from the call of `iter_batches` to its first batch; what follows is not read."""
    import ray.data

    source = large_files(scratch / f"rows-{megabytes}", megabytes)

    def ours(where: str) -> Any:
        return curate.read_parquet(source).map_batches(measured).using(backend=where)

    def rival() -> Any:
        return ray.data.read_parquet(str(source)).map_batches(measured, batch_format="pyarrow")

    made: dict[str, Callable[[], Any]] = {"curate": partial(ours, "ray"), "Ray Data": rival}
    if backend == "local":
        made = {ON_LOCAL: partial(ours, "local"), ON_RAY: partial(ours, "ray")}
    results = list(map(Runs, made))
    for number in range(rounds + 1):
        for result, make in zip(results, made.values(), strict=True):
            seconds = first_batch_s(make())
            wait_for_idle()
            if number:  # the first round is the warm-up
                result.seconds.append(seconds)
    click.echo(f"\nfirst batch of {BATCH_ROWS} rows: read, map, iter_batches; {rounds} alternated rounds")
    for result in results:
        click.echo(show(result))
    judge(report, ", to ".join(made), results[0], results[1], 1.0)


def first_batch_s(dataset: Any) -> float:
    """Returns the seconds to the first batch of a dataset, of which no more is read."""
    started = time.perf_counter()
    batches = iter(dataset.iter_batches(batch_size=BATCH_ROWS, batch_format="pyarrow"))
    batch = next(batches)
    seconds = time.perf_counter() - started
    expect("the number of rows of the first batch", batch.num_rows, BATCH_ROWS)
    expect("the names of its columns", "length" in batch.column_names, True)
    return seconds


def wait_for_idle() -> None:
    """Waits until no task holds a CPU: what was started and is not wanted has ended."""
    import ray

    gc.collect()  # an iterator of Ray Data ends its execution when it is gone
    until = time.monotonic() + IDLE_S
    while ray.available_resources().get("CPU", 0) < ray.cluster_resources()["CPU"]:
        if time.monotonic() > until:
            raise click.ClickException(f"tasks still hold CPUs {IDLE_S:.0f} s after their consumer has gone")
        time.sleep(0.05)


# A pool of actors


def measure_pool(report: Report, scratch: Path, megabytes: int, batches: int, backend: str) -> None:
    """How busy a read keeps one actor that takes 50 ms a batch."""
    import ray.data

    source = large_files(scratch / f"rows-{megabytes}", megabytes)
    rows = pq.read_metadata(next(source.glob("*.parquet"))).num_rows
    batch_rows = -(-rows // max(1, batches // FILES))
    total = rows * FILES

    def ours(where: str) -> pa.Table:
        read = curate.read_parquet(source).using(backend=where)
        return read.map_batches(Sleeper, batch_size=batch_rows, compute=curate.ActorPool(size=1)).to_arrow()

    def rival() -> pa.Table:
        pool = ray.data.ActorPoolStrategy(size=1)
        slept = ray.data.read_parquet(str(source)).map_batches(
            Sleeper, batch_size=batch_rows, batch_format="pyarrow", compute=pool
        )
        return pa.concat_tables(slept.iter_batches(batch_size=None, batch_format="pyarrow"))

    click.echo(
        f"\nread, one actor that takes {BUSY_S * 1000:.0f} ms a batch: {batches:,} batches of {batch_rows:,} rows"
    )
    shares = []
    runs: dict[str, Callable[[], pa.Table]] = {"curate": partial(ours, "ray"), "Ray Data": rival}
    if backend == "local":
        runs = {ON_LOCAL: partial(ours, "local"), ON_RAY: partial(ours, "ray")}
    for name, run in runs.items():
        started = time.perf_counter()
        calls = run()
        seconds = time.perf_counter() - started
        expect("the number of rows that the actor got", pc.sum(calls["rows"]).as_py(), total)
        shares.append(busy_share(list(zip(calls["started_s"].to_pylist(), calls["ended_s"].to_pylist(), strict=True))))
        click.echo(
            f"  {name:<24}{seconds:>7.2f} s   actor busy {shares[-1]:.1%} of its steady state   {len(calls):,} calls"
        )
    report.target("actor busy", f"{shares[0]:.1%}", ">= 95 %", shares[0] >= 0.95)


def busy_share(calls: Sequence[tuple[float, float]]) -> float:
    """Returns the share of the time in which one actor was at work, from the end of its first call to the start of its
    last; `calls` are their starts and ends, in seconds.

    >>> busy_share([(0.0, 1.0), (1.5, 2.5), (3.0, 4.0)])
    0.5
    """
    ordered = sorted(calls)
    steady_s = ordered[-1][0] - ordered[0][1]
    return sum(ended - started for started, ended in ordered[1:-1]) / steady_s


# Very many small files


def measure_many(report: Report, scratch: Path, runs: Path, files: int, rounds: int) -> None:
    """Very many small files of Parquet. Ray Data has a process and a Ray of its own, and is stopped when it has taken
    so long that nothing is left to be judged: there is no telling what else its readers would take with them."""
    import ray

    source, few = small_parquet(scratch, files), small_parquet(scratch, max(1, int(files * WARM_UP)))
    check = same_rows(worded(pads.dataset(source).to_table().sort_by("id")))
    click.echo(
        f"\nread, map, write: {files:,} Parquet files of {ROWS} rows; {rounds} rounds of curate, one of Ray Data"
    )
    warm_ray()
    try:
        alternate({"curate": partial(write_worded, few)}, runs / "many-warm-up", 1, lambda *_: None)
        (ours,) = alternate({"curate": partial(write_worded, source)}, runs / "many", rounds, check)
    finally:
        ray.shutdown()
    click.echo(show(ours))
    limit_s = PATIENCE * ours.median_s
    seconds = rival_process(few, source, runs / "many-rival", limit_s)
    if seconds is not None:
        check(runs / "many-rival" / "all", None)
        rival = Runs("Ray Data", [seconds])
        click.echo(show(rival))
        judge(report, "curate, to Ray Data", ours, rival, 1 / 4)
        return
    click.echo(f"  {'Ray Data':<24}not done after {limit_s:.0f} s, and stopped")
    report.target("curate, to Ray Data", f"< {1 / PATIENCE:.3f} x", f"<= {1 / 4:.3f} x", 1 / PATIENCE <= 1 / 4)


def rival_process(few: Path, source: Path, output: Path, limit_s: float) -> float | None:
    """Lets Ray Data read, map and write in a process of its own, on a Ray that has done so with a few files before.

    Returns the seconds that it took; None if it was not done after `limit_s`. Then it is killed, and its Ray with it.
    """
    command = [sys.executable, str(SCRIPT), "ray-data", str(few), str(source), str(output)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as child:
        wait_until_ready(child)
        try:
            said, _ = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            child.kill()
            return None
    if child.returncode:
        raise click.ClickException(f"{' '.join(command)} ended with {child.returncode}")
    return float(said.split()[-1])


def ray_data_and_say(few: Path, source: Path, output: Path) -> None:
    """The process that may be killed: warms its Ray, says so, does all, and says what it took in seconds."""
    warm_ray()
    quiet_ray_data()
    ray_write_worded(few, output / "few")
    click.echo("ready")
    sys.stdout.flush()
    started = time.perf_counter()
    ray_write_worded(source, output / "all")
    click.echo(time.perf_counter() - started)


# All of it


@dataclass(frozen=True)
class Sizes:
    """How much of each."""

    megabytes: int
    files: int
    blocks: int
    batches: int


PARTS = (*CONTESTS, "first", "pool", "many")


def measure_map(
    report: Report, scratch: Path, parts: Sequence[str], sizes: Sizes, rounds: int, backend: str = "ray"
) -> None:
    """Measures these parts, all beside one Ray."""
    import ray

    many = bool({"small", "lines", "many"}.intersection(parts))
    if many:
        settle(scratch)
    runs = Path(tempfile.mkdtemp(dir=scratch, prefix="runs-"))
    # Nothing is removed before the end, so that no run pays for what the one before it left.
    warm_ray()
    quiet_ray_data()
    cpus = ray.cluster_resources()["CPU"]
    click.echo(
        f"curate beside Ray Data {ray.__version__} on {cpus:g} CPUs; its DataContext is the default, without progress "
        f"bars and logs; codec {CODEC}; one warm Ray, files in the page cache; medians"
    )
    amounts = {
        "write": sizes.megabytes,
        "filter": sizes.megabytes,
        "small": min(sizes.files, PARQUET_FILES),
        "lines": sizes.files,
        "blocks": sizes.blocks,
    }
    try:
        for part in parts:
            if part == "first":
                measure_first(report, scratch, sizes.megabytes, rounds, backend)
            elif part == "pool":
                measure_pool(report, scratch, sizes.megabytes, sizes.batches, backend)
            elif part in CONTESTS:
                measure(report, scratch, runs, part, amounts[part], rounds, backend)
        ray.shutdown()
        if "many" in parts:
            measure_many(report, scratch, runs, sizes.files, rounds)
    finally:
        ray.shutdown()
        if many:
            forget(scratch, runs)
        else:
            shutil.rmtree(runs)
