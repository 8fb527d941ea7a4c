"""Hosts, registered domains and words of URLs, beside plain Python; lists from files of every wrong shape."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.errors import ConfigError
from curate.texts import urls
from curate.texts.words import different
from tests.support.lines import lines_run

PIECES = ["http:", "https:", "//", "/", "?", "#", "@", ":", ":80", "www.", "A.de", "example.co.uk", ".", "me", "[::1]"]
PIECES += [" ", "\\", "\n", "ü.de", "sex", "Sex", "-", "%41", "127.0.0.1"]
ADDRESSES = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=8).map("".join)


def plain_host(url: str) -> str:
    """The host of a URL, a step at a time."""
    text = url.lstrip(" \t\n\r\f")
    found = re.match(r"[A-Za-z0-9+.-]*:", text)
    after = text[found.end() :] if found else text
    rest = after[2:] if after.startswith("//") else text[2:] if text.startswith("//") else text
    netloc = re.split(r"[/?#\\]", rest, maxsplit=1)[0]
    host = netloc.rpartition("@")[2].lstrip(" \t\n\r\f")
    if re.match(r"\[[^\]]*\][.。．｡ \t\n\r\f]*(:|$)", host, re.S):
        host = host[: host.index("]") + 1]
    else:
        host = host.partition(":")[0].rstrip(".。．｡ \t\n\r\f")
    return urls._in_ascii(pa.compute.utf8_lower(pa.scalar(host)).as_py())


@given(st.lists(ADDRESSES, max_size=10))
def test_hosts_are_those_of_plain_python(addresses: list[str]) -> None:
    assert urls.hosts(pa.array(addresses, pa.string())).to_pylist() == [plain_host(url) for url in addresses]


@pytest.mark.parametrize(
    ("url", "host", "domain"),
    [
        ("https://www.example.co.uk/a", "www.example.co.uk", "example.co.uk"),
        ("HTTPS://EXAMPLE.COM", "example.com", "example.com"),
        ("//a.b.example.com:8080/", "a.b.example.com", "example.com"),
        ("example.com/path", "example.com", "example.com"),
        ("http://user:word@example.com@b.org./x", "b.org", "b.org"),
        ("http://me.github.io/", "me.github.io", "github.io"),
        ("http://co.uk/", "co.uk", None),
        ("http://8.8.8.8/", "8.8.8.8", None),
        ("http://[2001:db8::1]:80/", "[2001:db8::1]", None),
        ("http://localhost:3000", "localhost", None),
        ("http://www.bücher.de/", "www.xn--bcher-kva.de", "xn--bcher-kva.de"),
        ("http://a.食狮.公司.cn/", "a.xn--85x722f.xn--55qx5d.cn", "xn--85x722f.xn--55qx5d.cn"),
        ("mailto:a@b.de", "b.de", "b.de"),
        ("http:///nothing", "", None),
        ("", "", None),
        ("http://..", "", None),
        ("http://" + "a." * 200 + "com", "a." * 200 + "com", None),
    ],
)
def test_hosts_and_domains(url: str, host: str, domain: str | None) -> None:
    found = urls.hosts(pa.array([url]))
    assert found.to_pylist() == [host]
    assert urls.registered(found).to_pylist() == [domain]


@given(st.lists(ADDRESSES, max_size=10), st.sets(st.sampled_from(["sex", "Sex", "de", "a", "80", "http"]), min_size=1))
def test_words_are_those_of_plain_python(addresses: list[str], wanted: set[str]) -> None:
    found = different(urls.words(pa.array(addresses, pa.string())), tuple(sorted(wanted)))
    assert found.tolist() == [len(wanted.intersection(re.split(r"[^a-zA-Z0-9]+", url))) for url in addresses]


@given(st.lists(ADDRESSES, max_size=10), st.lists(st.sampled_from(["sex", "desex", "ex", "7cy"]), min_size=1))
def test_parts_are_those_of_plain_python(addresses: list[str], parts: list[str]) -> None:
    letters = urls.letters(pa.array(addresses, pa.string()))
    plain = [re.sub(r"[^a-zA-Z0-9]+", "", url).lower() for url in addresses]
    assert letters.to_pylist() == plain
    found = urls.Parts.of(pa.array(parts)).within(letters)
    assert found.tolist() == [any(part in one for part in parts) for one in plain]


def test_many_parts_are_all_found() -> None:
    parts = pa.array([f"part{number}x" for number in range(1000)])
    assert urls.Parts.of(parts).within(pa.array(["apart777xy", "part1000x", "part0xpart999x"])).tolist() == [
        True,
        False,
        True,
    ]


@given(st.sets(st.text(max_size=3), max_size=20), st.lists(st.one_of(st.none(), st.text(max_size=3)), max_size=20))
def test_a_set_has_what_it_was_made_of(listed: set[str], asked: list[str | None]) -> None:
    known = urls.Listed.of(pa.array(sorted(listed), pa.string()))
    assert known.has(pa.array(asked, pa.string())).tolist() == [one in listed for one in asked]


def test_lines_are_trimmed_and_comments_and_blank_ones_left_out(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes("\ufeff# heading\r\n\r\n a.de \r\nbücher.de\r\n#b.de\nc.de".encode())
    assert urls.read_list(str(path), urls.DOMAIN).to_pylist() == ["a.de", "bücher.de", "c.de"]


DOMAINS, ADDRESS, WORDS = urls.DOMAIN, urls.URL, urls.WORD
NO_DOMAINS = [".a.de", ".", "..", "a..de", "a.de..", "。a.de", "a.\x01.de", f"{'a' * 64}.de", "[::g]"]


@given(
    st.lists(st.sampled_from(["a", "B-2", "_x", "bücher", "ẞ", "☃", "xn--n3h", "例え"]), min_size=1, max_size=4),
    st.data(),
)
def test_a_listed_host_is_found_as_it_is_in_urls(labels: list[str], data: st.DataObject) -> None:
    """However either is written: in capitals, with another full stop between its parts, or one behind it."""
    dots = st.sampled_from([".", "。", "．", "｡"])
    spelt = [
        "".join(label + data.draw(dots) for label in labels[:-1]) + labels[-1] + data.draw(st.sampled_from(["", "."]))
        for _ in range(2)
    ]
    listed, found = (one.upper() if data.draw(st.booleans()) else one for one in spelt)
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_text(f"other.org\n{listed}\n")
        known = urls.read_domains(file.name)
    assert known.has(urls.hosts(pa.array([f"http://{found}:80/", "http://more.org"]))).tolist() == [True, False]


@pytest.mark.parametrize(
    ("shape", "data", "message"),
    [
        (DOMAINS, b"", "line 1: the file has no entry; expected one domain or host a line"),
        (WORDS, b"\n# nothing\n", "line 1: the file has no entry"),
        (DOMAINS, b"a.de\n\x1f\x8b\x00", "line 2: is binary data, not text"),
        (DOMAINS, b"\x1f\x8b\x08rest", "line 1: is binary data, not text"),
        (DOMAINS, "a.de\n".encode("utf-16"), "line 1: is binary data, not text"),
        (DOMAINS, b"a.de\nb\xfccher.de\n", "line 2: is not UTF-8 (byte 0xfc); save it as UTF-8"),
        (DOMAINS, b"domain,reason\na.de,spam\n", "line 1: expected one domain or host a line"),
        (DOMAINS, b"a.de\tspam\n", "line 1: expected one domain or host a line"),
        (
            DOMAINS,
            b"a.de\n\nhttps://b.de\n",
            "line 3: expected one domain or host a line, such as example.com; found",
        ),
        (DOMAINS, b"a.de/path\n", "line 1: expected one domain or host a line"),
        *((DOMAINS, f"a.de\n{odd}\n".encode(), "line 2: expected one domain or host a line") for odd in NO_DOMAINS),
        (DOMAINS, b"*.a.de\n", "line 1: expected one domain or host a line"),
        (DOMAINS, b"127.0.0.1 a.de\n", "line 1: expected one domain or host a line"),
        (DOMAINS, b"||a.de^\n", "line 1: expected one domain or host a line"),
        (DOMAINS, b'{"domain": "a.de"}\n', "line 1: expected one domain or host a line"),
        (ADDRESS, b"https://a.de/x\na.de/x\n", "line 2: expected one whole URL a line"),
        (ADDRESS, b"https://a.de/x 3\n", "line 1: expected one whole URL a line"),
        (WORDS, b"word,count\n", "line 1: expected one word a line, with an ASCII letter or digit"),
        (WORDS, "секс\n".encode(), "line 1: expected one word a line, with an ASCII letter or digit; found 'секс'"),
    ],
)
def test_a_list_of_the_wrong_shape_is_told_with_file_and_line(
    tmp_path: Path, shape: urls.Shape, data: bytes, message: str
) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=re.escape(f"{path}, {message}")):
        urls.read_list(str(path), shape)


@pytest.mark.ci(5)
@pytest.mark.slow
@pytest.mark.parametrize("piece", ["a", "a.", ".", "@", ":", "/", "[", "%", "ü", "\\", "http://", "sexx ", "a@b:"])
def test_no_url_takes_more_than_linear_time(piece: str) -> None:
    """For a host of 200,000 characters Python runs as many lines as for one of a thousand; the kernels of Arrow,
    whose regular expressions do not go back, are linear."""
    parts = urls.Parts.of(pa.array(["sexxx", "aab"]))

    def lines(size: int) -> int:
        address = pa.array(["http://" + piece * (size // len(piece))])

        def read() -> None:
            urls.registered(urls.hosts(address))
            urls.words(address)
            parts.within(urls.letters(address))

        return lines_run(read)

    lines(10)
    assert lines(200_000) <= lines(1_000)
