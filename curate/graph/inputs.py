"""The inputs of a job with an exchange: those that it began with, those that it took since, and those of now.

What an exchange gives depends on all of the inputs. So they are frozen when the job begins: a run that finds others
refuses, and says what is new, gone and changed, and what has to be made anew.

The design refused growth to every such job. One takes new inputs: an exact deduplication that keeps the first of equal
rows (`Stage.extended`), if they come behind all that it has. No old row is dropped for a new one, so each output that
is there, with its duplicates, is what a run from nothing would write. The hashes of all inputs are exchanged again, for
new rows are compared with old ones; outputs of old inputs are not written again.

If run files of old inputs were kept, these inputs are not read: what each run added is a segment, with a map stage of
its own. Stages are called by what they read, so those of before are found. Else there is one segment, and one map stage
for all inputs.

    _curate/inputs/<hash>.parquet   all inputs, in order; `job.json` names those that the job began with
    _curate/inputs/00001.json ...   the run that took more: its id, how many, the list of all, segments and stages
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow.parquet as pq

from curate.arrow.schema import format_schema
from curate.errors import ConfigError, ObjectNotFound
from curate.keywords import option, start_over
from curate.ledger import layout
from curate.ledger.ledger import Ledger, inputs_name
from curate.ledger.listing import OutputListing, match_outputs
from curate.ledger.manifest import ShardPlan
from curate.resume.state import EXAMPLES
from curate.sources.same_bytes import Change, same_bytes
from curate.stage.stage import Stage
from curate.stores.open import Stores
from curate.units import format_bytes, format_count

Inputs = Mapping[str, tuple[int, str]]
"""Size and generation of each input by its URI, in the order in which they are read."""


def inputs_in(manifest: Any) -> Inputs:
    """Returns the inputs in a table of uri, size and generation, in which one that is read twice is there twice."""
    return dict(_rows(manifest))


def _rows(table: Any) -> Iterator[tuple[str, tuple[int, str]]]:
    columns = (table[name].to_pylist() for name in ("uri", "size", "generation"))
    return ((uri, (size, generation)) for uri, size, generation in zip(*columns, strict=True))


def publish_inputs(ledger: Ledger, manifest: Any) -> str:
    """Writes down the inputs; returns the name. Named by its content: one that nothing names decides nothing."""
    data = _packed(manifest)
    name = inputs_name(data)
    ledger.store.publish(ledger.uri(name), data)
    return name


def _packed(manifest: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(manifest, sink, compression="zstd")
    return sink.getvalue()


def read_inputs(ledger: Ledger, job: Mapping[str, Any]) -> Inputs | None:
    """Returns the inputs of `job`, as `read_job` returned it; None if their list is missing. Raises ConfigError."""
    try:
        return inputs_in(ledger.read_inputs(job.get("inputs", layout.inputs_of("?"))))
    except ObjectNotFound:
        return None


def refuse_unlisted(ledger: Ledger, job: Mapping[str, Any], manifest: Any) -> None:
    """Raises ConfigError unless the inputs of a job, whose list is gone, are those of `manifest`, by the name of it."""
    name = job.get("inputs", layout.inputs_of("?"))
    if inputs_name(_packed(manifest)) != name:
        raise ConfigError(
            f"{ledger.uri(name)} is missing, which lists the inputs of the job, and the inputs are others now: an "
            f"overwrite was cut off, or the ledger was damaged from outside; choose another output, or {start_over()}"
        )


def as_before(before: Inputs, now: Inputs) -> Inputs:
    """Returns the inputs of now; those as before that are other objects of the same bytes."""
    changed = [uri for uri in now if uri in before and now[uri] != before[uri] and now[uri][0] == before[uri][0]]
    same = same_bytes((Change(uri, before[uri][1], now[uri][1]) for uri in changed), Stores().of)
    return {uri: before[uri] if uri in same else one for uri, one in now.items()}


def behind(before: Inputs, now: Inputs) -> list[str]:
    """Returns the inputs that come behind those of before; none if these are not the first ones, as they were.

    >>> behind({"a": (1, "x")}, {"a": (1, "x"), "b": (1, "y")}), behind({"b": (1, "y")}, {"a": (1, "x"), "b": (1, "y")})
    (['b'], [])
    """
    first = len(before)
    return list(now)[first:] if list(before.items()) == list(now.items())[:first] else []


def reaches(plan: ShardPlan, uri: str) -> bool:
    """Returns whether a plan has shards of the input `uri`, and not of earlier ones alone: its last one is."""
    if not len(plan):
        return False
    label = str(plan.table.row(len(plan) - 1, "uri")[0]).rpartition(" #")[0]
    # A file that is cut is called by what is read of it: see `curate.sources.files.label`.
    return label == uri or (label.startswith(f"{uri}, ") and label.endswith(","))


def refuse_other_columns(ledger: Ledger, last: Stage) -> None:
    """Raises ConfigError if new inputs give the rows of a job other columns: a run from nothing would begin with those.

    The columns are those of the first file with rows; there was none so far, or the folders have other values now.
    """
    for name, schema in last.rows.schemas.items():
        before = ledger.read_schema(f"input-{name}")
        if before is not None and not before.equals(schema):
            raise ConfigError(
                f"the new inputs of {ledger.root} change the columns of all rows: {format_schema(schema)}, and "
                f"{format_schema(before)} before. Write to another output, or {start_over()}"
            )


def other_inputs(
    last: Stage, ledger: Ledger, listing: OutputListing, plan: ShardPlan, before: Inputs, now: Inputs, *, drop: bool
) -> ConfigError:
    """Returns the error for a job whose inputs are others now: which, what has to be made anew, and how.

    `drop`: it was asked to take removed inputs out.
    """
    new, gone = [uri for uri in now if uri not in before], [uri for uri in before if uri not in now]
    changed = [uri for uri in now if uri in before and now[uri] != before[uri]]
    lines = [
        f"  {what}: {', '.join(names[:EXAMPLES])}" + (f" and {len(names) - EXAMPLES:,} more" * (len(names) > EXAMPLES))
        for what, names in (("new", new), ("gone", gone), ("changed", changed))
        if names
    ]
    listed = "\n".join(lines) or f"  in another order: {', '.join(list(now)[:EXAMPLES])}"
    anew = _anew(last, listing, plan, now)
    if drop and gone:
        return ConfigError(
            f"{option('drop_removed')} cannot take {format_count(len(gone), 'removed input')} out of {ledger.root}: an "
            "exchange (sort, group, join, shuffle, deduplication) made each output from all inputs:\n"
            f"{listed}\n{anew} To make all outputs again, {start_over()}; then run the jobs that read them."
        )
    why = "but an exchange needs the complete input:"
    if last.extended is not None:
        why = "and an exact deduplication takes new inputs only behind all others, with the others as they were:"
    return ConfigError(
        f"the inputs of {ledger.root} changed after the job began, {why}\n{listed}\n{anew} Write to another output, "
        f"or {start_over()}: stages with unchanged inputs are kept."
    )


def _anew(last: Stage, listing: OutputListing, plan: ShardPlan, now: Inputs) -> str:
    """Returns how much has to be made anew, and of what, as people are told."""
    made = match_outputs(plan, listing, last.record.suffix)
    written = int(listing.objects.numbers("size")[made.position[made.done]].sum()) if made.count else 0
    size = sum(one for one, _ in now.values())
    return (
        f"To make anew: {format_count(len(plan), 'shard') if len(plan) else 'all shards'} ({format_bytes(written)} "
        f"written so far), from {format_count(len(now), 'input')} ({format_bytes(size)})."
    )
