"""The job that extracts pages: what becomes of each record, and what a page costs that crashes or hangs its parser."""

from __future__ import annotations

import gzip
import os
import re
import signal
from collections.abc import Mapping
from typing import Any

import pytest

from curate.pipeline import sandbox
from curate.pipeline.sandbox import Sandboxed
from curate.testing.local import LocalRun, run_local
from curate.web.page import Extractor, Page
from jobs import extract
from jobs.extract import Extract
from scripts.benches.pages import archive, made_pages, packed, record, response
from tests.job.inline import refusing

ENDINGS = {None: "", "gzip": ".gz", "zstd": ".zst"}
TEXT = "This is the text of page {} which is long enough to be one."


def html(number: int) -> bytes:
    return f"<html><title>Page {number}</title><body><p>{TEXT.format(number)}</p></body></html>".encode()


def url(number: int) -> str:
    return f"http://WWW.a.de:80/{number}"


def page(number: int, **given: Any) -> bytes:
    return response(url(number), html(number), **given)


def run(*records: bytes, codec: str | None = "gzip", name: str = "a.warc", **given: Any) -> LocalRun:
    return run_local(Extract(**given), files={f"{name}{ENDINGS[codec]}": packed(records, codec)})


@pytest.mark.slow
@pytest.mark.quick(4)
@pytest.mark.parametrize("codec", [None, "gzip", "zstd"])
@pytest.mark.parametrize("extractor", ["resiliparse", "trafilatura"])
def test_a_page_becomes_a_row(codec: str | None, extractor: str) -> None:
    ran = run(page(1), page(2, head="Content-Type: text/html; charset=x"), codec=codec, extractor=extractor)
    common = {"host": "www.a.de", "date": "2026-01-02T03:04:05Z", "content_type": "text/html", "charset": "utf-8"}
    assert ran.rows == [
        {"id": f"a.warc{ENDINGS[codec]}:{number - 1}", "url": url(number), **common, "title": f"Page {number}"}
        | {"text": TEXT.format(number)}
        for number in (1, 2)
    ]
    assert ran.summary.books.created == 2


def test_ids_are_those_of_records_or_their_places() -> None:
    """Wherever the files lie, and whatever else is in them; two files of one name have other ids."""
    named = page(1).replace(b"WARC-Type", b"WARC-Record-ID: <urn:uuid:1-2>\r\nWARC-Type")
    blank = page(2).replace(b"WARC-Type", b"WARC-Record-ID: <>\r\nWARC-Type")
    warc = packed([record("request", url(1), b"GET / HTTP/1.1\r\n\r\n"), named, blank, page(3)])
    files = {"x/a.warc.gz": warc, "y/a.warc.gz": packed([page(4)]), "y/a.warc": page(5)}
    ids = [row["id"] for row in run_local(Extract, files=files).rows]
    assert sorted(ids) == ["urn:uuid:1-2", "x/a.warc.gz:2", "x/a.warc.gz:3", "y/a.warc.gz:0", "y/a.warc:0"]


KINDS: dict[bytes, str | None] = {
    page(0): None,
    page(1, status=404): extract.STATUS,
    page(2, head="Content-Type: application/pdf"): extract.NOT_HTML,
    page(3, head="Content-Type: application/xhtml+xml"): None,
    page(4, head="Server: x"): None,
    response(url(5), b"no page", "Server: x"): extract.NOT_HTML,
    response(url(6), b"<html></html>"): extract.EMPTY,
    response(url(7), html(7) + b" " * 5_000): extract.TOO_LARGE,
    response(
        url(8), gzip.compress(html(8) + b" " * 5_000), "Content-Type: text/html\nContent-Encoding: gzip"
    ): extract.TOO_LARGE,
    response(url(9), gzip.compress(html(9)), "Content-Type: text/html\nContent-Encoding: gzip"): None,
    record("response", url(10), b"20260102 127.0.0.1"): extract.NOT_HTTP,
    record("response", url(11), b"x" * 3_000_000): extract.TOO_LARGE,
    record("conversion", url(12), "täxt".encode(), Content_Type="text/plain"): None,
    record("conversion", url(13), b" \n", Content_Type="text/plain"): extract.EMPTY,
    record("conversion", url(18), b"\x89PNG\r\n" + bytes(range(256)), Content_Type="image/png"): extract.NOT_TEXT,
    record("conversion", url(19), b"%PDF-1.4 text", Content_Type="application/pdf"): extract.NOT_TEXT,
    record("conversion", url(20), b"text"): None,
    response(url(21), gzip.compress(html(21)), "Content-Encoding: gzip"): None,
    response(url(22), gzip.compress(b"no page"), "Content-Encoding: gzip"): extract.NOT_HTML,
    response(url(23), gzip.compress(html(23))[:20], "Content-Encoding: gzip"): extract.NOT_HTML,
    record("request", url(14), b"GET / HTTP/1.1\r\n\r\n"): "request",
    record("metadata", url(15), b"x"): "metadata",
    page(16, head="Content-Type: text/html, text/html; charset=utf-8"): None,
    page(17).replace(b"WARC-Type", b"WARC-Identified-Payload-Type: text/html; charset=utf-8\r\nWARC-Type"): None,
}


def test_what_is_no_page_is_told_by_reason() -> None:
    ran = run(*KINDS, max_page_bytes=4_000)
    kept = [re.search(rb"http://\S+", one)[0].decode() for one, reason in KINDS.items() if reason is None]  # type: ignore[index]
    assert [row["url"] for row in ran.rows] == kept
    reasons = [reason for reason in KINDS.values() if reason not in (None, "request", "metadata")]
    assert ran.summary.books.dropped == {reason: reasons.count(reason) for reason in reasons}
    assert ran.summary.books.counters == {"records: request": 1, "records: metadata": 1}
    assert (ran.summary.books.created, ran.quarantine) == (len(KINDS) - 2, [])
    [wet] = [row for row in ran.rows if row["url"] == url(12)]
    assert (wet["text"], wet["title"], wet["content_type"]) == ("täxt", None, "text/plain")


def test_a_record_that_is_broken_is_set_aside_with_its_place() -> None:
    whole = packed([page(number) for number in range(4)])
    last = len(packed([page(3)]))
    wrong = packed([page(4).replace(b"Content-Length: ", b"Content-Length: 9")])
    nameless = packed([page(5).replace(b"WARC-Target-URI", b"WARC-Other")])
    ran = run_local(Extract, files={"a.warc.gz": wrong + nameless + whole[:-9]})
    assert [row["url"] for row in ran.rows] == [url(number) for number in range(3)]
    reasons = ["it says 9", "it has no WARC-Target-URI", "the gzip member at byte"]
    assert all(one["reason"].startswith(reason) for one, reason in zip(ran.quarantine, reasons, strict=True))
    assert f'"byte":{len(wrong) + len(nameless) + len(whole) - last}' in ran.quarantine[2]["row"]
    assert [one["line"] for one in ran.quarantine] == [1, 2, 6]
    assert ran.summary.books.balanced


@pytest.mark.parametrize("codec", [None, "gzip"])
@pytest.mark.parametrize("kind", [b"", b"WARC-Type:\r\n", b"XARC-Type: response\r\n"])
def test_a_record_that_does_not_say_its_kind_is_set_aside(kind: bytes, codec: str | None) -> None:
    """It may be a page. Every record has to say it."""
    ran = run(page(1), page(2).replace(b"WARC-Type: response\r\n", kind), codec=codec)
    assert [one["reason"] for one in ran.quarantine] == ["it has no WARC-Type"]
    assert url(2) in ran.quarantine[0]["row"]
    assert (ran.summary.books.rows_out, ran.summary.books.counters) == (1, {})


@pytest.mark.parametrize("name", ["a.warc", "a.jsonl", "a.txt.gz"])
def test_a_file_that_is_no_archive_fails_its_shard(name: str) -> None:
    """One without any record, such as an empty one, has no page."""
    data = b'{"id": "1", "text": "a page"}\n' * 3
    ran = run_local(Extract, files={name: gzip.compress(data) if name.endswith(".gz") else data, "b.warc": b""})
    assert ran.summary.failed == 1
    assert f"{name} is no web archive: no whole record is in it; no record begins with" in ran.summary.failures[0].error
    assert ran.quarantine == []


@pytest.mark.parametrize("name", ["a.warc.gz", "a.warc.zst"])
def test_a_packed_file_of_no_bytes_fails_its_shard(name: str) -> None:
    """It was cut off: `gzip` and `zstd` refuse it, too, where an archive of no records has some bytes."""
    ran = run_local(Extract, files={name: b""})
    assert ran.summary.failed == 1
    assert f"{name} is no web archive: no whole record is in it; it is empty" in ran.summary.failures[0].error


TIMEOUT_S = 3.0
"""So long that no other page takes it, however busy the machine is."""


class Hostile(Extractor):
    """An extractor that some pages crash, hang or fail."""

    def __call__(self, row: Mapping[str, Any]) -> Page | None:
        payload = row["payload"]
        if b"crash" in payload:
            os.kill(os.getpid(), signal.SIGSEGV)
        if b"hang" in payload:
            while True:
                pass
        return super().__call__(row)

    def extracted(self, html: str) -> tuple[str | None, str]:
        if "raise" in html:
            raise RecursionError("too deep")
        return super().extracted(html)


class HostileExtract(Extract):
    """The job with that extractor."""

    name = "hostile"
    version = "1"

    def setup(self) -> None:
        self._extracted = Sandboxed(Hostile(self.extractor, {}, self.max_page_bytes), self.timeout_s)


@pytest.mark.slow
def test_ten_pages_that_crash_or_hang_or_raise_cost_ten_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    # Where the processor has much else to do, its seconds are to be over first.
    monkeypatch.setattr(sandbox, "WAITS", 1000)
    bad = {3: b"crash", 4: b"crash", 10: b"hang", 11: b"raise", 12: b"crash", 20: b"hang", 30: b"raise", 38: b"crash"}
    bad |= {0: b"crash", 39: b"hang"}
    pages = [response(url(number), html(number) + bad.get(number, b"")) for number in range(40)]
    ran = run_local(HostileExtract(timeout_s=TIMEOUT_S), files={"a.warc.gz": packed(pages)})
    assert [row["url"] for row in ran.rows] == [url(number) for number in range(40) if number not in bad]
    assert [row["text"] for row in ran.rows] == [TEXT.format(number) for number in range(40) if number not in bad]
    assert [one["line"] - 1 for one in ran.quarantine] == sorted(bad)
    reasons = {
        b"crash": "SIGSEGV",
        b"hang": f"took longer than {TIMEOUT_S:g} s of the processor",
        b"raise": "resiliparse raised RecursionError",
    }
    assert all(reasons[bad[one["line"] - 1]] in one["reason"] for one in ran.quarantine)
    assert ran.summary.books.created == 40


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize("extractor", ["resiliparse", "trafilatura"])
def test_pages_that_are_too_deep_for_a_parser_cost_themselves_at_most(extractor: str) -> None:
    deep = response(url(1), b"<div>" * 100_000 + b"<table><tr><td>" * 10_000 + html(1))
    ran = run(page(0), deep, page(2), extractor=extractor, timeout_s=TIMEOUT_S)
    assert {url(0), url(2)} <= {row["url"] for row in ran.rows}
    assert len(ran.rows) + len(ran.quarantine) + sum(ran.summary.books.dropped.values()) == 3


@pytest.mark.quick(2)
@pytest.mark.parametrize("batch", [1, 7, 1_000])
def test_the_same_whatever_is_extracted_together(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract, "BATCH_RECORDS", batch)
    ran = run_local(Extract, files={"a.warc.gz": archive(20, seed=3)})
    assert [row["url"].rsplit("/", 1)[1] for row in ran.rows] == [str(number) for number in range(20)]
    assert [row["charset"] for row in ran.rows].count("utf-8") >= 10
    titles = [page.partition("<title>")[2].partition("</title>")[0] for page, _ in made_pages(20, seed=3)]
    assert [row["title"] for row in ran.rows] == titles


def test_files_without_a_record_are_no_error() -> None:
    ran = run_local(Extract, files={"a.warc": b"", "b.warc.gz": gzip.compress(b"")})
    assert (ran.rows, ran.quarantine, len(ran.outputs)) == ([], [], 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_page_bytes": 0}, "--max-page-bytes 0 would keep no page; give at least 1"),
        ({"timeout_s": 0.0}, "--timeout-s 0 is no time; give seconds above 0"),
        ({"extractor": "resilparse"}, "did you mean 'resiliparse'?"),
        ({"extractor_options": {"links_": True}}, "resiliparse raised TypeError: extract_plain_text() got"),
        ({"extractor_options": {"main_content": "no"}}, "resiliparse raised TypeError: 'str' object is not"),
        (
            # Not its end: Python 3.13 proposes another spelling behind it.
            {"extractor": "trafilatura", "extractor_options": {"favour_recall": True}},
            "trafilatura raised TypeError: extract() got an unexpected keyword argument 'favour_recall'",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], message: str) -> None:
    with refusing(message):
        run(page(1), **given)
