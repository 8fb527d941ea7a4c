"""The writes of a run to its ledger before the first task: job, accepted code, schemas, plan. Removals come first.

Their order is such that after a kill between any two calls the next run can resume.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import orjson
import pyarrow as pa

from curate.arrow.unknown import is_of_no_rows
from curate.errors import GenerationMismatch, ObjectNotFound
from curate.ledger import layout
from curate.ledger.ledger import Ledger
from curate.ledger.stages import has_scratch, remove_stages, scratch_of
from curate.log import get_logger
from curate.resume.identity import refuse_other_job
from curate.resume.options import RunOptions
from curate.resume.removal import remove_job, there_now
from curate.resume.state import Prepared
from curate.stage.shard_index import remove_index
from curate.storage.protocol import Object, Outcome
from curate.storage.uris import is_local
from curate.stores.open import Stores


class LostRaceError(Exception):
    """Another driver wrote to the ledger first. Prepare again: what it wrote holds."""


def refuse_lax_store(output: str, stores: Stores) -> None:
    """Sees to it, before the first write to an output, that its store creates an object only if its name is free.

    Raises ConfigError if it does not. Asks S3 alone, and a bucket once in a process.
    """
    if output.startswith("s3://"):
        from curate.stores.s3.probe import refuse_lax_bucket

        refuse_lax_bucket(stores.of(output), stores.scratch)


def commit(prepared: Prepared, options: RunOptions) -> None:
    """Publishes what `prepare` decided. Everything is create-only, or removed against the generation that was seen.

    Raises ConfigError if removal was not confirmed or another job took the output meanwhile, LostRaceError,
    JobReplacedError.
    """
    todo, ledger = prepared.uncommitted, prepared.ledger
    if is_local(prepared.output):
        from curate.stores.local import probe_linking

        probe_linking(prepared.stores.scratch)
    elif todo.job is not None:
        refuse_lax_store(prepared.output, prepared.stores)
    if todo.remove is not None:
        remove_job(ledger, prepared.record.name, prepared.run_ids, todo.remove, options, mark=True)
        prepared.owned.claim(None, prepared.owned.moment())
        if has_scratch(ledger.root):
            remove_stages(scratch_of(ledger.root))
    if todo.job is not None:
        before = prepared.owned.moment()
        published = ledger.store.publish(ledger.uri(layout.JOB), orjson.dumps(todo.job, option=orjson.OPT_INDENT_2))
        if published.outcome is Outcome.DIFFERENT:
            refuse_other_job(prepared.record, ledger, ledger.read_job(), raced=True)
            raise LostRaceError
        prepared.owned.claim(published.object.generation, before)
    if todo.accepted:
        ledger.store.publish(ledger.uri(layout.ACCEPTED + todo.accepted), b"")
    if len(prepared.todo):
        rows = prepared.stage.rows
        held = {name: _held(ledger, name, schema) for name, schema in rows.schemas.items()}
        prepared.stage = replace(prepared.stage, rows=rows.holding(held))
    if todo.dropped is not None or not prepared.matched.done.all():
        if prepared.listing.summary is not None:
            if todo.part is None and todo.dropped is None:
                _refuse_if_complete(prepared)
            # It says "complete", which is untrue for a while.
            _take_away(ledger, prepared.listing.summary)
        remove_index(ledger, prepared.listing, prepared.record.suffix)
    _drop(prepared)
    if todo.remove is not None:
        # What the job that was overwritten has published since it was listed, if it lives: none is of this one yet.
        matched = (there := replace(prepared.there, listing=ledger.list())).matched()
        for part in there_now(ledger, there.listing.stray_parts):
            _take_away(ledger, part)
        late = map(there.at, matched.position[matched.done])
        todo.foreign += [one for one in late if there.record(one) is not None]
    for output in todo.foreign:
        what = "removing an output of another identity, or of inputs before they changed"
        get_logger(job=prepared.record.name).warning(what, output=output.uri)
        _take_away(ledger, output)
    if todo.part is not None:
        grown = bool(prepared.listing.plan_parts)
        if not ledger.append_plan(todo.part, prepared.listing):
            raise LostRaceError
        if grown:
            _retract(ledger, prepared.record.fingerprint, len(prepared.plan))
    ledger.merge_plan(prepared.listing)


def _refuse_if_complete(prepared: Prepared) -> None:
    """Raises LostRaceError if all outputs are there by now: no listing is of one moment, and one that began while
    another driver ended the job may lack outputs and have the summary, which came after them."""
    there = prepared.there
    # Which are to be replaced, the listing has.
    if not there.matched().done.all() and replace(there, listing=there.ledger.list()).matched().done.all():
        raise LostRaceError


def _held(ledger: Ledger, name: str, schema: pa.Schema) -> pa.Schema:
    """Returns the schema of inputs that the job has: this one, unless another driver was faster. That of inputs without
    a row does not hold for those that may come."""
    if not len(schema) or is_of_no_rows(schema):
        return schema
    return ledger.create_schema(f"input-{name}", lambda: schema)


def _drop(prepared: Prepared) -> None:
    """Takes shards out of the job whose input was removed, and removes what was made of them.

    The plan says so first: from then on every run removes what a kill leaves. What earlier ones left goes before that:
    their input may have come back, and what was made of the old one must not be taken for what is made of it.
    """
    todo, ledger = prepared.uncommitted, prepared.ledger
    log = get_logger(job=prepared.record.name)
    if todo.left:
        log.warning("removing leftovers of shards that are out of the job", objects=len(todo.left))
    for object in todo.left:
        _take_away(ledger, object)
    if todo.dropped is None:
        return
    for shards, what in (
        (todo.removed_inputs, "taking out shards whose input is no longer given"),
        (todo.split_anew, "taking out parts of inputs that changed, which are split anew"),
    ):
        if shards:
            log.info(what, shards=shards, objects=len(todo.dropped_outputs))
    if not ledger.append_plan(todo.dropped, prepared.listing):
        raise LostRaceError
    _retract(ledger, prepared.record.fingerprint, None)
    for object in todo.dropped_outputs:
        _take_away(ledger, object)


def renew(prepared: Prepared, done: Callable[[int], bool]) -> None:
    """Writes the new inputs of outputs that were out of date to the plan: of those shards that are done.

    After they are: killed before, the next run still finds them out of date, and whoever asks it to replace them gets
    the same bytes again. So an output is never taken for that of an input that it was not made of. Nor is one that
    another driver made, which may have seen another input, and have been killed before it wrote that down.
    """
    todo, plan, ledger, listing = prepared.uncommitted, prepared.plan, prepared.ledger, prepared.listing
    if todo.renewed is None:
        return
    ranks = plan.ranks(todo.renewed["id"].combine_chunks()).tolist()
    ours = [done(rank) and rank not in todo.made_elsewhere for rank in ranks]
    rows, before = todo.renewed.filter(np.array(ours, dtype=bool)), None
    todo.renewed = None
    while len(rows) and not ledger.append_plan(rows, listing):
        # Another driver was first: what it says of these shards holds.
        before, listing = before or ledger.read_plan(listing), ledger.list()
        now = ledger.read_plan(listing)
        ids = rows["id"].combine_chunks()
        was, told = ([plan.shard(rank) if rank >= 0 else None for rank in plan.ranks(ids)] for plan in (before, now))
        rows = rows.filter(np.array([one == other for one, other in zip(was, told, strict=True)], dtype=bool))


def _take_away(ledger: Ledger, seen: Object) -> None:
    """Removes an object if it is still the one that was seen; raises LostRaceError if it is another's by now."""
    try:
        ledger.store.delete(seen.uri, seen.generation)
    except GenerationMismatch as error:
        raise LostRaceError from error


def _retract(ledger: Ledger, fingerprint: str, total: int | None) -> None:
    """Removes the summary of a driver that knew of fewer shards than `total`, and may have published it since this one
    listed; None: any, for it knew of shards that are out of the job."""
    try:
        seen = ledger.store.stat(ledger.uri(layout.SUMMARY))
        summary = ledger.read_json(layout.SUMMARY)
        known = summary.get("shards", {}).get("total", 0)
        if summary.get("fingerprint") != fingerprint or total is None or known < total:
            ledger.store.delete(seen.uri, seen.generation)
    except (ObjectNotFound, GenerationMismatch):
        return  # whoever replaced it looked at the plan after this run had added to it
