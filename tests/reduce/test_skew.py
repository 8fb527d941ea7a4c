"""Heavy keys are told from indexes alone, never more of them than there is; a refusal shows its arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from curate.arrow.order import Order, SortKey
from curate.exchange.run_file import Segment
from curate.reduce.index import Index
from curate.reduce.skew import HeavyKey, heaviest, refusal

ORDER = Order((SortKey("key"),))


def segment(keys: pa.Array, page_rows: int, row_bytes: int = 8) -> Segment:
    table = ORDER.sort(pa.table({"key": keys}))
    firsts = np.arange(0, len(keys), page_rows)
    rows = np.diff(firsts, append=len(keys))
    return Segment(table.take(pa.array(firsts)), rows, rows * row_bytes)


@given(st.lists(st.lists(st.sampled_from([None, *"abc"]), max_size=40), max_size=4), st.integers(1, 5))
def test_of_the_heaviest_key_all_but_two_pages_of_each_segment_are_known(
    runs: Sequence[Sequence[str | None]], page_rows: int
) -> None:
    """What is told of it is there; and no key has more that is not told than two pages of each segment."""
    found = heaviest(ORDER, Index.of(ORDER, [segment(pa.array(run, pa.string()), page_rows) for run in runs]))
    counts = Counter(value for run in runs for value in run)
    unknown = 2 * page_rows * len(runs)
    if found is None:
        assert max(counts.values(), default=0) <= unknown
        return
    assert found.bytes == 8 * found.rows
    assert 0 < found.rows <= counts[found.key["key"]]
    assert max(counts.values()) <= found.rows + unknown


def test_heavy_is_by_bytes_over_all_segments() -> None:
    """Many short rows weigh less than a few long ones; a key is counted in all segments together."""
    short = segment(pa.array(["a"] * 90 + ["b"] * 10), 10)
    long = segment(pa.array(["b"] * 40), 10, row_bytes=100)
    assert heaviest(ORDER, Index.of(ORDER, [short, long])) == HeavyKey({"key": "b"}, 30, 3000)
    assert heaviest(ORDER, Index.of(ORDER, [short])) == HeavyKey({"key": "a"}, 80, 640)
    assert heaviest(ORDER, Index.of(ORDER, [short, short])) == HeavyKey({"key": "a"}, 160, 1280)


def test_without_a_key_none_is_heavy() -> None:
    one = segment(pa.array(["a"] * 30), 10)
    assert heaviest(Order(), Index.of(Order(), [Segment(one.keys.select([]), one.rows, one.bytes)])) is None
    assert heaviest(ORDER, Index.of(ORDER, [])) is None


def test_a_time_that_python_has_no_value_for_is_told_as_arrow_prints_it() -> None:
    key = pa.array([2**39] * 3, pa.timestamp("s"))
    assert heaviest(ORDER, Index.of(ORDER, [segment(key, 1)])) == HeavyKey({"key": "19391-01-25 12:18:08"}, 2, 16)


def test_a_refusal_says_what_was_found_what_fits_and_what_to_do() -> None:
    """Long keys are cut short."""
    said = refusal("join", HeavyKey({"a": "x" * 5000, "b": None}, 7, 3000), 2048, copies=3)
    assert said.splitlines() == [
        "join: the rows of one key do not fit into the memory of a task.",
        f"  key      a='{'x' * 59}... (5,002 characters in all), b=None",
        "  rows     7 or more",
        "  bytes    2.93 KiB or more, 3 times in memory: 8.79 KiB",
        "  budget   2.00 KiB",
        "One task needs all rows of a key. Filter this key out, or add a column to the key that splits it;",
        "drop columns that you do not need; or raise memory_budget to 5 times its value.",
    ]
