"""Shows in what two identities differ: of a long pipeline the steps that do, of a long value the place."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from curate.resume.shown import LONG_CODE, readable

Told = Sequence[Mapping[str, Any]]
"""The stages of a job as its `job.json` has them."""
Stages = Callable[[Mapping[str, Any]], Told]
"""Returns the stages of a job with the seed that its `job.json` has."""
EXCHANGE = "exchange"
"""The part of an identity that says which exchange comes before a stage, and at its end what that reads."""
_DRAWING = ("random_sample", "train_test_split")
"""Steps that draw a seed of 64 bits where none is given."""
_FEWEST_DRAWN = 1 << 32
"""Hardly any that is drawn is lower, or one that is given as high."""
_LONG = 200
"""Characters from which a value is not shown whole."""
_BEFORE = 60
"""Characters that are shown of what two long texts have in common, before that in which they differ."""


class _Nothing:
    """Stands for what is not there, which is not None."""

    def __repr__(self) -> str:
        return "nothing"


_NOTHING = _Nothing()


def identity_difference(
    theirs: Mapping[str, Any], ours: Mapping[str, Any], stages: Callable[[], tuple[Told, Told]] = lambda: ((), ())
) -> str:
    """Returns both sides of every difference, one a line; of what an exchange reads, that of the stages of both.

    >>> print(identity_difference({"version": "1", "a": 1}, {"version": "2", "a": 1}))
      version: made with '1', you asked for '2'
    """
    lines = list[str]()
    for key in sorted({*theirs, *ours}):
        there, here = theirs.get(key, _NOTHING), ours.get(key, _NOTHING)
        if isinstance(there, Mapping) and isinstance(here, Mapping):
            for name in sorted({*there, *here}):
                lines += _differences(f"{key}.{name}", there.get(name, _NOTHING), here.get(name, _NOTHING))
        elif key == EXCHANGE and isinstance(there, list) and isinstance(here, list):
            lines += _exchange_differences(there, here, stages)
        else:
            lines += _differences(key, there, here)
    return "\n".join(lines)


def _exchange_differences(theirs: list[Any], ours: list[Any], stages: Callable[[], tuple[Told, Told]]) -> list[str]:
    """Returns a line for each difference of two exchanges; of what they read only where they are the same themselves,
    for a hash tells that."""
    if theirs == ours or theirs[:-1] != ours[:-1]:
        return _differences(EXCHANGE, theirs[:-1], ours[:-1])
    if len(theirs) > 2:  # of what was sliced the steps are known, and no stage is
        return _differences("steps before the exchange", theirs[-1], ours[-1])
    return _stage_differences(*stages()) or ["  what the exchange reads is another: its inputs, or a step before it"]


def _stage_differences(theirs: Told, ours: Told) -> list[str]:
    """Returns the differences of the first stage that is another; none where that is not known, as earlier versions did
    not tell it, or where there is another number of stages."""
    for there, here in zip(theirs, ours, strict=True) if len(theirs) == len(ours) else ():
        made, asked = there.get("identity"), here.get("identity")
        if isinstance(made, Mapping) and isinstance(asked, Mapping) and made != asked:
            found = identity_difference(made, asked)
            return [f"  in a step before the exchange, {here['name']}:", *(f"  {one}" for one in found.splitlines())]
    return []


def _differences(name: str, theirs: Any, ours: Any) -> list[str]:
    """Returns a line for each difference of two values."""
    if theirs == ours:
        return []
    if file := _changed_file(name, theirs, ours):
        return [file]
    parts = apart(name, theirs, ours)
    lines = [f"  {part}: made with {there}, you asked for {here}" for part, there, here in parts]
    return [*lines, *_drawn_seeds(theirs, ours)]


def _drawn_seeds(theirs: Any, ours: Any) -> Iterator[str]:
    """Yields a line for each step that had no seed, of which each run of a script draws another one."""
    for one, other in zip(theirs, ours, strict=False) if isinstance(theirs, list) and isinstance(ours, list) else ():
        match one, other:
            case [str(name), *rest], [str(again), *others] if name == again and name in _DRAWING:
                seeds = [both for both in zip(rest, others, strict=False) if both[0] != both[1]]
                if len(seeds) == 1 and all(isinstance(seed, int) and seed >= _FEWEST_DRAWN for seed in seeds[0]):
                    yield f"  without a seed, {name} draws one each time: seed={seeds[0][0]} keeps the rows of before"


def _changed_file(name: str, theirs: Any, ours: Any) -> str:
    """Returns the line for assets whose files were written again; empty for any other difference."""
    lists = isinstance(theirs, list) and isinstance(ours, list)
    pairs = list(itertools.zip_longest(theirs, ours)) if lists else [(theirs, ours)]
    assets = [isinstance(one, Mapping) and one.keys() == {"uri", "generation"} for pair in pairs for one in pair]
    if not all(assets) or any(one["uri"] != other["uri"] for one, other in pairs):
        return ""
    told = [
        f"{one['uri']} was written again since (generation {one['generation']} before, {other['generation']} now)"
        for one, other in pairs
        if one != other
    ]
    return f"  {name}: {', '.join(told)}"


def apart(name: str, theirs: Any, ours: Any) -> Iterator[tuple[str, str, str]]:
    """Yields in what two values differ, as people read it, by its name: both whole where they are short, else the items
    and the places in texts. A pipeline is long, and what is another in it a number.

    >>> steps = [["map", "x" * 200], ["filter", f"{'y' * 200} = 1"]]
    >>> list(apart("operators", steps, [steps[0], ["filter", f"{'y' * 200} = 2"]]))[0][0]
    'operators[1] filter'
    """
    values = _value_apart(theirs, ours)
    shown = repr(readable(theirs)), repr(readable(ours))
    if max(map(len, shown)) <= _LONG and not values:
        yield name, *shown
    elif isinstance(theirs, list) and isinstance(ours, list):
        first = _alike(theirs, ours)
        last = _alike(theirs[first:][::-1], ours[first:][::-1])
        there, here = theirs[first : len(theirs) - last], ours[first : len(ours) - last]
        if len(there) != len(here):
            yield name, *_windows(repr(readable(there)), repr(readable(here)))
            return
        for number, (one, other) in enumerate(zip(there, here, strict=True), first):
            is_step = isinstance(one, list) and one and isinstance(one[0], str)
            if one != other:
                yield from apart(f"{name}[{number}] {one[0]}" if is_step else name, one, other)
    elif isinstance(theirs, str) and isinstance(ours, str):
        yield name, *_windows(*values or (readable(theirs), readable(ours)))
    else:
        yield name, *_windows(*shown)


def _value_apart(theirs: Any, ours: Any) -> tuple[str, str] | None:
    """Returns both sides of the first long value in which the same code differs, or items of two lists do: few words
    would not show it. None if there is none."""
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        return next(filter(None, map(_value_apart, theirs, ours)), None)
    if not (isinstance(theirs, str) and isinstance(ours, str)):
        return None
    lines = zip(theirs.splitlines(), ours.splitlines(), strict=False)
    one, other = next((both for both in lines if both[0] != both[1]), ("", ""))
    name = re.match(r"[\w.]+ = ", one)
    is_value = name is not None and other.startswith(name[0]) and max(len(one), len(other)) >= LONG_CODE
    return (one, other) if is_value else None


def _alike(theirs: Any, ours: Any) -> int:
    """Returns how many items, or characters, two values have in common from the first one on."""
    at = 0
    for one, other in zip(theirs, ours, strict=False):
        if one != other:
            break
        at += 1
    return at


def _windows(theirs: str, ours: str) -> tuple[str, str]:
    """Returns two texts around where they begin to differ, of these lines alone."""
    alike = _alike(theirs, ours)
    start = max(0, theirs.rfind("\n", 0, alike) + 1, alike - _BEFORE)

    def window(text: str) -> str:
        line = text.find("\n", alike)
        stop = min(start + _LONG, len(text), len(text) if line < 0 else line)
        return f"{'...' * (start > 0)}{text[start:stop]}{'...' * (stop < len(text))}"

    return window(theirs), window(ours)
