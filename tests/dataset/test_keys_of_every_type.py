"""Every type of Arrow as what rows are compared by: the right answer, by brute force, or a refusal that names it.

What is compared are the values, in whatever way they are stored: views, encodings, sizes of offsets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import pytest

import curate
from curate.arrow.types import is_text
from curate.dataset.dataset import Dataset
from tests.dataset.test_every_type import TYPES, told

COPIES = 2
"""How often each value is there; nulls are, too."""

NO_ORDER = tuple(
    name
    for name, array in TYPES.items()
    if (pt.is_nested(array.type) and not pt.is_run_end_encoded(array.type))
    or pt.is_interval(array.type)
    or (isinstance(array.type, pa.BaseExtensionType) and name != "uuid")
)

NOT_MOVED = ("list_view", "large_list_view", "sparse_union", "dense_union")

NO_HASH = ("interval", "sparse_union", "dense_union")

Keys = list[Any]


def compared(array: pa.Array) -> Keys:
    """Returns what values are compared as: None for null; NaN after all numbers."""
    type = array.type
    if pt.is_dictionary(type):
        return compared(array.dictionary_decode())
    if pt.is_run_end_encoded(type):
        return compared(pc.run_end_decode(array))
    if isinstance(type, pa.BaseExtensionType) and not pt.is_nested(type.storage_type):
        return compared(array.storage)
    if pt.is_floating(type):
        values = array.cast(pa.float64()).to_pylist()
        return [None if one is None else (1, 0.0) if math.isnan(one) else (0, one + 0.0) for one in values]
    if is_text(type):
        return [None if one is None else one.encode() for one in array.to_pylist()]
    if pt.is_temporal(type) and not pt.is_interval(type):
        return told(array)
    if pt.is_nested(type) or pt.is_interval(type) or isinstance(type, pa.BaseExtensionType):
        valid = array.is_valid().to_pylist()
        return [repr(one) if there else None for one, there in zip(told(array), valid, strict=True)]
    return array.to_pylist()


def rows_of(name: str) -> pa.Table:
    """Returns each value several times, out of order, with nulls among them where the type has them."""
    array = TYPES[name]
    chunks = [array] if pt.is_union(array.type) else [array, pa.nulls(1, array.type)]
    return pa.table({"v": pa.chunked_array([*reversed(chunks), *chunks]), "k": [0] * COPIES * sum(map(len, chunks))})


def numbered(name: str) -> tuple[Dataset, Keys]:
    table = rows_of(name)
    keys = [key for chunk in table["v"].chunks for key in compared(chunk)]
    return curate.from_arrow(table.append_column("id", pa.array(range(len(table))))), keys


def ids(ds: Dataset) -> list[int]:
    return ds.to_arrow()["id"].to_pylist()


def in_order(keys: Keys, rows: list[int]) -> list[int]:
    """Returns rows by their keys, null last."""
    present = sorted((row for row in rows if keys[row] is not None), key=lambda row: keys[row])
    return present + [row for row in rows if keys[row] is None]


def firsts(keys: Keys) -> list[int]:
    return [row for row, key in enumerate(keys) if keys.index(key) == row]


def values_of(column: pa.ChunkedArray) -> Keys:
    return compared(column.combine_chunks())


# Each use: what it gives, and what it should


def sort(ds: Dataset, keys: Keys) -> None:
    assert ids(ds.sort("v")) == in_order(keys, list(range(len(keys))))


def groupby(ds: Dataset, keys: Keys) -> None:
    found = ds.groupby("v").count().to_arrow()
    rows = in_order(keys, firsts(keys))
    assert values_of(found["v"]) == [keys[row] for row in rows]
    assert found["count"].to_pylist() == [keys.count(keys[row]) for row in rows]


def map_groups(ds: Dataset, keys: Keys) -> None:
    found = ds.groupby("v").map_groups(lambda rows: {"id": [rows["id"][0].as_py()]})
    assert ids(found) == in_order(keys, firsts(keys))


def distinct(ds: Dataset, keys: Keys) -> None:
    assert ids(ds.distinct("v")) == in_order(keys, firsts(keys))


def unique(ds: Dataset, keys: Keys) -> None:
    assert len(ds.unique("v")) == len(firsts(keys))


def join(ds: Dataset, keys: Keys) -> None:
    found = ds.join(ds.select_columns(["v", "id"]), on="v").to_arrow()
    present = [row for row in in_order(keys, list(range(len(keys)))) if keys[row] is not None]
    expected = [(one, other) for one in present for other in present if keys[one] == keys[other]]
    expected.sort(key=lambda pair: (present.index(keys.index(keys[pair[0]])), pair))
    assert list(zip(found["id"].to_pylist(), found["id_right"].to_pylist(), strict=True)) == expected


def broadcast_join(ds: Dataset, keys: Keys) -> None:
    found = ids(ds.join(ds.select_columns(["v"]).distinct("v"), on="v", how="semi", broadcast=True))
    assert found == [row for row, key in enumerate(keys) if key is not None]


def least_and_most(ds: Dataset, keys: Keys) -> None:
    found = ds.groupby("k").aggregate([("v", "min"), ("v", "max")]).to_arrow()
    present = [key for key in keys if key is not None]
    numbers = [key for key in present if not (isinstance(key, tuple) and key[0])] or present
    for name, choose in (("v_min", min), ("v_max", max)):
        assert values_of(found[name]) == [choose(numbers) if numbers else None]


def first_and_list(ds: Dataset, keys: Keys) -> None:
    found = ds.groupby("k").aggregate([("v", "first"), ("v", "list")]).to_arrow()
    present = [key for key in keys if key is not None]
    assert values_of(found["v_first"]) == [present[0] if present else None]
    assert compared(found["v_list"].combine_chunks().flatten()) == keys


def first_of_all(ds: Dataset, keys: Keys) -> None:
    """Where the rows are, so that it is no exchange that brings them to another type."""
    found = ds.aggregate([("v", "first"), (None, "count")])
    present = [row for row, key in enumerate(keys) if key is not None]
    expected = ds.take_all()[present[0]]["v"] if present else None
    assert (repr(found["v_first"]), found["count"]) == (repr(expected), len(keys))


def dedup_exact(ds: Dataset, keys: Keys) -> None:
    assert ids(ds.dedup_exact("v")) == firsts(keys)


def dedup_exact_normalised(ds: Dataset, keys: Keys) -> None:
    assert ids(ds.dedup_exact("v", normalise=True)) == firsts(keys)


Use = Callable[[Dataset, Keys], None]

USES: dict[str, tuple[Use, tuple[str, ...]]] = {
    "sort": (sort, NO_ORDER),
    "groupby": (groupby, NO_ORDER),
    "map_groups": (map_groups, NO_ORDER),
    "distinct": (distinct, NO_ORDER),
    # Python has no nanoseconds of a time of day: they are refused, and not cut.
    "unique": (unique, (*NO_ORDER, "time64[ns], finer")),
    "join": (join, NO_ORDER),
    "broadcast_join": (broadcast_join, NO_ORDER),
    "min, max": (least_and_most, (*NO_ORDER, "uuid")),
    "first, list": (first_and_list, NOT_MOVED),
    "first of all": (first_of_all, (*NOT_MOVED, "time64[ns], finer")),
    "dedup_exact": (dedup_exact, NO_HASH),
    "dedup_exact, normalised": (dedup_exact_normalised, NO_HASH),
}
"""What compares values, and the types that it refuses."""

QUICK = ("groupby", "join", "first, list", "dedup_exact, normalised")


CASES = [pytest.param(use, name, marks=[] if use in QUICK else [pytest.mark.slow]) for use in USES for name in TYPES]


@pytest.mark.ci(86)
@pytest.mark.quick(40)
@pytest.mark.parametrize(("use", "name"), CASES)
def test_values_are_compared_or_refused_by_name(use: str, name: str) -> None:
    """Whatever way they are stored in; a refusal names the column and its type."""
    do, refused = USES[use]
    ds, keys = numbered(name)
    if name not in refused:
        do(ds, keys)
        return
    with pytest.raises(curate.CurateError) as error:
        do(ds, keys)
    assert "'v'" in str(error.value) or "'v_first'" in str(error.value)
