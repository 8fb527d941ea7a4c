"""Everything before the first task: what is there, what is to be done, and every reason to refuse.

Only reads, so that a job that is refused leaves nothing behind, not even a ledger of the wrong identity.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.clock import Clock, SystemClock
from curate.dataset.commit import Uncommitted, refuse_links, refuse_other_job
from curate.dataset.deleting import refuse_undeletable
from curate.dataset.dropping import drop, left_behind
from curate.dataset.failures import failed_now
from curate.dataset.formats import SAMPLED_FILES, Format, OutputFormat, detect, sample_schema
from curate.dataset.history import History, look_back, our_sides, ours, stale_outputs
from curate.dataset.inputs import Inputs, list_inputs, refuse_overlap, understand
from curate.dataset.ownership import OwnedStore
from curate.dataset.planning import Sharding, plan_new, replan_changed
from curate.dataset.same_bytes import unchanged
from curate.dataset.sides import sides_of_shards
from curate.dataset.spec import RunOptions, StageSpec
from curate.dataset.upstream import Hole, holes_in, refuse_holes, warn_of_holes
from curate.errors import ConfigError, CorruptInput
from curate.log import get_logger
from curate.storage import is_local, normalise, open_store
from curate.storage.protocol import Calls, Object, Store
from curate.tasks import layout
from curate.tasks.ledger import Ledger
from curate.tasks.outputs import Matched, OutputListing, match
from curate.tasks.plan import Growth, Plan, compare
from curate.tasks.shard import SliceKind
from curate.tasks.summary import told_missing

EXAMPLES = 5
"""How many names a message shows of a longer list."""


class Stores:
    """One store a scheme, shared by everything a driver does, so that its calls can be counted."""

    def __init__(self, scratch: str) -> None:
        self.scratch = scratch
        self._stores: dict[str, Store] = {}

    def of(self, uri: str) -> Store:
        """Returns the store that `uri` lives in."""
        scheme = uri.partition("://")[0] if "://" in uri else ""
        if scheme not in self._stores:
            self._stores[scheme] = open_store(uri, scratch=self.scratch)
        return self._stores[scheme]

    @property
    def calls(self) -> Calls:
        """Returns the calls of all stores."""
        total = Calls()
        for store in self._stores.values():
            total = total.plus(store.calls)
        return total


@dataclass(frozen=True, slots=True)
class Seen:
    """A listing of an output that was just made."""

    moment: tuple[float, float]
    """Before it was: a `moment` of an `OwnedStore`."""
    listing: OutputListing
    stores: Stores
    """Those that it was made with, whose calls are to be counted."""


class WorkLeftError(Exception):
    """Something is to be done after all."""


@dataclass
class Prepared:
    """A run that may start: what is there and what is left to do."""

    spec: StageSpec
    output: str
    run_id: str
    stores: Stores
    ledger: Ledger
    listing: OutputListing
    inputs: Inputs
    plan: Plan
    matched: Matched
    growth: Growth
    history: History
    scope: Any
    """Ranks of the shards that this run was asked for, in plan order."""
    schemas: dict[str, Any]
    """Schema of the rows, by input format; empty if there is nothing to read."""
    owned: OwnedStore
    """The store of the ledger."""
    run_ids: frozenset[str]
    """Runs that the output knew before this one."""
    uncommitted: Uncommitted = field(default_factory=Uncommitted)
    holes: Sequence[Hole] = ()
    """What was missing of the inputs, which may be incomplete."""

    @cached_property
    def over(self) -> dict[str, str]:
        """Generations of the outputs that new ones take the places of, by URI."""
        return {one.uri: one.generation for one in (*self.uncommitted.stale, *self.uncommitted.stale_sides)}

    @property
    def incomplete_input(self) -> tuple[Mapping[str, Any], ...]:
        """What was missing of the inputs, as the record of the run says it."""
        if self.history.summarised:
            return self.history.incomplete_input
        return tuple(one.as_dict() for one in self.holes) or self.spec.holes

    @property
    def missing_inputs(self) -> tuple[int, int]:
        """How many inputs of earlier runs are not among those of this one, and their shards."""
        missing = self.growth.missing
        if not missing.any():
            return 0, 0
        gone = self.plan.table["uri"].filter(pa.array(missing))
        return pc.count_distinct(gone).as_py(), len(gone)

    @property
    def todo(self) -> Any:
        """Ranks of the shards to run."""
        return self.scope[~self.matched.done[self.scope]]

    @property
    def has_work(self) -> bool:
        """Whether there is something to do or to remove; then another driver at work is in its way."""
        return bool(len(self.todo) or self.uncommitted)

    @property
    def stale(self) -> Any:
        """Ranks of done shards whose input is another object now."""
        return np.flatnonzero(self.growth.changed & self.matched.done)


def resolve_output(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Returns the output prefix as an absolute URI. Raises ConfigError for a relative one where that would be lost."""
    local = "://" not in text
    if local and not text.startswith("/") and "RAY_JOB_CONFIG_JSON_ENV_VAR" in environ:
        raise ConfigError(
            f"output {text!r} is relative, and this runs under `ray job submit`: it would be written into an unpacked "
            "copy of the working directory and vanish with it; give an absolute path on shared storage, or gs://..."
        )
    return normalise(text).rstrip("/")


def prepare(
    spec: StageSpec, options: RunOptions, run_id: str, clock: Clock | None = None, seen: Seen | None = None
) -> Prepared:
    """Lists inputs and outputs once each, these if they were not `seen`, and decides what is to be done. Writes
    nothing.

    Raises ConfigError for every reason not to run that can be seen before.
    """
    if not options.inputs and spec.rows is None and not spec.bind:
        raise ConfigError("no input was given; add --input PATH_OR_GLOB (it can be repeated)")
    if options.limit is not None and options.limit < 1:
        raise ConfigError(f"--limit {options.limit} leaves nothing to do; it is a number of shards, at least 1")
    if options.overwrite and options.retry_failed:
        raise ConfigError(
            "--overwrite removes all there is, and --retry-failed would then find nothing that failed; give one of them"
        )
    output = resolve_output(options.output)
    patterns = [understand(text) for text in options.inputs]
    refuse_overlap(patterns, output)
    stores = seen.stores if seen else Stores(f"{output}/{layout.TMP}{run_id}")
    owned = OwnedStore(stores.of(output), output, clock or SystemClock())
    ledger = Ledger(owned, output)
    inputs = list_inputs(patterns, stores.of) if spec.rows is None else Inputs(spec.rows.inputs())
    before, listing = (seen.moment, seen.listing) if seen else (owned.moment(), ledger.list())
    owned.claim(listing.job_generation or None, before)
    run_ids = frozenset(listing.run_ids) - {run_id}
    todo = Uncommitted()
    if options.overwrite and (listing.has_job or listing.plan_parts):
        listing, todo.remove = overwritten(spec, ledger, listing)
    job = job_of(spec, ledger, listing)
    if spec.limit is not None and not listing.has_job:
        # Counting streams rows, which is much to load for the many jobs that have no limit.
        from curate.dataset.lazy.quota import decide

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
    growth = compare(plan, inputs.table)
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
        growth = compare(plan, inputs.table)
    matched = match(plan, listing, spec.suffix)
    same = unchanged(plan, inputs.table, growth, stores.of) if patterns else None
    todo.part = _grow(spec, plan, inputs, growth, matched, stores)
    if same is not None:
        todo.part = same if todo.part is None else pa.concat_tables([same, todo.part])
    if spec.limit is not None and not len(plan) and todo.part is not None:
        limit = job["limit"]
        todo.part = _up_to(todo.part, limit["shard"] if spec.rows is None else spec.rows.holder(limit["rank"]))
    if todo.part is not None:
        plan = plan.plus(todo.part)
        growth, matched = compare(plan, inputs.table), match(plan, listing, spec.suffix)
    scope = _scope(plan, options, _failed(ledger, listing, plan, matched) if options.retry_failed else None)
    if options.redo_stale:
        plan = _redo_stale(spec, ledger, listing, plan, inputs, growth, matched, scope, todo)
        growth = compare(plan, inputs.table)
    history = look_back(spec, ledger, listing, plan, matched)
    matched.done[list(history.foreign)] = False
    todo.foreign = list(history.foreign.values())
    refuse_undeletable(ledger.store, todo.foreign, "making outputs of another identity again")
    todo.accepted = _accepted_code(spec, options, ledger, listing, job, finished=matched.count == len(plan))
    undone = plan.table["uri"].take(scope[~matched.done[scope]]).to_pylist()
    schemas = input_schemas(spec, ledger if listing.has_job else None, inputs, undone, stores)
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
        schemas=schemas,
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


def _within(plan: Plan, inputs: Inputs) -> Inputs:
    """Returns the inputs that the plan has already, if there is a plan: how far a limit reaches was decided with it."""
    if not len(plan):
        return inputs
    return replace(inputs, table=inputs.table.filter(pc.is_in(inputs.table["uri"], pc.unique(plan.table["uri"]))))


def _up_to(part: Any, shard: str) -> Any:
    """Returns the rows of a new plan up to a shard; the first one, if that is no shard: there are no rows."""
    return part.slice(0, max(0, pc.index(part["id"], shard).as_py()) + 1)


def job_of(spec: StageSpec, ledger: Ledger, listing: OutputListing) -> dict[str, Any]:
    """Returns `job.json`: as it is there, refused if it is another job's, or as it is to be."""
    if listing.has_job:
        job = ledger.read_job()
        refuse_other_job(spec, ledger, job)
        return job
    if listing.plan_parts:
        raise ConfigError(
            f"{ledger.uri(layout.PLAN)} holds a plan, but {ledger.uri(layout.JOB)} is missing; the ledger was "
            "damaged from outside: choose another --output, or remove this one"
        )
    return {
        "format_version": layout.FORMAT_VERSION,
        "job": spec.name,
        "fingerprint": spec.fingerprint,
        "identity": dict(spec.identity),
        "parameters": dict(spec.parameters),
        "sides": sorted(spec.sides),
        "code_digest": spec.code_digest,
        "format": spec.format.value,
        "codec": spec.codec,
        "suffix": spec.suffix,
    }


def _accepted_code(
    spec: StageSpec,
    options: RunOptions,
    ledger: Ledger,
    listing: OutputListing,
    job: Mapping[str, Any],
    *,
    finished: bool,
) -> str:
    """Guards a job of declared version: its code may not change under it while it is unfinished.

    Returns the digest that this run accepts and the ledger does not know yet.
    """
    recorded = job["code_digest"]
    if not recorded or recorded == spec.code_digest or spec.code_digest in listing.accepted:
        return ""
    if finished:
        get_logger(job=spec.name).warning(
            "the job's code changed under the same version; its outputs are those of the old code",
            output=ledger.root,
            next="raise `version` and run with another --output or --overwrite if the change matters",
        )
        return ""
    if not options.accept_code_change:
        raise ConfigError(
            f"the code of {spec.name!r} changed (digest {recorded} there, {spec.code_digest} here), but not its "
            f"version, and {ledger.root} is unfinished: the outputs to come may not fit those that are there. "
            "Go on with --accept-code-change, or raise `version` and start over with --overwrite."
        )
    return spec.code_digest


def _grow(spec: StageSpec, plan: Plan, inputs: Inputs, growth: Growth, matched: Matched, stores: Stores) -> Any:
    """Returns the rows to append to the plan, None if there are none: new inputs, and those replaced while undone."""
    rule = Sharding(
        job=spec.name,
        suffix=spec.suffix,
        shard_bytes=spec.shard_bytes,
        how=spec.how,
        undivided=spec.operator.reads_files or spec.rows is not None,
    )
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
    plan: Plan,
    inputs: Inputs,
    growth: Growth,
    matched: Matched,
    scope: Any,
    todo: Uncommitted,
) -> Plan:
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


def _failed(ledger: Ledger, listing: OutputListing, plan: Plan, matched: Matched) -> Any:
    """Returns one boolean a shard: it failed when it was last run, and has no output."""
    if not listing.has_job:
        raise ConfigError(
            f"--retry-failed: {ledger.root} holds no job, so nothing has failed there; run the job without it first"
        )
    return failed_now(ledger, listing, plan, matched)


def _scope(plan: Plan, options: RunOptions, among: Any) -> Any:
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


def overwritten(spec: StageSpec, ledger: Ledger, listing: OutputListing) -> tuple[OutputListing, list[Object]]:
    """Returns the listing as it will be without this job's outputs and ledger, and the outputs to remove.

    The outputs are what the plan names and curate wrote; whatever else is there is foreign and stays. Extra outputs
    come last: a shard that is done has all of its outputs, also if this is cut off and the old job goes on. Raises
    ConfigError if they may not be deleted.
    """
    job = ledger.read_job() if listing.has_job else {"format": spec.format, "codec": spec.codec, "suffix": spec.suffix}
    plan = ledger.read_plan(listing)
    matched = match(plan, listing, job["suffix"])
    written_as = OutputFormat(job["format"]), job["codec"]
    mine = ours(ledger, listing, plan, matched, *written_as)
    rows = [*matched.position[mine].tolist(), *our_sides(ledger, listing, plan, mine, job["suffix"], *written_as)]
    keep = np.ones(len(listing.names), dtype=bool)
    keep[rows] = False
    mask = pa.array(keep)
    left = OutputListing(listing.names.filter(mask), listing.sizes.filter(mask), listing.generations.filter(mask))
    outputs = [listing.object(ledger.root, row) for row in rows]
    about = [Object(ledger.uri(layout.JOB), 0, listing.job_generation)] if listing.has_job else []
    refuse_undeletable(ledger.store, [*about, *outputs], "--overwrite")
    return left, outputs


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
        log.warning(told_missing(*prepared.missing_inputs), example=prepared.plan.shard(first).uri)
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


def input_schemas(
    spec: StageSpec, ledger: Ledger | None, inputs: Inputs, undone: list[str], stores: Stores
) -> dict[str, Any]:
    """Returns the schema of the rows of each format in `undone`: as stored, else sampled from the first such inputs.

    Raises ConfigError for a missing column.
    """
    if spec.operator.reads_files or not undone:
        return {}
    if spec.rows is not None:
        return {"rows": spec.rows.schema}
    # A planned input may be gone, and be the last of its format: its shard has to fail for that and nothing else.
    by_format: dict[Format, list[int]] = {detect(uri, spec.how).format: [] for uri in undone}
    for row, (uri, size) in enumerate(zip(*(inputs.table[name].to_pylist() for name in ("uri", "size")), strict=True)):
        rows = by_format.get(detect(uri, spec.how).format)
        if rows is not None and size and len(rows) < SAMPLED_FILES:
            rows.append(row)
    schemas: dict[str, Any] = {}
    for format, rows in by_format.items():
        schema = None if ledger is None else ledger.read_schema(f"input-{format.value}")
        schemas[format.value] = _sample(spec, inputs, stores, rows) if schema is None else schema
    return schemas


def _sample(spec: StageSpec, inputs: Inputs, stores: Stores, rows: list[int]) -> Any:
    """Returns the schema of the first of these inputs that has rows and can be read."""
    problem: CorruptInput | None = None
    schema = pa.schema([(name, type or pa.string()) for name, type in (spec.columns or {}).items()])
    for row in rows:
        uri, size, generation = (inputs.table[name][row].as_py() for name in ("uri", "size", "generation"))
        try:
            found = sample_schema(stores.of(uri), Object(uri, size, generation), detect(uri, spec.how), spec.columns)
        except CorruptInput as error:
            problem = error
            continue
        if len(found):
            schema = found
            break
    else:
        if problem is not None:
            get_logger(job=spec.name).warning("the first inputs cannot be read", error=str(problem))
    return pa.schema([field.with_nullable(field.name not in spec.required) for field in schema])


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
        lines.append(f"missing  {told_missing(*prepared.missing_inputs)}")
    if len(prepared.stale):
        lines.append(f"stale    {len(prepared.stale):,}: their input changed; kept (--redo-stale replaces them)")
    if prepared.uncommitted.stale:
        lines.append(f"redo     {len(prepared.uncommitted.stale):,}: stale, replaced by what their input is now")
    return "\n".join(lines)
