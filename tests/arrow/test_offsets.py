"""Columns of more bytes than 32-bit offsets can count: where that is, a constant says, which these tests lower."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import curate
from curate.arrow import offsets
from curate.arrow.offsets import one_array, pack_rows, take_column, unpack_rows
from curate.dataset.dataset import Dataset
from curate.errors import ShardError

MOST = 400
TEXTS = [f"{number:02d}" * 20 for number in range(36)]
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), [*TEXTS[:20], None, *TEXTS[21:]]),
    "bytes": (pa.binary(), [text.encode() for text in TEXTS]),
    "lists": (pa.list_(pa.string()), [[text, None] for text in TEXTS]),
    "structs": (pa.struct([("a", pa.string()), ("b", pa.int8())]), [{"a": text, "b": 1} for text in TEXTS]),
    "maps": (pa.map_(pa.string(), pa.string()), [[("k", text)] for text in TEXTS]),
    "pairs": (pa.list_(pa.string(), 2), [[text, text] for text in TEXTS]),
    "numbers": (pa.int64(), list(range(36))),
    "large": (pa.large_string(), TEXTS),
}


@pytest.fixture(autouse=True)
def low(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "MOST_OFFSET_BYTES", MOST)


def column(name: str) -> pa.ChunkedArray:
    type, values = VALUES[name]
    return pa.chunked_array([pa.array(values[at : at + 7], type) for at in range(0, len(values), 7)], type)


def is_small(found: pa.ChunkedArray) -> bool:
    """Returns whether no chunk of 32-bit offsets is too large, but for one of a single row."""
    return all(not offsets.is_over(chunk) or len(chunk) == 1 for chunk in found.chunks)


@pytest.mark.parametrize("name", VALUES)
def test_rows_are_taken_as_from_a_small_column(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any type, in any order, nulls for nulls, from slices; no chunk of what is taken is too large."""
    whole = column(name)
    for part in (whole, whole.slice(5, 20), whole.slice(3, 1)):
        rows = pa.array([*reversed(range(len(part))), None, *range(len(part))])
        found = take_column(part, rows)
        found.validate(full=True)
        assert found.type == part.type
        assert is_small(found)
        with monkeypatch.context() as patched:
            patched.setattr(offsets, "MOST_OFFSET_BYTES", 1 << 30)
            assert found.equals(part.take(rows)) or found.to_pylist() == part.take(rows).to_pylist()


def test_rows_are_one_array_and_come_back() -> None:
    """As they were, types and metadata of fields too, from any slice."""
    table = pa.table({name: column(name) for name in VALUES})
    table = table.cast(pa.schema([field.with_metadata({"unit": "s"}) for field in table.schema]))
    for start, rows in ((0, 36), (5, 9), (35, 1), (7, 0)):
        found = unpack_rows(pack_rows(table).slice(start, rows))
        assert found.schema.equals(table.schema, check_metadata=True)
        assert found.to_pylist() == table.slice(start, rows).to_pylist()
        assert all(map(is_small, found.columns))


def test_what_has_to_be_one_array_says_so() -> None:
    with pytest.raises(ShardError, match="cast it to large_string"):
        one_array(column("text"))
    assert one_array(column("large")).to_pylist() == TEXTS


PARTS = [pa.table({"id": [number], "text": [text]}) for number, text in enumerate(TEXTS)]


def rows() -> Dataset:
    return curate.from_arrow(PARTS)


def numbers(ds: Dataset) -> list[int]:
    found = ds.to_arrow()
    assert [TEXTS[one] for one in found["id"].to_pylist()] == found["text"].to_pylist()
    ids: list[int] = found["id"].to_pylist()
    return ids


def one_group() -> Any:
    return rows().with_column("k", pc.field("id") * 0).groupby("k")


WAYS: dict[str, Callable[[], list[int]]] = {
    "sort": lambda: numbers(rows().sort("id", descending=True))[::-1],
    "sort by it": lambda: numbers(rows().sort("text")),
    "random_shuffle": lambda: sorted(numbers(rows().random_shuffle(seed=1))),
    "repartition": lambda: numbers(rows().repartition(3)),
    "map_groups": lambda: numbers(one_group().map_groups(lambda group: group)),
    "map_groups, numpy": lambda: numbers(one_group().map_groups(lambda group: group, batch_format="numpy")),
    "join": lambda: numbers(rows().join(curate.range(36), on="id")),
    "broadcast join": lambda: numbers(curate.range(36).join(rows(), on="id", broadcast=True)),
    "zip": lambda: numbers(rows().zip(curate.range(36).rename_columns({"id": "n"}))),
    "distinct": lambda: numbers(rows().distinct("id")),
    "map_batches": lambda: numbers(rows().map_batches(lambda batch: batch)),
    "local shuffle": lambda: sorted(
        one["id"]
        for batch in rows().iter_batches(batch_size=12, local_shuffle_buffer_size=36, local_shuffle_seed=1)
        for one in batch.to_pylist()
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_more_text_than_offsets_count_goes_through(way: str) -> None:
    """Every way that rows can go."""
    assert WAYS[way]() == list(range(36))
