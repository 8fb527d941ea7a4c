"""Checks whether replaced inputs have the same bytes as before: outputs of another job that were made again.

A listing tells generations, which are times where files are local. What it does not tell, the job says that wrote the
objects: the event of each output has its generation and the checksum of its bytes, which an overwrite keeps of what it
removes. One that was lost or removed, and is made again, is another object of the same bytes, and nothing that was made
of it is out of date. Where nothing says it (an input that no job wrote, a run that was killed before it wrote its last
events), an input has changed.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.dataclass import dataclass
from curate.errors import ConfigError, ObjectNotFound, StorageError
from curate.ledger import layout, validation
from curate.ledger.ledger import Ledger
from curate.ledger.listing import sort_listing
from curate.ledger.manifest import SCHEMA, InputDiff, ShardPlan
from curate.ledger.packed import PackedTable
from curate.ledger.segments import Segments
from curate.log import get_logger
from curate.sources.listing import ledger_above
from curate.storage.protocol import Store


@dataclass(frozen=True, slots=True)
class Change:
    """An object that is another one now, of the same size."""

    uri: str
    before: str
    """Generation of the old one."""
    now: str
    """Generation of the new one."""


def same_bytes(changes: Iterable[Change], store_of: Callable[[str], Store]) -> set[str]:
    """Returns the URIs of those whose bytes are the same. Reads the events of the jobs that wrote them, once each."""
    by_root: dict[str, list[Change]] = defaultdict(list)
    roots: dict[str, str] = {}
    for one in changes:
        folder = one.uri.rpartition("/")[0]
        if folder not in roots:
            roots[folder] = ledger_above(folder, store_of(folder))
        if root := roots[folder]:
            by_root[root].append(one)
    return {uri for root, some in by_root.items() for uri in _same(Ledger(store_of(root), root), some)}


def _same(ledger: Ledger, changes: Iterable[Change]) -> Iterable[str]:
    try:
        suffix = ledger.read_job()["suffix"]
    except (ObjectNotFound, ConfigError):
        return
    asked = {one.uri[len(ledger.root) + 1 :].removesuffix(suffix): one for one in changes}
    sums: dict[tuple[str, str], str] = {}
    names = [one.uri[len(ledger.root) + 1 :] for one in ledger.store.list(ledger.uri(layout.REPLACED))]
    for line in ledger.events(name for name in names if layout.replaced_number(name) is not None):
        if line.get("shard") in asked:
            sums[line["shard"], line.get("generation", "")] = line.get("checksum", "")
    segments = sort_listing(ledger.store.list(ledger.uri(layout.RUNS)), ledger.root).segments
    for event in ledger.events(segments):
        if validation.done(event) and event.get("shard") in asked and event.get("checksum"):
            sums[event["shard"], event["generation"]] = event["checksum"]
    for shard, one in asked.items():
        before, now = sums.get((shard, one.before)), sums.get((shard, one.now))
        if before and before == now:
            yield one.uri


KEPT_OVERWRITES = 16
"""Overwrites of which checksums are kept: whatever reads a job is run before that one was overwritten as often."""


def keep_checksums(ledger: Ledger, names: Collection[str], *, mark: bool) -> set[str]:
    """Writes down which bytes the outputs of a job are, which is about to be removed with its events: what takes their
    places may be the same. `names` are those of its ledger; returns those of them that are to stay.

    `mark`: also if nothing is known of any, for it says that a job was here: see `recovered` in `driver.history`.
    Without room on the disk it goes on, with a warning, as to remove may be what makes room; a mark takes hardly any.
    """
    before = {name: number for name in names if (number := layout.replaced_number(name)) is not None}
    last = max(before.values(), default=0)

    def segments() -> Segments:
        return Segments(ledger, lambda number: layout.replaced_segment(last + 1, number))

    kept = segments()
    told = ("shard", "generation", "checksum")
    if mark:
        kept.add({})
    try:
        for event in ledger.events(filter(layout.is_events_segment, names), lambda line: b'"outcome":"done"' in line):
            if validation.done(event) and event.get("checksum") and kept.add({name: event[name] for name in told}):
                kept.write(lambda: None)
        kept.seal()
        kept.write(lambda: None)
    except StorageError as error:
        get_logger().warning(
            "cannot write down which bytes the removed outputs were: what reads them will be said to be out of date",
            output=ledger.root,
            error=str(error),
        )
        if mark:
            only_mark = segments()
            with contextlib.suppress(StorageError):
                only_mark.add({})
                only_mark.seal()
                only_mark.write(lambda: None)
    return {name for name, number in before.items() if number > last + 1 - KEPT_OVERWRITES}


def unchanged(
    plan: ShardPlan, inputs: PackedTable, growth: InputDiff, store_of: Callable[[str], Store]
) -> PackedTable | None:
    """Returns the rows of a plan with the new generations of their inputs whose bytes are the same; None if there are
    none. They count as unchanged in `growth` then."""
    ranks = np.flatnonzero(growth.changed)
    if not len(ranks):
        return None
    rows = plan.table.take(ranks)
    listed = inputs.take(growth.position[ranks])
    of_size = pc.equal(rows["object_bytes"], listed["size"]).to_pylist()
    told = zip(rows["uri"].to_pylist(), rows["generation"].to_pylist(), listed["generation"].to_pylist(), strict=True)
    same = same_bytes((Change(*one) for one, equal in zip(told, of_size, strict=True) if equal), store_of)
    if not same:
        return None
    mask = pc.is_in(rows["uri"], value_set=pa.array(sorted(same), pa.string()))
    growth.changed[ranks[mask.to_numpy()]] = False
    renewed = rows.set_column(SCHEMA.get_field_index("generation"), SCHEMA.field("generation"), listed["generation"])
    return PackedTable.of(renewed.filter(mask))
