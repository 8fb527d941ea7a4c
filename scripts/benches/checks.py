"""What a run has to have written: rows are compared with those that pyarrow gives for the same work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from .common import Check, expect

CORRELATED = 0.02
"""Most that places before and after a shuffle may correlate: six times the deviation of a hundred thousand rows."""


def same_rows(wanted: pa.Table) -> Check:
    """Returns what checks that Parquet files below a folder have these rows, sorted by `id`, in any order."""

    def check(folder: Path, _: Any) -> None:
        found = pads.dataset(folder, format="parquet").to_table()
        expect("the number of rows", found.num_rows, wanted.num_rows)
        expect("the columns", sorted(found.column_names), sorted(wanted.column_names))
        found = found.select(wanted.column_names).sort_by("id")
        for name in wanted.column_names:
            # Of some types there are two: Ray Data gives large_string for what it read by pandas.
            if not found[name].cast(wanted[name].type).equals(wanted[name]):
                raise click.ClickException(f"the column {name!r} is not that of the same work done by pyarrow")

    return check


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
