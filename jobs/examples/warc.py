"""Read pages out of web archives: `python jobs/examples/warc.py --input 'gs://b/*.warc.gz' --output gs://b/pages`.

A `FileJob` reads its files itself, here WARC (ISO 28500) as Common Crawl writes it: a gzip member for each record, a
record for each answer of a web server. Each page becomes a row. A record that cannot be read is set aside with its
place in the file; a file that is cut off keeps the pages before that place.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from email.message import Message
from email.parser import BytesParser
from typing import Any, BinaryIO

import pyarrow as pa

from curate import FileJob, param


class Warc(FileJob):
    """Read the HTML pages of WARC files."""

    version = "1"
    output_schema = pa.schema({"url": pa.string(), "date": pa.string(), "status": pa.int64(), "html": pa.string()})
    max_page_bytes: int = param(10 << 20, help="pages with more bytes are left out")

    def process_file(self, file: Any) -> Iterator[dict[str, Any]]:
        read = 0
        with file.open() as stored, gzip.open(stored) if file.uri.endswith(".gz") else stored as stream:
            try:
                for header, body in records(stream):
                    if header["WARC-Type"] != "response":
                        self.count(f"records: {header['WARC-Type']}")
                    elif (page := self._page(header, body)) is not None:
                        yield page
                    read += 1
            except (EOFError, zlib.error, gzip.BadGzipFile, ValueError) as error:
                self.quarantine({"record": read + 1}, f"cannot be read from here on: {error}", read)

    def _page(self, header: Message, body: bytes) -> dict[str, Any] | None:
        """Returns the row of a response, or None, counted, for what is no page."""
        head, _, html = body.partition(b"\r\n\r\n")
        first, _, fields = head.partition(b"\r\n")
        http = BytesParser().parsebytes(fields, headersonly=True)
        if http.get_content_type() != "text/html":
            self.count("left out: no HTML")
            return None
        if len(html) > self.max_page_bytes:
            self.count("left out: too large")
            return None
        status = int(first.split()[1])
        text = html.decode(http.get_content_charset("utf-8"), "replace")
        return {"url": header["WARC-Target-URI"], "date": header["WARC-Date"], "status": status, "html": text}


def records(stream: BinaryIO | gzip.GzipFile) -> Iterator[tuple[Message, bytes]]:
    """Yields header and body of each record. Raises ValueError where none begins, EOFError where one is cut off."""
    while line := stream.readline():
        if line in (b"\r\n", b"\n"):
            continue
        if not line.startswith(b"WARC/"):
            raise ValueError(f"no record begins with {line[:40]!r}")
        header = BytesParser().parsebytes(b"".join(iter(stream.readline, b"\r\n")), headersonly=True)
        size = int(header["Content-Length"])
        body = stream.read(size)
        if len(body) < size:
            raise EOFError(f"a record of {size:,} bytes ends after {len(body):,}")
        yield header, body


if __name__ == "__main__":
    Warc.main()
