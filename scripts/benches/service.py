"""A job that calls a service which refuses some calls, beside the same job and a service that refuses none."""

from __future__ import annotations

import http.client
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import pyarrow as pa
import pyarrow.parquet as pq

from curate.errors import RetryLater
from curate.job.job import Job
from curate.job.params import param

from .common import SCRIPT, Report, Run, alternate, expect, once, wait_until_ready, warm_ray

ANSWER_S, SLOW_S = 0.005, 0.05
"""What a call takes, and one in twenty."""
SLOW, THROTTLED, BROKEN = 0.05, 0.10, 0.05
"""Shares of the calls: those that are slow, answered by 429, and by 500."""
AGAIN_S = 0.01
"""What the job asks to wait after a refusal."""
TARGET = 1.5
SLOTS = 8
"""Calls that are made at once on Ray: they wait for the service, not for a CPU."""


class Calling(Job):
    """Call a service for each batch."""

    version = "1"
    batch_size = 1
    num_cpus = 2 / SLOTS
    output_schema = pa.schema([("n", pa.int64()), ("answer", pa.string())])
    url: str = param("", help="the service", identity=False)

    def setup(self) -> None:
        self.connection = http.client.HTTPConnection(urlsplit(self.url).netloc)

    def process(self, batch: pa.Table) -> pa.Table:
        self.metric("calls", 1)
        self.connection.request("POST", f"/{batch['n'][0].as_py()}")
        answer = self.connection.getresponse()
        said = answer.read().decode()
        if answer.status != 200:
            raise RetryLater(AGAIN_S, f"HTTP {answer.status}")
        return batch.append_column("answer", pa.array([said]))


class Service:
    """Decides what becomes of each call, the same in every run, and counts the calls of each batch."""

    def __init__(self, *, refuses: bool) -> None:
        self.refuses = refuses
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()
        self._served: Counter[str] = Counter()

    def answer(self, batch: str) -> tuple[int, float]:
        """Returns the status of a call and the seconds that it takes."""
        with self._lock:
            self._calls[batch] += 1
            chance = random.Random(f"{batch} {self._calls[batch]}")
            seconds = SLOW_S if chance.random() < SLOW else ANSWER_S
            fate = chance.random() if self.refuses else 1.0
            status = 429 if fate < THROTTLED else 500 if fate < THROTTLED + BROKEN else 200
            self._served[batch] += status == 200
            return status, seconds

    def told(self) -> dict[str, int]:
        """Returns how many calls there were, of how many batches, and how many batches were served again."""
        with self._lock:
            again = sum(times > 1 for times in self._served.values())
            return {"calls": self._calls.total(), "batches": len(self._served), "again": again}


def serve(*, refuses: bool) -> None:
    """Serves on a free port of this machine, which is printed, until standard input ends."""
    service = Service(refuses=refuses)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            status, seconds = service.answer(self.path)
            time.sleep(seconds)
            self._say(status, b"done")

        def do_GET(self) -> None:
            self._say(200, json.dumps(service.told()).encode())

        def _say(self, status: int, body: bytes) -> None:
            self.send_response_only(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(server.server_address[1], flush=True)  # noqa: T201 - whoever started it reads that
        print("ready", flush=True)  # noqa: T201
        sys.stdin.read()


@contextmanager
def serving(*, refuses: bool) -> Iterator[str]:
    """Runs a service in a process of its own; yields its address."""
    arguments = [sys.executable, str(SCRIPT), "serve", *(["--refuses"] if refuses else [])]
    child = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        port = child.stdout.readline().strip()
        wait_until_ready(child)
        yield f"http://127.0.0.1:{port}"
    finally:
        child.stdin.close()
        child.wait()


def asked(url: str) -> dict[str, int]:
    """Returns what a service was asked so far."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    connection.request("GET", "/")
    found: dict[str, int] = json.loads(connection.getresponse().read())
    return found


def rows(folder: Path, shards: int, batches: int) -> Path:
    """Writes files of as many rows, each of which is a batch, unless they are there."""

    def make() -> None:
        for shard in range(shards):
            numbers = range(shard * batches, (shard + 1) * batches)
            pq.write_table(pa.table({"n": list(numbers)}), folder / f"{shard:03d}.parquet")

    return once(folder, make)


def run_once(source: Path, output: Path, backend: str, *, refuses: bool) -> dict[str, Any]:
    """Runs the job beside a service of its own; returns what the service was asked, and how the run ended."""
    with serving(refuses=refuses) as url:
        summary = Calling(url=url).run(input=str(source), output=str(output), backend=backend)
        metrics = summary.books.sorted_metrics().get("metrics", {})
        state, tries = summary.state.value, summary.attempts
        return asked(url) | {"state": state, "tries": tries, "measured": metrics.get("calls", 0)}


def measure_service(report: Report, scratch: Path, shards: int, batches: int, backend: str, rounds: int) -> None:
    """So many shards of so many batches, with and without refusals, in alternation; a batch is served once."""
    source = rows(scratch / f"service-{shards}-{batches}", shards, batches)
    runs = Path(tempfile.mkdtemp(dir=scratch, prefix="runs-"))
    found: dict[str, Any] = {}

    def contender(name: str, *, refuses: bool) -> Run:
        def run(output: Path) -> dict[str, Any]:
            found[name] = run_once(source, output, backend, refuses=refuses)
            return dict(found[name])

        return run

    def check(_: Path, told: dict[str, Any]) -> None:
        expect("the state of the run", told["state"], "complete")
        expect("the tries of shards", told["tries"], shards)
        expect("the number of batches that were served", told["batches"], shards * batches)
        expect("the number of batches that were served again", told["again"], 0)
        expect("the number of calls that the job measured", told["measured"], told["calls"])

    if backend == "ray":
        warm_ray()
    calm, busy = "no call is refused", f"{THROTTLED:.0%} 429, {BROKEN:.0%} 500"
    click.echo(f"\n{shards:,} shards of {batches:,} batches, one call a batch, {backend}, {rounds} alternated rounds")
    try:
        results = alternate(
            {calm: contender(calm, refuses=False), busy: contender(busy, refuses=True)}, runs, rounds, check
        )
    finally:
        if backend == "ray":
            import ray

            ray.shutdown()
        shutil.rmtree(runs)
    for result in results:
        single = "  ".join(f"{seconds:.1f}" for seconds in result.seconds)
        calls = found[result.name]["calls"]
        click.echo(f"  {result.name:<28}{result.median_s:>7.1f} s   {calls:,} calls   [{single}]")
    ratio = results[1].median_s / results[0].median_s
    report.target("with refusals, to the time without", f"{ratio:.2f} x", f"<= {TARGET:g} x", ratio <= TARGET)
