"""Which rows are bad, whatever they hide behind, and that the rest of their batch is processed once, whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from curate.errors import BadRow, ConfigError, CorruptInput, PermissionDenied, RetryLater, TooManyBadRows
from curate.ledger.compression import decompress
from curate.pipeline import bad_rows
from curate.pipeline.bad_rows import applied, row_text
from curate.pipeline.retry_later import Busy
from curate.pipeline.shard_books import MOST_SEARCHED, BadRowBudget, ShardBooks

Rule = Callable[[list[int]], None]
"""Raises for some lists of rows."""


@dataclass
class Ruled:
    """An operator over rows that are numbers, which raises what the rule raises, and books what it sees."""

    rule: Rule
    calls: list[list[int]] = field(default_factory=list)
    first: int = 0
    """Rows that it gives, each in a table, before it looks at the rule."""

    def apply(self, batch: pa.Table, tally: ShardBooks) -> Iterable[pa.Table]:
        numbers = batch["n"].to_pylist()
        self.calls.append(numbers)
        tally.count("calls")
        tally.drop(sum(n % 7 == 0 for n in numbers), "seven")
        for n in numbers:
            if n % 5 == 0:
                tally.set_aside(bad_rows.RejectedRow(0, "five", str(n)))
        for position in range(self.first):
            yield batch.slice(position, 1)
        self.rule(numbers)
        yield batch.slice(self.first)

    def hide(self, text: str) -> str:
        return text.replace("secret", "***")


@dataclass
class Done:
    """What came of a batch."""

    rows: list[int]
    tally: ShardBooks
    operator: Ruled

    @property
    def quarantine(self) -> list[tuple[str, Any]]:
        """Reasons and rows, in order."""
        if self.tally.quarantine is None:
            return []
        lines = decompress(self.tally.quarantine.finish()[1]).splitlines()
        return [(line["reason"], orjson.loads(line["row"])) for line in map(orjson.loads, lines)]


def do(
    rule: Rule, numbers: Sequence[int], *, errors: bool = False, budget: str = "100%", first: int = 0, **how: Any
) -> Done:
    """Processes one batch."""
    operator, tally = Ruled(rule, first=first), ShardBooks(BadRowBudget(budget))
    tally.books.rows_in += len(numbers)
    batch = pa.table({"n": pa.array(numbers, pa.int64())})
    tables = list(applied(operator, batch, tally, errors=errors, **how))
    return Done([n for table in tables for n in table["n"].to_pylist()], tally, operator)


def bad(*rows: int, at: bool = False) -> Rule:
    """Raises BadRow for the first of `rows`; `at` its position or not."""

    def rule(numbers: list[int]) -> None:
        for position, n in enumerate(numbers):
            if n in rows:
                raise BadRow(f"it is {n}", position if at else None)

    return rule


def poison(*rows: int, error: type[Exception] = ValueError) -> Rule:
    """Raises `error` if one of `rows` is there."""

    def rule(numbers: list[int]) -> None:
        for n in numbers:
            if n in rows:
                raise error(f"not {n}")

    return rule


def undisturbed(numbers: list[int]) -> Done:
    return do(lambda _: None, numbers)


class TestBadRow:
    @given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))), st.booleans())
    @example((4, {0, 1, 2, 3}), False)
    @example((1, {0}), False)
    def test_all_bad_rows_are_found_and_the_rest_is_processed_as_if_they_had_not_been_there(
        self, case: tuple[int, set[int]], at: bool
    ) -> None:
        """However they are found: rows, books, counters and quarantine are those of a batch of the good rows."""
        n, rows = case
        done = do(bad(*rows, at=at), range(n))
        good = [k for k in range(n) if k not in rows]
        assert done.rows == good
        found = [entry for entry in done.quarantine if entry[0] != "five"]
        assert sorted(found, key=str) == sorted([(f"it is {k}", {"n": k}) for k in rows], key=str)
        done.tally.close()
        books = done.tally.books
        assert books.balanced() or books.created
        assert books.quarantined == len(rows) + sum(k % 5 == 0 for k in good)
        if good:
            alike = undisturbed(good)
            assert done.operator.calls[-1] == good
            assert (books.counters, books.dropped.get("seven")) == (
                alike.tally.books.counters,
                alike.tally.books.dropped.get("seven"),
            )
        else:
            assert books.counters == {}

    def test_without_a_bad_row_the_batch_is_processed_once(self) -> None:
        assert do(bad(), range(8)).operator.calls == [list(range(8))]

    def test_a_position_needs_no_search(self) -> None:
        done = do(bad(2, at=True), range(4))
        assert done.operator.calls == [[0, 1, 2, 3], [0, 1, 3]]

    def test_a_search_takes_halves(self) -> None:
        done = do(bad(2), range(8))
        whole, rest = list(range(8)), [0, 1, 3, 4, 5, 6, 7]
        assert done.operator.calls == [whole, [0, 1, 2, 3], [0, 1], [2, 3], [2], [3], [4, 5, 6, 7], rest]

    def test_rows_that_are_bad_only_without_others_are_found_in_another_round(self) -> None:
        """2 raises only where no 1 is there to raise first, and hides 3."""

        def rule(numbers: list[int]) -> None:
            for n in (1, 2, 3):
                if n in numbers and not (n == 3 and 2 in numbers):
                    raise BadRow(f"it is {n}", numbers.index(n))

        assert do(rule, range(5)).rows == [0, 4]

    def test_a_position_of_another_row_in_a_part_is_that_of_the_part(self) -> None:
        """Parts of the batch are batches to `process`."""

        def rule(numbers: list[int]) -> None:
            if 6 in numbers:
                raise BadRow("six", numbers.index(6) if len(numbers) < 5 else None)

        assert do(rule, range(8)).rows == [0, 1, 2, 3, 4, 5, 7]

    def test_one_that_no_row_raises_alone_is_an_error_that_says_what_to_do(self) -> None:
        def rule(numbers: list[int]) -> None:
            if {1, 6} <= set(numbers):
                raise BadRow("one and six")

        with pytest.raises(
            RuntimeError, match=r"'one and six'\) for 8 rows together, but for no single .*row=position"
        ):
            do(rule, range(8))

    @pytest.mark.parametrize("row", [4, -1, "1", 1.5])
    def test_a_position_outside_of_the_batch_is_an_error(self, row: Any) -> None:
        def rule(_: list[int]) -> None:
            raise BadRow("x", row)

        with pytest.raises(ValueError, match=r"expected the position of a row in the batch .* 0 to 3"):
            do(rule, range(4))

    def test_a_reason_may_be_anything_and_is_shown_without_secrets(self) -> None:
        reasons = iter(["the secret", "", ValueError("wrapped"), "caf\udce9"])

        def rule(numbers: list[int]) -> None:
            if numbers and numbers[0] < 4:
                raise BadRow(next(reasons), 0)  # type: ignore[arg-type]

        found = [reason for reason, _ in do(rule, [1, 2, 3, 1]).quarantine]
        assert found == ["the ***", "no reason given", "wrapped", "caf\\udce9"]

    def test_another_error_stands_once_the_bad_rows_are_gone(self) -> None:
        def rule(numbers: list[int]) -> None:
            bad(1)(numbers)
            poison(6)(numbers)

        with pytest.raises(ValueError, match="not 6"):
            do(rule, range(8))

    def test_over_the_budget_the_shard_is_given_up_in_the_middle_of_the_search(self) -> None:
        with pytest.raises(TooManyBadRows, match="3 bad rows before its end, the budget is 2 rows"):
            do(bad(*range(1, 100)), range(1, 100), budget="2")

    @pytest.mark.slow
    def test_a_search_that_finds_bad_rows_only_ends_soon(self) -> None:
        """Each costs some runs of `process`; a shard of ten million would be searched for days."""
        n = MOST_SEARCHED + 500
        with pytest.raises(TooManyBadRows, match=f"{MOST_SEARCHED} bad rows of the first {n}, the budget is 1% of the"):
            do(bad(*range(n)), range(n), budget="1%")
        within = do(bad(*range(n)), range(n))
        assert (within.rows, within.tally.books.quarantined) == ([], n)


class TestHeldBack:
    def test_what_a_batch_gave_before_it_raised_is_taken_back(self) -> None:
        assert do(bad(7), range(1, 9), first=3).rows == [1, 2, 3, 4, 5, 6, 8]

    def test_beyond_a_bound_tables_go_on_and_a_bad_row_comes_too_late(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A batch that becomes gigabytes is not gathered in memory."""
        monkeypatch.setattr(bad_rows, "HELD_BYTES", 16)
        assert do(bad(), range(1, 9), first=3).rows == list(range(1, 9))
        with pytest.raises(RuntimeError, match=r"after it had given 24 B of the batch, which cannot be undone"):
            do(bad(7), range(1, 9), first=3)
        with pytest.raises(ValueError, match="not 7"):
            do(poison(7), range(1, 9), first=3, errors=True)

    def test_who_only_looks_gets_tables_at_once(self) -> None:
        """And again, if a bad row shows afterwards: the schema is the same."""
        batch = pa.table({"n": [1, 2, 3]})
        tables = applied(Ruled(poison(3), first=1), batch, ShardBooks(BadRowBudget("100%")), hold=False)
        assert next(iter(tables))["n"].to_pylist() == [1]
        with pytest.raises(ValueError, match="not 3"):
            next(iter(tables))
        assert do(bad(3), [1, 2, 3], first=1, hold=False).rows == [1, 1, 2]


class TestErrors:
    """Any exception, where the job opted in, at the last try."""

    @given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
    def test_all_rows_that_raise_alone_are_found(self, case: tuple[int, set[int]]) -> None:
        n, rows = case
        done = do(poison(*rows), range(n), errors=True)
        assert done.rows == [k for k in range(n) if k not in rows]
        assert [entry for entry in done.quarantine if entry[0] != "five"] == [
            (f"ValueError: not {k}", {"n": k}) for k in sorted(rows)
        ]

    def test_nothing_is_searched_where_nobody_asked(self) -> None:
        operator = Ruled(poison(1))
        with pytest.raises(ValueError, match="not 1"):
            list(applied(operator, pa.table({"n": [1, 2]}), ShardBooks(BadRowBudget("100%"))))
        assert len(operator.calls) == 1

    @pytest.mark.parametrize("error", [PermissionDenied, MemoryError, CorruptInput, ConfigError])
    def test_what_says_nothing_about_rows_is_not_searched(self, error: type[Exception]) -> None:
        """A store that refuses must not end in quarantine; corrupt input is corrupt."""

        def rule(_: list[int]) -> None:
            raise error("x")

        operator = Ruled(rule)
        with pytest.raises(error):
            list(applied(operator, pa.table({"n": [1, 2]}), ShardBooks(BadRowBudget("100%")), errors=True))
        assert len(operator.calls) == 1

    @pytest.mark.parametrize("when", range(8))
    @pytest.mark.parametrize("wrapped", [False, True])
    def test_a_service_that_is_down_is_waited_for_and_no_row_is_to_blame(self, when: int, wrapped: bool) -> None:
        """Whichever call runs into it, and whatever its error is called: that call alone is made again, the rows that
        are found are those that would have been found."""
        calls: list[list[int]] = []

        def rule(numbers: list[int]) -> None:
            calls.append(numbers)
            if len(calls) - 1 == when:
                raise (ConnectionError("503") if wrapped else RetryLater(7)) from RetryLater(7) if wrapped else None
            poison(3)(numbers)

        operator, tally = Ruled(rule), ShardBooks(BadRowBudget("100%"))
        given = list(applied(operator, pa.table({"n": range(4)}), tally, errors=True))
        waits = [one for one in given if isinstance(one, Busy)]
        undisturbed = [[0, 1, 2, 3], [0, 1], [2, 3], [2], [3], [3], [0, 1, 2]]
        if when < len(undisturbed):
            assert [(one.after_s, one.tries) for one in waits] == [(7.0, 1)]
            undisturbed.insert(when, undisturbed[when])
        assert calls == undisturbed
        assert [n for one in given if not isinstance(one, Busy) for n in one["n"].to_pylist()] == [0, 1, 2]
        assert (tally.books.quarantined, tally.books.dropped, tally.calls) == (2, {"seven": 1}, 1)

    def test_a_row_must_raise_twice(self) -> None:
        """What failed by chance, and does well alone, is no bad row: the error stands."""
        calls = iter(range(100))

        def rule(numbers: list[int]) -> None:
            if 2 in numbers and next(calls) < 3:  # the batch, its half, the row alone, and then no more
                raise ValueError("by chance")

        with pytest.raises(ValueError, match="by chance"):
            do(rule, range(4), errors=True)

    def test_a_row_must_raise_the_same_type_twice(self) -> None:
        kinds = iter([ValueError, ValueError, ValueError, KeyError])

        def rule(numbers: list[int]) -> None:
            if 2 in numbers:
                raise next(kinds)("x")

        with pytest.raises(ValueError, match="x"):
            do(rule, range(4), errors=True)

    def test_an_error_of_rows_together_stands(self) -> None:
        def rule(numbers: list[int]) -> None:
            if len(numbers) > 2:
                raise OverflowError("too many")

        with pytest.raises(OverflowError, match="too many"):
            do(rule, range(8), errors=True)

    def test_bad_rows_and_errors_may_be_mixed(self) -> None:
        def rule(numbers: list[int]) -> None:
            bad(1, 4)(numbers)
            poison(2, 6)(numbers)

        done = do(rule, range(1, 9), errors=True)
        assert done.rows == [3, 5, 7, 8]
        assert {reason for reason, _ in done.quarantine} >= {
            "it is 1",
            "it is 4",
            "ValueError: not 2",
            "ValueError: not 6",
        }

    def test_over_the_budget_the_shard_is_given_up(self) -> None:
        with pytest.raises(TooManyBadRows, match=r"2 bad rows before its end, the budget is 1 row \(.*ValueError"):
            do(poison(1, 2, 3), range(1, 5), errors=True, budget="1")


class TestRowText:
    def test_a_row_that_was_found_is_one_line_of_json(self) -> None:
        """Values that Python has no type for are shown as Arrow shows them."""
        batch = pa.table(
            {
                "id": ["a"],
                "raw": [b"\xff"],
                "at": pa.array([1], pa.timestamp("ns")),
                "far": pa.array([10**15], pa.timestamp("s")),
                "nested": [{"x": [1, None]}],
                "times": pa.array([[64, 0]], pa.list_(pa.time32("ms"))),
                "day": pa.array([1], pa.date32()),
                "then": pa.array([1_500], pa.timestamp("ms", "UTC")),
            }
        )
        row = orjson.loads(row_text(bad_rows.row_at(batch, 0)))
        assert (row["id"], row["raw"], row["nested"]) == ("a", "/w==", {"x": [1, None]})
        assert row["times"] == ["00:00:00.064000", "00:00:00"]
        assert (row["day"], row["then"]) == ("1970-01-02", "1970-01-01T00:00:01.500000+00:00")
        assert row["at"] == "1970-01-01 00:00:00.000000001"
        assert str(10**15) in row["far"]
