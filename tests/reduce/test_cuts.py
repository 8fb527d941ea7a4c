"""Cuts part all rows of all segments, in order and evenly; a part is what is read between the places of two."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from curate.arrow.order import Order, SortKey
from curate.exchange.run_file import Segment
from curate.reduce.cuts import Cut, place
from curate.reduce.cuts import cuts as planned
from curate.reduce.index import Index

ROW_BYTES = 8

BY_KEY = Order((SortKey("key"),))
ORDERS = st.sampled_from(
    [
        BY_KEY,
        Order((SortKey("key", descending=True),), "at_start"),
        Order((SortKey("other"), SortKey("key", descending=True))),
        Order((SortKey("name"),), "at_start"),
    ]
)
ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(0, 6)),
        st.one_of(st.none(), st.sampled_from([0.0, -0.0, 1.0, float("nan")])),
        st.one_of(st.none(), st.sampled_from(["", "a", "b", "ä"])),
    ),
    max_size=30,
)
RUNS = st.lists(ROWS, max_size=5)
PAGE_ROWS = st.integers(1, 7)


def tables(order: Order, runs: Sequence[Sequence[tuple[Any, ...]]]) -> list[pa.Table]:
    """Returns sorted tables of these rows, each row with the number of its segment and its own."""
    made = []
    for number, rows in enumerate(runs):
        columns = list(zip(*rows, strict=True)) or [(), (), ()]
        table = order.sort(
            pa.table(
                {
                    "key": pa.array(columns[0], pa.int64()),
                    "other": pa.array(columns[1], pa.float64()),
                    "name": pa.array(columns[2], pa.string()),
                }
            )
        )
        places = [(number, row) for row in range(len(rows))]
        made.append(table.append_column("place", pa.array(places, pa.list_(pa.int64()))))
    return made


def segment(order: Order, table: pa.Table, page_rows: int) -> Segment:
    """Returns the index of a table in pages of so many rows, of 8 bytes each."""
    firsts = np.arange(0, table.num_rows, page_rows)
    rows = np.diff(firsts, append=table.num_rows)
    return Segment(order.keys_of(table).take(pa.array(firsts)), rows, rows * ROW_BYTES)


def cuts(order: Order, segments: Sequence[Segment], **how: Any) -> list[Cut]:
    # A run file has no segment without rows.
    there = [number for number, one in enumerate(segments) if len(one.rows)]
    found = planned(order, Index.of(order, segments), **how).cuts
    return [replace(cut, segment=there[cut.segment]) if there and not how["aligned"] else cut for cut in found]


def parts(order: Order, runs: Sequence[pa.Table], made: Sequence[Cut]) -> list[pa.Table]:
    """Returns what is read between the places of the cuts, put in order."""

    def at(cut: Cut, number: int) -> int:
        return place(cut, number, lambda key, after: order.position(runs[number], key, after))

    edges = [
        [0] * len(runs),
        *([at(cut, number) for number in range(len(runs))] for cut in made),
        [run.num_rows for run in runs],
    ]
    found = []
    for starts, stops in pairwise(edges):
        assert all(start <= stop for start, stop in zip(starts, stops, strict=True))
        read = [run.slice(start, stop - start) for run, start, stop in zip(runs, starts, stops, strict=True)]
        found.append(order.sort(pa.concat_tables(read)))
    return found


def places(table: pa.Table) -> list[list[int]]:
    return table["place"].to_pylist()


@given(ORDERS, RUNS.filter(bool), PAGE_ROWS, st.integers(1, 12), st.booleans(), st.booleans())
def test_parts_put_together_are_all_rows_in_order(
    order: Order, rows: list[Any], page_rows: int, size: int, counted: bool, aligned: bool
) -> None:
    """No row is lost, doubled or out of order: neither by key, nor among equal keys by segment and row."""
    runs = tables(order, rows)
    made = cuts(
        order,
        [segment(order, run, page_rows) for run in runs],
        target_bytes=None if counted else size * ROW_BYTES,
        count=size if counted else None,
        aligned=aligned,
    )
    found = parts(order, runs, made)
    assert [row for part in found for row in places(part)] == places(order.sort(pa.concat_tables(runs)))
    if counted:
        assert len(found) == size
    else:
        assert len(found) <= max(1, -(-sum(run.num_rows for run in runs) // size))
        assert all(part.num_rows for part in found) or len(found) == 1
    if aligned:
        whole = order.sort(pa.concat_tables(runs))
        groups = set(order.starts(whole).tolist())
        edges = np.cumsum([part.num_rows for part in found])[:-1].tolist()
        assert all(edge in groups or edge == whole.num_rows for edge in edges)
        assert all((cut.segment, cut.row) == (0, 0) for cut in made)


@given(RUNS.filter(bool), PAGE_ROWS, st.integers(1, 12), st.booleans())
def test_none_of_a_number_of_parts_is_empty_where_pages_allow_it(
    rows: list[Any], page_rows: int, count: int, aligned: bool
) -> None:
    """As many parts have rows as there are pages to begin with, or page keys where equal keys stay together."""
    runs = tables(BY_KEY, rows)
    segments = [segment(BY_KEY, run, page_rows) for run in runs]
    begun = [key for one in segments for key in one.keys["key"].to_pylist()]
    found = parts(BY_KEY, runs, cuts(BY_KEY, segments, target_bytes=None, count=count, aligned=aligned))
    assert sum(part.num_rows > 0 for part in found) == min(count, len(set(begun)) if aligned else len(begun))


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=6),
    st.integers(1, 12),
    st.integers(1, 20),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_parts_are_even_to_a_page_of_each_segment(
    lengths: list[int], page_rows: int, count: int, aligned: bool, seed: int
) -> None:
    """Without heavy keys no part differs from an even one by more than a page of each segment, and one more."""
    keys = np.random.default_rng(seed).permutation(sum(lengths))
    runs = [numbered(pa.table({"key": np.sort(own)}), number) for number, own in enumerate(split(keys, lengths))]
    segments = [segment(BY_KEY, run, page_rows) for run in runs]
    assume(sum(len(one.rows) for one in segments) >= count)
    found = parts(BY_KEY, runs, cuts(BY_KEY, segments, target_bytes=None, count=count, aligned=aligned))
    even = sum(lengths) / count
    assert max(abs(part.num_rows - even) for part in found) <= page_rows * (len(runs) + 1)


def split(keys: Any, lengths: Sequence[int]) -> list[Any]:
    return np.split(keys, np.cumsum(lengths)[:-1])


def numbered(run: pa.Table, number: int) -> pa.Table:
    """Returns the run with the segment and row of each of its rows."""
    return run.append_column("place", pa.array([(number, row) for row in range(run.num_rows)], pa.list_(pa.int64())))


def skewed(light: int, heavy: int) -> list[pa.Table]:
    """Returns four runs of `light` rows of keys of their own, and `heavy` rows of one key in the midst of them."""
    keys = np.random.default_rng(0).permutation(4 * light).reshape(4, light)
    return [
        numbered(pa.table({"key": np.sort(np.append(own, np.full(heavy, 2 * light)))}), number)
        for number, own in enumerate(keys)
    ]


def test_a_heavy_key_is_split_between_its_pages() -> None:
    """Rows of one key that has nine tenths of all come to parts as even as others do."""
    runs = skewed(light=100, heavy=900)
    segments = [segment(BY_KEY, run, 10) for run in runs]
    found = parts(BY_KEY, runs, cuts(BY_KEY, segments, target_bytes=None, count=20, aligned=False))
    assert {part.num_rows for part in found} <= set(range(160, 241))
    found = parts(BY_KEY, runs, cuts(BY_KEY, segments, target_bytes=200 * ROW_BYTES, count=None, aligned=False))
    assert len(found) == 20


def test_an_aligned_heavy_key_stays_whole_and_others_are_shared_out_around_it() -> None:
    """Its part has it, and but a few others; before and after it parts are of the target again."""
    runs = skewed(light=1000, heavy=1000)
    segments = [segment(BY_KEY, run, 10) for run in runs]
    found = parts(BY_KEY, runs, cuts(BY_KEY, segments, target_bytes=500 * ROW_BYTES, count=None, aligned=True))
    *others, heaviest = sorted(part.num_rows for part in found)
    assert 4000 <= heaviest <= 4000 + 4 * 10
    # What is left between the last part before it and the key itself may be little.
    assert len(others) == 9
    assert all(abs(count - 500) <= 4 * 10 for count in others[1:])


def test_with_no_key_rows_are_parted_between_pages_as_they_come() -> None:
    """An order of no key has places too: segment and row. All rows are equal by it, so aligned there is no cut."""
    order = Order()
    runs = [numbered(pa.table({"key": np.arange(length)}), number) for number, length in enumerate((40, 0, 25))]
    segments = [segment(order, run, 5) for run in runs]
    found = parts(order, runs, cuts(order, segments, target_bytes=None, count=4, aligned=False))
    assert [part.num_rows for part in found] == [15, 15, 20, 15]
    assert [row for part in found for row in places(part)] == places(pa.concat_tables(runs))
    assert cuts(order, segments, target_bytes=1, count=None, aligned=True) == []


@pytest.mark.parametrize("aligned", [False, True])
def test_of_no_rows_there_are_as_many_parts_as_were_asked_for(aligned: bool) -> None:
    empty = segment(BY_KEY, pa.table({"key": pa.array([], pa.string())}), 1)
    for segments in ([], [empty], [empty, empty]):
        made = cuts(BY_KEY, segments, target_bytes=None, count=3, aligned=aligned)
        assert [place(cut, number, lambda *_: 0) for cut in made for number in range(2)] == [0] * 4
        assert cuts(BY_KEY, segments, target_bytes=9, count=None, aligned=aligned) == []


def test_sides_of_a_join_may_call_their_keys_differently() -> None:
    """Keys are told by their number: a cut from the index of one side is a place on the other."""
    left, right = pa.table({"key": [1, 2, 3, 4]}), pa.table({"id": [1, 2, 3, 4]})
    orders = [BY_KEY, Order((SortKey("id"),))]
    segments = [segment(orders[0], left, 4), segment(orders[1], right, 2)]
    (cut,) = cuts(BY_KEY, segments, target_bytes=None, count=2, aligned=True)
    assert [place(cut, number, lambda key, after: orders[1].position(right, key, after)) for number in (0, 1)] == [2, 2]


def test_a_cut_is_small_when_it_is_sent() -> None:
    """It has its own key in memory of its own, not that of all pages."""
    runs = skewed(light=5000, heavy=0)
    made = cuts(BY_KEY, [segment(BY_KEY, run, 1) for run in runs], target_bytes=None, count=9, aligned=False)
    assert max(len(pickle.dumps(cut)) for cut in made) < 2000


@pytest.mark.parametrize(("target_bytes", "count"), [(None, None), (0, None), (5, 0)])
def test_no_parts_are_no_plan(target_bytes: int | None, count: int | None) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        cuts(BY_KEY, [], target_bytes=target_bytes, count=count, aligned=False)
