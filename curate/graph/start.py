"""Begins a job of several stages, and removes its stages at the end.

Its inputs are frozen when it begins (see `curate.graph.inputs`). `job.json`, which is create-only, names them and has
the seed: of two drivers that begin at once, one adopts what the other wrote.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import orjson

from curate.clock import Clock
from curate.dataclass import dataclass, field, replace
from curate.driver.rivals import refuse_rivals, refuse_rivals_in_stages, runs_of_stages
from curate.errors import ConfigError, GenerationMismatch, ObjectNotFound
from curate.exchange.run_file import opened
from curate.graph.inputs import (
    as_before,
    behind,
    inputs_in,
    other_inputs,
    publish_inputs,
    reaches,
    read_inputs,
    refuse_other_columns,
    refuse_unlisted,
)
from curate.graph.keys import described, key_of, listed, manifest_of, planned, reports_of, stages_of
from curate.graph.upstream_books import upstream_books_of
from curate.keywords import start_over, unconfirmed
from curate.ledger import layout
from curate.ledger.fencing import FencedStore
from curate.ledger.ledger import DamagedError, Ledger
from curate.ledger.listing import OutputListing, empty_listing, match_outputs
from curate.ledger.manifest import ShardPlan
from curate.ledger.packed import PackedTable
from curate.ledger.stages import (
    StageReport,
    may_be_scratch,
    remove_empty,
    remove_stages,
    scratch_of,
    stages_in,
    stages_root,
    stages_roots,
)
from curate.log import get_logger
from curate.observe import registry
from curate.resume.commit import refuse_lax_store
from curate.resume.identity import job_of, refuse_other_job
from curate.resume.options import RunOptions
from curate.resume.removal import overwritten, remove_job
from curate.resume.state import OutputSnapshot
from curate.sources.listing import Inputs, refuse_own
from curate.sources.patterns import InputPattern
from curate.sources.protocol import RowSource, StoreOf
from curate.stage.stage import Stage
from curate.storage.protocol import Outcome, Store
from curate.storage.uris import is_local
from curate.stores.local import remove_scratch
from curate.stores.open import Stores

MOST_SEGMENTS = 16
"""How many segments there may be: each is a stage, and a run of its own. With more, all run files are made anew."""


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
    added: list[str] = field(default_factory=list)
    """The inputs behind those that the job has, which it takes when it begins."""
    unlisted: bool = False
    """Whether its list of inputs is gone, as a cut off overwrite leaves it, and is written down again."""
    segments: list[list[int]] = field(default_factory=list)
    """The inputs of which run files are made apart, if there are several: where each begins, and where it ends."""

    @property
    def begun(self) -> bool:
        """Whether outputs are planned, and not to be overwritten."""
        return self.job is not None and bool(len(self.plan))

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
    refuse_own(manifest["uri"].chunks, output)
    moment = owned.moment()
    listing = ledger.list(plan_next=not options.overwrite)
    owned.claim(listing.job_generation or None, moment)
    seen = OutputSnapshot(moment, listing, stores)
    found = StagedJob(last, owned, ledger, seen, manifest, known, None, ShardPlan.of([]), False)
    if options.overwrite:
        return found
    told = job_of(last.record, ledger, listing, is_new=True, stages=partial(_as_told, found))
    if listing.has_job:
        found.plan = ledger.read_plan(listing)
        told |= ledger.read_growth(listing)
        found.segments = told.get("segments", [])
        _compare_inputs(found, told, drop=options.drop_removed)
        found.job = told
        found.last = _in_segments(with_seed(found, told.get("seed", 0)), found.segments)
    return found


def _compare_inputs(job: StagedJob, told: dict[str, Any], *, drop: bool) -> None:
    """Compares the inputs with those that a job has, `told` by its ledger: finds whether it is done, and what it
    takes. Raises ConfigError if it does not take them."""
    before, now = read_inputs(job.ledger, told), inputs_in(job.manifest)
    if before is None:
        refuse_unlisted(job.ledger, told, job.manifest)
        before, job.unlisted = now, True
    if job.segments and job.segments[-1][1] != len(before):
        raise ConfigError(
            f"the segments of inputs in {job.ledger.uri(layout.growth(job.listing.growth))} are not all inputs; the "
            f"ledger is damaged: choose another output, or {start_over()}"
        )
    job.done = _all_there(job, list(before)[-1:])
    if job.done or not match_outputs(job.plan, job.listing, job.last.record.suffix).count:
        # What is made of objects of the same bytes is the same; all of it, for stages are called by objects.
        now = as_before(before, now)
    # What is to be done goes by their order, too: ties, and which of equal rows is the first.
    if before == now and (job.done or list(before) == list(now)):
        return
    if job.last.extended is not None:
        job.added = behind(before, now)
    if not job.added:
        raise other_inputs(job.last, job.ledger, job.listing, job.plan, before, now, drop=drop)
    refuse_other_columns(job.ledger, job.last)
    job.done = False
    job.segments = _kept_segments(job, told.get("segments") or [[0, len(before)]], len(now))


def _kept_segments(job: StagedJob, before: list[list[int]], stop: int) -> list[list[int]]:
    """Returns the segments of a job that takes inputs up to the `stop`th: those of before, and the new one, if run
    files of the old ones were kept; else one, for all are made anew."""
    found = [*before, [before[-1][1], stop]]
    there = {key for _, keys in stages_in(job.ledger.root, job.listing.stages) for key in keys}
    # To know what stages are called may take footers of all large files.
    if not there or len(found) > MOST_SEGMENTS:
        return [[0, stop]]
    kept = there & {key_of(one) for one in stages_of(_in_segments(job.last, found))}
    return found if kept else [[0, stop]]


def _in_segments(last: Stage, segments: list[list[int]]) -> Stage:
    """Returns the last stage of a job as it is with its inputs in segments, if it takes any."""
    if last.extended is None or len(segments) < 2:
        return last
    return last.extended(tuple((start, stop) for start, stop in segments))


def _all_there(job: StagedJob, last_input: list[str]) -> bool:
    """Returns whether every output is there: of a job that took more inputs, up to those of the last one."""
    if not len(job.plan) or not match_outputs(job.plan, job.listing, job.last.record.suffix).done.all():
        return False
    return not job.listing.growth or all(reaches(job.plan, one) for one in last_input)


def complete_now(job: StagedJob) -> bool:
    """Returns whether all outputs are there by now, as another driver may have made them; looks again."""
    moment = job.owned.moment()
    job.seen = OutputSnapshot(moment, job.ledger.list(), job.stores)
    job.plan = job.ledger.read_plan(job.listing)
    return _all_there(job, list(inputs_in(job.manifest))[-1:])


def is_complete(job: StagedJob) -> bool:
    """Returns whether every output is there, and not only those that this run was asked for."""
    try:
        job.ledger.store.stat(job.ledger.uri(layout.SUMMARY))
    except ObjectNotFound:
        return False
    return True


def begin(job: StagedJob, options: RunOptions, clock: Clock, run_id: str) -> tuple[Stage, RunOptions]:
    """Begins the job, or adopts how another driver began it; takes new inputs. Returns its last stage and the options.

    In an order in which a kill between any two calls leaves what the next run can go on from. Raises ConfigError.
    """
    last = job.last
    if job.job is None:
        refuse_lax_store(job.ledger.root, job.stores)
    if options.overwrite:
        if job.listing.has_job or job.listing.plan_parts:
            _overwrite(job, options, clock)
        options = replace(options, overwrite=False)
    if not job.listing.plan_parts:
        # What has failed was a stage before: of this one nothing was tried yet.
        options = replace(options, retry_failed=False)
    if job.unlisted:
        publish_inputs(job.ledger, job.manifest)
    if job.added:
        _take_inputs(job, options, clock, run_id)
    if job.job is not None:
        return last, options
    return with_seed(job, _publish_job(job).get("seed", 0)), options


def _publish_job(job: StagedJob) -> dict[str, Any]:
    """Writes down what the job is and reads; returns that, or what another driver wrote. Raises ConfigError."""
    last, ledger = job.last, job.ledger
    told = job_of(last.record, ledger, empty_listing())
    if last.seeded is not None:
        told["seed"] = secrets.randbits(63)
    told["inputs"] = publish_inputs(ledger, job.manifest)
    told |= {} if last.extended is None else {"extensible": True}
    told["stages"] = _as_told(job, told)
    moment = job.owned.moment()
    published = ledger.store.publish(ledger.uri(layout.JOB), orjson.dumps(told, option=orjson.OPT_INDENT_2))
    if published.outcome is Outcome.DIFFERENT:
        told = ledger.read_job()
        refuse_other_job(last.record, ledger, told, raced=True, stages=partial(_as_told, job))
        now = inputs_in(job.manifest)
        if (before := read_inputs(ledger, told)) is None:
            refuse_unlisted(ledger, told, job.manifest)
            before = now
        if list(before.items()) != list(now.items()):
            raise other_inputs(last, ledger, job.listing, job.plan, before, now, drop=False)
    job.owned.claim(published.object.generation, moment)
    return told


def _take_inputs(job: StagedJob, options: RunOptions, clock: Clock, run_id: str) -> None:
    """Writes down that this run adds inputs to the job; or adopts it, if another driver added the same. Then the job is
    not complete any more. Raises ConfigError if another driver is running, or added others."""
    ledger, listing = job.ledger, job.listing
    refuse_rivals(ledger, listing.run_ids, clock, allow_concurrent=options.allow_concurrent, overwrite=False)
    told = {
        "run_id": run_id,
        "added": len(job.added),
        "inputs": publish_inputs(ledger, job.manifest),
        "segments": job.segments,
        "stages": [one.planned() for one in planned(job.last)],
    }
    name = layout.growth(listing.growth + 1)
    found = ledger.create_json(name, told)
    if any(found.get(name) != told[name] for name in ("inputs", "segments")):
        raise ConfigError(
            f"another driver added other inputs to {ledger.root} in the same moment ({name}); run this again when it "
            "has ended"
        )
    listing.growth += 1
    log = get_logger(job=job.last.record.name, run=run_id)
    log.info("taking new inputs; their rows are compared with those of all others", inputs_added=len(job.added))
    if listing.summary is not None:
        with suppress(GenerationMismatch):
            ledger.store.delete(listing.summary.uri, listing.summary.generation)


def _as_told(job: StagedJob, told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the stages of a job as `job.json` has them, with the seed that it has."""
    return described(with_seed(job, told.get("seed", 0)))


def with_seed(job: StagedJob, seed: int) -> Stage:
    """Returns the last stage of a job as it is with this seed, if there is something in it that takes one."""
    if job.last.seeded is None:
        return job.last
    last = listed(job.last.seeded(seed), job.known)
    return replace(last, record=replace(last.record, seed=seed))


# The end of it


def confirm_overwrite(job: StagedJob, options: RunOptions) -> RunOptions:
    """Asks whether the job that is there may be removed, before its checkpoints are made, which may take hours. Returns
    the options with the answer. Raises ConfigError if it may not."""
    if not job.listing.has_job and not job.listing.plan_parts:
        return options
    question = f"remove the outputs and the ledger of {job.last.record.name!r} under {job.ledger.root}?"
    if not options.confirm(question):
        raise unconfirmed(question)
    return replace(options, confirm=lambda _: True)


def _overwrite(job: StagedJob, options: RunOptions, clock: Clock) -> None:
    """Removes the job that is there; not the stages that the new one has too, by the same code. Raises ConfigError if
    another driver is at work on it, or on one of its stages."""
    last, ledger, listing = job.last, job.ledger, job.listing
    refuse_rivals(ledger, listing.run_ids, clock, allow_concurrent=False, overwrite=True)
    running = {*listing.run_ids, *refuse_rivals_in_stages(ledger.root, listing.stages, job.stores.of, clock)}
    kept = {key_of(one) for one in stages_of(last) if _is_of_its_code(job, one)} if last.seeded is None else set()
    outputs = overwritten(last.record, ledger, listing)[1]
    remove_job(ledger, last.record.name, running, outputs, options, kept, mark=True)
    job.owned.claim(None, job.owned.moment())
    if may_be_scratch(ledger.root):
        remove_stages(scratch_of(ledger.root), kept)


def _is_of_its_code(job: StagedJob, stage: Stage) -> bool:
    """Returns whether what is there of a stage was made by the code that it has now: under a version that stayed as it
    is, that may be another one, and whoever overwrites the job wants none of the old."""
    for root in stages_roots(job.ledger.root, job.listing.stages):
        ledger = Ledger(job.stores.of(root), f"{root}/{key_of(stage)}")
        try:
            if ledger.read_job()["code_digest"] != stage.record.code_digest:
                return False
        except DamagedError:
            return False
        except ObjectNotFound:
            pass
        if stage.record.code_digest and any(ledger.store.list(ledger.uri(layout.ACCEPTED))):
            return False
    return True


def take_back(job: StagedJob, options: RunOptions, clock: Clock, run_id: str, refused: str) -> None:
    """Removes a job that a stage has refused, of this key: not the stages before, which the job with other parameters
    may have, too. It stays if it has outputs, if an earlier run had planned some, or if another driver is at work."""
    ledger, listing = job.ledger, job.ledger.list()
    others = set(listing.run_ids) - {run_id}
    if listing.plan_parts and (others or overwritten(job.last.record, ledger, listing)[1]):
        return
    running = {run_id, *job.listing.run_ids}
    for root in stages_roots(ledger.root, listing.stages):
        running |= set().union(*runs_of_stages(job.stores.of(root), root).values())
    kept = {key for one in stages_of(job.last) if (key := key_of(one)) != refused}
    try:
        refuse_rivals(ledger, others, clock, allow_concurrent=False, overwrite=True)
        remove_job(ledger, job.last.record.name, running, [], replace(options, confirm=lambda _: True), kept)
    except ConfigError as error:
        get_logger(job=job.last.record.name).warning("the refused job stays; overwrite it", why=str(error))
        return
    if may_be_scratch(ledger.root):
        remove_stages(scratch_of(ledger.root), kept)
    if is_local(ledger.root):
        remove_scratch(job.stores.scratch)
    remove_empty(ledger.root)
    with suppress(ConfigError):
        registry.forget(ledger.root)


def sweep(store: Store, output: str, known: set[str] | None = None) -> None:
    """Removes what stages made, wherever. `known`: stages in the output's store; None: that was not looked at."""
    # What this process has mapped into memory would take its room on the disk until it ends.
    opened.cache_clear()
    root = stages_root(output, alone=False)
    if is_local(root):
        remove_stages(root)
    elif known is None or known:
        found = [item for item in store.list(f"{root}/") if layout.is_of_stage(item.uri[len(root) + 1 :])]
        found.sort(key=lambda item: layout.removal_order(layout.STAGES + item.uri[len(root) + 1 :]))
        for item in found:
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
        table = self._plan.table.take(np.arange(len(self._plan)), *names).rename_columns(list(names.values()))
        return Inputs(PackedTable.of(table))


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
