"""Splitting covers an input exactly, in order, in parts that are not above the target; and depends on nothing else."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from curate.sources.split import parts, split_bytes, split_row_groups, whole
from curate.tasks.shard import SliceKind

SIZES = st.integers(0, 10**7)


@given(SIZES, st.integers(1, 10**5))
def test_byte_ranges_cover_the_size_exactly(size: int, target: int) -> None:
    """No gap, no overlap, none above the target, as few as possible, nearly equal."""
    target = max(target, size // 1000 + 1)
    ranges = split_bytes(size, target)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == size
    assert all(left[1] == right[0] for left, right in pairwise(ranges))
    lengths = [stop - start for start, stop in ranges]
    assert max(lengths) <= target
    assert len(ranges) == max(1, -(-size // target))
    assert max(lengths) - min(lengths) <= 1


@given(st.lists(st.integers(0, 1000), max_size=60), st.integers(1, 1500))
def test_row_group_ranges_cover_the_groups_exactly(sizes: list[int], target: int) -> None:
    """Above the target only where one group is; and no range that the next group would still have fitted into."""
    ranges = split_row_groups(sizes, target)
    assert [group for start, stop in ranges for group in range(start, stop)] == list(range(len(sizes)))
    for start, stop in ranges:
        assert sum(sizes[start:stop]) <= target or stop - start == 1
    for (start, stop), _ in pairwise(ranges):
        assert sum(sizes[start : stop + 1]) > target


@given(st.lists(st.integers(0, 1000), max_size=60))
def test_a_file_within_the_target_is_one_range(sizes: list[int]) -> None:
    assert split_row_groups(sizes, sum(sizes) + 1) == [(0, len(sizes))]


def test_one_range_is_a_whole_shard_without_a_suffix() -> None:
    assert list(parts("x", "/x.parquet", 9, "g", SliceKind.ROW_GROUPS, [(0, 3)], [9])) == [
        whole("x", "/x.parquet", 9, "g")
    ]


def test_parts_are_named_by_number_and_know_slice_and_object() -> None:
    """The names sort as the parts do, and say how many there are."""
    ranges = split_bytes(30, 10)
    shards = list(parts("2023/big", "/in/2023/big.jsonl", 30, "g", SliceKind.BYTES, ranges, [b - a for a, b in ranges]))
    assert [shard.id for shard in shards] == [f"2023/big.part-{k:05d}-of-00003" for k in range(3)]
    assert [(shard.start, shard.stop, shard.size_bytes) for shard in shards] == [
        (0, 10, 10),
        (10, 20, 10),
        (20, 30, 10),
    ]
    assert {(shard.uri, shard.kind, shard.object_bytes, shard.generation) for shard in shards} == {
        ("/in/2023/big.jsonl", SliceKind.BYTES, 30, "g")
    }
