"""Exchanges beside Ray Data, Polars and DuckDB: the same files, the same codec, in turn, in one run of a warm Ray.

Ray Data runs with the defaults of its DataContext, without progress bars and logs; where it would write two hundred
files of a few rows it is asked for fewer as well, and the faster of the two is what curate is held against. Polars and
DuckDB run in this process with as many threads as Ray has CPUs, and are the floor: one process on one machine that
keeps all rows in memory and could not go on where it was killed. All read files that lie in the page cache, and write
Parquet with the same codec. Each run's rows are compared with those that pyarrow gives for the same work; a run that
gives others, or gives them in another order where there is one, ends the bench.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
import pyarrow.dataset as pads

import curate

from .checks import in_files, same_rows, same_sums, shuffled_rows, sorted_rows
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
    judge,
    runs_folder,
    show,
    wait_until_ready,
    warm_ray,
    written_on,
)
from .rivals import complete, duckdb_write, polars_write, quiet_ray_data, ray_write, write
from .rows import CODEC, FILES, GROUPS, exchange_files

REPARTITIONED = 12
"""Files that repartitioning makes of 32."""
RAY_PARTITIONS = 32
"""Of a groupby of Ray Data, whose default is two hundred."""
TIMES = 4
"""How much larger the data is that tells how the time grows, and that a driver is killed over."""
WARM_UP = 0.05
"""Size of what is run once before all rounds, to the size of a round."""
RESUMES = 3
"""Drivers that are killed, at most: one a round."""


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
        quiet_ray_data()
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
