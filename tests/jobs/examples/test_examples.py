"""The examples do what they say, run as they are: their files are programs."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from curate.errors import ConfigError
from curate.testing import run_local
from jobs.examples.build import Authors
from jobs.examples.pool import Pool
from jobs.examples.service import Service, _scores
from jobs.examples.warc import Warc

FOLDER = Path(__file__).parents[3] / "jobs" / "examples"


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_each_is_a_program(path: Path) -> None:
    """`--help` says what it does, in the words of its class."""
    ran = subprocess.run([sys.executable, str(path), "--help"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "Parameters of this job:" in ran.stdout


@contextmanager
def serving(
    refuse: str = "", busy_first: int = 0, cut_to: int | None = None, answer: Any = None
) -> Iterator[tuple[str, Counter[int]]]:
    """Serves the length of each text as its score, or another `answer`: 503 to the first requests, 422 to those with
    the text `refuse`. With `cut_to`, the first requests are answered by so many bytes of what they would be.

    Yields the address, and how often which status was answered.
    """
    answered: Counter[int] = Counter()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                code = 503 if sum(answered.values()) < busy_first else 422 if refuse in asked["texts"] else 200
                answered[code] += 1
            body = json.dumps(answer or {"scores": [len(text) for text in asked["texts"]]}).encode()
            if code == 503 and cut_to is not None:
                self.wfile.write((b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)[:cut_to])
                return
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Retry-After", "7")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/score", answered
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class TestService:
    ROWS = [{"id": n, "text": "x" * n} for n in range(10)]  # noqa: RUF012

    def test_it_waits_for_a_busy_service(self) -> None:
        """Three answers of 503, then each of three batches once, and before them the first for the schema."""
        with serving(refuse="none", busy_first=3) as (url, answered):
            ran = run_local(Service(url=url, batch_size=4), self.ROWS)
        assert [row["score"] for row in ran.rows] == list(range(10))
        assert answered == {503: 3, 200: 4}

    @pytest.mark.parametrize("cut_to", [0, 4, 50], ids=["nothing", "status", "body"])
    def test_an_answer_that_is_cut_off_is_asked_for_again(self, cut_to: int) -> None:
        with serving(refuse="none", busy_first=2, cut_to=cut_to) as (url, answered):
            ran = run_local(Service(url=url), self.ROWS)
        assert [row["score"] for row in ran.rows] == list(range(10))
        assert answered == {503: 2, 200: 2}

    def test_a_text_that_is_refused_is_set_aside_alone(self) -> None:
        with serving(refuse="xxxxx") as (url, _):
            ran = run_local(Service(url=url, batch_size=4), self.ROWS)
        assert [row["id"] for row in ran.rows] == [0, 1, 2, 3, 4, 6, 7, 8, 9]
        assert [one["reason"] for one in ran.quarantine] == ["the service refuses it: HTTP 422"]

    @pytest.mark.slow
    def test_a_service_that_is_gone_is_waited_for_until_the_shard_is_given_up(self) -> None:
        with serving() as (url, _):
            pass
        ran = run_local(Service(url=url), self.ROWS)
        assert ran.summary.state == "failed"
        assert "Connection refused" in ran.summary.failures[0].error

    @pytest.mark.parametrize(
        "scores", ["123", {"0": 0.5, "1": 1, "2": 2}, [True, 1, 2], ["0.5", 1, 2], [None, 1, 2], [[1], 1, 2], [1, 2], 3]
    )
    def test_an_answer_without_a_number_for_each_text_is_refused_and_quoted(self, scores: Any) -> None:
        """Whatever else three numbers could be made of."""
        for answer in ({"scores": scores}, scores, {"error": scores}):
            with pytest.raises(ValueError, match=r"the service answered b'.*, expected {\"scores\": .* with 3 numbers"):
                _scores(json.dumps(answer).encode(), 3)

    def test_what_is_no_json_is_quoted(self) -> None:
        for answer in (b"<html>down for maintenance</html>", b"", b"\xff\xfe\x00"):
            with pytest.raises(ValueError, match=re.escape(f"the service answered {answer!r}")):
                _scores(answer, 3)
        assert _scores(b'{"scores": [1, 2.5, -3e2]}', 3) == [1.0, 2.5, -300.0]

    def test_digits_of_a_text_are_no_scores(self) -> None:
        with serving(refuse="none", answer={"scores": "0123456789"}) as (url, _):
            ran = run_local(Service(url=url), self.ROWS)
        assert (ran.summary.state, ran.summary.done) == ("failed", 0)
        assert "0123456789" in ran.summary.failures[0].error

    @pytest.mark.parametrize(
        "url", ["", "localhost:8000/score", "ftp://host/x", "file:///etc/hosts", "http://", "http:///x"]
    )
    def test_an_address_that_cannot_be_posted_to_is_refused_at_once(self, url: str) -> None:
        """It was waited for, twenty times."""
        with pytest.raises(
            ConfigError, match=re.escape(f"--url is {url!r}, expected an address that begins with http:")
        ):
            run_local(Service(url=url), self.ROWS)

    def test_its_address_is_no_part_of_what_it_makes(self, tmp_path: Path) -> None:
        with serving(refuse="none") as (url, _):
            run_local(Service(url=url), self.ROWS, directory=tmp_path)
        assert run_local(Service(url="http://elsewhere"), self.ROWS, directory=tmp_path).summary.state == "complete"


def record(kind: str, url: str, body: bytes) -> bytes:
    head = f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: {url}\r\nWARC-Date: 2026-11-01T00:00:00Z\r\n"
    return head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body + b"\r\n\r\n"


def response(html: bytes, content_type: str = "text/html; charset=utf-8") -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\n\r\n".encode() + html


RECORDS = [
    record("warcinfo", "", b"software: none"),
    record("response", "http://a.example/", response("<p>ä</p>".encode())),
    record("response", "http://b.example/", response(b"\xe4", "text/html; charset=latin-1")),
    record("response", "http://c.example/x.png", response(b"\x89PNG", "image/png")),
    record("response", "http://d.example/", response(b"<b>\r\n\r\n</b>")),
]


class TestWarc:
    @pytest.mark.parametrize("packed", [True, False])
    def test_pages_become_rows(self, packed: bool) -> None:
        data = b"".join(gzip.compress(one) if packed else one for one in RECORDS)
        ran = run_local(Warc, files={"a.warc.gz" if packed else "a.warc": data})
        assert [(row["url"][7], row["status"], row["html"]) for row in ran.rows] == [
            ("a", 200, "<p>ä</p>"),
            ("b", 200, "ä"),
            ("d", 200, "<b>\r\n\r\n</b>"),
        ]
        assert ran.summary.books.counters == {"left out: no HTML": 1, "records: warcinfo": 1}

    @pytest.mark.parametrize(
        ("data", "record", "reason"),
        [
            (b"".join(map(gzip.compress, RECORDS))[:-40], 5, "Compressed file ended"),
            (b"".join(map(gzip.compress, RECORDS)) + b"no gzip", 6, "Not a gzipped file"),
            (b"".join(map(gzip.compress, RECORDS)) + gzip.compress(b"<html>"), 6, "no record begins with b'<html>'"),
        ],
    )
    def test_what_cannot_be_read_is_set_aside_with_its_place(self, data: bytes, record: int, reason: str) -> None:
        ran = run_local(Warc, files={"a.warc.gz": data})
        assert len(ran.rows) == (2 if record == 5 else 3)
        [bad] = ran.quarantine
        assert reason in bad["reason"]
        assert json.loads(bad["row"]) == {"record": record}

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            (response(b"<p>", "text/html; charset=nonsense"), "unknown encoding: nonsense"),
            (response(b"<p>", "text/html; charset=base64"), "'base64' is not a text encoding"),
            (response(b"<p>", 'text/html; charset="a\0b"'), "embedded null character"),
            (response(b"+2AA-", "text/html; charset=utf-7"), "surrogates not allowed"),
            (response(b"").replace(b" 200 OK", b""), "no status is in b'HTTP/1.1'"),
            (response(b"").replace(b"200", b"abc"), "no status is in b'HTTP/1.1 abc OK'"),
            (response(b"").replace(b"200", b"9" * 20), "no status is in b'HTTP/1.1 99999"),
        ],
    )
    def test_a_page_that_cannot_be_read_costs_no_other(self, body: bytes, reason: str) -> None:
        odd = record("response", "http://odd.example/", body)
        ran = run_local(Warc, files={"a.warc": b"".join([*RECORDS[:2], odd, *RECORDS[2:]])})
        assert ran.summary.state == "complete"
        assert [row["url"][7] for row in ran.rows] == ["a", "b", "d"]
        [bad] = ran.quarantine
        assert json.loads(bad["row"]) == {"record": 3}
        assert reason in bad["reason"]

    @pytest.mark.parametrize("length", [b"", b"Content-Length: -5\r\n", b"Content-Length: 1_0\r\n", b"Content-Length"])
    def test_a_record_without_an_end_is_set_aside_with_what_follows(self, length: bytes) -> None:
        """No length, one that is none, or a file that ends there: the pages before it are kept."""
        odd = b"WARC/1.0\r\nWARC-Type: response\r\n" + length + b"\r\n<p>" * length.endswith(b"\n")
        ran = run_local(Warc, files={"a.warc": b"".join([*RECORDS[:2], odd])})
        assert ran.summary.state == "complete"
        assert [row["url"][7] for row in ran.rows] == ["a"]
        assert [json.loads(bad["row"]) for bad in ran.quarantine] == [{"record": 3}]

    def test_an_address_that_is_not_ascii_is_a_text(self) -> None:
        ran = run_local(Warc, files={"a.warc": record("response", "http://ä.example/", response(b""))})
        assert [row["url"] for row in ran.rows] == ["http://ä.example/"]

    def test_a_page_that_is_too_large_is_left_out(self) -> None:
        ran = run_local(Warc(max_page_bytes=8), files={"a.warc": b"".join(RECORDS)})
        assert [row["url"][7] for row in ran.rows] == ["b"]
        assert ran.summary.books.counters["left out: too large"] == 2


def test_a_pool() -> None:
    texts = {"en": "the cat sat on the mat and looked at the dog", "de": "die Katze lag auf der Matte und sah den Hund"}
    rows = [{"id": n, "text": text} for n, text in enumerate(texts.values())]
    ran = run_local(Pool, rows)
    assert [row["lang"] for row in ran.rows] == list(texts)


def test_several_steps_in_one_job() -> None:
    """Two authors; one has enough comments."""
    rows = [{"id": str(n), "author": "often" if n % 3 else "rarely", "body": "", "score": n} for n in range(9)]
    rows += [{"id": "x", "author": "[deleted]", "body": "", "score": 1}] * 7
    ran = run_local(Authors, rows)
    assert [(row["author"], row["comments"], row["mean_score"]) for row in ran.rows] == [("often", 6, 4.5)] * 6
    assert ran.summary.books.balanced
