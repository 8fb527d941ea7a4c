"""Extraction of pages out of a WARC file beside a plain loop: `fastwarc` reads, the same extractor is called the same
way on each page, and the texts are written. A page that crashes or hangs ends the loop, and costs curate that page.

Compared is the CPU of all processes, user and system, start and end of curate's own run with it. It has two processes;
all run on one core, as two that run at once share caches and the way to memory: the same work takes more CPU then.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
from fastwarc.stream_io import GzipReader
from fastwarc.warc import ArchiveIterator, WarcRecordType

from curate.jobs.extract import Extract
from curate.web.page import Extractor, decoded

from .common import Check, Report, alternate, expect, once, runs_folder
from .pages import archive

RATIO = 1.15
MANY = 10_000_000


def plain_loop(extractor: str, source: Path) -> Callable[[Path], int]:
    """Returns what extracts each page in this process."""

    def run(output: Path) -> int:
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


def curate_job(extractor: str, source: Path) -> Callable[[Path], int]:
    """Returns what runs the job, in this process and the one beside it."""

    def run(output: Path) -> int:
        summary = Extract(extractor=extractor).run(input=str(source), output=str(output), backend="inline")
        return int(summary.books.rows_out)

    return run


def counted(pages: int) -> Check:
    """Returns what checks that a run has extracted all pages."""

    def check(_: Path, found: Any) -> None:
        expect("the number of pages", found, pages)

    return check


def measure_extract(report: Report, scratch: Path, extractors: tuple[str, ...], pages: int, rounds: int) -> None:
    """Extracts the same pages with each, one after the other."""
    folder = once(scratch / f"pages-{pages}", lambda: _write(scratch / f"pages-{pages}" / "pages.warc.gz", pages))
    source = folder / "pages.warc.gz"
    click.echo(f"\n{pages:,} pages of {source.stat().st_size / pages / 1e3:.1f} kB packed, {rounds} rounds")
    for name in extractors:
        contenders = {"plain loop": plain_loop(name, source), "curate": curate_job(name, source)}
        with runs_folder(scratch) as output, one_core():
            results = alternate(contenders, output / name, rounds, counted(pages))
        cpu_s = [min(a + b for a, b in zip(one.user_s, one.system_s, strict=True)) for one in results]
        for one, taken in zip(results, cpu_s, strict=True):
            click.echo(f"  {name}, {one.name}: {pages / taken:,.0f} pages/s of CPU, {one.median_s:.2f} s")
        ratio = cpu_s[1] / cpu_s[0]
        report.target(f"{name}, CPU to that of the plain loop", f"{ratio:.2f} x", f"<= {RATIO} x", ratio <= RATIO)


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Keeps this process, and those that it starts, to one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _write(path: Path, pages: int) -> None:
    path.write_bytes(archive(pages))
