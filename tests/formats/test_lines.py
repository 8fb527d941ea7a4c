from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.errors import CorruptInput
from curate.objects import lines as module
from curate.objects.lines import line_blocks
from tests.formats.conftest import FakeStore


def lines_of(data: bytes, start: int = 0, stop: int | None = None) -> list[bytes]:
    store = FakeStore()
    object = store.put("a.txt", data)
    return [line for block in line_blocks(store, object, None, start, stop) for line in block if line]


CONTENT = st.lists(st.sampled_from([b"\n", b"a", b"bc", b"\r\n", b"defgh" * 3]), max_size=30).map(b"".join)


@given(CONTENT, st.lists(st.integers(0, 200), max_size=6), st.integers(1, 9), st.integers(1, 9))
def test_slices_partition_the_lines(data: bytes, cuts: list[int], block: int, beyond: int) -> None:
    """The lines of neighbouring slices, one after the other, are the lines of the whole, at any cut and block size."""
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_BYTES", block)
        patch.setattr(module, "_BEYOND_BYTES", beyond)
        parts = [lines_of(data, a, b) for a, b in itertools.pairwise(edges)]
        whole = lines_of(data)
    assert whole == [line for line in data.split(b"\n") if line]
    assert [line for part in parts for line in part] == whole


@given(CONTENT, st.integers(0, 100), st.integers(0, 100), st.integers(1, 9))
def test_a_slice_owns_the_lines_that_begin_in_it(data: bytes, start: int, stop: int, block: int) -> None:
    expected, at = [], 0
    for line in data.split(b"\n"):
        if start <= at < stop and line:
            expected.append(line)
        at += len(line) + 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_BYTES", block)
        assert lines_of(data, start, stop) == expected


def test_a_slice_reads_little_beyond_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice costs its bytes and the rest of its last line, not a block more."""
    monkeypatch.setattr(module, "_BEYOND_BYTES", 8)
    store = FakeStore()
    object = store.put("a.txt", b"0123456789\n" * 1000)
    streams: list[Any] = []
    plain_open = store.open
    monkeypatch.setattr(store, "open", lambda o: streams.append(plain_open(o)) or streams[-1])
    tell: list[int] = []
    for _ in line_blocks(store, object, None, 110, 220):
        tell.append(streams[0].tell())
    assert tell == [220]


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    assert lines_of(b"\xef\xbb\xbfa\nb") == [b"a", b"b"]


def test_an_object_shorter_than_listed_is_corrupt() -> None:
    store = FakeStore()
    object = store.put("a.txt", b"abc\n" * 10)
    store.put("a.txt", b"abc\n" * 9)
    with pytest.raises(CorruptInput, match=r"a\.txt: ends 4 bytes before its listed size"):
        list(line_blocks(store, object, None))


def test_a_line_without_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", 100)
    monkeypatch.setattr(module, "LARGEST_LINE_BYTES", 1000)
    assert len(lines_of(b"x" * 950)) == 1
    with pytest.raises(CorruptInput, match=r"a\.txt: a line of more than 0 MiB"):
        lines_of(b"x" * 5000)
