"""What a run writes to its ledger before its first task: job, accepted code, schemas, plan; first, what it removes.

In an order in which a kill between any two calls leaves a ledger that the next run can go on from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from curate.dataset.sides import SIDES
from curate.dataset.spec import RunOptions, StageSpec
from curate.errors import ConfigError, GenerationMismatch, ObjectNotFound
from curate.log import get_logger
from curate.storage import beneath, is_local
from curate.storage.protocol import Object, Outcome, Special
from curate.tasks import layout
from curate.tasks.ledger import Ledger
from curate.tasks.outputs import refuse_special

if TYPE_CHECKING:
    from curate.dataset.prepare import Prepared


@dataclass
class Uncommitted:
    """What a run has to write, or remove, before its first task."""

    remove: list[Object] | None = None
    """Outputs to remove, and with them the whole ledger; None: nothing is overwritten."""
    job: dict[str, Any] | None = None
    accepted: str = ""
    """Code digest that was accepted."""
    part: Any = None
    """Rows to append to the plan."""
    left: list[Object] = field(default_factory=list)
    """What is there of shards that earlier runs took out of the job: they were killed."""
    dropped: Any = None
    """Rows to append to the plan, before all others, that take shards out of the job."""
    dropped_outputs: list[Object] = field(default_factory=list)
    """What was made of those."""
    foreign: list[Object] = field(default_factory=list)
    """Outputs of another identity under this job's names, to be done again."""
    stale: list[Object] = field(default_factory=list)
    """Outputs whose input changed, to be replaced because that was asked for: each once the new one is whole."""
    stale_sides: list[Object] = field(default_factory=list)
    """The extra outputs of those."""
    renewed: Any = None
    """Rows of the plan with the new inputs of those shards, to be appended once they are done."""

    def __bool__(self) -> bool:
        return bool(
            self.remove is not None
            or self.job
            or self.accepted
            or self.left
            or self.dropped is not None
            or self.part is not None
            or self.foreign
            or self.stale
        )


class LostRaceError(Exception):
    """Another driver wrote to the ledger first. Prepare again: what it wrote holds."""


def commit(prepared: Prepared, options: RunOptions) -> None:
    """Publishes what `prepare` decided. Everything is create-only, or removed against the generation that was seen.

    Raises ConfigError if removal was not confirmed or another job took the output meanwhile, LostRaceError,
    JobReplacedError.
    """
    todo, ledger = prepared.uncommitted, prepared.ledger
    if is_local(prepared.output):
        from curate.storage.local import probe_linking

        probe_linking(prepared.stores.scratch)
    if todo.remove is not None:
        remove_job(ledger, prepared.spec.name, prepared.run_ids, todo.remove, options)
        prepared.owned.claim(None, prepared.owned.moment())
    if todo.job is not None:
        before = prepared.owned.moment()
        published = ledger.store.publish(ledger.uri(layout.JOB), orjson.dumps(todo.job, option=orjson.OPT_INDENT_2))
        if published.outcome is Outcome.DIFFERENT:
            refuse_other_job(prepared.spec, ledger, ledger.read_job())
            raise LostRaceError
        prepared.owned.claim(published.object.generation, before)
    if todo.accepted:
        ledger.store.publish(ledger.uri(layout.ACCEPTED + todo.accepted), b"")
    for name, schema in prepared.schemas.items():
        prepared.schemas[name] = ledger.create_schema(f"input-{name}", lambda schema=schema: schema)  # type: ignore[misc]
    if prepared.listing.summary is not None and (todo.dropped is not None or not prepared.matched.done.all()):
        # It says "complete", which is untrue for a while.
        _take_away(ledger, prepared.listing.summary)
    _drop(prepared)
    if todo.part is not None:
        grown = bool(prepared.listing.plan_parts)
        if not ledger.append_plan(todo.part, prepared.listing):
            raise LostRaceError
        if grown:
            _retract(ledger, prepared.spec.fingerprint, len(prepared.plan))
    for output in todo.foreign:
        get_logger(job=prepared.spec.name).warning("removing an output of another identity", output=output.uri)
        _take_away(ledger, output)


def _drop(prepared: Prepared) -> None:
    """Takes shards out of the job whose input was removed, and removes what was made of them.

    The plan says so first: from then on every run removes what a kill leaves. What earlier ones left goes before that:
    their input may have come back, and what was made of the old one must not be taken for what is made of it.
    """
    todo, ledger = prepared.uncommitted, prepared.ledger
    log = get_logger(job=prepared.spec.name)
    if todo.left:
        log.warning("removing what was left of shards whose input was removed", objects=len(todo.left))
    for object in todo.left:
        _take_away(ledger, object)
    if todo.dropped is None:
        return
    log.info("taking shards out whose input was removed", shards=len(todo.dropped), objects=len(todo.dropped_outputs))
    if not ledger.append_plan(todo.dropped, prepared.listing):
        raise LostRaceError
    _retract(ledger, prepared.spec.fingerprint, None)
    for object in todo.dropped_outputs:
        _take_away(ledger, object)


def renew(prepared: Prepared, done: Callable[[int], bool]) -> None:
    """Writes the new inputs of outputs that were out of date to the plan: of those shards that are done.

    After they are: killed before, the next run still finds them out of date, and whoever asks it to replace them gets
    the same bytes again. So an output is never taken for that of an input that it was not made of.
    """
    todo, plan = prepared.uncommitted, prepared.plan
    if todo.renewed is None:
        return
    ranks = pc.index_in(todo.renewed["id"], value_set=plan.ids).to_pylist()
    rows = todo.renewed.filter(pa.array([done(rank) for rank in ranks], pa.bool_()))
    todo.renewed = None
    if len(rows) and not prepared.ledger.append_plan(rows, prepared.listing):
        get_logger(job=prepared.spec.name).warning(
            "another driver wrote to the plan first: outputs that were replaced are still said to be out of date",
            shards=len(rows),
            next="run again with --redo-stale, which finds them as they are to be",
        )


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


def remove_job(
    ledger: Ledger,
    name: str,
    run_ids: Collection[str],
    outputs: Sequence[Object],
    options: RunOptions,
    kept: Collection[str] = (),
) -> None:
    """Removes outputs and ledger after asking, each as it was seen; not the stages of these keys.

    The summary goes first, which says that the job is complete; plan and job last: until then they say what there is to
    remove. Raises ConfigError if others came meanwhile.
    """
    question = f"remove {len(outputs):,} outputs and the ledger of {name!r} under {ledger.root}?"
    if not options.confirm(question):
        raise ConfigError(f"--overwrite was not confirmed: {question} Answer yes, or add --yes.")
    summary: list[Object] = []
    rest: list[Object] = []
    last: list[Object] = []
    for item in ledger.store.list(ledger.uri(layout.LEDGER + "/")):
        called = item.uri[len(ledger.root) + 1 :]
        if isinstance(item, Special):
            refuse_special(item, called)
        if layout.stage_of(called) in kept or not layout.is_own(called):
            continue
        if (run_id := layout.run_of(layout.in_stage(called))) is not None and run_id not in run_ids:
            raise ConfigError(
                f"another driver began on {ledger.root} while this one asked or started (run {run_id}); nothing was "
                f"removed. Look at it with: curate status {ledger.root}, and run this again when it has ended"
            )
        part = called == layout.JOB or called.startswith(layout.PLAN)
        (summary if called == layout.SUMMARY else last if part else rest).append(item)
    if is_local(ledger.root):
        refuse_links(ledger.root, [item.uri for item in outputs])
    try:
        for item in [*summary, *outputs, *rest, *reversed(last)]:
            ledger.store.delete(item.uri, item.generation)
    except GenerationMismatch as error:
        raise ConfigError(
            f"another driver is at work on {ledger.root} after all ({error}); it was taken for gone. What is left of "
            "its output stays: stop it, and run this again"
        ) from error


def refuse_links(output: str, paths: Iterable[str] = ()) -> None:
    """Raises ConfigError if there is a link in what is curate's below a local output, or on the way to one of `paths`:
    a run would write, or remove, elsewhere."""
    own = (f"{output}/{layout.LEDGER}", f"{output}/{SIDES.rstrip('/')}")
    beneath.refuse_links(beneath.root_of(own[0] + "/"), own, paths)


def refuse_other_job(spec: StageSpec, ledger: Ledger, job: Mapping[str, Any]) -> None:
    """Raises ConfigError, with both sides of the difference, if `job` has another identity than `spec`."""
    if job["fingerprint"] != spec.fingerprint:
        raise ConfigError(
            f"{ledger.root} holds the output of {job['job']!r} with another identity "
            f"({job['fingerprint']}, this one is {spec.fingerprint}):\n"
            + identity_difference(job["identity"], dict(spec.identity))
            + "\nRun with the old values, choose another --output, or replace what is there with --overwrite."
        )


def identity_difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Returns both sides of every difference, one a line.

    >>> print(identity_difference({"version": "1", "a": 1}, {"version": "2", "a": 1}))
      version: there '1', here '2'
    """
    lines = []
    for key in sorted({*theirs, *ours}):
        there, here = theirs.get(key), ours.get(key)
        if isinstance(there, Mapping) and isinstance(here, Mapping):
            names = {name: (_shown(there, name), _shown(here, name)) for name in sorted({*there, *here})}
            lines += [
                f"  {key}.{name}: there {one}, here {other}" for name, (one, other) in names.items() if one != other
            ]
        elif (shown := (_shown(theirs, key), _shown(ours, key)))[0] != shown[1]:
            lines.append(f"  {key}: there {shown[0]}, here {shown[1]}")
    return "\n".join(lines)


def _shown(values: Mapping[str, Any], key: str) -> str:
    """Returns a value as people read it; one that is not there is not None."""
    return repr(values[key]) if key in values else "nothing"
