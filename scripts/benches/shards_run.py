"""The program of `shards`: one phase of a job of very many shards over the real driver, dispatcher and ledger. Its
inputs and outputs are made up as they are listed, or are files of one byte. Prints what it took as one JSON object."""

from __future__ import annotations

import contextlib
import json
import pickle
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from curate.clock import SystemClock
from curate.graph.entry import run
from curate.job.shapes import FileJob
from curate.late_pandas import import_pandas_late
from curate.observe.job import ledger_status, read_status
from curate.prefetch import ahead
from curate.requests.listing import AT_ONCE
from curate.runtime.protocol import Backend, BackendEvent, Message, TaskEnd, TaskFinished
from curate.sources.inputs import InputFile
from curate.storage.listing import Columns, Listing, in_columns
from curate.storage.protocol import LIST_PAGE, Object, Store
from curate.stores.open import open_store, wrap_stores
from curate.tasks.books import Books
from curate.tasks.failure import ShardRecord

PER_FOLDER = 1000
SIZE_BYTES = 40 << 20
BEGAN_NS = 1_700_000_000_000_000_000
_NUMBER = re.compile(r"/RC_(\d+)")


class MadeUp:
    """A store of which the inputs, and the outputs that are `done`, are made up; the ledger is on the disk. A page of
    either takes `page_s` seconds, and as many are asked for at a time as stores of a service ask for."""

    def __init__(self, real: Store, source: str, output: str, done: bytearray, page_s: float) -> None:
        self._real, self._source, self._output, self._done, self._page_s = real, source, output, done, page_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def list(self, prefix: str) -> Iterator[Object]:
        """Returns what is made up, and what is there."""
        return Listing(self._pages(prefix))

    def _pages(self, prefix: str) -> Iterator[Columns]:
        if prefix.startswith(self._source):
            yield from self._made(self._inputs, range(len(self._done)))
            return
        if prefix.rstrip("/") == self._output:
            yield from self._made(self._outputs, (number for number, done in enumerate(self._done) if done))
        yield from in_columns(self._real.list(prefix), 1)

    def _made(self, page: Callable[[Sequence[int]], Columns], numbers: Iterable[int]) -> Iterator[Columns]:
        if not self._page_s:
            yield from map(page, _thousands(numbers))
            return

        def after_a_while(some: Sequence[int]) -> Columns:
            time.sleep(self._page_s)
            return page(some)

        for _, found in ahead(after_a_while, _thousands(numbers), AT_ONCE):
            yield found

    def _inputs(self, numbers: Sequence[int]) -> Columns:
        uris = [f"{self._source}/{_name(number)}.jsonl.gz" for number in numbers]
        return Columns(uris, [SIZE_BYTES + number % 977 for number in numbers], [*map(_generation, numbers)])

    def _outputs(self, numbers: Sequence[int]) -> Columns:
        uris = [f"{self._output}/{_name(number)}.jsonl.gz.parquet" for number in numbers]
        return Columns(uris, [1 << 20] * len(uris), [*map(_generation, numbers)])

    def stat(self, uri: str) -> Object:
        """Returns an object as it is listed."""
        if uri.startswith(self._source) and (found := _NUMBER.search(uri)):
            return Object(uri, SIZE_BYTES + int(found[1]) % 977, _generation(int(found[1])))
        return self._real.stat(uri)


def _thousands(numbers: Iterable[int]) -> Iterator[list[int]]:
    numbers = iter(numbers)
    while some := list(islice(numbers, LIST_PAGE)):
        yield some


def _name(number: int) -> str:
    return f"{number // PER_FOLDER:05d}/RC_{number:08d}"


def _generation(number: int) -> str:
    return f"{BEGAN_NS + number * 1_000_003}-{SIZE_BYTES}"


def make_inputs(source: str, shards: int) -> None:
    """Makes the inputs as files."""
    for number in range(shards):
        path = Path(f"{source}/{_name(number)}.jsonl.gz")
        if number % PER_FOLDER == 0:
            path.parent.mkdir(parents=True)
        path.write_bytes(b"x")


class Passing(FileJob):
    """Pass files through: nothing of it is run."""

    version = "1"
    output_schema = pa.schema([("id", pa.string())])

    def process_file(self, file: InputFile) -> Iterator[Any]:
        """Is not called."""
        raise AssertionError(file.uri)


class Instant(Backend):
    """A backend of many slots, each of whose tasks is done when it is looked at."""

    name = "instant"

    def __init__(self, done: bytearray, shard_s: float, output: str = "") -> None:
        """`shard_s` is what a shard says it took: the run is over much sooner than that of a real cluster. `output` is
        where outputs are made as files; empty where they are made up."""
        self._done = done
        self._shard_s = shard_s
        self._output = output
        self._tasks: deque[tuple[int, list[int], bytes]] = deque()

    def load(self, *program: Any, **how: Any) -> None:
        """Loads nothing."""

    def slots(self) -> int:
        """As many as one driver serves."""
        return 10_000

    def alone(self) -> bool:
        """It serves one driver."""
        return True

    def launch(self, task: int, payload: Any, pieces: int, **how: Any) -> None:
        """Notes a task. What it is sent is kept as bytes, as Ray keeps it until the task is done."""
        del pieces, how
        self._tasks.append((task, [rank for rank, _ in payload.shards], pickle.dumps(payload, 5)))

    def poll(self, timeout_s: float) -> list[BackendEvent]:
        """Says of all tasks that they are done."""
        del timeout_s
        news: list[BackendEvent] = []
        while self._tasks and len(news) < 200:
            task, ranks, _ = self._tasks.popleft()
            items = []
            for rank in ranks:
                self._done[rank] = 1
                books = Books(rows_in=1000, rows_out=900, dropped={"short": 100})
                made = self._written(rank) if self._output else (_generation(rank), 1 << 20)
                items.append(ShardRecord(rank, self._shard_s, None, books, *made, checksum=f"{rank:016x}"))
            news += [Message(task, items), TaskFinished(task, TaskEnd.RETURNED)]
        return news

    def _written(self, rank: int) -> tuple[str, int]:
        path = Path(f"{self._output}/{_name(rank)}.jsonl.gz.parquet")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        there = open_store(self._output).stat(str(path))
        return there.generation, there.size

    def take(self, task: int) -> Any:
        """Has no blocks."""
        raise AssertionError(task)

    def cancel(self, task: int | None = None) -> None:
        """Cancels nothing."""

    def close(self) -> None:
        """Keeps nothing."""


def _memory() -> dict[str, int]:
    status = Path("/proc/self/status").read_text()
    return {name: int(status.partition(f"{name}:")[2].split()[0]) << 10 for name in ("VmHWM", "VmRSS")}


def main(phase: str, shards: int, folder: str, shard_s: float, listed: str, page_s: float) -> None:
    """Goes through one phase; `listed` is `disk`, or `made-up`."""
    source, output = f"{folder}/in", f"{folder}/out"
    done = bytearray(shards) if phase == "run" else bytearray(b"\1") * shards
    # As the commands do.
    import_pandas_late()
    said: dict[str, Any] = {"base_bytes": _memory()["VmRSS"]}
    on_disk = listed == "disk"
    if on_disk and phase == "run":
        make_inputs(source, shards)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    with contextlib.nullcontext() if on_disk else wrap_stores(lambda real: MadeUp(real, source, output, done, page_s)):
        store = open_store(output)
        if phase == "listings":
            said["objects"] = sum(
                len(page) for root in (source, output) for page in in_columns(store.list(f"{root}/"), 1)
            )
        elif phase == "listing":
            said["objects"] = sum(len(page) for page in in_columns(store.list(f"{output}/"), 1))
        elif phase in ("status", "quick"):
            status = (read_status if phase == "status" else ledger_status)(output, SystemClock().now())
            said["done"] = status.done
        else:
            options = Passing.options(input=f"{source}/", output=output, backend="inline")
            ended = run(Passing().spec(), options, backend=Instant(done, shard_s, output if on_disk else ""))
            said |= {"state": str(ended.state), "total": ended.total, "skipped": ended.skipped}
    said |= {"seconds": time.perf_counter() - began_s, "cpu_s": time.process_time() - began_cpu_s}
    click.echo(json.dumps(said | {"peak_bytes": _memory()["VmHWM"]}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4]), sys.argv[5], float(sys.argv[6]))
