"""What must run of a chain, as a pure decision: two steps, of which the second reads the first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from curate.chain.plan import Action, Asked, StepState, verdicts
from curate.chain.steps import Step, below

DONE: dict[str, Any] = {"state": "complete", "total": 4, "done": 4}
FIRST = StepState("a", "/a", **DONE)
SECOND = StepState("b", "/b", ("a",), only_steps=True, **DONE)
FROZEN = replace(SECOND, frozen=True)
EXTENSIBLE = replace(FROZEN, extensible=True)
RUN, NOTHING, REFUSED, WAIT = Action.RUN, Action.NOTHING, Action.REFUSED, Action.WAIT
NONE = Asked()


@pytest.mark.parametrize(
    ("first", "second", "asked", "expected"),
    [
        (FIRST, SECOND, NONE, (NOTHING, NOTHING)),
        (StepState("a", "/a", new=4), StepState("b", "/b", ("a",), only_steps=True), NONE, (RUN, RUN)),
        # What is new goes through; what was lost is made again, and nothing after it.
        (replace(FIRST, new=1), SECOND, NONE, (RUN, RUN)),
        (replace(FIRST, done=3), replace(SECOND, lost=1), NONE, (RUN, NOTHING)),
        (replace(FIRST, done=3), replace(SECOND, coming=1), NONE, (RUN, RUN)),
        (replace(FIRST, state="pending"), SECOND, NONE, (RUN, NOTHING)),
        # What changed outside is kept until that is asked for; what earlier steps changed is taken.
        (replace(FIRST, changed=1, removed=1), SECOND, NONE, (NOTHING, NOTHING)),
        (replace(FIRST, changed=1), SECOND, Asked(redo_stale=True), (RUN, RUN)),
        (replace(FIRST, removed=1), SECOND, Asked(drop_removed=True), (RUN, RUN)),
        (FIRST, replace(SECOND, changed=1), NONE, (NOTHING, RUN)),
        (FIRST, replace(SECOND, removed=1), NONE, (NOTHING, RUN)),
        (FIRST, replace(SECOND, changed=1, only_steps=False), NONE, (NOTHING, NOTHING)),
        # Who is refused keeps those waiting that read it, and is not refused where it is made anew.
        (replace(FIRST, differs="other"), SECOND, NONE, (REFUSED, WAIT)),
        (replace(FIRST, problem="no input"), SECOND, Asked(overwrite={"a", "b"}), (REFUSED, WAIT)),
        (replace(FIRST, differs="other"), SECOND, Asked(overwrite={"a", "b"}), (RUN, RUN)),
        (FIRST, replace(SECOND, differs="other"), NONE, (NOTHING, REFUSED)),
        # Other code is refused where there is something to do.
        (replace(FIRST, other_code="code"), SECOND, NONE, (NOTHING, NOTHING)),
        (replace(FIRST, other_code="code", new=1), SECOND, NONE, (REFUSED, WAIT)),
        (replace(FIRST, new=1), replace(SECOND, other_code="code"), NONE, (RUN, REFUSED)),
        # An exchange keeps to its inputs: of other ones it is refused, of lost ones it is not.
        (replace(FIRST, new=1), FROZEN, NONE, (RUN, REFUSED)),
        (replace(FIRST, done=3), replace(FROZEN, lost=1), NONE, (RUN, NOTHING)),
        (FIRST, replace(FROZEN, changed=1), NONE, (NOTHING, REFUSED)),
        (replace(FIRST, new=1), FROZEN, Asked(overwrite={"b"}), (RUN, RUN)),
        (FIRST, replace(FROZEN, done=3), NONE, (NOTHING, RUN)),
        # One that takes what comes behind: of nothing else.
        (replace(FIRST, new=1), EXTENSIBLE, NONE, (RUN, RUN)),
        (replace(FIRST, new=1, between=1), EXTENSIBLE, NONE, (RUN, REFUSED)),
        (replace(FIRST, new=1, between=1), replace(EXTENSIBLE, coming=1), NONE, (RUN, RUN)),
        (replace(FIRST, new=1, between=1), SECOND, NONE, (RUN, RUN)),
        (replace(FIRST, new=1, between=1), EXTENSIBLE, Asked(overwrite={"b"}), (RUN, RUN)),
        (FIRST, replace(EXTENSIBLE, new=1), NONE, (NOTHING, RUN)),
        (FIRST, replace(EXTENSIBLE, new=2, inserted=1), NONE, (NOTHING, REFUSED)),
        (FIRST, replace(EXTENSIBLE, new=1, changed=1), NONE, (NOTHING, REFUSED)),
        (FIRST, replace(EXTENSIBLE, new=1, removed=1), Asked(drop_removed=True), (NOTHING, REFUSED)),
        (replace(FIRST, new=1, changed=1), EXTENSIBLE, Asked(redo_stale=True), (RUN, REFUSED)),
        (replace(FIRST, done=3), replace(EXTENSIBLE, coming=1), NONE, (RUN, RUN)),
        (StepState("a", "/a", new=4), EXTENSIBLE, NONE, (RUN, REFUSED)),
        # What was made of another step's outputs is refused before what it is to read now is made.
        (StepState("a", "/a", new=4), replace(SECOND, removed=4, made_of="/c"), NONE, (RUN, REFUSED)),
        (FIRST, replace(SECOND, removed=4, new=4, made_of="/c"), Asked(drop_removed=True), (NOTHING, REFUSED)),
        (FIRST, replace(SECOND, removed=4, new=4, made_of="/c"), Asked(overwrite={"b"}), (NOTHING, RUN)),
    ],
)
def test_what_must_run(first: StepState, second: StepState, asked: Asked, expected: tuple[Action, Action]) -> None:
    assert tuple(one.action for one in verdicts([first, second], asked)) == expected


@pytest.mark.parametrize("second", [SECOND, FROZEN], ids=["runs", "refused"])
@pytest.mark.parametrize(
    ("first", "asked", "will"),
    [
        (replace(FIRST, new=1), NONE, "add"),
        (replace(FIRST, new=1, changed=1, removed=1), NONE, "add"),
        (replace(FIRST, changed=1), Asked(redo_stale=True), "change"),
        (replace(FIRST, removed=1), Asked(drop_removed=True), "change"),
        (replace(FIRST, new=1, changed=1), Asked(redo_stale=True), "change"),
        (FIRST, Asked(overwrite={"a"}), "change"),
    ],
)
def test_what_earlier_steps_do_to_inputs_is_told_as_it_is(
    first: StepState, second: StepState, asked: Asked, will: str
) -> None:
    """What is replaced or taken out was said to be added."""
    assert f"what a will {will}" in verdicts([first, second], asked)[1].why[0]


@pytest.mark.parametrize(
    ("state", "why"),
    [("interrupted", "it was interrupted"), ("pending", "its end was not written"), ("stalled", "its end was not")],
)
def test_why_a_step_runs_whose_shards_are_done(state: str, why: str) -> None:
    """An interrupt between the stages of an exchange was told as an end that nobody wrote down."""
    (found,) = verdicts([replace(FIRST, state=state, total=0, done=0)], NONE)
    assert (found.action, found.why[0][: len(why)]) == (RUN, why)


def test_what_is_made_anew_with_a_step() -> None:
    """All that read it, also through others; no other one."""
    steps = [
        Step("a", "x", output="a", input="in"),
        Step("b", "x", output="b", input_from="a"),
        Step("c", "x", output="c", input="in", input_from=["b/side"]),
        Step("d", "x", output="d", input_from="a"),
    ]
    assert below(["b"], steps) == {"b", "c"}
