"""Expressions over views of texts, bytes and lists: as over plain columns of the same values."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from curate.arrow.expressions import columns_of, filter_by, project, type_of

TEXTS = ["a", None, "", "é more than twelve bytes"]
LISTS = [[1, None], [], None, [2], [None], []]
LIST, LARGE = pa.list_(pa.int64()), pa.large_list(pa.int32())
X, N = pc.field("x"), pc.field("n")

CASES: dict[str, tuple[list[Any], pa.DataType, pa.DataType, Any]] = {
    "equal": (TEXTS, pa.string(), pa.string_view(), X == "a"),
    "one of": (TEXTS, pa.string(), pa.string_view(), X.isin(["", "b"])),
    "length": (TEXTS, pa.string(), pa.string_view(), pc.utf8_length(X) > 1),
    "with others": (TEXTS, pa.string(), pa.string_view(), (pc.utf8_upper(X) == "A") | (N > 2)),
    "bytes": ([b"a", None, b"", b"\xff" * 20], pa.binary(), pa.binary_view(), X == b"a"),
    "in a struct": (
        [{"v": one} for one in TEXTS],
        pa.struct([("v", pa.string())]),
        pa.struct([("v", pa.string_view())]),
        pc.field("x", "v") == "a",
    ),
    "lists": (LISTS, LIST, pa.list_view(pa.int64()), pc.list_value_length(X.cast(LIST)) > 0),
    "large lists": (LISTS, LARGE, pa.large_list_view(pa.int32()), pc.list_value_length(X.cast(LARGE)) > 0),
    "lists in a struct": (
        [{"v": one} for one in LISTS],
        pa.struct([("v", LIST)]),
        pa.struct([("v", pa.list_view(pa.int64()))]),
        pc.list_value_length(pc.field("x", "v").cast(LARGE)) > 0,
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_views_are_looked_at_as_plain_values(what: str) -> None:
    values, plain, view, expression = CASES[what]
    known, viewed = (pa.table({"x": pa.array(values, type), "n": range(len(values))}) for type in (plain, view))
    expected = project(known, [expression], ["kept"])
    assert project(viewed, [expression], ["kept"]).equals(expected)
    assert type_of(expression, viewed.schema, "here") == pa.bool_()
    assert columns_of(expression, viewed.schema) == columns_of(expression, known.schema)
    kept = filter_by(viewed, expression)
    assert kept.to_pylist() == filter_by(known, expression).to_pylist()
    assert kept.schema == viewed.schema


@pytest.mark.parametrize("view", [pa.list_view(pa.int64()), pa.large_list_view(pa.int64())])
@pytest.mark.parametrize("to", [LIST, LARGE])
def test_a_cast_of_views_of_lists_has_their_values(view: pa.DataType, to: pa.DataType) -> None:
    table = pa.table({"x": pa.array(LISTS, view), "n": range(len(LISTS))})
    cast = project(table, [X.cast(to)], ["x"])["x"]
    cast.validate(full=True)
    assert (cast.type, cast.to_pylist()) == (to, LISTS)


def test_what_needs_no_plain_values_keeps_its_type() -> None:
    table = pa.table({"x": pa.array(TEXTS, pa.string_view()), "y": pa.array(LISTS[:4], pa.list_view(pa.int64()))})
    made = project(table, [X, pc.utf8_upper(X), pc.field("y"), pc.field("y").cast(LIST)], ["a", "b", "c", "d"])
    assert made.schema.types == [pa.string_view(), pa.string(), pa.list_view(pa.int64()), LIST]
    assert made["a"].to_pylist() == TEXTS
    assert made["c"].to_pylist() == made["d"].to_pylist() == LISTS[:4]
