"""Removes a whole job, or shards whose inputs were removed, with their outputs.

The plan first records that the shards are removed, so every later run removes what a kill left of them. Links are not
followed, and only files that can be made again are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.dataclass import dataclass, replace
from curate.errors import ConfigError, GenerationMismatch, ObjectNotFound
from curate.folders import nofollow
from curate.keywords import option, unconfirmed
from curate.ledger import layout
from curate.ledger.ledger import DamagedError, Ledger
from curate.ledger.listing import OutputListing, refuse_special
from curate.ledger.manifest import InputDiff, ShardPlan, removal, with_suffix
from curate.ledger.packed import PackedTable, positions
from curate.ledger.side_outputs import RECORD_SIDE, SIDES, bare, companion, side_name, sides_of_ids
from curate.objects.record import OutputFormat
from curate.objects.samples import shard_samples
from curate.resume.history import JobOutputs, each_of, our_sides, ours
from curate.resume.options import RunOptions
from curate.sources.same_bytes import keep_checksums
from curate.stage.job_record import JobRecord
from curate.stage.shard_index import own_index
from curate.storage.protocol import Object, Special, Store
from curate.storage.uris import is_local
from curate.units import format_count, shell_word
from curate.writers.writer import suffix

T = TypeVar("T")


def remove_job(
    ledger: Ledger,
    name: str,
    run_ids: Collection[str],
    outputs: Sequence[Object],
    options: RunOptions,
    kept: Collection[str] = (),
    *,
    mark: bool = False,
) -> None:
    """Removes outputs and ledger after asking, each as it was seen; not the stages of these keys.

    In an order that leaves a job that has begun, wherever it ends: `layout.removal_rank`; with a `mark` that there
    was one, for whoever finds none. Raises ConfigError if others came meanwhile.
    """
    question = f"remove {format_count(len(outputs), 'output')} and the ledger of {name!r} under {ledger.root}?"
    if not options.confirm(question):
        raise unconfirmed(question)
    own: dict[str, Object] = {}
    for item in ledger.store.list(ledger.uri(layout.LEDGER + "/")):
        called = item.uri[len(ledger.root) + 1 :]
        if isinstance(item, Special):
            refuse_special(item, called)
        if layout.stage_of(called) in kept or not layout.is_own(called):
            continue
        _refuse_begun(ledger, called, run_ids, "nothing was removed")
        own[called] = item
    if is_local(ledger.root):
        refuse_links(ledger.root, [item.uri for item in outputs])
    stays = keep_checksums(ledger, own, mark=mark)
    try:
        # A summary says that all outputs are there: it goes before them.
        summaries = [item for called, item in own.items() if not layout.removal_rank(called)]
        rest = [own[one] for one in sorted(own.keys() - stays, key=layout.removal_order) if layout.removal_rank(one)]
        outputs, sides = _parted(outputs, ledger.uri(SIDES))
        if sides:
            # Of a driver that was paused between an extra output and the main one: without a plan that one counts for
            # nothing, and both are made again.
            planned, rest = _parted(rest, ledger.uri(layout.PLAN))[::-1]
            rest = [*planned, *sides, *rest]
        for item in [*summaries, *outputs, *rest]:
            if sides and item is rest[0]:
                # Whoever began meanwhile takes them for its own where they are as they are to be, and makes main ones
                # that are gone: a shard that has its main output is done.
                _refuse_changes(ledger, own, run_ids)
            if item.uri == ledger.uri(layout.JOB):
                # Of a driver that was paused before it wrote that all is done; it writes nothing once the job is gone.
                ledger.store.delete(ledger.uri(layout.SUMMARY))
            ledger.store.delete(item.uri, item.generation)
    except GenerationMismatch as error:
        raise ConfigError(
            f"another driver is running on {ledger.root} ({error}): it began meanwhile, or had seemed dead. The rest "
            f"of its output stays. See: curate status {shell_word(ledger.root)}, and run this again when it has ended"
        ) from error


def _refuse_begun(ledger: Ledger, called: str, run_ids: Collection[str], removed: str) -> None:
    """Raises ConfigError if an object of the ledger, by its name, is of a run that is not one of these."""
    if (run_id := layout.run_of(layout.in_stage(called))) is not None and run_id not in run_ids:
        raise ConfigError(
            f"another driver began on {ledger.root} while this one waited or started (run {run_id}); {removed}. See: "
            f"curate status {shell_word(ledger.root)}, and run this again when it has ended"
        )


def _refuse_changes(ledger: Ledger, own: Mapping[str, Object], run_ids: Collection[str]) -> None:
    """Raises ConfigError if a run has begun, beaten or planned since the files of the ledger were seen as in `own`."""
    for folder in (layout.RUNS, layout.PLAN):
        for found in ledger.store.list(ledger.uri(folder)):
            called = found.uri[len(ledger.root) + 1 :]
            _refuse_begun(ledger, called, run_ids, "the rest of its output stays")
            tells = folder == layout.PLAN or called.endswith("/heartbeat.json")
            if not tells or isinstance(found, Special) or not layout.is_own(called):
                continue
            if (seen := own.get(called)) is None or seen.generation != found.generation:
                raise GenerationMismatch(f"{found.uri} was written meanwhile")


def _parted(objects: Iterable[Object], prefix: str) -> tuple[list[Object], list[Object]]:
    """Returns the objects that are not below a prefix, and those that are, in their order."""
    parts: tuple[list[Object], list[Object]] = ([], [])
    for one in objects:
        parts[one.uri.startswith(prefix)].append(one)
    return parts


def refuse_links(output: str, paths: Iterable[str] = ()) -> None:
    """Raises ConfigError if there is a link in what is curate's below a local output, or on the way to one of `paths`:
    a run would write, or remove, elsewhere."""
    own = (f"{output}/{layout.LEDGER}", f"{output}/{SIDES.rstrip('/')}")
    nofollow.refuse_links(nofollow.root_of(own[0] + "/"), own, paths)


MOST_FOLDERS = 16
"""Folders that are asked about: rights are given for prefixes, and each question is a request."""


def refuse_undeletable(store: Store, objects: Iterable[Object], why: str) -> None:
    """Raises ConfigError if one of the objects may not be deleted; asks about one in each of the first folders.

    `why` is the option that wants them removed.
    """
    asked: set[str] = set()
    for one in objects:
        folder = one.uri.rpartition("/")[0]
        if folder in asked:
            continue
        if len(asked) == MOST_FOLDERS:
            return
        asked.add(folder)
        if not store.may_delete(one.uri):
            right = "s3:DeleteObject" if one.uri.startswith("s3://") else "storage.objects.delete"
            who = f"this user may not write to {folder}" if is_local(one.uri) else f"it lacks {right} there"
            raise ConfigError(
                f"{why} would remove {one.uri}, which is not allowed: {who}; nothing was removed. Write to another "
                "output, or run this as someone who may delete there"
            )


def refuse_taken(there: JobOutputs, part: PackedTable) -> None:
    """Raises ConfigError if somebody has a file that is named as one without a record of shards that are not planned
    yet: from then on, that is curate's, and may be replaced."""
    for other in bare(there.job.suffix):
        taken = positions(with_suffix(part, other), there.listing.objects, "name")
        taken = np.sort(taken[taken >= 0])
        if len(taken):
            raise ConfigError(
                f"{there.at(taken[0]).uri} was not written by curate, but it has the name of an output "
                f"({format_count(len(taken), 'such file')}); move it, or use another output"
            )


def overwritten(job: JobRecord, ledger: Ledger, listing: OutputListing) -> tuple[OutputListing, list[Object]]:
    """Returns the listing as it will be without this job's outputs and ledger, and the outputs to remove.

    The outputs are what the plan names and curate wrote; and what says by its record that it is this job's, for the
    plan may not name it any more: a run was killed that took its shard out, or a part of the plan is gone. Whatever
    else is there is foreign and stays. Extra outputs come last: a shard that is done has all of its outputs, also if
    this is cut off and the old job goes on. Raises ConfigError if they may not be deleted.
    """
    before: dict[str, Any] = _unless_damaged(ledger.read_job, {}) if listing.has_job else {}
    if before.keys() >= {"format", "codec", "suffix"}:
        # It may be written in another format than the one that takes its place.
        format, codec = OutputFormat(before["format"]), before["codec"]
        own = before["suffix"].removesuffix(suffix(format, codec))
        job = replace(job, format=format, codec=codec, sink_suffix=own)
    there = JobOutputs(job, ledger, listing, _unless_damaged(lambda: ledger.read_plan(listing), ShardPlan.of([])))
    matched = there.matched()
    mine = ours(there, matched)
    rows = [*matched.position[mine].tolist(), *our_sides(there, mine)]
    rows += _unplanned(there, before.get("fingerprint", job.fingerprint), rows)
    if own_index(ledger, listing, job.suffix) is not None:
        # First: it names what goes.
        rows.insert(0, listing.row(layout.INDEX))
    left = OutputListing(listing.without(rows).objects)
    outputs = [listing.object(ledger.root, row) for row in rows]
    about = [Object(ledger.uri(layout.JOB), 0, listing.job_generation)] if listing.has_job else []
    refuse_undeletable(ledger.store, [*about, *outputs], option("overwrite"))
    return left, outputs


def _unless_damaged(read: Callable[[], T], instead: T) -> T:
    """Returns what a document of the ledger says; `instead` if it is damaged, which an overwrite is the remedy for."""
    try:
        return read()
    except DamagedError:
        return instead


def _unplanned(there: JobOutputs, fingerprint: str, known: Sequence[int]) -> list[int]:
    """Returns the rows of the listing, beside those that are `known`, that are outputs of the job of this fingerprint:
    their records say so, and that they are called as they are. With the other files of these; the main ones first."""
    suffix, objects = there.job.suffix, there.listing.objects
    left = np.ones(len(objects), dtype=bool)
    left[list(known)] = False
    named = np.flatnonzero(left & objects.where("name", lambda names: pc.ends_with(names, suffix))).tolist()
    records = list(each_of(lambda row: there.record(there.at(row)) or {}, named))
    shards: list[str] = []
    mains: list[int] = []
    sides: list[int] = []
    for row, record in zip(named, records, strict=True):
        if record.get("fingerprint") != fingerprint:
            continue
        shard, side = str(record.get("shard")), record.get(RECORD_SIDE)
        name = shard + suffix
        if objects.row(row, "name") == [name if side is None else side_name(str(side), name)]:
            (mains if side is None else sides).append(row)
            shards.append(shard)
    ids = pa.array(shards, pa.string())
    beside = [there.listing.rows_named(pc.binary_join_element_wise(ids, other, "")) for other in companion(suffix)]
    return [*mains, *sides, *(row for rows in beside for row in rows.tolist() if left[row])]


Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Dropped:
    """Shards that are out of the job."""

    plan: ShardPlan
    """Without them."""
    listing: OutputListing
    """Without their outputs."""
    objects: list[Object]
    """What was made of them, in the order in which it is to be removed."""
    part: Any = None
    """The part of the plan that says so; None: it is there already."""


def left_behind(there: JobOutputs, options: RunOptions) -> Dropped:
    """Returns what is left of shards that are out of the job already: a run was killed, or a zombie wrote it since."""
    if there.listing.cut_off:
        rows = _unplanned(there, there.job.fingerprint, [])
        found = Dropped(there.plan, there.listing.without(rows), [there.at(row) for row in rows])
    else:
        found = _without(there, options, there.plan.removed, *_outputs(there, there.plan.removed))
    return replace(found, objects=[*found.objects, *there_now(there.ledger, there.listing.stray_parts)])


def refuse_other_inputs(there: JobOutputs, growth: InputDiff) -> None:
    """Raises ConfigError if no input of the job is there any more: to take all out is not what was meant."""
    if growth.missing.all():
        raise ConfigError(
            f"taking out what is removed ({option('drop_removed')}) would take all {len(there.plan):,} shards out of "
            f"{there.ledger.root}: none of the inputs of earlier runs is among the inputs of this run, which look like "
            f"those of another job; check them, or make all of it anew with {option('overwrite')}"
        )


def drop(there: JobOutputs, options: RunOptions, gone: Any, why: str) -> Dropped:
    """Returns the job without shards: one boolean each says whether it is `gone`, `why` is the option that says so.

    Raises ConfigError where an output of such a shard was not written by curate, and where one may not be deleted.
    """
    ledger, listing, plan = there.ledger, there.listing, there.plan
    part = removal(plan.table.filter(gone))
    rows, records = _outputs(there, part["id"])
    mine = set(rows)
    for row in _rows_named(there, part["id"]):
        # What was removed or replaced since it was listed, another driver has in hand, which does the same.
        if row not in mine and _is_as_seen(ledger.store, there.at(row)):
            raise ConfigError(
                f"{why}: {there.at(row).uri} was not written by curate, but it has the name of an output; move it"
            )
    found = _without(replace(there, plan=plan.plus(part)), options, part["id"], rows, records)
    about = [Object(ledger.uri(layout.SUMMARY), 0, "")] if listing.summary is not None else []
    refuse_undeletable(ledger.store, [*about, *found.objects], why)
    return replace(found, part=part)


def _outputs(there: JobOutputs, ids: Any) -> tuple[list[int], list[Record]]:
    """Returns the rows of the listing that are outputs of these shards and were written by curate, the main ones first;
    and the records of the main ones."""
    mains = _rows_named(there, ids)
    sides = sides_of_ids(there.listing, ids, there.job.suffix).tolist()
    records = list(each_of(lambda row: there.record(there.at(row)), [*mains, *sides]))
    rows = [row for row, record in zip([*mains, *sides], records, strict=True) if record is not None]
    return rows, [record for record in records[: len(mains)] if record is not None]


def _is_as_seen(store: Store, seen: Object) -> bool:
    try:
        return store.stat(seen.uri).generation == seen.generation
    except ObjectNotFound:
        return False


def _rows_named(there: JobOutputs, ids: Any) -> list[int]:
    wanted = pc.binary_join_element_wise(ids, there.job.suffix, "")
    found: list[int] = there.listing.rows_named(wanted).tolist()
    return found


def _without(there: JobOutputs, options: RunOptions, ids: Any, rows: list[int], records: list[Record]) -> Dropped:
    listing, ledger = there.listing, there.ledger
    left = listing.without(rows)
    named = {record["quarantine"] for record in records if record.get("quarantine")}.intersection(listing.quarantine)
    if named and not options.concurrent:  # else another driver may be about to name it; it is swept at the end
        named -= _named_by_others(replace(there, listing=left))
    else:
        named = set()
    # They are published before the output, which may never have been.
    own = [layout.samples(shard_samples(name)) for name in ids.to_pylist()] if len(listing.samples) else []
    beside = there_now(ledger, [*sorted(named), *listing.samples_named(own)])
    return Dropped(there.plan, left, [*beside, *map(there.at, rows)])


def there_now(ledger: Ledger, names: Iterable[str]) -> Iterator[Object]:
    """Yields these files of a ledger, without those that are gone since they were listed."""
    for name in names:
        with suppress(ObjectNotFound):
            yield ledger.store.stat(ledger.uri(name))


def _named_by_others(there: JobOutputs) -> set[str]:
    """Returns the files of rows set aside that outputs name which stay: two may have set the same rows aside."""
    matched = there.matched()
    asked = matched.done.copy()
    for rank, event in there.done(matched):
        asked[rank] = bool(event["rows"]["quarantined"])

    def read(rank: int) -> str | None:
        return (there.record(there.at(matched.position[rank])) or {}).get("quarantine")

    return set(filter(None, each_of(read, np.flatnonzero(asked).tolist())))
