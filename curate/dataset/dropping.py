"""Takes shards out of a job whose inputs were removed, with all that was made of them (`--drop-removed`).

That they are out is a part of the plan, published first; so every run after it, asked for it or not, removes what a
kill left of their outputs. Of each shard goes first the quarantine, which its output alone names, then the output, then
the extra ones: what is there of a shard tells what else there is. What curate did not write stays.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.dataset.deleting import refuse_undeletable
from curate.dataset.formats import read_record
from curate.dataset.history import RECORD_READERS, done_events
from curate.dataset.sides import sides_of_ids
from curate.dataset.spec import RunOptions, StageSpec
from curate.errors import ConfigError, CorruptInput
from curate.storage.protocol import Object
from curate.tasks import layout
from curate.tasks.ledger import Ledger
from curate.tasks.outputs import OutputListing, match
from curate.tasks.plan import Growth, Plan, removal

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Dropped:
    """Shards that are out of the job."""

    plan: Plan
    """Without them."""
    listing: OutputListing
    """Without their outputs."""
    objects: list[Object]
    """What was made of them, in the order in which it is to be removed."""
    part: Any = None
    """The part of the plan that says so; None: it is there already."""


def left_behind(spec: StageSpec, options: RunOptions, ledger: Ledger, listing: OutputListing, plan: Plan) -> Dropped:
    """Returns what is left of shards that are out of the job already: a run was killed, or a zombie wrote it since."""
    rows, records = _outputs(spec, ledger, listing, plan.removed)
    return _without(spec, options, ledger, listing, plan, rows, records)


def drop(
    spec: StageSpec, options: RunOptions, ledger: Ledger, listing: OutputListing, plan: Plan, growth: Growth
) -> Dropped:
    """Returns the job without the shards whose inputs are missing.

    Raises ConfigError where that cannot be done, or is not what was meant; where an output of such a shard was not
    written by curate; and where one may not be deleted.
    """
    gone = growth.missing
    if spec.limit is not None or spec.rows is not None:
        raise ConfigError(
            f"--drop-removed: what {ledger.root} is made of was decided from all of its inputs, the removed ones among "
            "them; make it anew with --overwrite"
        )
    if gone.all():
        raise ConfigError(
            f"--drop-removed would take all {len(plan):,} shards out of {ledger.root}: none of the inputs of earlier "
            "runs is among those of --input, which looks like another --input; check it, or remove the whole output"
        )
    part = removal(plan.table.filter(pa.array(gone)))
    rows, records = _outputs(spec, ledger, listing, part["id"])
    mine = set(rows)
    for row in _rows_named(spec, listing, part["id"]):
        if row not in mine:
            uri = ledger.uri(listing.names[row].as_py())
            raise ConfigError(
                f"--drop-removed: {uri} was not written by curate, but it has the name of an output; move it"
            )
    found = _without(spec, options, ledger, listing, plan.plus(part), rows, records)
    about = [Object(ledger.uri(layout.SUMMARY), 0, "")] if listing.summary is not None else []
    refuse_undeletable(ledger.store, [*about, *found.objects], "--drop-removed")
    return replace(found, part=part)


def _outputs(spec: StageSpec, ledger: Ledger, listing: OutputListing, ids: Any) -> tuple[list[int], list[Record]]:
    """Returns the rows of the listing that are outputs of these shards and were written by curate, the main ones first;
    and the records of the main ones."""
    mains = _rows_named(spec, listing, ids)
    sides = sides_of_ids(listing, ids, spec.suffix).tolist()

    def read(row: int) -> Record | None:
        with contextlib.suppress(CorruptInput):
            return read_record(ledger.store, listing.object(ledger.root, row), spec.format, spec.codec)
        return None

    records = _each(read, [*mains, *sides])
    rows = [row for row, record in zip([*mains, *sides], records, strict=True) if record is not None]
    return rows, [record for record in records[: len(mains)] if record is not None]


def _rows_named(spec: StageSpec, listing: OutputListing, ids: Any) -> list[int]:
    wanted = pc.binary_join_element_wise(ids, spec.suffix, "")
    found: list[int] = np.flatnonzero(pc.is_in(listing.names, value_set=wanted).to_numpy(zero_copy_only=False)).tolist()
    return found


def _without(
    spec: StageSpec,
    options: RunOptions,
    ledger: Ledger,
    listing: OutputListing,
    plan: Plan,
    rows: list[int],
    records: list[Record],
) -> Dropped:
    keep = np.ones(len(listing.names), dtype=bool)
    keep[rows] = False
    mask = pa.array(keep)
    columns = (column.filter(mask) for column in (listing.names, listing.sizes, listing.generations))
    left = replace(listing, **dict(zip(("names", "sizes", "generations"), columns, strict=True)))
    named = {record["quarantine"] for record in records if record.get("quarantine")}.intersection(listing.quarantine)
    if named and not options.allow_concurrent:  # else another driver may be about to name it; it is swept at the end
        named -= _named_by_others(spec, ledger, left, plan)
        quarantine = [ledger.store.stat(ledger.uri(name)) for name in sorted(named)]
    else:
        quarantine = []
    return Dropped(plan, left, [*quarantine, *(listing.object(ledger.root, row) for row in rows)])


def _named_by_others(spec: StageSpec, ledger: Ledger, listing: OutputListing, plan: Plan) -> set[str]:
    """Returns the files of rows set aside that outputs name which stay: two may have set the same rows aside."""
    matched = match(plan, listing, spec.suffix)
    asked = matched.done.copy()
    for rank, event in done_events(ledger, listing, plan, matched):
        asked[rank] = bool(event["rows"]["quarantined"])

    def read(rank: int) -> str | None:
        found = listing.object(ledger.root, int(matched.position[rank]))
        with contextlib.suppress(CorruptInput):
            return (read_record(ledger.store, found, spec.format, spec.codec) or {}).get("quarantine")
        return None

    return set(filter(None, _each(read, np.flatnonzero(asked).tolist())))


def _each(read: Any, rows: Sequence[int]) -> list[Any]:
    if not rows:
        return []
    with ThreadPoolExecutor(RECORD_READERS) as pool:
        return list(pool.map(read, rows))
