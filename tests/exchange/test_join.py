"""Joins: the same rows as plain Python and DuckDB, in order, with balanced books, a slice at a time."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from curate.errors import ConfigError, SchemaMismatch
from curate.exchange.kinds import join as joining
from curate.exchange.kinds import merge_join
from curate.exchange.kinds.broadcast_join import BROADCAST_HOWS, BroadcastJoin
from curate.exchange.kinds.join import Join, Keys, common_type
from curate.exchange.kinds.merge_join import HOWS, take_or_null
from curate.exchange.protocol import ReducePart
from curate.pipeline.shard_books import BadRowBudget, ShardBooks
from curate.pipeline.step import BatchPosition
from tests.exchange.local import exchanged, same, sort_key
from tests.support.examples import examples

NAN = float("nan")
TEXTS = st.sampled_from([None, "", "a", "é", "b"])
FLOATS = st.sampled_from([None, NAN, -0.0, 0.0, 1.5])


def shards(rows: list[list[tuple[Any, ...]]], names: tuple[str, str], value: str) -> list[pa.Table]:
    """Returns tables of rows with two keys, and a number of its own for each row."""
    schema = pa.schema([(names[0], pa.string()), (value, pa.int64()), (names[1], pa.float64())])
    found, number = [], 0
    for one in rows:
        dicts = [{names[0]: a, value: number + at, names[1]: b} for at, (a, b) in enumerate(one)]
        number += len(one)
        found.append(pa.Table.from_pylist(dicts, schema))
    return found


def sides(names: tuple[str, str], value: str) -> Any:
    rows = st.lists(st.lists(st.tuples(TEXTS, FLOATS), max_size=12), min_size=1, max_size=3)
    return rows.map(lambda found: shards(found, names, value))


def by_hand(left: list[pa.Table], right: list[pa.Table], on: list[str], right_on: list[str], how: str) -> list[Any]:
    """Returns the rows that a join gives, nested loops, sorted by key, left row, right row."""
    lefts = [row for table in left for row in table.to_pylist()]
    rights = [row for table in right for row in table.to_pylist()]
    left_keys = [tuple(sort_key(row[name]) for name in on) for row in lefts]
    right_keys = [tuple(sort_key(row[name]) for name in right_on) for row in rights]
    found: list[Any] = []
    nothing = len(lefts)
    matched_left, matched_right = set(), set()
    others = [name for name in right[0].column_names if name not in right_on]
    for at, one in enumerate(left_keys):
        for r, other in enumerate(right_keys):
            if one == other and all(part[0] != 2 for part in one):
                matched_left.add(at)
                matched_right.add(r)
                if how not in ("semi", "anti"):
                    found.append((one, at, r, lefts[at] | {name: rights[r][name] for name in others}))
    for at, one in enumerate(left_keys):
        if (how == "semi" and at in matched_left) or (how == "anti" and at not in matched_left):
            found.append((one, at, -1, lefts[at]))
        if how in ("left", "outer") and at not in matched_left:
            found.append((one, at, -1, lefts[at] | dict.fromkeys(others)))
    for r, other in enumerate(right_keys):
        if how in ("right", "outer") and r not in matched_right:
            row = dict.fromkeys(left[0].column_names) | dict.fromkeys(others)
            row |= {name: rights[r][theirs] for name, theirs in zip(on, right_on, strict=True)}
            found.append((other, nothing, r, row | {name: rights[r][name] for name in others}))
    return [row for *_, row in sorted(found, key=lambda one: one[:3])]


@pytest.mark.ci(6)
@pytest.mark.quick(6)
@pytest.mark.parametrize("slice_rows", [3, 16_384])
@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=examples(30))
@given(left=sides(("a", "b"), "n"), right=sides(("c", "b"), "m"), keys=st.integers(1, 3), seed=st.integers(0, 1000))
def test_a_join_gives_what_nested_loops_give_in_order_of_keys_and_rows(
    how: str, slice_rows: int, left: list[pa.Table], right: list[pa.Table], keys: int, seed: int
) -> None:
    """Nulls match nothing, NaN matches NaN, and the two zeros each other. Keys come once, from whichever side has
    them; the books balance, and tables are no larger than a slice."""
    on, right_on = [(["a", "b"], ["c", "b"]), (["a"], ["c"]), (["b"], ["b"])][keys - 1]
    if keys == 2:
        right = [one.rename_columns({"b": "d"}) for one in right]
    if keys == 3:
        left, right = [one.drop_columns("a") for one in left], [one.drop_columns("c") for one in right]
    schemas = [left[0].schema, right[0].schema]
    join = Join(Keys.checked("join", on, right_on, schemas, "", "_right"), how)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joining, "READ_ROWS", slice_rows)
        patch.setattr(merge_join, "SPARSE", 0 if seed % 2 else 4)
        made = exchanged(join, left, right, seed=seed)
    assert all(table.num_rows <= slice_rows for table in made.tables)
    wanted = by_hand(left, right, on, right_on, how)
    assert same(made.rows(), wanted) or not wanted
    assert made.table.num_rows == len(wanted)
    if made.tables:
        assert made.table.schema.equals(join.schema(schemas))
    assert made.rows_in == sum(one.num_rows for one in (*left, *right))


@pytest.mark.quick(2)
@pytest.mark.parametrize("how", BROADCAST_HOWS)
@settings(max_examples=examples(40))
@given(left=sides(("a", "b"), "n"), right=sides(("a", "b"), "m"), seed=st.integers(0, 1000))
def test_a_broadcast_join_gives_the_rows_of_an_exchange_in_the_order_of_the_left_ones(
    how: str, left: list[pa.Table], right: list[pa.Table], seed: int
) -> None:
    keys = Keys.checked("join", ["a", "b"], None, [left[0].schema, right[0].schema], "", "_right")
    whole = exchanged(Join(keys, how), left, right, seed=seed)
    step = BroadcastJoin(keys, how, pa.concat_tables(right), "digest").opened()
    tally = ShardBooks(BadRowBudget("100%"))
    made = [table for one in left for table in step.apply(one, tally, BatchPosition("", 0))]
    rows = pa.concat_tables(made).to_pylist() if made else []
    order = ["n", "m"] if how in ("inner", "left") else ["n"]

    def place(row: dict[str, Any]) -> list[Any]:
        return [sort_key(row[name]) for name in order]

    assert same(rows, sorted(whole.rows(), key=place))
    tally.books.rows_in, tally.books.rows_out = sum(one.num_rows for one in left), len(rows)
    assert tally.books.balanced()
    if made:
        assert made[0].schema.equals(step.schema(left[0].schema))


@pytest.mark.parametrize("how", BROADCAST_HOWS)
def test_keys_that_are_not_utf8_are_joined_with_a_table_in_memory_as_by_an_exchange(how: str) -> None:
    """Keys are compared by their bytes, whatever these say."""
    texts = pa.array([b"\xff", None, b"a", b"\xff\xfe", b"\xff"]).view(pa.string())
    left, right = pa.table({"k": texts, "n": range(5)}), pa.table({"k": texts.slice(2), "m": range(3)})
    keys = Keys.checked("join", "k", None, [left.schema, right.schema], "", "_right")
    whole = exchanged(Join(keys, how), [left], [right]).table.drop_columns(["k"])
    step = BroadcastJoin(keys, how, right, "digest")
    made = pa.concat_tables(step.apply(left, ShardBooks(BadRowBudget("100%")), BatchPosition("", 0)))
    assert made.drop_columns(["k"]).to_pylist() == whole.sort_by("n").to_pylist()


def test_the_books_of_a_join_say_what_became_of_every_row() -> None:
    """Both sides are read; a pair takes up a right row, and what a key gives more often was created."""
    left = pa.table({"k": [1, 1, 2, None], "l": range(4)})
    right = pa.table({"k": [1, 1, 1, 3, None], "r": range(5)})
    keys = Keys.checked("join", "k", None, [left.schema, right.schema], "", "_right")
    expected = {
        "inner": (6, {"joined": 3, "unmatched": 4}),
        "left": (8, {"joined": 3, "unmatched": 2}),
        "right": (8, {"joined": 3, "unmatched": 2}),
        "outer": (10, {"joined": 3}),
        "semi": (2, {"joined": 3, "unmatched": 4}),
        "anti": (2, {"joined": 3, "matched": 2, "unmatched": 2}),
    }
    for how, (rows, dropped) in expected.items():
        made = exchanged(Join(keys, how), [left], [right], parts=1)
        assert (made.table.num_rows, made.dropped) == (rows, dropped), how


@pytest.mark.slow
def test_a_heavy_key_is_streamed_in_slices() -> None:
    """The product of a key with 3,000 rows on both sides, nine million rows, is never there: slices follow each other,
    each of 16,384 rows at most."""
    left = pa.table({"k": np.zeros(3000, np.int64), "l": range(3000)})
    right = pa.table({"k": np.zeros(3000, np.int64), "r": range(3000)})
    keys = Keys.checked("join", "k", None, [left.schema, right.schema], "", "_right")
    tally = ShardBooks(BadRowBudget("100%"))
    rows = 0
    before = pa.total_allocated_bytes()
    for table in Join(keys, "inner").combine([left, right], tally, ReducePart(0, 1)):
        assert table.num_rows <= 16_384
        first = rows
        assert table["l"][0].as_py() == first // 3000
        assert table["r"][0].as_py() == first % 3000
        rows += table.num_rows
        assert pa.total_allocated_bytes() - before < 4 << 20
    assert rows == 9_000_000
    assert tally.books.created == 3000 * 2999


def test_joins_are_those_of_duckdb() -> None:
    rng = np.random.default_rng(3)

    def side(rows: int, value: str) -> pa.Table:
        key = pa.array(rng.integers(0, 300, rows), mask=rng.random(rows) < 0.05)
        return pa.table({"k": key, "t": pa.array(rng.choice(["x", "y"], rows)), value: np.arange(rows)})

    left, right = side(2000, "l"), side(500, "r")
    keys = Keys.checked("join", ["k", "t"], None, [left.schema, right.schema], "", "_right")
    for how in HOWS:
        made = exchanged(Join(keys, how), [left], [right], seed=2, parts=4, batch_rows=200)
        connection = duckdb.connect()
        connection.register("one", left)
        connection.register("two", right)
        what = "k, t, l" if how in ("semi", "anti") else "k, t, l, r"
        rows = connection.execute(
            f"select {what} from one {'full' if how == 'outer' else how} join two using (k, t)"
        ).fetchall()
        order = [tuple(map(sort_key, row)) for row in rows]
        assert [tuple(row.values()) for row in made.rows()] == [row for _, row in sorted(zip(order, rows, strict=True))]


@pytest.mark.parametrize(
    ("left", "right", "common"),
    [
        (pa.int8(), pa.int64(), pa.int64()),
        (pa.uint8(), pa.int8(), pa.int16()),
        (pa.uint32(), pa.int8(), pa.int64()),
        (pa.uint64(), pa.uint8(), pa.uint64()),
        (pa.uint64(), pa.int64(), None),
        (pa.int64(), pa.float64(), None),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.string_view(), pa.string(), pa.string()),
        (pa.dictionary(pa.int8(), pa.string()), pa.string(), pa.string()),
        (pa.string(), pa.binary(), None),
        (pa.null(), pa.string(), pa.string()),
        (pa.timestamp("us"), pa.timestamp("ms"), pa.timestamp("us")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), None),
        (pa.time32("s"), pa.time32("ms"), pa.time32("ms")),
        (pa.date32(), pa.date64(), pa.date64()),
        (pa.date32(), pa.timestamp("s"), None),
        (pa.timestamp("us"), pa.timestamp("us"), pa.timestamp("us")),
        (pa.decimal128(5, 2), pa.decimal128(6, 2), None),
        (pa.bool_(), pa.int8(), None),
    ],
)
def test_keys_are_of_one_type_but_for_the_width_of_numbers_and_the_unit_of_times(
    left: pa.DataType, right: pa.DataType, common: pa.DataType | None
) -> None:
    """Types that do not meet are refused with both named, also where they are known only when rows are made."""
    assert common_type(left, right) == common == common_type(right, left)
    one, other = pa.schema([("k", left), ("l", pa.int64())]), pa.schema([("k", right), ("r", pa.int64())])
    late = Join(Keys.checked("join", "k", None, [None, None], "", "_right"), "inner")
    if common is None:
        with pytest.raises(ConfigError, match=r"the key 'k' is .* on the left, 'k' is .* on the right; keys must have"):
            Keys.checked("join", "k", None, [one, other], "", "_right")
        with pytest.raises(SchemaMismatch, match=r"on the left, 'k' is .* on the right"):
            late.schema([one, other])
        return
    made = Join(Keys.checked("join", "k", None, [one, other], "", "_right"), "inner")
    found = made.schema([one, other])
    assert found is not None
    assert found.field("k").type == common
    empty = exchanged(made, [one.empty_table()], [other.empty_table()])
    assert empty.table.num_rows == 0


@pytest.mark.parametrize("how", HOWS)
def test_a_side_without_rows_of_which_nobody_knows_the_columns_adds_none(how: str) -> None:
    """A function that is given no rows does not tell which columns it would make. Where rows would have them, that they
    have not is said, once for all parts."""
    rows, nothing = pa.table({"k": [2, 1]}), pa.table({})
    join = Join(Keys.checked("join", "k", None, [rows.schema, None], "", "_right"), how)
    tally = ShardBooks(BadRowBudget("100%"))
    with capture_logs() as told:
        left, right, neither = (
            [
                row
                for number in range(2)
                for one in join.combine(sides, tally, ReducePart(number, 2))
                for row in one.to_pylist()
            ]
            for sides in ([rows.slice(0, 1), nothing], [nothing, rows.slice(0, 1)], [nothing, nothing])
        )
    both = [{"k": 2}] * 2
    assert left == (both if how in ("left", "outer", "anti") else [])
    assert right == (both if how in ("right", "outer") else [])
    assert neither == []
    expected = {"left": ["right"], "right": ["left"], "outer": ["right", "left"]}.get(how, [])
    assert [(one["log_level"], one["side"]) for one in told] == [("warning", side) for side in expected]


def test_names_that_meet_get_suffixes_or_are_refused() -> None:
    """Keys keep their names; other columns that both sides have are told apart, or refused."""
    left = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    right = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("v", pa.int64())])
    found = Keys.checked("join", "k", "id", [left, right], "_l", "_r")
    assert Join(found, "inner").schema([left, right]).names == ["k", "v_l", "k_r", "v_r"]  # type: ignore[union-attr]
    assert Join(found, "semi").schema([left, right]).names == ["k", "v"]  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="join would make 2 columns called 'v'; pass left_suffix and right_suffix"):
        Join(Keys.checked("join", "k", None, [left, right], "", ""), "inner").schema([left, right])


@pytest.mark.parametrize(
    ("on", "right_on", "message"),
    [
        ("kk", None, "join, left side: there is no column 'kk'"),
        ("k", "kk", "join, right side: there is no column 'kk'"),
        (["k", "k"], None, "the column 'k' is named 2 times"),
        ("k", ["k", "v"], "1 columns on the left, 2 on the right; name equally many"),
        ("tags", None, "left side: column 'tags' is nested"),
        ([], None, "takes the name of a column, or a list of names"),
    ],
)
def test_keys_that_cannot_be_are_refused(on: Any, right_on: Any, message: str) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("tags", pa.list_(pa.string()))])
    with pytest.raises(ConfigError, match=message):
        Keys.checked("join", on, right_on, [schema, schema], "", "_right")


@pytest.mark.parametrize("chunks", [1, 7, 100])
@given(data=st.data())
@settings(max_examples=examples(40))
def test_rows_are_gathered_as_take_does_it(chunks: int, data: st.DataObject) -> None:
    """Whatever the chunks, and however far apart the rows are; -1 is null."""
    rows = np.arange(100)
    table = pa.concat_tables(
        [pa.table({"n": part, "t": part.astype(str)}) for part in np.array_split(rows, chunks) if len(part)]
    )
    wanted = np.array(data.draw(st.lists(st.integers(-1, 99), max_size=8)), np.int64)
    found = take_or_null(table, wanted)
    assert found["n"].to_pylist() == [None if row < 0 else row for row in wanted.tolist()]
    assert found["t"].to_pylist() == [None if row < 0 else str(row) for row in wanted.tolist()]
    assert found.schema.equals(table.schema)
