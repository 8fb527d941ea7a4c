"""CSV outputs: the same bytes for the same rows, what other readers make of them, and what is noticed of damage."""

from __future__ import annotations

import datetime
import decimal
import gzip
import io
import itertools
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.errors import ConfigError, CorruptInput, SchemaMismatch
from curate.formats.encoding import detect
from curate.objects import compress
from curate.objects.record import OutputFormat, read_carried, read_record
from curate.observe.checks.contents import count_rows, output_schema
from curate.observe.preview import preview
from curate.writers import csv
from curate.writers.writer import make_writer, suffix
from tests.support.fake_store import FakeStore
from tests.support.reading import read_all
from tests.support.writes import file_of

CSV = OutputFormat.CSV
CODECS = ["zstd", "gzip"]
RECORD = {"shard": "a", "rows_in": 3}
SCHEMA = pa.schema([("s", pa.string()), ("n", pa.int64()), ("f", pa.float64()), ("b", pa.bool_())])
TEXT = st.text(st.sampled_from('ab",\né ;\r'), max_size=8)
ROW = st.fixed_dictionaries(
    {
        "s": st.none() | TEXT,
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.none() | st.floats(allow_nan=False),
        "b": st.none() | st.booleans(),
    }
)
ROWS = st.lists(ROW, max_size=30)


def written(tables: list[pa.Table], codec: str = "gzip", schema: pa.Schema = SCHEMA) -> bytes:
    return file_of(tables, CSV, codec, RECORD, schema)


def unpacked(data: bytes, codec: str) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
        found: bytes = stream.read()
    return found


@pytest.mark.quick(1)
@pytest.mark.parametrize("codec", CODECS)
@given(ROWS, st.lists(st.integers(0, 30), max_size=5), st.integers(1, 400))
def test_the_bytes_do_not_depend_on_the_tables_that_rows_come_in(
    codec: str, rows: list[Any], cuts: list[int], limit: int
) -> None:
    """Any cutting of the same rows gives the same file, also one column of nulls."""
    texts = [{**row, "s": row["s"] or ""} for row in rows]
    for schema, content in (
        (SCHEMA, rows),
        (pa.schema([SCHEMA.field("s")]), texts),
        (pa.schema([SCHEMA.field("n")]), rows),
    ):
        whole = pa.Table.from_pylist(content, schema)
        edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
        parts = [pa.Table.from_pylist(content[a:b], schema) for a, b in itertools.pairwise(edges)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compress, "_PIECE_BYTES", limit)
            patch.setattr(csv.CsvOutput, "rows_at_once", 7)
            assert written(parts, codec, schema) == written([whole], codec, schema)


@given(ROWS, st.sampled_from([["s", "n", "f", "b"], ["s"], ["n"], ["f", "s"]]))
def test_arrow_reads_back_what_was_written(rows: list[dict[str, Any]], names: list[str]) -> None:
    """Every row, nulls told from empty texts; a null that is the only text of its row is refused."""
    if names == ["s"]:
        rows = [{**row, "s": row["s"] or ""} for row in rows]
    schema = pa.schema([SCHEMA.field(name) for name in names])
    table = pa.Table.from_pylist(rows, schema)
    data = unpacked(written([table], schema=schema), "gzip")
    found = pa_csv.read_csv(
        io.BytesIO(data),
        parse_options=pa_csv.ParseOptions(newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(
            column_types=schema, strings_can_be_null=True, quoted_strings_can_be_null=names == ["n"]
        ),
    )
    expected = table
    assert found.to_pylist() == expected.to_pylist()


@given(st.lists(ROW, min_size=1, max_size=20))
def test_it_is_read_as_an_input(rows: list[dict[str, Any]]) -> None:
    """By curate itself, to which an empty text and a null one are the same."""
    store = FakeStore()
    table = pa.Table.from_pylist(rows, SCHEMA)
    object = store.put("a.csv.zst", written([table], "zstd"))
    found, bad = read_all(store, object, SCHEMA)
    assert found == [{**row, "s": row["s"] or ""} for row in rows]
    assert bad == []


def test_pandas_reads_it() -> None:
    """Text with quotes, commas and line ends; nulls are NaN."""
    pandas = pytest.importorskip("pandas")
    table = pa.table({"s": ['a"b', "c,d", "e\nf", None], "n": [1, 2, 3, None]})
    data = written([table], schema=table.schema)
    found = pandas.read_csv(io.BytesIO(unpacked(data, "gzip")))
    assert found["s"].tolist()[:3] == ['a"b', "c,d", "e\nf"]
    assert found["n"].tolist()[:3] == [1, 2, 3]
    assert found.isna().sum().tolist() == [1, 1]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_its_record_is_behind_it(codec: str, rows: int, store: FakeStore) -> None:
    """Also where there are no rows: there is a header then."""
    table = pa.table({"s": ["a", "é", None], "n": [1, None, 3]}).slice(0, rows)
    object = store.put("a" + suffix(CSV, codec), written([table], codec, table.schema))
    assert read_record(store, object, CSV, codec) == RECORD
    assert len(store.reads) == 1
    encoding = detect(object.uri)
    assert (encoding.format.value, encoding.codec) == ("csv", codec)
    lines = ['"s","n"', '"a",1', '"é",', ",3"][: rows + 1]
    assert unpacked(store.objects[object.uri][0], codec).decode() == "".join(f"{line}\n" for line in lines)


@given(ROWS)
def test_its_rows_are_counted(rows: list[Any]) -> None:
    """Line feeds in quotes end none."""
    store = FakeStore()
    object = store.put("a.csv.gz", written([pa.Table.from_pylist(rows, SCHEMA)]))
    carried = read_carried(store, object, CSV, "gzip")
    assert carried is not None
    assert count_rows(store, object, carried, CSV, "gzip", SCHEMA) == len(rows)
    schema = output_schema(store, object, CSV, "gzip")
    assert schema is not None
    assert schema.names == SCHEMA.names


def test_damage_is_noticed(store: FakeStore) -> None:
    """A byte that was changed, by the checksum; other columns, by the header."""
    table = pa.table({"s": ["aaaa", "bbbb"]})
    data = written([table], schema=table.schema)
    object = store.put("a.csv.gz", data)
    carried = read_carried(store, object, CSV, "gzip")
    assert carried is not None
    with pytest.raises(SchemaMismatch, match=r"its columns are 's'; expected 'x'"):
        count_rows(store, object, carried, CSV, "gzip", pa.schema([("x", pa.string())]))
    other = gzip.compress(b'"s"\n"aaab"\n"bbbb"\n') + data[carried.data_bytes :]
    changed = store.put("b.csv.gz", other)
    with pytest.raises(CorruptInput, match=r"b.csv.gz: the checksum of its rows is"):
        count_rows(store, changed, carried, CSV, "gzip", table.schema)


def test_it_can_be_looked_at(store: FakeStore) -> None:
    """Its rows as lines of JSON: CSV has texts only, unless somebody knows types; and a null, which is not quoted."""
    table = pa.table({"s": ["a", "b\nc"], "n": [1, None]})
    object = store.put("a.csv.gz", written([table], schema=table.schema))
    assert [orjson.loads(line) for line in preview(store, object, CSV, "gzip")] == [
        {"s": "a", "n": "1"},
        {"s": "b\nc", "n": None},
    ]
    assert [orjson.loads(line) for line in preview(store, object, CSV, "gzip", ["n"])] == [{"n": "1"}, {"n": None}]
    typed = preview(store, object, CSV, "gzip", ["n"], table.schema)
    assert [orjson.loads(line) for line in typed] == [{"n": 1}, {"n": None}]
    with pytest.raises(ConfigError, match="no column 'm'"):
        list(preview(store, object, CSV, "gzip", ["m"]))


@pytest.mark.parametrize(
    ("type", "value", "expected"),
    [
        (pa.timestamp("us"), datetime.datetime(2020, 1, 2, 3, 4, 5, 6), "2020-01-02 03:04:05.000006"),
        (pa.timestamp("s", "UTC"), 1577934245, "2020-01-02 03:04:05Z"),
        (pa.date32(), datetime.date(2020, 1, 2), "2020-01-02"),
        (pa.decimal128(9, 2), decimal.Decimal("1.20"), "1.20"),
        (pa.dictionary(pa.int8(), pa.string()), "a", '"a"'),
        (pa.string_view(), "a", '"a"'),
        (pa.float16(), 1.5, "1.5"),
        (pa.duration("ms"), 1500, "1500"),
        (pa.null(), None, ""),
    ],
)
def test_values_are_written_as_csv_can_say_them(type: pa.DataType, value: Any, expected: str) -> None:
    """And as nothing where they are null."""
    schema = pa.schema([("n", pa.int8()), ("v", type)])
    table = pa.table({"n": pa.array([1, 2], pa.int8()), "v": pa.array([value, None], type)}, schema)
    assert unpacked(written([table], schema=schema), "gzip").decode() == f'"n","v"\n1,{expected}\n2,\n'


@pytest.mark.parametrize("type", [pa.list_(pa.int8()), pa.struct([("a", pa.int8())]), pa.map_(pa.string(), pa.int8())])
def test_what_has_no_place_is_refused(type: pa.DataType) -> None:
    """Naming the column, before a byte is written."""
    with pytest.raises(ConfigError, match=r"column 'x' is .*, which CSV cannot store; leave it out"):
        make_writer(io.BytesIO(), pa.schema([("x", type)]), CSV, "gzip")


def test_it_is_never_written_uncompressed() -> None:
    """Its record would have no place."""
    with pytest.raises(ConfigError, match="csv is not written with codec 'none'; expected one of zstd, gzip"):
        suffix(CSV, "none")
