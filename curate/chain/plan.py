"""Decides which steps of a chain must run, from their states alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any

from curate.dataclass import dataclass, field, replace
from curate.keywords import option
from curate.units import format_bytes, format_count


class Action(StrEnum):
    """What a run of the chain would do with a step."""

    NOTHING = "up to date"
    RUN = "runs"
    WAIT = "waits"
    """A step that it reads is refused."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class StepState:
    """A step as the buckets show it. Inputs are counted as files."""

    name: str
    output: str
    reads: tuple[str, ...] = ()
    """Names of the steps that it reads."""
    only_steps: bool = False
    """Whether it reads nothing else."""
    state: str = ""
    """That of its job, as `curate status` says it; empty: it has not begun."""
    total: int = 0
    """Shards that are planned."""
    done: int = 0
    failed: int = 0
    rows: Mapping[str, Any] = field(default_factory=dict)
    size: int = 0
    """Bytes of its outputs."""
    new: int = 0
    """Inputs that it has not planned."""
    inserted: int = 0
    """Those of them, and of what is coming, that do not come behind all that it has."""
    between: int = 0
    """Those of the new ones whose outputs will not come behind all that it has written."""
    changed: int = 0
    """Inputs that are other objects now, of other bytes as far as that can be told."""
    removed: int = 0
    """Inputs that are gone, and that no earlier step will make again."""
    lost: int = 0
    """Inputs that are gone, and that an earlier step makes again."""
    made_of: str = ""
    """The folder of the inputs that it has planned, where the steps that it reads now have and make none of them."""
    coming: int = 0
    """Outputs that earlier steps have planned and not made, and that this step has not planned."""
    frozen: bool = False
    """Whether it keeps to the inputs that it began with: it has an exchange."""
    extensible: bool = False
    """Whether it takes new inputs behind those, all the same."""
    differs: str = ""
    """How what was asked for differs from what the output was made with."""
    other_code: str = ""
    """Why nothing more may be made: its code changed under the same version."""
    damaged: str = ""
    """Why its ledger cannot be read, which making it anew is the remedy for."""
    problem: str = ""
    """Why its inputs cannot be read."""

    @property
    def begun(self) -> bool:
        return bool(self.state)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run would do with a step, and why."""

    name: str
    action: Action
    why: tuple[str, ...] = ()
    changes: bool = False
    """Whether its outputs will be others than those that the steps after it have seen."""
    adds: bool = False
    """Whether these will be there too, as they are."""
    inserts: bool = False
    """Whether some of the others will come before some of these."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What decides how all steps are run."""

    redo_stale: bool = False
    drop_removed: bool = False
    overwrite: Collection[str] = frozenset()
    """Names of the steps that are made anew, with all that read them."""


def verdicts(states: Sequence[StepState], asked: Asked) -> tuple[Verdict, ...]:
    """Returns what a run would do with each step, in their order.

    >>> a = StepState("a", "/a", state="complete", total=2, done=1)
    >>> b = StepState("b", "/b", ("a",), only_steps=True, state="complete", total=2, done=2, lost=1)
    >>> [(one.action.value, one.why) for one in verdicts([a, b], Asked())]
    [('runs', ('1 of 2 shards',)), ('up to date', ())]
    """
    found: dict[str, Verdict] = {}
    for state in states:
        found[state.name] = _verdict(state, [found[name] for name in state.reads], asked)
    return tuple(found.values())


def _verdict(state: StepState, read: Sequence[Verdict], asked: Asked) -> Verdict:
    if waits := [one.name for one in read if one.action in (Action.REFUSED, Action.WAIT)]:
        return Verdict(state.name, Action.WAIT, (f"for {', '.join(waits)}",))
    if state.problem:
        return Verdict(state.name, Action.REFUSED, (state.problem,))
    if state.name in asked.overwrite:
        return Verdict(state.name, Action.RUN, ("all of it is made anew",), changes=True)
    if state.damaged or state.differs:
        return Verdict(state.name, Action.REFUSED, (state.damaged or state.differs,))
    after = [one.name for one in read if one.changes]
    replaced = any(one.changes and not one.adds for one in read)
    # What it has not planned yet may be what these come before.
    inserted = any(one.inserts for one in read) and not (state.new or state.coming)
    if state.frozen and _needs_other_inputs(state, after, replaced=replaced, inserted=inserted):
        return Verdict(state.name, Action.REFUSED, (_frozen(state, after, replaced=replaced),))
    if state.made_of:
        return Verdict(state.name, Action.REFUSED, (_of_others(state),))
    if not state.begun:
        return Verdict(state.name, Action.RUN, (_first(state, read),), changes=True)
    found = _to_do(state, after, asked, replaced=replaced)
    return replace(found, inserts=found.action is Action.RUN and (state.between > 0 or inserted))


def _needs_other_inputs(state: StepState, after: Sequence[str], *, replaced: bool, inserted: bool) -> bool:
    """Returns whether a step that has an exchange would have to take what it does not take: outputs of the steps
    `after` which it runs may be `replaced`, and others `inserted` between them."""
    if state.extensible:
        return bool(state.changed or state.removed or state.inserted or replaced or inserted)
    return bool(state.new or state.changed or state.removed or state.coming or after)


def _to_do(state: StepState, after: Sequence[str], asked: Asked, *, replaced: bool) -> Verdict:
    """Returns what is to be done of a step that has begun and is not refused."""
    changed = state.changed if takes_changed(state, asked) else 0
    removed = state.removed if takes_removed(state, asked) else 0
    todo = []
    if left := state.total - state.done:
        todo.append(f"{left:,} of {format_count(state.total, 'shard')}")
    todo += [text for n, text in _differences(state.new, changed, removed) if n]
    if state.coming or after:
        todo.append(_coming(state, after, replaced=replaced))
    if not todo and state.state != "complete":
        todo.append("it was interrupted" if state.state == "interrupted" else "its end was not written down")
    if todo and state.other_code:
        return Verdict(state.name, Action.REFUSED, (state.other_code,))
    changes = bool(state.new or changed or removed or after)
    adds = not (changed or removed or replaced)
    return Verdict(state.name, Action.RUN if todo else Action.NOTHING, tuple(todo), changes, adds)


def takes_changed(state: StepState, asked: Asked) -> bool:
    """Returns whether outputs of changed inputs are replaced: where earlier steps alone made these, always."""
    return asked.redo_stale or state.only_steps


def takes_removed(state: StepState, asked: Asked) -> bool:
    """Returns whether outputs of removed inputs are removed: where earlier steps alone made these, always."""
    return asked.drop_removed or state.only_steps


def _differences(new: int, changed: int, removed: int) -> list[tuple[int, str]]:
    return [
        (new, f"{format_count(new, 'new input')}"),
        (changed, f"{format_count(changed, 'changed input')}"),
        (removed, f"{format_count(removed, 'removed input')}"),
    ]


def kept(state: StepState, asked: Asked) -> tuple[str, ...]:
    """Returns what is out of date in a step and stays so, each with the option that changes it."""
    found = []
    if state.changed and not takes_changed(state, asked):
        found.append(
            f"{format_count(state.changed, 'input')} changed, outputs kept ({option('redo_stale')} replaces them)"
        )
    if state.removed and not takes_removed(state, asked):
        found.append(
            f"{format_count(state.removed, 'input')} removed, outputs kept ({option('drop_removed')} removes them)"
        )
    return tuple(found)


def _first(state: StepState, read: Sequence[Verdict]) -> str:
    if any(one.action is not Action.NOTHING for one in read):
        return f"once {', '.join(one.name for one in read if one.action is not Action.NOTHING)} is done"
    return f"{format_count(state.new, 'input')}, nothing is done yet"


def _of_others(state: StepState) -> str:
    return (
        f"its output {state.output} was made of files in {state.made_of}, and {', '.join(state.reads)}, which it reads "
        "now, has none of them: to take all of them out would remove that output; make it, and what reads it, anew "
        f"with {option('overwrite', [state.name])}, or give it another output"
    )


def _coming(state: StepState, after: Sequence[str], *, replaced: bool) -> str:
    """Returns in words what the steps `after` which it runs will make of its inputs."""
    return f"what {', '.join(after or state.reads)} will {'change' if replaced else 'add'}"


def _frozen(state: StepState, after: Sequence[str], *, replaced: bool) -> str:
    texts = [text for n, text in _differences(state.new, state.changed, state.removed) if n]
    if state.coming or after:
        texts.append(_coming(state, after, replaced=replaced))
    why = "an exchange (sort, group, join, shuffle, deduplication) makes every output of all inputs"
    if state.extensible:
        why = "an exact deduplication takes new inputs only behind all others, with the others as they were"
    return (
        f"its output {state.output} was made of other inputs ({', '.join(texts)}), and {why}; make all of it "
        f"({format_count(state.total, 'shard')}, {format_bytes(state.size)}) and what reads it anew with "
        f"{option('overwrite', [state.name])}, or give it another output"
    )
