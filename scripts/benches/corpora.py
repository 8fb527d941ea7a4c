"""What corpora go through, beside Ray Data and beside the floor: texts of any size, one table.

All read the same files, which lie in the page cache, with the same codec, in turn. curate runs in worker processes of
this machine unless asked otherwise, which is what a user gets there; Ray Data, with its defaults, on a warm Ray. The
floor is the faster of Polars and DuckDB: one process on all CPUs, in memory, that could not go on where it was killed.

curate may take a third of Ray Data's time, and 1.2 times the floor's or 0.3 s more than that; and a share of 0.15 of
its CPU may be the kernel's. CPU is that of all processes that took part: curate's driver, fork server and workers, or
this process and Ray's. What Ray takes while others run is not theirs. Beside each is a bare loop of the same calls of
Arrow and of the kernel: the least that the work can take on these cores.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

import curate

from .checks import in_files, same_rows, same_sums, shuffled_rows, sorted_rows
from .common import Check, Report, Run, Runs, alternate, expect, go, own_children, runs_folder, show, warm_ray
from .rivals import duckdb_write, polars_write, quiet_ray_data, ray_write, write
from .rows import CODEC, FILES, NUMBERS_BYTES, corpus_files, corpus_lines, corpus_with_copies

RAY, POLARS, DUCKDB = "Ray Data", "Polars", "DuckDB"
OF_RAY, OF_FLOOR, SLACK_S, OF_SYSTEM = 1 / 3, 1.2, 0.3, 0.15
"""Shares of Ray Data's time and of the floor's, or seconds more than that; and the kernel's share of the CPU."""
KEPT = 0.5
"""Share of the rows that filters keep."""
REPARTITIONED = 12
"""Files that repartitioning makes of 32."""
BUCKETS = 32
"""Groups by which Ray Data deduplicates, which has no operator for that."""
WARM_UP_ROWS = 3200
BARE = Path(__file__).with_name("bare_run.py")


@dataclass(frozen=True)
class Corpus:
    """The files that contests read."""

    scratch: Path
    rows: int
    text_bytes: int
    threads: int
    """That engines of one process use."""
    backend: str
    """Where curate runs."""

    @property
    def parquet(self) -> Path:
        return corpus_files(self._folder("corpus"), self.rows, self.text_bytes)

    @property
    def copies(self) -> Path:
        """The same rows; a fifth of the texts are those of others."""
        return corpus_with_copies(self._folder("copies"), self.rows, self.text_bytes)

    @property
    def lines(self) -> Path:
        """The same rows as gzipped JSON lines."""
        return corpus_lines(self._folder("lines"), self.rows, self.text_bytes)

    def write(self, dataset: Any, output: Path) -> None:
        """Writes a dataset of curate."""
        write(dataset, output, self.backend)

    def duckdb(self, query: str) -> Run:
        return lambda output: duckdb_write(query, output, self.threads)

    def _folder(self, kind: str) -> Path:
        return self.scratch / f"{kind}-{self.rows}-texts-{self.text_bytes}"


@dataclass(frozen=True)
class Contest:
    """One kind of work, by all who can do it."""

    name: str
    ours: Run
    rival: Run
    """Ray Data."""
    floors: Mapping[str, Run]
    check: Check
    bare: Sequence[object]
    """What `bare_run.py` is told, to do the same by Arrow and the kernel alone."""


def measured(batch: pa.Table) -> pa.Table:
    """The function of the map: a number from a number, and one from the text."""
    doubled = batch.set_column(batch.column_names.index("score"), "score", pc.multiply(batch["score"], 2.0))
    return doubled.append_column("length", pc.cast(pc.utf8_length(batch["text"]), "int64"))


def summed(batch: pa.Table) -> pa.Table:
    """The function that appends a column; it looks at two others, and not at the text."""
    return batch.append_column("sum", pc.add(batch["value"], batch["group"]))


def by_id(folder: Path) -> pa.Table:
    return pads.dataset(folder).to_table().sort_by("id")


def map_contest(corpus: Corpus) -> Contest:
    import polars as pl
    import ray.data

    source = corpus.parquet
    columns = pl.col("score") * 2, pl.col("text").str.len_chars().cast(pl.Int64).alias("length")
    query = "SELECT * REPLACE (score * 2 AS score), length(text)::BIGINT AS length"
    return Contest(
        "map a number and the length of the text",
        lambda output: corpus.write(curate.read_parquet(source).map_batches(measured), output),
        lambda output: ray_write(
            ray.data.read_parquet(str(source)).map_batches(measured, batch_format="pyarrow"), output
        ),
        {
            POLARS: lambda output: polars_write(pl.scan_parquet(source / "*.parquet").with_columns(*columns), output),
            DUCKDB: corpus.duckdb(f"{query} FROM '{source}/*.parquet'"),
        },
        same_rows(measured(by_id(source))),
        ("maps", "write", source),
    )


def filter_contest(corpus: Corpus) -> Contest:
    import polars as pl
    import ray.data
    from ray.data.expressions import col

    source = corpus.parquet
    scan = pl.scan_parquet(source / "*.parquet")
    return Contest(
        f"filter by a column, {KEPT:.0%} of the rows stay",
        lambda output: corpus.write(curate.read_parquet(source).filter(pc.field("score") < KEPT), output),
        lambda output: ray_write(ray.data.read_parquet(str(source)).filter(expr=col("score") < KEPT), output),
        {
            POLARS: lambda output: polars_write(scan.filter(pl.col("score") < KEPT), output),
            DUCKDB: corpus.duckdb(f"FROM '{source}/*.parquet' WHERE score < {KEPT}"),
        },
        same_rows(by_id(source).filter(pc.field("score") < KEPT)),
        ("maps", "filter", source),
    )


def append_contest(corpus: Corpus) -> Contest:
    import polars as pl
    import ray.data

    source = corpus.parquet
    scan = pl.scan_parquet(source / "*.parquet")
    return Contest(
        "append a column",
        lambda output: corpus.write(curate.read_parquet(source).map_batches(summed), output),
        lambda output: ray_write(
            ray.data.read_parquet(str(source)).map_batches(summed, batch_format="pyarrow"), output
        ),
        {
            POLARS: lambda output: polars_write(
                scan.with_columns((pl.col("value") + pl.col("group")).alias("sum")), output
            ),
            DUCKDB: corpus.duckdb(f"SELECT *, value + \"group\" AS sum FROM '{source}/*.parquet'"),
        },
        same_rows(summed(by_id(source))),
        ("maps", "append", source),
    )


def lines_contest(corpus: Corpus) -> Contest:
    import polars as pl
    import ray.data
    from ray.data.expressions import col

    source = corpus.lines
    wanted = by_id(corpus.parquet).filter(pc.field("score") < KEPT)
    # Left to itself, it takes large numbers for floats.
    types = "{id: 'BIGINT', key: 'BIGINT', \"group\": 'BIGINT', value: 'BIGINT', score: 'DOUBLE', text: 'VARCHAR'}"
    read = f"read_json('{source}/*.jsonl.gz', format = 'newline_delimited', columns = {types})"
    query = f"FROM {read} WHERE score < {KEPT}"
    return Contest(
        "gzipped JSON lines, filter, Parquet",
        lambda output: corpus.write(curate.read_json(source).filter(pc.field("score") < KEPT), output),
        lambda output: ray_write(ray.data.read_json(str(source)).filter(expr=col("score") < KEPT), output),
        {
            POLARS: lambda output: polars_write(
                pl.scan_ndjson(source / "*.jsonl.gz").filter(pl.col("score") < KEPT), output
            ),
            DUCKDB: corpus.duckdb(query),
        },
        same_rows(wanted),
        ("lines", "filter", source),
    )


def sort_contest(corpus: Corpus) -> Contest:
    import polars as pl
    import ray.data

    source = corpus.parquet
    return Contest(
        "sort by a random number",
        lambda output: corpus.write(curate.read_parquet(source).sort("key"), output),
        lambda output: ray_write(ray.data.read_parquet(str(source)).sort("key"), output),
        {
            POLARS: lambda output: polars_write(pl.scan_parquet(source / "*.parquet").sort("key"), output),
            DUCKDB: corpus.duckdb(f"FROM '{source}/*.parquet' ORDER BY key"),
        },
        sorted_rows(pads.dataset(source).to_table().sort_by("key"), "key"),
        ("sort", "key", source),
    )


def shuffle_contest(corpus: Corpus) -> Contest:
    import polars as pl
    import ray.data

    source = corpus.parquet
    return Contest(
        "random shuffle",
        lambda output: corpus.write(curate.read_parquet(source).random_shuffle(seed=0), output),
        lambda output: ray_write(ray.data.read_parquet(str(source)).random_shuffle(seed=0), output),
        {
            POLARS: lambda output: polars_write(
                pl.read_parquet(source / "*.parquet").sample(fraction=1.0, shuffle=True, seed=0).lazy(), output
            ),
            DUCKDB: corpus.duckdb(f"FROM '{source}/*.parquet' ORDER BY random()"),
        },
        shuffled_rows(by_id(source)),
        ("sort", "key", source),
    )


def repartition_contest(corpus: Corpus) -> Contest:
    import polars as pl
    import ray.data

    source = corpus.parquet

    def polars(output: Path) -> None:
        files = pl.PartitionBy(output, max_rows_per_file=-(-corpus.rows // REPARTITIONED))
        pl.scan_parquet(source / "*.parquet").sink_parquet(files, compression=CODEC, mkdir=True)

    return Contest(
        f"{FILES} files to {REPARTITIONED}",
        lambda output: corpus.write(curate.read_parquet(source).repartition(REPARTITIONED), output),
        lambda output: ray_write(ray.data.read_parquet(str(source)).repartition(REPARTITIONED), output),
        # DuckDB cannot be told a number of files.
        {POLARS: polars},
        in_files(same_rows(by_id(source)), REPARTITIONED),
        ("parts", REPARTITIONED, source),
    )


def groupby_contest(corpus: Corpus) -> Contest:
    import polars as pl
    import ray.data

    source = corpus.parquet
    columns = ["group", "value"]
    sums = pl.scan_parquet(source / "*.parquet").group_by("group").agg(pl.col("value").sum())
    query = f"SELECT \"group\", sum(value)::BIGINT FROM '{source}/*.parquet' GROUP BY ALL"
    wanted = pads.dataset(source).to_table(columns=columns).group_by("group").aggregate([("value", "sum")])
    return Contest(
        "sum over a thousand groups",
        lambda output: corpus.write(curate.read_parquet(source, columns=columns).groupby("group").sum("value"), output),
        lambda output: ray_write(
            ray.data.read_parquet(str(source), columns=columns).groupby("group", num_partitions=BUCKETS).sum("value"),
            output,
        ),
        {POLARS: lambda output: polars_write(sums, output), DUCKDB: corpus.duckdb(query)},
        same_sums(dict(zip(wanted["group"].to_pylist(), wanted["value_sum"].to_pylist(), strict=True))),
        ("sums", "value", source),
    )


def dedup_contest(corpus: Corpus) -> Contest:
    import polars as pl
    import ray.data

    source = corpus.copies
    scan = pl.scan_parquet(source / "*.parquet")

    def rival(output: Path) -> None:
        found = ray.data.read_parquet(str(source)).map_batches(_bucketed, batch_format="pandas")
        found = found.groupby("bucket", num_partitions=BUCKETS).map_groups(_first_ones, batch_format="pandas")
        ray_write(found.drop_columns(["bucket"]), output)

    wanted = len(pc.unique(pads.dataset(source).to_table(columns=["text"])["text"]))

    def check(folder: Path, _: Any) -> None:
        found = pads.dataset(folder, format="parquet").to_table(columns=["id", "text"])
        expect("the number of rows", found.num_rows, wanted)
        expect("the number of texts", len(pc.unique(found["text"])), wanted)

    return Contest(
        "exact deduplication of the texts",
        lambda output: corpus.write(curate.read_parquet(source).dedup_exact("text"), output),
        rival,
        {
            POLARS: lambda output: polars_write(scan.unique("text", keep="first", maintain_order=True), output),
            DUCKDB: corpus.duckdb(f"SELECT DISTINCT ON (text) * FROM '{source}/*.parquet'"),
        },
        check,
        ("firsts", "text", source),
    )


def _bucketed(batch: Any) -> Any:
    import pandas as pd

    return batch.assign(bucket=(pd.util.hash_array(batch["text"].to_numpy()) % BUCKETS).astype(np.int64))


def _first_ones(group: Any) -> Any:
    return group.drop_duplicates("text")


MAPS: dict[str, Callable[[Corpus], Contest]] = {
    "write": map_contest,
    "filter": filter_contest,
    "append": append_contest,
    "gzip": lines_contest,
}
EXCHANGES: dict[str, Callable[[Corpus], Contest]] = {
    "sort": sort_contest,
    "shuffle": shuffle_contest,
    "repartition": repartition_contest,
    "groupby": groupby_contest,
    "dedup_exact": dedup_contest,
}
CONTESTS = {**MAPS, **EXCHANGES}


# Measured, judged, and shown in one table


@dataclass
class Table:
    """The lines of a Markdown table."""

    lines: list[str] = field(
        default_factory=lambda: [
            "| | curate | user + system | system | bare loop | its CPU | floor | its CPU | to it | CPU to it "
            "| Ray Data | to it |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|",
        ]
    )

    def add(self, name: str, ours: Runs, rival: Runs, floor: Runs, bare: Runs) -> None:
        limit = f"{bare.median_s:.2f} s | {bare.median_user_s:.2f} + {bare.median_system_s:.2f} s"
        self.lines.append(
            f"| {name} | {ours.median_s:.2f} s | {ours.median_user_s:.2f} + {ours.median_system_s:.2f} s "
            f"| {ours.system_share:.0%} | {limit} | {floor.name} {floor.median_s:.2f} s "
            f"| {floor.median_user_s:.2f} + {floor.median_system_s:.2f} s | {ours.median_s / floor.median_s:.2f} x "
            f"| {ours.median_cpu_s / floor.median_cpu_s:.2f} x | {rival.median_s:.2f} s "
            f"| {ours.median_s / rival.median_s:.2f} x |"
        )


def judge_corpus(report: Report, ours: Runs, rival: Runs, floors: Sequence[Runs]) -> Runs:
    """Holds curate against Ray Data, the floor and its own CPU; returns the floor."""
    floor = min(floors, key=lambda runs: runs.median_s)
    to_ray = ours.median_s / rival.median_s
    report.target(f"{ours.name}, to {rival.name}", f"{to_ray:.3f} x", f"<= {OF_RAY:.3f} x", to_ray <= OF_RAY)
    most_s = max(OF_FLOOR * floor.median_s, floor.median_s + SLACK_S)
    to_floor = f"{ours.median_s / floor.median_s:.2f} x, {ours.median_s:.2f} s"
    report.target(f"{ours.name}, to {floor.name}", to_floor, f"<= {most_s:.2f} s", ours.median_s <= most_s)
    share = ours.system_share
    report.target("of its CPU, the kernel's", f"{share:.1%}", f"<= {OF_SYSTEM:.0%}", share <= OF_SYSTEM)
    return floor


def rows_of(megabytes: int, text_bytes: int) -> int:
    """Returns how many rows are so many MB in Arrow.

    >>> rows_of(600, 1456)
    400000
    """
    return max(FILES, megabytes * 1_000_000 // (text_bytes + NUMBERS_BYTES))


def measure_corpora(
    report: Report, scratch: Path, parts: Sequence[str], rows: int, text_bytes: int, rounds: int, backend: str
) -> None:
    """Measures these parts, each once at a small size before its rounds."""
    cpus = os.cpu_count() or 1
    os.environ["POLARS_MAX_THREADS"] = str(cpus)  # it reads this when it is imported
    import duckdb
    import polars as pl
    import ray

    before = own_children()
    warm_ray()
    quiet_ray_data()
    of_ray = frozenset(own_children() - before)
    click.echo(
        f"curate ({backend}) beside Ray Data {ray.__version__}, Polars {pl.__version__} and DuckDB "
        f"{duckdb.__version__} on {cpus} CPUs; {rows:,} rows with texts of {text_bytes:,} bytes in {FILES} files; "
        f"codec {CODEC}; one warm Ray, files in the page cache; medians of {rounds} alternated rounds"
    )
    table = Table()
    # What Ray does beside it is not the work of a contender that does not run there.
    apart = {RAY: frozenset[int](), **({"curate": frozenset[int]()} if backend == "ray" else {})}
    try:
        for part in parts:
            with runs_folder(scratch) as runs:
                small = CONTESTS[part](Corpus(scratch, WARM_UP_ROWS, text_bytes, cpus, backend))
                alternate(contenders(small), runs / "warm-up", 1, small.check)
                contest = CONTESTS[part](Corpus(scratch, rows, text_bytes, cpus, backend))
                click.echo(f"\n{part}: {contest.name}, write")
                ours, rival, *floors = alternate(
                    contenders(contest), runs / "rounds", rounds, contest.check, lambda name: apart.get(name, of_ray)
                )
                bare = bare_loop(contest.bare, runs, rounds, cpus)
            for one in (ours, rival, *floors, bare):
                click.echo(show(one))
            table.add(part, ours, rival, judge_corpus(report, ours, rival, floors), bare)
    finally:
        ray.shutdown()
    click.echo("\n" + "\n".join(table.lines))


def contenders(contest: Contest) -> dict[str, Run]:
    return {"curate": contest.ours, RAY: contest.rival, **contest.floors}


def bare_loop(arguments: Sequence[object], folder: Path, rounds: int, processes: int) -> Runs:
    """Measures the least that the same calls of Arrow and of the kernel take, in as many processes."""
    found = Runs("bare loop")
    for number in range(rounds):
        command = [sys.executable, BARE, *arguments, folder / f"bare-{number}", processes]
        ended = go(command, folder / f"bare-{number}.log")
        found.seconds.append(ended.found)
        found.user_s.append(ended.user_s)
        found.system_s.append(ended.system_s)
    return found
