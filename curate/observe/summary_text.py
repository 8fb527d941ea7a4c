"""A run's summary as a person reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from curate.keywords import option
from curate.ledger.stages import StageReport
from curate.ledger.summary import RunState, Summary, incomplete_text, missing_text
from curate.tasks.books import GROUPED, UNSPECIFIED
from curate.units import ellipsize, format_bytes, format_count, format_duration, format_number, plain_line, shell_word

SHOWN_NAME = 60
"""Characters of a stage's name."""


def rows_text(rows: Mapping[str, Any]) -> str:
    """Returns the row accounting of a job or a shard, as `Books.rows` has it, in a line.

    >>> rows_text({"in": 5, "created": 0, "out": 3, "dropped": {"short": 1}, "quarantined": 1})
    '5 in + 0 created = 3 out + 1 dropped + 1 quarantined'
    >>> rows_text({"in": 0, "created": 600, "out": 599, "dropped": {}, "quarantined": 1})
    '599 written, 1 quarantined'
    """
    dropped = sum(rows["dropped"].values())
    if rows["created"] and not rows["in"]:
        # A job that reads whole files or makes rows up.
        parts = [(rows["out"], "written"), (dropped, "dropped"), (rows["quarantined"], "quarantined")]
        return ", ".join(f"{n:,} {what}" for n, what in parts if n or what == "written")
    return (
        f"{rows['in']:,} in + {rows['created']:,} created = {rows['out']:,} out + {dropped:,} dropped "
        f"+ {rows['quarantined']:,} quarantined"
    )


def pending_text(shards: int, only: str) -> str:
    """Returns in words that a run was asked for a part of its job.

    >>> pending_text(3, "limit=2")
    '3 other shards of this job: this run was restricted by limit=2; run it without that to do them'
    """
    them = "it" if shards == 1 else "them"
    others = format_count(shards, "other shard")
    return f"{others} of this job: this run was restricted by {only}; run it without that to do {them}"


def dropped_text(reason: str, rows: int, *, labelled: bool = False) -> str:
    """Returns how many rows are gone for a reason, in a line; `labelled`: behind a label that says so.

    >>> dropped_text("grouped", 6594), dropped_text("short", 2)
    ('6,594 merged into groups', '2 dropped: short')
    """
    if reason == GROUPED:
        return f"{rows:,} merged into groups"
    return f"{rows:,} {'' if labelled else 'dropped: '}{plain_line(reason)}"


def after_code_change(*, by_code: bool) -> str:
    """Returns in words what goes on where the code of a job was fixed; `by_code`: it has no version.

    >>> after_code_change(by_code=False)
    'the same with accept_code_change=True'
    """
    if by_code:
        return f"run it with {option('overwrite')}, which makes all anew: a job without `version` is known by its code"
    return f"the same with {option('accept_code_change')}"


def _stage(one: StageReport) -> str:
    """Returns how a stage ended, in a line."""
    if not one.total:
        return f"  stage    {ellipsize(one.name, SHOWN_NAME)}: {one.state}"
    rows = "" if one.rows is None else f"; {one.rows['in']:,} rows in, {one.rows['out']:,} out"
    took = f" in {format_duration(one.seconds)}" if one.seconds is not None else ""
    return (
        f"  stage    {ellipsize(one.name, SHOWN_NAME)}: {one.state}, {one.done:,} of {one.total:,} shards{took}{rows}"
    )


def _only(summary: Summary) -> list[str]:
    """Returns what the numbers are of, in a line, where a run was asked for some shards alone."""
    if not summary.only:
        return []
    counted = "rows, counters and bytes are of all finished shards of the job"
    return [f"  only     these shards were asked for ({summary.only}); {counted}"]


def _part(summary: Summary) -> list[str]:
    if not summary.part:
        return []
    own = summary.done - summary.skipped - summary.by_others
    return [f"  part     {summary.part}: {own:,} shards made here, {summary.by_others:,} by other drivers"]


def render(summary: Summary) -> str:
    """Returns a summary as text, one fact a line, without a line end at its end: nothing in it acts on a terminal."""
    rows = summary.books
    output = shell_word(summary.output)
    started = f", {format_duration(summary.start_seconds)} of it to start Ray" if summary.start_seconds >= 0.5 else ""
    lines = [f"{plain_line(summary.job)}: {summary.state.value} in {format_duration(summary.seconds)}{started}"]
    lines += map(_stage, summary.stages)
    lines += [
        f"  shards   {summary.done:,} of {summary.total:,} done"
        + (f" ({summary.skipped:,} skipped: their output existed)" if summary.skipped else "")
        + (f", {summary.failed:,} failed" if summary.failed else "")
        + (f", {summary.stale:,} out of date: their input changed ({option('redo_stale')})" if summary.stale else ""),
        *_only(summary),
        *_part(summary),
        f"  rows     {rows_text(rows.rows())}",
    ]
    lines += [f"             {dropped_text(reason, n)}" for reason, n in sorted(rows.dropped.items())]
    if rows.dropped.get(UNSPECIFIED) and not rows.rows_out:
        lines.append("             no row came out, and no reason was given: is a `return` missing?")
    lines += [
        f"  counter  {plain_line(name)} = {format_number(value)}" for name, value in rows.sorted_counters().items()
    ]
    metrics = rows.sorted_metrics().get("metrics", {})
    lines += [f"  metric   {plain_line(name)} = {format_number(value)}" for name, value in metrics.items()]
    lines += [
        f"  bytes    {format_bytes(summary.bytes_in)} in, {format_bytes(summary.bytes_out)} out",
        f"  output   {plain_line(summary.output)}",
    ]
    if summary.pending:
        lines.append(f"  pending  {pending_text(summary.pending, summary.only)}")
    left = summary.total - summary.done - summary.failed
    if summary.state is RunState.ABORTED:
        lines.append(
            f"  stopped  more shards failed than {option('max_failed_shards', ...)} allows; "
            f"not done yet: {format_count(left, 'other shard')}"
        )
    if any(summary.missing):
        lines.append(f"  missing  {missing_text(*summary.missing)}")
    if summary.dropped:
        shards, whose = ("1 shard", "its") if summary.dropped == 1 else (f"{summary.dropped:,} shards", "their")
        lines.append(
            f"  dropped  {shards} taken out of this job, {whose} outputs removed: their inputs are no longer given"
        )
    lines += [f"  input    {text}" for text in incomplete_text(summary.incomplete_input)]
    for one in summary.failures:
        error = ellipsize(one.error) + one.at
        lines.append(f"  failed   {one.count:,} x {error} (for example {plain_line(one.shard)})")
    if summary.failed:
        again = f": curate retry {output}" if left <= 0 else ", run it again: curate retry would leave the other shards"
        lines.append(f"What failed: curate failures {output}; after fixing the cause{again}")
        if any(one.in_code for one in summary.failures):
            lines.append(f"After a change of the job's code: {after_code_change(by_code=summary.by_code)}")
        lines.append(f"For all of it, see: curate status {output}")
    elif summary.state.exit_code:
        lines.append(f"Run it again to resume; see: curate status {output}")
    return "\n".join(lines)
