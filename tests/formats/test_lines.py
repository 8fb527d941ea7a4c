from __future__ import annotations

import io
import itertools
import tarfile
import zipfile
from codecs import BOM_UTF8
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.errors import CorruptInput
from curate.formats.encoding import Format, ReadAs, detect
from curate.formats.file_slice import FileSlice
from curate.formats.read.text import LINES_SCHEMA
from curate.formats.rows import read
from curate.objects import lines as module
from curate.objects.bad_line import RejectedRow
from curate.objects.lines import line_blocks
from curate.objects.stream import Codec
from curate.sources.split import split_bytes
from curate.tasks.shard import SliceKind
from tests.support.fake_store import FakeStore
from tests.support.packing import PACK, SUFFIX


def lines_of(data: bytes, start: int = 0, stop: int | None = None) -> list[bytes]:
    store = FakeStore()
    object = store.put("a.txt", data)
    return [line for block in line_blocks(store, object, None, start, stop) for line in block if line]


CONTENT = st.lists(st.sampled_from([b"\n", b"a", b"bc", b"\r\n", b"defgh" * 3]), max_size=30).map(b"".join)
LINES = {
    "a.jsonl": [b'{"a":1}', b"", b'{"a":2', b'{"a":"x"}', '{"b":"\u2028"}'.encode(), b"\xff", b'{"a":3}'],
    "a.txt": [b"", b"one", "\u2028 \ufeff".encode(), b" ", b"a\x00b", b"\xff", b"two"],
}
READ_AS = [
    ("a.jsonl", None),
    ("a.txt", None),
    *(
        ("a.txt", ReadAs(Format.TEXT, text_encoding=encoding, drop_empty_lines=drop))
        for encoding, drop in itertools.product(["utf-8", "utf-8-sig", "latin-1", "ascii"], [True, False])
    ),
]


@given(CONTENT, st.lists(st.integers(0, 200), max_size=6), st.integers(1, 9), st.integers(1, 9))
def test_slices_partition_the_lines(data: bytes, cuts: list[int], block: int, beyond: int) -> None:
    """The lines of neighbouring slices, one after the other, are the lines of the whole, at any cut and block size."""
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_BYTES", block)
        patch.setattr(module, "_BEYOND_BYTES", beyond)
        patch.setattr(module, "HEAD_BYTES", 4)
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
        patch.setattr(module, "HEAD_BYTES", 4)
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


@pytest.mark.parametrize("mark", [b"", BOM_UTF8], ids=["plain", "mark"])
@pytest.mark.parametrize(("name", "how"), [one for one in READ_AS if detect(*one).splittable])
def test_the_rows_of_all_slices_are_those_of_the_file(name: str, how: ReadAs | None, mark: bytes) -> None:
    """However it is cut, from one byte a slice up, with and without a byte order mark, whatever ends its lines: the
    same rows, the same bad rows once, as many blank lines."""
    encoding = detect(name, how)
    schema = pa.schema([("a", pa.int64())]) if how is None and name == "a.jsonl" else LINES_SCHEMA

    def taken(data: bytes, *slice: Any) -> tuple[list[Any], list[Any], int]:
        store, bad, blank = FakeStore(), list[RejectedRow](), list[int]()
        told = bad.append, blank.append
        tables = list(read(FileSlice(store, store.put(name, data), encoding, *slice), schema, 1000, *told))
        rows = [row for table in tables for row in table.to_pylist()]
        return rows, [(one.reason, one.raw) for one in bad], len(blank)

    for count, end, ends in itertools.product([1, 2, 7], [b"\n", b"\r\n"], [True, False]):
        data = mark + end.join(LINES[name][:count]) + (end if ends else b"")
        whole = taken(data)
        for size in range(1, len(data)):
            parts = [taken(data, SliceKind.BYTES, *edges) for edges in split_bytes(len(data), size)]
            rows, bad, blank = zip(*parts, strict=True)
            assert ([*itertools.chain(*rows)], [*itertools.chain(*bad)], sum(blank)) == whole, (data, size)


def test_text_in_another_encoding_is_refused_however_it_is_cut() -> None:
    store = FakeStore()
    object = store.put("a.txt", "one\ntwo".encode("utf-16-le"))
    for stop in (1, 2, 3, 14):
        with pytest.raises(CorruptInput, match=r"a\.txt: is text in UTF-16LE, expected UTF-8"):
            list(line_blocks(store, object, None, 0, stop))


@pytest.mark.parametrize("codec", PACK)
def test_what_is_compressed_under_another_name_is_refused_however_it_is_cut(codec: Codec) -> None:
    """Each line would be a bad row of bytes that are no text."""
    store = FakeStore()
    object = store.put("a.txt", PACK[codec](b"one line\n" * 100))
    for stop in (1, 2, 3, object.size):
        with pytest.raises(CorruptInput, match=rf"^a.txt: begins as \w+ does, .* NAME{SUFFIX[codec]}$"):
            list(line_blocks(store, object, None, 0, stop))


def _of_another_format(what: str) -> bytes:
    sink = io.BytesIO()
    table = pa.table({"text": ["one", "two"]})
    match what:
        case "Parquet":
            pq.write_table(table, sink)
        case "Parquet of no rows":
            pq.write_table(table[:0], sink)
        case "Arrow IPC":
            pa.ipc.new_file(sink, table.schema).close()
        case "a zip archive":
            with zipfile.ZipFile(sink, "w") as archive:
                archive.writestr("a.txt", "one\n")
        case "a tar archive":
            with tarfile.open(fileobj=sink, mode="w") as archive:
                archive.addfile(tarfile.TarInfo("a.txt"))
        case _:
            sink.write(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n")
    return sink.getvalue()


@pytest.mark.quick
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv"])
@pytest.mark.parametrize(
    "what", ["Parquet", "Parquet of no rows", "Arrow IPC", "a zip archive", "a tar archive", "Git LFS"]
)
def test_what_is_of_another_format_is_refused_whatever_its_name_says(what: str, name: str) -> None:
    """Lines of it would be bad rows, of which some are allowed, or wrong ones; a pointer of Git LFS is text, even."""
    store = FakeStore()
    object = store.put(name, _of_another_format(what))
    schema = pa.schema([("text", pa.string())])
    with pytest.raises(CorruptInput, match=rf"^{name}: .*{what.removesuffix(' of no rows')}.*, expected text; "):
        list(read(FileSlice(store, object, detect(name)), schema, 1000, [].append, [].append))


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
    with pytest.raises(CorruptInput, match=r"a\.txt: a line of more than 0 MiB, which begins at byte 105; split it"):
        lines_of(b"x" * 101 + b"\na\n\n" + b"x" * 5000)
