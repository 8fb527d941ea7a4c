"""Marks that are read from run files, against the same marks in memory."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.arrow.order import Order, SortKey
from curate.errors import ConfigError, DamagedRun
from curate.exchange import side_input
from curate.exchange.row_ids import ROW_ID, TableMarks, first_row_id, row_ids
from curate.exchange.run_file import RunFile, RunWriter
from curate.exchange.side_input import FileMarks
from curate.pipeline.step import BatchPosition
from curate.storage.protocol import Object
from curate.stores.open import open_store
from tests.support.examples import examples

ORDER = Order((SortKey(ROW_ID), SortKey("n")))
SCHEMA = pa.schema([(ROW_ID, pa.int64()), ("n", pa.int64())])


def written(path: Path, table: pa.Table, **how: Any) -> Object:
    """A run file of marks."""
    sink = io.BytesIO()
    writer = RunWriter(sink, table.schema, ORDER, **how)
    writer.write(table)
    writer.close({})
    path.write_bytes(sink.getvalue())
    return Object(str(path), len(sink.getvalue()), open_store(str(path)).stat(str(path)).generation)


FILES = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 2)), max_size=40), min_size=1, max_size=3
)


@settings(max_examples=examples(40))
@given(FILES, st.lists(st.tuples(st.integers(0, 4), st.integers(0, 10), st.integers(0, 10)), max_size=9), st.booleans())
def test_any_range_is_that_of_all_marks(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[tuple[int, int, int]]], asked: Any, whole: bool
) -> None:
    """Whatever files, segments and pages marks are in, a range has those of its places, in order; also once pickled."""
    folder = tmp_path_factory.mktemp("marks")
    tables = [
        pa.table([[first_row_id(rank) + row for rank, row, _ in one], [n for *_, n in one]], schema=SCHEMA)
        for one in files
    ]
    objects = tuple(
        written(folder / f"{number}.run", table, chunk_bytes=400, page_bytes=60) for number, table in enumerate(tables)
    )
    memory = TableMarks(pa.concat_tables([SCHEMA.empty_table(), *tables]), ORDER)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(side_input, "WHOLE_BYTES", 1 << 20 if whole else -1)
        found = pickle.loads(pickle.dumps(FileMarks(objects, ORDER)))
        for rank, start, stop in asked:
            start, stop = (first_row_id(rank) + row for row in (start, max(start, stop)))
            part = found.of(start, stop)
            assert part[ROW_ID].to_pylist() == memory.of(start, stop)[ROW_ID].to_pylist()
            assert part.equals(memory.of(start, stop))


def test_only_what_is_asked_for_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many marks of a shard a range reads its own, and a shard without any reads nothing."""
    rows = 10_000
    table = pa.table([first_row_id(3) + np.arange(rows), np.arange(rows)], schema=SCHEMA)
    file = written(tmp_path / "a.run", table, page_bytes=4096)
    read: list[int] = []
    plain = RunFile.read

    def counting(self: Any, segment: int, start: int, stop: int) -> Any:
        read.append(stop - start)
        return plain(self, segment, start, stop)

    monkeypatch.setattr(side_input, "WHOLE_BYTES", 1000)
    monkeypatch.setattr(RunFile, "read", counting)
    found = FileMarks((file,), ORDER)
    assert found.of(first_row_id(3) + 50, first_row_id(3) + 60).num_rows == 10
    assert sum(read) < 2_000
    read.clear()
    assert found.of(first_row_id(2), first_row_id(3)).num_rows == 0
    assert sum(read) < 1_000
    read.clear()
    for _ in range(3):
        assert found.of(first_row_id(3), first_row_id(4)).num_rows == rows
    assert sum(read) < 2 * rows


def test_damage_is_told(tmp_path: Path) -> None:
    """A mark that is not what was written is no mark."""
    file = written(tmp_path / "a.run", pa.table([[first_row_id(0)], [1]], schema=SCHEMA))
    path = tmp_path / "a.run"
    data, before = bytearray(path.read_bytes()), path.stat().st_mtime_ns
    data[10] ^= 4
    path.write_bytes(data)
    os.utime(path, ns=(before, before))
    with pytest.raises(DamagedRun, match="checksum"):
        FileMarks((file,), ORDER).of(0, 1)


def test_places_say_what_they_cannot_say() -> None:
    """Beyond 2**27 shards, and 2**36 rows of one, it stops and says so."""
    assert row_ids(BatchPosition("a", 2**36 - 1, 2**27 - 1), 1).tolist() == [2**63 - 1]
    for place in (BatchPosition("a", 2**36 - 1, 0), BatchPosition("a", 0, 2**27)):
        with pytest.raises(ConfigError, match=r"up to shard 134,217,728 and row 68,719,476,736"):
            row_ids(place, 2)
