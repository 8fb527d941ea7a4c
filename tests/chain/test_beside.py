"""What is seen of a chain while another driver runs it, whenever that goes on between two reads of who looks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from curate.chain.chain import Chain
from curate.chain.plan import Action, Asked, verdicts
from curate.stores.faulty import FaultyStore
from curate.stores.open import wrap_stores
from tests.chain.chains import place

__all__ = ["place"]

CHAIN = """
[steps.clean]
job = "steps_of_test.py:Clean"
input = "in/0[0-2].jsonl"
output = "out/clean"

[steps.second]
job = "steps_of_test.py:Ordered"
input_from = "clean"
output = "out/second"
"""
STEPS = ("clean", "second")


class Between(FaultyStore):
    """Does something before the call of some number, counted over all stores."""

    left = 0
    then: Callable[[], None] = staticmethod(lambda: None)

    def _call(self, operation: str, uri: str, *effects: Any) -> Any:
        Between.left -= 1
        if not Between.left:
            Between.then()
        return super()._call(operation, uri, *effects)


def test_what_others_make_meanwhile_is_not_taken_for_removed(place: Path) -> None:
    """A step whose inputs were looked at before the other driver made them was said to be made of removed ones, and
    its part, or its exchange, refused. So at each read, by each number of steps that the other one gets on."""
    (place / "two.toml").write_text(CHAIN)
    chain = Chain.read("two.toml")
    assert chain.run(backend="inline").complete
    (place / "later").mkdir()

    def made(steps: int) -> None:
        """Has so many steps be there, as the files that they are: copies would be other objects."""
        for number, name in enumerate(STEPS):
            here, away = place / "out" / name, place / "later" / name
            if number < steps and away.exists():
                away.rename(here)
            elif number >= steps and here.exists():
                here.rename(away)

    for before, after in itertools.combinations(range(3), 2):
        for at in itertools.count(1):
            made(before)
            Between.left, Between.then = at, lambda after=after: made(after)
            with wrap_stores(Between):
                states = chain.status()
            if Between.left > 0:
                break
            told = before, after, at
            assert [(one.removed, one.changed, one.made_of, one.problem) for one in states] == [(0, 0, "", "")] * 2, (
                told
            )
            assert Action.REFUSED not in {one.action for one in verdicts(states, Asked())}, told
        assert at > 5
