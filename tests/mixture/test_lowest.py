"""The rows of the lowest hashes, beside a plain sort."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.errors import ConfigError
from curate.mixture import lowest
from curate.mixture.lowest import NOTHING, Histogram

HASHES = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**63, 2**64 - 1])
Row = tuple[int, int, int]


def found(rows: Sequence[Row], rests: Sequence[int], cells: int, cuts: Sequence[int]) -> list[lowest.Reached]:
    """Returns what is reached by rows of a group, a hash and a size, which come in parts."""
    edges = [0, *sorted(min(one, len(rows)) for one in cuts), len(rows)]
    parts = [
        [np.array([row[at] for row in rows[low:high]], kind) for at, kind in enumerate((np.int64, np.uint64, np.int64))]
        + [np.arange(low, high)]
        for low, high in itertools.pairwise(edges)
    ]
    histogram = Histogram(len(rests), cells)
    for group, hashes, sizes, _ in parts:
        histogram.add(group, hashes, sizes)
    crossings = histogram.crossings(rests)
    for group, hashes, sizes, ids in reversed(parts):
        crossings.add(group, hashes, ids, sizes)
    return crossings.reached()


@given(
    st.lists(st.tuples(st.integers(0, 2), HASHES, st.integers(0, 5)), max_size=30),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=3, max_size=3),
    st.sampled_from([1, 4, 64, 1 << 12]),
    st.lists(st.integers(0, 30), max_size=3),
)
def test_as_many_as_there_is_room_for(rows: list[Row], shares: list[float], cells: int, cuts: list[int]) -> None:
    """In order of hash and row; whatever the buckets are, equal hashes and rows without size included."""
    had = [sum(size for group, _, size in rows if group == one) for one in range(3)]
    rests = [int(share * of) for share, of in zip(shares, had, strict=True)]
    for one, reached in enumerate(found(rows, rests, cells, cuts)):
        own = sorted((hash, at, size) for at, (group, hash, size) in enumerate(rows) if group == one)
        taken = [
            of
            for of, total in zip(own, itertools.accumulate(size for *_, size in own), strict=True)
            if total <= rests[one]
        ]
        if not rests[one]:
            assert reached == NOTHING
            continue
        assert [of for of in own if of[:2] < (reached.hash, reached.row)] == taken
        assert (reached.units, reached.rows) == (sum(size for *_, size in taken), len(taken))


def test_an_id_that_all_rows_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in one bucket, and would all be in memory."""
    monkeypatch.setattr(lowest, "MOST_SORTED", 10)
    with pytest.raises(ConfigError, match="11 rows have nearly the same hashes, at most 10 fit in memory"):
        found([(0, 5, 1)] * 11, [3], 64, [])
