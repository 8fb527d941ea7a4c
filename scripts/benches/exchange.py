"""Exchanges beside Ray Data, Polars and DuckDB: the same files, the same codec, in turn, in one run of a warm Ray.

Ray Data runs with the defaults of its DataContext, without progress bars and logs; where it would write two hundred
files of a few rows it is asked for fewer as well, and the faster of the two is what curate is held against. Polars and
DuckDB run in this process with as many threads as Ray has CPUs, and are the floor: one process on one machine that
keeps all rows in memory and could not go on where it was killed. All read files that lie in the page cache, and write
Parquet with the same codec. Each run's rows are compared with those that pyarrow gives for the same work; a run that
gives others, or gives them in another order where there is one, ends the bench.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

import curate

from .common import (
    ON_LOCAL,
    ON_RAY,
    SCRIPT,
    Check,
    Report,
    Run,
    Runs,
    alternate,
    expect,
    once,
    wait_until_ready,
    warm_ray,
    written_on,
)
from .map import CODEC, FILES, ROW_GROUPS, complete, judge, large_rows, long_texts, same_rows, show

GROUPS = 1000
REPARTITIONED = 12
"""Files that repartitioning makes of 32."""
RAY_PARTITIONS = 32
"""Of a groupby of Ray Data, whose default is two hundred."""
TIMES = 4
"""How much larger the data is that tells how the time grows, and that a driver is killed over."""
WARM_UP = 0.05
"""Size of what is run once before all rounds, to the size of a round."""
CORRELATED = 0.02
"""Most that places before and after a shuffle may correlate: six times the deviation of a hundred thousand rows."""
RESUMES = 3
"""Drivers that are killed, at most: one a round."""
COUNTED_ROWS = "rows.parquet"


# Inputs, and what becomes of them


def exchange_files(folder: Path, rows: int) -> Path:
    """Writes `rows` rows in 32 Parquet files, unless they are there; about 150 bytes each in Arrow."""

    folder = folder.with_name(folder.name + long_texts.suffix)

    def make() -> None:
        each = -(-rows // FILES)
        for number in range(FILES):
            table = exchange_rows(number * each, min(each, rows - number * each))
            pq.write_table(table, folder / f"part-{number:05d}.parquet", -(-each // ROW_GROUPS), compression=CODEC)

    return once(folder, make)


def exchange_rows(start: int, rows: int) -> pa.Table:
    """Returns rows with the ids from `start` on: a random key, one of a thousand groups, a value, and a text."""
    random = np.random.default_rng((start, 1))
    limits = np.iinfo(np.int64)
    numbers = {
        "key": random.integers(limits.min, limits.max, rows, endpoint=True),
        "group": random.integers(0, GROUPS, rows),
        "value": random.integers(-1000, 1000, rows),
    }
    large = large_rows(start, rows)
    return pa.table({"id": large["id"], **numbers, "score": large["score"], "text": large["text"]})


def parts_of(folder: Path) -> list[pa.Table]:
    """Returns the rows of each Parquet file below a folder that has any, in the order of their names."""
    tables = [pq.read_table(path) for path in map(Path, sorted(pads.dataset(folder, format="parquet").files))]
    return [table for table in tables if table.num_rows]


def sorted_rows(wanted: pa.Table, key: str) -> Check:
    """Returns what checks that files below a folder have these rows, which are sorted by `key` and have no key twice.

    Ray Data names its files by chance; so files are taken in the order of their first keys.
    """

    def check(folder: Path, _: Any) -> None:
        found = pa.concat_tables(
            sorted(parts_of(folder), key=lambda part: part[key][0].as_py()), promote_options="permissive"
        )
        expect("the number of rows", found.num_rows, wanted.num_rows)
        expect("the columns", sorted(found.column_names), sorted(wanted.column_names))
        for name in [key, *wanted.column_names]:
            if not found[name].cast(wanted[name].type).equals(wanted[name]):
                problem = "the rows are not in order" if name == key else f"the column {name!r} is not that of the rows"
                raise click.ClickException(f"{problem} that pyarrow gives, sorted by {key!r}")

    return check


def shuffled_rows(wanted: pa.Table) -> Check:
    """Returns what checks that files below a folder have these rows, and that their order tells nothing of the ids."""
    same = same_rows(wanted)

    def check(folder: Path, found: Any) -> None:
        same(folder, found)
        ids = np.concatenate([part["id"].to_numpy() for part in parts_of(folder)])
        correlation = float(np.corrcoef(ids, np.arange(len(ids)))[0, 1])
        least = max(CORRELATED, 6 / len(ids) ** 0.5)
        if abs(correlation) > least:
            raise click.ClickException(f"ids and places correlate by {correlation:.3f}, expected {least:.3f} at most")

    return check


def same_sums(wanted: Mapping[int, int]) -> Check:
    """Returns what checks that files below a folder have these sums of groups, whatever the column is called."""

    def check(folder: Path, _: Any) -> None:
        found = pads.dataset(folder, format="parquet").to_table()
        expect("the number of groups", found.num_rows, len(wanted))
        (name,) = set(found.column_names) - {"group"}
        sums = dict(zip(found["group"].to_pylist(), found[name].to_pylist(), strict=True))
        expect("that all sums are those of pyarrow", sums == wanted, True)

    return check


def in_files(check: Check, count: int) -> Check:
    """Returns what checks the number of files, too."""

    def both(folder: Path, found: Any) -> None:
        expect("the number of files", len(pads.dataset(folder, format="parquet").files), count)
        check(folder, found)

    return both


# The contests


@dataclass(frozen=True)
class Contest:
    """One exchange, by all who have it."""

    name: str
    target: float
    """What share of Ray Data's time curate may take."""
    ours: Run
    rivals: Mapping[str, Run]
    """Ray Data; the fastest is the one that counts."""
    check: Check
    floors: Mapping[str, Run] = field(default_factory=dict)
    floor_target: float | None = None
    """Times the faster floor's time that curate may take; None: floors are only shown."""

    def on_local(self) -> Contest:
        """Returns the contest of curate in worker processes with curate on a warm Ray."""
        return Contest(self.name, 1.0, written_on("local", self.ours), {ON_RAY: self.ours}, self.check)


def write(dataset: Any, output: Path) -> None:
    """Writes a dataset of curate, whole."""
    complete(dataset.write_parquet(output, codec=CODEC))


def ray_write(dataset: Any, output: Path) -> None:
    dataset.write_parquet(str(output), compression=CODEC)


def polars_write(query: Any, output: Path) -> None:
    """Runs a query of Polars by its faster engine; rows are written to one file, which it does by all threads."""
    output.mkdir(parents=True)
    query.collect(engine="streaming").write_parquet(output / COUNTED_ROWS, compression=CODEC)


def duckdb_write(query: str, output: Path, threads: int) -> None:
    import duckdb

    output.mkdir(parents=True)
    with duckdb.connect(config={"threads": threads}) as connection:
        connection.execute(f"COPY ({query}) TO '{output / COUNTED_ROWS}' (FORMAT parquet, COMPRESSION {CODEC})")


def sort_contest(source: Path, threads: int) -> Contest:
    """Sort by a random number, and write."""
    import polars as pl
    import ray.data

    return Contest(
        "sort by a random number, write",
        1 / 5,
        lambda output: write(curate.read_parquet(source).sort("key"), output),
        {"Ray Data": lambda output: ray_write(ray.data.read_parquet(str(source)).sort("key"), output)},
        sorted_rows(pads.dataset(source).to_table().sort_by("key"), "key"),
        {
            "Polars": lambda output: polars_write(pl.scan_parquet(source / "*.parquet").sort("key"), output),
            "DuckDB": lambda output: duckdb_write(f"FROM '{source}/*.parquet' ORDER BY key", output, threads),
        },
        2.0,
    )


def shuffle_contest(source: Path, _: int) -> Contest:
    """Put all rows into a random order, and write."""
    import ray.data

    return Contest(
        "random shuffle, write",
        1 / 4,
        lambda output: write(curate.read_parquet(source).random_shuffle(seed=0), output),
        {"Ray Data": lambda output: ray_write(ray.data.read_parquet(str(source)).random_shuffle(seed=0), output)},
        shuffled_rows(pads.dataset(source).to_table().sort_by("id")),
    )


def groupby_contest(source: Path, threads: int) -> Contest:
    """Sum a column over a thousand groups, and write; all but Polars and DuckDB are told which columns that takes."""
    import polars as pl
    import ray.data

    columns = ["group", "value"]

    def rival(partitions: int | None) -> Run:
        def run(output: Path) -> None:
            grouped = ray.data.read_parquet(str(source), columns=columns).groupby("group", num_partitions=partitions)
            ray_write(grouped.sum("value"), output)

        return run

    wanted = pads.dataset(source).to_table(columns=columns).group_by("group").aggregate([("value", "sum")])
    sums = pl.scan_parquet(source / "*.parquet").group_by("group").agg(pl.col("value").sum())
    query = f"SELECT \"group\", sum(value)::BIGINT FROM '{source}/*.parquet' GROUP BY ALL"
    return Contest(
        f"groupby sum over {GROUPS:,} groups, write",
        1 / 8,
        lambda output: write(curate.read_parquet(source, columns=columns).groupby("group").sum("value"), output),
        {"Ray Data": rival(None), f"Ray Data, {RAY_PARTITIONS} partitions": rival(RAY_PARTITIONS)},
        same_sums(dict(zip(wanted["group"].to_pylist(), wanted["value_sum"].to_pylist(), strict=True))),
        {
            "Polars": lambda output: polars_write(sums, output),
            "DuckDB": lambda output: duckdb_write(query, output, threads),
        },
    )


def repartition_contest(source: Path, _: int) -> Contest:
    """The same rows in other files."""
    import ray.data

    def rival(output: Path) -> None:
        ray_write(ray.data.read_parquet(str(source)).repartition(REPARTITIONED), output)

    return Contest(
        f"repartition {FILES} files to {REPARTITIONED}, write",
        1 / 4,
        lambda output: write(curate.read_parquet(source).repartition(REPARTITIONED), output),
        {"Ray Data": rival},
        in_files(same_rows(pads.dataset(source).to_table().sort_by("id")), REPARTITIONED),
    )


CONTESTS: dict[str, Callable[[Path, int], Contest]] = {
    "sort": sort_contest,
    "shuffle": shuffle_contest,
    "groupby": groupby_contest,
    "repartition": repartition_contest,
}


def measure(report: Report, scratch: Path, name: str, rows: int, rounds: int, backend: str) -> None:
    """Runs a contest once at a small size, then in alternated rounds, and judges it."""
    import ray

    threads = int(ray.cluster_resources()["CPU"])

    def contest_of(size: int) -> Contest:
        contest = CONTESTS[name](exchange_files(scratch / f"exchange-{size}", size), threads)
        return contest.on_local() if backend == "local" else contest

    with runs_folder(scratch) as runs:
        small = contest_of(max(FILES, int(rows * WARM_UP)))
        alternate(contenders(small), runs / "warm-up", 1, small.check)
        contest = contest_of(rows)
        click.echo(f"\n{contest.name}: {rows:,} rows in {FILES} Parquet files; {rounds} alternated rounds")
        results = alternate(contenders(contest), runs / "rounds", rounds, contest.check)
    for one in results:
        click.echo(show(one))
    found = {one.name: one for one in results}
    rival = min((found[one] for one in contest.rivals), key=lambda runs: runs.median_s)
    judge(report, f"{results[0].name}, to {rival.name}", results[0], rival, contest.target)
    if contest.floor_target is not None:
        floor = min((found[one] for one in contest.floors), key=lambda runs: runs.median_s)
        judge(report, f"curate, to {floor.name}", results[0], floor, contest.floor_target)


def contenders(contest: Contest) -> dict[str, Run]:
    ours = ON_LOCAL if ON_RAY in contest.rivals else "curate"
    return {ours: contest.ours, **contest.rivals, **contest.floors}


@contextmanager
def runs_folder(scratch: Path) -> Iterator[Path]:
    """Yields a folder for outputs. It goes at the end, so that no run pays for what the one before it left."""
    folder = Path(tempfile.mkdtemp(dir=scratch, prefix="runs-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


# How the time grows, and how many objects there are


def measure_scaling(report: Report, scratch: Path, rows: int, rounds: int) -> None:
    """Sorts so many rows, and four times as many."""
    sizes = {"1": rows, str(TIMES): rows * TIMES}
    sources = {times: exchange_files(scratch / f"exchange-{size}", size) for times, size in sizes.items()}
    checks = {times: sorted_rows(pads.dataset(one).to_table().sort_by("key"), "key") for times, one in sources.items()}

    def sort(times: str) -> Run:
        def run(output: Path) -> str:
            write(curate.read_parquet(sources[times]).sort("key"), output)
            return times

        return run

    def check(output: Path, times: str) -> None:
        checks[times](output, None)

    click.echo(f"\nsort of {rows:,} rows and of {TIMES} times as many, write; {rounds} alternated rounds")
    with runs_folder(scratch) as runs:
        both = {f"{size:,} rows": sort(times) for times, size in sizes.items()}
        alternate(both, runs / "warm-up", 1, check)
        few, many = alternate(both, runs / "rounds", rounds, check)
        for one in (few, many):
            click.echo(show(one))
        judge(report, f"{TIMES} times the rows, to the time of one", many, few, 1.1 * TIMES)
        for times, size in sizes.items():
            output = runs / f"kept-{times}"
            complete(
                curate.read_parquet(sources[times]).sort("key").write_parquet(output, codec=CODEC, keep_stages=True)
            )
            count_objects(report, f"{size:,} rows", output)


def count_objects(report: Report, what: str, output: Path) -> None:
    """Counts the files of a sort whose stages were kept, and judges that there is one for each map and each output."""
    # What is written for people and for resuming is a ledger's; it does not grow with the pairs of maps and outputs.
    kept = [path for path in (output / "_curate" / "stages").rglob("*") if path.is_file()]
    data = [path for path in kept if not {"_curate"}.intersection(path.relative_to(output / "_curate").parts[:-1])]
    maps, parts = counted(output)
    found = len(data) + parts
    wanted = f"{maps} maps + {parts} outputs = {maps + parts}; a file for each pair would be {maps * parts}"
    report.target(f"objects of {what}", str(found), wanted, found == maps + parts and maps > 0)


# A driver that is killed


def measure_resume(report: Report, scratch: Path, rows: int, rounds: int) -> None:
    """Sorts four times the rows by a driver that is killed half way and run again, on a Ray that lives on."""
    from ray.cluster_utils import Cluster

    source = exchange_files(scratch / f"exchange-{rows * TIMES}", rows * TIMES)
    check = sorted_rows(pads.dataset(source).to_table().sort_by("key"), "key")
    whole, rest = Runs("whole, undisturbed"), Runs("what was left")
    there: list[str] = []
    times = min(rounds, RESUMES)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": os.cpu_count()})
    try:
        click.echo(f"\nsort of {rows * TIMES:,} rows by a driver that is killed half way, {times} times; Ray lives on")
        with runs_folder(scratch) as runs:
            sort_process(cluster.address, source, runs / "warm-up", None)
            for number in range(times):
                whole.seconds.append(sort_process(cluster.address, source, runs / f"whole-{number}", None))
                output = runs / f"killed-{number}"
                sort_process(cluster.address, source, output, whole.median_s / 2)
                expect("that the sort was over before its driver was killed", is_over(output), False)
                there.append(" and ".join(map(str, counted(output))))
                rest.seconds.append(sort_process(cluster.address, source, output, None))
                check(output, None)
    finally:
        cluster.shutdown()
    for one in (whole, rest):
        click.echo(show(one))
    click.echo(f"  run files and outputs that were there when it was run again: {'; '.join(there)}")
    judge(report, "what was left, to the whole", rest, whole, 0.6)


def is_over(output: Path) -> bool:
    """Whether a job's run has written its summary, the last thing that it does."""
    return (output / "_curate" / "summary.json").exists()


def counted(output: Path) -> tuple[int, int]:
    """Returns how many run files and outputs a sort has written that are there."""
    return len(list((output / "_curate").rglob("*.run"))), len(list(output.glob("*.parquet")))


def sort_process(address: str, source: Path, output: Path, kill_after_s: float | None) -> float:
    """Sorts in a process of its own, which is killed after so many seconds of work, if it is to be.

    Returns the seconds that it took once it was connected to Ray.
    """
    command = [sys.executable, str(SCRIPT), "sort", str(source), str(output)]
    environment = {**os.environ, "RAY_ADDRESS": address}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        wait_until_ready(child)
        started = time.perf_counter()
        if kill_after_s is not None:
            try:
                child.wait(kill_after_s)
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGKILL)
            return time.perf_counter() - started
        said = child.stdout.read()
        if child.wait():
            raise click.ClickException(f"{' '.join(command)} ended with {child.returncode}")
    return float(said.split()[-1])


def sort_and_say(source: Path, output: Path) -> None:
    """The process that is killed: connects, says so, sorts, and says what it took in seconds."""
    import ray

    ray.init(log_to_driver=False, logging_level="warning")
    click.echo("ready")
    sys.stdout.flush()
    started = time.perf_counter()
    summary = curate.read_parquet(source).sort("key").write_parquet(output, codec=CODEC)
    seconds = time.perf_counter() - started
    if summary.state.exit_code:
        raise click.ClickException(f"the sort ended so: {summary}")
    click.echo(seconds)


# All of it


PARTS = (*CONTESTS, "scaling", "resume")


def measure_exchange(
    report: Report, scratch: Path, parts: Sequence[str], rows: int, rounds: int, backend: str = "ray"
) -> None:
    """Measures these parts: contests and growth on one Ray, drivers that are killed on another, afterwards."""
    cpus = os.cpu_count() or 1
    os.environ["POLARS_MAX_THREADS"] = str(cpus)  # it reads this when it is imported
    import duckdb
    import polars as pl
    import ray
    import ray.data

    click.echo(
        f"curate beside Ray Data {ray.__version__}, and Polars {pl.__version__} and DuckDB {duckdb.__version__} in one "
        f"process, on {cpus} CPUs; Ray Data's DataContext is the default, without progress bars and logs; codec "
        f"{CODEC}; one warm Ray, files in the page cache; medians"
    )
    if set(parts) - {"resume"}:
        warm_ray()
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        try:
            for part in parts:
                if part in CONTESTS:
                    measure(report, scratch, part, rows, rounds, backend)
                elif part == "scaling":
                    measure_scaling(report, scratch, rows, rounds)
        finally:
            ray.shutdown()
    if "resume" in parts:
        measure_resume(report, scratch, rows, rounds)
