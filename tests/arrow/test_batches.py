from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.arrow.batches import rechunk


@given(st.lists(st.integers(0, 7)), st.integers(1, 10))
def test_tables_have_exactly_the_rows_asked_for(sizes: list[int], rows: int) -> None:
    tables, at = [], 0
    for size in sizes:
        tables.append(pa.table({"a": pa.array(range(at, at + size), pa.int64())}))
        at += size
    result = list(rechunk(iter(tables), rows))
    assert [value for table in result for value in table["a"].to_pylist()] == list(range(at))
    assert [table.num_rows for table in result] == [rows] * (at // rows) + ([at % rows] if at % rows else [])
    assert all(table["a"].num_chunks == 1 for table in result)


def test_a_batch_has_at_least_one_row() -> None:
    with pytest.raises(ValueError, match="at least one row a batch, found 0"):
        list(rechunk([], 0))
