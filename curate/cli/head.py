"""Renders the first rows of a job's outputs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import click
import orjson
from rich.console import Console
from rich.text import Text

from curate.cli.table import print_table
from curate.cli.terminal import fact, line, plain
from curate.dataset.browse import rows
from curate.dataset.look import find_job

SHOWN_SHARDS = 3


def show_head(output: str, most: int, *, columns: Sequence[str] | None, shard: str | None, as_json: bool) -> int:
    """Prints the first rows in plan order: of a job that is not complete, of what is there. Returns the exit code."""
    found = find_job(output)
    first = itertools.islice(rows(found, columns, shard), most)
    if as_json:
        for _, row in first:
            click.echo(row)
        return 0
    console = Console(highlight=False)
    line(console, Text.assemble((plain(found.job["job"]), "bold"), f"  {plain(found.ledger.root)}"))
    taken = list(first)
    values = [orjson.loads(row) for _, row in taken]
    names = list(dict.fromkeys(name for value in values for name in value))
    left_out = print_table(console, names, values) if taken else []
    shards = list(dict.fromkeys(shard_id for shard_id, _ in taken))
    more = f" and {len(shards) - SHOWN_SHARDS:,} more" if len(shards) > SHOWN_SHARDS else ""
    where = f", of {', '.join(map(plain, shards[:SHOWN_SHARDS]))}{more}" if taken else ""
    fact(console, "rows", Text(f"{len(taken):,}{where}"))
    if left_out:
        fact(console, "columns", Text(f"without {', '.join(map(plain, left_out))}: choose with --columns A,B"))
    if found.matched.count < len(found.plan):
        fact(console, "outputs", Text(f"{found.matched.count:,} of {len(found.plan):,} are there"))
    return 0
