"""Leaves out as they are made most of the tests that a run leaves out: two of three, in the quick tests. To make one
takes pytest half a millisecond, in each of its processes, and there are some ten thousand.

What is left is chosen as ever (`of_mode`, and the `-m` of pytest), so that the same tests are run; where only some are
asked for by name, which pytest compares when all are made, nothing is left out here.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from inspect import isclass, isfunction
from typing import Any

import pytest
from _pytest.mark import MarkMatcher
from _pytest.mark.expression import Expression
from _pytest.mark.structures import get_unpacked_marks

from tests.support.sweeps import Mode, mode_of, of_mode


class Thinning:
    """A plugin of pytest, for one run."""

    def __init__(self, config: pytest.Config) -> None:
        self._mode = mode_of(config)
        selection = config.getoption("markexpr")
        self._selected = Expression.compile(selection) if selection else None
        without = re.fullmatch(r"not (\w+)", selection)
        self._unwanted = set(without.groups()) if without else set()
        if self._mode is not Mode.NIGHTLY:
            self._unwanted.add("nightly")

    @staticmethod
    def fits(config: pytest.Config) -> bool:
        """Tells whether no test is asked for by name."""
        return not config.getoption("keyword") and not any("::" in one for one in config.args)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self, collector: pytest.Collector, obj: object) -> list[pytest.Item] | None:
        """Makes nothing of a function, or a class, all of whose tests are left out."""
        if not isfunction(obj) and not isclass(obj):
            return None
        marks = [*get_unpacked_marks(obj), *collector.iter_markers()]
        return [] if any(mark.name in self._unwanted for mark in marks) else None

    @pytest.hookimpl(wrapper=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> Generator[None, Any, Any]:
        """Makes none of the cases that are left out; one of them if all are, as a test without its parameters is no
        test."""
        made = yield
        calls = metafunc._calls
        if len(calls) > 1:
            cases = [_Case(call, metafunc.definition) for call in calls]
            if self._selected is not None:
                cases = [one for one in cases if self._selected.evaluate(MarkMatcher.from_markers(one.marks))]
            calls[:] = [one.call for one in of_mode(cases, self._mode)] or calls[:1]
        return made


class _Case:
    """A case of a test that is not made yet."""

    def __init__(self, call: Any, definition: pytest.Function) -> None:
        self.call = call
        self.nodeid = f"{definition.name}[{call.id}]"
        # In the order of a test that is made: its own, those of the case, those of its class and its file.
        self.marks = [*definition.own_markers, *call.marks]
        self.marks += [mark for node in definition.listchain()[-2::-1] for mark in node.own_markers]

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        """Returns the mark of this name that holds."""
        return next((mark for mark in self.marks if mark.name == name), None)
