"""Checks that inputs which other jobs wrote are complete. Outputs decide that, not `summary.json`.

An input may be the output of another job: all of it, a folder or an extra output of it, or what a glob matches. Its
plan says which outputs there are to be. Those that the input's pattern would match have to be there, and a run has to
have said that the job is complete: one that goes on, failed, or was cut short by --limit or --sample has not. A file
that is named outright is the user's choice: it is there, and outputs are whole, so that the job has to be complete, and
no other output need be there.

For each such job: `job.json`, one listing of its plan, and the plan. Its outputs are in the listing of the inputs,
which is made again where the plan may be newer.

A job that was made anew may have other outputs than those that were read: then what was made of the old ones has the
rows of the new ones, and `refuse_remade` refuses to have both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.dataclass import dataclass
from curate.errors import ConfigError, ObjectNotFound
from curate.keywords import option, start_over
from curate.ledger import layout
from curate.ledger.ledger import Ledger
from curate.ledger.listing import sort_listing
from curate.ledger.manifest import InputDiff, ShardPlan, with_suffix
from curate.ledger.packed import PackedTable, positions
from curate.ledger.side_outputs import side_name, sides_of_job
from curate.log import get_logger
from curate.sources.listing import Inputs, Search, enclosing_ledgers
from curate.sources.patterns import InputPattern
from curate.storage.protocol import Store
from curate.units import format_count

READERS = 8
"""Ledgers of jobs that are read at once: a folder may hold the outputs of hundreds."""
SHOWN = 5
"""Jobs that a message names."""


@dataclass(frozen=True, slots=True)
class Hole:
    """What is read of a job's output, and is not all that the job planned."""

    output: str
    """Output prefix of the job."""
    job: str
    missing: int
    """Outputs that would have been read, and are not there."""
    planned: int
    """Shards of the job's plan."""
    example: str
    """The URI of one of those outputs; empty if there is none."""
    closed: bool
    """Whether a run has said that the job is complete."""
    problem: str = ""
    """Why its ledger cannot be read; then nothing is known."""

    def as_dict(self) -> dict[str, Any]:
        """Returns what the record of a run says of it."""
        return {"output": self.output, "job": self.job, "missing": self.missing, "planned": self.planned}


def holes_in(
    patterns: Sequence[InputPattern], inputs: Inputs, store_of: Callable[[str], Store], known: Any = None
) -> list[Hole]:
    """Returns the jobs whose output is read and is not whole. `known`: URIs of inputs, an Arrow column, that a plan has
    already, so that nothing is lost in silence if they are gone.

    A job whose ledger is damaged, or of another version, is among them.
    """
    roots = {**inputs.upstreams, **dict(enclosing_ledgers(patterns, store_of))}
    look = _Look(inputs, store_of, known)
    if len(roots) < 2:
        found = [look.at(*one) for one in roots.items()]
    else:
        with ThreadPoolExecutor(READERS) as pool:
            found = list(pool.map(lambda one: look.at(*one), sorted(roots.items())))
    return [one for one in found if one is not None]


def list_whole(
    patterns: Sequence[InputPattern],
    list_them: Callable[[], Inputs],
    store_of: Callable[[str], Store],
    inputs: Inputs | None = None,
    known: Any = None,
) -> tuple[Inputs, list[Hole]]:
    """Lists the inputs, unless these were listed, and returns them with their `holes_in`.

    A plan is read after the listing, and another driver may have added shards and made them in between. So if a
    complete job lacks outputs, the inputs are listed again, until two looks find the same.
    """
    inputs = inputs or list_them()
    holes = holes_in(patterns, inputs, store_of, known)
    while any(one.closed and one.missing for one in holes):
        before, inputs = holes, list_them()
        holes = holes_in(patterns, inputs, store_of, known)
        if holes == before:
            break
    return inputs, holes


@dataclass(frozen=True, slots=True)
class _Look:
    inputs: Inputs
    store_of: Callable[[str], Store]
    known: PackedTable | None

    def at(self, root: str, closed: bool) -> Hole | None:
        """Returns what is missing of the output of a job; None if nothing is that is read."""
        searches = [one for one in self.inputs.searches if one.reaches(root)]
        read = bool(_below(self.inputs.table, root).any())
        if not searches and not read:
            return None  # the listing of a glob goes past much that it does not match
        ledger = Ledger(self.store_of(root), root)
        try:
            job = ledger.read_job()
            plan = ledger.read_plan(sort_listing(ledger.store.list(ledger.uri(layout.PLAN)), root))
        except ObjectNotFound:
            return None  # it is removed, or begins anew: then there is no plan to hold outputs against
        except ConfigError as error:
            return Hole(root, "", 0, 0, "", closed, str(error))
        gone = [uri for uri in self._missing(root, job, plan, searches) if any(one.matches(uri) for one in searches)]
        new = read and (self.known is None or not _all_known(self.inputs.table, root, self.known))
        unplanned = not len(plan) and any(one.matches(f"{root}/x{job['suffix']}") for one in searches)
        if not gone and (closed or not (new or unplanned)):
            return None
        example = gone[0] if gone else ""
        return Hole(root, str(job["job"]), len(gone), len(plan), example, closed)

    def _missing(self, root: str, job: Mapping[str, Any], plan: ShardPlan, searches: Sequence[Search]) -> list[str]:
        """Returns where outputs are to be that are not among the inputs, extra ones if their folder is read."""
        folders = [f"{root}/"]
        for side in sides_of_job(job):
            if any(one.reaches(f"{root}/{side_name(side, '').rstrip('/')}") for one in searches):
                folders.append(f"{root}/{side_name(side, '')}")
        missing: list[str] = []
        for folder in folders:
            expected = with_suffix(plan.table, job["suffix"], folder)
            ranks = np.flatnonzero(positions(expected, self.inputs.table, "uri") < 0)
            gone = [f"{folder}{one}{job['suffix']}" for one in plan.table.take(ranks, "id")["id"].to_pylist()]
            if self.known is not None and gone:
                there = positions([pa.array(gone, pa.string())], self.known, "uri") >= 0
                gone = [one for one, known in zip(gone, there, strict=True) if not known]
            missing += gone
        return missing


def _below(inputs: PackedTable, root: str) -> Any:
    """Returns one boolean an input: it lies below an output."""
    return inputs.where("uri", lambda uris: pc.starts_with(uris, f"{root}/"))


def _all_known(inputs: PackedTable, root: str, known: PackedTable) -> bool:
    read = inputs.filter(_below(inputs, root))
    return bool((positions((block[0] for block in read.batches("uri")), known, "uri") >= 0).all())


def refuse_holes(holes: Sequence[Hole], store_of: Callable[[str], Store], allow: str = "") -> None:
    """Raises ConfigError if something is missing, with what and what to do. `allow` says how to read it all the same,
    in place of the option of a job."""
    if holes:
        shown = [_words(one, store_of, allow or option("allow_incomplete_input")) for one in holes[:SHOWN]]
        more = [f"... and {len(holes) - SHOWN:,} more inputs"] if len(holes) > SHOWN else []
        raise ConfigError("\n".join([*shown, *more]))


def refuse_remade(
    patterns: Sequence[InputPattern],
    inputs: Inputs,
    growth: InputDiff,
    plan: ShardPlan,
    store_of: Callable[[str], Store],
    done: Any,
) -> None:
    """Raises ConfigError if inputs of shards that are `done` are gone, and are outputs that another job has no more,
    for it was made anew, and has others now: what was made of both would have their rows twice.

    An output whose own input was removed is none of these: its rows are in no other one.
    """
    gone = growth.missing & done
    if not gone.any() or not growth.new.any():
        return
    new, old = inputs.table.filter(growth.new), plan.table.filter(gone)
    for root in sorted({**inputs.upstreams, **dict(enclosing_ledgers(patterns, store_of))}):
        came, went = new.filter(_below(new, root)), old.filter(_below(old, root))
        if not len(came) or not len(went):
            continue
        ledger = Ledger(store_of(root), root)
        known = _known_outputs(ledger)
        lost = [uri for uri in went.take(range(len(went)), "uri")["uri"].to_pylist() if uri not in known]
        if not lost:
            continue
        asked = ["drop_removed"] + ["redo_stale"] * bool((growth.changed & done).any())
        again = f"run again with {' and '.join(map(option, asked))}, to take out what was made of the old ones"
        raise ConfigError(
            f"{root} was made anew and has other outputs now: it lacks {format_count(len(set(lost)), 'input')} of "
            f"earlier runs, such as {lost[0]}, and has {format_count(len(came), 'new input')}, such as "
            f"{came.row(0, 'uri')[0]}; with both, rows would be there twice: "
            f"{start_over() if growth.missing.all() else again}"
        )


def _known_outputs(ledger: Ledger) -> set[str]:
    """Returns where the outputs of a job are, or were until their inputs were removed."""
    try:
        job = ledger.read_job()
        plan = ledger.read_plan(sort_listing(ledger.store.list(ledger.uri(layout.PLAN)), ledger.root))
    except ObjectNotFound:
        return set()
    ids = plan.ids.to_pylist()
    if plan.written is not None:
        # The parts of a file that was split anew are out, too; others have their rows.
        read = set(plan.table.take(range(len(plan)), "uri")["uri"].to_pylist())
        every = plan.written.take(range(len(plan.written)), "id", "uri").to_pylist()
        ids += [one["id"] for one in every if one["uri"] not in read]
    folders = ["", *(side_name(side, "") for side in sides_of_job(job))]
    return {ledger.uri(f"{folder}{one}{job['suffix']}") for folder in folders for one in ids}


def warn_of_holes(holes: Sequence[Hole], job: str) -> None:
    """Says what is missing of inputs that may be incomplete."""
    for one in holes[:SHOWN]:
        get_logger(job=job).warning(
            "an input is incomplete; its existing outputs are read",
            input=one.output,
            missing_outputs=one.missing,
            planned_outputs=one.planned,
            **({"example": one.example} if one.example else {}),
        )


def _words(hole: Hole, store_of: Callable[[str], Store], allow: str) -> str:
    if hole.problem:
        return (
            f"input {hole.output!r} is the output of a job, but its state is unknown: {hole.problem}; or read the "
            f"existing outputs with {allow}"
        )
    one = hole.missing == 1
    some = f"{hole.missing:,} of the {hole.planned:,} outputs"
    if hole.closed:
        return (
            f"input {hole.output!r} lacks {some} that its job {hole.job!r} planned, such as {hole.example}: the job "
            f"was complete, and {'it is' if one else 'they are'} missing now. Run that job again, which makes only "
            "those "
            f"(curate status {hole.output}), or read the existing outputs with {allow}"
        )
    lacks = f". {some} {'is' if one else 'are'} missing, such as {hole.example}{_asked(hole, store_of)}"
    return (
        f"input {hole.output!r} is the output of an incomplete job; finish that job first (curate status "
        f"{hole.output}), or read the existing outputs with {allow}{lacks if hole.missing else ''}"
    )


def _asked(hole: Hole, store_of: Callable[[str], Store]) -> str:
    """Returns how the last run of a job was asked for a part of it only."""
    ledger = Ledger(store_of(hole.output), hole.output)
    runs = sort_listing(ledger.store.list(ledger.uri(layout.RUNS)), ledger.root).run_ids
    try:
        run = ledger.read_json(layout.run_file(max(runs), "run.json")) if runs else {}
    except (ConfigError, ObjectNotFound):
        return ""
    if isinstance(limit := run.get("limit"), int):
        return f"; its last run was restricted by {option('limit', limit)}"
    if isinstance(sample := run.get("sample"), int | float):
        return f"; its last run was restricted by {option('sample', f'{100 * sample:g}%')}"
    return ""
