"""One contender of `scripts/bench extract`: takes the texts out of the pages of one WARC file, and writes them.

    python extract_run.py plain|curate EXTRACTOR SOURCE OUTPUT

It extracts the few pages that lie beside SOURCE, so that all is imported, prints "ready", waits for a line on standard
input, and prints the number of pages that it has extracted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import click

FEW = "few.warc.gz"
MANY = 10_000_000
Run = Callable[[Path, Path], int]


def plain(extractor: str) -> Run:
    """Returns what extracts each page in this process: a page that crashes or hangs ends it."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from fastwarc.stream_io import GzipReader
    from fastwarc.warc import ArchiveIterator, WarcRecordType

    from curate.web.page import Extractor, decoded

    def run(source: Path, output: Path) -> int:
        function = Extractor(extractor, {}, MANY)
        rows = []
        with source.open("rb") as file:
            for record in ArchiveIterator(GzipReader(file), record_types=WarcRecordType.response):
                _, html = decoded(record.reader.read(), record.http_charset)
                title, text = function.extracted(html)
                rows.append({"url": record.headers.get("WARC-Target-URI"), "title": title, "text": text})
        output.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows), output / "pages.parquet", compression="zstd")
        return len(rows)

    return run


def curate(extractor: str) -> Run:
    """Returns what runs the job, in this process and the one beside it."""
    from curate.jobs.extract import Extract

    def run(source: Path, output: Path) -> int:
        summary = Extract(extractor=extractor).run(input=str(source), output=str(output), backend="inline")
        return int(summary.books.rows_out)

    return run


def main(name: str, extractor: str, source: Path, output: Path) -> None:
    """Prepares, waits, and runs."""
    run = {"plain": plain, "curate": curate}[name](extractor)
    run(source.with_name(FEW), output.with_name(f"{output.name}-few"))
    click.echo("ready")
    sys.stdin.readline()
    click.echo(run(source, output))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
