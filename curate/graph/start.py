"""Begins a job of several stages, and removes its stages at the end.

The result of an exchange depends on all inputs, so they are frozen when the job begins: a run with other inputs is
refused, with a list of new, missing and changed ones. `job.json`, which is create-only, names them and has the seed: if
two drivers begin at once, one adopts what the other wrote.
"""

from __future__ import annotations

import hashlib
import io
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from curate.clock import Clock
from curate.driver.identity import job_of, refuse_other_job
from curate.driver.options import RunOptions
from curate.driver.removal import overwritten, remove_job
from curate.driver.rivals import refuse_rivals
from curate.driver.state import EXAMPLES, OutputSnapshot, Stores
from curate.errors import ConfigError, GenerationMismatch, ObjectNotFound
from curate.exchange.run_file import opened
from curate.graph.keys import key_of, listed, manifest_of, planned, reports_of, stages_of
from curate.graph.upstream_books import upstream_books_of
from curate.keywords import option, start_over
from curate.ledger import layout
from curate.ledger.fencing import FencedStore
from curate.ledger.ledger import Ledger
from curate.ledger.listing import OutputListing, match_outputs, refuse_special
from curate.ledger.manifest import ShardPlan
from curate.ledger.stages import StageReport, may_be_scratch, remove_stages, scratch_of, stages_root, stages_roots
from curate.sources.listing import Inputs
from curate.sources.patterns import InputPattern
from curate.sources.protocol import RowSource, StoreOf
from curate.sources.same_bytes import Change, same_bytes
from curate.stage.stage import Stage
from curate.storage.protocol import Outcome, Special, Store
from curate.storage.uris import is_local


@dataclass
class StagedJob:
    """A job as it was found."""

    last: Stage
    """The last stage; with its seed, if the job has one already."""
    owned: FencedStore
    ledger: Ledger
    seen: OutputSnapshot
    manifest: Any
    """The files that it reads now."""
    known: dict[tuple[str, ...], Any]
    """What was listed for that."""
    job: dict[str, Any] | None
    """`job.json`; None: there is none, or it is to be removed."""
    plan: ShardPlan
    """The outputs; empty if they are not planned yet."""
    done: bool
    """Whether all of them are there."""

    @property
    def listing(self) -> OutputListing:
        return self.seen.listing

    @property
    def stores(self) -> Stores:
        return self.seen.stores


def look_at(last: Stage, options: RunOptions, output: str, clock: Clock) -> StagedJob:
    """Looks at the job, one listing and a few small reads. Raises ConfigError if it is another one, or its inputs are
    not those that it began with."""
    stores = Stores(f"{output}/{layout.TMP}begin-{secrets.token_hex(4)}")
    owned = FencedStore(stores.of(output), output, clock)
    ledger = Ledger(owned, output)
    known: dict[tuple[str, ...], Any] = {}
    last = listed(last, known)
    manifest = manifest_of(last)
    _refuse_own_output(manifest, output)
    moment = owned.moment()
    listing = ledger.list()
    owned.claim(listing.job_generation or None, moment)
    seen = OutputSnapshot(moment, listing, stores)
    found = StagedJob(last, owned, ledger, seen, manifest, known, None, ShardPlan.of([]), False)
    if options.overwrite:
        return found
    told = job_of(last.record, ledger, listing)
    if listing.has_job:
        found.plan = ledger.read_plan(listing)
        found.done = len(found.plan) > 0 and bool(match_outputs(found.plan, listing, last.record.suffix).done.all())
        _refuse_other_inputs(ledger, told, manifest, done=found.done, drop_removed=options.drop_removed)
        found.job = told
        found.last = with_seed(found, told.get("seed", 0))
    return found


def complete_now(job: StagedJob) -> bool:
    """Returns whether all outputs are there by now, as another driver may have made them; looks again."""
    moment = job.owned.moment()
    job.seen = OutputSnapshot(moment, job.ledger.list(), job.stores)
    job.plan = job.ledger.read_plan(job.listing)
    return len(job.plan) > 0 and bool(match_outputs(job.plan, job.listing, job.last.record.suffix).done.all())


def is_complete(job: StagedJob) -> bool:
    """Returns whether every output is there, and not only those that this run was asked for."""
    try:
        job.ledger.store.stat(job.ledger.uri(layout.SUMMARY))
    except ObjectNotFound:
        return False
    return True


def begin(job: StagedJob, options: RunOptions, clock: Clock) -> tuple[Stage, RunOptions]:
    """Begins the job, or adopts how another driver began it. Returns its last stage, with its seed, and how to run it.

    In an order in which a kill between any two calls leaves what the next run can go on from. Raises ConfigError.
    """
    last = job.last
    if options.overwrite:
        if job.listing.has_job or job.listing.plan_parts:
            _overwrite(job, options, clock)
        options = replace(options, overwrite=False)
    if not job.listing.plan_parts:
        # What has failed was a stage before: of this one nothing was tried yet.
        options = replace(options, retry_failed=False)
    if job.job is not None:
        return last, options
    return with_seed(job, _publish_job(job).get("seed", 0)), options


def _publish_job(job: StagedJob) -> dict[str, Any]:
    """Writes down what the job is and reads; returns that, or what another driver wrote. Raises ConfigError."""
    last, ledger = job.last, job.ledger
    told = job_of(last.record, ledger, OutputListing(None, None, None))
    if last.seeded is not None:
        told["seed"] = secrets.randbits(63)
    told["inputs"] = _publish_inputs(ledger, job.manifest)
    told["stages"] = [one.planned() for one in planned(with_seed(job, told.get("seed", 0)))]
    moment = job.owned.moment()
    published = ledger.store.publish(ledger.uri(layout.JOB), orjson.dumps(told, option=orjson.OPT_INDENT_2))
    if published.outcome is Outcome.DIFFERENT:
        told = ledger.read_job()
        refuse_other_job(last.record, ledger, told)
        _refuse_other_inputs(ledger, told, job.manifest)
    job.owned.claim(published.object.generation, moment)
    return told


def refuse_mixed_keys(job: StagedJob) -> None:
    """Raises ConfigError if a key has other types in some of the files that a job is about to begin with."""
    if job.job is None:
        for stage in stages_of(job.last):
            if stage.runs is not None:
                stage.rows.refuse_keys(stage.record.name, [key.column for key in stage.runs.order.keys])


def with_seed(job: StagedJob, seed: int) -> Stage:
    """Returns the last stage of a job as it is with this seed, if there is something in it that takes one."""
    last = job.last
    return last if last.seeded is None else listed(last.seeded(seed), job.known)


def _publish_inputs(ledger: Ledger, found: Any) -> str:
    """Writes down the inputs; returns the name. Named by its content: one that no job names decides nothing."""
    sink = io.BytesIO()
    pq.write_table(found, sink, compression="zstd")
    name = layout.inputs_of(hashlib.sha256(sink.getvalue()).hexdigest()[:16])
    ledger.store.publish(ledger.uri(name), sink.getvalue())
    return name


def _refuse_own_output(manifest: Any, output: str) -> None:
    """Raises ConfigError if the job reads what it writes."""
    for uri in manifest["uri"].to_pylist():
        if uri.startswith(f"{output}/"):
            raise ConfigError(f"the input {uri} lies below the output {output}: choose another output")


def _refuse_other_inputs(
    ledger: Ledger, job: dict[str, Any], found: Any, *, done: bool = False, drop_removed: bool = False
) -> None:
    """Raises ConfigError unless the inputs are those that the job began with; or others of the same bytes, if it is
    `done`: else stages that are there would not be found."""
    name = job.get("inputs", layout.inputs_of("?"))
    try:
        data = ledger.store.read(ledger.uri(name))
    except ObjectNotFound as error:
        raise ConfigError(
            f"{ledger.uri(name)} is missing, which lists the inputs of the job; the ledger was damaged from outside: "
            f"choose another output, or {start_over()}"
        ) from error
    # By this thread: one of Arrow's may let go of the bytes when Python is gone already, which aborts the process.
    before = dict(_rows(pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)))
    now = dict(_rows(found))
    if done and before != now:
        changed = (uri for uri in now if uri in before and now[uri] != before[uri] and now[uri][0] == before[uri][0])
        for uri in same_bytes((Change(uri, before[uri][1], now[uri][1]) for uri in changed), Stores("").of):
            now[uri] = before[uri]
    if before == now:
        return
    lines = []
    for what, names in (
        ("new", [uri for uri in now if uri not in before]),
        ("gone", [uri for uri in before if uri not in now]),
        ("changed", [uri for uri in now if uri in before and now[uri] != before[uri]]),
    ):
        if names:
            more = f" and {len(names) - EXAMPLES:,} more" if len(names) > EXAMPLES else ""
            lines.append(f"  {what}: {', '.join(names[:EXAMPLES])}{more}")
    gone = sum(uri not in now for uri in before)
    if drop_removed and gone:
        inputs = "1 removed input" if gone == 1 else f"{gone:,} removed inputs"
        raise ConfigError(
            f"{option('drop_removed')} cannot take {inputs} out of {ledger.root}: an exchange (sort, group, join, "
            "shuffle, deduplication) made each output from all inputs:\n"
            + "\n".join(lines)
            + f"\nTo make all outputs again, {start_over()}; then run the jobs that read them."
        )
    raise ConfigError(
        f"the inputs of {ledger.root} changed after the job began, but an exchange needs the complete input:\n"
        + "\n".join(lines)
        + f"\nWrite to another output, or {start_over()}: stages with unchanged inputs are "
        + "kept."
    )


def _rows(table: Any) -> Iterator[tuple[str, tuple[int, str]]]:
    columns = (table[name].to_pylist() for name in ("uri", "size", "generation"))
    return ((uri, (size, generation)) for uri, size, generation in zip(*columns, strict=True))


# The end of it


def _overwrite(job: StagedJob, options: RunOptions, clock: Clock) -> None:
    """Removes the job that is there; not the stages that the new one has too. Raises ConfigError if another driver is
    at work on it, or on one of its stages."""
    last, ledger, listing = job.last, job.ledger, job.listing
    refuse_rivals(ledger, listing.run_ids, clock, allow_concurrent=False, overwrite=True)
    running = set(listing.run_ids)
    for root in stages_roots(ledger.root, listing.stages):
        for key, run_ids in _runs_of_stages(job.stores.of(root), root).items():
            refuse_rivals(
                Ledger(job.stores.of(root), f"{root}/{key}"), run_ids, clock, allow_concurrent=False, overwrite=True
            )
            running |= run_ids
    kept = {key_of(one) for one in stages_of(last)} if last.seeded is None else set()
    outputs = overwritten(last.record, ledger, listing)[1]
    remove_job(ledger, last.record.name, running, outputs, options, kept)
    job.owned.claim(None, job.owned.moment())
    if may_be_scratch(ledger.root):
        remove_stages(scratch_of(ledger.root), kept)


def _runs_of_stages(store: Store, root: str) -> dict[str, set[str]]:
    """Returns the runs that stages know, by the stage's key."""
    found: dict[str, set[str]] = {}
    for item in store.list(f"{root}/"):
        key, _, name = item.uri[len(root) + 1 :].partition("/")
        if isinstance(item, Special):
            refuse_special(item, name)
        if run_id := layout.run_of(name):
            found.setdefault(key, set()).add(run_id)
    return found


def sweep(store: Store, output: str, known: set[str] | None = None) -> None:
    """Removes what stages made, wherever. `known`: stages of which something is in the output's store; None: that was
    not looked at."""
    # What this process has mapped into memory would take its room on the disk until it ends.
    opened.cache_clear()
    root = stages_root(output, alone=False)
    if is_local(root):
        remove_stages(root)
    elif known is None or known:
        for item in list(store.list(f"{root}/")):
            if not layout.is_of_stage(item.uri[len(root) + 1 :]):
                continue
            try:
                store.delete(item.uri, item.generation)
            except GenerationMismatch:
                continue  # another driver makes it anew, and removes it at its own end
    if may_be_scratch(output):
        remove_stages(scratch_of(output))


# A job of which nothing is left to do


class PlannedShards(RowSource):
    """The shards of a job as its plan has them: that of a job of which nothing is left to do, and nothing read."""

    def __init__(self, plan: ShardPlan) -> None:
        self._plan = plan

    def inputs(self, patterns: Sequence[InputPattern], store_of: StoreOf) -> Inputs:
        del patterns, store_of
        names = {"uri": "uri", "id": "name", "object_bytes": "size", "generation": "generation"}
        return Inputs(self._plan.table.select(list(names)).rename_columns(list(names.values())))


def as_planned(job: StagedJob) -> Stage:
    """Returns the last stage of a job of which all outputs are there."""
    earlier = None
    reports: tuple[StageReport, ...] = ()
    if job.listing.summary is None:
        # A run ended between the last output and the summary: what the stages before say goes into that.
        for alone in (True, False):
            root = stages_root(job.ledger.root, alone=alone)
            with suppress(ObjectNotFound):
                earlier = upstream_books_of(job.last, partial(place_of, root), job.ledger)
                reports = reports_of(planned(job.last), root)
                break
    return replace(job.last, rows=PlannedShards(job.plan), earlier=earlier, reports=reports)


def place_of(root: str, stage: Stage) -> str:
    """Returns the folder of a stage before the last one."""
    return f"{root}/{key_of(stage)}"
