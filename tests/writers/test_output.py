from __future__ import annotations

import datetime
import decimal
import gc
import gzip
import hashlib
import io
import json
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json as pa_json
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.arrow.sizes import row_bytes
from curate.errors import ConfigError, CorruptInput, SchemaMismatch
from curate.formats.encoding import detect
from curate.objects import compress
from curate.objects.record import OFFERED, OutputFormat, read_record
from curate.writers.jsonl import json_lines
from curate.writers.parquet import ParquetOutput
from curate.writers.writer import make_writer, suffix
from tests.support.fake_store import FakeStore
from tests.support.lines import lines_run
from tests.support.reading import read_all
from tests.support.writes import file_of, pieces

SCHEMA = pa.schema(
    [
        ("s", pa.string()),
        ("n", pa.int64()),
        ("l", pa.list_(pa.float64())),
        ("d", pa.struct([("a", pa.large_string()), ("b", pa.bool_())])),
        ("m", pa.map_(pa.string(), pa.int8())),
    ]
)
ROW = st.fixed_dictionaries(
    {
        "s": st.none() | st.text(max_size=40),
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "l": st.none() | st.lists(st.none() | st.floats(), max_size=4),
        "d": st.none() | st.fixed_dictionaries({"a": st.none() | st.text(max_size=9), "b": st.none() | st.booleans()}),
        "m": st.none()
        | st.lists(
            st.tuples(st.text(max_size=2), st.none() | st.integers(-9, 9)), max_size=3, unique_by=lambda pair: pair[0]
        ),
    }
)
RECORD = {"shard": "a", "rows_in": 3, "dropped": {"b": 1, "a": 2}}
WRITTEN = [
    (OutputFormat.PARQUET, "zstd"),
    (OutputFormat.PARQUET, "none"),
    (OutputFormat.JSONL, "zstd"),
    (OutputFormat.JSONL, "gzip"),
]


def written(tables: list[pa.Table], format: OutputFormat, codec: str = "zstd", schema: pa.Schema = SCHEMA) -> bytes:
    return file_of(tables, format, codec, RECORD, schema)


@pytest.mark.ci(2)
@pytest.mark.quick(2)
@pytest.mark.parametrize(("format", "codec"), WRITTEN)
@given(st.lists(ROW, max_size=30), st.lists(st.integers(0, 30), max_size=5), st.booleans(), st.integers(1, 400))
def test_the_bytes_do_not_depend_on_the_tables_that_rows_come_in(
    format: OutputFormat, codec: str, rows: list[Any], cuts: list[int], combined: bool, limit: int
) -> None:
    """Any cutting of the same rows gives the same file: slices of one buffer, tables of several chunks, copies."""

    def write(tables: list[pa.Table]) -> bytes:
        if format is OutputFormat.JSONL:
            return written(tables, format, codec)
        sink = io.BytesIO()
        writer = ParquetOutput(sink, SCHEMA, codec, group_rows=10, group_bytes=limit)
        for table in tables:
            writer.write(table)
        writer.close(RECORD)
        return sink.getvalue()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compress, "_PIECE_BYTES", limit)
        whole = pa.Table.from_pylist(rows, SCHEMA)
        parts = pieces(whole, cuts)
        if combined:
            parts = [pa.Table.from_pylist(part.to_pylist(), SCHEMA) for part in parts]
        else:
            parts = [pa.concat_tables([part.slice(0, 1), part.slice(1)]) for part in parts]
        assert write(parts) == write([whole])


@given(st.lists(ROW, max_size=30), st.integers(0, 9), st.integers(1, 12))
def test_the_measure_of_a_row_depends_on_its_values_alone(rows: list[Any], start: int, count: int) -> None:
    """And is never more than the table's bytes, so that small tables need no measuring."""
    table = pa.Table.from_pylist(rows, SCHEMA)
    part = table.slice(start, count)
    copy = pa.Table.from_pylist(part.to_pylist(), SCHEMA)
    assert row_bytes(part).tolist() == row_bytes(copy).tolist() == row_bytes(table)[start : start + count].tolist()
    assert row_bytes(table).sum() <= table.nbytes


@given(st.lists(st.integers(0, 300), max_size=60), st.lists(st.integers(0, 60), max_size=5))
def test_row_groups_end_where_the_rule_says(sizes: list[int], cuts: list[int]) -> None:
    """After ten rows, or before the row that would take the group over 500 bytes; a larger row is alone."""
    schema = pa.schema([("s", pa.string())])
    sink = io.BytesIO()
    writer = ParquetOutput(sink, schema, "none", group_rows=10, group_bytes=500)
    for table in pieces(pa.table({"s": ["x" * size for size in sizes]}, schema), cuts):
        writer.write(table)
    writer.close(RECORD)
    expected: list[int] = []
    rows = total = 0
    for size in sizes:
        if rows == 10 or (rows and total + size + 4 > 500):
            expected.append(rows)
            rows = total = 0
        rows, total = rows + 1, total + size + 4
    expected += [rows] if rows else []
    metadata = pq.ParquetFile(io.BytesIO(sink.getvalue())).metadata
    assert [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)] == expected


def test_another_output_of_a_schema_costs_the_same_for_any_number_of_columns() -> None:
    """Outputs are many, and what follows from their schema is known by then."""

    def lines(columns: int) -> int:
        schema = pa.schema([(f"c{number}", pa.list_(pa.int64())) for number in range(columns)])
        make_writer(io.BytesIO(), schema, OutputFormat.PARQUET, "zstd")
        return lines_run(lambda: make_writer(io.BytesIO(), schema, OutputFormat.PARQUET, "zstd"))

    assert lines(1) == lines(60)


@pytest.mark.parametrize(("format", "codec"), WRITTEN)
def test_the_bytes_are_these(format: OutputFormat, codec: str) -> None:
    """Twice in a row, and whatever else the process wrote before: nothing of time or order is in the file."""
    table = pa.table({"s": [str(n) for n in range(1000)]})
    once = written([table], format, codec, table.schema)
    written([pa.table({"s": ["other"]})], format, codec, table.schema)
    assert hashlib.sha256(once).digest() == hashlib.sha256(written([table], format, codec, table.schema)).digest()


@pytest.mark.parametrize(("format", "codec"), WRITTEN)
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_what_is_written_is_read_back_with_its_record(format: OutputFormat, codec: str, rows: int) -> None:
    """Also where there are no rows: the file is valid and has its schema (Parquet) and its record."""
    schema = pa.schema([("s", pa.string()), ("n", pa.int64())])
    table = pa.table({"s": ["a", "é", None][:rows], "n": [1, None, 3][:rows]}, schema)
    store = FakeStore()
    object = store.put("a" + suffix(format, codec), written([table], format, codec, schema))
    assert read_all(store, object, schema) == (table.to_pylist(), [])
    assert read_record(store, object, format, codec) == RECORD
    assert len(store.reads) == 1
    if format is OutputFormat.PARQUET:
        parquet_schema = pq.read_schema(io.BytesIO(store.objects[object.uri][0]))
        assert parquet_schema.remove_metadata().equals(schema, check_metadata=True)


@pytest.mark.parametrize(("format", "codec"), WRITTEN)
@pytest.mark.parametrize("size", [10, 16_000, 16_384, 59_990, 200_000])
def test_a_long_record_takes_a_second_read(format: OutputFormat, codec: str, size: int) -> None:
    store = FakeStore()
    table, record = pa.table({"s": ["a"]}), {"text": "x" * size}
    object = store.put("a" + suffix(format, codec), file_of(table, format, codec, record))
    assert read_record(store, object, format, codec) == record
    assert len(store.reads) == (1 if size <= 16_000 else 2)
    assert read_all(store, object, table.schema) == ([{"s": "a"}], [])


def test_foreign_objects_carry_no_record(store: FakeStore) -> None:
    stream = io.BytesIO()
    pq.write_table(pa.table({"a": [1]}), stream)
    foreign = {
        ("a.parquet", OutputFormat.PARQUET, "zstd"): stream.getvalue(),
        ("a.jsonl.gz", OutputFormat.JSONL, "gzip"): gzip.compress(b"{}\n"),
        ("b.jsonl.gz", OutputFormat.JSONL, "gzip"): gzip.compress(b"{}\n") + gzip.compress(b""),
        ("a.jsonl.zst", OutputFormat.JSONL, "zstd"): pa.Codec("zstd").compress(b"{}\n", asbytes=True),
        ("b.jsonl.zst", OutputFormat.JSONL, "zstd"): b"",
    }
    for (uri, format, codec), data in foreign.items():
        assert read_record(store, store.put(uri, data), format, codec) is None


@pytest.mark.parametrize(("format", "codec"), WRITTEN)
def test_a_broken_record_is_corrupt_input(format: OutputFormat, codec: str, store: FakeStore) -> None:
    schema = pa.schema([("s", pa.string())])
    uri = "a" + suffix(format, codec)
    data = written([], format, codec, schema)
    at = data.rindex(b'"shard"')
    broken = store.put(uri, data[:at] + b"\x00\x00" + data[at + 2 :])
    with pytest.raises(CorruptInput, match=f"{uri}: its record is damaged"):
        read_record(store, broken, format, codec)
    if codec != "gzip":
        cut = data[at:] if codec == "zstd" and format is OutputFormat.JSONL else data[:-3]
        with pytest.raises(CorruptInput, match=f"{uri}: its record is damaged"):
            read_record(store, store.put(uri, cut), format, codec)
    store.objects.clear()
    with pytest.raises(CorruptInput, match=f"{uri}: the object was removed"):
        read_record(store, broken, format, codec)


def test_a_codec_that_the_format_is_not_written_with_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"jsonl is not written with codec 'gzp'; did you mean 'gzip'\?; expected one"
    ):
        suffix(OutputFormat.JSONL, "gzp")
    with pytest.raises(ConfigError, match="parquet is not written with codec 'gzip'"):
        make_writer(io.BytesIO(), SCHEMA, OutputFormat.PARQUET, "gzip")


@pytest.mark.parametrize("format", OFFERED)
def test_tables_are_held_to_the_schema(format: OutputFormat) -> None:
    schema = pa.schema([("s", pa.string()), ("n", pa.int64())])
    held = pa.table({"s": ["a"], "n": [1]}, schema)
    other = pa.table({"n": pa.array([1], pa.int8()), "s": pa.array(["a"]).dictionary_encode()})
    assert written([other], format, schema=schema) == written([held], format, schema=schema)
    with pytest.raises(SchemaMismatch, match="'n' is string, expected int64"):
        written([pa.table({"s": ["a"], "n": ["b"]})], format, schema=schema)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("format", "codec"), WRITTEN)
def test_a_writer_that_is_dropped_writes_nothing_more(format: OutputFormat, codec: str) -> None:
    """Arrow's writers finish their files when they are collected; a sink whose upload was given up must not see it."""
    sink = io.BytesIO()
    schema = pa.schema([("s", pa.string())])
    writer = make_writer(sink, schema, format, codec)
    writer.write(pa.table({"s": ["a"]}))
    before = sink.getvalue()
    sink.close()
    del writer
    gc.collect()
    assert not before.endswith(b"PAR1")


# --- ordinary readers

LINES = "".join(f'{{"s":"{number}"}}\n' for number in range(3000)).encode()


def jsonl(codec: str) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compress, "_PIECE_BYTES", 10_000)  # several gzip members
        table = pa.table({"s": [str(number) for number in range(3000)]})
        return written([table], OutputFormat.JSONL, codec, table.schema)


def test_python_reads_the_gzip() -> None:
    assert gzip.decompress(jsonl("gzip")) == LINES
    with gzip.open(io.BytesIO(jsonl("gzip"))) as stream:
        assert stream.read() == LINES


def test_zlib_finds_nothing_but_whole_members() -> None:
    data, unpacked = jsonl("gzip"), b""
    while data:
        member = zlib.decompressobj(wbits=31)
        unpacked += member.decompress(data)
        assert member.eof
        data = member.unused_data
    assert unpacked == LINES


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_pyarrow_reads_it(codec: str) -> None:
    with pa.CompressedInputStream(pa.BufferReader(jsonl(codec)), codec) as stream:
        assert stream.read() == LINES
    with pa.CompressedInputStream(pa.BufferReader(jsonl(codec)), codec) as stream:
        assert pa_json.read_json(stream).num_rows == 3000


@pytest.mark.parametrize(("codec", "tool"), [("gzip", "gzip -dc"), ("gzip", "zcat"), ("zstd", "zstd -dc")])
def test_command_line_tools_read_it(codec: str, tool: str, tmp_path: Path) -> None:
    command = tool.split()
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    path = tmp_path / ("a" + suffix(OutputFormat.JSONL, codec))
    path.write_bytes(jsonl(codec))
    done = subprocess.run([*command, str(path)], capture_output=True, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, b"", LINES)


def test_gzip_has_no_time_in_it() -> None:
    data = jsonl("gzip")
    assert data[:3] == b"\x1f\x8b\x08"
    assert data[4:8] == bytes(4)


# --- JSON of what JSON lacks


@pytest.mark.parametrize(
    ("type", "value", "expected"),
    [
        (pa.float64(), float("nan"), "NaN"),
        (pa.float64(), float("-inf"), "-Infinity"),
        (pa.binary(), b"\xff\x00", "/wA="),
        (pa.timestamp("s"), datetime.datetime(2020, 1, 2, 3, 4, 5), "2020-01-02T03:04:05"),
        (pa.timestamp("us"), datetime.datetime(2020, 1, 2, 3, 4, 5, 6), "2020-01-02T03:04:05.000006"),
        (pa.timestamp("ns"), 1577934245000000007, "2020-01-02T03:04:05.000000007"),
        (pa.timestamp("s", "UTC"), 1577934245, "2020-01-02T03:04:05+0000"),
        (pa.date32(), datetime.date(2020, 1, 2), "2020-01-02"),
        (pa.time64("us"), datetime.time(3, 4, 5, 6), "03:04:05.000006"),
        (pa.decimal128(9, 2), decimal.Decimal("1.20"), "1.20"),
        (pa.list_(pa.binary()), [b"a", None], ["YQ==", None]),
        (pa.list_(pa.timestamp("ns")), [1577934245000000007], ["2020-01-02T03:04:05.000000007"]),
        (pa.struct([("t", pa.timestamp("ns"))]), {"t": 7}, {"t": "1970-01-01T00:00:00.000000007"}),
        (pa.map_(pa.string(), pa.int8()), [("a", 1)], {"a": 1}),
        (pa.map_(pa.string(), pa.timestamp("ns")), [("a", 7)], {"a": "1970-01-01T00:00:00.000000007"}),
        (pa.dictionary(pa.int8(), pa.string()), "a", "a"),
        (pa.uint64(), 2**64 - 1, 2**64 - 1),
        (pa.duration("ms"), 1500, 1500),
    ],
)
def test_values_are_written_as_json_can_say_them(type: pa.DataType, value: Any, expected: Any) -> None:
    schema = pa.schema([("v", type)])
    table = pa.table({"v": pa.array([value, None], type)}, schema)
    lines = gzip.decompress(file_of(table, OutputFormat.JSONL, "gzip")).splitlines()
    assert [json.loads(line) for line in lines] == [{"v": expected}, {"v": None}]


@pytest.mark.parametrize(
    ("type", "value", "expected"),
    [
        (pa.map_(pa.int64(), pa.binary()), [(1, b"x")], [[1, "eA=="]]),
        (pa.map_(pa.binary(), pa.int64()), [(b"\xff", 1)], [["/w==", 1]]),
        (pa.map_(pa.date32(), pa.int64()), [(datetime.date(2020, 1, 2), 1)], [["2020-01-02", 1]]),
        (pa.map_(pa.float64(), pa.float64()), [(float("nan"), float("inf"))], [["NaN", "Infinity"]]),
        (pa.map_(pa.int8(), pa.map_(pa.large_string(), pa.int8())), [(1, [("a", 2)])], [[1, {"a": 2}]]),
        (pa.list_(pa.map_(pa.bool_(), pa.int8())), [[], [(True, 1)]], [[], [[True, 1]]]),
        (pa.map_(pa.int8(), pa.int8()), [], []),
    ],
)
def test_a_map_whose_keys_are_no_text_is_shown_as_pairs(type: pa.DataType, value: Any, expected: Any) -> None:
    """For people to read (`curate head`): an output of JSON lines refuses it."""
    [line] = json_lines(pa.table({"v": pa.array([value], type)}))
    assert json.loads(line) == {"v": expected}


def test_the_names_say_format_and_codec() -> None:
    for format, codec in WRITTEN:
        encoding = detect("a" + suffix(format, codec))
        assert encoding.format.value == format.value
        assert encoding.codec == (codec if format is OutputFormat.JSONL else None)
