"""Rows of equal keys are numbered: as many numbers as keys, the same for the same key, whatever the type and range."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.arrow.groups import groups_of, groups_of_sorted
from curate.arrow.order import Order, SortKey
from tests.exchange.local import sort_key
from tests.support.examples import examples

WHOLE = {
    pa.int8(): st.integers(-128, 127),
    pa.uint8(): st.integers(0, 255),
    pa.int64(): st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-3, 3), st.integers(2**63 - 4, 2**63 - 1)),
    pa.uint64(): st.one_of(st.integers(0, 2**64 - 1), st.integers(2**64 - 4, 2**64 - 1), st.integers(0, 3)),
    pa.float64(): st.sampled_from([0.0, -0.0, 1.0, float("nan"), float("inf")]),
    pa.string(): st.sampled_from(["", "a", "é", "b"]),
}


@pytest.mark.parametrize("type", WHOLE, ids=str)
@settings(max_examples=examples(60))
@given(data=st.data())
def test_rows_have_one_number_if_and_only_if_they_have_one_key(type: pa.DataType, data: st.DataObject) -> None:
    """Close together or far apart, with nulls and without; a second key divides the groups of the first."""
    values = WHOLE[type] if data.draw(st.booleans()) else st.one_of(st.none(), WHOLE[type])
    rows = data.draw(st.lists(st.tuples(values, st.integers(0, 2)), max_size=40))
    table = pa.table({"a": pa.array([a for a, _ in rows], type), "b": pa.array([b for _, b in rows], pa.int64())})
    for keys in (["a"], ["a", "b"], []):
        order = Order(tuple(map(SortKey, keys)))
        for of, where in ((groups_of(order, table), table), (groups_of_sorted(order, order.sort(table)), None)):
            assert of is not None
            given_rows = (order.sort(table) if where is None else where).to_pylist()
            found = [tuple(sort_key(row[key]) for key in keys) for row in given_rows]
            numbered = list(zip(of.ids.tolist(), found, strict=True))
            assert len(set(numbered)) == len({number for number, _ in numbered}) == len(set(found)) == of.count
            assert sorted({number for number, _ in numbered}) == list(range(of.count))
            assert [found.index(found[row]) for row in of.firsts()] == of.firsts().tolist()
            assert all(found[row] not in found[row + 1 :] for row in of.lasts())
    groups = groups_of(Order((SortKey("a"),)), table)
    assert groups is not None
    for group, row in enumerate(groups.firsts()):
        assert groups.ids[row] == group
