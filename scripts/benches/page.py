"""The page of a job of very many shards: how large it is, how long `curate page` takes to make it, and with how much
memory; and what it costs to look again, as `curate serve` does."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import orjson

from curate.storage.protocol import Calls, Store
from curate.stores.open import wrap_stores

from .common import SCRIPT, Report
from .tasks import finish

PAGE_KB, PAGE_S, PAGE_MB = 300, 3.0, 300


def page_and_say(output: str) -> None:
    """The process that is measured: makes a page, and makes it again; says what both took."""
    from curate.pages.document import document
    from curate.pages.read import read_page
    from curate.pages.serve.remembered import Memory

    stores: list[Store] = []

    def counted(store: Store) -> Store:
        stores.append(store)
        return store

    def calls() -> dict[str, int]:
        total = Calls()
        for store in stores:
            total = total.plus(store.calls)
        stores.clear()
        return total.as_dict()

    with wrap_stores(counted), wrap_stores(Memory().of):
        size = len(document(read_page(output, time.time())))
        # Not getrusage, which starts from the memory of the process that forked this one.
        peak_kib = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
        first = calls()
        started = time.perf_counter()
        read_page(output, time.time())
        again_s = time.perf_counter() - started
    told = {"bytes": size, "peak_mb": peak_kib * 1024 / 1e6, "first": first, "again": calls(), "again_s": again_s}
    click.echo(orjson.dumps(told))


def page_process(output: Path) -> Mapping[str, Any]:
    """Has a process of its own say what a page takes."""
    command = [sys.executable, str(SCRIPT), "page-and-say", str(output)]
    told: Mapping[str, Any] = orjson.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return told


def command_s(output: Path, file: Path) -> float:
    """Returns the seconds of `curate page`, the start of Python and imports with it."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "curate", "page", str(output), "--output", str(file)]
    subprocess.run(command, capture_output=True, check=True)
    return time.perf_counter() - started


def measure_page(report: Report, scratch: Path, shards: int, rounds: int) -> None:
    """Makes the page of a finished job, each time in another process."""
    job = finish(scratch, shards)
    file = scratch / "page.html"
    taken = [command_s(job.output, file) for _ in range(rounds)]
    found = [page_process(job.output) for _ in range(rounds)]
    seconds = statistics.median(taken)
    again_s, peak_mb = (statistics.median(one[name] for one in found) for name in ("again_s", "peak_mb"))
    size = found[0]["bytes"] / 1e3
    click.echo(f"\nThe page of a finished job of {shards:,} shards, {rounds} rounds")
    click.echo(f"  storage calls: {found[0]['first']}; made again, {found[0]['again']} in {again_s:.2f} s")
    report.target("size", f"{size:.0f} KB", f"<= {PAGE_KB} KB", size <= PAGE_KB)
    report.target("made, process and all", f"{seconds:.2f} s", f"<= {PAGE_S:.0f} s", seconds <= PAGE_S)
    report.target("memory of the process", f"{peak_mb:.0f} MB", f"<= {PAGE_MB} MB", peak_mb <= PAGE_MB)
