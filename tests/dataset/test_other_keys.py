"""Keys of JSON rows that are no columns, as the first file with rows has none of them: counted, not lost in silence."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
import structlog.testing

import curate
from curate.pipeline.shard_books import OTHER_KEYS

Rows = list[dict[str, Any]]
FIRST: Rows = [{"id": "1", "text": "a"}, {"id": "2", "text": "b"}]


def written(folder: Path, *files: Rows) -> str:
    """Writes files of JSON lines, in the order of their names."""
    folder.mkdir()
    for number, rows in enumerate(files):
        (folder / f"{number}.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return str(folder)


@pytest.mark.parametrize("seed", range(5))
def test_rows_with_more_keys_than_columns_are_counted(seed: int, tmp_path: Path) -> None:
    """Consumed, written, and beside an exchange; by each file as well as in all."""
    draw = random.Random(seed)
    names = ["id", "text", "lang", "more"]
    files = [FIRST, *([dict.fromkeys(draw.sample(names, draw.randint(1, 4)), "x") for _ in range(9)] for _ in "ab")]
    source = written(tmp_path / "in", *files)
    left_out = sum(not row.keys() <= {"id", "text"} for rows in files for row in rows)
    whole = curate.read_json(source)
    with structlog.testing.capture_logs() as logs:
        assert len(whole.take_all()) == 20
    assert any("no columns" in one["event"] for one in logs) == bool(left_out)
    summary = whole.write_parquet(tmp_path / "out", backend="inline")
    assert summary.books.counters == ({OTHER_KEYS: left_out} if left_out else {})
    summary = whole.random_shuffle(seed=1).write_parquet(tmp_path / "shuffled", backend="inline")
    assert summary.books.counters == ({OTHER_KEYS: left_out} if left_out else {})


@pytest.mark.parametrize("how", ["schema", "selected", "all"])
def test_nothing_is_counted_where_columns_were_asked_for(how: str, tmp_path: Path) -> None:
    """Others are left out on purpose. Nor where there are no others, and rows lack some."""
    rows: Rows = [{"id": "3", "text": "c", "lang": "de"}] if how != "all" else [{"id": "3"}]
    source = written(tmp_path / "in", FIRST, rows)
    found = curate.read_json(source, schema=pa.schema([("id", pa.string())]) if how == "schema" else None)
    found = found.select_columns(["id"]) if how == "selected" else found
    assert found.write_parquet(tmp_path / "out", backend="inline").books.counters == {}
