"""Extraction of pages out of a WARC file beside a plain loop: `fastwarc` reads, the same extractor is called the same
way on each page, and the texts are written. A page that crashes or hangs ends the loop, and costs curate that page.

Each run is a process of its own, as users start it: in one process the loop has the memory of its earlier runs, and the
process beside curate's worker, which is a new one each time, has not. Compared is the CPU of that process and all that
it starts, user and system, with the start of the process beside it and the end of the run; the start of Python and
imports do not count. All runs on one core, as two processes that run at once share caches and the way to memory: the
same work takes more CPU then.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from .common import Report, Runs, expect, go, once, runs_folder
from .extract_run import FEW
from .pages import archive

RATIO = 1.15
FEW_PAGES = 20
PROGRAM = Path(__file__).with_name("extract_run.py")
CONTENDERS = {"plain": "plain loop", "curate": "curate"}


def measure_extract(report: Report, scratch: Path, extractors: tuple[str, ...], pages: int, rounds: int) -> None:
    """Extracts the same pages with each, one after the other."""
    folder = once(scratch / f"extract-{pages}", lambda: _write(scratch / f"extract-{pages}", pages))
    source = folder / "pages.warc.gz"
    click.echo(f"\n{pages:,} pages of {source.stat().st_size / pages / 1e3:.1f} kB packed, {rounds} rounds")
    for extractor in extractors:
        results = {name: Runs(says) for name, says in CONTENDERS.items()}
        with runs_folder(scratch) as output, one_core():
            for number in range(rounds):
                for name, one in results.items():
                    place = output / f"{extractor}-{number}-{name}"
                    ended = go([sys.executable, PROGRAM, name, extractor, source, place], place.with_suffix(".err"))
                    expect(f"{one.name}: the number of pages", ended.found, pages)
                    one.user_s.append(ended.user_s)
                    one.system_s.append(ended.system_s)
                    one.cpu_s.append(ended.user_s + ended.system_s)
        for one in results.values():
            least_s = min(one.cpu_s)
            single = ", ".join(f"{taken:.2f}" for taken in one.cpu_s)
            click.echo(
                f"  {extractor}, {one.name}: {pages / least_s:,.0f} pages/s of CPU, "
                f"{one.median_user_s:.2f} + {one.median_system_s:.2f} s ({single})"
            )
        ratio = min(results["curate"].cpu_s) / min(results["plain"].cpu_s)
        report.target(f"{extractor}, CPU to that of the plain loop", f"{ratio:.2f} x", f"<= {RATIO} x", ratio <= RATIO)


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Keeps this process, and those that it starts, to one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _write(folder: Path, pages: int) -> None:
    (folder / "pages.warc.gz").write_bytes(archive(pages))
    (folder / FEW).write_bytes(archive(FEW_PAGES))
