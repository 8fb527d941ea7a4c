from __future__ import annotations

import gzip

import pyarrow as pa
import pytest

from curate.errors import ConfigError
from curate.formats.encoding import detect
from curate.formats.file_slice import FileSlice
from curate.formats.read.text import TEXT_SCHEMA
from curate.formats.rows import sample_schema
from curate.tasks.shard import SliceKind
from tests.support.fake_store import FakeStore
from tests.support.reading import read_all


def test_a_line_is_a_row_with_its_number(store: FakeStore) -> None:
    """Blank lines are no rows but count as lines; a line that is not UTF-8 is a bad row."""
    object = store.put("a.txt.gz", gzip.compress(b"one\r\n\n  \n\xff\r\n  f\xc3\xbcnf"))
    rows, bad = read_all(store, object, TEXT_SCHEMA)
    assert rows == [{"line": 1, "text": "one"}, {"line": 5, "text": "  fünf"}]
    assert [(row.line, row.reason, row.raw) for row in bad] == [(4, "invalid UTF-8", b"\xff")]


def test_a_slice_numbers_its_own_lines(store: FakeStore) -> None:
    object = store.put("a.txt", b"one\ntwo\nthree\n")
    rows, _ = read_all(store, object, TEXT_SCHEMA, SliceKind.BYTES, 2, 14)
    assert rows == [{"line": 1, "text": "two"}, {"line": 2, "text": "three"}]


def test_the_schema_is_fixed(store: FakeStore) -> None:
    file = FileSlice(store, store.put("a.txt", b""), detect("a.txt"))
    assert sample_schema(file) == TEXT_SCHEMA
    assert sample_schema(file, {"text": None}) == pa.schema([("text", pa.string())])
    with pytest.raises(ConfigError, match=r"no column 'txt' in a\.txt; did you mean 'text'\?; it has 'line', 'text'"):
        sample_schema(file, {"txt": None})
    with pytest.raises(ConfigError, match=r"column 'line' of a text file is int64, found string declared"):
        sample_schema(file, {"line": pa.string()})
