"""A bare loop of what Arrow and the kernel do for a contest of corpora, and nothing else: no plan, no record, no check.

    bare_run.py maps FUNCTION SOURCE OUTPUT PROCESSES    # read a file, apply, write a file
    bare_run.py lines FUNCTION SOURCE OUTPUT PROCESSES   # unpack a file of gzipped JSON lines, parse, apply, write
    bare_run.py sort KEY SOURCE OUTPUT PROCESSES         # read, sort, write run files; map these, sort, write
    bare_run.py parts NUMBER SOURCE OUTPUT PROCESSES     # read the row groups of a range of rows, write a file of them
    bare_run.py sums COLUMN SOURCE OUTPUT PROCESSES      # read two columns, sum by group; sum these sums, write
    bare_run.py firsts COLUMN SOURCE OUTPUT PROCESSES   # hash a column; find first rows; read, filter, write

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
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.parquet as pq
import xxhash
from isal import igzip

CODEC = "zstd"
RUNS, RUNS_FOLDER = 4, "_runs"
"""Run files, and where they are."""
OUTPUTS = 10
"""Of a sort."""
PAGE_BYTES = 256 << 10
"""Bytes of rows that are written to a run file at once, as curate does."""
LINES_BYTES = 4 << 20
"""Bytes of JSON lines that are parsed at once."""


def measured(table: pa.Table) -> pa.Table:
    doubled = table.set_column(table.column_names.index("score"), "score", pc.multiply(table["score"], 2.0))
    return doubled.append_column("length", pc.cast(pc.utf8_length(table["text"]), "int64"))


def summed(table: pa.Table) -> pa.Table:
    return table.append_column("sum", pc.add(table["value"], table["group"]))


def kept(table: pa.Table) -> pa.Table:
    return table.filter(pc.field("score") < 0.5)


FUNCTIONS: dict[str, Callable[[pa.Table], pa.Table]] = {"write": measured, "append": summed, "filter": kept}


def map_file(function: str, output: Path, path: Path) -> None:
    _write(FUNCTIONS[function](pq.read_table(path, use_threads=False)), output / path.name)


def map_lines(function: str, output: Path, path: Path) -> None:
    schema = pa.schema({name: pa.int64() for name in ("id", "key", "group", "value")})
    schema = schema.append(pa.field("score", pa.float64())).append(pa.field("text", pa.string()))
    how = pj.ReadOptions(use_threads=False, block_size=LINES_BYTES), pj.ParseOptions(explicit_schema=schema)
    with igzip.open(path) as file:  # type: ignore[no-untyped-call]
        rows = pj.read_json(file, *how)
    _write(FUNCTIONS[function](rows), output / f"{path.name}.parquet")


def range_file(output: Path, paths: Sequence[Path], start: int, stop: int) -> None:
    """Writes the rows from `start` to `stop` of all files."""
    found, before = [], 0
    for path in paths:
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            low, high = max(start - before, 0), min(stop - before, count)
            if low < high:
                found.append(file.read_row_group(group, use_threads=False).slice(low, high - low))
            before += count
    _write(pa.concat_tables(found), output / f"{start}.parquet")


def file_sums(column: str, output: Path, path: Path) -> None:
    """Writes the sums of one file."""
    rows = pq.read_table(path, columns=["group", column], use_threads=False)
    found = rows.group_by("group", use_threads=False).aggregate([(column, "sum")])
    with pa.ipc.new_file(str(output / RUNS_FOLDER / f"{path.stem}.run"), found.schema) as writer:
        writer.write_table(found)


def all_sums(column: str, output: Path) -> None:
    """Writes the sums of all files."""
    runs = (output / RUNS_FOLDER).glob("*.run")
    rows = pa.concat_tables([pa.ipc.open_file(pa.memory_map(str(path))).read_all() for path in runs])
    found = rows.group_by("group", use_threads=False).aggregate([(f"{column}_sum", "sum")])
    pq.write_table(found, output / "0.parquet", compression=CODEC)


def file_hashes(column: str, output: Path, path: Path) -> None:
    """Writes the hash of each text of one file."""
    texts = pq.read_table(path, columns=[column], use_threads=False)[column].cast(pa.binary()).to_pylist()
    hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, texts), np.uint64, len(texts))
    np.save(output / RUNS_FOLDER / f"{path.stem}.npy", hashes)


def first_rows(output: Path, paths: Sequence[Path]) -> list[tuple[Path, np.ndarray]]:
    """Returns for each file which of its rows are the first ones of their hashes."""
    hashes = [np.load(output / RUNS_FOLDER / f"{path.stem}.npy") for path in paths]
    kept = np.zeros(sum(map(len, hashes)), dtype=bool)
    kept[np.unique(np.concatenate(hashes), return_index=True)[1]] = True
    return list(zip(paths, np.split(kept, np.cumsum([len(one) for one in hashes])[:-1]), strict=True))


def filtered_file(output: Path, path: Path, rows: np.ndarray) -> None:
    _write(pq.read_table(path, use_threads=False).filter(pa.array(rows)), output / path.name)


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
    _write(whole.take(_order(whole, key)), output / f"{number}.parquet")


def _write(rows: pa.Table, path: Path) -> None:
    pq.write_table(rows.combine_chunks(), path, compression=CODEC, use_dictionary=["group", "value"])


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
    paths = sorted(source.glob("*.jsonl.gz" if kind == "lines" else "*.parquet"))
    (output / RUNS_FOLDER).mkdir(parents=True)
    pa.set_cpu_count(1)
    print("ready", flush=True)  # noqa: T201 - the protocol of this program
    sys.stdin.readline()
    started = time.perf_counter()
    calls: list[Any]
    if kind in ("maps", "lines"):
        one = map_file if kind == "maps" else map_lines
        in_processes([partial(one, what, output, path) for path in paths], processes)
    elif kind == "parts":
        rows = sum(pq.read_metadata(path).num_rows for path in paths)
        cuts = [rows * number // int(what) for number in range(int(what) + 1)]
        in_processes([partial(range_file, output, paths, *cut) for cut in pairwise(cuts)], processes)
    elif kind == "sums":
        in_processes([partial(file_sums, what, output, path) for path in paths], processes)
        in_processes([partial(all_sums, what, output)], 1)
    elif kind == "firsts":
        in_processes([partial(file_hashes, what, output, path) for path in paths], processes)
        in_processes([partial(filtered_file, output, *one) for one in first_rows(output, paths)], processes)
    else:
        size = -(-len(paths) // RUNS)
        shares = [paths[start : start + size] for start in range(0, len(paths), size)]
        calls = [partial(run_file, what, output, number, share) for number, share in enumerate(shares)]
        in_processes(calls, processes)
        in_processes([partial(part_file, what, output, number) for number in range(OUTPUTS)], processes)
    print(time.perf_counter() - started)  # noqa: T201 - the protocol of this program


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5]))
