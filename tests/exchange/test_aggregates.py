"""Aggregates of groups: the same as plain Python, whatever is folded when, and exact or refused."""

from __future__ import annotations

import datetime
import math
import statistics
import struct
import warnings
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.errors import ConfigError, SumOverflow
from curate.exchange.kinds.aggregates import FUNCTIONS, make
from curate.exchange.kinds.group import Grouped
from tests.exchange.local import exchanged, same, sort_key
from tests.support.examples import examples

NAN = float("nan")
KEYS = {
    "int": (pa.int64(), st.sampled_from([None, -(2**63), -1, 0, 1, 2, 2**63 - 1])),
    "small": (pa.int8(), st.sampled_from([None, -128, 0, 127])),
    "unsigned": (pa.uint64(), st.sampled_from([0, 3, 2**64 - 1])),
    "float": (pa.float64(), st.sampled_from([None, NAN, -0.0, 0.0, 1.5, math.inf, -math.inf])),
    "text": (pa.string(), st.sampled_from([None, "", "a", "b", "é", "\U0001f600", "a\0"])),
    "bool": (pa.bool_(), st.sampled_from([None, True, False])),
    "null": (pa.null(), st.just(None)),
}
INTS = st.one_of(st.none(), st.integers(-1000, 1000))
FLOATS = st.one_of(st.none(), st.sampled_from([NAN, 0.0, -0.0]), st.floats(-1e6, 1e6))


def tables(keys: list[str], values: Any, type: pa.DataType) -> Any:
    """Draws shards, some empty, of rows with key columns and a column `v`."""
    row = st.tuples(*(KEYS[one][1] for one in keys), values)
    schema = pa.schema([*((f"k{n}", KEYS[one][0]) for n, one in enumerate(keys)), ("v", type)])

    def table(rows: list[Any]) -> pa.Table:
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
        return pa.table([pa.array(list(one), field.type) for one, field in zip(columns, schema, strict=True)], schema)

    return st.lists(st.lists(row, max_size=30).map(table), min_size=1, max_size=4)


def grouped(keys: int, aggregates: list[Any]) -> Grouped:
    return Grouped("groupby", tuple(f"k{n}" for n in range(keys)), tuple(aggregates))


def by_hand(shards: list[pa.Table], keys: int) -> list[tuple[tuple[Any, ...], list[Any]]]:
    """Returns each key with its values, in order."""
    found: dict[Any, tuple[tuple[Any, ...], list[Any]]] = {}
    for row in (row for shard in shards for row in shard.to_pylist()):
        key = tuple(row[f"k{n}"] for n in range(keys))
        found.setdefault(tuple(map(sort_key, key)), (key, []))[1].append(row["v"])
    return [found[one] for one in sorted(found)]


def quantile(values: list[float], q: float) -> float | None:
    return float(np.quantile(values, q)) if values else None


def expected(function: str, values: list[Any]) -> Any:
    """Returns what an aggregate comes to, in plain Python."""
    there = [value for value in values if value is not None]
    numbers = [value for value in there if value == value]
    match function:
        case "count":
            return len(there)
        case "sum":
            return sum(there) if there else None
        case "mean":
            return float(sum(there) / len(there)) if there else None
        case "min" | "max":
            pick = min if function == "min" else max
            return pick(numbers) if numbers else NAN if there else None
        case "std":
            if len(there) != len(numbers):
                return NAN if len(there) > 1 else None
            return statistics.stdev(map(float, there)) if len(there) > 1 else None
        case "quantile":
            return quantile(numbers, 0.3)
        case "first":
            return there[0] if there else None
    return values


ALL = [make(function, "v", q=0.3) for function in FUNCTIONS]


def check(shards: list[pa.Table], keys: int, seed: int) -> None:
    made = exchanged(grouped(keys, [make("count", None), *ALL]), shards, seed=seed)
    wanted = by_hand(shards, keys)
    assert len(made.rows()) == len(wanted)
    for row, (key, values) in zip(made.rows(), wanted, strict=True):
        assert same([sort_key(row[f"k{n}"]) for n in range(keys)], [sort_key(one) for one in key])
        assert row["count"] == len(values)
        for function in FUNCTIONS:
            assert same(row[f"v_{function}"], expected(function, values)), (function, values)
    # Nothing but what could be merged was folded: the values of lists are all there.
    assert made.rows_in == sum(shard.num_rows for shard in shards)
    assert sum(made.dropped.values()) == made.rows_in - len(wanted)


@pytest.mark.quick(3)
@pytest.mark.parametrize("key", KEYS)
@settings(max_examples=examples(30))
@given(data=st.data(), seed=st.integers(0, 1000))
def test_every_aggregate_of_ints_is_what_python_makes_of_the_values_of_each_key(
    key: str, data: st.DataObject, seed: int
) -> None:
    check(data.draw(tables([key], INTS, pa.int64())), 1, seed)


@settings(max_examples=examples(30))
@given(shards=tables(["int", "text", "float"], FLOATS, pa.float64()), seed=st.integers(0, 1000))
def test_every_aggregate_of_floats_is_what_python_makes_of_the_values_of_several_keys(
    shards: list[pa.Table], seed: int
) -> None:
    check(shards, 3, seed)


FOLDED = ("count", "sum", "min", "max", "mean", "std", "first")


@pytest.mark.quick(3)
@pytest.mark.parametrize("key", KEYS)
@settings(max_examples=examples(30))
@given(data=st.data(), seed=st.integers(0, 1000))
def test_what_is_folded_on_the_map_side_comes_to_the_same(key: str, data: st.DataObject, seed: int) -> None:
    shards = data.draw(tables([key, "small"], FLOATS, pa.float64()))
    made = exchanged(grouped(2, [make(function, "v") for function in FOLDED]), shards, seed=seed)
    for row, (_, values) in zip(made.rows(), by_hand(shards, 2), strict=True):
        for function in FOLDED:
            assert same(row[f"v_{function}"], expected(function, values)), (function, values)


@pytest.mark.parametrize("values", [[1e308, 1e308], [math.inf, -math.inf], [NAN, 1.0, math.inf], [-1e308, 1e308, NAN]])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_floats_beyond_what_is_finite_are_told_by_the_result_alone(function: str, values: list[float]) -> None:
    """And by no warning: that could be an error in the process of whoever asks."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # What earlier tests left may be collected here, by chance, and has warnings of its own.
        warnings.simplefilter("ignore", ResourceWarning)
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        made = exchanged(grouped(1, [make(function, "v")]), [pa.table({"k0": [1] * len(values), "v": values})])
    assert made.table.num_rows == 1


def test_folding_leaves_a_row_a_key() -> None:
    """Rows of one key become one on the map side, whatever their number; zeros of both signs, and all NaN, are one."""
    how = grouped(1, [make("sum", "v"), make("std", "v")])
    other = struct.unpack("d", struct.pack("Q", 0x7FF8_0000_0000_0001))[0]
    keys = np.array([0.0, -0.0, NAN, other, 1.0, 1.0] * 100)
    table = pa.table({"k0": pa.array(keys, mask=keys == 1), "v": range(600)})
    [prepared] = how.prepare(0)[0].apply(table, None, None)  # type: ignore[arg-type]
    folded = how.fold(prepared)
    assert folded.num_rows == 3
    assert how.fold(folded) is folded


def test_the_same_rows_in_the_same_order_give_the_same_bits_however_they_come() -> None:
    """Floats of a key are added in the order of the rows: how they are cut into batches changes nothing."""
    rng = np.random.default_rng(1)
    table = pa.table({"k0": rng.integers(0, 3, 4000), "v": rng.normal(size=4000) * 10.0 ** rng.integers(-8, 8, 4000)})
    how = grouped(1, [make("sum", "v"), make("mean", "v"), make("std", "v")])
    [prepared] = how.prepare(0)[0].apply(table, None, None)  # type: ignore[arg-type]
    pieces = pa.concat_tables([prepared.slice(at, 7) for at in range(0, 4000, 7)])
    assert how.fold(pieces).equals(how.fold(prepared))


@pytest.mark.parametrize("offset", [0.0, 1e9, -1e12])
def test_small_deviations_of_large_values_are_not_lost(offset: float) -> None:
    """Merging by means keeps what sums of squares would lose: they would have no digit left at 1e9."""
    values = offset + np.random.default_rng(2).normal(size=20_000)
    table = pa.table({"k0": np.zeros(20_000, np.int64), "v": values})
    [row] = exchanged(grouped(1, [make("std", "v")]), [table], seed=3, batch_rows=500).rows()
    # With all digits of the values as they are.
    exact = float(np.std(values.astype(np.longdouble), ddof=1))
    assert row["v_std"] == pytest.approx(exact, rel=max(1e-12, 1e-17 * abs(offset)))


@pytest.mark.parametrize(
    ("type", "values", "total"),
    [
        (pa.int64(), [2**63 - 1, -(2**63), 5], 4),
        (pa.int64(), [2**62, 2**62 - 1], 2**63 - 1),
        (pa.int64(), [-(2**62), -(2**62)], -(2**63)),
        (pa.int64(), [2**62, 2**62, -5], 2**63 - 5),
        (pa.uint64(), [2**63, 2**63 - 1], 2**64 - 1),
        (pa.int64(), [2**62, 2**62], None),
        (pa.int64(), [-(2**63), -1], None),
        (pa.uint64(), [2**63, 2**63], None),
        (pa.int8(), [127] * 300, 127 * 300),
        (pa.uint8(), [255] * 300, 255 * 300),
        (pa.bool_(), [True, None, True], 2),
        (pa.decimal128(5, 2), [Decimal("999.99")] * 200, Decimal("199998.00")),
        (pa.decimal128(38, 0), [Decimal("9" * 38), Decimal(0)], Decimal("9" * 38)),
        (pa.decimal128(38, 0), [Decimal("9" * 38), Decimal(1)], None),
        (pa.decimal32(5, 1), [Decimal("9999.9")] * 9, Decimal("89999.1")),
        (pa.float16(), [np.float16(0.5), np.float16(2)], 2.5),
        (pa.duration("s"), [datetime.timedelta(1), None], datetime.timedelta(1)),
        (pa.null(), [None], None),
    ],
)
def test_sums_are_exact_or_refused(type: pa.DataType, values: list[Any], total: Any) -> None:
    """The sum of a group is that of Python's numbers, or SumOverflow tells column and key."""
    table = pa.table({"k0": ["other", *["it"] * len(values)], "v": pa.array([None, *values], type)})
    how = grouped(1, [make("sum", "v")])
    if total is None and values != [None]:
        with pytest.raises(SumOverflow, match=r"sum of column 'v' where k0 is 'it' is -?\d+, which does not fit into"):
            exchanged(how, [table], batch_rows=100)
        return
    made = exchanged(how, [table], batch_rows=100)
    assert made.rows() == [{"k0": "it", "v_sum": total}, {"k0": "other", "v_sum": None}]
    assert made.table.schema.equals(how.schema([table.schema]))


@pytest.mark.quick(6)
@pytest.mark.parametrize(
    "type",
    [
        pa.int32(),
        pa.uint64(),
        pa.float16(),
        pa.float32(),
        pa.decimal64(9, 2),
        pa.decimal256(60, 2),
        pa.date32(),
        pa.timestamp("ns", "UTC"),
        pa.time64("us"),
        pa.duration("ms"),
        pa.bool_(),
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.binary_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.null(),
        pa.list_(pa.int64()),
        pa.struct([("a", pa.int64())]),
        pa.month_day_nano_interval(),
    ],
    ids=str,
)
def test_an_aggregate_of_any_type_gives_the_type_that_the_schema_says_or_is_refused(type: pa.DataType) -> None:
    base = pa.array([None, 3, 1, 2, None])
    if pa.types.is_list(type):
        values: Any = pa.array([None, [3], [1], [2], None], type)
    elif pa.types.is_struct(type):
        values = pa.array([None, {"a": 3}, {"a": 1}, {"a": 2}, None], type)
    elif pa.types.is_interval(type):
        values = pa.array([None, (1, 2, 3), (1, 2, 4), (1, 2, 5), None], type)
    elif pa.types.is_null(type):
        values = pa.nulls(5)
    elif pa.types.is_dictionary(type):
        values = base.cast(pa.string()).dictionary_encode().cast(type)
    elif "binary" in str(type):
        values = base.cast(pa.string()).cast(pa.binary()).cast(type)
    elif pa.types.is_date32(type):
        values = base.cast(pa.int32()).cast(type)
    else:
        values = (
            base.cast(pa.int16()).cast(pa.decimal128(9, 2)).cast(type) if "decimal" in str(type) else base.cast(type)
        )
    table = pa.table({"k0": ["a", "b", "b", "b", "c"], "v": values})
    for one in ALL:
        how = grouped(1, [one])
        try:
            schema = how.schema([table.schema])
        except ConfigError as error:
            assert f"cannot compute {one.function} of column 'v' of type" in str(error)  # noqa: PT017
            assert one.function not in ("count", "first", "list")
            continue
        for seed in range(4):
            made = exchanged(how, [table], seed=seed)
            assert made.table.schema.equals(schema)
            if one.function in ("min", "max") and not pa.types.is_null(type):
                wanted = values.cast(type.value_type) if pa.types.is_dictionary(type) else values
                assert made.table.column(1).to_pylist()[1] == wanted[2 if one.function == "min" else 1].as_py()


def test_sums_are_those_of_duckdb() -> None:
    rng = np.random.default_rng(5)
    rows = pa.table(
        {
            "k0": pa.array(rng.integers(0, 50, 5000), mask=rng.random(5000) < 0.05),
            "k1": pa.array(rng.choice(["x", "y", "zé"], 5000)),
            "v": pa.array(rng.integers(-100, 100, 5000), mask=rng.random(5000) < 0.1),
        }
    )
    how = grouped(2, [make(one, "v", q=0.25) for one in ("count", "sum", "min", "max", "mean", "std", "quantile")])
    made = exchanged(how, [rows.slice(at, 1250) for at in range(0, 5000, 1250)], seed=1, batch_rows=300)
    found = duckdb.sql(
        "select k0, k1, count(v), sum(v)::bigint, min(v), max(v), avg(v), stddev_samp(v), quantile_cont(v, 0.25) "
        "from rows group by all order by k0 nulls last, k1"
    ).fetchall()
    assert [list(row.values()) for row in made.rows()] == [
        [pytest.approx(value) if isinstance(value, float) else value for value in row] for row in found
    ]


@pytest.mark.parametrize(
    ("function", "how", "message"),
    [
        ("avg", {}, "no function 'avg'; there are count, sum"),
        ("maen", {}, "did you mean 'mean'"),
        ("std", {"ddof": -1}, "ddof is -1, expected a whole number, at least 0"),
        ("std", {"ddof": 0.5}, "ddof is 0.5"),
        ("quantile", {"q": 1.5}, "q is 1.5, expected a number from 0 to 1"),
    ],
)
def test_what_is_no_aggregate_is_refused(function: str, how: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(function, "v", **how)


def test_columns_that_are_missing_and_names_that_meet_are_refused() -> None:
    schema = pa.schema([("k0", pa.int64()), ("value", pa.int64()), ("tags", pa.list_(pa.string()))])
    with pytest.raises(ConfigError, match="there is no column 'valeu'; did you mean 'value'"):
        grouped(1, [make("sum", "valeu")]).schema([schema])
    with pytest.raises(ConfigError, match="column 'tags' is nested"):
        Grouped("groupby('tags')", ("tags",), (make("count", None),)).schema([schema])
    with pytest.raises(ConfigError, match="would make 2 columns called 'count'"):
        Grouped("groupby('count')", ("count",), (make("count", None),))
    with pytest.raises(ConfigError, match="would make 2 columns called 'v_sum'"):
        grouped(1, [make("sum", "v"), make("sum", "v")])
    with pytest.raises(ConfigError, match="sum needs a column"):
        make("sum", None)


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=3), st.floats(0, 1), st.integers(1, 3))
@settings(max_examples=examples(200), deadline=None)
def test_a_quantile_is_none_beyond_the_values(values: list[float], q: float, copies: int) -> None:
    """Whatever is rounded on the line between two of them: of equal ones it is these."""
    table = pa.table({"k0": [0] * copies * len(values), "v": values * copies})
    [row] = exchanged(grouped(1, [make("quantile", "v", q=q)]), [table]).rows()
    quantile = row["v_quantile"]
    assert min(values) <= quantile <= max(values)
    assert len(set(values)) > 1 or quantile == values[0]
