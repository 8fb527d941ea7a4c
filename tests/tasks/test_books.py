"""Row accounting: books always balance, and their sum does not depend on any order."""

from __future__ import annotations

import copy
import math
import operator
import random
from functools import reduce

import orjson
from hypothesis import example, given
from hypothesis import strategies as st

from curate.tasks.books import UNSPECIFIED, Books

COUNTS = st.integers(0, 2**40)
REASONS = st.sampled_from(["empty", "too long", UNSPECIFIED, "ä"])
BOOKS = st.builds(
    Books,
    COUNTS,
    COUNTS,
    COUNTS,
    COUNTS,
    st.dictionaries(REASONS, COUNTS),
    st.dictionaries(st.sampled_from("abc"), COUNTS | st.floats(allow_nan=False, allow_infinity=False, width=64)),
)


def total(many: list[Books]) -> Books:
    books = Books()
    for one in many:
        books.add(one)
    return books


def shown(books: Books) -> bytes:
    """As ledgers hold it: the same books are the same bytes."""
    return orjson.dumps([books.rows(), books.sorted_counters()])


@given(BOOKS)
def test_settled_books_balance(books: Books) -> None:
    """Whatever user code did, and settling twice changes nothing more."""
    books.settle()
    assert books.balanced()
    again = copy.deepcopy(books)
    again.settle()
    assert again == books


def test_missing_rows_are_dropped_and_surplus_rows_created() -> None:
    """What `process` swallows without a word is booked as unspecified; what it adds, as created."""
    short = Books(10, rows_out=3, quarantined=1, dropped={"empty": 2})
    short.settle()
    assert short.rows() == {"in": 10, "created": 0, "out": 3, "dropped": {"empty": 2, UNSPECIFIED: 4}, "quarantined": 1}
    long = Books(10, rows_out=25, dropped={"empty": 2})
    long.settle()
    assert long.rows() == {"in": 10, "created": 17, "out": 25, "dropped": {"empty": 2}, "quarantined": 0}


@given(st.lists(BOOKS, max_size=8), st.randoms())
def test_the_order_of_shards_does_not_matter(many: list[Books], order: random.Random) -> None:
    """To the last bit, floats included: a job's totals are the same after any schedule."""
    shuffled = list(many)
    order.shuffle(shuffled)
    assert shown(total(shuffled)) == shown(total(many))


@given(st.lists(BOOKS, max_size=4), st.lists(BOOKS, max_size=4))
def test_sums_of_sums_are_sums(left: list[Books], right: list[Books]) -> None:
    """Books of a resumed job are those of its runs together."""
    together = total(left)
    together.add(total(right))
    assert shown(together) == shown(total(left + right))


@given(st.lists(BOOKS, min_size=1, max_size=4))
@example([Books(counters={"a": -0.0})])
def test_it_does_not_matter_which_books_are_added_to(many: list[Books]) -> None:
    """Also to books that were read from a ledger, which hold plain floats."""
    first = copy.deepcopy(many[0])
    for one in many[1:]:
        first.add(one)
    assert shown(first) == shown(total(many))


@given(st.lists(BOOKS, max_size=6))
def test_sums_of_balanced_books_balance(many: list[Books]) -> None:
    """Per shard, hence per job."""
    for one in many:
        one.settle()
    assert total(many).balanced()


@given(BOOKS)
def test_books_survive_the_ledger(books: Books) -> None:
    """Written as JSON and read again they are the same."""
    rows, counters = orjson.loads(shown(books))
    assert Books.parse(rows, counters) == books


def test_adding_leaves_the_other_alone() -> None:
    """A record is added to several totals."""
    one, other = Books(1, dropped={"x": 1}, counters={"n": 1}), Books(2, dropped={"x": 2}, counters={"n": 2})
    one.add(other)
    assert other == Books(2, dropped={"x": 2}, counters={"n": 2})
    assert one == Books(3, dropped={"x": 3}, counters={"n": 3})


def test_tenths_add_up() -> None:
    """Ten tenths are not quite one in floats; the exact sum of what a tenth is as a float, rounded once, is."""
    assert reduce(operator.add, [0.1] * 10) != 1.0
    assert total([Books(counters={"x": 0.1})] * 10).sorted_counters() == {"x": 1.0}


def test_counts_stay_whole_numbers() -> None:
    """Only a counter that was given a float is one."""
    books = total([Books(counters={"n": 2**60, "x": 1}), Books(counters={"n": 1, "x": 1.0})])
    assert books.sorted_counters() == {"n": 2**60 + 1, "x": 2.0}
    assert [type(value) for value in books.sorted_counters().values()] == [int, float]


@given(st.lists(st.sampled_from([2**64 - 1, 2**63 - 1, 1, 0, -1, -(2**63)]), max_size=6))
def test_a_sum_beyond_64_bits_is_a_float(counts: list[int]) -> None:
    """Each run would end with a traceback otherwise, and no other would help."""
    books = total([Books(counters={"n": one}, metrics={"m": one}) for one in counts] or [Books(counters={"n": 0})])
    found = orjson.loads(orjson.dumps([books.sorted_counters(), books.sorted_metrics()]))
    sums = [found[0]["n"], *found[1].get("metrics", {}).values()]
    assert set(sums) == {sum(counts) if -(2**63) <= sum(counts) < 2**64 else float(sum(counts))}


def test_what_is_no_number_does_not_stop_a_resume() -> None:
    """JSON has no NaN: the ledger says null, and null is read as NaN."""
    books = total([Books(counters={"x": math.nan, "y": math.inf, "z": 1e308}), Books(counters={"x": 1.0, "z": 1e308})])
    assert math.isnan(books.sorted_counters()["x"])
    assert books.sorted_counters()["y"] == math.inf
    assert books.sorted_counters()["z"] == math.inf
    rows, counters = orjson.loads(shown(books))
    resumed = Books.parse(rows, counters)
    resumed.add(Books(counters={"x": 1.0, "y": 2.0}))
    assert math.isnan(resumed.sorted_counters()["x"])
