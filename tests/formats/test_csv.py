from __future__ import annotations

import csv as stdlib_csv
import gzip
import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.arrow.unknown import is_of_no_rows, told_as_text
from curate.errors import ConfigError, CorruptInput, SchemaMismatch
from curate.formats.encoding import Format, ReadAs, detect
from curate.formats.file_slice import FileSlice
from curate.formats.read import csv
from curate.formats.rows import read, sample_schema
from tests.support.fake_store import FakeStore
from tests.support.reading import read_all

SCHEMA = pa.schema([("", pa.int64()), ("text", pa.string())])


def rows_of(data: bytes, schema: pa.Schema = SCHEMA, name: str = "a.csv") -> Any:
    store = FakeStore()
    return read_all(store, store.put(name, data), schema, batch_rows=3)


def sampled(data: bytes, wanted: Any = None, name: str = "a.csv") -> pa.Schema:
    store = FakeStore()
    object = store.put(name, data)
    return sample_schema(FileSlice(store, object, detect(object.uri)), wanted)


TEXT = st.text(st.sampled_from('ab",\né '), max_size=8)
ROWS = st.lists(st.tuples(st.integers(-9, 9).map(str) | st.just("x"), TEXT, TEXT) | st.just(("1", "2")), max_size=20)


@given(ROWS, st.integers(30, 60))
def test_rows_are_what_the_csv_module_reads_but_for_bad_ones(rows: list[tuple[str, ...]], block: int) -> None:
    """Quotes, line ends in quotes and blocks smaller than the file change nothing; a bad row costs itself alone."""
    stream = io.StringIO()
    writer = stdlib_csv.writer(stream, quoting=stdlib_csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(["", "dropped", "text"])
    writer.writerows(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv, "BLOCK_BYTES", block)
        read, bad = rows_of(stream.getvalue().encode())
    reasons = [
        "wrong number of fields" if len(row) == 2 else "column '' is not int64" if row[0] == "x" else None
        for row in rows
    ]
    assert read == [
        {"": int(row[0]), "text": row[2]} for row, reason in zip(rows, reasons, strict=True) if reason is None
    ]
    assert [(row.line, row.reason) for row in bad] == [
        (number, reason) for number, reason in enumerate(reasons, 1) if reason is not None
    ]


def test_the_unnamed_first_column_that_pandas_writes_is_a_column() -> None:
    data = b",text\n0,a\n1,b\n"
    assert sampled(data) == SCHEMA
    assert rows_of(data)[0] == [{"": 0, "text": "a"}, {"": 1, "text": "b"}]


def test_text_is_kept_as_it_is_and_no_value_is_null_elsewhere() -> None:
    schema = pa.schema([("n", pa.float64()), ("t", pa.string()), ("b", pa.binary()), ("ok", pa.bool_())])
    rows, bad = rows_of(b'n,t,b,ok\n,,,\nNA,NA,NA,NA\n"","","",true\n1e3, x ,\xff,false\n', schema)
    assert bad == []
    assert rows == [
        {"n": None, "t": "", "b": b"", "ok": None},
        {"n": None, "t": "NA", "b": b"NA", "ok": None},
        {"n": None, "t": "", "b": b"", "ok": True},
        {"n": 1000.0, "t": " x ", "b": b"\xff", "ok": False},
    ]


def test_a_row_that_is_not_utf8_is_bad_in_the_columns_that_are_read() -> None:
    data = b',text,other\n1,a,\xff\n2,\xff,b\n3,"c,""d",e\nx,"c,""d",e\n4,\xff\n'
    rows, bad = rows_of(data)
    assert rows == [{"": 1, "text": "a"}, {"": 3, "text": 'c,"d'}]
    assert [(row.line, row.reason) for row in bad] == [
        (2, "invalid UTF-8"),
        (4, "column '' is not int64"),
        (5, "wrong number of fields"),
    ]
    assert [row.raw for row in bad] == [b"2,\xff", b'x,"c,""d"', b"4,\xff"]


def test_bytes_that_are_not_utf8_change_nothing_elsewhere() -> None:
    """Names and values beyond ASCII are what they are, with and without such a row, byte order mark or not."""
    schema = pa.schema([("é", pa.string()), ("b", pa.binary())])
    clean = "é,b\nü,ö\n".encode()
    for start in (b"", b"\xef\xbb\xbf"):
        rows, bad = rows_of(start + clean, schema)
        assert (rows, bad) == ([{"é": "ü", "b": "ö".encode()}], [])
        rows, bad = rows_of(start + clean + b"\xff,\xfe\na,\xfd\n", schema)
        assert rows == [{"é": "ü", "b": "ö".encode()}, {"é": "a", "b": b"\xfd"}]
        assert [(row.line, row.reason, row.raw) for row in bad] == [(2, "invalid UTF-8", b"\xff,\xfe")]
        assert sampled(start + clean + b"\xff,\xfe\n").names == ["é", "b"]


def test_a_header_that_is_not_utf8_is_corrupt_input() -> None:
    with pytest.raises(CorruptInput, match=r"a\.csv: the header is not UTF-8"):
        sampled(b"a\xff,b\n1,2\n")


@pytest.mark.parametrize("data", [b"", b"\n"])
def test_an_empty_file_has_no_rows_and_no_schema(data: bytes) -> None:
    assert rows_of(data) == ([], [])
    assert sampled(data) == pa.schema([])


@pytest.mark.parametrize("data", [b",text", b",text\n", b"\xef\xbb\xbf,text\r\n"])
def test_a_file_of_a_header_has_no_rows_and_its_columns(data: bytes) -> None:
    """Their types are not known; who samples looks into another file."""
    assert rows_of(data) == ([], [])
    found = sampled(data)
    assert found == pa.schema([("", pa.null()), ("text", pa.null())])
    assert is_of_no_rows(found)
    assert sampled(data, {"text": pa.string()}) == pa.schema([("text", pa.string())])


def test_a_row_longer_than_a_block_is_read_in_larger_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that were handed out before are not handed out, nor reported, again."""
    monkeypatch.setattr(csv, "BLOCK_BYTES", 64)
    lines = [b"%d,abc" % number if number % 7 else b"x,y,z" for number in range(100)]
    lines[60] = b"60," + b"y" * 5000
    rows, bad = rows_of(b",text\n" + b"\n".join(lines) + b"\n")
    assert [row[""] for row in rows] == [number for number in range(100) if number % 7]
    assert len(rows[51]["text"]) == 5000
    assert [row.line for row in bad] == [number + 1 for number in range(100) if not number % 7]


def test_a_quote_that_is_never_closed_is_corrupt_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv, "BLOCK_BYTES", 64)
    monkeypatch.setattr(csv, "_LARGEST_ROW_BYTES", 4096)
    with pytest.raises(CorruptInput, match=r"a\.csv: a row of more than .*; is a quote not closed\?"):
        rows_of(b',text\n1,a\n2,"b\n' + b"3,c\n" * 5000)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_within_quotes_stay_wherever_a_block_ends(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a CR that is the last byte of a block and a line feed that is the first one of the next."""
    texts = ["a\r\nb", "\r\n\r\n", "\r", "\n\r\r\n", "\r\n"]
    stream = io.StringIO()
    writer = stdlib_csv.writer(stream, quoting=stdlib_csv.QUOTE_ALL, lineterminator=end)
    writer.writerows([["", "text"], *enumerate(texts)])
    data = stream.getvalue().encode()
    for block in range(1, len(data) + 1):
        monkeypatch.setattr(csv, "BLOCK_BYTES", block)
        rows, bad = rows_of(data)
        assert ([row["text"] for row in rows], bad) == (texts, []), block


def test_a_row_of_several_blocks_is_read_whatever_arrow_says_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In larger blocks: one with a NUL, too, of which it says that its parser is out of sync."""
    data = ',text\n\0,",\0\u2028,\n"\n2,b\n'.encode()
    schema = pa.schema([("", pa.string()), ("text", pa.string())])
    for block in range(1, len(data) + 1):
        monkeypatch.setattr(csv, "BLOCK_BYTES", block)
        rows, bad = rows_of(data, schema)
        assert ([tuple(row.values()) for row in rows], bad) == ([("\0", ",\0\u2028,\n"), ("2", "b")], []), block


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_files_with_quotes_are_read_in_many_threads_at_once() -> None:
    """None of Arrow's own threads, of which there are few, waits for another one of them."""
    data = b",text\n" + b'1,"x"\n' * 30
    with ThreadPoolExecutor(32) as threads:
        assert set(threads.map(lambda _: len(rows_of(data)[0]), range(900))) == {30}


def test_a_missing_column_is_told_with_the_ones_there_are() -> None:
    with pytest.raises(SchemaMismatch, match=r"a\.csv: no column 'text'; did you mean 'txt'\?; it has '', 'txt'"):
        rows_of(b",txt\n1,a\n")
    with pytest.raises(ConfigError, match=r"no column 'tex' in a\.csv; did you mean 'text'\?; it has '', 'text'"):
        sampled(b",text\n1,a\n", {"tex": None})


def test_a_name_that_is_there_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"column 'a' is in the header of a\.csv 2 times; give each a name"):
        sampled(b"a,a\n1,2\n")


@pytest.mark.parametrize("value", ["007", "+01", "-00.5", "0x1F", "-0XA"])
def test_numbers_that_are_names_stay_text(value: str) -> None:
    """An id such as 007 comes out as it went in, also if every other value of its column is a number."""
    assert sampled(f"id,zero\n1,0\n{value},0.5\n".encode()) == pa.schema([("id", pa.string()), ("zero", pa.float64())])


@given(st.lists(st.integers(-(2**70), 2**70) | st.integers(2**63 - 2, 2**64 + 2), min_size=1, max_size=5))
def test_whole_numbers_come_out_as_they_went_in(numbers: list[int]) -> None:
    """However many digits they have: those of an id are not rounded."""
    data = ("id,\n" + "".join(f"{one},\n" for one in numbers)).encode()
    schema = told_as_text(sampled(data))
    rows, bad = rows_of(data, schema)
    assert ([int(row["id"]) for row in rows], bad) == (numbers, [])
    assert schema.field("id").type in (pa.int64(), pa.uint64(), pa.string())


@pytest.mark.parametrize(
    ("type", "largest", "larger"),
    [(pa.float16(), "65504", "65520"), (pa.float32(), "-3.4e38", "-3.5e38"), (pa.float64(), "1.7e308", "1e400")],
)
def test_a_number_that_a_column_cannot_hold_is_a_bad_row(type: pa.DataType, largest: str, larger: str) -> None:
    """And not infinite, which is a number of its own; a column that has one from the beginning is text."""
    schema = pa.schema([("", type)])
    rows, bad = rows_of(f",x\n{largest},1\n{larger},2\n-inf,3\nInfinity,4\n,5\n".encode(), schema)
    assert [row[""] for row in rows][1:] == [float("-inf"), float("inf"), None]
    assert abs(rows[0][""]) < float("inf")
    assert [(row.line, row.reason) for row in bad] == [(2, f"column '' is not {type}")]
    assert sampled(b"a,b\n1e400,inf\n1.5,2\n") == pa.schema([("a", pa.string()), ("b", pa.float64())])


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("quote", [b"", b'"'])
def test_the_last_row_says_its_types_too(quote: bytes, end: bytes) -> None:
    """With quotes in the file, which has a row put behind it, and without a line end, after which that begins."""
    data = b"%bn%b\n%b1%b\n%b2.5%b" % ((quote,) * 6) + end
    schema = sampled(data)
    assert schema == pa.schema([("n", pa.float64())])
    rows, bad = rows_of(data, schema)
    assert (rows, bad) == ([{"n": 1.0}, {"n": 2.5}], [])


def test_types_are_inferred_and_dates_stay_text() -> None:
    data = b"i,f,b,t,d,e\n1,1,true,x,2020-01-01,\n,2.5,false,1,2020-01-02,NA\n"
    assert sampled(data) == pa.schema(
        [
            ("i", pa.int64()),
            ("f", pa.float64()),
            ("b", pa.bool_()),
            ("t", pa.string()),
            ("d", pa.string()),
            ("e", pa.null()),
        ]
    )
    wanted = {"d": pa.date32(), "i": None}
    assert sampled(data, wanted) == pa.schema([("d", pa.date32()), ("i", pa.int64())])


def test_a_truncated_gzip_is_corrupt_input() -> None:
    with pytest.raises(CorruptInput, match=r"a\.csv\.gz: not a whole gzip stream"):
        rows_of(gzip.compress(b",text\n" + b"1,a\n" * 1000)[:-4], name="a.csv.gz")


@pytest.mark.parametrize(
    ("type", "value", "reason"),
    [
        (pa.int64(), "007", "column '' is not int64: a leading 0 or 0x would be lost"),
        (pa.uint64(), "0x1F", "column '' is not uint64: a leading 0 or 0x would be lost"),
        (pa.float64(), "-00.5", "column '' is not double: a leading 0 or 0x would be lost"),
        (pa.float64(), "9007199254740993", "column '' is not double: digits would be lost"),
        (pa.bool_(), "1", "column '' is not bool"),
    ],
)
def test_a_value_that_would_have_told_another_type_is_a_bad_row_behind_those_that_told_it(
    type: pa.DataType, value: str, reason: str
) -> None:
    """It came out as 7, 31 or true; of a column whose type is declared it is that number."""
    schema, good = pa.schema([("", type)]), "true" if pa.types.is_boolean(type) else "1"
    data = f",x\n{good},a\n{value},b\n0.0,c\n,d\n".replace("0.0", "false" if good == "true" else "0").encode()
    rows, bad = rows_of(data, schema)
    assert [row[""] for row in rows] == [1, 0, None]
    assert [(row.line, row.reason) for row in bad] == [(2, reason)]
    store = FakeStore()
    object = store.put("a.csv", data)
    for how in (replace(detect("a.csv"), typed=frozenset([""])), detect("a.csv", ReadAs(Format.CSV, schema=schema))):
        tables = list(read(FileSlice(store, object, how), schema, 9, pytest.fail))
        assert tables[0].num_rows == 4
