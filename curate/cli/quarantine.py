"""Renders the rows that a job has set aside."""

from __future__ import annotations

import itertools
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import click
from rich.text import Text

from curate.cli.terminal import Console, fact, line, print_table
from curate.errors import ConfigError
from curate.formats.encoding import detect
from curate.objects.bad_line import advice
from curate.objects.quarantine import Quarantined
from curate.observe.browse import quarantined
from curate.observe.job import FoundJob, find_job, find_shard, find_stages
from curate.tasks.shard import Shard, SliceKind
from curate.units import ellipsize, format_count, json_line, plain_line

SHOWN_REASONS = 20
MOST_REASONS = 1000
"""Different reasons that are counted one by one; user code may make up as many as it likes."""
OTHER_REASONS = "other reasons"
REASON_CHARS = 200


def show_quarantine(
    output: str, *, shard: str | None, reason: str | None, most: int | None, as_json: bool
) -> int:  # fmt: skip
    """Prints how many rows were set aside for which reason, and the first of them. Returns the exit code.

    `reason`: only rows whose reason contains it, in whichever case. As JSON, rows only: `most` of them, or all.
    """
    found = find_job(output)
    # Of many rows of a shard it is looked for once.
    shard_of = lru_cache(maxsize=1)(partial(_shard, found))
    if as_json:
        chosen = ((shard_id, row) for shard_id, row in _rows(found, shard) if _is_chosen(row, reason))
        for shard_id, row in itertools.islice(chosen, most):
            click.echo(json_line(_as_dict(shard_of, shard_id, row)))
        return 0
    reasons: Counter[str] = Counter()
    seen = shards = 0
    last = ""
    first: list[dict[str, Any]] = []
    for shard_id, row in _rows(found, shard):
        seen += 1
        if not _is_chosen(row, reason):
            continue
        shards, last = shards + (shard_id != last), shard_id
        reasons[row.reason if row.reason in reasons or len(reasons) < MOST_REASONS else OTHER_REASONS] += 1
        if most is None or len(first) < most:
            first.append(_as_dict(shard_of, shard_id, _readable(row)))
    console = Console(highlight=False)
    line(console, Text.assemble((plain_line(found.job["job"]), "bold"), f"  {plain_line(found.ledger.root)}"))
    total = reasons.total()
    where = f", of {format_count(shards, 'shard')}" if total else ""
    of_all = f" of {seen:,}" if reason else ""
    fact(console, "rows", Text(f"{total:,}{of_all} set aside{where}"))
    for number, (why, count) in enumerate(reasons.most_common(SHOWN_REASONS)):
        fact(console, "" if number else "reasons", Text(f"{count:,} x {ellipsize(why, REASON_CHARS)}"))
    if len(reasons) > SHOWN_REASONS:
        fact(console, "", Text(f"... and {len(reasons) - SHOWN_REASONS:,} more"))
    for number, text in enumerate(advice(reasons)):
        fact(console, "" if number else "next", Text(plain_line(text)))
    if first:
        line(console, Text())
        if left_out := print_table(console, ["shard", "at", "reason", "row"], first):
            line(console, Text(f"no room for: {', '.join(left_out)}; a wider terminal shows all, or --json"))
    if first and total > len(first):
        line(console, Text(f"... and {total - len(first):,} more: -n {total}, or --json"))
    return 0


def _rows(found: FoundJob, shard: str | None) -> Iterator[tuple[str, Quarantined]]:
    """Yields shard and row, of all stages, or of one shard; once a job is complete, its own ledger has them all."""
    complete = found.listing.summary is not None
    if shard is not None and not complete:
        one, key, own, _ = find_shard(found.ledger.root, shard)
        yield from ((shard, row) for _, row in quarantined(one, own))
        return
    for key, stage in find_stages(found).there.items() if not complete else ():
        yield from ((f"{key}/{shard_id}", row) for shard_id, row in quarantined(stage))
    yield from quarantined(found, shard)


def _readable(row: Quarantined) -> Quarantined:
    """Returns a row as text; of one that is not, what is not UTF-8 as in Python: \\xff."""
    if not row.is_base64:
        return row
    return replace(row, row=b64decode(row.row).decode(errors="backslashreplace"), is_base64=False)


def _is_chosen(row: Quarantined, reason: str | None) -> bool:
    return (reason or "").casefold() in row.reason.casefold()


def _as_dict(shard_of: Callable[[str], Shard | None], shard_id: str, row: Quarantined) -> dict[str, Any]:
    name = "row_base64" if row.is_base64 else "row"
    shard = shard_of(shard_id)
    where: dict[str, Any] = {} if shard is None else {"input": shard.uri}
    if shard is not None and shard.kind is not SliceKind.WHOLE:
        where["slice"] = {"kind": shard.kind.value, "start": shard.start, "stop": shard.stop}
    at = row.at or input_position(shard, row.line)
    return {"shard": shard_id, **where, "line": row.line or None, "at": at, "reason": row.reason, name: row.row}


def _shard(found: FoundJob, shard_id: str) -> Shard | None:
    """Returns a shard of the job's last stage; None for one of a stage before it."""
    rank = found.plan.rank(shard_id)
    return found.plan.shard(rank) if rank >= 0 else None


def input_position(shard: Shard | None, line: int) -> str:
    """Returns where a row was in its input, by its line; empty where that is unknown.

    A slice of a file is counted from its own beginning.

    >>> part = Shard("a.part-00001", "/in/a.csv", SliceKind.BYTES, 4096, 8192, 4096, 9000, "1")
    >>> input_position(part, 3), input_position(Shard("a", "/in/a.jsonl", SliceKind.WHOLE, 0, 0, 9, 9, "1"), 12)
    ('row 3 from byte 4,096', 'line 12')
    >>> input_position(Shard("a", "/in/a.tar", SliceKind.WHOLE, 0, 0, 9, 9, "1"), 12)
    'row 12'
    """
    if not line:
        return ""
    start = ""
    if shard is not None and shard.kind is not SliceKind.WHOLE:
        start = f" from {'byte' if shard.kind is SliceKind.BYTES else 'row group'} {shard.start:,}"
    return f"{_counted(shard)} {line:,}{start}"


def _counted(shard: Shard | None) -> str:
    """Returns what positions in an input count: lines, or rows where a row is not always a line."""
    try:
        return "line" if shard is None else detect(shard.uri).unit
    except ConfigError:
        return "line"
