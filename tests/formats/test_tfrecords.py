"""TFRecord files of `tf.train.Example` records: read and written without TensorFlow, as its description says."""

from __future__ import annotations

import contextlib
import gzip
import struct
from pathlib import Path
from typing import Any

import google_crc32c
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import curate
from curate.errors import ConfigError, CorruptInput, CurateError
from curate.formats.encoding import detect
from curate.formats.file_slice import FileSlice
from curate.formats.rows import sample_schema
from curate.objects.bad_line import RejectedRow
from curate.objects.quarantine import read_quarantine
from curate.objects.record import OutputFormat, read_record
from curate.objects.tf_example import frame
from curate.observe.job import find_job
from curate.observe.preview import preview
from curate.observe.verify import verify
from curate.sources import columns
from tests.support.fake_store import FakeStore
from tests.support.reading import rows_of
from tests.support.writes import file_of, slices

# By hand, from the published description: field numbers and wire types, one byte each; lengths below 128.
INT = b"\x0a\x0c\x0a\x01n\x12\x07\x1a\x05\x0a\x03\x01\xac\x02"  # n: int64_list [1, 300]
FLOAT = b"\x0a\x0d\x0a\x01f\x12\x08\x12\x06\x0a\x04\x00\x00\x00\x3f"  # f: float_list [0.5], packed
LOOSE = b"\x0a\x0c\x0a\x01f\x12\x07\x12\x05\x0d\x00\x00\x00\x3f"  # the same, not packed
TEXT = b"\x0a\x0b\x0a\x01t\x12\x06\x0a\x04\x0a\x02hi"  # t: bytes_list [b"hi"]
EMPTY = b"\x0a\x07\x0a\x01t\x12\x02\x0a\x00"  # t: bytes_list []


def example(*features: bytes) -> bytes:
    joined = b"".join(features)
    return b"\x0a" + bytes([len(joined)]) + joined


def framed(*records: bytes) -> bytes:
    return b"".join(map(frame, records))


def read_file(data: bytes, schema: pa.Schema | None = None) -> tuple[list[dict[str, Any]], list[RejectedRow]]:
    store: Any = FakeStore()
    object, encoding = store.put("a.tfrecords", data), detect("a.tfrecords")
    schema = sample_schema(FileSlice(store, object, encoding)) if schema is None else schema
    return rows_of(store, object, encoding, schema, 3)


def written(table: pa.Table, cuts: int = 10_000) -> bytes:
    return file_of(slices(table, cuts), OutputFormat.TFRECORDS, "gzip")


def test_the_frame_is_that_of_the_description() -> None:
    """Length and record, each with the CRC-32C of it, turned and masked."""

    def masked(data: bytes) -> int:
        crc = google_crc32c.value(data)
        return (((crc >> 15) | (crc << 17 & 0xFFFFFFFF)) + 0xA282EAD8) % 2**32

    length = struct.pack("<Q", 3)
    assert frame(b"abc") == length + struct.pack("<I", masked(length)) + b"abc" + struct.pack("<I", masked(b"abc"))
    # Of a file that TensorFlow wrote, with an empty record.
    assert frame(b"") == bytes.fromhex("000000000000000029039807d8ea82a2")


def test_what_is_read() -> None:
    """One value is a value, several are lists; missing is null, and so is an empty list where a value is expected."""
    rows, bad = read_file(framed(example(INT, FLOAT, TEXT), example(LOOSE), example(EMPTY), b""))
    nothing = {"f": None, "n": None, "t": None}
    assert rows == [{"f": 0.5, "n": [1, 300], "t": b"hi"}, {**nothing, "f": 0.5}, nothing, nothing]
    assert bad == []
    schema = pa.schema([("t", pa.large_string()), ("n", pa.list_(pa.int16(), 2)), ("f", pa.list_(pa.float64()))])
    rows, bad = read_file(framed(example(INT, FLOAT, TEXT)), schema)
    assert (rows, bad) == ([{"t": "hi", "n": [1, 300], "f": [0.5]}], [])


def test_broken_records_are_bad_rows_with_their_number() -> None:
    spoiled = bytearray(framed(example(TEXT)))
    spoiled[13] ^= 1
    wide = TEXT.replace(b"hi", b"\xff\xfe")
    file = framed(example(TEXT), b"\xffabc") + spoiled + framed(example(INT, TEXT), example(TEXT), example(wide))
    rows, bad = read_file(file, pa.schema([("t", pa.string()), ("n", pa.int64())]))
    assert rows == [{"t": "hi", "n": None}] * 2
    assert [(one.line, one.reason) for one in bad] == [
        (2, "not a tf.train.Example"),
        (3, "the checksum of the record is wrong"),
        (4, "column 'n' has several values, expected one int64: declare a list"),
        (6, "column 't' has a value that string cannot hold"),
    ]
    assert bad[0].raw == b"\xffabc"
    _, bad = read_file(
        framed(example(INT), example(TEXT)), pa.schema([("t", pa.float32()), ("n", pa.list_(pa.int8()))])
    )
    assert sorted(one.reason for one in bad) == [
        "column 'n' has a value that list<item: int8> cannot hold",
        "column 't' has a bytes_list, expected float",
    ]
    _, bad = read_file(framed(example(TEXT)), pa.schema([pa.field("n", pa.int64(), nullable=False)]))
    assert [one.reason for one in bad] == ["column 'n' is null"]


def test_a_feature_that_only_later_records_have_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a column, and where no file has it that is looked into, a bad row says what to declare; what is declared is
    all that is read."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.tfrecords").write_bytes(framed(example(TEXT)))
    (folder / "b.tfrecords").write_bytes(framed(example(TEXT, FLOAT), example(TEXT)))
    assert [len(row) for row in curate.read_tfrecords(folder).take_all()] == [2, 2, 2]
    monkeypatch.setattr(columns, "MORE_FILES", 0)
    ended = curate.read_tfrecords(folder).write_parquet(tmp_path / "out", backend="inline")
    assert (ended.books.rows_out, ended.books.quarantined) == (2, 1)
    schema = pa.schema([("t", pa.binary())])
    assert curate.read_tfrecords(folder, schema=schema).take_all() == [{"t": b"hi"}] * 3


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (framed(example(TEXT))[:-1], "ends within record 1"),
        (framed(example(TEXT)) + b"abc", "ends within record 2"),
        (b"{}\n" * 20, "record 1 has no length that can be read; not a TFRecord file, damaged"),
    ],
)
def test_a_file_that_cannot_be_read_on_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptInput, match=reason):
        read_file(data)


@given(st.integers(0, 200), st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=3), st.binary())
def test_spoiled_files_end_in_bad_rows_or_an_error_of_curate(cut: int, changes: Any, record: bytes) -> None:
    data = bytearray(framed(example(INT, FLOAT, TEXT), record, example(TEXT)))
    for at, value in changes:
        data[at % len(data)] = value
    with contextlib.suppress(CurateError):
        read_file(bytes(data[cut % len(data) :]))


TABLE = pa.table(
    {
        "text": ["é", None, ""],
        "n": pa.array([2**63 - 1, -1, None]),
        "small": pa.array([0, 255, None], pa.uint8()),
        "f": pa.array([0.5, float("inf"), None], pa.float32()),
        "bytes": [b"\xff\x00", b"", None],
        "list": pa.array([[1], [], None]),
        "texts": [["a", "", "b"], [], None],
        "vector": pa.array([[1, 2], [3, 4], None], pa.list_(pa.float32(), 2)),
    }
)


def test_what_is_written_is_read_with_its_schema() -> None:
    """Value and type, nulls, empty lists and empty texts too. Bytes depend on the rows alone, and carry the record."""
    data = written(TABLE)
    assert data == written(TABLE, cuts=1)
    assert read_file(gzip.decompress(data), TABLE.schema) == (TABLE.to_pylist(), [])
    store: Any = FakeStore()
    assert read_record(store, store.put("a.tfrecords.gz", data), OutputFormat.TFRECORDS, "gzip") == {"shard": "a"}
    assert gzip.decompress(written(TABLE.slice(0, 0))) == b""


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (pa.array([0.5]), r"column 'v' is double, but a tf.train.Example has 32-bit floats; cast it"),
        (pa.array([[0.5]]), r"column 'v' is list<item: double>, but"),
        (pa.array([True]), "column 'v' is bool, which a tf.train.Example cannot store"),
        (pa.array([{"a": 1}]), "column 'v' is struct<a: int64>, which"),
        (pa.array([[[1]]]), "column 'v' is list<item: list<item: int64>>, which"),
        (pa.array([0], pa.timestamp("s")), "column 'v' is timestamp"),
        (pa.array([[1, None]]), "column 'v' is list<item: int64> and has null in a list"),
        (pa.array([["", None]]), "column 'v' is list<item: string> and has null in a list"),
        (pa.array([2**63], pa.uint64()), "column 'v' is uint64 and has null in a list, or a number above 63 bits"),
    ],
)
def test_what_is_not_written(array: pa.Array, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        written(pa.table({"v": array}))


def test_as_a_job(tmp_path: Path) -> None:
    """Read, written, looked at, run again; bad rows are in quarantine with their place; a changed byte is found."""
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    (folder / "a.tfrecords").write_bytes(framed(example(INT, TEXT), b"\xff\xff\xff", example(FLOAT, TEXT)))
    (folder / "c.tfrecord-00000-of-00001").write_bytes(b"")
    (folder / "b.tfrecord.gz").write_bytes(gzip.compress(framed(example(TEXT))))
    ds = curate.read_tfrecords(folder, include_paths=True)
    assert ds.schema().names == ["f", "n", "t", "path"]
    ended = ds.write_tfrecords(out, backend="inline")
    assert (ended.state, ended.books.rows_in, ended.books.rows_out, ended.books.quarantined) == ("complete", 4, 3, 1)
    assert sorted(path.name for path in out.glob("*.gz")) == [
        "a.tfrecords.gz", "b.tfrecords.gz", "c.tfrecord-00000-of-00001.tfrecords.gz"
    ]  # fmt: skip
    assert curate.read_tfrecords(out).select_columns(["t", "path"]).take_all() == [
        {"t": b"hi", "path": str(folder / name).encode()} for name in ("a.tfrecords", "a.tfrecords", "b.tfrecord.gz")
    ]
    assert verify(str(out)).state == "ok"
    assert ds.write_tfrecords(out, backend="inline").dispatched == 0
    job = find_job(str(out))
    lines = preview(job.ledger.store, job.output(0), *job.written_as, ["t", "n"])
    assert orjson.loads(next(lines)) == {"t": "hi", "n": [1, 300]}
    [name] = job.listing.quarantine
    [row] = read_quarantine(job.ledger.store, job.ledger.store.stat(job.ledger.uri(name)))
    assert (row.line, row.reason, row.is_base64) == (2, "not a tf.train.Example", True)
    data = bytearray((out / "a.tfrecords.gz").read_bytes())
    data[20] ^= 1
    (out / "a.tfrecords.gz").write_bytes(data)
    assert [one.kind for one in verify(str(out)).findings] == ["damaged"]


def test_other_readers_read_what_is_written(tmp_path: Path) -> None:
    """The package `tfrecord`."""
    import tfrecord

    (tmp_path / "a.tfrecords.gz").write_bytes(written(TABLE.select(["text", "n", "f", "list"]).slice(0, 1)))
    [row] = tfrecord.tfrecord_loader(str(tmp_path / "a.tfrecords.gz"), None, compression_type="gzip")
    assert {name: value if isinstance(value, bytes) else list(value) for name, value in row.items()} == {
        "text": "é".encode(), "n": [2**63 - 1], "f": [0.5], "list": [1]
    }  # fmt: skip
    writer = tfrecord.TFRecordWriter(str(tmp_path / "b.tfrecords"))
    writer.write({"text": (b"a", "byte"), "f": ([0.5, 1.0], "float"), "n": (-3, "int")})
    writer.close()
    assert curate.read_tfrecords(tmp_path / "b.tfrecords").take_all() == [{"f": [0.5, 1.0], "n": -3, "text": b"a"}]
