"""The stream over ranges, and which requests it makes; what is taken of an answer."""

from __future__ import annotations

import io
import os

import numpy as np
import pytest

from curate.errors import TransientStorageError
from curate.requests.ranges import FIRST_BYTES, LARGEST_BYTES, RANDOM_BYTES, TAIL_BYTES, exact_part, range_stream
from curate.requests.retry import Retry
from curate.stores.gcs import GCSStore
from curate.stores.s3.store import S3Store
from curate.testing.clock import FakeClock
from tests.support.emulator import Answer, Emulator
from tests.support.gcs_emulator import GcsEmulator
from tests.support.s3_emulator import S3Emulator

MIB = 1 << 20
CONTENT = np.arange(40 * MIB // 8).tobytes()  # no two places are alike, and it is made in no time


class Fetcher:
    """Serves ranges of the content and remembers them."""

    def __init__(self, content: bytes = CONTENT) -> None:
        self.content = content
        self.ranges: list[tuple[int, int]] = []

    def __call__(self, start: int, stop: int) -> bytes:
        assert 0 <= start < stop <= len(self.content)
        self.ranges.append((start, stop))
        return self.content[start:stop]

    @property
    def sizes(self) -> list[int]:
        return [stop - start for start, stop in self.ranges]


def test_opening_asks_for_nothing() -> None:
    """Nor do seeking, telling, or reading nothing."""
    fetch = Fetcher()
    stream = range_stream(fetch, len(CONTENT))
    stream.seek(0, os.SEEK_END)
    assert stream.tell() == len(CONTENT)
    assert stream.read() == stream.read(0) == b""
    assert fetch.ranges == []


def test_reading_in_sequence_doubles_the_requests() -> None:
    """1, 2, 4, 8, 8 … MiB, each byte once."""
    fetch = Fetcher()
    stream = range_stream(fetch, len(CONTENT))
    assert b"".join(iter(lambda: stream.read(10_000), b"")) == CONTENT
    assert fetch.sizes == [
        FIRST_BYTES,
        2 * MIB,
        4 * MIB,
        LARGEST_BYTES,
        LARGEST_BYTES,
        LARGEST_BYTES,
        LARGEST_BYTES,
        MIB,
    ]
    assert sum(fetch.sizes) == len(CONTENT)


def test_a_large_read_is_one_request() -> None:
    """A column chunk of 20 MiB somewhere inside does not come in pieces."""
    fetch = Fetcher()
    stream = range_stream(fetch, len(CONTENT))
    stream.seek(5_000_000)
    assert stream.read(20 * MIB) == CONTENT[5_000_000 : 5_000_000 + 20 * MIB]
    assert len(fetch.ranges) <= 2


def test_the_rest_is_one_request() -> None:
    """Reading all of what is left, after a little of it."""
    fetch = Fetcher()
    stream = range_stream(fetch, len(CONTENT))
    assert stream.read(10) + stream.read() == CONTENT
    assert fetch.ranges == [(0, FIRST_BYTES), (FIRST_BYTES, len(CONTENT))]


def test_the_end_of_a_parquet_file_is_one_request() -> None:
    """Eight bytes from the end, then the footer before them."""
    fetch = Fetcher()
    stream = range_stream(fetch, len(CONTENT))
    stream.seek(-8, os.SEEK_END)
    stream.read(8)
    stream.seek(-5000, os.SEEK_END)
    assert stream.read(4992) == CONTENT[-5000:-8]
    assert fetch.ranges == [(len(CONTENT) - TAIL_BYTES, len(CONTENT))]


def test_a_jump_asks_for_little() -> None:
    """And reading on from there grows again."""
    fetch = Fetcher()
    stream = range_stream(fetch, len(CONTENT))
    stream.seek(10 * MIB)
    for _ in range(20):
        stream.read(100_000)
    assert fetch.sizes == [RANDOM_BYTES, 2 * RANDOM_BYTES, 4 * RANDOM_BYTES, 8 * RANDOM_BYTES][: len(fetch.sizes)]
    assert fetch.ranges[0][0] == 10 * MIB


@pytest.mark.parametrize("size", [0, 1, 7, TAIL_BYTES, FIRST_BYTES, FIRST_BYTES + 1])
def test_small_objects_come_whole(size: int) -> None:
    """In one request, or none for no bytes."""
    fetch = Fetcher(CONTENT[:size])
    assert range_stream(fetch, size).read() == CONTENT[:size]
    assert len(fetch.ranges) == (1 if size else 0)


def test_impossible_seeks_are_refused() -> None:
    """As files do."""
    stream = range_stream(Fetcher(), len(CONTENT))
    with pytest.raises(ValueError, match="before the beginning"):
        stream.seek(-1)
    with pytest.raises(io.UnsupportedOperation):
        stream.write(b"x")


def test_only_an_object_of_the_size_that_is_known_has_a_part_that_is_taken() -> None:
    """All ranges of all small objects, answered whole (200) or in part (206), by objects of any size: those that have
    another one are no answer, be it longer, of which as many bytes could be cut out."""
    taken = 0
    for size, other, start, stop in np.ndindex(5, 5, 5, 5):
        if not start < stop <= size:
            continue
        stored = bytes(range(other))
        part = f"bytes {start}-{min(stop, other) - 1}/{other}" if start < other else None
        for status, body, told in ((200, stored, None), (206, stored[start:stop], part)):
            try:
                found = exact_part(status, body, told, start, stop, size, TransientStorageError)
            except TransientStorageError:
                assert other != size
            else:
                taken += 1
                assert (other, found) == (size, bytes(range(start, stop)))
    assert taken == 2 * sum(size * (size + 1) // 2 for size in range(5))


@pytest.mark.parametrize("emulator", [GcsEmulator, S3Emulator])
@pytest.mark.parametrize(("start", "stop"), [(0, None), (0, 8), (3, 9)])
def test_what_a_proxy_makes_longer_is_no_object(
    emulator: type[Emulator], start: int, stop: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ignores ranges and rewrites what it sends, with status and ETag as they were: rows at the end were lost."""
    with emulator() as service:
        uri, content = f"{service.SCHEME}://bucket/a", b"{'n': 1}\n" * 3
        service.put(uri, content)
        service.here(monkeypatch)
        store = (S3Store if emulator is S3Emulator else GCSStore)(Retry(clock=FakeClock()))
        seen, effect = store.stat(uri), service._effect

        def rewritten(asked: object) -> Answer:
            answer = effect(asked)  # type: ignore[arg-type]
            kept = {name: told for name, told in answer.headers.items() if name == "ETag"}
            return Answer(200, content.replace(b":", b" :"), kept)

        with store.open(seen) as stream:
            stream.seek(start)
            assert stream.read() == content[start:]
        monkeypatch.setattr(service, "_effect", rewritten)
        with store.open(seen) as stream:
            stream.seek(start)
            with pytest.raises(TransientStorageError, match=r"of 30 arrived.* of 27; .*proxy"):
                stream.read(-1 if stop is None else stop - start)
