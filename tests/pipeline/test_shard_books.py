"""The tally of a shard: what is dropped, set aside and counted, and how much of it is too much."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.errors import ConfigError, TooManyBadRows
from curate.job.settings import SETTINGS
from curate.objects.bad_line import RejectedRow, RowNumbers
from curate.pipeline.shard_books import HOPELESS_BAD_ROWS, BadRowBudget, DetachedBooks, ShardBooks


def bad(reason: str = "broken") -> RejectedRow:
    return RejectedRow(1, reason, b"x")


class TestBudget:
    @pytest.mark.parametrize(
        ("text", "rows", "most"),
        [
            (None, 0, 10),
            (None, 9_999, 10),
            (None, 10_999, 10),
            (None, 11_000, 11),
            (None, 1_000_000, 1000),
            ("0", 1000, 0),
            ("7", 1, 7),
            ("1%", 99, 0),
            ("1%", 100, 1),
            ("29%", 100, 29),
            ("57%", 100, 57),
            ("0.1%", 1000, 1),
            ("100%", 3, 3),
        ],
    )
    def test_so_many_and_no_more(self, text: str | None, rows: int, most: int) -> None:
        """0.1 % and at least 10 by default; a percentage given has no least."""
        budget = BadRowBudget(text)
        assert budget.allows(most, rows)
        assert not budget.allows(most + 1, rows)

    @given(st.integers(1, 100), st.integers(0, 10**7))
    def test_whole_percentages_are_exact(self, percent: int, rows: int) -> None:
        """0.29 * 100 is a little less than 29 in floating point."""
        budget = BadRowBudget(f"{percent}%")
        assert budget.allows(percent * rows // 100, rows)
        assert not budget.allows(percent * rows // 100 + 1, rows)

    @pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "0%", "101%", "%", "1 %%", "ten", "٣", "²", "1_0"])
    def test_anything_else_is_refused(self, text: str) -> None:
        with pytest.raises(ConfigError, match="percentage"):
            BadRowBudget(text)

    @pytest.mark.parametrize(
        ("text", "shown"),
        [(None, "0.1% of the rows, at least 10"), ("7", "7 rows"), ("2.5%", "2.5% of the rows")],
    )
    def test_it_says_itself_as_it_is_given(self, text: str | None, shown: str) -> None:
        assert str(BadRowBudget(text)) == shown


class TestTally:
    def test_rows_that_could_not_be_read_count_as_read(self) -> None:
        tally = ShardBooks(BadRowBudget())
        tally.bad_row(bad())
        tally.close()
        assert tally.books.rows() == {"in": 1, "created": 0, "out": 0, "dropped": {}, "quarantined": 1}

    def test_the_budget_is_of_the_rows_that_were_read(self) -> None:
        """The same in each stage that reads them, however many rows it makes of them; of a job that reads no rows, of
        those that it makes."""
        for read, made, fails in ((11_000, 11_000, False), (10_999, 10**6, True), (0, 11_000, False), (0, 10, True)):
            tally = ShardBooks(BadRowBudget())
            tally.books.rows_in, tally.books.rows_out, tally.books.quarantined = read, made, 11
            tally.books.created = made - read
            with pytest.raises(TooManyBadRows) if fails else contextlib.nullcontext():
                tally.close()

    def test_nothing_is_booked_for_no_rows(self) -> None:
        tally = ShardBooks(BadRowBudget())
        tally.drop(0, "short")
        assert tally.books.dropped == {}

    def test_over_the_budget_it_says_reasons_budget_and_what_to_do(self) -> None:
        """The most frequent reasons first, five of them."""
        tally = ShardBooks(BadRowBudget("5"))
        for k in range(5):
            tally.bad_row(bad(f"reason {min(k, 2)}"))
        with pytest.raises(TooManyBadRows) as caught:
            tally.bad_row(bad("reason 2"))
        assert str(caught.value) == (
            "6 bad rows before its end, the budget is 5 rows (4 x reason 2, 1 x reason 0, 1 x reason 1); "
            "fix the input (such as row 1 of the shard), or allow more with max_bad_rows "
            "(--max-bad-rows)"
        )

    @pytest.mark.parametrize(
        ("row", "such_as"),
        [
            (RejectedRow(1234, "broken", b"x"), " (such as line 1,234 of the shard)"),
            (RejectedRow(7, "broken", b"x", at="line 7 of /in/b.jsonl"), " (such as line 7 of /in/b.jsonl)"),
            (RejectedRow(0, "broken", b"x"), ""),
        ],
    )
    @pytest.mark.parametrize("held", [False, True], ids=["written", "held"])
    def test_it_says_where_a_row_is_that_nobody_will_see(self, row: RejectedRow, such_as: str, held: bool) -> None:
        """The first that was set aside: a shard that fails publishes none."""
        tally = ShardBooks(BadRowBudget("1"))
        tally.numbers = RowNumbers(unit="line")
        if held:
            tally.begin()
        tally.set_aside(row)
        with pytest.raises(TooManyBadRows, match=re.escape(f"fix the input{such_as}, or allow more with")):
            tally.set_aside(bad())

    def test_of_values_of_another_type_it_says_how_to_declare_it(self) -> None:
        tally = ShardBooks(BadRowBudget("0"))
        with pytest.raises(
            TooManyBadRows, match=r"max_bad_rows \(--max-bad-rows\); or declare the column's type: with schema="
        ):
            tally.bad_row(bad("column 'id' is not int64"))
        with pytest.raises(TooManyBadRows, match="'id' as string; or write the values of 't' alike in the input: "):
            tally.bad_row(bad("column 't' is not a string: found number"))

    def test_a_fraction_is_known_at_the_end(self) -> None:
        """Good rows to come may still outweigh the bad ones."""
        tally = ShardBooks(BadRowBudget("50%"))
        for _ in range(3):
            tally.bad_row(bad())
        tally.books.rows_in += 3
        tally.books.rows_out += 3
        tally.close()
        tally.bad_row(bad())
        with pytest.raises(TooManyBadRows, match=r"4 bad rows of 7, the budget is 50% of the rows \(4 x broken\)"):
            tally.close()

    def test_a_hopeless_shard_is_given_up_early(self) -> None:
        """The input is something else than it was taken for; reading on would fill the disk with its rows."""
        tally = ShardBooks(BadRowBudget("90%"))
        for _ in range(HOPELESS_BAD_ROWS):
            tally.bad_row(bad())
        with pytest.raises(TooManyBadRows) as caught:
            tally.bad_row(bad())
        assert str(caught.value) == (
            "100001 bad rows before its end, the budget is 90% of the rows, and at most 100,000 rows unless it is a "
            "number (100001 x broken); fix the input (such as row 1 of the shard), or allow more with max_bad_rows "
            "(--max-bad-rows) as a number of rows, such as 1000000"
        )

    def test_a_number_allows_more(self) -> None:
        """Which the refusal says: a percentage that is higher does not help."""
        assert BadRowBudget("100%").hopeless(HOPELESS_BAD_ROWS + 1)
        assert not BadRowBudget("1000000").hopeless(HOPELESS_BAD_ROWS + 1)
        assert "100,000" in SETTINGS["max_bad_rows"].about

    def test_names_are_bounded(self) -> None:
        tally = ShardBooks(BadRowBudget())
        for k in range(200):
            tally.count(f"counter {k}")
            tally.drop(1, f"reason {k}")
        with pytest.raises(ConfigError, match=r"more than 200 different counters in one shard \(such as 'one more'\)"):
            tally.count("one more")
        with pytest.raises(ConfigError, match="more than 200 different reasons for dropping in one shard"):
            tally.drop(1, "one more")

    def test_what_was_booked_since_the_beginning_of_a_batch_can_be_taken_back(self) -> None:
        """And nothing of before; after a commit nothing any more."""
        tally = ShardBooks(BadRowBudget())
        for reason in ("kept", "taken back", "kept too"):
            tally.begin()
            tally.drop(2, reason)
            tally.count(reason, 3)
            tally.set_aside(bad(reason))
            if reason == "taken back":
                assert tally.reasons() == {"kept": 1, "taken back": 1}
                tally.rollback()
            tally.commit()
            tally.rollback()
        assert tally.books.dropped == {"kept": 2, "kept too": 2}
        assert tally.books.counters == {"kept": 3, "kept too": 3}
        assert tally.books.quarantined == 2
        assert tally.quarantine is not None
        assert tally.quarantine.reasons == {"kept": 1, "kept too": 1}


def test_books_apart_from_those_of_their_shard_set_no_limit() -> None:
    """However many rows of one batch are bad: the shard, whose budget may be a number, tells."""
    apart = DetachedBooks()
    for number in range(HOPELESS_BAD_ROWS + 2):
        apart.set_aside(RejectedRow(number, "bad", "{}"))
    assert len(apart.booked().rows) == HOPELESS_BAD_ROWS + 2


class Interrupted(dict[str, Any]):
    """Lets other threads go on between the look at a sum and its new value."""

    def get(self, key: str, default: Any = None) -> Any:
        found = super().get(key, default)
        os.sched_yield()
        return found


@pytest.mark.parametrize("make", [lambda: ShardBooks(BadRowBudget("100%")), DetachedBooks])
def test_nothing_is_lost_of_what_threads_book(make: Callable[[], ShardBooks]) -> None:
    """As of a `process` that asks a service in threads: of 40,000 counts 37,000 were in the output's record."""
    tally, threads, times = make(), 8, 60
    for name in ("dropped", "counters", "metrics"):
        setattr(tally.books, name, Interrupted())

    def book(_: int) -> None:
        for _ in range(times):
            tally.drop(1, "dropped")
            tally.drop_rows(pa.table({"n": [1, 2]}), np.array([True, False]), "dropped")
            tally.count("counted", 0.5)
            tally.metric("measured", 2)
            tally.set_aside(bad())

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(book, range(threads)))
    calls = threads * times
    assert tally.books.dropped == {"dropped": 2 * calls}
    assert tally.books.counters == {"counted": calls / 2}
    assert tally.books.metrics == {"measured": 2 * calls}
    assert tally.books.quarantined == calls


@pytest.mark.parametrize("make", [lambda: ShardBooks(BadRowBudget("100%")), DetachedBooks])
@given(order=st.permutations(range(6)), threads=st.booleans())
def test_what_threads_set_aside_is_in_one_order(
    make: Callable[[], ShardBooks], order: list[int], *, threads: bool
) -> None:
    """Whichever was first: the quarantine is named by its bytes, and the output has that name. What the thread of the
    batch itself sets aside stays in its order."""
    tally = make()
    written: list[bytes | str] = []
    tally._write = lambda row: written.append(row.raw)  # type: ignore[method-assign]
    tally.begin()
    for number in order:
        args = (RejectedRow(0, "bad", b"%d" % number),)
        if threads:
            thread = threading.Thread(target=tally.set_aside, args=args)
            thread.start()
            thread.join()
        else:
            tally.set_aside(*args)
    tally.commit()
    assert written == [b"%d" % number for number in (sorted(order) if threads else order)]


def test_a_child_that_is_forked_while_a_thread_books_can_book() -> None:
    """As of a `process` that uses multiprocessing: whoever held the lock is not there."""
    tally = ShardBooks(BadRowBudget("100%"))
    held, done = threading.Event(), threading.Event()

    class Holding(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            held.set()
            done.wait(60)
            return super().get(key, default)

    tally.books.counters = Holding()
    thread = threading.Thread(target=tally.count, args=("n",))
    thread.start()
    held.wait(60)
    child = os.fork()
    if not child:
        signal.alarm(20)
        tally.books.counters = {}
        tally.count("n")
        os._exit(0)
    done.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
