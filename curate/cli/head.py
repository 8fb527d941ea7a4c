"""Renders the first rows of a job's outputs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import click
import orjson
from rich.text import Text

from curate.cli.terminal import Console, fact, line, print_table
from curate.observe.browse import rows
from curate.observe.job import find_job, find_shard
from curate.units import ellipsize, escape_controls_json, plain_line

SHOWN_SHARDS = 3
SHOWN_COLUMNS = 20
NAME_CHARS = 60


def show_head(
    output: str, most: int, *, columns: Sequence[str] | None, shard: str | None, side: str | None, as_json: bool
) -> int:
    """Prints the first rows in plan order: of a job that is not complete, of what is there. Returns the exit code."""
    found, own = find_job(output), shard
    if shard is not None:
        found, _, own, _ = find_shard(output, shard)
    first = itertools.islice(rows(found, columns, own, side), most)
    if as_json:
        for _, row in first:
            click.echo(escape_controls_json(row))
        return 0
    taken = list(first)
    console = Console(highlight=False)
    line(console, Text.assemble((plain_line(found.job["job"]), "bold"), f"  {plain_line(found.ledger.root)}"))
    values = [orjson.loads(row) for _, row in taken]
    columns = list(dict.fromkeys(name for value in values for name in value))
    left_out = print_table(console, columns, values) if taken else []
    shards = list(dict.fromkeys(shard_id for shard_id, _ in taken))
    where = f", of {_few(shards, SHOWN_SHARDS)}" if taken else ""
    fact(console, "rows", Text(f"{len(taken):,}{where}"))
    if left_out:
        names = _few(left_out, SHOWN_COLUMNS)
        fact(console, "columns", Text(f"{len(left_out):,} more, choose with --columns A,B: {names}"))
    if found.sides and side is None:
        fact(console, "extra", Text(f"outputs, shown with --side NAME: {_few(list(found.sides), SHOWN_COLUMNS)}"))
    if found.matched.count < len(found.plan):
        fact(console, "outputs", Text(f"{found.matched.count:,} of {len(found.plan):,} are there"))
    return 0


def _few(names: Sequence[str], most: int) -> str:
    """Returns the first names, and how many there are beyond them."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(ellipsize(name, NAME_CHARS) for name in names[:most]) + more
