"""Reads the state of a chain's steps from their inputs, outputs and ledgers. Imports no job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curate.chain.parameters import problem_of
from curate.chain.plan import StepState
from curate.chain.steps import Step, inputs_of, parameters_of
from curate.dataclass import dataclass, field, replace
from curate.errors import ConfigError, ObjectNotFound
from curate.formats.encoding import stem
from curate.keywords import of_step
from curate.ledger.ledger import INPUTS, DamagedError
from curate.ledger.side_outputs import side_name, sides_of_job
from curate.observe.browse import inputs_of_job
from curate.observe.job import FoundJob, find_job, status_of
from curate.observe.place import NoJobError
from curate.resume.differences import identity_difference
from curate.sources.listing import ledger_above, list_inputs
from curate.sources.patterns import parse_input
from curate.sources.same_bytes import Change, same_bytes
from curate.stores.open import Stores

NONE = INPUTS.empty_table()


@dataclass
class Looks:
    """The steps that were looked at so far, and the stores that were used."""

    now: float
    states: dict[str, StepState] = field(default_factory=dict)
    found: dict[str, FoundJob] = field(default_factory=dict)
    """The jobs of those that have begun."""
    known: dict[str, Any] = field(default_factory=dict)
    """The files that these have planned; None: the list of them is gone."""
    stores: Stores = field(default_factory=Stores)


def look(steps: Sequence[Step], now: float) -> Looks:
    """Returns the state of each step, in order. Reads listings and ledgers, and writes nothing.

    While other drivers run the chain, each step is seen no earlier than those that read it, and what is listed no
    earlier than what was planned of it: seen the other way, what a step has planned would seem to be removed.
    """
    looks = Looks(now)
    begun = {step.name: _begun(step, looks) for step in reversed(steps)}
    for step in steps:
        state = begun[step.name]
        looks.states[step.name] = state if state.problem else _with_inputs(state, step, inputs_of(step, steps), looks)
    return looks


def _begun(step: Step, looks: Looks) -> StepState:
    """Returns the state of a step as its output and its ledger tell it, without its inputs."""
    state = StepState(step.name, step.output, step.reads, only_steps=not step.input)
    if problem := problem_of(step):
        return replace(state, problem=problem)
    try:
        with of_step(step.name):
            found = find_job(step.output)
            status = status_of(found, looks.now)
    except NoJobError:
        return state
    except DamagedError as error:
        return replace(state, damaged=str(error))
    except ConfigError as error:
        return replace(state, problem=str(error))
    try:
        with of_step(step.name):
            known = _known(found, looks)
    except ObjectNotFound:
        # An overwrite was cut off that had removed the list of its inputs: the job says whether it goes on with these.
        known = None
    except DamagedError as error:
        return replace(state, damaged=str(error))
    except ConfigError as error:
        return replace(state, problem=str(error))
    looks.found[step.name], looks.known[step.name] = found, known
    return replace(
        state,
        state=status.state,
        total=status.total,
        done=status.done,
        failed=status.failed,
        rows=status.rows,
        size=found.listing.bytes,
        frozen="inputs" in found.job,
        extensible=found.job.get("extensible", False),
        differs=_differs(step, found.job),
    )


def _with_inputs(state: StepState, step: Step, paths: Sequence[str], looks: Looks) -> StepState:
    """Returns the state with what its inputs are now, beside what it has planned of them."""
    read = paths
    if step.reads and any(name not in looks.found for name in step.reads):
        # Nothing is there to be listed before the first run of a step that it reads.
        paths = step.input
    listed = NONE
    try:
        for path in paths:
            one = _listed(path, looks, made=path not in step.input)
            listed = pa.concat_tables([listed, one.select(NONE.schema.names).cast(NONE.schema)])
    except ConfigError as error:
        name = path.rstrip("/").rpartition("/")[2]
        meant = path in step.input and name in looks.states and name != step.name
        hint = f'; the output of the step {name!r} is input_from = "{name}"' if meant else ""
        return replace(state, problem=f"{error}{hint}")
    found = looks.found.get(state.name)
    known = looks.known.get(state.name, NONE)
    if known is None:
        known = listed
    expected = _expected(step, looks)
    is_new = pc.invert(pc.is_in(listed["uri"], value_set=known["uri"].combine_chunks()))
    new = listed.filter(is_new)
    last_known = max(pc.indices_nonzero(pc.invert(is_new)).to_pylist(), default=-1)
    gone = known.filter(pc.invert(pc.is_in(known["uri"], value_set=listed["uri"].combine_chunks())))
    lost = pc.sum(pc.is_in(gone["uri"], value_set=expected)).as_py() or 0
    removed = len(gone) - lost
    there = pa.concat_arrays([*known["uri"].chunks, *listed["uri"].chunks])
    coming = expected.filter(pc.invert(pc.is_in(expected, value_set=there)))
    # Of one folder the order is that of names; of several, that in which they are given.
    alone = len(read) == 1 and len(known) > 0
    return replace(
        state,
        new=len(pc.unique(new["uri"])),
        inserted=(pc.sum(is_new[: last_known + 1]).as_py() or 0) + (alone and _before(coming, known["uri"])),
        between=_between(new["uri"], known["uri"]) if alone else 0,
        changed=_changed(known, listed, looks, told=not (state.frozen and 0 < state.done < state.total)),
        removed=removed,
        lost=lost,
        made_of=_made_of(known, listed, read) if state.only_steps and removed == len(known) else "",
        coming=len(coming) if found is not None else 0,
    )


def _before(some: Any, others: Any) -> int:
    """Returns how many names do not come behind all others."""
    return pc.sum(pc.less(some, pc.max(others))).as_py() or 0


def _between(new: Any, known: Any) -> int:
    """Returns of how many new files the outputs do not come behind those of all that are known: they are called after
    them, and end in another way."""
    last = max(f"{stem(one)}." for one in known.to_pylist())
    first = new.filter(pc.less(new, pc.max(known)))
    return sum(f"{stem(one)}." < last for one in first.to_pylist())


def _made_of(known: Any, listed: Any, paths: Sequence[str]) -> str:
    """Returns the folder of the first of planned inputs, of which none is there; empty where the steps that wrote them
    may do so again, as nothing of theirs is there."""
    uris = known["uri"].to_pylist()
    again = not len(listed) and any(uri.startswith(f"{path}/") for uri in uris for path in paths)
    return uris[0].rpartition("/")[0] if uris and not again else ""


def _listed(path: str, looks: Looks, *, made: bool) -> Any:
    """Returns the files of an input; `made` by an earlier step, there may be none yet."""
    try:
        return list_inputs([parse_input(path)], looks.stores.of).table.table()
    except ConfigError:
        if made:
            return NONE
        raise


def _known(found: FoundJob, looks: Looks) -> Any:
    """Returns the files that a step has planned, each once: those of its plan, or those that it began with."""
    while "upstream" in found.job["identity"] and len(found.plan):
        # It reads a checkpoint, which has read its inputs.
        folder = str(found.plan.table.row(0, "uri")[0]).rpartition("/")[0]
        found = find_job(ledger_above(folder, looks.stores.of(folder)) or folder)
    return inputs_of_job(found)


def _expected(step: Step, looks: Looks) -> Any:
    """Returns where the outputs are to be of the steps that it reads, as an Arrow array of URIs."""
    uris = [pa.array([], pa.string())]
    for one in step.input_from:
        name, _, side = one.partition("/")
        if (found := looks.found.get(name)) is not None and (not side or side in sides_of_job(found.job)):
            folder = f"{found.ledger.root}/{side_name(side, '') if side else ''}"
            made = pc.binary_join_element_wise(folder, found.plan.ids, found.job["suffix"], "")
            uris.append(made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made)
    return pa.concat_arrays([one.cast(pa.string()) for one in uris])


def _changed(known: Any, listed: Any, looks: Looks, *, told: bool) -> int:
    """Returns how many files are other objects now; `told`: of other bytes, as far as ledgers tell. A job with an
    exchange that has made some of its outputs takes no other objects."""
    position = pc.index_in(known["uri"], value_set=listed["uri"].combine_chunks())
    there = known.append_column("now", listed["generation"].take(position)).append_column(
        "bytes", listed["size"].take(position)
    )
    other = there.filter(pc.fill_null(pc.not_equal(there["now"], there["generation"]), False))
    if not len(other) or not told:
        return len(other)
    columns = other.filter(pc.equal(other["size"], other["bytes"])).select(["uri", "generation", "now"])
    changes = (Change(*row.values()) for row in columns.to_pylist())
    return len(other) - len(same_bytes(changes, looks.stores.of))


def _differs(step: Step, job: Mapping[str, Any]) -> str:
    """Returns how the step's options differ from what its output was made with, as far as that is seen without the job:
    those of its values that are recorded as they are given."""
    made, asked = {**job["parameters"], **job["identity"]}, {}
    for name, value in parameters_of(step).items():
        if name in made:
            asked[name] = _as_recorded(made[name], value)
    return identity_difference({name: made[name] for name in asked}, asked)


def _as_recorded(made: Any, asked: Any) -> Any:
    """Returns what is asked in the form that it is recorded in, of which a file, say, has more than its URI: what was
    made where that is not known."""
    match made, asked:
        case float(), int():
            return float(asked)
        case list(), list() if len(made) == len(asked):
            return [_as_recorded(one, other) for one, other in zip(made, asked, strict=True)]
        case dict(), dict():
            return {name: _as_recorded(made.get(name), one) for name, one in asked.items()}
    return asked if made is None or type(made) is type(asked) else made
