"""Everything before the first task: what is there, what is to be done, and every reason to refuse.

Only reads, so that a job that is refused leaves nothing behind, not even a ledger of the wrong identity.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.clock import Clock, SystemClock
from curate.driver.history import look_back, stale_outputs
from curate.driver.identity import accepted_code, job_of
from curate.driver.options import RunOptions, resolve_output
from curate.driver.removal import drop, left_behind, overwritten, refuse_links, refuse_undeletable
from curate.driver.schemas import with_input_schemas
from curate.driver.state import EXAMPLES, OutputSnapshot, PendingWrites, Prepared, Stores
from curate.errors import ConfigError
from curate.ledger import layout
from curate.ledger.fencing import FencedStore
from curate.ledger.ledger import Ledger
from curate.ledger.listing import OutputListing, OutputMatch, match_outputs
from curate.ledger.manifest import InputDiff, ShardPlan, diff_inputs
from curate.ledger.side_outputs import sides_of_shards
from curate.ledger.summary import missing_text
from curate.log import get_logger
from curate.observe.failures import failed_now
from curate.sources.listing import Inputs
from curate.sources.patterns import parse_input, refuse_overlap
from curate.sources.planning import Sharding, plan_new, replan_changed
from curate.sources.same_bytes import unchanged
from curate.sources.upstream import Hole, holes_in, refuse_holes, warn_of_holes
from curate.stage.spec import StageSpec
from curate.storage.uris import is_local
from curate.tasks.shard import SliceKind


def prepare(
    spec: StageSpec, options: RunOptions, run_id: str, clock: Clock | None = None, seen: OutputSnapshot | None = None
) -> Prepared:
    """Lists inputs and outputs once each, these if they were not `seen`, and decides what is to be done. Writes
    nothing.

    Raises ConfigError for every reason not to run that can be seen before.
    """
    if not options.inputs and spec.rows.grows and not spec.bind:
        raise ConfigError("no input was given; add --input PATH_OR_GLOB (it can be repeated)")
    if options.limit is not None and options.limit < 1:
        raise ConfigError(f"--limit {options.limit} leaves nothing to do; it is a number of shards, at least 1")
    if options.overwrite and options.retry_failed:
        raise ConfigError(
            "--overwrite removes all there is, and --retry-failed would then find nothing that failed; give one of them"
        )
    output = resolve_output(options.output)
    patterns = [parse_input(text) for text in options.inputs]
    refuse_overlap(patterns, output)
    stores = seen.stores if seen else Stores(f"{output}/{layout.TMP}{run_id}")
    owned = FencedStore(stores.of(output), output, clock or SystemClock())
    ledger = Ledger(owned, output)
    inputs = spec.rows.inputs(patterns, stores.of)
    before, listing = (seen.moment, seen.listing) if seen else (owned.moment(), ledger.list())
    owned.claim(listing.job_generation or None, before)
    run_ids = frozenset(listing.run_ids) - {run_id}
    todo = PendingWrites()
    if options.overwrite and (listing.has_job or listing.plan_parts):
        listing, todo.remove = overwritten(spec, ledger, listing)
    job = job_of(spec, ledger, listing)
    if spec.limit is not None and not listing.has_job:
        # Counting streams rows, which is much to load for the many jobs that have no limit.
        from curate.streaming.count import decide

        job["limit"] = decide(spec.limit, options.backend)
    if not listing.has_job:
        todo.job = job
    plan = ledger.read_plan(listing)
    if len(plan.removed):
        found = left_behind(spec, options, ledger, listing, plan)
        listing, todo.left = found.listing, found.objects
    if spec.limit is not None:
        spec = replace(spec, operator=spec.limit.operator(job["limit"]))
        inputs = _within(plan, inputs)
    growth = diff_inputs(plan, inputs.table)
    holes: list[Hole] = []
    dropping = options.drop_removed and bool(growth.missing.any())
    if growth.new or listing.summary is None or dropping:
        # Free for a job that is complete, and whose inputs are those that it was complete with. What is missing of
        # another job's output by mistake was not removed.
        holes = holes_in(patterns, inputs, stores.of, None if dropping else plan.table["uri"])
    if not options.allow_incomplete_input:
        refuse_holes(holes, stores.of)
    if dropping:
        found = drop(spec, options, ledger, listing, plan, growth)
        plan, listing, todo.dropped, todo.dropped_outputs = found.plan, found.listing, found.part, found.objects
        growth = diff_inputs(plan, inputs.table)
    matched = match_outputs(plan, listing, spec.suffix)
    same = unchanged(plan, inputs.table, growth, stores.of) if patterns else None
    todo.part = _grow(spec, plan, inputs, growth, matched, stores)
    if same is not None:
        todo.part = same if todo.part is None else pa.concat_tables([same, todo.part])
    if spec.limit is not None and not len(plan) and todo.part is not None:
        limit = job["limit"]
        todo.part = _up_to(todo.part, spec.rows.holder(limit["shard"], limit["rank"]))
    if todo.part is not None:
        plan = plan.plus(todo.part)
        growth, matched = diff_inputs(plan, inputs.table), match_outputs(plan, listing, spec.suffix)
    scope = _scope(plan, options, _failed(ledger, listing, plan, matched) if options.retry_failed else None)
    if options.redo_stale:
        plan = _redo_stale(spec, ledger, listing, plan, inputs, growth, matched, scope, todo)
        growth = diff_inputs(plan, inputs.table)
    history = look_back(spec, ledger, listing, plan, matched)
    matched.done[list(history.foreign)] = False
    todo.foreign = list(history.foreign.values())
    refuse_undeletable(ledger.store, todo.foreign, "making outputs of another identity again")
    todo.accepted = accepted_code(spec, options, ledger, listing, job, finished=matched.count == len(plan))
    undone = plan.table["uri"].take(scope[~matched.done[scope]]).to_pylist()
    if undone:
        spec = with_input_schemas(spec, ledger if listing.has_job else None, inputs, undone, stores)
    prepared = Prepared(
        spec=spec,
        output=output,
        run_id=run_id,
        stores=stores,
        ledger=ledger,
        listing=listing,
        inputs=inputs,
        plan=plan,
        matched=matched,
        growth=growth,
        history=history,
        scope=scope,
        owned=owned,
        run_ids=run_ids,
        uncommitted=todo,
        holes=holes,
    )
    if is_local(output) and (len(prepared.todo) or todo):
        _refuse_links(prepared)
    _warn(prepared, options)
    return prepared


def _refuse_links(prepared: Prepared) -> None:
    """Raises ConfigError if a run would write, or remove, through a link below its output."""
    output, todo = prepared.output, prepared.uncommitted
    folders = pc.unique(pc.replace_substring_regex(prepared.plan.ids, r"/?[^/]*$", "")).to_pylist()
    removed = (*(todo.remove or ()), *todo.foreign, *todo.stale, *todo.stale_sides)
    refuse_links(output, [*(f"{output}/{name}" for name in folders if name), *(item.uri for item in removed)])


def _within(plan: ShardPlan, inputs: Inputs) -> Inputs:
    """Returns the inputs that the plan has already, if there is a plan: how far a limit reaches was decided with it."""
    if not len(plan):
        return inputs
    return replace(inputs, table=inputs.table.filter(pc.is_in(inputs.table["uri"], pc.unique(plan.table["uri"]))))


def _up_to(part: Any, shard: str) -> Any:
    """Returns the rows of a new plan up to a shard; the first one, if that is no shard: there are no rows."""
    return part.slice(0, max(0, pc.index(part["id"], shard).as_py()) + 1)


def _grow(
    spec: StageSpec, plan: ShardPlan, inputs: Inputs, growth: InputDiff, matched: OutputMatch, stores: Stores
) -> Any:
    """Returns the rows to append to the plan, None if there are none: new inputs, and those replaced while undone."""
    rule = Sharding(job=spec.name, suffix=spec.suffix, shard_bytes=spec.shard_bytes, encoding=spec.rows.encoding)
    rows = [plan_new(rule, plan, inputs, growth, stores.of)] if growth.new else []
    if len(plan):
        changed = replan_changed(plan, inputs, growth, matched.done)
        rows += [changed] if changed is not None else []
        if growth.new:
            get_logger(job=spec.name).info("the plan grows", new_shards=len(rows[0]), planned_before=len(plan))
    return pa.concat_tables(rows) if rows else None


def _redo_stale(
    spec: StageSpec,
    ledger: Ledger,
    listing: OutputListing,
    plan: ShardPlan,
    inputs: Inputs,
    growth: InputDiff,
    matched: OutputMatch,
    scope: Any,
    todo: PendingWrites,
) -> ShardPlan:
    """Has the shards of stale outputs within the scope done again; returns the plan with their inputs as they are now.
    What is there stays until what is new takes its place.

    Not those of shards that are parts of an input: how that is split was decided from the old one.
    """
    chosen = np.zeros(len(plan), dtype=bool)
    chosen[scope] = True
    whole = pc.equal(plan.table["kind"], SliceKind.WHOLE.value).to_numpy()
    ranks = np.flatnonzero(chosen & whole & growth.changed & matched.done)
    if not len(ranks):
        return plan
    todo.stale = stale_outputs(spec, ledger, listing, matched, ranks)
    sides = sides_of_shards(listing, plan, spec.suffix, ranks)
    todo.stale_sides = [listing.object(ledger.root, row) for row in sides.tolist()]
    refuse_undeletable(ledger.store, [*todo.stale, *todo.stale_sides], "--redo-stale")
    matched.done[ranks] = False
    others = np.ones(len(plan), dtype=bool)
    others[ranks] = False
    todo.renewed = replan_changed(plan, inputs, growth, others)
    return plan.plus(todo.renewed)


def _failed(ledger: Ledger, listing: OutputListing, plan: ShardPlan, matched: OutputMatch) -> Any:
    """Returns one boolean a shard: it failed when it was last run, and has no output."""
    if not listing.has_job:
        raise ConfigError(
            f"--retry-failed: {ledger.root} holds no job, so nothing has failed there; run the job without it first"
        )
    return failed_now(ledger, listing, plan, matched)


def _scope(plan: ShardPlan, options: RunOptions, among: Any) -> Any:
    """Returns the ranks of the shards to see to; `among` says, one boolean a shard, which may be: None: all of them."""
    ranks = np.arange(len(plan)) if among is None else np.flatnonzero(among)
    if not len(ranks):
        return ranks
    if options.sample is not None:
        # A hash of the id: the same shards on every run, and a larger sample contains a smaller one.
        ids = plan.ids.take(pa.array(ranks)).to_pylist()
        hashes = np.array(
            [int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") for name in ids], dtype=np.uint64
        )
        chosen = hashes <= np.uint64(min(int(options.sample * 2**64), 2**64 - 1))
        if not chosen.any():
            chosen[int(hashes.argmin())] = True
        ranks = ranks[chosen]
    return ranks if options.limit is None else ranks[: options.limit]


def _warn(prepared: Prepared, options: RunOptions) -> None:
    log = get_logger(job=prepared.spec.name)
    warn_of_holes(prepared.holes, prepared.spec.name)
    if len(prepared.stale):
        log.warning(
            "inputs changed after their outputs were made; the outputs are stale and are kept",
            shards=len(prepared.stale),
            example=prepared.plan.shard_id(int(prepared.stale[0])),
            next=_next_for_stale(prepared, options),
        )
    if any(prepared.missing_inputs):
        first = int(np.flatnonzero(prepared.growth.missing)[0])
        log.warning(missing_text(*prepared.missing_inputs), example=prepared.plan.shard(first).uri)
    if prepared.matched.foreign:
        log.warning(
            "objects under the output prefix are not of this job; they are left alone",
            objects=len(prepared.matched.foreign),
            examples=prepared.matched.foreign[:EXAMPLES],
        )


def _next_for_stale(prepared: Prepared, options: RunOptions) -> str:
    if options.redo_stale:
        whole = pc.equal(prepared.plan.table["kind"].take(pa.array(prepared.stale)), SliceKind.WHOLE.value)
        if pc.any(whole).as_py():
            return (
                "this run was not asked for them: run again with --redo-stale, without --limit, --sample or "
                "--retry-failed"
            )
        return "these are parts of large inputs, which are split as the old ones were: start over with --overwrite"
    return "run again with --redo-stale to replace them"


def describe(prepared: Prepared, rivals: str = "") -> str:
    """Returns what a run would do, for `--dry-run`; `rivals` are lines about other drivers."""
    done = prepared.matched.done[prepared.scope]
    lines = [
        f"job      {prepared.spec.name}  (fingerprint {prepared.spec.fingerprint})",
        f"output   {prepared.output}",
        f"inputs   {len(prepared.inputs.table):,} objects",
        f"shards   {len(prepared.scope):,} of {len(prepared.plan):,} in the plan",
    ]
    if rivals:
        lines.append(rivals)
    if prepared.uncommitted.remove is not None:
        lines.append(f"remove   {len(prepared.uncommitted.remove):,} outputs and the ledger (--overwrite)")
    lines += [f"skip     {int(done.sum()):,}: their output exists", f"run      {int((~done).sum()):,}"]
    for rank in prepared.todo[:EXAMPLES].tolist():
        shard = prepared.plan.shard(rank)
        lines.append(f"         {shard.uri} -> {shard.id}{prepared.spec.suffix}")
    if len(prepared.todo) > EXAMPLES:
        lines.append(f"         ... and {len(prepared.todo) - EXAMPLES:,} more")
    if prepared.uncommitted.dropped is not None:
        shards, objects = len(prepared.uncommitted.dropped), len(prepared.uncommitted.dropped_outputs)
        lines.append(
            f"drop     {shards:,}: their input was removed; with {objects:,} objects made of them (--drop-removed)"
        )
    if any(prepared.missing_inputs):
        lines.append(f"missing  {missing_text(*prepared.missing_inputs)}")
    if len(prepared.stale):
        lines.append(f"stale    {len(prepared.stale):,}: their input changed; kept (--redo-stale replaces them)")
    if prepared.uncommitted.stale:
        lines.append(f"redo     {len(prepared.uncommitted.stale):,}: stale, replaced by what their input is now")
    return "\n".join(lines)
