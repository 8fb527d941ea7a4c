"""The plan of a sort, or a shuffle, of very many bytes over a made-up index: the driver's memory and time, and how even
outputs are.

The run files are there in name only: a store in their place answers reads of their ends with the end of a real run
file, in which other keys were written; what that takes is not counted. All else is what a job does:
`curate.graph.reads` opens the run files, has them merged where ranges would be small, and plans what tasks read; merged
files, too, are there in name only. Each plan is made in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

import click
import numpy as np
import pyarrow as pa
import xxhash

from benches.common import SCRIPT, Report
from curate.units import GIB, format_bytes

TB = 10**12
SEGMENTS, PAGES = 4, 256
"""Segments of a run file and pages of each, where there are more than 128 GiB of rows."""
ROW_BYTES = 150
HEAVY = (0.4, 0.7)
"""The share of rows in between has one key."""

WANTED_BYTES, WANTED_S = 2 * GIB, 60.0
"""What a plan of 100 TB may take."""


@dataclass(frozen=True)
class _Layout:
    """The keys of run files: file by file, the range of quantiles that its rows are of."""

    keys: str
    page_rows: int
    low: np.ndarray[Any, Any]
    high: np.ndarray[Any, Any]
    scale: int
    """The key of the last quantile."""
    in_order: bool
    """Whether each file is in order from its first segment to its last, as one that a merge wrote."""
    page_bytes: np.ndarray[Any, Any]
    """File by file; a merge makes more of some keys than of others."""

    def shares(self, number: int) -> np.ndarray[Any, Any]:
        """Returns how much of a page each page of a file has, segment by segment: the first is drawn, and the last is
        what is left."""
        found = np.ones((SEGMENTS, PAGES))
        found[:, 0] = np.random.default_rng([number, 1]).uniform(size=SEGMENTS)
        found[:, -1] = 1.01 - found[:, 0]
        return found

    def of(self, number: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Returns the keys that pages of a file begin with, segment by segment, and those that segments end with: as
        they are stored."""
        # Pages have as many rows each, and keys as far from one another as those of so many random rows.
        gaps = self.shares(number) * np.random.default_rng(number).normal(1, self.page_rows**-0.5, (SEGMENTS, PAGES))
        sums = gaps.cumsum().reshape(gaps.shape) if self.in_order else gaps.cumsum(axis=1)
        whole = sums[-1:, -1:] if self.in_order else sums[:, -1:]
        return self._keys(number, (sums - gaps) / whole), self._keys(number, sums[:, -1] / whole[:, 0])

    def _keys(self, number: int, draw: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        at = self.low[number] + draw * (self.high[number] - self.low[number])
        if self.keys == "heavy":
            at = np.where((at >= HEAVY[0]) & (at < HEAVY[1]), HEAVY[0], at)
        numbers = np.minimum(at * float(self.scale), self.scale - 1).astype(_type(self.keys))
        return _digits(numbers) if self.keys == "strings" else numbers


def _type(keys: str) -> Any:
    return np.uint32 if keys == "shuffle" else np.int64


def _digits(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns numbers as texts of 24 bytes, which begin alike and are in the order of the numbers."""
    found = np.frombuffer(b"https://" + bytes(16), np.uint8)
    texts = np.tile(found, (*numbers.shape, 1))
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    for place in range(16):
        texts[..., 8 + place] = digits[(numbers >> (60 - 4 * place)) & 15]
    return texts


class _MadeUp:
    """A store of run files of one layout, which are there in name only."""

    def __init__(self, end: bytes, size: int, spots: Sequence[int], layouts: dict[str, _Layout]) -> None:
        self.size = size
        self.cpu_s = 0.0
        self.reads = 0
        self._end = end
        self._spots = spots
        self._layouts = layouts
        self._lock = Lock()

    def files(self, layout: str) -> list[Any]:
        from curate.storage.protocol import Object

        count = len(self._layouts[layout].low)
        return [
            Object(f"gs://made-up/out/_curate/stages/{layout}/part-{number:05d}-of-{count:05d}.run", self.size, "1")
            for number in range(count)
        ]

    def read(self, uri: str, start: int, stop: int) -> bytes:
        started = time.thread_time()
        name = uri.split("/")
        end = bytearray(self._end)
        layout, number = self._layouts[name[-2]], int(name[-1][5:10])
        keys, ends = layout.of(number)
        size, first, *lasts = self._spots
        _put(end, size, (layout.shares(number) * layout.page_bytes[number]).astype(np.int64))
        _put(end, first, keys)
        if lasts:
            _put(end, lasts[0], ends)
        checksum = xxhash.xxh3_64_intdigest(memoryview(end)[:-20])
        end[-20:-12] = checksum.to_bytes(8, "little")
        found = bytes(end)[max(0, start - (self.size - len(end))) : stop - (self.size - len(end))]
        with self._lock:
            self.reads += 1
            self.cpu_s += time.thread_time() - started
        return found


def _put(into: bytearray, at: int, keys: np.ndarray[Any, Any]) -> None:
    data = np.ascontiguousarray(keys).tobytes()
    into[at : at + len(data)] = data


class _Held:
    """A sink that keeps what is written."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: Any) -> None:
        self.data += data


def _template(keys: str, page_bytes: int, segments: int) -> tuple[bytes, int, list[int]]:
    """Returns the end of a run file of pages of so many bytes, the size of the file, and where in the end that is which
    differs from file to file: bytes of pages in memory, their keys, and the last key of each segment, if there is."""
    from curate.arrow.order import Order, SortKey
    from curate.exchange.kinds.shuffle import BUCKET
    from curate.exchange.run_file import RunWriter
    from curate.objects.record import RUN_TAIL, run_end, run_record, run_sizes

    rng = np.random.default_rng(1 << 40)
    numbers = np.sort(rng.integers(0, 1 << 62, (segments, PAGES)), axis=1)
    if keys == "shuffle":
        numbers = (numbers >> 30).astype(_type(keys))
    held = _digits(numbers) if keys == "strings" else numbers
    column = [bytes(one).decode() for one in held.reshape(-1, 24)] if keys == "strings" else numbers.reshape(-1)
    name = BUCKET if keys == "shuffle" else "key"
    rows = pa.table(
        {
            name: column,
            "text": pa.array(["a text"] * held[..., 0].size if keys == "strings" else ["a text"] * held.size),
        }
    )
    sink = _Held()
    one = rows.slice(0, PAGES)
    from curate.arrow.sizes import row_bytes
    from curate.exchange.chunks import PLACE_BYTES

    chunk = int((row_bytes(one) + PLACE_BYTES).sum())
    writer = RunWriter(sink, rows.schema, Order((SortKey(name),)), chunk_bytes=chunk, page_bytes=1)
    writer.write(rows)
    writer.close({"job": "made up"})
    index_bytes, schema_bytes, record_bytes = run_sizes(bytes(sink.data[-RUN_TAIL:])) or (0, 0, 0)
    end = bytes(sink.data[-(index_bytes + schema_bytes + record_bytes + RUN_TAIL) :])
    index = pa.ipc.open_stream(end[:index_bytes]).read_all()
    count = index.num_rows
    assert count == segments * PAGES, count
    # As no other number in the index.
    in_memory = np.arange(count) + (1 << 50)
    for name, values in {
        "offset": np.arange(count) * page_bytes,
        "length": np.full(count, page_bytes),
        "rows": np.full(count, page_bytes // ROW_BYTES),
        "bytes": in_memory,
    }.items():
        place = index.schema.get_field_index(name)
        index = index.set_column(place, index.schema.field(name), pa.array(values, pa.int64()))
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, index.schema) as out:
        out.write_table(index.combine_chunks())
    schema = end[index_bytes : index_bytes + schema_bytes]
    end = run_end(stream.getvalue().to_pybytes(), schema, run_record(end[index_bytes + schema_bytes :]))
    spots = [end.find(one.tobytes()) for one in (in_memory, held, np.ascontiguousarray(held[:, -1]))]
    assert min(spots[:2]) > 0
    return end, count * page_bytes + len(end), [spot for spot in spots if spot >= 0]


def plan_and_say(terabytes: float, keys: str) -> None:
    """Makes one plan and prints what it took, as JSON: what `measure_plan` starts."""
    import curate
    from curate.exchange.kinds.shuffle import Shuffled, buckets_for
    from curate.exchange.run_file import CHUNK_BYTES, PAGE_BYTES
    from curate.graph import reads
    from curate.objects.record import OutputFormat
    from curate.plan.nodes import Exchanged
    from curate.plan.rewrites import map_bytes
    from curate.plan.stages import stage_of
    from curate.reduce.ranges import target_of

    global SEGMENTS
    total = int(terabytes * TB)
    file_bytes = map_bytes(total)
    chunk = max(CHUNK_BYTES, file_bytes // 4)
    SEGMENTS = -(-file_bytes // chunk)
    page_bytes = max(PAGE_BYTES, chunk // PAGES)
    count = max(1, round(total / file_bytes))
    end, size, spots = _template(keys, page_bytes, SEGMENTS)
    outputs_wanted = total // target_of(total)
    # As many at least as have to be numbered with 32 bits.
    scale = max(1 << 17, buckets_for(outputs_wanted, counted=False)) if keys == "shuffle" else 1 << 62
    whole = np.zeros(count), np.ones(count)
    sizes = np.full(count, page_bytes)
    layouts = {"map": _Layout(keys, page_bytes // ROW_BYTES, *whole, scale, in_order=False, page_bytes=sizes)}
    store = _MadeUp(end, size, spots, layouts)
    _open_with(lambda _: store)
    rows = pa.table({"key": pa.array(["a"] if keys == "strings" else [1]), "text": ["a text"]})
    plan = curate.from_arrow(rows).sort("key")._plan
    if keys == "shuffle":
        plan = Exchanged((curate.from_arrow(rows)._plan,), Shuffled(0, scale, None))
    stage = stage_of(plan, OutputFormat.PARQUET, None)
    before = replace(stage.before[0])
    store.read(store.files("map")[0].uri, 0, size)
    store.cpu_s = store.reads = 0
    started, before_bytes = time.process_time(), _peak_bytes()
    wall = time.perf_counter()
    outputs = [(before, store.files("map"))]
    merged = 0
    found = reads.merges(stage, outputs)
    merge_store = store
    if found:
        shards = _shards(found[0].stage)
        merge_s = time.process_time() - started - store.cpu_s
        template_s = time.process_time()
        merged = len(shards)
        edges = np.array([_quantiles(one.pieces[0].piece.data, layouts["map"], count * SEGMENTS) for one in shards])
        # Each segment that is read has as many rows of each quantile.
        rows_of = (edges[:, 1] - edges[:, 0]) * [len(one.pieces[0].piece.data.reads.segments) for one in shards]
        sizes = (rows_of / rows_of.sum() * total / (SEGMENTS * PAGES)).astype(np.int64)
        layouts["merged"] = replace(layouts["map"], low=edges[:, 0], high=edges[:, 1], in_order=True, page_bytes=sizes)
        template = _template(keys, total // (merged * SEGMENTS * PAGES), SEGMENTS)
        merge_store = _MadeUp(*template, layouts)
        _open_with(lambda uri: merge_store if "/merged/" in uri else store)
        del shards
        outputs = [(found[0], merge_store.files("merged"))]
        del found
        started += time.process_time() - template_s
    stage = reads.opened(stage, outputs)
    made = _shards(stage)
    if merge_store is not store:
        store.cpu_s += merge_store.cpu_s
        store.reads += merge_store.reads
    seconds = time.process_time() - started - store.cpu_s
    ranges = sum(len(one.pieces[0].piece.data.reads.segments) for one in made)
    found_bytes = _bytes_of(made, layouts["map"], total)
    click.echo(
        json.dumps(
            {
                "terabytes": terabytes,
                "keys": keys,
                "run_files": count,
                "merged_files": merged,
                "pages": count * SEGMENTS * PAGES,
                "outputs": len(made),
                "seconds": seconds,
                "merge_seconds": merge_s if merged else 0.0,
                "wall_s": time.perf_counter() - wall - store.cpu_s,
                "peak_bytes": _peak_bytes(),
                "before_bytes": before_bytes,
                "made_up_s": store.cpu_s,
                "reads": store.reads,
                "ranges": ranges,
                "bytes_read": sum(one.size for one in made),
                "bytes_min": min(found_bytes),
                "bytes_mean": total // len(made),
                "bytes_max": max(found_bytes),
            }
        )
    )


def _open_with(store_of: Callable[[str], _MadeUp]) -> None:
    from curate.exchange import run_file

    vars(run_file)["open_store"] = store_of


def _shards(stage: Any) -> Any:
    stage.rows.inputs((), None)
    return stage.rows._shards


def _quantiles(piece: Any, layout: _Layout, segments: int) -> tuple[float, float]:
    """Returns the range of quantiles that a piece reads; of the key of very many rows, each segment has as many."""

    def at(cut: Any) -> float:
        found = _quantile(cut, layout)
        share = cut.segment / segments * (HEAVY[1] - HEAVY[0])
        return found + share if layout.keys == "heavy" and abs(found - HEAVY[0]) < 1e-9 else found

    return (0.0 if piece.low is None else at(piece.low)), (1.0 if piece.high is None else at(piece.high))


def _quantile(cut: Any, layout: _Layout) -> float:
    ((key,),) = cut.key.to_pydict().values()
    return float((int(key[8:], 16) if layout.keys == "strings" else key) / layout.scale)


def _bytes_of(shards: Any, layout: _Layout, total: int) -> list[int]:
    """Returns how many bytes of rows outputs have, as the keys were made up: of those whose cuts are not at the key of
    very many rows."""
    edges = np.array([0.0, *(_quantile(one.pieces[0].piece.data.high, layout) for one in shards[:-1]), 1.0])
    shares = np.diff(edges)
    if layout.keys == "heavy":
        shares = shares[(edges[1:] < HEAVY[0] - 1e-9) | (edges[:-1] >= HEAVY[1])]
    return [round(float(one) * total) for one in shares]


def _peak_bytes() -> int:
    """Returns the most memory that this process has had; not by getrusage, which starts from that of the process that
    forked this one."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def measure_plan(report: Report, terabytes: Sequence[float], keys: Sequence[str], *, as_json: bool) -> None:
    """Makes plans of so many terabytes each, and prints what each took."""
    found = []
    for one in made_plans(terabytes, keys):
        found.append(one)
        if as_json:
            continue
        pages = f"{one['run_files']:,} run files, {one['pages']:,} pages"
        merged = f", merged into {one['merged_files']:,}" if one["merged_files"] else ""
        click.echo(f"{one['terabytes']:g} TB, {one['keys']} keys: {pages}{merged}; {one['outputs']:,} outputs")
        sizes = " / ".join(format_bytes(one[f"bytes_{name}"]) for name in ("min", "mean", "max"))
        click.echo(f"  outputs, min / mean / max: {sizes}; ranges: {one['ranges']:,}")
        least = f"{format_bytes(one['before_bytes'])} of them imports"
        memory = f"{format_bytes(one['peak_bytes'])}, {least}"
        report.target("memory of the driver", memory, format_bytes(WANTED_BYTES), one["peak_bytes"] <= WANTED_BYTES)
        report.target("user + system", f"{one['seconds']:.2f} s", f"{WANTED_S:g} s", one["seconds"] <= WANTED_S)
    if as_json:
        click.echo(json.dumps(found[0] if len(found) == 1 else found))


def made_plans(terabytes: Sequence[float], keys: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields what each plan took."""
    for kind in keys:
        for size in terabytes:
            command = [sys.executable, str(SCRIPT), "plan-and-say", str(size), kind]
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            if ended.returncode:
                raise click.ClickException(f"the plan of {size:g} TB failed:\n{ended.stderr[-4000:]}")
            yield json.loads(ended.stdout.splitlines()[-1])
