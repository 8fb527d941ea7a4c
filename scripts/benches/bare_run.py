"""A bare loop of what Arrow and the kernel do for a contest of corpora, and nothing else: no plan, no record, no check.

    bare_run.py maps FUNCTION SOURCE OUTPUT PROCESSES    # read a file, apply, write a file
    bare_run.py sort KEY SOURCE OUTPUT PROCESSES         # read, sort, write run files; map these, sort, write

Each stage has processes of its own, forked from one that has imported what they need. It prints "ready", waits for a
line, and prints the seconds that all took. What it takes is the least that the same work can take here: what is above
that is curate's own.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

CODEC = "zstd"
RUNS, RUNS_FOLDER = 4, "_runs"
"""Run files, and where they are."""
OUTPUTS = 10
"""Of a sort."""
PAGE_BYTES = 256 << 10
"""Bytes of rows that are written to a run file at once, as curate does."""


def measured(table: pa.Table) -> pa.Table:
    doubled = table.set_column(table.column_names.index("score"), "score", pc.multiply(table["score"], 2.0))
    return doubled.append_column("length", pc.cast(pc.utf8_length(table["text"]), "int64"))


def summed(table: pa.Table) -> pa.Table:
    return table.append_column("sum", pc.add(table["value"], table["group"]))


def kept(table: pa.Table) -> pa.Table:
    return table.filter(pc.field("score") < 0.5)


FUNCTIONS: dict[str, Callable[[pa.Table], pa.Table]] = {"write": measured, "append": summed, "filter": kept}


def map_file(function: str, output: Path, path: Path) -> None:
    made = FUNCTIONS[function](pq.read_table(path, use_threads=False))
    pq.write_table(made.combine_chunks(), output / path.name, compression=CODEC, use_dictionary=["group", "value"])


def run_file(key: str, output: Path, number: int, paths: Sequence[Path]) -> None:
    """Writes the rows of some files, sorted, as pages of Arrow."""
    rows = pa.concat_tables([pq.read_table(path, use_threads=False) for path in paths]).combine_chunks()
    order = _order(rows, key)
    page_rows = max(1, PAGE_BYTES * rows.num_rows // rows.nbytes)
    with (
        (output / RUNS_FOLDER / f"{number}.run").open("wb", buffering=0) as file,
        pa.ipc.new_file(file, rows.schema) as writer,
    ):
        for start in range(0, len(order), page_rows):
            writer.write_table(rows.take(order.slice(start, page_rows)).combine_chunks())


def part_file(key: str, output: Path, number: int) -> None:
    """Writes the rows of a range of all run files, sorted."""
    limits = np.iinfo(np.int64)
    low, high = (limits.min + (limits.max - limits.min) // OUTPUTS * at for at in (number, number + 1))
    found = []
    for path in sorted((output / RUNS_FOLDER).glob("*.run")):
        rows = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        keys = rows[key].to_numpy()
        start, stop = np.searchsorted(keys, [low, high if number < OUTPUTS - 1 else limits.max])
        found.append(rows.slice(start, stop - start))
    whole = pa.concat_tables(found).combine_chunks()
    made = whole.take(_order(whole, key))
    pq.write_table(made, output / f"{number}.parquet", compression=CODEC, use_dictionary=["group", "value"])


def _order(rows: pa.Table, key: str) -> pa.Array:
    return pc.sort_indices(rows.select([key]), sort_keys=[(key, "ascending")])


def in_processes(calls: Sequence[Callable[[], None]], processes: int) -> None:
    """Makes all calls, every so many of them in a process."""
    pids = []
    for first in range(processes):
        pid = os.fork()
        if not pid:
            try:
                for call in calls[first::processes]:
                    call()
            except BaseException:  # noqa: BLE001 - a process that was forked here goes nowhere else
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)
        pids.append(pid)
    statuses = [os.waitpid(pid, 0)[1] for pid in pids]
    if any(statuses):
        raise SystemExit(1)


def main(kind: str, what: str, source: Path, output: Path, processes: int) -> None:
    paths = sorted(source.glob("*.parquet"))
    (output / RUNS_FOLDER).mkdir(parents=True)
    pa.set_cpu_count(1)
    print("ready", flush=True)  # noqa: T201 - the protocol of this program
    sys.stdin.readline()
    started = time.perf_counter()
    calls: list[Any]
    if kind == "maps":
        in_processes([partial(map_file, what, output, path) for path in paths], processes)
    else:
        size = -(-len(paths) // RUNS)
        shares = [paths[start : start + size] for start in range(0, len(paths), size)]
        calls = [partial(run_file, what, output, number, share) for number, share in enumerate(shares)]
        in_processes(calls, processes)
        in_processes([partial(part_file, what, output, number) for number in range(OUTPUTS)], processes)
    print(time.perf_counter() - started)  # noqa: T201 - the protocol of this program


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5]))
