from __future__ import annotations

import json

import pyarrow as pa
import pytest

from curate.objects.bad_line import RejectedRow
from curate.objects.quarantine import QuarantineWriter

ROWS = [
    RejectedRow(1, "invalid UTF-8", b"\xff"),
    RejectedRow(7, "not an object", b"null"),
    RejectedRow(8, "not an object", "é"),
]


def finished(rows: list[RejectedRow]) -> tuple[str, bytes]:
    writer = QuarantineWriter()
    for row in rows:
        writer.add(row)
    return writer.finish()


def test_every_row_is_kept_with_its_line_and_reason() -> None:
    name, data = finished(ROWS)
    assert len(name) == 16
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        lines = [json.loads(line) for line in stream.read().splitlines()]
    assert lines == [
        {"line": 1, "reason": "invalid UTF-8", "row_base64": "/w=="},
        {"line": 7, "reason": "not an object", "row": "null"},
        {"line": 8, "reason": "not an object", "row": "é"},
    ]


def test_rows_are_counted_by_reason() -> None:
    writer = QuarantineWriter()
    assert (writer.count, dict(writer.reasons)) == (0, {})
    for row in ROWS:
        writer.add(row)
    assert (writer.count, dict(writer.reasons)) == (3, {"invalid UTF-8": 1, "not an object": 2})


def test_the_name_is_the_hash_of_the_content() -> None:
    assert finished(ROWS) == finished(ROWS)
    assert finished(ROWS)[0] != finished(ROWS[:2])[0]


def test_many_rows_are_the_same_bytes_again() -> None:
    rows = [RejectedRow(number, "not an object", str(number) * 2000) for number in range(5000)]
    name, data = finished(rows)
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        assert len(stream.read().splitlines()) == 5000
    assert finished(rows) == (name, data)


def test_nothing_added_is_nothing_to_publish() -> None:
    with pytest.raises(ValueError, match="no bad row was added"):
        QuarantineWriter().finish()
