"""What operators measured: added up, sent as numbers, and read as a sentence that names what limits."""

from __future__ import annotations

import pickle
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.observe.metrics import Capacity, Flow, OperatorMetrics, PipelineMetrics, Role, limit_of, operated
from curate.pipeline.meters import Meter, add_packed, packed
from curate.runtime.protocol import PoolState

COUNTS = st.integers(0, 2**40)
METERS = st.builds(Meter, *(COUNTS for _ in range(6)), *(st.floats(0, 1e6) for _ in range(3)), COUNTS, COUNTS)
LARGEST = ("largest_bytes", "peak_bytes")


@given(st.lists(METERS, min_size=1, max_size=5))
def test_meters_are_added(meters: list[Meter]) -> None:
    """All but the largest are sums, whatever way they are added."""
    one, other = Meter(), [Meter()]
    for meter in meters:
        one.add(meter)
        add_packed(other, packed([meter]))
    assert one == other[0]
    for field in fields(Meter):
        values = [getattr(meter, field.name) for meter in meters]
        expected = max(values) if field.name in LARGEST else sum(values)
        assert getattr(one, field.name) == pytest.approx(expected)


def test_others_are_refused() -> None:
    """Numbers of more or fewer operators than there are would be booked to the wrong ones."""
    with pytest.raises(ValueError, match="22 numbers for 1 meters, expected 11"):
        add_packed([Meter()], packed([Meter(), Meter()]))


def test_few_bytes_are_sent() -> None:
    """About ten bytes a number: those of a read, a step and a write are some hundred bytes a shard."""
    full = Meter()
    for field in fields(Meter):
        setattr(full, field.name, 1.5 if field.name.endswith("_s") else 2**40)
    assert len(pickle.dumps(packed([full] * 3))) < 400


def test_capacity_is_slots_and_actors_over_time() -> None:
    """What there was at a look counts until the next; pools that were not looked at are as they were."""
    capacity = Capacity()
    capacity.look(10.0, 2, [PoolState("a", 1, 0, 0, 0.0)])
    capacity.look(12.0, 4, None)
    capacity.look(13.0, 4, [PoolState("a", 3, 0, 0, 0.0)])
    capacity.look(14.0, 1, None)
    assert capacity.slot_s == 2 * 2 + 4 + 4
    assert capacity.actor_s == [1 * 3 + 3]


def test_pools_are_those_of_the_steps_that_have_one() -> None:
    """In their order, over all chains; before pools were looked at, a step has none."""
    chains = [([("read", Role.READ, False), ("a", Role.STEP, True)], [Meter(), Meter()])] * 2
    assert [one.pool for one in operated(chains, Capacity())] == [None] * 4
    capacity = Capacity()
    capacity.look(0.0, 1, [PoolState("first", 1, 0, 0, 0.0), PoolState("second", 2, 0, 0, 0.0)])
    assert [one.pool.name if one.pool else "" for one in operated(chains, capacity)] == ["", "first", "", "second"]


# What limits


def read(wall_s: float, cpu_s: float | None = None) -> OperatorMetrics:
    return OperatorMetrics("read_json('in')", Role.READ, Meter(wall_s=wall_s, cpu_s=wall_s if cpu_s is None else cpu_s))


def step(wall_s: float, cpu_s: float | None = None, name: str = "map(clean)", behind: bool = False) -> OperatorMetrics:
    cpu_s = wall_s if cpu_s is None else cpu_s
    return OperatorMetrics(name, Role.STEP, Meter(wall_s=wall_s, cpu_s=cpu_s), behind=behind)


def pool(wall_s: float, actor_s: float, actors: int = 2) -> OperatorMetrics:
    return OperatorMetrics(
        "map(Model)", Role.STEP, Meter(wall_s=wall_s), PoolState("map(Model)", actors, 0, 0, 0.0), actor_s
    )


def write(wall_s: float, cpu_s: float | None = None) -> OperatorMetrics:
    return OperatorMetrics("write", Role.WRITE, Meter(wall_s=wall_s, cpu_s=wall_s if cpu_s is None else cpu_s))


CASES = {
    "a pool": (
        PipelineMetrics((read(20), pool(194, 200), write(10)), 100, 200),
        "map(Model) is the bottleneck: its 2 actors were busy 97 % of the time; more actors would help",
    ),
    "a pool of one": (
        PipelineMetrics((read(20), pool(90, 100, 1)), 100, 200),
        "map(Model) is the bottleneck: its actor was busy 90 % of the time; more actors would help",
    ),
    "of two pools the busier one": (
        PipelineMetrics((pool(50, 100), pool(80, 100)), 100, 200),
        "map(Model) is the bottleneck: its 2 actors were busy 80 % of the time; more actors would help",
    ),
    "reading": (
        PipelineMetrics((read(120), step(60), pool(20, 200)), 100, 200),
        "read_json('in') is the bottleneck: it took 67 % of the time of the tasks, which were busy 90 % of the time; "
        "more CPUs "
        "would help",
    ),
    "reading from a store": (
        PipelineMetrics((read(120, 12), step(60)), 100, 200),
        "read_json('in') is the bottleneck: it took 67 % of the time of the tasks, which were busy 90 % of the time; "
        "90 % "
        "of that it waited for the store; a smaller num_cpus would run more concurrent tasks",
    ),
    "a step": (
        PipelineMetrics((read(20), step(150), write(10)), 100, 200),
        "map(clean) is the bottleneck: it took 83 % of the time of the tasks, which were busy 90 % of the time; more "
        "CPUs "
        "would help",
    ),
    "a step that waits": (
        PipelineMetrics((read(20), step(150, 1)), 100, 200),
        "map(clean) is the bottleneck: it took 88 % of the time of the tasks, which were busy 85 % of the time; 99 % "
        "of that "
        "it waited for something other than a CPU; a smaller num_cpus would run more concurrent tasks",
    ),
    "writing": (
        PipelineMetrics((read(20), step(20), write(150, 15)), 100, 200),
        "write is the bottleneck: it took 79 % of the time of the tasks, which were busy 95 % of the time; 90 % of "
        "that it "
        "waited for the store; a smaller num_cpus would run more concurrent tasks",
    ),
    "the consumer": (
        PipelineMetrics((read(20), step(100)), 100, 200, flow=Flow(waited_s=20, consumer_s=80, blocked_s=150)),
        "the consumer is the bottleneck: blocks waited 80 % of the time",
    ),
    "room for blocks": (
        PipelineMetrics((read(20), step(20)), 100, 200, flow=Flow(waited_s=90, consumer_s=10, blocked_s=140)),
        "memory_budget is the bottleneck: tasks waited 60 % of the time for memory; a larger one would help",
    ),
    "behind a limit": (
        PipelineMetrics((read(10), step(80, name="map(late)", behind=True)), 100, 200, flow=Flow(consumer_s=85)),
        "map(late) is the bottleneck: it was busy 80 % of the time, in this process; place it before the limit or the "
        "zip, where tasks share the work",
    ),
    "all in one process": (
        PipelineMetrics((read(10), pool(80, 100)), 100, 100, inline=True, flow=Flow(waited_s=92, consumer_s=8)),
        "map(Model) is the bottleneck: it took 89 % of the time of the tasks, which were busy 90 % of the time; 100 % "
        "of that "
        'it waited for something other than a CPU; backend="auto" would run more concurrent tasks',
    ),
    "nothing": (
        PipelineMetrics((read(1), step(3)), 100, 200, flow=Flow(waited_s=99)),
        "no operator is the bottleneck: the busiest one was busy 2 % of the time; the rest went to starting workers "
        "and tasks",
    ),
    "nothing yet": (
        PipelineMetrics((read(0), step(0)), 0.1, 0.2),
        "nothing was measured: no operator has run yet",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_one_sentence_names_what_limits(case: str) -> None:
    """What was at work for most of its own time; where that is the tasks, what took most of theirs."""
    found, sentence = CASES[case]
    assert limit_of(found) == sentence


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100), st.booleans()), max_size=4),
    st.floats(0, 100),
    st.floats(0, 100),
    st.booleans(),
    st.one_of(st.none(), st.builds(Flow, consumer_s=st.floats(0, 100), blocked_s=st.floats(0, 100))),
)
def test_there_is_always_one_sentence(
    given_: list[tuple[float, float, bool]], elapsed_s: float, slot_s: float, inline: bool, flow: Flow | None
) -> None:
    """Whatever was measured: no share is above 100 %, and nothing is divided by zero."""
    operators = tuple(pool(wall_s, more_s) if pooled else step(wall_s, more_s) for wall_s, more_s, pooled in given_)
    sentence = limit_of(PipelineMetrics(operators, elapsed_s, slot_s, inline=inline, flow=flow))
    shares = [int(word) for word, sign in zip(sentence.split(), sentence.split()[1:], strict=False) if sign[0] == "%"]
    assert all(0 <= share <= 100 for share in shares)
    assert len(sentence.splitlines()) == 1
