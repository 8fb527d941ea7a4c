"""Made-up web pages, and WARC files of them as Common Crawl lays them out; every byte follows from the seed."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterable, Iterator

import pyarrow as pa

CHARSETS = ["utf-8"] * 12 + ["iso-8859-1", "windows-1252", "shift_jis", "koi8-r"]
_LETTERS = {
    "utf-8": "äößéñçλж中文",
    "iso-8859-1": "äößéñç",
    "windows-1252": "äößé“”",
    "shift_jis": "日本語かな",
    "koi8-r": "жизньдом",
}
_END = "\r\n\r\n"


class PageWriter:
    """Writes pages: navigation, an article with headings, lists, tables and links, a sidebar, comments, a footer."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        letters = "etaoinshrdlucmfwypvbgk"
        self.words = ["".join(self.random.choices(letters, k=self.random.randint(2, 9))) for _ in range(5_000)]

    def sentence(self, charset: str = "utf-8") -> str:
        words = self.random.choices(self.words, k=self.random.randint(6, 20))
        if self.random.random() < 0.5:
            words[3] = "".join(self.random.choices(_LETTERS[charset], k=4))
        return " ".join(words).capitalize() + self.random.choice([".", ".", "!", "?"])

    def prose(self, charset: str, sentences: int) -> str:
        return " ".join(self.sentence(charset) for _ in range(self.random.randint(1, sentences)))

    def link(self) -> str:
        pick = self.random
        one, other, third = pick.choices(self.words, k=3)
        item = (
            f'<a href="/{one}/{other}?ref={third}" class="menu-item {one} {other}" title="{third}">{other} {third}</a>'
        )
        return f'<div class="menu-{one}"><span class="icon icon-{other}" aria-hidden="true"></span>{item}</div>'

    def part(self, charset: str) -> str:
        """Returns a part of an article."""
        kind, prose = self.random.random(), self.prose(charset, 6)
        if kind < 0.6:
            return f"<p>{prose} {self.link()} {self.sentence(charset)}</p>\n"
        if kind < 0.7:
            return f"<h2 id=x>{self.sentence(charset)}</h2>\n"
        if kind < 0.8:
            return "<ul>" + "".join(f"<li>{self.sentence(charset)}" for _ in range(4)) + "</ul>\n"
        if kind < 0.87:
            row = "".join(f"<td>{word}</td>" for word in self.random.choices(self.words, k=4))
            return f"<table><tr>{row}</tr><tr>{row}</tr></table>\n"
        if kind < 0.94:
            image = f"<img src=a.png alt='{self.sentence(charset)}'>"
            return f"<blockquote>{prose}<br>&amp; &eacute; &#8217;</blockquote>{image}\n"
        # What browsers forgive.
        return f"<div><p>{prose}<b><i>{self.sentence(charset)}</b></i></div></span>\n"

    def page(self, charset: str = "utf-8") -> str:
        """Returns a page, 10 to 120 kB."""
        pick = self.random
        script = (
            "var a = {"
            + ",".join(f'"{word}":{pick.random()}' for word in pick.choices(self.words, k=pick.randint(50, 1_500)))
            + "};"
        )
        links = "".join(f"<li>{self.link()}</li>" for _ in range(pick.randint(5, 120)))
        parts = "".join(self.part(charset) for _ in range(pick.randint(3, 40)))
        comments = "".join(
            f"<div class=comment><p>{self.prose(charset, 3)}</p></div>" for _ in range(pick.randint(0, 5))
        )
        return (
            f'<!DOCTYPE html><html lang="en"><head><meta charset="{charset}"><title>{self.sentence(charset)}</title>'
            f"<style>.x{{color:red}}</style><script>{script}</script></head><body><nav><ul>{links}</ul></nav>"
            f"<main><article><h1>{self.sentence(charset)}</h1>{parts}</article></main><aside>{links}</aside>"
            f"<section id=comments>{comments}</section><footer><p>{self.sentence(charset)} {links}</p></footer></body>"
            "</html>"
        )


def made_pages(count: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """Yields the HTML and the charset of so many pages."""
    writer = PageWriter(seed)
    for _ in range(count):
        charset = writer.random.choice(CHARSETS)
        yield writer.page(charset).encode(charset, "ignore").decode(charset), charset


def record(kind: str, url: str, body: bytes, **fields: str | int) -> bytes:
    """Returns a WARC record. Fields are those of its header, with _ for -."""
    header = {
        "WARC-Type": kind,
        "WARC-Date": "2026-01-02T03:04:05Z",
        "WARC-Target-URI": url,
        "Content-Length": len(body),
        **{name.replace("_", "-"): value for name, value in fields.items()},
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in header.items())
    return f"WARC/1.0\r\n{lines}\r\n".encode() + body + _END.encode()


def response(url: str, payload: bytes, head: str = "Content-Type: text/html", status: int = 200) -> bytes:
    """Returns the record of an answer of a web server; `head` are the lines of its header."""
    lines = head.replace("\n", "\r\n")
    return record("response", url, f"HTTP/1.1 {status} OK\r\n{lines}{_END}".encode() + payload)


def packed(records: Iterable[bytes], codec: str | None = "gzip") -> bytes:
    """Returns a file of records, each a member of its own where they are compressed with `gzip` or `zstd`."""
    if codec is None:
        return b"".join(records)
    if codec == "gzip":
        return b"".join(gzip.compress(one, 6, mtime=0) for one in records)
    return b"".join(pa.compress(one, codec, asbytes=True) for one in records)


def archive(count: int, seed: int = 0, codec: str | None = "gzip") -> bytes:
    """Returns a file of so many pages, each between a request and the metadata of its answer."""

    def all_records() -> Iterator[bytes]:
        yield record("warcinfo", "made", b"software: none\r\n")
        for number, (html, charset) in enumerate(made_pages(count, seed)):
            url = f"https://www.site{number % 97}.example.com/{number}"
            yield record("request", url, b"GET / HTTP/1.1\r\n\r\n")
            yield response(url, html.encode(charset), f"Content-Type: text/html; charset={charset}")
            yield record("metadata", url, b"fetchTimeMs: 100\r\n")

    return packed(all_records(), codec)
