"""Columns that `schema=` declares and that no row at the beginning of the first file has: null, and told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import structlog.testing

import curate
from curate import Dataset
from curate.errors import TooManyBadRows

ROWS = [{"id": str(number), "text": "a"} for number in range(3)]


def _json(folder: Path) -> str:
    curate.from_items(ROWS).write_json(folder)
    return str(folder)


def _csv(folder: Path) -> str:
    curate.from_items(ROWS).write_csv(folder)
    return str(folder)


def _tfrecords(folder: Path) -> str:
    curate.from_items(ROWS).write_tfrecords(folder)
    return str(folder)


WAYS: list[tuple[Callable[[Path], str], Callable[..., Dataset]]] = [
    (_json, curate.read_json),
    (_csv, curate.read_csv),
    (_tfrecords, curate.read_tfrecords),
]


def told(read: Callable[..., Dataset], source: str, names: list[str], **more: Any) -> list[Any]:
    """Returns what is said of columns that are declared as texts."""
    with structlog.testing.capture_logs() as logs:
        found = read(source, schema=pa.schema([(name, pa.string()) for name in names]), **more)
        assert [row["id"] for row in found.take_all()] == ["0", "1", "2"]
    return [one for one in logs if "declared columns" in one["event"]]


@pytest.mark.parametrize(("write", "read"), WAYS)
def test_a_column_that_no_row_has_is_told(
    write: Callable[[Path], str], read: Callable[..., Dataset], tmp_path: Path
) -> None:
    source = write(tmp_path / "in")
    (one,) = told(read, source, ["id", "txt"])
    assert one["columns"] == "'txt'; did you mean 'text'?"
    assert one["rows_have"] == "'id', 'text'"
    assert one["file"].startswith(source)
    (one,) = told(read, source, ["no", "id", "none"])
    assert one["columns"] == "'no', 'none'"
    assert told(read, source, ["text", "id"]) == told(read, source, ["id"]) == []


def test_columns_of_the_file_itself_are_there(tmp_path: Path) -> None:
    """Its path, and what folders name; a key that is null, and one that only the last row has."""
    folder = tmp_path / "in/year=2024"
    folder.mkdir(parents=True)
    (folder / "a.jsonl").write_text('{"id": "0", "text": null}\n{"id": "1"}\n{"id": "2", "last": "x"}\n')
    source = str(tmp_path / "in")
    assert told(curate.read_json, source, ["id", "text", "last"], include_paths=True) == []
    assert told(curate.read_json, source, ["id", "year"]) == []
    (one,) = told(curate.read_json, source, ["id", "year"], partitioning=None)
    assert one["columns"] == "'year'"


def test_what_cannot_be_read_says_so_when_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("no JSON\n" * 100)
    with structlog.testing.capture_logs() as logs:
        found = curate.read_json(tmp_path / "a.jsonl", schema=pa.schema([("id", pa.string())]))
    assert logs == []
    with pytest.raises(TooManyBadRows, match=r"a\.jsonl"):
        found.take_all()
    (tmp_path / "empty.jsonl").write_text("")
    with structlog.testing.capture_logs() as logs:
        assert curate.read_json(tmp_path / "empty.jsonl", schema=pa.schema([("id", pa.string())])).take_all() == []
    assert logs == []
