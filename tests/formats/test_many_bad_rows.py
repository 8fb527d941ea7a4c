"""Of bad rows that follow each other, few are held: each is told soon after it was read, and so is a budget over it."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest

from curate.errors import TooManyBadRows
from curate.formats.encoding import detect
from curate.formats.file_slice import FileSlice
from curate.formats.read import csv, gathered
from curate.formats.rows import read, sample_schema
from curate.objects import stream
from curate.objects.bad_line import RejectedRow
from curate.objects.stream import DecompressedStream
from curate.objects.tf_example import example_class, frame
from curate.pipeline.shard_books import BadRowBudget, ShardBooks
from tests.support.fake_store import FakeStore

GOOD, BAD = 1200, 8000
BLOCK_BYTES = 1 << 10


def csv_file() -> bytes:
    return b"a,b\n" + b"1,x\n" * GOOD + b"1,yyyyyyyyyyyyyyyyyyyyyyyyy,3\n" * BAD + b"1,x\n" + b"z,z\n2,2,2\n" * 2


def example(*values: bytes) -> bytes:
    made = example_class()()
    made.features.feature["a"].bytes_list.value.extend(values)
    return frame(made.SerializeToString())


def tfrecords() -> bytes:
    return example(b"x") * GOOD + example(b"y", b"z") * BAD + example(b"x") + example(b"y", b"z") * 4


def archive() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(mode="w", fileobj=packed) as tar:
        for number in range(GOOD + BAD + 5):
            info = tarfile.TarInfo(f"{number}.txt")
            info.size = 1
            tar.addfile(info, io.BytesIO(b"x" if number < GOOD or number == GOOD + BAD else b"\xff"))
    return packed.getvalue()


FILES = {"a.csv": csv_file, "a.tfrecords": tfrecords, "a.tar": archive}


class Reading:
    """Reads a file in small blocks, and knows how far it was read."""

    def __init__(self, name: str, patch: pytest.MonkeyPatch) -> None:
        self.data = FILES[name]()
        self.store: Any = FakeStore()
        self.file = FileSlice(self.store, self.store.put(name, self.data), detect(name))
        self._read_bytes: dict[DecompressedStream, int] = {}
        as_it_is = DecompressedStream.read

        def counted(source: DecompressedStream, size: int) -> bytes:
            data = as_it_is(source, size)
            self._read_bytes[source] = self._read_bytes.get(source, 0) + len(data)
            return data

        patch.setattr(DecompressedStream, "read", counted)
        for module in (csv, gathered, stream):
            patch.setattr(module, "BLOCK_BYTES", BLOCK_BYTES)
        patch.setattr(gathered, "_BLOCK_ROWS", 500)
        self.schema = sample_schema(self.file)
        self._read_bytes.clear()

    @property
    def share(self) -> float:
        """How much of the file was read by whoever read most of it: CSV is opened once more for its header."""
        return max(self._read_bytes.values()) / len(self.data)

    def rows(self, on_bad_row: Any) -> int:
        tables = read(self.file, self.schema, 100, on_bad_row)
        return sum(table.num_rows for table in tables)


@pytest.mark.quick
@pytest.mark.parametrize("name", FILES)
def test_they_are_told_in_order_while_the_file_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(name, monkeypatch)
    told: list[tuple[int, float]] = []
    assert reading.rows(lambda row: told.append((row.line, reading.share))) == GOOD + 1
    lines = [line for line, _ in told]
    assert lines == [*range(GOOD + 1, GOOD + BAD + 1), *range(GOOD + BAD + 2, GOOD + BAD + 6)]
    # Those of the middle were told before the last ones were read.
    assert next(share for line, share in told if line > GOOD + BAD // 2) < 0.9


@pytest.mark.quick
@pytest.mark.parametrize("name", FILES)
def test_a_budget_stops_the_reading(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, books = Reading(name, monkeypatch), ShardBooks(BadRowBudget("20"))
    given: list[RejectedRow] = []

    def bad_row(row: RejectedRow) -> None:
        given.append(row)
        books.bad_row(row)

    with pytest.raises(TooManyBadRows, match="21 bad rows before its end"):
        reading.rows(bad_row)
    assert [row.line for row in given] == list(range(GOOD + 1, GOOD + 22))
    assert reading.share < 0.5
