"""Whatever bytes are where the ledger is, every reader ends soon, in an answer or in an error of curate's, and in
little memory: cut, flipped, of foreign types, with huge numbers, deep, or made to become very much."""

from __future__ import annotations

import contextlib
import gzip
import io
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import structlog

from curate.arrow.order import Order, SortKey
from curate.driver.rivals import running_drivers
from curate.errors import ConfigError, CorruptInput, CurateError
from curate.exchange.run_file import RunFile, RunWriter
from curate.job.job import Job
from curate.ledger import layout
from curate.ledger.compression import MOST_SEGMENT_BYTES, compress, decompress
from curate.ledger.manifest import SCHEMA
from curate.objects.record import OutputFormat, gzip_trailer, parquet_record, read_record, run_end, zstd_trailer
from curate.observe.browse import quarantined, rows, worker_lines
from curate.observe.failures import read_failures, recorded_run
from curate.observe.job import find_job, read_status
from curate.observe.verify import verify
from curate.stores.memory import clear
from curate.stores.open import open_store
from tests.job.inline import run_job, write_jsonl
from tests.support.examples import examples
from tests.support.fakes import FakeClock

ROOT = "memory://fuzz/out"
quick = hypothesis.settings(
    max_examples=examples(15),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)


class Picky(Job):
    """Fails of one row, and sets another aside."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        if "fail" in batch["id"].to_pylist():
            raise ValueError("no")
        self.drop(1, "first")
        return batch.slice(1)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """All files of a job of which one shard failed, one has a bad row, and one is as it should be."""
    root = tmp_path_factory.mktemp("fuzz")
    write_jsonl(root / "in" / "a.jsonl", [{"id": "a"}, {"id": "b"}])
    write_jsonl(root / "in" / "b.jsonl", b'{"id": "c"}\n{broken\n{"id": "d"}\n')
    write_jsonl(root / "in" / "c.jsonl", [{"id": "fail"}])
    run_job(Picky(max_bad_rows=2), root / "in", root / "out")
    found = {str(one.relative_to(root / "out")): one.read_bytes() for one in (root / "out").rglob("*") if one.is_file()}
    found[layout.SUMMARY] = orjson.dumps(
        {
            "fingerprint": "f",
            "shards": {"total": 3, "done": 3},
            "rows": {"in": 1, "created": 0, "out": 1, "quarantined": 0, "dropped": {}},
            "counters": {"x": 1.5},
            "bytes": {"in": 1, "out": 1},
            "earlier": None,
        }
    )
    return found


def place(files: dict[str, bytes]) -> None:
    """Puts files where `ROOT` is."""
    clear("fuzz")
    store = open_store(ROOT)
    for name, data in files.items():
        store.publish(f"{ROOT}/{name}", data)


def read_everything(root: str = ROOT) -> None:
    """Reads a job in every way that there is. Each may raise what curate raises on purpose, and nothing else."""

    def failures() -> None:
        found = read_failures(root)
        [group.as_dict() for group in (*found.groups(), *found.all_groups())]
        for shard in found.plan.ids.to_pylist():
            found.tries(shard)

    def browse() -> None:
        found = find_job(root)
        list(rows(found))
        list(worker_lines(found.ledger, found.listing.logs))

    def set_aside() -> None:
        list(quarantined(find_job(root)))

    def run_again() -> None:
        found = find_job(root)
        list(running_drivers(found.ledger, found.listing.run_ids, FakeClock(), wait=False))
        recorded_run(found.ledger, found.listing)

    def status() -> None:
        orjson.dumps(read_status(root, 1.0e9).as_dict())

    readers: list[Callable[[], Any]] = [status, failures, lambda: verify(root), browse, set_aside, run_again]
    for reader in readers:
        with contextlib.suppress(CurateError):
            reader()


@pytest.fixture(autouse=True)
def _quiet() -> None:
    structlog.configure(processors=[lambda *_: (_ for _ in ()).throw(structlog.DropEvent)])


KINDS = (
    "job.json",
    "summary",
    "plan/",
    "events",
    "failures/",
    "heartbeat",
    "run.json",
    "schema/",
    "quarantine/",
    "a.par",
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.sampled_from(["", "..", "/etc/passwd", "done", "failed", "running", "_curate/job.json"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def test_as_it_is_all_is_read(sound: dict[str, bytes]) -> None:
    """The readers raise nothing of a sound ledger; so what the others suppress is damage."""
    place({name: data for name, data in sound.items() if name != layout.SUMMARY})
    found = read_failures(ROOT)
    assert [group.shards for group in found.groups()] == [1]
    assert read_status(ROOT, 1.0).done == 2
    assert len(list(quarantined(find_job(ROOT)))) == 1
    assert len(list(rows(find_job(ROOT)))) == 2
    assert not verify(ROOT).counts
    for kind in KINDS:
        assert any(kind in name for name in sound), kind


@pytest.mark.ci(3)
@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", KINDS)
@quick
@hypothesis.given(data=st.data())
def test_bytes_that_are_cut_or_flipped(kind: str, sound: dict[str, bytes], data: st.DataObject) -> None:
    """Any file of a kind, spoiled in up to three places, cut, doubled, or replaced."""
    name = data.draw(st.sampled_from(sorted(one for one in sound if kind in one)))
    spoiled = bytearray(sound[name])
    match data.draw(st.sampled_from(["cut", "flip", "insert", "double", "other"])):
        case "cut":
            spoiled = spoiled[: data.draw(st.integers(0, len(spoiled)))]
        case "flip":
            for at in data.draw(st.lists(st.integers(0, len(spoiled) - 1), min_size=1, max_size=3)):
                spoiled[at] ^= 1 << data.draw(st.integers(0, 7))
        case "insert":
            at = data.draw(st.integers(0, len(spoiled)))
            spoiled[at:at] = data.draw(st.binary(min_size=1, max_size=8))
        case "double":
            spoiled = spoiled * 2
        case "other":
            spoiled = bytearray(data.draw(st.binary(max_size=40)))
    place({**sound, name: bytes(spoiled)})
    read_everything()


@pytest.mark.ci(3)
@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", ["job.json", "summary", "heartbeat", "run.json", "events", "failures/"])
@quick
@hypothesis.given(data=st.data())
def test_json_of_foreign_types(kind: str, sound: dict[str, bytes], data: st.DataObject) -> None:
    """Some field, at any depth, is another value, or missing, or one that nobody knows."""
    name = data.draw(st.sampled_from(sorted(one for one in sound if kind in one)))
    packed = name.endswith(".zst")
    values = [orjson.loads(line) for line in (decompress(sound[name]).splitlines() if packed else [sound[name]])]
    here = data.draw(st.sampled_from(values))
    while True:
        key = data.draw(st.sampled_from(sorted(here) or ["new"]))
        if isinstance(here.get(key), dict) and data.draw(st.booleans()):
            here = here[key]
            continue
        break
    if data.draw(st.integers(0, 4)) == 0:
        here.pop(key, None)
    else:
        here[key] = data.draw(json_values)
    lines = [orjson.dumps(value) for value in values]
    place({**sound, name: compress(b"\n".join(lines)) if packed else lines[0]})
    read_everything()


@pytest.mark.ci(10)
@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"format_version": 1, "format_version": 2, "job": 1, "job": "x"}',
        b'{"format_version": 1' + b"0" * 10_000 + b"}",
        b'{"format_version": 1e999}',
        b'"\\ud800"',
        b"\xff\xfe",
        b"null",
        b"",
        b'{"' + b"k" * 1_000_000 + b'": 1}',
    ],
    ids=["deep", "deep-object", "twice", "digits", "infinite", "surrogate", "utf-16", "null", "empty", "long-key"],
)
@pytest.mark.parametrize("kind", ["job.json", "summary", "heartbeat", "run.json"])
def test_hostile_json(kind: str, text: bytes, sound: dict[str, bytes]) -> None:
    """None of it ends in the parser."""
    name = next(one for one in sorted(sound) if kind in one)
    place({**sound, name: text})
    read_everything()


records = json_values | st.dictionaries(
    st.sampled_from(["job", "shard", "fingerprint", "rows", "counters", "quarantine", "side", "record_crc32"]),
    json_values,
)


@pytest.mark.parametrize("written", ["gzip", "zstd", "parquet", "run"])
@quick
@hypothesis.given(data=st.data())
def test_records_of_foreign_types(written: str, data: st.DataObject) -> None:
    """A record is read, or is none, or CorruptInput is raised; spoiled or with a right checksum."""
    value = data.draw(records.filter(lambda one: isinstance(one, dict)))
    match written:
        case "gzip":
            stored, how = gzip.compress(b"x") + gzip_trailer(value, 1), (OutputFormat.JSONL, "gzip")
        case "zstd":
            stored, how = compress(b"x") + zstd_trailer(value, 1), (OutputFormat.JSONL, "zstd")
        case "parquet":
            sink = io.BytesIO()
            table = pa.table({"x": [1]}).replace_schema_metadata({"curate": parquet_record(value)})
            pq.write_table(table, sink)
            stored, how = sink.getvalue(), (OutputFormat.PARQUET, "zstd")
        case _:
            stored, how = run_end(b"index", b"schema", value), (OutputFormat.RUN, "none")
    spoiled = bytearray(stored)
    for at in data.draw(st.lists(st.integers(1, min(64, len(spoiled))), max_size=2)):
        spoiled[-at] ^= 1 << data.draw(st.integers(0, 7))
    store = open_store("memory://fuzz/x")
    clear("fuzz")
    store.publish("memory://fuzz/x", bytes(spoiled))
    with contextlib.suppress(CorruptInput):
        found = read_record(store, store.stat("memory://fuzz/x"), *how)
        assert found is None or isinstance(found, dict)


@quick
@hypothesis.given(data=st.data())
def test_run_files(data: st.DataObject) -> None:
    """What is read is what was written, or DamagedRun is raised: also where the checksum of the end was made to fit."""
    sink = io.BytesIO()
    table = pa.table({"k": np.arange(500) % 7, "v": [str(one) for one in range(500)]})
    writer = RunWriter(sink, table.schema, Order((SortKey("k"),)), page_bytes=2000)
    writer.write(table)
    writer.close({"shard": "a"})
    spoiled = bytearray(sink.getvalue())
    for at in data.draw(st.lists(st.integers(0, len(spoiled) - 1), min_size=1, max_size=3)):
        spoiled[at] ^= 1 << data.draw(st.integers(0, 7))
    spoiled = spoiled[data.draw(st.sampled_from([0, 0, 0, 1, 64])) :]
    clear("fuzz")
    store = open_store("memory://fuzz/x.run")
    store.publish("memory://fuzz/x.run", bytes(spoiled))
    with contextlib.suppress(CorruptInput):
        found = RunFile.open(store, store.stat("memory://fuzz/x.run"))
        assert sorted(found.read(0, 0, 500)["v"].to_pylist(), key=int) == table["v"].to_pylist()


foreign_tables = st.sampled_from(
    [
        pa.table({"x": [1]}),
        pa.table({"segment": ["a"], "offset": [0], "length": [0]}),
        pa.table({name: pa.array([None], pa.int64()) for name in ("segment", "offset", "length", "rows", "bytes")}),
        pa.table(
            {name: pa.array([value], pa.int64()) for name, value in zip(
                ("segment", "offset", "length", "rows", "bytes"), (2**62, 0, 0, -5, -1), strict=True)}
            | {"checksum": pa.array([1], pa.uint64())}
        ),
    ]
)  # fmt: skip


@hypothesis.given(index=foreign_tables)
def test_run_files_whose_index_is_another_table(index: pa.Table) -> None:
    """With all checksums right: who wrote that can write any; it is told all the same."""
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, index.schema) as writer:
        writer.write_table(index)
    end = run_end(stream.getvalue().to_pybytes(), pa.schema([("k", pa.int64())]).serialize().to_pybytes(), {})
    clear("fuzz")
    store = open_store("memory://fuzz/x.run")
    store.publish("memory://fuzz/x.run", end)
    with pytest.raises(CorruptInput):
        RunFile.open(store, store.stat("memory://fuzz/x.run"))


def test_plans_of_other_columns_types_and_nulls(sound: dict[str, bytes]) -> None:
    """Every column in turn is of another type, missing, or without values."""
    part = layout.plan_part(0)
    table = pq.read_table(io.BytesIO(sound[part]))
    for name in SCHEMA.names:
        at = SCHEMA.names.index(name)
        other = pa.array([1.5] * 3) if pa.types.is_string(SCHEMA.field(name).type) else pa.array(["x"] * 3)
        nothing = pa.nulls(3, SCHEMA.field(name).type)
        for spoiled in (
            table.drop_columns([name]),
            table.set_column(at, name, other),
            table.set_column(at, name, nothing),
        ):
            sink = io.BytesIO()
            pq.write_table(spoiled, sink)
            place({**sound, part: sink.getvalue()})
            with pytest.raises(ConfigError, match="is not a part of a plan"):
                find_job(ROOT)
            read_everything()


# What becomes very much


def bombs() -> dict[str, tuple[str, bytes]]:
    """Returns small files that become gigabytes, each with its name."""
    rows = 200_000_000
    one = pa.DictionaryArray.from_arrays(pa.array(np.zeros(2_000_000, np.int32)), pa.array(["x" * 100_000]))
    columns: dict[str, Any] = {}
    for field in SCHEMA:
        columns[field.name] = one if pa.types.is_string(field.type) else pa.array(np.zeros(2_000_000, np.int64))
    texts = io.BytesIO()
    pq.write_table(pa.table(columns), texts, compression="zstd")
    lines = compress(b"\n" * rows)
    return {
        "texts": (layout.plan_part(0), texts.getvalue()),
        "events": (f"{layout.RUNS}r/events-000001.jsonl.zst", lines),
        "failures": (f"{layout.RUNS}r/failures/000001.jsonl.zst", compress(b'{"a":"' + b"x" * rows + b'"}')),
        "logs": (f"{layout.RUNS}r/logs/w-000001.jsonl.zst", lines),
    }


@pytest.mark.ci(1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["texts", "events", "failures", "logs"])
def test_what_becomes_gigabytes_takes_little_memory(kind: str, sound: dict[str, bytes], tmp_path: Path) -> None:
    """Read in a process of its own, whose peak is measured: less than 600 MiB above what imports take."""
    name, data = bombs()[kind]
    assert len(data) < 4 << 20
    for path, content in {**sound, name: data}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    program = f"""
        import resource
        from tests.safety.test_fuzz import read_everything
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        read_everything({str(tmp_path)!r})
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True, text=True, timeout=60, check=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert int(ended.stdout.splitlines()[-1]) < 600


def test_segments_are_bounded() -> None:
    """A segment that becomes more than any does is unreadable, and one that is as long as they get is read."""
    assert len(decompress(compress(b"x" * (MOST_SEGMENT_BYTES - 1)))) == MOST_SEGMENT_BYTES - 1
    with pytest.raises(OSError, match="too long for a segment"):
        decompress(compress(b"x" * (MOST_SEGMENT_BYTES + (2 << 20))))
