"""Row groups that filters leave out by their statistics: the same rows and books as if all had been read."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import curate
from curate.dataset.dataset import Dataset
from curate.formats.statistics import misled_by_statistics
from curate.ledger.summary import Summary
from curate.sources import slice_rows as reading
from curate.stores.memory import MemoryStore
from jobs.filter import Filter
from tests.job.inline import run_job

_numbers = itertools.count()
SCHEMA = pa.schema([("n", pa.int64()), ("x", pa.float64()), ("s", pa.string()), ("at", pa.int64())])
Row = tuple[int | None, float | None, str | None]

FILTERS: dict[str, tuple[Any, Callable[[Row], bool | None]]] = {
    "large": (pc.field("n") > 2, lambda row: None if row[0] is None else row[0] > 2),
    "small": (pc.field("n") <= 2, lambda row: None if row[0] is None else row[0] <= 2),
    "here": (pc.field("n").is_valid(), lambda row: row[0] is not None),
    "missing": (pc.field("s").is_null(), lambda row: row[2] is None),
    "one": (pc.field("x") == 1.0, lambda row: None if row[1] is None else row[1] == 1.0),
    "others": (pc.field("x") != 1.0, lambda row: None if row[1] is None else row[1] != 1.0),
    "text": (pc.field("s") >= "b", lambda row: None if row[2] is None else row[2] >= "b"),
    "both": (
        (pc.field("n") > 1) & (pc.field("s") == "a"),
        lambda row: bool(row[0] is not None and row[0] > 1 and row[2] == "a"),
    ),
}
ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(0, 4)),
        st.sampled_from([None, math.nan, 1.0, 2.0]),
        st.sampled_from([None, "a", "b", "c"]),
    ),
    max_size=24,
)


def expected(rows: list[Row], names: list[str]) -> tuple[list[int], dict[str, int]]:
    """Places of the rows that are kept, and why the others are dropped: the first filter that is not true of each."""
    kept, dropped = [], dict[str, int]()
    for at, row in enumerate(rows):
        reason = next((name for name in names if not FILTERS[name][1](row)), None)
        if reason is None:
            kept.append(at)
        else:
            dropped[reason] = dropped.get(reason, 0) + 1
    return kept, dropped


def stored(rows: list[Row], group: int, *, statistics: bool = True) -> str:
    """Writes rows in row groups; returns the root that they lie below."""
    root = f"memory://left-out-{next(_numbers)}"
    columns = [*(zip(*rows, strict=True) if rows else ([], [], [])), range(len(rows))]
    table = pa.table([pa.array(list(one), field.type) for one, field in zip(columns, SCHEMA, strict=True)], SCHEMA)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=group, write_statistics=statistics)
    MemoryStore().publish(f"{root}/in/0.parquet", sink.getvalue().to_pybytes())
    return root


def filtered(root: str, names: list[str]) -> Dataset:
    ds = curate.read_parquet(f"{root}/in")
    for name in names:
        ds = ds.filter(FILTERS[name][0], reason=name)
    return ds


def books(summary: Summary) -> tuple[int, int, dict[str, int]]:
    assert summary.state == "complete", summary.failures
    assert summary.books.balanced()
    return summary.books.rows_in, summary.books.rows_out, dict(summary.books.dropped)


@pytest.mark.slow
@settings(max_examples=25)
@given(
    ROWS,
    st.integers(1, 6),
    st.booleans(),
    st.lists(st.sampled_from(sorted(FILTERS)), min_size=1, max_size=3, unique=True),
)
def test_rows_and_books(rows: list[Row], group: int, statistics: bool, names: list[str]) -> None:
    """Those of a loop over all rows: with nulls, NaN, and without statistics; written at once, and by exchanges."""
    # In order, so that many row groups have values on one side alone.
    rows = sorted(rows, key=lambda row: (row[0] is None, row[0] or 0))
    root = stored(rows, group, statistics=statistics)
    kept, dropped = expected(rows, names)
    ds = filtered(root, names)
    assert [row["at"] for row in ds.take_all()] == kept
    wanted = (len(rows), len(kept), dropped)
    assert books(ds.write_parquet(f"{root}/plain", backend="inline")) == wanted
    assert books(ds.sort("at").write_parquet(f"{root}/sorted", backend="inline")) == wanted
    assert books(ds.dedup_exact("at").write_parquet(f"{root}/unique", backend="inline")) == wanted


FLOAT = pc.field("x")
FIELD = pc.field("of", "x")
MISLED = [
    lambda x: x != 1.0,
    lambda x: ~(x == 1.0),
    lambda x: x.isin([0.0]),
    lambda x: ~x.isin([-0.0]),
    lambda x: x.cast(pa.string()) == "0",
    lambda x: pc.divide(pc.scalar(1.0), x) > 0,
    lambda x: pc.is_nan(x),
    lambda x: x >= 0,
    lambda x: (x != 1.0) & (pc.field("n") >= 0),
    lambda x: (x != 1.0) & (pc.field("of", "n") >= 0),
    lambda x: x.isin([0.0]) & (pc.field("of", "n") >= 0),
]


@pytest.mark.slow
@given(
    st.lists(st.sampled_from([None, math.nan, 0.0, -0.0, 1.0, 2.0]), min_size=1, max_size=8),
    st.integers(1, 3),
    st.sampled_from(MISLED),
    st.sampled_from([FLOAT, FIELD, pc.struct_field(pc.field("of"), [0])]),
    st.sampled_from([pa.float32(), pa.float64()]),
)
@settings(max_examples=150)
def test_statistics_tell_neither_nan_nor_zeros_apart(
    values: list[float | None], group: int, make: Callable[[Any], Any], of: Any, type: pa.DataType
) -> None:
    """In a column or in a struct: what a filter keeps is what it keeps of all rows in memory."""
    x, n = pa.array(values, type), pa.array(range(len(values)))
    table = pa.table({"x": x, "of": pa.StructArray.from_arrays([x, n], ["x", "n"]), "n": n})
    root = f"memory://left-out-{next(_numbers)}"
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=group)
    MemoryStore().publish(f"{root}/0.parquet", sink.getvalue().to_pybytes())
    kept = curate.read_parquet(root).filter(make(of)).take_all()
    assert [row["n"] for row in kept] == table.filter(make(of))["n"].to_pylist()


OF_ALL_BUT_ONE: dict[int, tuple[Callable[[Any], Any], Callable[[int], bool]]] = {
    0: (lambda n: pc.divide(pc.scalar(12), n) > 3, lambda n: 12 // n > 3),
    2**62: (lambda n: n + n > 3, lambda n: n + n > 3),
    -(2**63): (lambda n: n - 1 > 3, lambda n: n - 1 > 3),
    300: (lambda n: n.cast(pa.int8()) > 3, lambda n: n > 3),
}
"""Filters by a number that nothing can be computed of."""


@pytest.mark.parametrize("number", OF_ALL_BUT_ONE)
def test_what_cannot_be_computed_of_statistics_is_computed_of_rows(number: int) -> None:
    """So not of rows that a filter before drops, though a row group has nothing else; of others it fails, as ever."""
    expression, is_kept = OF_ALL_BUT_ONE[number]
    root = stored([(one, None, None) for one in (number, number, 1, 2, number, 5)], 2)
    ds = curate.read_parquet(f"{root}/in")
    kept = ds.filter(pc.field("n") != number).filter(expression(pc.field("n")))
    assert kept.to_arrow()["n"].to_pylist() == [one for one in (1, 2, 5) if is_kept(one)]
    with pytest.raises(pa.ArrowInvalid):
        ds.filter(expression(pc.field("n"))).take_all()


def test_row_groups_are_left_out_by_other_fields_of_a_struct() -> None:
    """That one of its fields is a float is no reason to read them."""
    schema = pa.schema([("of", pa.struct([("x", pa.float64()), ("n", pa.int64())]))])
    assert not misled_by_statistics(pc.field("of", "n") > 1, schema)
    assert not misled_by_statistics((pc.field("of", "n") > 1) & (pc.field("of", "x") > 1), schema)
    assert misled_by_statistics((pc.field("of", "n") > 1) | (pc.field("of", "x") != 1), schema)


WRITES: list[Callable[[Dataset, str], Summary]] = [
    lambda ds, to: ds.write_parquet(to, backend="inline"),
    lambda ds, to: ds.sort("at").write_parquet(to, backend="inline"),
]


@pytest.mark.parametrize("write", WRITES)
def test_what_is_left_out_is_not_read(
    write: Callable[[Dataset, str], Summary], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the first filter: none of it. By the second: what the first one looks at."""
    rows: list[Row] = [(at // 3, 1.0, "a" if at % 2 else "b") for at in range(9)]
    root = stored(rows, 3)
    seen: list[list[str]] = []

    def watched(*given: Any) -> Any:
        seen.append(next(one.names for one in given if isinstance(one, pa.Schema)))
        return read(*given)

    read = reading.read
    monkeypatch.setattr(reading, "read", watched)
    assert books(write(filtered(root, ["large"]), f"{root}/1"))[2] == {"large": 9}
    # By a task that is asked for the schema of no rows at all, nothing is read either.
    assert seen == []
    kept = books(write(filtered(root, ["text", "large"]), f"{root}/2"))
    assert kept[2] == expected(rows, ["text", "large"])[1]
    assert {*itertools.chain(*seen)} <= {"n", "s"}


def test_behind_what_may_drop_rows_too_nothing_is_left_out() -> None:
    """A row that a function drops counts for that, and not for a filter behind it."""
    root = stored([(0, 1.0, "a"), (1, 1.0, "a"), (4, 1.0, "a")], 1)
    ds = curate.read_parquet(f"{root}/in").filter(lambda row: row["n"] > 0, reason="zero")
    ds = ds.filter(FILTERS["large"][0], reason="large")
    assert "row groups" not in ds.explain()
    assert books(ds.sort("at").write_parquet(f"{root}/out", backend="inline")) == (3, 1, {"zero": 1, "large": 1})
    odd = curate.read_parquet(f"{root}/in").filter(FILTERS["others"][0], reason="others")
    odd = odd.filter(FILTERS["large"][0], reason="large")
    assert books(odd.sort("at").write_parquet(f"{root}/odd", backend="inline")) == (3, 0, {"others": 3})


def test_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rows and books as of lines of text, of which all are read."""
    rows: list[Row] = [(at // 4, 1.0, "abc"[at % 3]) for at in range(24)]
    root = stored(rows, 4)
    table = pq.read_table(pa.BufferReader(MemoryStore().read(f"{root}/in/0.parquet")))
    lines = b"".join(orjson.dumps(row) + b"\n" for row in table.to_pylist())
    MemoryStore().publish(f"{root}/lines/0.jsonl", lines)
    job = Filter(where=["n > 2", "s != 'b'", "n < 5"])
    seen: list[Any] = []
    read = reading.read
    monkeypatch.setattr(reading, "read", lambda file, *rest: seen.append(file) or read(file, *rest))
    made = [run_job(job, f"{root}/{source}", f"{root}/out-{source}") for source in ("lines", "in")]
    assert books(made[0]) == books(made[1])
    wanted = [row for row in table.to_pylist() if 2 < row["n"] < 5 and row["s"] != "b"]
    for source in ("lines", "in"):
        found = pq.read_table(pa.BufferReader(MemoryStore().read(f"{root}/out-{source}/0.parquet")))
        assert found.to_pylist() == wanted
    # The fourth and the fifth row group, whole; and of the last one what the first two conditions look at.
    assert {(file.start, file.stop) for file in seen if file.uri.endswith(".parquet")} == {(3, 5), (5, 6)}


def test_folders() -> None:
    """A filter of what a folder says reads nothing of the files of others, and their rows are dropped for it."""
    root = f"memory://left-out-{next(_numbers)}"
    for year in (2023, 2024):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"n": [1, 2, None]}), sink)
        MemoryStore().publish(f"{root}/in/year={year}/0.parquet", sink.getvalue().to_pybytes())
    ds = curate.read_parquet(f"{root}/in").filter(pc.field("year") == 2024, reason="other year")
    both = ds.filter(pc.field("n") > 1, reason="small")
    assert "[1 of 2 row groups left]" in ds.explain()
    assert both.take_all() == [{"n": 2, "year": 2024}]
    for number, write in enumerate(WRITES):
        ended = write(both.with_column("at", pc.field("n")), f"{root}/out-{number}")
        assert books(ended) == (6, 1, {"other year": 3, "small": 2})
    assert sorted(one.uri.removeprefix(root) for one in MemoryStore().list(f"{root}/out-0/year")) == [
        "/out-0/year=2023/0.parquet",
        "/out-0/year=2024/0.parquet",
    ]


@pytest.mark.parametrize("names", [["large"], ["here", "large"]])
def test_explained(names: list[str]) -> None:
    """How many row groups are left of those that there are."""
    root = stored([(number, 1.0, "a") for number in range(6)], 2)
    assert "[2 of 3 row groups left]" in filtered(root, names).explain()
