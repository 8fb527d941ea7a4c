"""Extract the text of pages: `python jobs/extract.py --input 'gs://b/*.warc.gz' --output gs://b/pages`.

Reads web archives: WARC, WARC.gz and WARC.zst, as Common Crawl lays them out. A record becomes a row (id, url, host,
date, content_type, charset, title, text) if it is the page of a server that answered 200 with HTML, or a text that was
extracted before (a conversion: WET). Each other response or conversion is dropped, and the summary says for what.
Records of other types (requests, metadata) are no pages, and are counted. The id is the record's own, which no other
record has; where it has none, `FILE:NUMBER`: its file as the output is called, and its number in it, from 0.

`--extractor resiliparse` takes the main content, as DCLM did; `trafilatura` does as FineWeb did. `curate/web/page` says
how each is called. Pages are extracted in a process beside the worker: a page that crashes its parser, or takes more
than `--timeout-s` of the processor, goes to quarantine alone. So do records that are cut off or broken, each with its
place in the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import pyarrow as pa

from curate.errors import BadRow, ConfigError, CorruptInput
from curate.job.params import param
from curate.job.shapes import FileJob
from curate.pipeline.sandbox import Sandboxed
from curate.sources.inputs import InputFile
from curate.texts.urls import hosts
from curate.units import MIB
from curate.web import http
from curate.web.members import blocks, codec_of
from curate.web.page import RESILIPARSE, Extractor, Page, decoded, is_html
from curate.web.warc import Broken, Record, records

NOT_HTTP, STATUS, NOT_HTML = "no answer of a web server", "status is not 200", "not HTML"
NOT_TEXT, TOO_LARGE, EMPTY = "not text", "too large", "empty after extraction"
HTML = ("text/html", "application/xhtml+xml")
SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("id", "url", "host", "date", "content_type", "charset", "title", "text")]
)
BATCH_BYTES = 16 * MIB
BATCH_RECORDS = 512
"""Records that are extracted together: at most so many, and no more once they have so many bytes."""


@dataclass(frozen=True)
class _Found:
    """What became of a record of a file."""

    number: int
    """Its place in the file, from 0."""
    place: int
    """The byte of the file at which it, or its member, begins."""
    row: Mapping[str, str | None]
    page: Page | None = None
    work: Mapping[str, Any] | None = None
    """What is to be extracted."""
    dropped: str | None = None
    broken: str | None = None


class Extract(FileJob):
    """Extract the text of pages in web archives.

    Rows are in the order of the records. Records of responses and conversions count as created.
    """

    name = "extract"
    version = "1"
    output_schema = SCHEMA
    extractor: Literal["resiliparse", "trafilatura"] = param(RESILIPARSE, help="what takes the text out of a page")
    extractor_options: dict[str, Any] = param(
        {}, help="arguments of the extractor's function, as JSON, beside its own ones"
    )
    max_page_bytes: int = param(10 * MIB, help="maximum bytes of a page, as it is stored and unpacked")
    timeout_s: float = param(
        10.0, help="seconds of the processor that the extraction of a page may take; ten times as many by the clock"
    )

    def check(self) -> None:
        """Raises ConfigError for limits that no page could keep to, and arguments that the extractor does not take."""
        if self.max_page_bytes < 1:
            raise ConfigError(f"--max-page-bytes {self.max_page_bytes} would keep no page; give at least 1")
        if not self.timeout_s > 0:
            raise ConfigError(f"--timeout-s {self.timeout_s:g} is no time; give seconds above 0")
        extractor = Extractor(self.extractor, self.extractor_options, self.max_page_bytes)
        if self.extractor_options:
            extractor.check()

    def setup(self) -> None:
        extractor = Extractor(self.extractor, self.extractor_options, self.max_page_bytes)
        self._extracted = Sandboxed(extractor, self.timeout_s)

    def process_file(self, file: InputFile) -> Iterator[pa.Table]:
        waiting: list[_Found] = []
        held = 0
        for found in chain(self._records(file), [None]):
            if found is not None:
                waiting.append(found)
                held += len(found.work["payload"]) if found.work else len(found.page.text) if found.page else 0
                if held < BATCH_BYTES and len(waiting) < BATCH_RECORDS:
                    continue
            yield self._table(waiting)
            waiting, held = [], 0

    def _records(self, file: InputFile) -> Iterator[_Found]:
        codec = codec_of(file.uri)
        # With room for the header of an answer, which is no part of the page.
        most = self.max_page_bytes + MIB
        others: Counter[str] = Counter()
        # A packed file of no bytes was cut off: one of no records has some.
        broken, whole = "it is empty" if codec is not None and not file.size else "", False
        with file.open() as stored:
            read = records(blocks(stored, codec), most, packed=codec is not None)
            for number, (place, record) in enumerate(read):
                whole = whole or isinstance(record, Record)
                broken = broken or (record.reason if isinstance(record, Broken) else "")
                kind = "" if isinstance(record, Broken) else record.headers.get("warc-type", "").strip().lower()
                if isinstance(record, Record) and kind and kind not in ("response", "conversion"):
                    others[kind[:40]] += 1
                    continue
                id = record.headers.get("warc-record-id", "").strip("<> ") or f"{file.id}:{number}"
                yield self._found(id, number, place, kind, record)
        if broken and not whole:
            # A broken record or two are set aside; of a file that is something else, nothing would be told.
            raise CorruptInput(f"{file.uri} is no web archive: no whole record is in it; {broken}")
        for name, number in others.items():
            self.count(f"records: {name}", number)

    def _found(self, id: str, number: int, place: int, kind: str, record: Record | Broken) -> _Found:
        fields = record.headers
        url = fields.get("warc-target-uri", "").strip("<>") or None
        row: dict[str, str | None] = {"id": id, "url": url, "date": fields.get("warc-date")}
        if isinstance(record, Broken):
            return _Found(number, place, row, broken=record.reason)
        if not kind or url is None:
            lacks = "WARC-Target-URI" if kind else "WARC-Type"
            return _Found(number, place, row, broken=f"it has no {lacks}")
        if record.body is None:
            return _Found(number, place, row, dropped=TOO_LARGE)
        if kind == "conversion":
            row["content_type"] = http.media_type(fields.get("content-type", ""))
            if not (row["content_type"] or "text/").startswith("text/"):
                return _Found(number, place, row, dropped=NOT_TEXT)
            if len(record.body) > self.max_page_bytes:
                return _Found(number, place, row, dropped=TOO_LARGE)
            charset, text = decoded(record.body, None)
            return _Found(number, place, row, page=Page(charset, None, text))
        answer = http.answer(record.body)
        if answer is None:
            return _Found(number, place, row, dropped=NOT_HTTP)
        type = http.media_type(fields.get("warc-identified-payload-type", "")) or answer.content_type
        row["content_type"] = type or (HTML[0] if is_html(answer, self.max_page_bytes) else None)
        if answer.status != 200:
            return _Found(number, place, row, dropped=STATUS)
        if row["content_type"] not in HTML:
            return _Found(number, place, row, dropped=NOT_HTML)
        if len(answer.payload) > self.max_page_bytes:
            return _Found(number, place, row, dropped=TOO_LARGE)
        work = {
            "payload": answer.payload,
            "encoding": answer.headers.get("content-encoding", ""),
            "transfer": answer.headers.get("transfer-encoding", ""),
            "charset": answer.charset,
        }
        return _Found(number, place, row, work=work)

    def _table(self, found: list[_Found]) -> pa.Table:
        """Returns the rows of records, and books all others."""
        results = self._extracted.results(one.work for one in found if one.work is not None)
        rows: list[dict[str, str | None]] = []
        dropped: dict[str, list[dict[str, str | None]]] = {}
        for one in found:
            page: Page | BadRow | None = one.page
            reason, broken = one.dropped, one.broken
            if one.work is not None:
                page = next(results)
                if page is None:
                    reason = TOO_LARGE
            if isinstance(page, BadRow):
                broken = str(page.reason)
            elif page is not None and not page.text.strip():
                reason = EMPTY
            if broken is not None:
                self.quarantine({**one.row, "byte": one.place}, broken, one.number)
            elif reason is not None:
                dropped.setdefault(reason, []).append(dict(one.row))
            else:
                assert isinstance(page, Page)
                rows.append({**one.row, **page._asdict()})
        for _ in results:
            raise AssertionError("more pages came back than were sent")
        for reason, some in dropped.items():
            self.drop(some, reason)
        columns = {name: pa.array([row.get(name) for row in rows], pa.string()) for name in SCHEMA.names}
        return pa.table({**columns, "host": hosts(columns["url"])}, schema=SCHEMA)


if __name__ == "__main__":
    Extract.main()
