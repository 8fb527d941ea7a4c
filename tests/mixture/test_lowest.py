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
from curate.mixture.lowest import NOTHING, Histogram, Reached, handed_on

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
        assert reached.next == own[len(taken)][2]


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 9), st.integers(1, 9)).map(
            # What a stratum has left is less than its next row.
            lambda one: (one[0] + min(one[1], one[2] - 1), Reached(one[1], 0, one[0], 1, one[2]))
        ),
        max_size=9,
    )
)
def test_what_strata_have_left_is_less_than_the_next_row_in_all(strata: list[tuple[int, Reached]]) -> None:
    """A stratum takes one row more, at most; none is passed over for one with less left."""
    rests, reached = [one for one, _ in strata], [one for _, one in strata]
    taken = handed_on(rests, reached)
    assert all(one in (before, before.with_next) for one, before in zip(taken, reached, strict=True))
    left = sum(rests) - sum(one.units for one in taken)
    order = sorted(range(len(strata)), key=lambda at: (reached[at].units - rests[at], reached[at].hash, at))
    more = [taken[at].rows - 1 for at in order]
    assert more == sorted(more, reverse=True)
    assert left >= 0
    assert not left or left < reached[order[sum(more)]].next


def test_an_id_that_all_rows_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in one bucket, and would all be in memory."""
    monkeypatch.setattr(lowest, "MOST_SORTED", 10)
    with pytest.raises(ConfigError, match="11 rows have nearly the same hashes, at most 10 fit in memory"):
        found([(0, 5, 1)] * 11, [3], 64, [])
