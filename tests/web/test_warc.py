"""Records out of WARC files: each is told once, whole or broken, whatever is cut, broken or of a wrong length."""

from __future__ import annotations

import gzip
import io
import random
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from fastwarc.warc import ArchiveIterator, WarcRecordType
from hypothesis import given
from hypothesis import strategies as st

from curate.errors import StorageError
from curate.units import MIB
from curate.web.members import Block, Codec, blocks, codec_of
from curate.web.warc import Broken, Record, records
from scripts.benches.pages import archive, packed, record

CODECS: list[Codec | None] = [None, "gzip", "zstd"]
MOST = 100_000


def page(number: int, body: bytes = b"", **fields: str | int) -> bytes:
    return record("response", f"http://a.de/{number}", body or b"body %d " % number * 30, **fields)


def read(data: bytes, codec: Codec | None, most: int = MOST) -> list[Record | Broken]:
    found = records(blocks(io.BytesIO(data), codec), most, packed=codec is not None)
    return [one for _, one in found]


def told(data: bytes, codec: Codec | None, most: int = MOST) -> list[str]:
    """The number of each record, with ! for a broken one; a ! alone is what nothing is known of."""
    return [
        ("!" if isinstance(one, Broken) else "") + one.headers.get("warc-target-uri", "").removeprefix("http://a.de/")
        for one in read(data, codec, most)
    ]


PAGES = [page(number) for number in range(5)]


@pytest.mark.parametrize("codec", CODECS)
def test_whole_files_are_read_as_fastwarc_does(codec: Codec | None) -> None:
    data = archive(20, seed=1, codec=codec)
    theirs = [
        (one.headers.get("WARC-Target-URI"), one.reader.read())
        for one in ArchiveIterator(io.BytesIO(data), record_types=WarcRecordType.any_type, parse_http=False)
    ]
    ours = read(data, codec, 10_000_000)
    assert [(one.headers["warc-target-uri"], one.body) for one in ours if isinstance(one, Record)] == theirs
    assert len(ours) == len(theirs) == 61


@pytest.mark.parametrize("codec", CODECS)
def test_a_file_that_is_cut_anywhere_loses_the_record_at_its_end(codec: Codec | None) -> None:
    data = packed(PAGES, codec)
    ends = [len(packed(PAGES[:number], codec)) for number in range(6)]
    for cut in range(0, len(data), 7):
        whole = sum(end <= cut for end in ends) - 1
        found = told(data[:cut], codec)
        # Of a file in one piece the line ends behind a record may be missing.
        assert found[:whole] == [str(number) for number in range(whole)]
        assert len(found) <= whole + 1
        if cut > ends[whole] + (4 if codec is None else 0):
            assert len(found) == whole + 1
            assert cut + 4 >= ends[whole + 1] or found[whole].startswith("!")


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_member_that_is_broken_anywhere_costs_itself(codec: Codec) -> None:
    members = [packed([one], codec) for one in PAGES]
    for place in range(0, len(members[2]), 3):
        broken = bytearray(members[2])
        broken[place] ^= 0xFF
        found = told(b"".join([*members[:2], bytes(broken), *members[3:]]), codec)
        # Frames without a checksum may be taken for whole ones.
        assert [one for one in found if one in set("0134")] == ["0", "1", "3", "4"]
        assert len(found) == 5
        assert codec == "zstd" or found[2] == "2" or found[2].startswith("!")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("length", "most"),
    [
        (10, MOST),
        (180, MOST),
        (400, MOST),
        (5_000, MOST),
        (10**15, MOST),
        (5_000, 300),
        (-5, MOST),
        ("x", MOST),
        ("", MOST),
    ],
)
def test_a_wrong_length_costs_its_record(codec: Codec | None, length: Any, most: int) -> None:
    """Shorter, longer, longer than the file, longer than what is held, and none at all."""
    data = packed([*PAGES[:2], page(2, Content_Length=length), *PAGES[3:]], codec)
    assert told(data, codec, most) == ["0", "1", "!2", "3", "4"]


@pytest.mark.parametrize("packed_as_one", [False, True])
@pytest.mark.parametrize("mask", [0xFF, 0x01])
def test_a_byte_that_is_damaged_costs_its_record_and_every_record_is_told(mask: int, packed_as_one: bool) -> None:
    """Wherever it is: in a first line, at the end of a header, and between two records, which costs none."""
    data = b"".join(PAGES)
    whole = read(data, None)
    begin, end = len(b"".join(PAGES[:2])), len(b"".join(PAGES[:3]))
    for place in range(begin - 4, end):
        damaged = bytearray(data)
        damaged[place] ^= mask
        found = read(gzip.compress(damaged, 1), "gzip") if packed_as_one else read(bytes(damaged), None)
        assert len(found) == len(whole)
        assert [one for number, one in enumerate(found) if number != 2] == whole[:2] + whole[3:]
        assert found[2] == whole[2] or begin <= place < end - 4


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("large", [False, True])
def test_a_damaged_first_line_is_told_with_the_address_of_its_record(codec: Codec | None, large: bool) -> None:
    data = b"".join(PAGES)
    head = PAGES[2].index(b"WARC-Date")
    begin = data.index(PAGES[2])
    damaged = packed([data[:begin] + bytes(head) + data[begin + head :]], codec)
    assert told(damaged, codec, 100 if large else MOST) == ["0", "1", "!2", "3", "4"]


def changed(data: bytes, rng: random.Random) -> bytes:
    """A few bits changed, bytes put in, or the end cut off: in headers and checksums as often as between."""
    some = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        near = rng.choice([0, len(some) - 9, rng.randrange(len(some) - 9)]) + rng.randrange(9)
        match rng.randrange(4):
            case 0:
                return bytes(some[:near])
            case 1:
                some[near:near] = rng.randbytes(2)
            case _:
                some[near] ^= 1 << rng.randrange(8)
    return bytes(some)


def joined(found: Iterable[Block]) -> list[tuple[bytes, int, str | None, bool]]:
    """Blocks by members, whatever pieces these came in."""
    members: list[tuple[bytes, int, str | None, bool]] = []
    for one in found:
        if one.begins or one.lost is not None:
            members.append((one.data, one.place, one.lost, one.within))
        else:
            data, place, lost, within = members[-1]
            members[-1] = (data + one.data, place, lost, within)
    return members


def check_the_same_by_zlib_alone(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    found = joined(blocks(io.BytesIO(data), "gzip"))
    with monkeypatch.context() as patch:
        patch.setattr("curate.web.members._Packed._whole", lambda *_: None)
        assert found == joined(blocks(io.BytesIO(data), "gzip"))


@pytest.mark.parametrize("seed", range(5))
def test_members_that_are_broken_are_read_the_same_by_zlib_alone(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        ones = [gzip.compress(one, rng.choice([0, 1, 9])) for one in PAGES]
        ones[rng.randrange(5)] = changed(ones[1], rng)
        check_the_same_by_zlib_alone(b"".join(ones), monkeypatch)


def test_a_member_too_large_to_be_held_is_read_the_same_by_zlib_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    check_the_same_by_zlib_alone(gzip.compress(bytes(5 * MIB), 1) + gzip.compress(PAGES[0]), monkeypatch)


@pytest.mark.parametrize("codec", CODECS)
def test_a_record_that_is_too_large_is_told_without_its_body(codec: Codec | None) -> None:
    large = random.Random(1).randbytes(3_000_000)
    found = read(packed([PAGES[0], page(1, large), PAGES[2]], codec), codec)
    assert [isinstance(one, Record) and one.body is not None for one in found] == [True, False, True]
    assert [one.size for one in found if isinstance(one, Record)] == [210, 3_000_000, 210]


def test_a_file_packed_as_one_member_is_read() -> None:
    data = gzip.compress(b"".join(PAGES))
    assert told(data, "gzip") == ["0", "1", "2", "3", "4"]
    assert told(gzip.compress(b"".join(PAGES[:2])) + gzip.compress(b"".join(PAGES[2:])), "gzip") == list("01234")


def test_records_that_go_on_in_the_next_member_are_read() -> None:
    """As packers make them that work in blocks."""
    data = b"".join(PAGES)
    assert told(b"".join(gzip.compress(data[at : at + 100]) for at in range(0, len(data), 100)), "gzip") == list(
        "01234"
    )


def test_a_file_packed_as_one_member_that_is_broken_keeps_what_is_before() -> None:
    random_pages = [page(number, random.Random(number).randbytes(3_000)) for number in range(5)]
    data = bytearray(gzip.compress(b"".join(random_pages)))
    data[len(data) // 2] ^= 0xFF
    found = told(bytes(data), "gzip")
    assert found[:2] == ["0", "1"]
    assert sum(one.startswith("!") for one in found) == 1


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_what_lies_between_members_is_told(codec: Codec) -> None:
    members = [packed([one], codec) for one in PAGES]
    assert told(members[0] + b"garbage" * 10 + members[1], codec) == ["0", "!", "1"]
    assert told(b"garbage" + members[1], codec) == ["!", "1"]
    assert told(members[0] + b"garbage", codec) == ["0", "!"]


@pytest.mark.parametrize("codec", CODECS)
def test_a_byte_order_mark_costs_no_record(codec: Codec | None) -> None:
    """Before the first one, or where files were put one after the other."""
    mark = b"\xef\xbb\xbf"
    assert told(packed([mark + PAGES[0], PAGES[1]], codec), codec) == ["0", "1"]
    assert told(packed([PAGES[0], mark + PAGES[1], PAGES[2]], codec), codec) == ["0", "1", "2"]
    assert told(packed([mark], codec), codec) == []


def test_what_lies_between_records_is_told() -> None:
    # Of the one before nobody knows whether its length is right.
    assert told(PAGES[0] + b"garbage\r\n" + PAGES[1], None) == ["!0", "1"]
    assert told(b"garbage\r\n" + PAGES[1], None) == ["!", "1"]


@pytest.mark.parametrize("data", [b"", b"\r\n\r\n"])
def test_nothing_is_nothing(data: bytes) -> None:
    assert told(data, None) == told(gzip.compress(data), "gzip") == told(b"", "gzip") == []


@pytest.mark.parametrize(
    ("data", "codec"),
    [
        (b"no archive\n" * 9, None),
        (b"no archive\n" * 9, "gzip"),
        (gzip.compress(packed(PAGES), mtime=0), "gzip"),
        (packed(PAGES), None),
        (b"WARC/1.0\r\nWARC-Type: response" + b"x" * 5_000_000, None),
        (b"\0" * 1_000_000, "zstd"),
    ],
)
def test_what_is_no_archive_is_told_once(data: bytes, codec: Codec | None) -> None:
    assert [isinstance(one, Broken) for one in read(data, codec)] == [True]


def test_zstd_frames_without_data_are_skipped_and_a_dictionary_is_used() -> None:
    skipped = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"abcd"
    assert told(skipped + packed(PAGES, "zstd") + skipped, "zstd") == list("01234")


@pytest.mark.parametrize("size", [10, 100_000, 2**32 - 1])
def test_a_zstd_frame_without_data_that_ends_behind_the_file_hides_nothing(size: int) -> None:
    """Its length is wrong, or the file is cut off: that is told, and what is behind is looked for."""
    skipped = b"\x50\x2a\x4d\x18" + size.to_bytes(4, "little") + b"abcd"
    first, rest = packed(PAGES[:1], "zstd"), packed(PAGES[1:], "zstd")
    assert told(first + skipped, "zstd") == ["0", "!"]
    if size > len(rest):
        assert told(first + skipped + rest, "zstd") == ["0", "!", *"1234"]


@pytest.mark.parametrize("dictionary", [b"\x37\xa4\x30\xec" + b"q" * 36, b"\x28\xb5\x2f\xfdab", b"abcd", b""])
def test_a_broken_dictionary_costs_only_the_frames_that_need_it(dictionary: bytes) -> None:
    frame = b"\x5d\x2a\x4d\x18" + len(dictionary).to_bytes(4, "little") + dictionary
    assert told(frame + packed(PAGES, "zstd"), "zstd") == list("01234")


@pytest.mark.parametrize("codec", CODECS)
def test_what_the_store_raises_is_no_broken_record(codec: Codec | None) -> None:
    """Wherever it is raised, it goes on to whoever reads: the shard is tried again."""
    data = packed(PAGES, codec)

    class Failing(io.BytesIO):
        left = 0

        def read(self, size: int | None = -1, /) -> bytes:
            self.left -= 1
            if self.left < 0:
                raise StorageError("the disk failed")
            return super().read(size)

    for reads in count():
        file = Failing(data)
        file.left = reads
        try:
            found = list(records(blocks(file, codec), MOST, packed=codec is not None))
        except StorageError:
            continue
        assert len(found) == 5
        break
    assert reads > 1


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["whole", "flip", "cut", "junk"])), max_size=8), st.randoms()
)
def test_no_record_is_lost_or_doubled(parts: Sequence[tuple[int, str]], rng: random.Random) -> None:
    """Whole members are all read, in order, once, whatever lies between them."""
    data, whole = b"", []
    for number, kind in parts:
        member = bytearray(gzip.compress(PAGES[number], mtime=0))
        if kind == "whole":
            whole.append(str(number))
        elif kind == "flip":
            member[rng.randrange(30, len(member) - 10)] ^= 0xFF
        elif kind == "cut":
            # Of the eight bytes at the end, what comes next may be the same.
            del member[rng.randrange(1, len(member) - 8) :]
        else:
            member = bytearray(rng.choice([b"\0", b"junk", b"\x1f\x8b\x08", b"WARC/1.0\r\n\r\n"]) * 9)
        data += bytes(member)
    found = told(data, "gzip")
    kept = [one for one in found if not one.startswith("!")]
    assert kept == whole
    assert len(found) <= len(parts)


def test_a_member_that_is_cut_anywhere_is_told() -> None:
    """Also within its header; the one before it is read."""
    whole, cut = (gzip.compress(PAGES[number], mtime=0) for number in (0, 1))
    for size in range(1, len(cut)):
        kept, said = told(whole + cut[:size], "gzip")
        assert (kept, said[0]) == ("0", "!")


def test_names_say_how_files_are_packed() -> None:
    assert [codec_of(f"a.{one}") for one in ("warc", "warc.gz", "wet.gz", "warc.zst")] == [None, "gzip", "gzip", "zstd"]
    assert pa.Codec.is_available("zstd")


@pytest.mark.parametrize("end", ["\r\n", "\n"])
def test_a_line_of_a_header_ends_at_a_line_feed_alone(end: str) -> None:
    """And at no other character at which Python ends lines: an address may have it."""
    url = "http://a.de/\x0b\x0c\x1c\x85\u2028\u2029x"
    lines = ["WARC/1.0", f"WARC-Target-URI: {url}", "Content-Length: 1", "X: a", " b", "", "!"]
    [found] = read(end.join(lines).encode(), None)
    assert isinstance(found, Record)
    assert dict(found.headers) == {"warc-target-uri": url, "content-length": "1", "x": "a b"}


def test_the_last_line_of_a_header_has_no_blank_behind_it() -> None:
    data = b"WARC/1.0\r\nContent-Length: 0\r\nWARC-Target-URI: http://a.de/\r\n\r\n\r\n\r\n"
    [found] = read(data, None)
    assert found.headers["warc-target-uri"] == "http://a.de/"
