"""The bytes of stored objects, unpacked: what is whole comes out as it was, and what is not says of which object."""

import functools
import io
import random
import sys
import zlib
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.errors import ConfigError, CorruptInput, TransientStorageError
from curate.objects.stream import BLOCK_BYTES, Codec, DecompressedStream
from curate.storage.protocol import Object
from tests.support.fake_store import FakeStore
from tests.support.packing import PACK

LARGE = random.Random(0).randbytes(6 * BLOCK_BYTES + 17)
"""Bytes that do not pack: as many stored as unpacked, so that a thread unpacks ahead."""


@functools.cache
def packed_times(codec: Codec, times: int = 1) -> bytes:
    """Returns `LARGE` so many times, packed: what takes longest here."""
    return PACK[codec](LARGE * times)


def stored(data: bytes) -> tuple[FakeStore, Object]:
    store = FakeStore()
    return store, store.put("a", data)


def read(data: bytes, codec: Codec | None, size: int = BLOCK_BYTES) -> bytes:
    with DecompressedStream(*stored(data), codec) as source:
        return b"".join(iter(lambda: source.read(size), b""))


def member(data: bytes, flags: int) -> bytes:
    """A gzip member with any of the fields that its header may have (RFC 1952, 2.3)."""
    header = b"\x1f\x8b\x08" + bytes([flags]) + bytes(4) + b"\x00\xff"
    header += b"\x05\x00extra" if flags & 4 else b""
    header += b"name\x00" if flags & 8 else b""
    header += b"a comment\x00" if flags & 16 else b""
    header += (zlib.crc32(header) & 0xFFFF).to_bytes(2, "little") if flags & 2 else b""
    packed = zlib.compressobj(wbits=-15)
    body = packed.compress(data) + packed.flush()
    return header + body + zlib.crc32(data).to_bytes(4, "little") + len(data).to_bytes(4, "little")


@pytest.mark.parametrize("codec", [None, *PACK])
@pytest.mark.parametrize("data", [b"", b"x", LARGE], ids=["nothing", "a byte", "large"])
@pytest.mark.parametrize("size", [1 << 10, BLOCK_BYTES, 1 << 30])
def test_what_was_packed_comes_out(codec: Codec | None, data: bytes, size: int) -> None:
    packed = data if codec is None else packed_times(codec) if data is LARGE else PACK[codec](data)
    assert read(packed, codec, size) == data


@pytest.mark.parametrize("codec", PACK)
def test_as_much_is_read_as_was_asked_for(codec: Codec) -> None:
    """But at the end: who parses rows that are longer than a block asks for more of them at a time."""
    with DecompressedStream(*stored(packed_times(codec)), codec) as source:
        sizes = [1, 3 * BLOCK_BYTES + 1, BLOCK_BYTES, 7, 8 * BLOCK_BYTES]
        found = [source.read(size) for size in sizes]
        assert list(map(len, found)) == [*sizes[:-1], len(LARGE) - sum(sizes[:-1])]
        assert b"".join(found) == LARGE
        source.unread(b"back")
        assert source.read(9) == b"back"


@given(st.lists(st.tuples(st.binary(max_size=300), st.integers(0, 31)), min_size=1, max_size=5), st.integers(0, 20))
def test_members_of_any_header_are_one_stream(parts: list[tuple[bytes, int]], zeros: int) -> None:
    """Also with zeros behind it, which tapes and some tools add."""
    data = b"".join(member(data, flags) for data, flags in parts) + bytes(zeros)
    assert read(data, "gzip") == b"".join(data for data, _ in parts)


@pytest.mark.parametrize("codec", PACK)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=4), st.integers(0, 3))
def test_streams_behind_each_other_are_one(codec: Codec, parts: list[bytes], words: int) -> None:
    """As who packs in parallel writes them, also of nothing. Behind those of xz there may be zeros, four at a time."""
    padding = bytes(4 * words) if codec == "xz" else b""
    assert read(b"".join(PACK[codec](data) + padding for data in parts), codec) == b"".join(parts)


@pytest.mark.parametrize("codec", PACK)
@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(min_size=1, max_size=8))
def test_nothing_behind_a_stream_is_left_out(codec: Codec, first: bytes, second: bytes, other: bytes) -> None:
    """Whatever is there is data or refused: another stream that is cut off wherever, or something else."""
    one, two = PACK[codec](first), PACK[codec](second)
    for end in range(1, len(two)):
        with pytest.raises(CorruptInput, match=f"^a: not a whole {codec} stream .truncated, or followed by"):
            read(one + two[:end], codec)
    if other.strip(b"\0"):
        with pytest.raises(CorruptInput, match=f"^a: not a whole {codec} stream"):
            read(one + other, codec)


@pytest.mark.parametrize("codec", ["gzip", "bz2", "xz"])
@given(st.binary(min_size=40, max_size=400), st.data())
def test_what_is_changed_or_cut_is_refused_or_the_same(codec: Codec, data: bytes, draw: st.DataObject) -> None:
    """A byte of the header may say nothing about the data; every other one is covered by a checksum."""
    packed = bytearray(PACK[codec](data))
    at = draw.draw(st.integers(0, len(packed) - 1))
    if draw.draw(st.booleans()):
        del packed[at:]
    else:
        packed[at] ^= draw.draw(st.integers(1, 255))
    try:
        found = read(bytes(packed), codec)
    except CorruptInput:
        return
    assert found == data or not packed


@pytest.mark.slow
@pytest.mark.parametrize("codec", PACK)
def test_it_is_unpacked_a_few_blocks_ahead(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread unpacks what is read next, and no more than that: memory is a matter of blocks, not of the object."""
    store, object = stored(packed_times(codec, 3))
    taken: list[int] = []
    opened = store.open

    class Counted(io.BufferedReader):
        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size)
            taken.append(len(data))
            return data

    monkeypatch.setattr(store, "open", lambda one: Counted(cast(io.BytesIO, opened(one))))
    with DecompressedStream(store, object, codec) as source:
        assert source.read(BLOCK_BYTES) == LARGE[:BLOCK_BYTES]
    assert BLOCK_BYTES <= sum(taken) <= 6 * BLOCK_BYTES


@pytest.mark.parametrize("codec", PACK)
def test_an_error_of_the_store_is_the_stores(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    """A way that breaks is no damaged object: reading again may help."""
    store, object = stored(packed_times(codec))
    opened = store.open

    class Broken(io.BufferedReader):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 3 * BLOCK_BYTES:
                raise TransientStorageError("reset by peer")
            return super().read(size)

    monkeypatch.setattr(store, "open", lambda one: Broken(cast(io.BytesIO, opened(one))))
    with DecompressedStream(store, object, codec) as source, pytest.raises(TransientStorageError, match="reset"):
        b"".join(iter(lambda: source.read(BLOCK_BYTES), b""))


@pytest.mark.parametrize(("codec", "module"), [("bz2", "bz2"), ("xz", "lzma")])
def test_a_python_that_cannot_unpack_says_what_to_do(
    codec: Codec, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be built without: that says nothing against the file."""
    packed = PACK[codec](b"x")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"^cannot read a: this Python cannot unpack {codec} .*; unpack the file"):
        read(packed, codec)
