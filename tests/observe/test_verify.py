"""`curate verify`: whatever is done to the outputs of a job is found, and nothing else."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.errors import ConfigError, CorruptInput, SchemaMismatch, StorageError
from curate.job.job import Job
from curate.ledger import layout
from curate.ledger.compression import compress, decompress
from curate.objects.record import OutputFormat, read_carried, read_record
from curate.observe import verify as verifying
from curate.observe.browse import quarantined, rows
from curate.observe.checks import output as checking
from curate.observe.checks.contents import count_rows
from curate.observe.job import find_job
from curate.observe.verify import DAMAGED, INCOMPLETE, KINDS, OK, VerifyReport, verify
from curate.stores import memory
from curate.stores.open import open_store
from curate.writers.parquet import FEWEST_SAMPLED, ParquetOutput
from tests.job.inline import numbered, run_job, write_jsonl
from tests.support.gcs_emulator import GcsEmulator
from tests.support.writes import file_of

SHARDS = 4
ROWS = 30


class Tenths(Job):
    """Drops every tenth row; rows that are no rows are set aside."""

    version = "1"
    max_bad_rows = "100%"

    def process(self, batch: pa.Table) -> pa.Table:
        kept = batch.filter(pa.array([n % 10 != 0 for n in batch["n"].to_pylist()]))
        self.drop(len(batch) - len(kept), "each tenth")
        self.count("half", len(kept) / 2)
        return kept


class Declared(Tenths):
    """The same, with its schema declared: none is stored."""

    output_schema = pa.schema([("id", pa.string()), ("text", pa.string()), ("n", pa.int64())])


@pytest.fixture(params=["parquet", "jsonl-zstd", "jsonl-gzip"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def out(tmp_path: Path, kind: str) -> Path:
    """A finished job: two of its four shards set rows aside."""
    return finished(tmp_path, kind)


def finished(tmp_path: Path, kind: str, job: type[Job] = Tenths, rows: int = ROWS) -> Path:
    source, root = tmp_path / "in", tmp_path / "out"
    for shard in range(SHARDS):
        path = write_jsonl(source / f"s{shard}.jsonl", numbered(rows * shard, rows * (shard + 1)))
        if shard % 2:
            path.write_bytes(path.read_bytes() + f"bad {shard}\n".encode() * shard)
    format, _, codec = kind.partition("-")
    assert run_job(job(format=format, codec=codec or "zstd"), source, root).state == "complete"
    return root


def outputs(out: Path) -> list[Path]:
    return sorted(path for path in out.iterdir() if path.is_file())


def kinds(out: Path) -> dict[str, int]:
    """Returns how many findings of each kind there are."""
    report = verify(str(out))
    assert (report.state == DAMAGED) == bool(report.counts)
    assert report.counts.keys() <= KINDS.keys()
    return dict(report.counts)


def found(out: Path) -> tuple[str, str, str]:
    """Returns the only finding."""
    (finding,) = verify(str(out)).findings
    return finding.kind, finding.object, finding.reason


def written_as(path: Path) -> tuple[OutputFormat, str]:
    if path.suffix == ".parquet":
        return OutputFormat.PARQUET, "zstd"
    return OutputFormat.JSONL, "gzip" if path.suffix == ".gz" else "zstd"


def record_of(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the record and the rows of an output."""
    store = open_store(str(path))
    format, codec = written_as(path)
    record = read_record(store, store.stat(str(path)), format, codec)
    assert record is not None
    if format is OutputFormat.PARQUET:
        return record, pq.read_table(path).to_pylist()
    with pa.CompressedInputStream(pa.OSFile(str(path)), codec) as stream:
        return record, [orjson.loads(line) for line in stream.read().splitlines()]


def rewrite(path: Path, change: Callable[[dict[str, Any], list[dict[str, Any]]], Any], **types: Any) -> None:
    """Writes an output anew as curate would, checksums, sizes and all, with record and rows changed."""
    record, rows = record_of(path)
    change(record, rows)
    schema = pa.schema({"id": pa.string(), "text": pa.string(), "n": pa.int64()} | types)
    path.write_bytes(file_of(pa.Table.from_pylist(rows, schema=schema), *written_as(path), record))
    summary_path = path.parent / layout.SUMMARY
    summary = orjson.loads(summary_path.read_bytes())
    summary["bytes"]["out"] = sum(one.stat().st_size for one in outputs(path.parent))
    summary_path.write_bytes(orjson.dumps(summary))


def without_summary(out: Path) -> None:
    (out / layout.SUMMARY).unlink()


# All is well


def test_nothing_is_off_with_what_a_job_left(out: Path) -> None:
    """All of it is read, and the sums are those of the job."""
    steps: list[tuple[int, int, int]] = []
    report = verify(str(out), lambda *step: steps.append(step))
    assert (report.state, report.findings, report.shards, report.read, report.absent) == (OK, [], SHARDS, SHARDS, 0)
    assert report.books.rows() == {
        "in": SHARDS * ROWS + 4,
        "created": 0,
        "out": SHARDS * ROWS * 9 // 10,
        "dropped": {"each tenth": SHARDS * ROWS // 10},
        "quarantined": 4,
    }
    assert report.size_bytes == sum(path.stat().st_size for path in outputs(out))
    assert [step[:2] for step in steps] == [(done, SHARDS) for done in range(1, SHARDS + 1)]
    assert steps[-1][2] == report.size_bytes


def test_the_fields_of_the_json(out: Path) -> None:
    """Scripts rely on them."""
    outputs(out)[0].unlink()
    report = verify(str(out)).as_dict()
    assert orjson.loads(orjson.dumps(report)) == {
        "job": "tenths",
        "output": str(out),
        "state": "damaged",
        "shards": {"total": SHARDS, "read": SHARDS - 1, "missing": 1},
        "bytes": sum(path.stat().st_size for path in outputs(out)),
        "rows": {"in": 94, "created": 0, "out": 81, "dropped": {"each tenth": 9}, "quarantined": 4},
        "counters": {"half": 40.5},
        "problems": {"missing": 1},
        "findings": [
            {
                "kind": "missing",
                "object": f"s0{''.join(outputs(out)[0].suffixes)}",
                "reason": "the job was complete with it; run the job again",
            }
        ],
    }


def test_a_job_of_no_shards_is_fine(tmp_path: Path, kind: str) -> None:
    """There is nothing that could be off."""
    (tmp_path / "in").mkdir()
    write_jsonl(tmp_path / "in" / "empty.jsonl", b"")
    format, _, codec = kind.partition("-")
    assert run_job(Declared(format=format, codec=codec or "zstd"), tmp_path / "in", tmp_path / "out").done == 1
    assert verify(str(tmp_path / "out")).state == OK


@pytest.mark.parametrize("store", ["memory", "gs"])
def test_it_works_over_every_store(store: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is off is found by what the store lists and reads."""
    with GcsEmulator().here(monkeypatch):
        root, there = f"{store}://bucket/out", open_store(f"{store}://bucket")
        there.publish(f"{store}://bucket/in/s0.jsonl", b"".join(orjson.dumps(row) + b"\n" for row in numbered(0, ROWS)))
        there.publish(f"{store}://bucket/in/s1.jsonl", b"bad\n")
        format, _, codec = kind.partition("-")
        job = Tenths(format=format, codec=codec or "zstd")
        assert run_job(job, f"{store}://bucket/in", root).state == "complete"
        assert verify(root).state == OK
        name = next(item.uri for item in there.list(f"{root}/s0"))
        data = there.read(name)
        there.replace(name, data[:50] + bytes([data[50] ^ 1]) + data[51:])
        assert [one.kind for one in verify(root).findings] == ["damaged"]
        there.delete(name)
        assert [one.kind for one in verify(root).findings] == ["missing"]
        memory.clear("bucket")


# Bytes


def unnoticed(path: Path) -> list[int]:
    """Returns the bytes of which one bit can be flipped so that record and rows can be read as if nothing were."""
    data, (format, codec), store = path.read_bytes(), written_as(path), open_store(str(path))
    record, rows = record_of(path)
    schema = pa.schema([("id", pa.string()), ("text", pa.string()), ("n", pa.int64())])
    passed = []
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        try:
            carried = read_carried(store, store.stat(str(path)), format, codec)
            if carried is None or carried.record != record:
                continue
            if count_rows(store, store.stat(str(path)), carried, format, codec, schema) == len(rows):
                passed.append(at)
        except (CorruptInput, SchemaMismatch):
            continue
    path.write_bytes(data)
    assert verify(str(path.parent)).state == OK
    return passed


@pytest.mark.parametrize("codec", ["zstd", "gzip"])
def test_every_flipped_bit_of_json_lines_is_found(codec: str, tmp_path: Path) -> None:
    """Rows, record and what is between: whichever bit it is, in whichever byte."""
    out = finished(tmp_path, f"jsonl-{codec}")
    assert unnoticed(outputs(out)[1]) == []


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "pages"), [(ROWS, 3), (2 * FEWEST_SAMPLED, 6)])
def test_every_flipped_bit_of_parquet_is_found_but_in_headers_of_pages(rows: int, pages: int, tmp_path: Path) -> None:
    """Pages and footer have checksums. A header that still parses has nothing wrong but statistics. With dictionaries,
    which have pages of their own, and without."""
    path = outputs(finished(tmp_path, "parquet", rows=rows))[1]
    found = list(_page_headers(path))
    headers = set(itertools.chain(*found))
    assert (len(found), len(headers) < path.stat().st_size / 4) == (pages, True)
    assert set(unnoticed(path)) <= headers


def test_a_flipped_byte_is_told_with_its_output(out: Path) -> None:
    """In the middle of the rows, and in the record."""
    path = outputs(out)[1]
    data = path.read_bytes()
    for at in (len(data) // 4, data.rindex(b'"shard"')):
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        assert found(out)[:2] == ("damaged", path.name)


def _page_headers(path: Path) -> Iterator[range]:
    """Yields where the headers of pages lie: before the compressed page."""
    data, group = path.read_bytes(), pq.read_metadata(path).row_group(0)
    for column in range(group.num_columns):
        chunk = group.column(column)
        for start in filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset)):
            yield range(start, data.index(b"\x28\xb5\x2f\xfd", start))


@pytest.mark.parametrize("part", [0.0, 0.3, 0.6, 0.95, 0.999])
def test_a_truncated_output_is_found(out: Path, part: float) -> None:
    """Cut anywhere, the empty file included."""
    path = outputs(out)[2]
    data = path.read_bytes()
    path.write_bytes(data[: int(part * len(data))])
    kind, name, _ = found(out)
    assert (kind in ("damaged", "record"), name) == (True, path.name)


def test_an_output_with_something_behind_it_is_found(out: Path) -> None:
    """As a second writer would leave it."""
    path = outputs(out)[2]
    path.write_bytes(path.read_bytes() * 2)
    assert verify(str(out)).state == DAMAGED
    path.write_bytes(path.read_bytes() + b"\n")
    assert verify(str(out)).state == DAMAGED


# Objects


def test_a_removed_output_is_found(out: Path) -> None:
    """A summary says that it was there. Nothing else is wrong."""
    gone = outputs(out)[0]
    gone.unlink()
    assert found(out)[:2] == ("missing", gone.name)


def test_a_foreign_object_is_found(out: Path) -> None:
    """What readers would take for data; what they do not see is none of our business."""
    for name in ("more.parquet", "deep/er.csv", "_SUCCESS", ".hidden"):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_bytes(b"x")
    report = verify(str(out))
    assert sorted((one.kind, one.object) for one in report.findings) == [
        ("foreign", "deep/er.csv"),
        ("foreign", "more.parquet"),
    ]


def test_swapped_outputs_are_found(out: Path) -> None:
    """Each carries the record of the other; the sums are right."""
    a, b = outputs(out)[:2]
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second)
    b.write_bytes(first)
    report = verify(str(out))
    assert [(one.kind, one.object, one.reason) for one in report.findings] == [
        ("record", a.name, "its record is that of shard 's1', expected 's0'"),
        ("record", b.name, "its record is that of shard 's0', expected 's1'"),
    ]


def test_an_output_of_other_parameters_is_found(out: Path) -> None:
    """Left by a zombie: everything fits but the fingerprint."""
    rewrite(outputs(out)[0], lambda record, _: record.update(fingerprint="0" * 16))
    kind, _, reason = found(out)
    assert kind == "record"
    assert reason.startswith("its record is that of fingerprint '0000000000000000', expected ")


def test_what_somebody_else_wrote_is_found(out: Path, kind: str) -> None:
    """Right name, right rows, no record."""
    path = outputs(out)[0]
    _, rows = record_of(path)
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        codec = pa.Codec(kind.partition("-")[2])
        path.write_bytes(codec.compress(b"".join(orjson.dumps(row) + b"\n" for row in rows), asbytes=True))
    assert found(out)[0] == "record"


# Records


@pytest.mark.quick(6)
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda record, _: record["rows"].update(out=record["rows"]["out"] - 1), {"rows": 1, "books": 1, "summary": 1}),
        (lambda record, _: record["rows"].update({"in": record["rows"]["in"] + 1}), {"books": 1, "summary": 1}),
        (lambda record, _: record["rows"]["dropped"].update({"each tenth": 2, "why": 1}), {"summary": 1}),
        (lambda record, _: record["counters"].update(half=1.0), {"summary": 1}),
        (lambda record, _: record["rows"].update({"in": "many"}), {"record": 1}),
        (lambda record, _: record.pop("counters"), {"record": 1}),
        (lambda record, _: record.update(more=1), {"record": 1}),
        (lambda _, rows: rows.pop(), {"rows": 1}),
        (lambda _, rows: rows.append(rows[0]), {"rows": 1}),
    ],
)
def test_a_changed_record_is_found(out: Path, change: Any, expected: dict[str, int]) -> None:
    """Written with the right checksums: rows against the record, its books, and all records against the summary."""
    rewrite(outputs(out)[0], change)
    assert kinds(out) == expected


def test_another_schema_is_found(out: Path, kind: str) -> None:
    """Another type in Parquet, another column in both."""
    path = outputs(out)[2]
    if kind == "parquet":
        rewrite(path, lambda *_: None, n=pa.int32())
        assert found(out)[::2] == (
            "schema",
            "its columns are 'id' string, 'text' string, 'n' int32; expected 'id' string, 'text' string, 'n' int64",
        )
    rewrite(path, lambda *_: None, more=pa.string())
    assert found(out)[:2] == ("schema", path.name)


@pytest.mark.parametrize("alone", [False, True])
def test_a_stored_schema_of_another_job_is_found(out: Path, alone: bool) -> None:
    """No output has it: it is to be removed, not all outputs; of one output alone, both are, for either may be it."""
    schema = out / layout.SCHEMAS / "output.arrow"
    schema.write_bytes(bytes(pa.schema([("other", pa.string())]).serialize()))
    if alone:
        for path in outputs(out)[1:]:
            path.unlink()
        without_summary(out)
    report = verify(str(out))
    named = f"{layout.SCHEMAS}{schema.name}"
    assert (report.findings[-1].object, report.counts["schema"]) == (named, 2 if alone else SHARDS + 1)
    removed = {name for one in report.findings for name in one.remove}
    assert removed == {named, *([outputs(out)[0].name] if alone else [])}
    for name in removed:
        (out / name).unlink()
    assert not verify(str(out)).counts


@pytest.mark.parametrize("odd", range(SHARDS))
def test_a_declared_schema_is_that_of_most_outputs(tmp_path: Path, kind: str, odd: int) -> None:
    """It is stored nowhere but in the outputs; the odd one out is found, be it the first."""
    out = finished(tmp_path, kind, Declared)
    assert not (out / layout.SCHEMAS / "output.arrow").exists()
    rewrite(outputs(out)[odd], lambda *_: None, more=pa.string())
    assert [(one.kind, one.object) for one in verify(str(out)).findings] == [("schema", outputs(out)[odd].name)]


# Quarantine


def quarantine(out: Path) -> list[Path]:
    return sorted((out / layout.QUARANTINE).iterdir())


def test_a_quarantine_that_is_gone_is_found(out: Path) -> None:
    """By the output that names it."""
    gone = quarantine(out)[0]
    gone.unlink()
    kind, name, reason = found(out)
    assert (kind, name in {path.name for path in outputs(out)}) == ("quarantine", True)
    assert reason == f"{layout.QUARANTINE}{gone.name}, which its record names, is gone"


def test_a_quarantine_that_was_changed_is_found(out: Path) -> None:
    """Its name is the hash of its bytes: every flip shows, and so do other rows."""
    path = quarantine(out)[0]
    data = path.read_bytes()
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert kinds(out) == {"quarantine": 1}
    path.write_bytes(compress(decompress(data) * 2))
    assert "is not what it was: the hash of its bytes is" in found(out)[2]


def test_a_quarantine_that_nobody_names_is_found(out: Path) -> None:
    """In a finished job; while one goes on its output may be about to come."""
    path = out / layout.QUARANTINE / "0123456789abcdef.jsonl.zst"
    path.write_bytes(b"x")
    assert found(out)[:2] == ("unnamed", f"{layout.QUARANTINE}{path.name}")
    without_summary(out)
    outputs(out)[0].unlink()
    assert verify(str(out)).state == INCOMPLETE


def test_a_record_that_names_another_number_of_rows_is_found(out: Path) -> None:
    """Balanced, and still not what is there."""

    def change(record: dict[str, Any], _: Any) -> None:
        record["rows"]["quarantined"] += 1
        record["rows"]["in"] += 1

    rewrite(outputs(out)[1], change)
    assert kinds(out) == {"quarantine": 1, "summary": 1}
    rewrite(outputs(out)[1], lambda record, _: record.update(quarantine=None))
    assert kinds(out) == {"quarantine": 1, "summary": 1, "unnamed": 1}


# Jobs that are not complete


def test_an_unfinished_job_is_incomplete_and_not_damaged(out: Path) -> None:
    """What is there is read all the same."""
    without_summary(out)
    outputs(out)[0].unlink()
    report = verify(str(out))
    assert (report.state, report.absent, report.read, report.findings) == (INCOMPLETE, 1, SHARDS - 1, [])
    outputs(out)[0].write_bytes(b"")
    assert kinds(out) == {"record": 1}


def test_a_job_that_no_run_closed_is_incomplete(out: Path) -> None:
    """Killed between the last output and the summary."""
    without_summary(out)
    report = verify(str(out))
    assert (report.state, report.absent, report.findings) == (INCOMPLETE, 0, [])


def test_a_summary_that_says_otherwise_is_found(out: Path) -> None:
    """Of another plan, or of other totals; each difference is told."""
    path = out / layout.SUMMARY
    summary = orjson.loads(path.read_bytes())
    path.write_bytes(orjson.dumps({**summary, "fingerprint": "f" * 16, "shards": {"total": 5, "done": 5}}))
    assert [one.reason.split(" ")[0] for one in verify(str(out)).findings] == ["fingerprint", "shards"]


# How much is told, kept and asked for


def test_findings_are_counted_and_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million foreign objects are no million lines."""
    monkeypatch.setattr(verifying, "MOST_FINDINGS", 3)
    report = VerifyReport("j", "/out", 0, closed=True)
    for number in range(10):
        report.add(verifying.Finding("foreign", str(number), ""))
        report.add(verifying.Finding("rows", str(number), ""))
    assert report.counts == {"foreign": 10, "rows": 10}
    assert len(report.findings) == 6


def test_a_large_output_is_never_whole_in_memory(tmp_path: Path) -> None:
    """58 MiB of rows in one group, of which a few are held at a time."""
    schema = pa.schema([("id", pa.string()), ("text", pa.string()), ("n", pa.int64())])
    (tmp_path / "in").mkdir()
    write_jsonl(tmp_path / "in" / "s0.jsonl", numbered(0, 10))
    out = tmp_path / "out"
    assert run_job(Declared(), tmp_path / "in", out).state == "complete"
    (path,) = outputs(out)
    record, _ = record_of(path)
    record["rows"].update({"in": 60_000, "out": 60_000, "dropped": {}})
    record["counters"] = {}
    text = "0123456789" * 100
    with path.open("wb") as sink:
        writer = ParquetOutput(sink, schema, "none")
        for start in range(0, 60_000, 1000):
            rows = [
                {"id": f"{number}", "text": f"{number} {text}", "n": number} for number in range(start, start + 1000)
            ]
            writer.write(pa.Table.from_pylist(rows, schema=schema))
        writer.close(record)
    assert path.stat().st_size > 50 << 20
    without_summary(out)
    shutil.rmtree(tmp_path / "in")
    # One of its own: what this process has held at most, other tests decide.
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        assert verify(str(out)).state == INCOMPLETE
    finally:
        pa.set_memory_pool(before)
    assert 1 << 20 < (pool.max_memory() or 0) < 50 << 20


def test_a_store_that_does_not_answer_is_no_damage(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error of its own: nothing is known of the outputs."""

    def refuse(*_: Any) -> Any:
        raise StorageError("down")

    monkeypatch.setattr(checking, "count_rows", refuse)
    with pytest.raises(StorageError, match="down"):
        verify(str(out))


# While a run is at work


MEANWHILE = {
    "replaced": ({"redo_stale": True}, SHARDS),
    "made anew": ({"overwrite": True, "yes": True}, SHARDS),
    "taken out": ({"drop_removed": True}, 1),
}


@pytest.mark.parametrize("what", MEANWHILE)
def test_what_a_run_replaces_meanwhile_is_not_off(
    what: str, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs are read after they are listed: one that is another by then says nothing, and nothing is to be removed.
    The next look finds all as it should be."""
    out = finished(tmp_path, kind)
    looked, before = find_job, find_job(str(out))

    def run(output: str) -> Any:
        monkeypatch.setattr(verifying, "find_job", looked)
        found = looked(output)
        if what == "taken out":
            (tmp_path / "in" / "s1.jsonl").unlink()
        for shard in range(SHARDS) if what == "replaced" else ():
            write_jsonl(tmp_path / "in" / f"s{shard}.jsonl", numbered(7 * shard, 9 * shard + 3))
        format, _, codec = kind.partition("-")
        job = Tenths(format=format, codec=codec or "zstd")
        assert run_job(job, tmp_path / "in", out, **MEANWHILE[what][0]).state == "complete"
        return found

    monkeypatch.setattr(verifying, "find_job", run)
    report = verify(str(out))
    assert (report.state, report.findings, report.counts) == (INCOMPLETE, [], {})
    assert report.replaced == MEANWHILE[what][1]
    assert report.as_dict()["shards"]["replaced"] == report.replaced
    # Nor does who looks at rows hear that their job is to be run again.
    again = r"a run replaced or removed it since it was listed; look again"
    with pytest.raises(ConfigError, match=again):
        list(rows(before))
    # What was set aside of an output that is another one by now is read, or that is said.
    with pytest.raises(ConfigError, match=again) if what == "taken out" else nullcontext():
        list(quarantined(before))
    assert verify(str(out)).state == OK
