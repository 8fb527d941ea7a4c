"""How each engine writes what it has made, for all benches of datasets."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click

from .rows import CODEC

ROWS_FILE = "rows.parquet"
"""What engines write that make one file."""


def complete(summary: Any) -> None:
    if summary.state.exit_code or summary.skipped:
        raise click.ClickException(f"the run was meant to do every shard, and ended so: {summary}")


def write(dataset: Any, output: Path, backend: str | None = None) -> None:
    """Writes a dataset of curate, whole; where the environment says, unless that is given."""
    complete(dataset.write_parquet(output, codec=CODEC, **({} if backend is None else {"backend": backend})))


def ray_write(dataset: Any, output: Path) -> None:
    dataset.write_parquet(str(output), compression=CODEC)


def polars_write(query: Any, output: Path) -> None:
    """Runs a query of Polars by its faster engine, which writes one file by all threads while it runs."""
    output.mkdir(parents=True)
    query.sink_parquet(output / ROWS_FILE, compression=CODEC, engine="streaming")


def duckdb_write(query: str, output: Path, threads: int) -> None:
    import duckdb

    output.mkdir(parents=True)
    with duckdb.connect(config={"threads": threads}) as connection:
        connection.execute(f"COPY ({query}) TO '{output / ROWS_FILE}' (FORMAT parquet, COMPRESSION {CODEC})")


def quiet_ray_data() -> None:
    """Ray Data without progress bars and logs, in all else as it is by default."""
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
