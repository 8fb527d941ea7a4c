"""Sketches of columns against brute force: what is exact is equal, what is estimated is as near as it says."""

from __future__ import annotations

import math
import sys
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from curate.errors import ConfigError
from curate.report import frequent
from curate.report.column import Column, kind_of, leaves
from curate.report.corpus import Corpus, Sketcher
from curate.report.days import Days
from curate.report.distinct import Distinct
from curate.report.frequent import Frequent
from curate.report.numbers import Numbers, bins_of, edges
from tests.dataset.test_every_type import TYPES


def sketch(table: pa.Table, by: str = "") -> Corpus:
    sketcher = Sketcher(table.schema, by)
    sketcher.add(table)
    return sketcher.corpus


def stored(corpus: Corpus) -> Corpus:
    """Returns a sketch as it is read back, which is the same."""
    told = corpus.as_dict()
    found = Corpus.parse(orjson.loads(orjson.dumps(told)))
    assert found.as_dict() == told
    return found


DOUBLES = st.floats(allow_nan=True, allow_infinity=True)
WHOLE = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(DOUBLES), st.lists(DOUBLES))
def test_numbers(first: list[float], second: list[float]) -> None:
    """Counts, ends and sum are exact, also of what was merged."""
    one, other = Numbers(), Numbers()
    one.add(np.array(first, np.float64))
    other.add(np.array(second, np.float64))
    one.merge(other)
    finite = [value for value in first + second if math.isfinite(value)]
    assert (one.count, one.not_finite) == (len(finite), len(first + second) - len(finite))
    assert (one.least, one.greatest) == (min(finite, default=None), max(finite, default=None))
    assert one.sum == sum(map(Fraction, finite))
    assert one.bins.total() == len(finite)


@given(st.lists(WHOLE, min_size=1))
def test_whole_numbers(values: list[int]) -> None:
    """Their sum does not overflow, and a quantile is a whole number."""
    one = Numbers()
    one.add(np.array(values, np.int64))
    assert (one.sum, one.least, one.greatest) == (sum(values), min(values), max(values))
    assert isinstance(one.quantile(0.5), int)


@pytest.mark.parametrize("type", [pa.decimal32(7, 6), pa.decimal64(7, 6), pa.decimal128(7, 6), pa.decimal256(7, 6)])
def test_decimals_are_the_nearest_doubles(type: pa.DataType) -> None:
    """Scores as Parquet keeps them exactly are in the thousandth that they are of."""
    values = [Decimal(number).scaleb(-3) for number in range(1000)]
    numbers = sketch(pa.table({"x": pa.array([*values, None, Decimal("-9.7")], type)})).columns[0].numbers
    assert numbers.unit == Counter(range(1000))
    assert (numbers.least, numbers.greatest) == (-9.7, 0.999)
    assert numbers.sum == sum(map(Fraction, map(float, values)), Fraction(-9.7))


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1), st.floats(0, 1))
@example([sys.float_info.max] * 2, 0.5)
@example([-sys.float_info.max, 5e-324], 0.1)
def test_quantiles(values: list[float], share: float) -> None:
    """Within 1/128 of the true one."""
    one = Numbers()
    one.add(np.array(values))
    true = sorted(values)[max(1, math.ceil(share * len(values))) - 1]
    assert one.quantile(share) == pytest.approx(true, rel=1 / 128, abs=1e-320)


@pytest.mark.parametrize("value", [9.1e307, -9.1e307, 1.7e308, -1.7e308])
def test_quantiles_of_the_greatest_numbers(value: float) -> None:
    """The middle of two edges whose sum is beyond the doubles: not one end of all numbers."""
    one = Numbers()
    one.add(np.array([1.0, -1.0, value, value * 1.0001, -1.79e308, 1.79e308]))
    share = 0.6 if value > 0 else 0.4
    assert one.quantile(share) == pytest.approx(value, rel=1 / 128)


@pytest.mark.parametrize("zeros", [[0.0, -0.0], [-0.0, 0.0], [-0.0]])
def test_a_zero_has_no_sign(zeros: list[float]) -> None:
    """It would be that of the batch that comes first."""
    one, other = Numbers(), Numbers()
    one.add(np.array(zeros))
    other.add(np.array(zeros[::-1]))
    one.merge(other)
    assert [math.copysign(1, end) for end in (one.least or 0.0, one.greatest or 0.0)] == [1, 1]
    assert str((one.least, one.greatest)) == "(0.0, 0.0)"


@given(st.floats(allow_nan=False, allow_infinity=False))
@example(sys.float_info.max)
@example(-sys.float_info.max)
@example(5e-324)
def test_bins(value: float) -> None:
    """A number lies between the edges of its bin; bins are in the order of their numbers."""
    (bin,) = bins_of(np.array([value])).tolist()
    low, high = edges(bin)
    assert (low <= value < high) or (low < value <= high) or low == value == high


@pytest.mark.parametrize("different", [0, 1, 100, 5_000, 300_000])
def test_distinct(different: int) -> None:
    """Within 5 %, three times what is to be expected; whatever the order, and however it is parted."""
    table = pa.table({"n": np.tile(np.arange(different), 2)})
    whole = Column.of(leaves(table.schema)[0])
    whole.add(table["n"])
    assert whole.distinct is not None
    assert whole.distinct.estimate() == pytest.approx(different, rel=0.05)
    parts = [Column.of(leaves(table.schema)[0]) for _ in range(3)]
    for part, start in zip(parts, (2, 0, 1), strict=True):
        part.add(table["n"][start::3] if different else table["n"])
    merged = Distinct()
    for part in parts:
        assert part.distinct is not None
        merged.merge(part.distinct)
    assert merged.as_text() == whole.distinct.as_text()


@given(st.lists(st.lists(st.integers(0, 30), max_size=60), max_size=6))
def test_frequent_is_exact(batches: list[list[int]]) -> None:
    """While there are few different values."""
    one = Frequent()
    for batch in batches:
        one.add(np.array(batch, np.uint64), lambda place, batch=batch: batch[place])  # type: ignore[misc]
    counted = Counter(value for batch in batches for value in batch)
    assert dict(one.top()) == dict(counted)
    assert one.missed == 0


@given(st.lists(st.lists(st.integers(0, 60), max_size=90), max_size=6), st.integers(1, 4))
def test_what_is_most_frequent_in_all_shards_is_shown(shards: list[list[int]], most: int) -> None:
    """However far behind it is in each of them."""
    merged = Frequent()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frequent, "SHOWN", most)
        for shard in shards:
            one = Frequent()
            for batch in (shard[::2], shard[1::2]):
                one.add(np.array(batch, np.uint64), lambda place, batch=batch: batch[place])  # type: ignore[misc]
            merged.merge(Frequent.parse(orjson.loads(orjson.dumps(one.as_dict()))))
        counted = Counter(value for shard in shards for value in shard)
        assert merged.top() == sorted(counted.items(), key=lambda pair: (-pair[1], pair[0]))[:most]


def test_frequent_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A count that is told lacks no more than is said; what is there most often is found."""
    monkeypatch.setattr(frequent, "KEPT", 200)
    monkeypatch.setattr(frequent, "STORED", 100)
    rng = np.random.default_rng(3)
    values = rng.zipf(1.3, 50_000).astype(np.uint64)
    merged = Frequent()
    for shard in np.array_split(values, 4):
        one = Frequent()
        for batch in np.array_split(shard, 20):
            one.add(batch, lambda place, batch=batch: int(batch[place]))  # type: ignore[misc]
        merged.merge(Frequent.parse(orjson.loads(orjson.dumps(one.as_dict()))))
    counted = Counter(values.tolist())
    found = merged.top()
    assert merged.missed > 0
    assert all(count <= counted[value] <= count + merged.missed for value, count in found)
    assert [value for value, _ in found[:10]] == [value for value, _ in counted.most_common(10)]


@pytest.mark.parametrize("name", TYPES)
def test_chunks_do_not_matter(name: str) -> None:
    """Of a column that comes in many chunks, the sketch is that of one."""
    array = TYPES[name]
    whole = pa.table({"x": array})
    cut = pa.table({"x": pa.chunked_array([array.slice(0, 1), array.slice(1), array.slice(0, 0)], array.type)})
    expected = sketch(whole).as_dict()
    assert sketch(cut).as_dict() | {"bytes": expected["bytes"]} == expected


@given(st.lists(st.lists(st.integers(-800_000, 3_000_000), min_size=1), min_size=1))
def test_days(batches: list[list[int]]) -> None:
    """Counts add up, whatever spans are joined."""
    merged = Days()
    for batch in batches:
        one = Days()
        one.add(np.array(batch))
        merged.merge(one)
    values = sorted(value for batch in batches for value in batch)
    assert merged.counts.total() == len(values)
    assert merged.quantile(0.5) <= values[max(0, math.ceil(len(values) / 2) - 1)] < merged.quantile(0.5) + merged.width


def expected_lengths(kind: str, values: list[Any]) -> list[int] | None:
    lengths = {"text": len, "bytes": len, "list": len}
    return [lengths[kind](value) for value in values] if kind in lengths else None


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("nulls", [0, 2])
def test_every_type(name: str, nulls: int) -> None:
    """Every type is counted; what has a length has the right ones; what cannot be compared is said to be so."""
    array = TYPES[name]
    try:
        array = pa.concat_arrays([array, pa.nulls(nulls, array.type)]) if nulls else array
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        pytest.skip("Arrow makes no nulls of it")
    table = pa.table({"x": array})
    corpus = stored(sketch(table))
    assert corpus.rows == table.num_rows
    for leaf, column in zip(leaves(table.schema), corpus.columns, strict=True):
        values = leaf.of(table)
        assert (column.rows, column.nulls) == (table.num_rows, values.null_count)
        chunks = [one.storage if isinstance(one, pa.ExtensionArray) else one for one in values.chunks]
        present = [one.as_py() for chunk in chunks for one in chunk if one.is_valid]
        lengths = expected_lengths(kind_of(leaf.type), present)
        if lengths:
            assert (column.numbers.sum, column.numbers.least) == (sum(lengths), min(lengths))


@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.text(max_size=5)), max_size=30), st.integers(0, 30))
def test_parts_are_the_whole(rows: list[tuple[str | None, str]], cut: int) -> None:
    """However rows are parted, the sketches of the parts merge to that of all of them."""
    schema = pa.schema({"source": pa.string(), "text": pa.string()})
    table = pa.Table.from_pylist([{"source": source, "text": text} for source, text in rows], schema=schema)
    merged = stored(sketch(table.slice(0, cut), "source"))
    merged.merge(stored(sketch(table.slice(cut), "source")))
    whole = sketch(table, "source")
    merged.bytes = whole.bytes
    assert merged.as_dict() == whole.as_dict()
    counted = Counter(source for source, _ in rows)
    assert {key: source.rows for key, source in merged.sources.items()} == dict(counted)


def test_files_that_are_not_alike() -> None:
    """A column that only some have is null in the others; another kind of values is refused."""
    one = sketch(pa.table({"a": [1, 2]}))
    one.merge(sketch(pa.table({"a": [3], "b": ["x"]})))
    assert [(column.name, column.rows, column.nulls) for column in one.columns] == [("a", 3, 0), ("b", 3, 2)]
    with pytest.raises(ConfigError, match="'a' is int64 in some files and string in others"):
        one.merge(sketch(pa.table({"a": ["x"]})))


def test_a_column_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="no column 'sorce'; did you mean 'source'"):
        Sketcher(pa.schema({"source": pa.string()}), "sorce")


@pytest.mark.slow
def test_a_thousand_columns() -> None:
    table = pa.table({f"c{number}": [number, number + 1] for number in range(1000)})
    assert len(stored(sketch(table)).columns) == 1000
    assert pc.sum(table["c7"]).as_py() == sketch(table).columns[7].numbers.sum


@pytest.mark.parametrize("type", [pa.string(), pa.binary()])
def test_sources_that_begin_alike_are_told_apart(type: pa.DataType) -> None:
    """However long they are; what a long one is called is short, and differs."""
    values = ["x" * 5_000 + end for end in "aabc"]
    table = pa.table({"source": pa.array(values).cast(type), "text": ["one"] * 4})
    merged = stored(sketch(table.slice(0, 1), "source"))
    merged.merge(stored(sketch(table.slice(1), "source")))
    assert sorted(source.rows for source in merged.sources.values()) == [1, 1, 2]
    assert all(len(name) == 200 and name.startswith(("xxx", "78 78")) for name in merged.sources if name)


FAR = pa.array([2**60, 2**39, 5], pa.timestamp("s"))
NO_ZONE = pa.array([2**39, 2**38, 5], pa.timestamp("s", "Etc/GMT+99"))
BEYOND: dict[str, pa.Array] = {
    "times": FAR,
    "days": pa.array([2**31 - 1, 2**30, 5], pa.int32()).cast(pa.date32()),
    "a zone that is not known": NO_ZONE,
    "spans": pa.array([2**62, 2**61, 5], pa.duration("s")),
    "dictionaries": FAR.dictionary_encode(),
    "lists": pa.ListArray.from_arrays([0, 1, 2, 3], FAR),
    "lists of another zone": pa.ListArray.from_arrays([0, 1, 2, 3], NO_ZONE),
    "maps": pa.MapArray.from_arrays([0, 1, 2, 3], ["a", "b", "c"], FAR),
}


@pytest.mark.parametrize("name", BEYOND)
def test_values_that_python_has_none_for_are_shown_as_text(name: str) -> None:
    """Each by one of its own, as a value and as a source; and they cost no other column its report."""
    values = pa.concat_arrays([BEYOND[name], BEYOND[name].slice(0, 1)])
    table = pa.table({"x": values, "n": [1, 2, 3, 4]})
    corpus = stored(sketch(table, "" if pa.types.is_nested(values.type) else "x"))
    top = corpus.columns[0].frequent.top()
    assert sorted(count for _, count in top) == [1, 1, 2]
    assert len({str(value) for value, _ in top}) == 3
    assert corpus.columns[1].numbers.sum == 10
    assert sum(source.rows for source in corpus.sources.values()) == (4 if corpus.by else 0)
