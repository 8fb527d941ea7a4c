"""Reads where the rows of a job went, and some of those that did not come out: a bounded number of small files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from itertools import chain, islice, zip_longest
from typing import Any

import numpy as np

from curate import log
from curate.errors import CurateError
from curate.ledger.stages import LAST, StageReport
from curate.objects.quarantine import Quarantined
from curate.objects.samples import MOST_SAMPLED, DroppedRow, lowest, read_samples
from curate.observe.status import COMPLETE, JobStatus
from curate.pages.attempts import TimedFailures
from curate.pages.model import BadRow, Sampled, SampledRow, StageBooks
from curate.units import ellipsize

SHOWN_NAME = 120
SHOWN_REASONS = 30
SHOWN_STAGES = 100
SHOWN_ROW = 300
SHOWN_BYTES = 100_000
"""Bytes of markup that the sampled rows of a page come to, at most, and half as many those in quarantine."""
ROW_BYTES = 150
"""What is around a row in the markup, about."""
BAD_SHARDS = 20
"""Shards whose quarantine is looked at."""
MOST_BAD_ROWS = 1_000
"""Rows in quarantine that are looked at, to show some of each reason."""
OTHERS = "other reasons"


def short_reasons(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Returns books whose reasons for dropping are as they are shown."""
    return {**rows, "dropped": dict(_reasons(rows["dropped"]))}


def _reasons(dropped: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yields the reasons with their rows, most first; those that are not shown together, so that the sum holds."""
    ordered = sorted(dropped.items(), key=lambda one: (-one[1], one[0]))
    shown: dict[str, int] = {}
    for reason, rows in ordered[:SHOWN_REASONS]:
        name = ellipsize(reason, SHOWN_NAME)
        shown[name] = shown.get(name, 0) + rows
    if rest := ordered[SHOWN_REASONS:]:
        shown[OTHERS] = shown.get(OTHERS, 0) + sum(rows for _, rows in rest)
    yield from shown.items()


def stage_books(status: JobStatus, bytes_out: int) -> tuple[StageBooks, ...]:
    """Returns the books of each stage of a job; `bytes_out` are those of its outputs."""
    took = status.runs[0].stage_seconds if status.runs else {}
    if status.stages:
        return tuple(_stage_books(one, took.get(one.key)) for one in status.stages[:SHOWN_STAGES])
    seconds = status.runs[0].updated - status.runs[0].started if status.runs else None
    whole = StageReport(
        LAST, status.job, (), status.state, status.total, status.done, status.running, status.failed, status.rows,
        status.bytes_done, bytes_out,
    )  # fmt: skip
    return (_stage_books(whole, seconds),)


def _stage_books(one: StageReport, seconds: float | None) -> StageBooks:
    rows = one.rows or {"in": 0, "created": 0, "out": 0, "dropped": {}, "quarantined": 0}
    return StageBooks(
        one.key,
        ellipsize(one.name, SHOWN_NAME),
        one.reads,
        ellipsize(one.state, SHOWN_NAME),
        one.total,
        one.done,
        one.failed,
        rows["in"],
        rows["created"],
        rows["out"],
        tuple(_reasons(rows["dropped"])),
        rows["quarantined"],
        one.bytes_in,
        one.bytes_out,
        seconds,
    )


def sampled_rows(stages: Sequence[tuple[str, TimedFailures]], status: JobStatus) -> tuple[Sampled, ...]:
    """Returns some of the rows that each stage dropped, by reason: at most 20, those of the lowest hashes.

    `stages` are those that are there, by key, the last one at the end. Of very many shards some are looked at:
    see `read_samples`.
    """
    there = {key for key, _ in stages}
    removed = [one.key for one in status.stages if one.key not in there]
    rows: list[DroppedRow] = []
    for key, found in stages:
        kept = removed if key == LAST else ()
        own = read_samples(found.ledger, found.listing, found.plan, found.dropping, kept)
        rows += [one if one.stage else replace(one, stage=key) for one in own]
    chosen = lowest(replace(one, reason=ellipsize(one.reason, SHOWN_NAME)) for one in rows)
    known = {(one.key, reason) for one in stage_books(status, 0) for reason, _ in one.dropped}
    shown = {key: [_shown(one) for one in own] for key, own in chosen.items() if key in known}
    return tuple(
        Sampled(stage, reason, tuple(own))
        for (stage, reason), own in _fitting(shown, SHOWN_BYTES, lambda one: f"{one.row}{one.shard}{one.cut}").items()
    )


def _shown(one: DroppedRow) -> SampledRow:
    cut = ", ".join(f"{name}: {size:,}" for name, size in one.cut.items())
    if one.left_out:
        cut += f"{', ' * bool(cut)}columns left out: {one.left_out:,}"
    return SampledRow(ellipsize(one.shard, SHOWN_NAME), ellipsize(one.row, SHOWN_ROW), ellipsize(cut, SHOWN_NAME))


def _fitting(groups: Mapping[Any, Sequence[Any]], most: int, text: Any) -> dict[Any, list[Any]]:
    """Returns as many rows of each group as come to `most` bytes of markup together, in turn."""
    found: dict[Any, list[Any]] = {key: [] for key in groups}
    turns = chain.from_iterable(zip_longest(*([(key, one) for one in own] for key, own in groups.items())))
    size = 0
    for key, one in filter(None, turns):
        size += len(escape(text(one)).encode(errors="replace")) + ROW_BYTES
        if size > most:
            break
        found[key].append(one)
    return {key: own for key, own in found.items() if own}


def bad_rows(found: TimedFailures, status: JobStatus) -> tuple[BadRow, ...]:
    """Returns rows in quarantine, by reason: at most 20, of the first `MOST_BAD_ROWS` of some shards."""
    if not found.listing.quarantine:
        return ()
    # Late: it brings the readers of all formats.
    from curate.observe.browse import by_reason

    grouped: Mapping[str, Any] = {}
    try:
        grouped = by_reason(islice(_quarantined(found, status), MOST_BAD_ROWS), MOST_SAMPLED)[0]
    except CurateError as error:
        log.get_logger().warning("cannot read rows in quarantine", error=str(error))
    shown = {
        reason: [
            BadRow(ellipsize(shard, SHOWN_NAME), row.line, ellipsize(reason), ellipsize(row.row, SHOWN_ROW))
            for shard, row in own
        ]
        for reason, own in grouped.items()
    }
    fitting = _fitting(shown, SHOWN_BYTES // 2, lambda one: f"{one.row}{one.shard}{one.reason}")
    return tuple(chain.from_iterable(fitting.values()))


def _quarantined(found: TimedFailures, status: JobStatus) -> Iterable[tuple[str, Quarantined]]:
    from curate.observe.browse import quarantined

    if status.stages and status.state == COMPLETE:
        return quarantined(found)  # those of stages that were removed come first, from the summary
    # Of a large job only some shards are looked at: those that are known to have set rows aside.
    attempts = found.attempts
    having = np.unique(attempts["rank"][attempts["quarantined"] > 0])
    some = having[found.matched.done[having]][:BAD_SHARDS].tolist()
    return chain.from_iterable(
        islice(quarantined(found, found.plan.shard_id(rank)), MOST_BAD_ROWS // len(some)) for rank in some
    )
