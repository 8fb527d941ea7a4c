"""Parquet outputs have dictionaries for columns that repeat themselves, and not for those that do not."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import curate
from curate.arrow.batches import rechunk
from curate.objects.record import OutputFormat
from tests.support.writes import file_of

ROWS = 10_000


def written(table: pa.Table, batch_rows: int) -> bytes:
    return file_of(rechunk([table], batch_rows), OutputFormat.PARQUET)


def encoded(data: bytes) -> dict[str, bool]:
    """Returns for each column whether its first group has a dictionary."""
    group = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0)
    columns = [group.column(k) for k in range(group.num_columns)]
    return {column.path_in_schema: column.has_dictionary_page for column in columns}


TABLE = pa.table(
    {
        "id": [f"c{k}" for k in range(ROWS)],
        "language": ["en", "de"] * (ROWS // 2),
        "tags": [["a", "b"]] * ROWS,
        "nothing": pa.nulls(ROWS, pa.string()),
        "half": pa.array(np.arange(ROWS, dtype="float16")),
        "score": np.arange(ROWS) / 3,
    }
)


def test_what_repeats_itself_has_one() -> None:
    """Nested columns too, and those that cannot be counted."""
    found = encoded(written(TABLE, 1000))
    assert found["language"]
    assert found["tags.list.element"]
    assert not found["id"]
    assert not found["score"]


def test_small_files_are_not_looked_at() -> None:
    """All columns have one, as Arrow does it."""
    assert encoded(written(TABLE.slice(0, 100), 10))["id"]


def test_tiny_files_have_none() -> None:
    """Unless their values are long, and may come again further back than a codec looks."""
    assert not any(encoded(written(TABLE.slice(0, 63), 10)).values())
    assert encoded(written(TABLE.slice(0, 64), 10))["id"]
    texts = pa.table({"id": range(20), "text": ["x" * 60_000] * 20})
    assert encoded(written(texts, 10))["text"]
    assert not encoded(written(texts.slice(0, 17), 10))["text"]


@pytest.mark.parametrize("rows", [20, 63, 64, 6000])
@pytest.mark.parametrize("batch_rows", [1, 7, 4096, 100_000])
def test_batches_do_not_show(batch_rows: int, rows: int) -> None:
    """The same bytes, and the same rows, however they came: as a part of many, or alone."""
    part = TABLE.slice(0, rows)
    data = written(part, batch_rows)
    assert data == written(part, 500) == written(part.take(pa.array(range(rows))), batch_rows)
    assert pq.read_table(io.BytesIO(data)).equals(part)


@pytest.mark.parametrize(
    "value", [pa.null(), pa.list_(pa.null()), pa.struct([("n", pa.null()), ("t", pa.string())])], ids=str
)
def test_maps_of_nulls_are_read_though_their_keys_repeat(value: pa.DataType, tmp_path: Path) -> None:
    """What was written of them could not be read: Arrow makes them of a wrong length where it decodes their keys."""
    item = {"n": None, "t": "x"} if pa.types.is_struct(value) else None
    maps = pa.array([[("a", item), ("b", item)], [], [("c", item)] * 3, None], pa.map_(pa.string(), value))
    table = pa.table({"m": maps, "l": pa.ListArray.from_arrays([0, 2, 2, 3, 4], maps)})
    pq.write_table(table, tmp_path / "a.parquet")
    assert curate.read_parquet(tmp_path / "a.parquet").to_arrow().to_pylist() == table.to_pylist()
