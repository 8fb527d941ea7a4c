"""Everything before the first task: the existing state, the work to do, and all checks.

It only reads, so a refused job leaves nothing behind, not even a ledger of the wrong identity.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from curate.clock import Clock, SystemClock
from curate.errors import ConfigError
from curate.formats.read.json_schema import in_folder
from curate.keywords import option, start_over
from curate.ledger import layout
from curate.ledger.fencing import FencedStore
from curate.ledger.ledger import Ledger
from curate.ledger.manifest import ShardPlan, diff_inputs, removal
from curate.ledger.packed import PackedTable
from curate.ledger.segments import failed_now, read_outcomes
from curate.ledger.side_outputs import side_name, sides_of_shards
from curate.ledger.summary import missing_text
from curate.log import get_logger
from curate.requests.regions import crossings, machine_region, region_of
from curate.resume.history import JobOutputs, look_back, stale_outputs
from curate.resume.identity import accepted_code, job_of
from curate.resume.options import RunOptions, no_input, resolve_output
from curate.resume.removal import (
    drop,
    left_behind,
    overwritten,
    refuse_links,
    refuse_other_inputs,
    refuse_taken,
    refuse_undeletable,
)
from curate.resume.schemas import refuse_unfitting, with_input_schemas
from curate.resume.state import EXAMPLES, OutputSnapshot, PendingWrites, Prepared
from curate.sources.listing import Inputs, refuse_own
from curate.sources.patterns import parse_input, refuse_overlap
from curate.sources.planning import Sharding, plan_new, replan_changed, split_otherwise
from curate.sources.same_bytes import unchanged
from curate.sources.upstream import list_whole, refuse_holes, refuse_remade, warn_of_holes
from curate.stage.shard_index import own_index
from curate.stage.stage import Stage
from curate.storage.uris import is_local
from curate.stores.open import Stores
from curate.tasks.shard import SliceKind
from curate.units import format_count


def prepare(
    stage: Stage,
    options: RunOptions,
    run_id: str,
    clock: Clock | None = None,
    seen: OutputSnapshot | None = None,
    work_ahead: Callable[[], None] = lambda: None,
) -> Prepared:
    """Lists inputs and outputs once each, these if they were not `seen`, and decides what is to be done. Writes
    nothing. Calls `work_ahead` once there is likely something to run.

    Raises ConfigError for every reason not to run that can be seen before.
    """
    if not options.inputs and stage.rows.grows:
        raise ConfigError(no_input())
    prepared = _look(stage, options, run_id, clock or SystemClock(), seen)
    if not prepared.matched.done.all() or prepared.growth.new.any():
        work_ahead()
    _plan_work(prepared, options)
    _check(prepared, options)
    _warn(prepared, options)
    return prepared


def _look(stage: Stage, options: RunOptions, run_id: str, clock: Clock, seen: OutputSnapshot | None) -> Prepared:
    """Returns what is there: inputs, outputs, the job and its plan, without what is to be removed of them."""
    output = resolve_output(options.output)
    refuse_place(options)
    patterns = [parse_input(text) for text in options.inputs]
    stores = seen.stores if seen else Stores(f"{output}/{layout.TMP}{run_id}")
    owned = FencedStore(stores.of(output), output, clock)
    ledger = Ledger(owned, output)
    inputs = stage.rows.inputs(patterns, stores.of)
    before, listing = (seen.moment, seen.listing) if seen else (owned.moment(), ledger.list(plan_next=True))
    owned.claim(stage.begun or listing.job_generation or None, before)
    owned.confirm_by(listing, before)
    run_ids = frozenset(listing.run_ids) - {run_id}
    todo = PendingWrites()
    if options.overwrite and (listing.has_job or listing.plan_parts):
        todo.stages = listing.stages
        listing, todo.remove = overwritten(stage.record, ledger, listing)
    last, is_new = stage.runs is None, not (seen or options.overwrite)
    job = job_of(stage.record, ledger, listing, before_last=not last, is_new=last and is_new)
    if stage.limit is not None and not listing.has_job:
        # Counting streams rows, which is much to load for the many jobs that have no limit.
        from curate.streaming.count import decide

        job["limit"] = decide(stage.limit, options.backend, stage.tasks.max_bad_rows)
    if not listing.has_job:
        todo.job = job
    plan = ledger.read_plan(listing)
    if len(plan.removed) or listing.cut_off or listing.stray_parts:
        found = left_behind(JobOutputs(stage.record, ledger, listing, plan), options)
        listing, todo.left = found.listing, found.objects
    if stage.limit is not None:
        stage = replace(stage, operator=stage.limit.operator(job["limit"]))
        inputs = _within(plan, inputs)
    return Prepared(stage, output, run_id, stores, ledger, listing, inputs, plan, job, owned, run_ids, todo)


def refuse_place(options: RunOptions) -> None:
    """Raises ConfigError for an output that lies among its inputs, and for a local one that can be no folder, for it,
    or something above it, is a file."""
    output = resolve_output(options.output)
    refuse_overlap([parse_input(text) for text in options.inputs], output)
    for path in (Path(output), *Path(output).parents) if is_local(output) else ():
        # Not as a path: that raises where there is no right to look.
        if os.path.exists(path):  # noqa: PTH110
            if not os.path.isdir(path):  # noqa: PTH112
                raise ConfigError(f"the output {output} cannot be a folder, for {path} is a file; choose another one")
            return


def _plan_work(prepared: Prepared, options: RunOptions) -> None:
    """Decides which shards there are, and which of them are to be run. Raises ConfigError for inputs that are not all
    there, and for what cannot be taken out or replaced."""
    stage, stores, todo = prepared.stage, prepared.stores, prepared.uncommitted
    patterns = [parse_input(text) for text in options.inputs]
    again = partial(stage.rows.inputs, patterns, stores.of)
    if stage.rows.grows and stage.limit is None and prepared.inputs_may_be_behind(options):
        prepared.planned(prepared.plan, again())
    if stage.rows.grows and prepared.growth.new.any():
        new = prepared.inputs.table.filter(prepared.growth.new)
        refuse_own((block[0] for block in new.batches("uri")), prepared.output)
    dropping = options.drop_removed and bool(prepared.growth.missing.any())
    first, limited = not len(prepared.plan), stage.limit is not None
    if (prepared.growth.new.any() or prepared.listing.summary is None or dropping) and (first or not limited):
        # Free for a job that is complete, and whose inputs are those that it was complete with. What is missing of
        # another job's output by mistake was not removed. A limit that was decided reads nothing beyond its plan.
        known = None if dropping else prepared.plan.table
        prepared.inputs, prepared.holes = list_whole(patterns, again, stores.of, prepared.inputs, known)
        prepared.planned(prepared.plan)
        dropping = options.drop_removed and bool(prepared.growth.missing.any())
    if not options.allow_incomplete_input:
        refuse_holes(prepared.holes, stores.of)
    if dropping:
        if limited or not stage.rows.grows:
            raise ConfigError(
                f"{option('drop_removed')}: what {prepared.output} is made of was decided from all of its inputs, the "
                f"removed ones among them; {start_over()}"
            )
        refuse_other_inputs(prepared.there, prepared.growth)
    elif stage.rows.grows:
        refuse_remade(patterns, prepared.inputs, prepared.growth, prepared.plan, stores.of, prepared.matched.done)
    if stage.rows.grows:
        same = unchanged(prepared.plan, prepared.inputs.table, prepared.growth, stores.of)
    else:
        same = _renewed(prepared) if stage.extended is not None else None
    if limited and stage.rows.grows and not first:
        _refuse_changed(prepared, options)
    anew = _split_anew(prepared, options)
    gone = anew | prepared.growth.missing if dropping else anew
    if gone.any():
        todo.split_anew = int(np.count_nonzero(anew))
        split = prepared.plan.table.take(np.flatnonzero(anew), "uri")["uri"]
        found = drop(prepared.there, options, gone, option("drop_removed" if dropping else "redo_stale"))
        prepared.listing, todo.dropped, todo.dropped_outputs = found.listing, found.part, found.objects
        prepared.planned(found.plan)
    parts = [one for one in (same, _grow(prepared)) if one is not None]
    if parts:
        todo.part = parts[0].plus(*parts[1:])
        if limited and first:
            limit = prepared.job["limit"]
            last = todo.part.find("id", stage.rows.holder(limit["shard"], limit["rank"]))
            # The first one, if that is no shard: there are no rows.
            todo.part = todo.part.filter(np.arange(len(todo.part)) <= max(0, last))
        prepared.planned(prepared.plan.plus(todo.part))
    among = _failed(prepared) if options.retry_failed else None
    if among is not None and todo.split_anew:
        # What takes the places of shards of which none was done.
        among |= prepared.plan.table.where("uri", lambda uris: pc.is_in(uris, value_set=split))
    prepared.scope = _scope(prepared.plan, options, among)
    if options.redo_stale or options.retry_failed:
        # What failed and has an output was to take its place.
        _redo_stale(prepared, options)


def _check(prepared: Prepared, options: RunOptions) -> None:
    """Looks at what earlier runs have done, and into the inputs of what is left to do, for reasons not to run."""
    ledger, listing, todo = prepared.ledger, prepared.listing, prepared.uncommitted
    plan, matched = prepared.plan, prepared.matched
    prepared.history = look_back(prepared.there, matched)
    matched.done[list(prepared.history.foreign)] = False
    todo.foreign = list(prepared.history.foreign.values())
    refuse_undeletable(ledger.store, todo.foreign, "making outputs of another identity, or input, again")
    own_index(ledger, listing, prepared.record.suffix)
    done, idle = int(matched.count), not len(prepared.todo)
    todo.accepted = accepted_code(prepared.record, options, ledger, listing, prepared.job, done=done, idle=idle)
    if len(prepared.todo):
        undone = (uri for block in plan.blocks(prepared.todo, "uri") for uri in block["uri"].to_pylist())
        known = ledger if listing.has_job else None
        prepared.stage = with_input_schemas(prepared.stage, known, prepared.inputs, undone, prepared.stores)
        try:
            refuse_unfitting(prepared.stage)
        except ConfigError as error:
            first = prepared.plan.shard(int(prepared.todo[0])).uri
            raise ConfigError.of_column(f"{error}{in_folder(first, error.column)}", error.column) from error
        if known is None:
            prepared.stage.rows.warn_of_misfits(prepared.inputs.table)
    if is_local(prepared.output) and (len(prepared.todo) or todo):
        _refuse_links(prepared)


def _refuse_links(prepared: Prepared) -> None:
    """Raises ConfigError if a run would write, or remove, through a link below its output."""
    output, todo = prepared.output, prepared.uncommitted
    folders: dict[str, None] = {}
    for block in prepared.plan.table.batches("id"):
        folders |= dict.fromkeys(pc.unique(pc.replace_substring_regex(block[0], r"/?[^/]*$", "")).to_pylist())
    removed = (*(todo.remove or ()), *todo.foreign, *todo.stale, *todo.stale_sides)
    refuse_links(output, [*(f"{output}/{name}" for name in folders if name), *(item.uri for item in removed)])


def _within(plan: ShardPlan, inputs: Inputs) -> Inputs:
    """Returns the inputs that the plan has already, if there is a plan: how far a limit reaches was decided with it.
    Warns of new ones before the last of these."""
    if not len(plan):
        return inputs
    new = diff_inputs(plan, inputs.table).new
    before = int(new[: np.flatnonzero(~new).max(initial=0)].sum())
    if before:
        get_logger().warning(
            "new inputs are not read: which rows the limit takes was decided without them",
            inputs=before,
            next=start_over(),
        )
    return replace(inputs, table=inputs.table.filter(~new))


def _refuse_changed(prepared: Prepared, options: RunOptions) -> None:
    """Raises ConfigError if inputs of a job with a limit changed that are to be read, or read again: with other rows
    of these, the limit would reach less far, or further, than the plan."""
    changed = prepared.growth.changed
    if not options.redo_stale:
        changed = changed & ~prepared.matched.done
    if changed.any():
        first = prepared.plan.shard(int(np.flatnonzero(changed)[0]))
        raise ConfigError(
            f"how far the limit of {prepared.output} reaches was decided from its inputs as they were, and {first.uri} "
            f"changed since; {start_over()}"
        )


def _split_anew(prepared: Prepared, options: RunOptions) -> Any:
    """Returns one boolean a shard: it is, or is to be, a part of an input that changed, which is split anew: because
    nothing was made of it yet, or because that is asked for. Else outputs of two versions of it would be there."""
    plan, done = prepared.plan, prepared.matched.done
    if prepared.stage.limit is not None or not prepared.stage.rows.grows or not prepared.growth.changed.any():
        return np.zeros(len(plan), dtype=bool)
    found = split_otherwise(_rule(prepared), plan, prepared.inputs, prepared.growth, prepared.stores.of)
    if not options.redo_stale or options.restricted_by:
        kept = plan.table.take(np.flatnonzero(found & done), "uri")["uri"]
        prepared.uncommitted.not_split = kept
        found &= ~plan.table.where("uri", lambda uris: pc.is_in(uris, value_set=kept))
    return found


def _rule(prepared: Prepared) -> Sharding:
    job, stage = prepared.record, prepared.stage
    folders = tuple(side_name(side, "") for side in job.sides)
    return Sharding(job.name, prepared.output, job.suffix, stage.tasks.shard_bytes, stage.rows.encoding, folders)


def _grow(prepared: Prepared) -> PackedTable | None:
    """Returns the rows to append to the plan, None if there are none: new inputs, and those replaced while undone."""
    job, plan, inputs, growth = prepared.record, prepared.plan, prepared.inputs, prepared.growth
    rows = [plan_new(_rule(prepared), plan, inputs, growth, prepared.stores.of)] if growth.new.any() else []
    if len(plan):
        changed = replan_changed(plan, inputs, growth, prepared.matched.done)
        rows += [removal(changed), changed] if changed is not None else []
        if growth.new.any():
            what = "parts of changed inputs planned anew" if prepared.uncommitted.split_anew else "new inputs found"
            get_logger(job=job.name).info(what, shards_added=len(rows[0]), shards_before=len(plan))
    if growth.new.any():
        refuse_taken(prepared.there, rows[0])
    return rows[0].plus(*rows[1:]) if rows else None


def _renewed(prepared: Prepared) -> PackedTable | None:
    """Returns rows of the plan with the generations that inputs have now, None if all have theirs. Their bytes are the
    same: a job with an exchange has taken no others (see `curate.graph.start`)."""
    others = ~(prepared.growth.changed & prepared.matched.done)
    return None if others.all() else replan_changed(prepared.plan, prepared.inputs, prepared.growth, others)


def _redo_stale(prepared: Prepared, options: RunOptions) -> None:
    """Has the shards of stale outputs within the scope done again, with their inputs as they are now. What is there
    stays until what is new takes its place. Raises ConfigError for one of several parts: drivers take an output that is
    there for one that another driver has made.

    Not those of shards that are parts of an input, which is split anew: see `_split_anew`.
    """
    plan, listing, todo, done = prepared.plan, prepared.listing, prepared.uncommitted, prepared.matched.done
    chosen = np.zeros(len(plan), dtype=bool)
    chosen[prepared.scope] = True
    whole = plan.table.where("kind", lambda kinds: pc.equal(kinds, SliceKind.WHOLE.value))
    whole &= ~plan.table.where("uri", lambda uris: pc.is_in(uris, value_set=todo.not_split))
    ranks = np.flatnonzero(chosen & whole & prepared.growth.changed & done)
    if not len(ranks):
        return
    if options.part is not None:
        raise ConfigError(
            f"{option('part', str(options.part))} makes outputs beside other drivers, and {len(ranks):,} of the shards "
            f"that failed would replace an output that is out of date, such as {plan.shard_id(int(ranks[0]))!r}: run "
            f"once without {option('part', ...)}, then start the parts"
        )
    todo.stale = stale_outputs(prepared.there, prepared.matched, ranks)
    sides = sides_of_shards(listing, plan, prepared.record.suffix, ranks)
    todo.stale_sides = [listing.object(prepared.ledger.root, row) for row in sides.tolist()]
    refuse_undeletable(prepared.ledger.store, [*todo.stale, *todo.stale_sides], option("redo_stale"))
    others = np.ones(len(plan), dtype=bool)
    others[ranks] = False
    todo.renewed = replan_changed(plan, prepared.inputs, prepared.growth, others)
    prepared.planned(plan.plus(todo.renewed))
    prepared.matched.done[ranks] = False


def _failed(prepared: Prepared) -> Any:
    """Returns one boolean a shard: it failed when it was last run, and has no output."""
    if not prepared.listing.has_job:
        raise ConfigError(
            f"{option('retry_failed')}: {prepared.output} has no curate job, so nothing has failed there; run the job "
            "without it first"
        )
    outcomes = read_outcomes(prepared.ledger, prepared.listing, prepared.plan)
    return failed_now(outcomes, prepared.listing, prepared.matched)


def _scope(plan: ShardPlan, options: RunOptions, among: Any) -> Any:
    """Returns the ranks of the shards to see to; `among` says, one boolean a shard, which may be: None: all of them."""
    ranks = (np.arange(len(plan)) if among is None else np.flatnonzero(among)).astype(np.int32)
    if not len(ranks):
        return ranks
    if options.sample is not None:
        # A hash of the id: the same shards on every run, and a larger sample contains a smaller one.
        names = (name for block in plan.blocks(ranks, "id") for name in block[0].to_pylist())
        hashed = (int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") for name in names)
        hashes = np.fromiter(hashed, dtype=np.uint64, count=len(ranks))
        chosen = hashes <= np.uint64(min(int(options.sample * 2**64), 2**64 - 1))
        if not chosen.any():
            chosen[int(hashes.argmin())] = True
        ranks = ranks[chosen]
    return ranks if options.limit is None else ranks[: options.limit]


def _warn(prepared: Prepared, options: RunOptions) -> None:
    log = get_logger(job=prepared.record.name)
    warn_of_holes(prepared.holes, prepared.record.name)
    if len(prepared.stale):
        log.warning(
            "inputs changed since they were processed; their outputs are out of date and are kept",
            shards=len(prepared.stale),
            example=prepared.plan.shard_id(int(prepared.stale[0])),
            next=_next_for_stale(prepared, options),
        )
    if any(prepared.missing_inputs):
        first = int(np.flatnonzero(prepared.growth.missing)[0])
        log.warning(missing_text(*prepared.missing_inputs), example=prepared.plan.shard(first).uri)
    for line in _crossings(prepared) if len(prepared.todo) else ():
        log.warning(line, next="bytes that leave a region are paid for: run where the data is, or change the output")
    if prepared.matched.foreign:
        log.warning(
            "objects under the output prefix are not of this job; they are left alone",
            objects=len(prepared.matched.foreign),
            examples=prepared.matched.foreign[:EXAMPLES],
        )


def _crossings(prepared: Prepared) -> list[str]:
    """Returns what this run would move between regions, as far as it is known where things are."""
    read_bytes: dict[str, int] = {}
    for block in prepared.plan.blocks(prepared.todo, "uri", "size_bytes"):
        for uri, size in zip(block["uri"].to_pylist(), block["size_bytes"].to_pylist(), strict=True):
            if not is_local(uri):
                bucket = "/".join(uri.split("/", 3)[:3])
                read_bytes[bucket] = read_bytes.get(bucket, 0) + size
    output = "/".join(prepared.output.split("/", 3)[:3])
    places = read_bytes if is_local(prepared.output) else {**read_bytes, output: 0}
    found = {bucket: region_of(bucket, prepared.stores.of(bucket)) for bucket in places}
    return crossings(read_bytes, output, found, machine_region() if any(found.values()) else "")


def _next_for_stale(prepared: Prepared, options: RunOptions) -> str:
    if prepared.stage.limit is not None:
        return f"how far the limit reaches was decided from the inputs as they were; {start_over()}"
    if options.redo_stale:
        return (
            f"this run was not asked for them: run again with {option('redo_stale')}, without "
            f"{option('limit', ...)}, {option('sample', ...)} or {option('retry_failed')}"
        )
    return f"run again with {option('redo_stale')} to replace them"


def describe(prepared: Prepared, rivals: str = "", part: str = "") -> str:
    """Returns what a run would do, for `--dry-run`; `rivals` are lines about other drivers, `part` is of this one."""
    done = prepared.matched.done[prepared.scope]
    lines = [
        f"job      {prepared.record.name}  (fingerprint {prepared.record.fingerprint})",
        f"output   {prepared.output}",
        f"inputs   {format_count(len(prepared.inputs.table), 'object')}",
        f"shards   {len(prepared.scope):,} of {len(prepared.plan):,} in the plan",
        rivals,
    ]
    if prepared.uncommitted.remove is not None:
        removed = format_count(len(prepared.uncommitted.remove), "output")
        lines.append(f"remove   {removed} and the ledger ({option('overwrite')})")
    lines += [f"skip     {int(done.sum()):,}: their output exists", f"run      {int((~done).sum()):,}", part]
    for rank in prepared.todo[:EXAMPLES].tolist():
        shard = prepared.plan.shard(rank)
        lines.append(f"         {shard.uri} -> {shard.id}{prepared.record.suffix}")
    if len(prepared.todo) > EXAMPLES:
        lines.append(f"         ... and {len(prepared.todo) - EXAMPLES:,} more")
    todo = prepared.uncommitted
    dropped = format_count(len(todo.dropped_outputs), "object")
    if todo.removed_inputs:
        lines.append(
            f"drop     {todo.removed_inputs:,}: their input is no longer given; removed with them: {dropped} "
            f"({option('drop_removed')})"
        )
    if todo.split_anew:
        lines.append(f"split    {todo.split_anew:,} parts of inputs that changed are planned anew; removed: {dropped}")
    if any(prepared.missing_inputs):
        lines.append(f"missing  {missing_text(*prepared.missing_inputs)}")
    if len(prepared.stale):
        lines.append(
            f"stale    {len(prepared.stale):,}: out of date, their input changed; kept "
            f"({option('redo_stale' if prepared.stage.limit is None else 'overwrite')} replaces them)"
        )
    if prepared.uncommitted.stale:
        lines.append(f"redo     {len(prepared.uncommitted.stale):,}: stale, replaced by what their input is now")
    return "\n".join(filter(None, lines))
