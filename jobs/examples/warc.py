"""Read pages out of web archives: `python jobs/examples/warc.py --input 'gs://b/*.warc.gz' --output gs://b/pages`.

A `FileJob` reads its files itself, here WARC (ISO 28500) as Common Crawl writes it: a gzip member for each record, a
record for each answer of a web server. Each page becomes a row. A page that cannot be read is set aside with its place
in the file, and those behind it are read; where no record begins, or one is cut off, the rest of the file is.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from email.message import Message
from email.parser import HeaderParser
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
                for read, (header, body) in enumerate(records(stream), 1):
                    yield from self._pages(read, header, body)
            # Of where records begin and end alone: what follows is not known, so nothing of it can be read.
            except (EOFError, zlib.error, gzip.BadGzipFile, ValueError) as error:
                self.quarantine({"record": read + 1}, f"cannot be read from here on: {error}", read)

    def _pages(self, number: int, header: Message, body: bytes) -> list[dict[str, Any]]:
        """Returns the row of a record, if it is a page. One that cannot be read costs no other."""
        if header["WARC-Type"] != "response":
            self.count(f"records: {header['WARC-Type']}")
            return []
        try:
            page = self._page(header, body)
        except (LookupError, ValueError) as error:
            self.quarantine({"record": number}, f"the page cannot be read: {error}", number - 1)
            return []
        return [] if page is None else [page]

    def _page(self, header: Message, body: bytes) -> dict[str, Any] | None:
        """Returns the row of a response, or None, counted, for what is no page. Raises ValueError, or LookupError for
        an encoding that there is not, where no row of the schema can be made."""
        head, _, html = body.partition(b"\r\n\r\n")
        first, _, fields = head.partition(b"\r\n")
        http = HeaderParser().parsestr(fields.decode("latin-1"))
        if http.get_content_type() != "text/html":
            self.count("left out: no HTML")
            return None
        if len(html) > self.max_page_bytes:
            self.count("left out: too large")
            return None
        status = re.match(rb"\S+\s+(\d{1,9})(?!\S)", first)
        if status is None:
            raise ValueError(f"no status is in {first[:40]!r}")
        text = html.decode(http.get_content_charset("utf-8"), "replace")
        text.encode()  # raises for half of a surrogate pair, which some encodings can say and no column can have
        return {"url": header["WARC-Target-URI"], "date": header["WARC-Date"], "status": int(status[1]), "html": text}


def records(stream: BinaryIO | gzip.GzipFile) -> Iterator[tuple[Message, bytes]]:
    """Yields header and body of each record. Raises ValueError where none begins, EOFError where one is cut off."""
    while line := stream.readline():
        if line in (b"\r\n", b"\n"):
            continue
        if not line.startswith(b"WARC/"):
            raise ValueError(f"no record begins with {line[:40]!r}")
        lines = b""
        while (line := stream.readline()) not in (b"\r\n", b"\n"):
            if not line:
                raise EOFError("the header of a record is cut off")
            lines += line
        header = HeaderParser().parsestr(lines.decode("utf-8", "replace"))
        length = str(header["Content-Length"]).strip()
        if not re.fullmatch("[0-9]{1,18}", length):
            raise ValueError(f"the Content-Length of a record is {length}, expected a number of bytes")
        size = int(length)
        body = stream.read(size)
        if len(body) < size:
            raise EOFError(f"a record of {size:,} bytes ends after {len(body):,}")
        yield header, body


if __name__ == "__main__":
    Warc.main()
