"""How much is tried: little in the quick tests, all kinds of it in CI, all of it at night. And where runs are killed:
before operations of every kind that changes what is stored; before each of all at night. Where kills of the same
protocol are tried elsewhere, CI takes a part of the kinds."""

from __future__ import annotations

import heapq
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Protocol, TypeVar

import pytest

from curate.storage.faults import Fault

_CHANGES = re.compile(
    r"(os|posix|nt|shutil)\.|_?Client\.answer (POST|PUT|PATCH|DELETE)|(publish|replace|delete|write)\b"
)


class Mode(StrEnum):
    """What the tests are run as."""

    QUICK = "quick"
    CI = "ci"
    NIGHTLY = "nightly"


def mode_of(config: pytest.Config) -> Mode:
    """Returns what the tests are run as: quick where no others than quick ones are asked for."""
    if config.getoption("--nightly"):
        return Mode.NIGHTLY
    return Mode.QUICK if config.getoption("markexpr") == "not slow" else Mode.CI


QUICK_CASES = 2
"""Cases of a test that the quick tests take, if it has no mark `quick`. CI takes all that the mark `ci` leaves."""


class Case(Protocol):
    """A case of a test: a test of pytest's, or what it will be made of."""

    @property
    def nodeid(self) -> str: ...

    def get_closest_marker(self, name: str) -> pytest.Mark | None: ...


C = TypeVar("C", bound=Case)


def of_mode(cases: Iterable[C], mode: Mode) -> list[C]:
    """Returns those of a selection's tests that are run: none that are for the night, and on Ray, or in quick tests,
    some of those that have many cases, and in CI of those of `ci`."""
    if mode is Mode.NIGHTLY:
        return list(cases)
    found = [one for one in cases if not one.get_closest_marker("nightly")]
    on_ray = [one for one in found if one.get_closest_marker("ray_lane")]
    out = set(map(id, on_ray)) - set(map(id, some_cases(on_ray, "ray")))
    found = [one for one in found if id(one) not in out]
    taken = set(map(id, some_cases(found, mode, QUICK_CASES if mode is Mode.QUICK else None)))
    return [one for one in found if id(one) in taken]


def some_cases(items: Iterable[C], mark_name: str, most: int | None = None) -> Iterator[C]:
    """Yields the tests, but of one with the mark, such as `quick(n)`, only n cases, of one without it `most`, evenly
    spread over those that there are, with each value of each parameter as often as can be. No number, or None: all.

    Of tests of which CI takes one case, some are run with one store, say, and some with another.
    """
    cases: dict[str, list[C]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, found in cases.items():
        mark = found[0].get_closest_marker(mark_name)
        number = mark.args[0] if mark and mark.args else None if mark else most
        wanted = len(found) if number is None else min(number, len(found))
        if wanted == len(found):
            yield from found
        elif wanted == 1 and mark_name == Mode.CI:
            yield found[zlib.crc32(name.rpartition("::")[2].encode()) % len(found)]
        else:
            yield from (found[at] for at in spread([item.nodeid.partition("[")[2] for item in found], wanted))


def spread(names: Sequence[str], wanted: int) -> list[int]:
    """Returns which of the cases of these names to take: as many different values of each parameter as can be among
    them, which are the parts of a name. Of cases that are as good as others, those evenly spread.

    Every second one of the cases of two parameters, say, would have one value of the second parameter alone.

    >>> spread(["a-x", "a-y", "b-x", "b-y"], 2)
    [0, 3]
    >>> spread(["a", "b", "c", "d"], 2)
    [0, 2]
    """
    even = [at * len(names) // wanted for at in range(wanted)]
    left = [*even, *sorted(set(range(len(names))) - set(even))]
    values = [list(enumerate(name.rstrip("]").split("-"))) for name in names]
    seen: Counter[tuple[int, str]] = Counter()
    taken: list[int] = []
    # The best first, by what was its worth when it was last looked at: it is worth no more since.
    worth = [(-1.0, place) for place in range(len(left))]
    while len(taken) < wanted:
        _, place = heapq.heappop(worth)
        at = left[place]
        # How rare its values are among those that were taken: one that is not there yet outweighs all that are.
        now = (-sum(1 / (1 + 9 * seen[value]) for value in values[at]) / len(values[at]), place)
        if worth and now > worth[0]:
            heapq.heappush(worth, now)
        else:
            taken.append(at)
            seen.update(values[at])
    return sorted(taken)


Sweep = Callable[[Sequence[str], int], list[int]]
"""Returns the numbers of the operations before which a run is killed, given their kinds in order, and how many of these
kinds go without in the quick tests: all but every fourth, say. Where it is more, CI takes four times as many."""


def kill_points(operations: Sequence[str]) -> list[int]:
    """Returns the numbers of the operations to kill a run before: one of each kind that changes what is stored, the
    first of one kind and the last of the next, and the last of all.

    Before one that only reads, what is stored is what it is before the next change; and after a change, too. Others of
    a kind are like these, and are tried at night.
    """
    found: dict[str, list[int]] = {}
    for number, kind in enumerate(operations):
        if _CHANGES.match(kind):
            found.setdefault(kind, []).append(number)
    ends = {numbers[-(at % 2)] for at, numbers in enumerate(found.values())}
    return sorted(ends | {len(operations) - 1})


def sweep_of(mode: Mode) -> Sweep:
    """Returns the sweep of tests that are run so."""
    match mode:
        case Mode.QUICK:
            return lambda operations, every: kill_points(operations)[::every]
        case Mode.CI:
            return lambda operations, every: kill_points(operations)[:: max(1, every // 4)]
        case Mode.NIGHTLY:
            return lambda operations, _: list(range(len(operations)))


class Trace(Fault):
    """No fault: it notes the kind of each call of the stores, with what it is called on, but for numbers and names of
    runs."""

    __slots__ = ("kinds",)

    def __init__(self) -> None:
        super().__init__()
        self.kinds: list[str] = []

    def hits(self, operation: str, uri: str) -> bool:
        self.kinds.append(f"{operation} {re.sub(r'[0-9a-f]*[0-9][0-9a-zA-Z-]*', '#', uri)}")
        return False
