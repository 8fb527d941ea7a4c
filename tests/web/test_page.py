"""Pages: charsets that are wrong, and answers that are chunked, packed, or only said to be."""

from __future__ import annotations

import gzip
import random
import time
import zlib
from contextlib import suppress
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from resiliparse.extract.html2text import extract_plain_text
from trafilatura import extract
from trafilatura.deduplication import LRU_TEST

from curate.errors import BadRow
from curate.units import MIB
from curate.web import http
from curate.web.fields import fields
from curate.web.page import OPTIONS, Extractor, Page, decoded, is_html
from scripts.benches.pages import made_pages

# Test ids have these bytes: no time in them.
pack = partial(gzip.compress, mtime=0)
MOST = 1_000_000
BROTLI = bytes([0x8B, 0x01, 0x80, *b"page", 0x03])
"""The page "page", as a brotli stream of one literal block."""


@pytest.mark.parametrize(
    ("data", "declared", "charset", "text"),
    [
        ("é", None, "utf-8", "é"),
        ("é", "iso-8859-1", "utf-8", "é"),
        ("é", "no-such-charset", "utf-8", "é"),
        ("é", "rot13", "utf-8", "é"),
        (b"\xef\xbb\xbf\xc3\xa9", "windows-1252", "utf-8", "é"),
        ("é".encode("utf-16"), "utf-8", "utf-16", "é"),
        (b"caf\xe9 \x93so\x94", "iso-8859-1", "cp1252", "café “so”"),
        ("日本語".encode("shift_jis"), "Shift_JIS", "shift_jis", "日本語"),
        ("日本語".encode("iso-2022-jp"), "iso-2022-jp", "iso2022_jp", "日本語"),
        (b"<meta charset=windows-1251>" + "привет".encode("cp1251"), "utf-8", "cp1251", None),
        (b"", None, "utf-8", ""),
    ],
)
def test_charsets(data: str | bytes, declared: str | None, charset: str, text: str | None) -> None:
    """UTF-8 goes before what is said; what is said before what a page says."""
    found = decoded(data.encode() if isinstance(data, str) else data, declared)
    assert found[0] == charset
    assert found[1] == text if text is not None else "привет" in found[1]


@pytest.mark.parametrize(
    ("text", "codec", "declared", "charset"),
    [
        ("你好，世界。" * 9, "gbk", "gb2312", "gbk"),
        ("これは日本語です。" * 9, "cp932", "shift_jis", "shift_jis"),
        ("これは日本語です。" * 9, "euc_jp", "euc-jp", "euc_jp"),
        ("안녕하세요. " * 9, "euc_kr", "euc-kr", "euc_kr"),
        ("Über die Größe der Häuser. " * 9, "cp1252", "iso-8859-1", "cp1252"),
        ("Über die Größe der Häuser. " * 9, "cp1252", None, "cp1252"),
        ("Über die Größe der Häuser. " * 9, "utf-8", "utf-8", "utf-8"),
        ("你好，世界。" * 9, "utf-8", "gbk", "utf-8"),
    ],
)
@pytest.mark.parametrize("wrong", [b"\x81", b"\xff </p>"])
def test_a_page_with_a_byte_of_no_charset_loses_that_byte_alone(
    text: str, codec: str, declared: str | None, charset: str, wrong: bytes
) -> None:
    found = decoded(f"<p>{text}".encode(codec) + wrong, declared)
    assert found[0] == charset
    assert found[1].startswith(f"<p>{text}")


@pytest.mark.parametrize(
    ("text", "codec", "declared"),
    [
        ("①②髙日本語", "cp932", "shift_jis"),
        ("똠방각하", "cp949", "euc-kr"),
        ("ราคา “ทดสอบ”", "cp874", "tis-620"),
        ("Привет, мир", "mac_cyrillic", "x-mac-cyrillic"),
        ("Привіт, їжак", "mac_cyrillic", " X-Mac-Ukrainian"),
        ("<p>plain</p>", "utf-16-le", "utf-16"),
        ("<p>plain</p>", "utf-16-be", "utf-16be"),
    ],
)
def test_a_charset_is_what_browsers_read_as_it(text: str, codec: str, declared: str) -> None:
    assert decoded(text.encode(codec), declared)[1] == text


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize(
    "page",
    [
        "<p>plain</p>",
        "plain text",
        "<html><p>" + "日本語の文章。㰼㰼" * 20 + "</p></html>",
        "<p>Привет</p>",
        "Привет, мир",
    ],
)
def test_a_page_is_in_utf_16_where_its_tags_are(codec: str, page: str) -> None:
    assert decoded(page.encode(codec), codec) == (codec, page)
    assert decoded(("\ufeff" + page).encode(codec), None) == ("utf-16", page)


@pytest.mark.parametrize("place", [0, 4, 5, 12, 13, 40])
def test_a_zero_does_not_make_an_ascii_page_utf_16(place: int) -> None:
    """Whatever is said; of a page in another charset neither."""
    page = "<html><meta charset=utf-16><p>Some words of a page</p></html>"
    wrong = page[:place] + "\0" + page[place:]
    assert decoded(wrong.encode(), "utf-16") == decoded(wrong.encode(), None) == ("utf-8", wrong)
    assert decoded(f"{wrong}<p>Größe</p>".encode("cp1252"), "utf-16be")[1] == f"{wrong}<p>Größe</p>"


def test_no_page_is_in_utf_16_without_zeros() -> None:
    """Some editors wrote `charset=unicode` into all pages."""
    page = "<meta charset=unicode><p>Schöne Häuser und Mädchen. "
    for more in ("", " "):
        assert decoded((page + more).encode("cp1252"), "utf-16") == ("cp1252", page + more)


@given(st.binary(max_size=200), st.one_of(st.none(), st.sampled_from(["utf-8", "gbk", "utf-16", "x", "koi8-r"])))
def test_any_bytes_have_a_text(data: bytes, declared: str | None) -> None:
    decoded(data, declared)[1].encode("utf-8")


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, "zstd", asbytes=True))


def deflated(data: bytes, bits: int) -> bytes:
    packer = zlib.compressobj(wbits=bits)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("payload", "encoding", "transfer"),
    [
        (b"page", "", ""),
        (b"page", "gzip", "chunked"),
        (pack(b"page"), "gzip", ""),
        (pack(b"page"), "", ""),
        (pack(pack(b"page")), "gzip", ""),
        (pack(pack(b"page")), "gzip, gzip", ""),
        (pack(b"pa") + pack(b"ge"), "gzip", ""),
        (deflated(b"page", 15), "deflate", ""),
        (deflated(b"page", -15), "deflate", ""),
        (deflated(pack(b"page"), 15), "gzip, deflate", ""),
        (b"2\r\npa\r\n2;x=y\r\nge\r\n0\r\n\r\n", "", "chunked"),
        (b"2\r\npa\r\n9\r\nge", "", "Chunked"),
        (b"2\npa\n2;x=y\nge\n0\n\n", "", "chunked"),
        (b"2\npa\n9\nge", "", "chunked"),
        (deflated(pack(b"page"), -15), "gzip, deflate", ""),
        (pack(deflated(b"page", 15)), "deflate, gzip", ""),
        (pack(deflated(b"page", -15)), "deflate, x-gzip", ""),
        (zstd(deflated(b"page", 15)), "deflate, zstd", ""),
        (pack(BROTLI), "br, gzip", ""),
        (BROTLI, "br", ""),
        (b"page", "br", ""),
        (b"page", "zstd", ""),
        (zstd(b"page"), "zstd", ""),
        (zstd(pack(b"page")), "gzip, zstd", ""),
    ],
)
def test_what_a_page_was_sent_in_is_taken_off_if_it_is_there(payload: bytes, encoding: str, transfer: str) -> None:
    assert http.unpacked(payload, encoding, transfer, MOST) == b"page"


@pytest.mark.parametrize("line", [b"Database connected", b"Deprecated: x", b"add", b"2", b"0"])
def test_a_page_without_chunks_keeps_a_first_line_that_begins_as_their_sizes_do(line: bytes) -> None:
    for end in (b"\r\n", b"\n"):
        page = line + end + b"<html>" + b"x" * 4000
        assert http.unpacked(page, "", "chunked", MOST) == page


@pytest.mark.parametrize("data", [b"0\r\n\r\n", b"0\n\n", b"0\r\n", b"0\r\nEtag: x\r\n\r\n", b"00;x=y\r\n\r\n"])
def test_a_page_of_no_chunk_is_empty(data: bytes) -> None:
    assert http.unpacked(data, "", "chunked", MOST) == b""


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
def test_of_chunks_that_are_cut_off_nothing_but_the_page_is_there(end: bytes) -> None:
    """At any byte behind the first one: within a size, what is behind it, a page or the ends of lines."""
    pieces = [b"<html>", b"a0 b1", b"x" * 30, b"0\r\n", b"c"]
    heads = [
        b"%x" % len(piece) + extra for piece, extra in zip(pieces, [b"", b" ", b";a=b", b" ; c", b""], strict=True)
    ]
    parts = [part for head, piece in zip(heads, pieces, strict=True) for part in (head + end, piece, end)]
    data, of_page = b"".join(parts), b"".join(bytes([at % 3 == 1]) * len(part) for at, part in enumerate(parts))
    data += b"0" + end + end
    for stop in range(len(parts[0]) + 1, len(data) + 1):
        there = sum(of_page[:stop])
        assert http.unpacked(data[:stop], "", "chunked", MOST) == b"".join(pieces)[:there], stop


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@given(st.integers(0, 9), st.floats(0.01, 1), st.sampled_from([300, 60_000]))
def test_what_is_broken_is_unpacked_up_to_there(encoding: str, seed: int, share: float, size: int) -> None:
    """Wherever a byte is wrong: before it, all that a cut-off page has is returned; a wrong checksum costs nothing."""
    page = " ".join(map(str, random.Random(seed).choices(range(10**6), k=size // 6))).encode()
    packed = pack(page) if encoding == "gzip" else deflated(page, 15)
    trailer = 8 if encoding == "gzip" else 4
    place = min(int(share * len(packed)), len(packed) - 1)
    broken = bytearray(packed)
    broken[place] ^= 0xFF
    found = b""
    with suppress(BadRow):
        found = http.unpacked(bytes(broken), encoding, "", MOST)
    if place >= len(packed) - trailer:
        assert found == page
    elif place >= 150:
        cut = zlib.decompressobj(wbits=31 if encoding == "gzip" else 15).decompress(packed[:place])
        assert found.startswith(cut)


@pytest.mark.parametrize("payload", [pack(b"page")[:10], pack(b"page")[:5], zstd(b"page")[:6], b"\x1f\x8b no gzip"])
@pytest.mark.parametrize("encoding", ["gzip", "zstd", ""])
def test_what_is_packed_and_has_no_byte_is_a_bad_row(payload: bytes, encoding: str) -> None:
    with pytest.raises(BadRow, match=r"it cannot be unpacked: its (gzip|zstd) is broken from its first byte on"):
        http.unpacked(payload, encoding, "", MOST)


@pytest.mark.parametrize(
    ("payload", "encoding"), [(pack(b""), "gzip"), (deflated(b"", 15), "deflate"), (zstd(b""), "zstd")]
)
def test_a_page_of_no_bytes_is_empty_however_it_is_packed(payload: bytes, encoding: str) -> None:
    assert http.unpacked(payload, encoding, "", MOST) == b""


def test_what_is_cut_off_is_unpacked_as_far_as_it_goes() -> None:
    payload = pack(bytes(range(256)) * 100)
    found = http.unpacked(payload[: len(payload) // 2], "gzip", "", MOST)
    assert 0 < len(found) < 25_600
    assert (bytes(range(256)) * 100).startswith(found)


def test_of_zstd_that_is_cut_off_there_is_what_could_be_read() -> None:
    data = random.Random(0).randbytes(1_000_000)
    packed = zstd(data)
    found = http.unpacked(packed[: len(packed) // 2], "zstd", "", MOST)
    assert len(found) > 250_000
    assert data.startswith(found)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
def test_a_page_that_unpacks_to_too_much_is_told(encoding: str) -> None:
    data = bytes(50_000_000)
    payload = {"gzip": pack, "deflate": zlib.compress, "zstd": zstd}[encoding](data)
    with pytest.raises(http.TooLarge):
        http.unpacked(payload, encoding, "", MOST)


@given(
    st.binary(max_size=100),
    st.sampled_from(["gzip", "deflate", "br", "zstd", "x, gzip"]),
    st.sampled_from(["", "chunked"]),
)
def test_any_bytes_are_a_payload(data: bytes, encoding: str, transfer: str) -> None:
    with suppress(BadRow):
        http.unpacked(data, encoding, transfer, MOST)
    http.answer(b"HTTP/1.1 200 OK\r\n" + data)


def test_answers() -> None:
    found = http.answer(
        b"HTTP/1.1 404 Not\r\nContent-Type: Text/HTML ; charset='x-y'\r\nx:1\r\nX: 2\r\n\r\nbody\r\n\r\n"
    )
    assert found is not None
    assert (found.status, found.content_type, found.charset, found.headers["x"]) == (404, "text/html", "x-y", "1")
    assert found.payload == b"body\r\n\r\n"
    assert http.answer(b"HTTP/2 200\nContent-Type: a/b\n\nx") == http.Answer(200, {"content-type": "a/b"}, b"x")
    letters = "HTTP/1.1 200 OK\r\nContent-Type: a/b; name=\u0445;charset=x\nY: \x1c\r\n\r\n".encode()
    found = http.answer(letters)
    assert found is not None
    assert (found.charset, found.headers["y"]) == ("x", "")
    assert [http.answer(one) for one in (b"", b"hello", b"HTTP/1.1 abc\r\n\r\n")] == [None] * 3
    assert [
        is_html(http.Answer(200, headers, payload), 100)
        for headers, payload in (
            ({}, b" <!doctype HTML>"),
            ({}, b"<p>"),
            ({}, b"%PDF <html>"[:6]),
            ({}, pack(b"<html>")),
            ({"content-encoding": "br"}, BROTLI),
            ({"content-encoding": "deflate", "transfer-encoding": "chunked"}, b"e\r\n" + deflated(b"<html>", 15)),
            ({}, pack(b"<html>" * 100)),
            ({}, pack(b"<html>")[:10]),
        )
    ] == [True, False, False, True, False, True, False, False]


@pytest.mark.parametrize("end", ["\r\n", "\n"])
def test_a_field_may_go_on_in_the_next_line(end: str) -> None:
    lines = [
        "HTTP/1.1 200 OK",
        "Content-Type: text/html;",
        "\tcharset=",
        "  shift_jis",
        "X: 1",
        "x: 2",
        " 3",
        "",
        "page",
    ]
    found = http.answer(end.join(lines).encode())
    assert found is not None
    assert (found.charset, found.headers["x"], found.payload) == ("shift_jis", "1", b"page")


def test_what_is_read_of_a_header_takes_as_many_steps_as_it_has_bytes() -> None:
    """A copy of the rest for each answer, or of a value for each of its lines, is minutes for a page of some MiB."""
    start = time.thread_time()
    assert http.answer(b"HTTP/1.1 100 C\n\n" * (MIB // 16)) is not None
    assert len(fields("X\na: b\n" + " c\n" * (MIB // 3))["a"]) > MIB // 2
    assert time.thread_time() - start < 2


def test_the_answer_behind_those_that_say_to_wait_is_the_one() -> None:
    """A record may have all that came: "100 Continue", and hints of what will be needed."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\npage"
    for before in (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"):
        assert http.answer(before * 2 + answer) == http.answer(answer)
    alone = http.answer(b"HTTP/1.1 101 Switching Protocols\r\n\r\nHTTP")
    assert alone is not None
    assert alone.status == 101


def row(payload: bytes, charset: str | None = None) -> dict[str, object]:
    return {"payload": payload, "encoding": "", "transfer": "", "charset": charset}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(OPTIONS))
@pytest.mark.parametrize("count", [20, pytest.param(2_000, marks=pytest.mark.nightly)])
def test_texts_are_those_of_the_extractor_called_plainly(name: str, count: int) -> None:
    function = Extractor(name, {}, MOST)
    for html, charset in made_pages(count, seed=7):
        found = function(row(html.encode(charset), charset))
        if name == "trafilatura":
            LRU_TEST.clear()
            text = extract(html, favor_precision=True, include_comments=False, deduplicate=True)
        else:
            text = extract_plain_text(html, main_content=True, alt_texts=False)
        assert isinstance(found, Page)
        assert found.text == text != ""
        assert found.title


def test_a_text_does_not_depend_on_the_pages_before() -> None:
    """trafilatura leaves out what it has seen too often."""
    function = Extractor("trafilatura", {}, MOST)
    [(html, _)] = made_pages(1)
    assert len({function(row(html.encode())) for _ in range(5)}) == 1


def test_options_are_those_of_the_extractor() -> None:
    page = row(b"<body><nav><a href=/x>menu</a></nav><p>text</p>")
    assert Extractor("resiliparse", {"main_content": False, "links": True}, MOST)(page).text == "menu (/x)\n\ntext"  # type: ignore[union-attr]
    with pytest.raises(BadRow, match="resiliparse raised TypeError"):
        Extractor("resiliparse", {"no_such": 1}, MOST)(page)


@pytest.mark.parametrize("name", sorted(OPTIONS))
@pytest.mark.parametrize(
    "payload", [b"", b"\0" * 100, b"<" * 1000, b"<p>" * 2000, b"no page", "﷽\U0010ffff".encode() * 99]
)
def test_what_is_no_page_has_some_text_or_none(name: str, payload: bytes) -> None:
    found = Extractor(name, {}, MOST)(row(payload))
    assert isinstance(found, Page)
    found.text.encode()
