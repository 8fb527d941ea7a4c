"""What a run says that waits for a place in the cluster, and when."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from curate.runtime.demand import AGAIN_S, FIRST_S, SHOWN_KINDS, Demand, DemandWatch, amounts, explain_wait
from curate.runtime.scaling import fits

TASKS = Demand("tasks", {"CPU": 1.0})
MODEL = Demand("the pool map(Model)", {"TPU": 4.0})


def test_it_says_nothing_for_ten_seconds_and_then_once_a_minute() -> None:
    """By the clock that it is given; the text for a display is there from the first word on, and goes with the want."""
    watch = DemandWatch()
    with capture_logs() as logged:
        for second in range(200):
            watch.look(float(second), [TASKS], [{}], [])
            assert bool(watch.text) == (second >= FIRST_S)
    assert [one["waited_s"] for one in logged] == [FIRST_S, FIRST_S + AGAIN_S, FIRST_S + 2 * AGAIN_S, 190]
    watch.look(200.0, [], [{"CPU": 1.0}], [])
    assert watch.text == ""


def test_what_found_a_place_in_between_begins_to_wait_anew() -> None:
    """Nine seconds twice are no ten seconds."""
    watch = DemandWatch()
    with capture_logs() as logged:
        for start in (0.0, 20.0):
            watch.look(start, [TASKS], [{}], [])
            watch.look(start + 9.0, [TASKS], [{}], [])
            watch.look(start + 9.5, [], [{}], [])
    assert logged == []


def test_each_waits_for_itself() -> None:
    """A pool that waits since later is told of later; both are in the text."""
    watch = DemandWatch()
    with capture_logs() as logged:
        watch.look(0.0, [TASKS], [], [])
        watch.look(5.0, [TASKS, MODEL], [], [])
        watch.look(10.0, [TASKS, MODEL], [], [])
        assert "map(Model)" not in watch.text
        watch.look(15.0, [TASKS, MODEL], [], [])
    assert [one["event"].split(" wait")[0] for one in logged] == ["tasks", "the pool map(Model)"]
    assert watch.text == "; ".join(one["event"] for one in logged)


@pytest.mark.parametrize(
    ("nodes", "kinds", "said", "todo"),
    [
        ([], [], "no node has 4 TPU; no node is alive", "add such a node"),
        ([{}], [], "no node has 4 TPU; there is 1 node with nothing", "add such a node"),
        ([{"CPU": 2.0, "memory": 1e9}] * 3, [], "there are 3 nodes with 2 CPU", "add such a node"),
        ([{}], [{"CPU": 8.0}], "no node has 4 TPU", "the autoscaler has no such node type"),
        ([{}], [{"CPU": 8.0}, {"TPU": 4.0}], "no node has 4 TPU", "the autoscaler can start such a node"),
        ([{"TPU": 4.0}], [], "a node with 4 TPU exists", "wait for them"),
    ],
)
def test_it_says_what_is_asked_for_what_there_is_and_what_to_do(nodes: Any, kinds: Any, said: str, todo: str) -> None:
    """Whether there is no such node, none can come, or one is there and taken."""
    found = explain_wait(MODEL, nodes, kinds)
    assert found.why.startswith("the pool map(Model) waits: ")
    assert said in found.why
    assert found.todo.startswith(todo)


resources = st.dictionaries(st.sampled_from(["CPU", "GPU", "TPU"]), st.sampled_from([0.5, 1.0, 4.0]))


@given(resources, st.lists(resources, max_size=40))
def test_a_message_is_short_and_true(needs: dict[str, float], nodes: list[dict[str, float]]) -> None:
    """However many nodes there are; that none has what is asked for is said if and only if none has."""
    text = explain_wait(Demand("tasks", needs), nodes, []).why
    assert ("no node has" in text) == (not any(fits(node, needs) for node in nodes))
    assert text.count(" with ") <= SHOWN_KINDS
    assert amounts(needs) in text
