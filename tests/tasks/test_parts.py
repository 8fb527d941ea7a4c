"""Parts of a job: who begins with what, and in which order drivers help each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.errors import ConfigError
from curate.tasks.parts import PARTS, Part, batch_of, helping_order, part_of

SIZES = st.lists(st.integers(0, 1 << 40), max_size=60)
COUNTS = st.integers(1, 9)


@given(SIZES, COUNTS)
def test_parts_are_ranges_of_neighbours(sizes: list[int], count: int) -> None:
    """Every shard is in one part, and parts follow each other in the plan."""
    parts = part_of(sizes, 256, count).tolist()
    assert parts == sorted(parts)
    assert all(0 <= one < count for one in parts)
    owners = [Part(k, count).own(sizes, 256).tolist() for k in range(count)]
    assert [sum(column) for column in zip(*owners, strict=True)] == [1] * len(sizes)


@given(st.integers(1, 300), COUNTS)
def test_shards_of_one_size_are_divided_evenly(shards: int, count: int) -> None:
    """No part has more than one shard more than another."""
    numbers = np.bincount(part_of([7] * shards, 0, count), minlength=count)
    assert numbers.max() - numbers.min() <= 1


def test_bytes_are_divided_evenly() -> None:
    """A part of large shards has fewer."""
    assert part_of([90, 10, 10, 10, 10, 10, 10, 10, 10, 10], 0, 2).tolist() == [0] + [1] * 9


@given(SIZES, COUNTS, st.data())
def test_a_driver_helps_with_everything_that_is_left_once(sizes: list[int], count: int, data: st.DataObject) -> None:
    ranks = np.arange(len(sizes))
    left = np.array(sorted(data.draw(st.sets(st.sampled_from(ranks.tolist())) if sizes else st.just(set()))), dtype=int)
    part = Part(data.draw(st.integers(0, count - 1)), count)
    order = helping_order(part, left, part_of(sizes, 256, count), np.array(sizes))
    assert sorted(order.tolist()) == left.tolist()


def test_helpers_begin_apart() -> None:
    """With the part behind their own, at its end; those that come to the same part begin evenly spread over it."""
    parts, sizes = part_of([1] * 16, 0, 4), np.ones(16, dtype=int)
    of_two = np.flatnonzero(parts == 2)
    assert helping_order(Part(1, 4), np.arange(16), parts, sizes)[:4].tolist() == of_two[::-1].tolist()
    first = [int(helping_order(Part(k, 4), of_two, parts, sizes)[0]) for k in (1, 0, 3)]
    assert first == [11, 10, 9]
    everything = [helping_order(Part(k, 4), np.flatnonzero(parts != k), parts, sizes) for k in range(4)]
    assert sorted(int(order[0]) for order in everything) == [3, 7, 11, 15]


def test_a_helper_begins_with_what_its_driver_does_last() -> None:
    """That one begins with the largest shard."""
    parts, sizes = np.array([0, 1, 1, 1]), np.array([9, 3, 1, 2])
    assert helping_order(Part(0, 2), np.array([1, 2, 3]), parts, sizes).tolist() == [2, 3, 1]


def test_batches_halve_what_is_left() -> None:
    """So a look at the outputs is not needed for each shard; towards the end they are one shard for each slot."""
    order = np.arange(1000)
    assert [len(batch_of(order[:left], 8, 4)) for left in (1000, 100, 20, 5, 0)] == [125, 12, 8, 5, 0]


@pytest.mark.parametrize(
    ("environ", "part"),
    [
        ({"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "4"}, "3/4"),
        ({"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_MIN": "5", "SLURM_ARRAY_TASK_COUNT": "4"}, "2/4"),
        (
            {
                "SLURM_ARRAY_TASK_ID": "20",
                "SLURM_ARRAY_TASK_MIN": "0",
                "SLURM_ARRAY_TASK_STEP": "10",
                "SLURM_ARRAY_TASK_COUNT": "3",
            },
            "2/3",
        ),
        ({"JOB_COMPLETION_INDEX": "0", PARTS: "8"}, "0/8"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "1/2"),
        ({"RANK": "1", "WORLD_SIZE": "2", "JOB_COMPLETION_INDEX": "1", PARTS: "2"}, "1/2"),
    ],
)
def test_the_environment_tells_the_part(environ: dict[str, str], part: str) -> None:
    assert str(Part.of_environment(environ)) == part


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({}, "no number of Slurm"),
        ({"JOB_COMPLETION_INDEX": "1"}, f"set {PARTS} to its completions"),
        ({"SLURM_ARRAY_TASK_ID": "1"}, "SLURM_ARRAY_TASK_ID is 1, but SLURM_ARRAY_TASK_COUNT, .* is not set; give K/N"),
        ({"RANK": "0"}, "RANK is 0, but WORLD_SIZE, .* is not set"),
        ({"SLURM_ARRAY_TASK_ID": "9", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_COUNT": "3"}, "out of range"),
        ({"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_COUNT": "3", "RANK": "0", "WORLD_SIZE": "3"}, "several"),
    ],
)
def test_an_environment_that_does_not_tell_is_refused(environ: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Part.of_environment(environ)


@pytest.mark.parametrize("text", ["4/4", "9/4", "0/0"])
def test_a_part_that_is_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="out of range"):
        Part.parse(text)


@pytest.mark.parametrize(
    "text", ["", "1", "-1/4", "1/4/2", "a/b", "1.0/4", "٣/٤", "²/4", "0/1_0", "0/+4", f"0/{10**20}"]
)
def test_a_text_that_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not K/N"):
        Part.parse(text)
