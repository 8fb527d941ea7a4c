"""A run's summary as a person reads it."""

from __future__ import annotations

import shlex

from curate.ledger.stages import StageReport
from curate.ledger.summary import Summary, incomplete_text, missing_text
from curate.units import ellipsize, format_bytes, format_duration, plain_line

SHOWN_CHARS = 400
"""Characters of an error, which may quote whatever it choked on."""
SHOWN_NAME = 60
"""Characters of a stage's name."""


def _stage(one: StageReport) -> str:
    """Returns how a stage ended, in a line."""
    if not one.total:
        return f"  stage    {ellipsize(one.name, SHOWN_NAME)}: {one.state}"
    rows = "" if one.rows is None else f"; {one.rows['in']:,} rows in, {one.rows['out']:,} out"
    took = f" in {format_duration(one.seconds)}" if one.seconds is not None else ""
    return (
        f"  stage    {ellipsize(one.name, SHOWN_NAME)}: {one.state}, {one.done:,} of {one.total:,} shards{took}{rows}"
    )


def render(summary: Summary) -> str:
    """Returns a summary as text, one fact a line, without a line end at its end: nothing in it acts on a terminal."""
    rows = summary.books
    dropped = sum(rows.dropped.values())
    output = shlex.quote(plain_line(summary.output))
    started = f", {format_duration(summary.start_seconds)} of it to start Ray" if summary.start_seconds >= 0.5 else ""
    lines = [f"{plain_line(summary.job)}: {summary.state.value} in {format_duration(summary.seconds)}{started}"]
    lines += map(_stage, summary.stages)
    lines += [
        f"  shards   {summary.done:,} of {summary.total:,} done"
        + (f" ({summary.skipped:,} skipped: their output existed)" if summary.skipped else "")
        + (f", {summary.failed:,} failed" if summary.failed else "")
        + (f", {summary.stale:,} stale: their input changed" if summary.stale else ""),
        f"  rows     {rows.rows_in:,} in + {rows.created:,} created = {rows.rows_out:,} out + {dropped:,} dropped "
        f"+ {rows.quarantined:,} quarantined",
    ]
    lines += [f"             {n:,} dropped: {plain_line(reason)}" for reason, n in sorted(rows.dropped.items())]
    lines += [f"  counter  {plain_line(name)} = {value:,}" for name, value in rows.sorted_counters().items()]
    metrics = rows.sorted_metrics().get("metrics", {})
    lines += [f"  metric   {plain_line(name)} = {value:,}" for name, value in metrics.items()]
    lines += [
        f"  bytes    {format_bytes(summary.bytes_in)} in, {format_bytes(summary.bytes_out)} out",
        f"  output   {plain_line(summary.output)}",
    ]
    if any(summary.missing):
        lines.append(f"  missing  {missing_text(*summary.missing)}")
    if summary.dropped:
        shards, whose = ("1 shard", "its") if summary.dropped == 1 else (f"{summary.dropped:,} shards", "their")
        lines.append(f"  dropped  {shards} taken out of this job, {whose} outputs removed: {whose} input was removed")
    lines += [f"  input    {text}" for text in incomplete_text(summary.incomplete_input)]
    for group in summary.failures:
        lines.append(
            f"  failed   {group.count:,} x {ellipsize(group.error, SHOWN_CHARS)} (such as {plain_line(group.shard)})"
        )
    if summary.failed:
        lines.append(f"What failed: curate failures {output}; when it is mended: curate retry {output}")
    if summary.state.exit_code:
        lines.append(f"Run it again to go on where it stopped; see: curate status {output}")
    return "\n".join(lines)
