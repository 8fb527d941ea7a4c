"""What outputs read after an exchange: heavy keys, limits before it, rows that need not move."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import curate
from curate.errors import ConfigError
from curate.sources.slices import outputs
from curate.units import MIB
from tests.support.examples import examples


def written(folder: Path, tables: list[pa.Table], group_rows: int = 100) -> curate.Dataset:
    folder.mkdir(parents=True)
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"{number:03d}.parquet", row_group_size=group_rows)
    return curate.read_parquet(folder).using(backend="inline")


def numbers(start: int, rows: int) -> pa.Table:
    return pa.table({"n": pa.array(range(start, start + rows), pa.int64())})


def parts(folder: Path) -> list[pa.Table]:
    return [pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]


# Heavy keys


def heavy(rows: int) -> curate.Dataset:
    text = "x" * 1000
    return curate.from_items([{"key": "[deleted]" if one % 10 else f"user {one}", "text": text} for one in range(rows)])


def test_a_key_that_does_not_fit_is_refused_with_the_arithmetic(tmp_path: Path) -> None:
    rows = heavy(6000).using(backend="inline", memory_budget=8 * MIB)
    with pytest.raises(ConfigError, match=r"the rows of one key do not fit into the memory of a task\.") as refused:
        rows.groupby("key").map_groups(lambda group: group.slice(0, 1)).write_parquet(tmp_path / "out")
    text = str(refused.value)
    assert "key      key='[deleted]'" in text
    assert "3 times in memory" in text
    assert "budget   8.00 MiB" in text
    assert not list((tmp_path / "out").glob("*.parquet"))


def test_a_heavy_key_is_no_matter_where_rows_of_it_become_few_or_need_not_be_together() -> None:
    rows = heavy(6000).using(backend="inline", memory_budget=8 * MIB)
    counts = rows.groupby("key").count().take_all()
    assert counts[0] == {"key": "[deleted]", "count": 5400}
    assert rows.sort("key").count() == 6000


# Limits before an exchange


@pytest.mark.parametrize("limit", [0, 7, 100, 150, 299, 500])
def test_a_limit_before_an_exchange_is_of_the_input(limit: int, tmp_path: Path) -> None:
    rows = written(tmp_path / "in", [numbers(start, 100) for start in (0, 100, 200)])
    wanted = list(range(min(limit, 300)))[::-1]
    limited = rows.limit(limit)
    assert [row["n"] for row in limited.sort("n", descending=True).take_all()] == wanted
    limited.sort("n", descending=True).write_parquet(tmp_path / "out")
    assert [n for table in parts(tmp_path / "out") for n in table["n"].to_pylist()] == wanted
    assert sorted(limited.random_shuffle(seed=1).to_arrow().column(0).to_pylist() if limit else []) == wanted[::-1]


# Rows that need not move


@settings(max_examples=examples(25), deadline=None)
@given(lengths=st.lists(st.integers(0, 350), min_size=1, max_size=6), count=st.integers(1, 12))
def test_slices_are_all_rows_in_order_in_even_parts(
    lengths: list[int], count: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("slices")
    starts = [sum(lengths[:number]) for number in range(len(lengths))]
    rows = written(folder / "in", [numbers(*pair) for pair in zip(starts, lengths, strict=True)])
    total = sum(lengths)
    made = rows.with_column("twice", pc.field("n") * 2).repartition(count)
    made.write_parquet(folder / "out")
    found = parts(folder / "out")
    assert len(found) == count
    assert {len(one) for one in found} <= {total // count, -(-total // count)}
    table = pa.concat_tables(found)
    assert table["n"].to_pylist() == list(range(total))
    assert table["twice"].to_pylist() == [2 * n for n in range(total)]
    if total:
        assert made.to_arrow()["n"].to_pylist() == list(range(total))


def test_only_row_groups_that_outputs_share_are_read_twice(tmp_path: Path) -> None:
    rows = written(tmp_path / "in", [numbers(0, 1000), numbers(1000, 1000)])
    found = outputs(rows._plan.source, 4)  # type: ignore[union-attr]
    groups = [(one.shard.uri[-11:-8], one.shard.start, one.shard.stop) for made in found for one in made.slices]
    assert groups == [("000", 0, 5), ("000", 5, 10), ("001", 0, 5), ("001", 5, 10)]
    found = outputs(rows._plan.source, 3)  # type: ignore[union-attr]
    assert [[(one.shard.start, one.shard.stop, one.skip, one.take) for one in made.slices] for made in found] == [
        [(0, 7, 0, 666)],
        [(6, 10, 66, 334), (0, 4, 0, 333)],
        [(3, 10, 33, 667)],
    ]


def test_repartitioning_rows_whose_number_is_unknown_goes_through_run_files(tmp_path: Path) -> None:
    rows = written(tmp_path / "in", [numbers(0, 1000)])
    odd = rows.filter(pc.bit_wise_and(pc.field("n"), 1) == 1)
    summary = odd.repartition(3).write_parquet(tmp_path / "out", keep_stages=True)
    assert summary.books.rows_out == 500
    assert [len(one) for one in parts(tmp_path / "out")] == [166, 167, 167]
    assert list((tmp_path / "out/_curate/stages").glob("*/*.run"))


def test_inputs_of_rows_that_need_not_move_are_frozen_too(tmp_path: Path) -> None:
    rows = written(tmp_path / "in", [numbers(0, 10)])
    rows.repartition(2).write_parquet(tmp_path / "out")
    pq.write_table(numbers(10, 10), tmp_path / "in/001.parquet")
    again = curate.read_parquet(tmp_path / "in").using(backend="inline")
    with pytest.raises(ConfigError, match=r"(?s)changed after the job began.*new.*001\.parquet"):
        again.repartition(2).write_parquet(tmp_path / "out")


# Rows twice, and rows of nothing


def test_rows_that_are_there_twice_are_shuffled_apart(tmp_path: Path) -> None:
    """Files of one name in a union have random keys of their own."""
    rows = written(tmp_path / "in", [numbers(0, 500), numbers(500, 500)])
    twice = rows.union(rows)
    assert [row["n"] for row in twice.sort("n").take_all()] == [n for n in range(1000) for _ in (0, 1)]
    order = twice.random_shuffle(seed=1).to_arrow()["n"].to_pylist()
    assert sorted(order) == sorted([*range(1000), *range(1000)])
    places: dict[int, list[int]] = {}
    for place, n in enumerate(order):
        places.setdefault(n, []).append(place)
    near = sum(abs(one - other) < 100 for one, other in places.values())
    assert near < 200  # about 98 if they know nothing of each other


def test_rows_without_copies_whose_columns_only_functions_know(tmp_path: Path) -> None:
    rows = curate.from_items([{"id": n, "text": f"a text of its own, number {n}"} for n in range(20)])
    made = rows.map(lambda row: {**row, "more": 1}).using(backend="inline")
    for name, ds in {
        "exact": made.dedup_exact("text", id_column="id"),
        "near": made.dedup_minhash("text", id_column="id", threshold=1.0),
    }.items():
        summary = ds.write_parquet(tmp_path / name)
        assert (summary.state, summary.books.rows_out, summary.books.dropped) == ("complete", 20, {})
        (side,) = (tmp_path / name / "_side/duplicates").glob("*.parquet")
        assert pq.read_schema(side).names == ["id", "cluster", "kept_id", "similarity"]


def test_so_are_those_of_parts_that_are_read_differently(tmp_path: Path) -> None:
    """Each is a stage of its own, with shards of the same names."""
    rows = written(tmp_path / "in", [numbers(0, 500), numbers(500, 500)])
    parts = rows.union(rows.filter(pc.field("n") >= 0), rows.union(rows.filter(pc.field("n") >= -1)))
    order = parts.random_shuffle(seed=1).to_arrow()["n"].to_pylist()
    places: dict[int, list[int]] = {}
    for place, n in enumerate(order):
        places.setdefault(n, []).append(place)
    assert all(len(one) == 4 for one in places.values())
    for a, b in pairwise(range(4)):
        near = sum(sorted(one)[b] - sorted(one)[a] < 100 for one in places.values())
        assert near < 200  # about 75 if they know nothing of each other
