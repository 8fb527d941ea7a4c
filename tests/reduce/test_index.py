"""Of very many pages a plan knows every k-th: cuts are as even, heavy keys as exact, and outputs have the same rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import curate
from curate.arrow.order import Order
from curate.exchange import run_file
from curate.exchange.run_file import Segment
from curate.graph import reads
from curate.reduce import ranges
from curate.reduce.between import reads_between, rows_between
from curate.reduce.cuts import cuts, place
from curate.reduce.index import Building, Index
from curate.reduce.skew import heaviest
from tests.reduce.test_cuts import BY_KEY, ORDERS, PAGE_ROWS, RUNS, segment, tables

MOST = st.sampled_from([None, 1, 4, 16])


def index_of(order: Order, runs: Sequence[pa.Table], segments: Sequence[Segment], most: int | None) -> Index:
    """Returns the index of segments whose last keys are known, as of run files."""
    building = Building(order, heavy=True, most=most)
    for run, one in zip(runs, segments, strict=True):
        last = order.keys_of(run).slice(run.num_rows - 1)
        building.add(one.keys, one.rows, one.bytes, np.array([0, len(one.rows)]), last)
    return building.made(pa.schema([]))


@given(order=ORDERS, rows=RUNS, page_rows=PAGE_ROWS, most=MOST)
def test_steps_are_pages_together(order: Order, rows: Any, page_rows: int, most: int | None) -> None:
    runs = [run for run in tables(order, rows) if run.num_rows]
    segments = [segment(order, run, page_rows) for run in runs]
    index = index_of(order, runs, segments, most)
    assert most is None or len(index.rows) <= max(most, 2 * len(runs))
    assert index.pages.tolist() == [len(one.rows) for one in segments]
    for number, (one, steps) in enumerate(zip(segments, index.each(), strict=True)):
        at = index.at[index.number == number]
        assert at[0] == 0
        # As text: NaN is not what it is.
        assert repr(steps.keys.to_pylist()) == repr(one.keys.take(pa.array(at)).to_pylist())
        assert steps.rows.tolist() == [int(part.sum()) for part in np.split(one.rows, at[1:])]
        assert steps.bytes.tolist() == [int(part.sum()) for part in np.split(one.bytes, at[1:])]
    # Only the number of pages decides, and not how they came.
    if segments:
        building = Building(order, heavy=True, most=most)
        lengths = np.cumsum([0, *(len(one.rows) for one in segments)])
        building.add(
            pa.concat_tables([one.keys for one in segments]),
            np.concatenate([one.rows for one in segments]),
            np.concatenate([one.bytes for one in segments]),
            lengths,
            None,
        )
        assert building.made(pa.schema([])).at.tolist() == index.at.tolist()
    assert repr(heaviest(order, index)) == repr(heaviest(order, index_of(order, runs, segments, None)))


@given(
    order=ORDERS,
    rows=RUNS,
    page_rows=PAGE_ROWS,
    most=MOST,
    count=st.integers(1, 9),
    aligned=st.booleans(),
    counted=st.booleans(),
    known=st.booleans(),
)
def test_outputs_have_all_rows_in_order(
    order: Order, rows: Any, page_rows: int, most: int | None, count: int, aligned: bool, counted: bool, known: bool
) -> None:
    """Beside a sort of all rows: whatever the index knows of."""
    runs = [run for run in tables(order, rows) if run.num_rows]
    segments = [segment(order, run, page_rows) for run in runs]
    index = index_of(order, runs, segments, most) if known else Index.of(order, segments, most=most)
    plan = cuts(order, index, target_bytes=None, count=count, aligned=aligned)
    least = np.append(0, plan.least_rows()) if runs else np.zeros(count)
    assert len(plan.cuts) == count - 1
    assert plan.bytes.sum() == index.total_bytes
    found = []
    for part, own in enumerate(reads_between(index, plan, order, counted=counted)):
        low, high = plan.between(part)
        before, pieces = own.before, []
        for number in own.segments.tolist():
            start, stop = rows_between(segments[number], number, order, low, high)

            def row(cut: Any, end: int, number: int = number) -> int:
                if cut is None:
                    return end
                return place(cut, number, lambda key, after: order.position(runs[number], key, after))

            first, last = row(low, 0), row(high, runs[number].num_rows)
            # What is read are whole pages that have all of them.
            assert start <= first <= last <= stop or first >= last
            before += first
            pieces.append(runs[number].slice(first, max(0, last - first)))
        if counted:
            assert before == sum(one.num_rows for one in found)
        assert least[part] <= sum(one.num_rows for one in found)
        found.append(
            order.sort(pa.concat_tables([*(run.slice(0, 0) for run in runs), *pieces])) if runs else pa.table({})
        )
    if not runs:
        return
    whole = order.sort(pa.concat_tables(runs))
    assert pa.concat_tables(found)["place"].equals(whole["place"])
    if aligned:
        keys = [order.keys_of(one).to_pylist() for one in found if one.num_rows]
        assert all(repr(one[-1]) != repr(other[0]) for one, other in itertools.pairwise(keys))


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("most", [None, 4000, 1500])
def test_parts_of_coarse_steps_are_even(most: int | None, in_order: bool) -> None:
    """Segments of rows in random order, or files in order from segment to segment: a part differs from the mean by a
    quarter of it, and by what lies between two pages, however many pages a step has."""
    rng, segments, pages, parts = np.random.default_rng(3), 80, 256, 20
    keys, found = [], []
    for number in range(segments):
        gaps = rng.normal(1, 0.01, pages).cumsum()
        own = gaps / gaps[-1]
        own = (own + number % 4) / 4 if in_order else own
        keys.append((own * (1 << 40)).astype(np.int64))
        found.append(Segment(pa.table({"key": keys[-1]}), np.full(pages, 10), np.full(pages, 1000)))
    building = Building(BY_KEY, heavy=False, most=most)
    for one in found:
        building.add(one.keys, one.rows, one.bytes, np.array([0, pages]), one.keys.slice(pages - 1))
    index = building.made(pa.schema([]))
    assert index.every == {None: 1, 4000: 8, 1500: 16}[most]
    plan = cuts(BY_KEY, index, target_bytes=None, count=parts, aligned=False)
    edges = [cut.key["key"][0].as_py() for cut in plan.cuts]
    places = np.array([np.searchsorted(one, edges) for one in keys]).sum(axis=0)
    sizes = np.diff(np.concatenate([[0], places, [segments * pages]]))
    mean, gap = segments * pages / parts, (segments // 4 if in_order else segments)
    assert abs(sizes - mean).max() <= mean / 4 + gap, sizes


@pytest.fixture
def small(tiny: pytest.MonkeyPatch) -> None:
    """Sizes at which a few thousand rows have the shape of 100 TB."""
    tiny.setattr(ranges, "STEPS", 40)
    tiny.setattr(run_file, "KEPT_OPEN", 2)
    tiny.setattr(run_file, "AT_ONCE", 3)


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("merged", [False, True])
def test_every_exchange_gives_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merged: bool) -> None:
    monkeypatch.setattr(reads, "FEWEST_SEGMENTS", 4 if merged else 1 << 30)
    (tmp_path / "in").mkdir()
    for number in range(8):
        at = range(number, 2000, 8)
        # A third of the rows have one key.
        table = pa.table({"key": [0 if one % 3 == 0 else one * 7919 % 97 for one in at], "id": list(at)})
        pq.write_table(table, tmp_path / f"in/{number:02d}.parquet")
    rows = curate.read_parquet(tmp_path / "in").using(backend="inline")
    others = rows.filter(lambda row: row["id"] < 60).rename_columns({"id": "other"})

    def made(ds: curate.Dataset, name: str) -> list[Any]:
        ds.write_parquet(tmp_path / name)
        found: list[Any] = curate.read_parquet(tmp_path / name).using(backend="inline").take_all()
        return found

    wanted = sorted(rows.take_all(), key=lambda row: row["key"])
    assert made(rows.sort("key"), "sort") == wanted
    assert made(rows.sort("key").limit(777), "limit") == wanted[:777]
    assert made(rows.sort("key", descending=True), "descending") == sorted(rows.take_all(), key=lambda row: -row["key"])
    groups = made(rows.groupby("key").aggregate([("id", "count")]), "groups")
    keys = [row["key"] for row in wanted]
    assert groups == [{"key": key, "id_count": keys.count(key)} for key in sorted(set(keys))]
    joined = made(rows.join(others, on="key"), "join")
    assert len(joined) == sum(keys.count(row["key"]) for row in others.take_all())
    assert [row["key"] for row in joined] == sorted(row["key"] for row in joined)
    assert sorted(row["id"] for row in made(rows.random_shuffle(seed=3, num_shards=7), "shuffle")) == list(range(2000))
    shuffled = rows.random_shuffle(seed=5)
    assert sorted(row["id"] for row in made(shuffled, "whole buckets")) == list(range(2000))
    assert made(shuffled, "again") == shuffled.take_all()
    assert len(list((tmp_path / "whole buckets").glob("*.parquet"))) > 2
    by_key = rows.filter(lambda row: row["key"] < 5)
    by_key.write_parquet(tmp_path / "partition", partition_cols=["key"])
    assert curate.read_parquet(tmp_path / "partition").using(backend="inline").count() == by_key.count()
