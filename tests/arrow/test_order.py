"""One order of rows, whatever the types: sorting, groups and places in what is sorted agree in it."""

from __future__ import annotations

import datetime as dt
import functools
import json
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.arrow.order import Order, SortKey, take_rows
from curate.errors import ConfigError
from tests.support.examples import examples

NAN = float("nan")
LONG = "text that is the same over more bytes than are compared as numbers, which is what Arrow is there for: "
TEXT = [
    "",
    "a",
    "a\0",
    "ab",
    "b",
    "ä",
    "€",
    "\U0001f600",
    "a longer text",
    "a longer text that",
    LONG,
    LONG + "a",
    LONG + "b",
]
BYTES = [text.encode() for text in TEXT] + [b"\xff", b"\x00"]
DAY = dt.datetime(2020, 2, 29, 12, 30, 15, 123456)

VALUES: list[tuple[pa.DataType, Sequence[Any]]] = [
    (pa.bool_(), [False, True]),
    (pa.int8(), [-128, -1, 0, 1, 127]),
    (pa.uint8(), [0, 1, 255]),
    (pa.int16(), [-(2**15), 0, 2**15 - 1]),
    (pa.int32(), [-(2**31), -1, 0, 2**31 - 1]),
    (pa.uint32(), [0, 1, 2**32 - 1]),
    (pa.int64(), [-(2**63), -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 1]),
    (pa.uint64(), [0, 1, 2**63, 2**64 - 1]),
    (pa.float16(), [np.float16(value) for value in (-math.inf, -1.5, -0.0, 0.0, 1.5, math.inf, NAN)]),
    (pa.float32(), [-math.inf, -1.5, -0.0, 0.0, 1e-45, 1.5, math.inf, NAN]),
    (pa.float64(), [-math.inf, -1.5, -0.0, 0.0, 5e-324, 1.5, math.inf, NAN]),
    (pa.decimal32(6, 2), [Decimal("-1.50"), Decimal("0.00"), Decimal("9999.99")]),
    (pa.decimal64(12, 2), [Decimal("-1.50"), Decimal("0.00"), Decimal("9999999.99")]),
    (pa.decimal128(30, 2), [Decimal("-1.50"), Decimal("0.00"), Decimal("1234567890123456789012.34")]),
    (pa.decimal256(60, 2), [Decimal("-1.50"), Decimal("0.00"), Decimal("1234567890123456789012.34")]),
    (pa.date32(), [dt.date(1960, 1, 1), dt.date(1970, 1, 1), DAY.date()]),
    (pa.date64(), [dt.date(1960, 1, 1), dt.date(1970, 1, 1), DAY.date()]),
    (pa.time32("s"), [0, 1, 86399]),
    (pa.time64("ns"), [0, 1, 86399 * 10**9]),
    (pa.timestamp("s"), [-1, 0, 2**40]),
    (pa.timestamp("ns", "Europe/Berlin"), [-(2**62), 0, 1, 2, 2**62]),
    (pa.duration("ns"), [-(2**62), 0, 1, 2, 2**62]),
    (pa.string(), TEXT),
    (pa.large_string(), TEXT),
    (pa.string_view(), TEXT),
    (pa.binary(), BYTES),
    (pa.large_binary(), BYTES),
    (pa.binary_view(), BYTES),
    (pa.binary(2), [b"\x00\x00", b"ab", b"a\xff", b"\xff\x00"]),
    (pa.uuid(), [bytes(16), b"a" * 16, b"\xff" * 16]),
    (pa.dictionary(pa.int8(), pa.string()), TEXT),
    (pa.dictionary(pa.int32(), pa.float64()), [-0.0, 0.0, NAN, 1.0]),
    (pa.run_end_encoded(pa.int32(), pa.int64()), [-1, 0, 1]),
    (pa.null(), [None]),
]


def array(values: Sequence[Any], type: pa.DataType) -> pa.Array:
    """Returns an array of any of these types."""
    if pt.is_run_end_encoded(type):
        return pa.compute.run_end_encode(pa.array(values, type.value_type), run_end_type=type.run_end_type)
    if isinstance(type, pa.UuidType):
        return pa.ExtensionArray.from_storage(type, pa.array(values, type.storage_type))
    return pa.array(values, type)


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Table, Order, list[tuple[Any, ...]]]:
    """Draws a table in chunks, an order, and its keys in Python."""
    count = draw(st.integers(0, 3))
    types = [draw(st.sampled_from(VALUES)) for _ in range(count)]
    rows = draw(st.lists(st.tuples(*(st.sampled_from([None, *values]) for _, values in types)), max_size=40))
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    # Names that Arrow would take for paths.
    names = [f".k[{number}]" for number in range(count)]
    chunks = []
    for start, stop in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        columns = [array([row[number] for row in rows[start:stop]], type) for number, (type, _) in enumerate(types)]
        chunks.append(pa.table([*columns, pa.array(np.arange(start, stop))], names=[*names, "row"]))
    keys = tuple(SortKey(name, draw(st.booleans())) for name in names)
    order = Order(keys, draw(st.sampled_from(["at_end", "at_start"])))
    return pa.concat_tables(chunks), order, rows


def compare(order: Order, left: tuple[Any, ...], right: tuple[Any, ...]) -> int:
    """The order as documented, value by value."""
    ends = -1 if order.nulls == "at_start" else 1
    for key, one, other in zip(order.keys, left, right, strict=True):
        ranks = [2 if value is None else 1 if value != value else 0 for value in (one, other)]
        if ranks[0] != ranks[1]:
            return ends * (1 if ranks[0] > ranks[1] else -1)
        if ranks[0] == 0 and one != other:
            if isinstance(one, str):
                one, other = one.encode(), other.encode()
            return (1 if one > other else -1) * (-1 if key.descending else 1)
    return 0


@settings(max_examples=examples(400))
@given(tables())
def test_rows_come_in_the_order_that_is_documented(drawn: tuple[pa.Table, Order, list[Any]]) -> None:
    """By value, nulls where they are wanted with NaN on the inner side, rows of equal keys as they came."""
    table, order, rows = drawn
    order.check("here", table.schema)
    wanted = sorted(range(len(rows)), key=functools.cmp_to_key(lambda a, b: compare(order, rows[a], rows[b])))
    assert order.indices(table).to_pylist() == wanted
    assert order.indices(table).type == pa.uint64()
    found = order.sort(table)
    assert found["row"].to_pylist() == wanted
    assert found.schema == table.schema
    assert order.keys_of(found).column_names == [key.column for key in order.keys]


@settings(max_examples=examples(400))
@given(tables())
def test_groups_and_places_agree_with_the_order(drawn: tuple[pa.Table, Order, list[Any]]) -> None:
    """A group is of rows that compare as equal; the place of a key is where its group starts, or ends."""
    table, order, rows = drawn
    found = order.sort(table)
    rows = [rows[number] for number in found["row"].to_pylist()]
    starts = [
        number for number in range(len(rows)) if not number or compare(order, rows[number - 1], rows[number]) != 0
    ]
    assert order.starts(found).tolist() == starts
    assert order.starts(found).dtype == np.int64
    for number, row in enumerate(rows):
        key = order.keys_of(found.slice(number, 1))
        others = [row_ for k, row_ in enumerate(rows) if k % 2]
        some = take_rows(found, pa.array(range(1, len(rows), 2), pa.int64()))
        for among, in_ in ((rows, found), (others, some), (others, order.keys_of(some))):
            if in_.num_columns or not among:
                assert order.position(in_, key, after=False) == sum(compare(order, one, row) < 0 for one in among)
                assert order.position(in_, key, after=True) == sum(compare(order, one, row) <= 0 for one in among)


@settings(max_examples=examples(30))
@given(
    st.sampled_from([pa.int32(), pa.int64(), pa.uint32(), pa.uint64(), pa.float32(), pa.float64(), pa.timestamp("us")]),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from(["at_end", "at_start"]),
    st.integers(0, 2**32),
)
def test_many_numbers_are_sorted_as_arrow_sorts_them(
    type: pa.DataType, spread: int, descending: bool, nulls: str, seed: int
) -> None:
    """Bit for bit, of few or many different values over a narrow range or a wide one."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 10**spread, 5000) * rng.choice([1, 10**5])
    table = pa.table({"k": pa.chunked_array([pa.array(part).cast(type, safe=False) for part in np.split(values, [7])])})
    wanted = pa.compute.sort_indices(table, sort_keys=[("k", "descending" if descending else "ascending", nulls)])
    assert Order((SortKey("k", descending),), nulls).indices(table).equals(wanted)


@settings(max_examples=examples(30))
@given(
    st.sampled_from(["{:x}", "user/{:d}", "{:030d}", "{0:d}{0:090d}"]),
    st.integers(1, 12),
    st.sampled_from([pa.string(), pa.large_binary()]),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_much_text_is_sorted_as_arrow_sorts_it(
    form: str, spread: int, type: pa.DataType, descending: bool, seed: int
) -> None:
    """Bit for bit: short and long, alike at the beginning or not, repeated or not; with a second key for equal ones."""
    rng = np.random.default_rng(seed)
    text = pa.array([form.format(value) for value in rng.integers(0, 10**spread, 3000)]).cast(type)
    columns = [pa.chunked_array([text[:7], text[7:]]), pa.array(rng.integers(0, 9, 3000))]
    table = pa.table(columns, names=["k", "n"])
    way = "descending" if descending else "ascending"
    order = Order((SortKey("k", descending), SortKey("n")))
    for keys in (1, 2):
        wanted = pa.compute.sort_indices(table, sort_keys=[("k", way, "at_end"), ("n", "ascending", "at_end")][:keys])
        assert Order(order.keys[:keys]).indices(table).equals(wanted)


def test_text_that_ends_is_before_text_that_goes_on_with_zero_bytes() -> None:
    """Also where that is all that tells them apart."""
    wanted = ["", "\0", "\0\0", "a", "a\0", "a\0\0\0\0\0\0\0\0", "b"]
    table = pa.table({"k": wanted[::-1]})
    assert Order((SortKey("k"),)).sort(table)["k"].to_pylist() == wanted
    assert Order((SortKey("k", descending=True),)).sort(table.take(pa.array([3, 0, 6, 5, 4, 1, 2]))).equals(table)


def test_an_order_of_no_key_leaves_rows_as_they_are() -> None:
    table = pa.table({"a": pa.array([3, 1, 2])})
    assert Order().indices(table).to_pylist() == [0, 1, 2]
    assert Order().sort(table) is table
    assert Order().starts(table).tolist() == [0]
    key = Order().keys_of(table.slice(1, 1))
    assert [Order().position(table, key, after) for after in (False, True)] == [0, 3]


def test_a_place_is_found_by_looking_at_few_rows() -> None:
    """A sorted table may be a memory map of gigabytes: none of its columns is copied or looked through."""
    table = pa.table({"k": pa.array(np.arange(2_000_000)), "s": pa.repeat(pa.scalar("x" * 100), 2_000_000)})
    order = Order((SortKey("s"), SortKey("k")))
    key = order.keys_of(table.slice(1_234_567, 1))
    before = pa.total_allocated_bytes()
    pool = pa.default_memory_pool()
    peak = pool.max_memory()
    assert order.position(table, key, after=True) == 1_234_568
    assert pa.total_allocated_bytes() == before
    assert pool.max_memory() == peak


def test_a_key_is_one_row_of_the_key_columns() -> None:
    table = pa.table({"k": [1, 2], "other": [1, 2]})
    with pytest.raises(ValueError, match="one row of 1 key columns, found 1 of"):
        Order((SortKey("k"),)).position(table, table.slice(0, 1), after=False)
    with pytest.raises(ValueError, match="one row of 1 key columns, found 2 of"):
        Order((SortKey("k"),)).position(table, table.select(["k"]), after=False)


def test_what_cannot_be_sorted_by_is_refused_with_its_type_and_what_to_do() -> None:
    schema = pa.schema(
        {
            "score": pa.float64(),
            "tags": pa.list_(pa.string()),
            "user": pa.struct({"id": pa.int64()}),
            "age": pa.month_day_nano_interval(),
            "text": pa.dictionary(pa.int8(), pa.binary()),
        }
    )
    Order((SortKey("score"), SortKey("text"))).check("sort", schema)
    for column, said in {
        "scroe": r"sort: there is no column 'scroe'; did you mean 'score'\?; there are 'score', 'tags', 'user'",
        "tags": r"sort: column 'tags' is nested \(list<item: string>\), which has no order; add a column to sort by",
        "user": r"sort: column 'user' is nested \(struct<id: int64>\)",
        "age": r"sort: column 'age' is of type month_day_nano_interval, which has no order; cast it to text",
    }.items():
        with pytest.raises(ConfigError, match=said):
            Order((SortKey("score"), SortKey(column))).check("sort", schema)
    twice = pa.schema([pa.field("a", pa.int8()), pa.field("a", pa.int8())])
    with pytest.raises(ConfigError, match="2 columns are named 'a'; rename"):
        Order((SortKey("a"),)).check("sort", twice)


def test_an_order_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"nulls='at_ned'; did you mean 'at_end'\?; there are at_end and at_start"):
        Order((), "at_ned")
    with pytest.raises(ConfigError, match=r"column 'a' occurs twice in the keys \['a', 'b', 'a'\]"):
        Order((SortKey("a"), SortKey("b"), SortKey("a", descending=True)))


def test_identities_are_json_and_tell_orders_apart() -> None:
    orders = [
        Order(),
        Order((), "at_start"),
        Order((SortKey("a"),)),
        Order((SortKey("a", descending=True),)),
        Order((SortKey("b"),)),
        Order((SortKey("a"), SortKey("b"))),
        Order((SortKey("b"), SortKey("a"))),
    ]
    assert len({json.dumps(order.identity()) for order in orders}) == len(orders)
