"""What a text file has is read, or set aside with a reason, or refused: never passed over without a word."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import curate
from curate.errors import ConfigError, CorruptInput, CurateError, SchemaMismatch
from curate.formats.encoding import Format, ReadAs, detect
from curate.formats.file_slice import FileSlice
from curate.formats.read import json_array
from curate.formats.rows import read, sample_schema
from curate.ledger.summary import RunState
from curate.objects import stream
from curate.objects.bad_line import NO_COLUMNS, RejectedRow
from curate.sources.files import files
from tests.support.fake_store import FakeStore
from tests.support.writes import failed_write

MIB = 1 << 20
PACKS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
}
LINES = [b"{'a': 1%s}", b"5%s x", b'{"b": "%s', b'"\xff%s', b"[1%s", b"null%s,"]
ROWS = [b"1%s", b"1,2,3%s", b'"1",2,"%s"']


def taken(name: str, data: bytes) -> tuple[list[dict[str, Any]], list[RejectedRow]]:
    """Returns the rows of a file, and the bad ones, by the schema that it has itself."""
    store = FakeStore()
    object = store.put(name, data)
    encoding = detect(name)
    schema = sample_schema(FileSlice(store, object, encoding))
    bad: list[RejectedRow] = []
    tables = list(read(FileSlice(store, object, encoding), schema, 1000, bad.append))
    return [row for table in tables for row in table.to_pylist()], bad


def padded(line: bytes, place: str) -> list[bytes]:
    """Returns bad lines: a few, or more than a block of them, where good rows are behind that."""
    return [line % b""] * 5 if place != "behind" else [line % (b" " * (1 << 17))] * 9


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("place", ["first", "behind", "none"])
@pytest.mark.parametrize(
    ("name", "head", "line", "good"),
    [
        *[("a.jsonl", b"", line, b'{"a": 7}') for line in LINES],
        *[("a.csv", b"a,b\n", line, b"7,8") for line in ROWS],
    ],
)
def test_each_line_is_a_row_or_a_bad_row(
    pack: str, place: str, name: str, head: bytes, line: bytes, good: bytes
) -> None:
    """Whatever is wrong with a line, and however many such lines there are before the first good one, or if there is
    none at all."""
    bad = padded(line, place)
    lines = {"first": [good, *bad, good], "behind": [*bad, good, good], "none": [*bad]}[place]
    if line.startswith(b"["):
        lines.insert(0, b"{}")  # or it would be an array
        bad = [*bad, b"{}"] if place == "none" else bad
    rows, found = taken(name + pack, PACKS[pack](head + b"\n".join(lines) + b"\n"))
    assert len([row for row in rows if row["a"] == 7]) == lines.count(good)
    assert len(rows) + len(found) == len(lines)
    assert len(found) == len(bad)


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("place", ["first", "behind", "none"])
@pytest.mark.parametrize("indent", [None, 1])
def test_each_element_of_an_array_is_a_row_or_a_bad_row(pack: str, place: str, indent: int | None) -> None:
    bad: list[Any] = [5, None, 'x]}\\"', [1], [{"a": [1]}]]
    if place == "behind":
        bad = [*bad, "x" * (MIB + 5)]
    good = [{"a": number, "b": {"c": ["]", '"', "\\"]}} for number in range(3)]
    elements = {"first": [*good, *bad], "behind": [*bad, *good], "none": bad}[place]
    rows, found = taken("a.json" + pack, PACKS[pack](json.dumps(elements, indent=indent).encode()))
    assert [row["a"] for row in rows] == ([] if place == "none" else [0, 1, 2])
    assert {row.reason for row in found} == {"not an object"}
    first = 4 if place == "first" else 1
    assert [row.line for row in found] == list(range(first, first + len(bad)))
    assert [json.loads(row.raw) for row in found] == bad


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.sampled_from('a[]{},:"\\ \né'), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "]", '"']), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(VALUES, max_size=8), st.sampled_from([None, 0, 2]), st.integers(3, 60), st.sampled_from(["", " \n"]))
def test_elements_are_those_that_json_reads(values: list[Any], indent: int | None, block: int, end: str) -> None:
    """Wherever blocks are cut, within strings, escapes and brackets."""
    store = FakeStore()
    object = store.put("a.json", (end + json.dumps(values, indent=indent) + end).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_array, "BLOCK_BYTES", block)
        with stream.DecompressedStream(store, object, None) as opened:  # type: ignore[arg-type]
            found = [one for block_ in json_array.element_blocks(opened, "a.json") for one in block_ if one]
            assert not opened.read(10).strip()
    assert [json.loads(one) for one in found] == values


@pytest.mark.parametrize("data", [b'[{"a":1},{"a":2}', b'[{"a":1},{"a":"2]', b"[", b'[{"a":[1},{"a":2}]'])
def test_an_array_that_does_not_end_is_corrupt_input(data: bytes) -> None:
    """As a gzip is that was cut off: what is missing cannot be told."""
    with pytest.raises(CorruptInput, match=r"a\.json: ends within element \d of a JSON array, .*truncated"):
        taken("a.json", data)


def test_an_element_is_bounded_as_a_line_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_array, "_LARGEST_ELEMENT_BYTES", MIB)
    with pytest.raises(CorruptInput, match=r"element 2 of the JSON array is larger than 1 MiB; is a quote"):
        taken("a.json", b'[{"a":1},{"a":"' + b"x" * 3 * MIB + b'"}]')


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (b"[]", 0),
        (b" [ ]\n", 0),
        (b'[{"a":1}]\n', 1),
        (b'[1]\n[2]\n{"a":1}\n', 3),  # lines
        (b'[{"a":1},\n{"a":2}]\n[{"a":3}\n]\n{"a":4}\nx\n', 5),  # arrays, and lines
        (b'\xef\xbb\xbf[{"a":1},{"a":2}]', 2),
    ],
)
def test_what_is_an_array_and_what_are_lines(data: bytes, rows: int) -> None:
    """A first line that is a whole array, with more behind it, is a line."""
    good, bad = taken("a.json", data)
    assert len(good) + len(bad) == rows


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("mark", [True, False])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", '{"a": 1}\n'),
        ("a.jsonl", '{"имя": "Иван Петрович"}\n{"имя": "Анна"}\n'),
        ("a.csv", "a,b\n1,2\n"),
        ("a.txt", "one\ntwo\n"),
        ("a.json", '[{"a": 1}]'),
    ],
)
def test_wide_text_is_refused_by_its_name(pack: str, mark: bool, encoding: str, name: str, text: str) -> None:
    data = (("\ufeff" if mark else "") + text).encode(encoding)
    with pytest.raises(CorruptInput, match=f"is text in {encoding[:6].upper()}.E, expected UTF-8; convert it: iconv"):
        taken(name + pack, PACKS[pack](data))


def test_an_object_over_several_lines_is_told_as_such() -> None:
    _, bad = taken("a.json", json.dumps({"a": 1, "b": [2]}, indent=1).encode())
    assert bad[0].reason.startswith("malformed JSON: an object without its end: the line was cut off, or")
    assert len(bad) == 6


@pytest.mark.ci(18)
@pytest.mark.quick(10)
@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("names", ["a", "a,b", "a,b,c,d,e"])
@pytest.mark.parametrize("good", [0, 1, 200_000])
@pytest.mark.parametrize("tail", [b"", b"\n"])
@pytest.mark.parametrize("other", [b"", b"\xff"])
def test_each_line_behind_a_quote_that_is_not_closed_is_a_bad_row(
    pack: str, names: str, good: int, tail: bytes, other: bytes
) -> None:
    """So that they count, and the budget for bad rows holds."""
    row = b",".join([b"7"] * (names.count(",") + 1))
    lines = [row] * good + [b'"x,1' + other, b"2,3", b"4,5"]
    rows, bad = taken("a.csv" + pack, PACKS[pack](names.encode() + b"\n" + b"\n".join(lines) + tail))
    assert len(rows) == good
    assert [(row.line, row.reason) for row in bad] == [
        (good + number, "inside a quote that is not closed") for number in (1, 2, 3)
    ]
    assert [row.raw for row in bad] == lines[-3:]


def test_a_quote_in_the_header_that_is_not_closed_is_corrupt_input() -> None:
    with pytest.raises(CorruptInput, match=r"a\.csv: a quote in the header is not closed"):
        taken("a.csv", b'a,"b\n1,2\n')


def test_quotes_that_are_closed_change_nothing() -> None:
    """At the end of a file, too, with and without a line end."""
    for end in (b'"x""y"', b'"x""y"\n', b'x"y', b'""', b'"a\nb"\r\n'):
        rows, bad = taken("a.csv", b"a,b\n1," + end)
        assert (len(rows), bad) == (1, [])


def test_a_first_row_of_many_blocks_is_read() -> None:
    """A header, too: blocks grow until they fit."""
    rows, bad = taken("a.csv", b'a,b\n"' + b"x" * 3 * MIB + b'",1\ny,2\n')
    assert [len(row["a"]) for row in rows] == [3 * MIB, 1]
    rows, _ = taken("a.csv", b"a," + b"b" * 3 * MIB + b"\n1,2\n")
    assert len(list(rows[0])[1]) == 3 * MIB
    assert bad == []


def test_rows_of_which_no_column_is_known_are_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind more bad lines than are looked through for a schema."""
    monkeypatch.setattr("curate.formats.read.jsonl.SAMPLED_LINES", 3)
    monkeypatch.setattr("curate.formats.read.csv.SAMPLED_ROWS", 3)
    monkeypatch.setattr("curate.formats.read.csv.BLOCK_BYTES", 2000)
    _, bad = taken("a.jsonl", (b"x" * 1000 + b"\n") * 2000 + b'{"a":1}\n')
    assert (len(bad), bad[-1].reason) == (2001, NO_COLUMNS)
    _, bad = taken("a.csv", b"a,b\n" + (b"x" * 1000 + b"\n") * 400 + b"1,2\n")
    assert (len(bad), bad[-1].reason, bad[-1].raw) == (401, NO_COLUMNS, b"1,2")
    _, bad = taken("a.jsonl", b"{}\n{}\n")
    assert [row.reason for row in bad] == [NO_COLUMNS] * 2


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
@pytest.mark.parametrize("ahead", [0, 1, 20])
def test_the_schema_is_that_of_the_first_file_with_rows(tmp_path: Path, suffix: str, ahead: int) -> None:
    """However many have none, be it that they are empty."""
    (tmp_path / "in").mkdir()
    head = "" if suffix == "jsonl" else "a\n"
    for number in range(ahead):
        (tmp_path / "in" / f"{number:03}.{suffix}").write_text(head if number % 2 else "")
    (tmp_path / "in" / f"z.{suffix}").write_text('{"a": 7}\n' if suffix == "jsonl" else "a\n7\n")
    rows = (curate.read_json if suffix == "jsonl" else curate.read_csv)(tmp_path / "in")
    assert rows.take_all() == [{"a": 7}]
    assert rows.write_parquet(tmp_path / "out", backend="inline").books.rows_out == 1


@pytest.mark.parametrize(
    ("name", "data", "good", "bad"),
    [
        ("a.json", b'[{"a":1},{"a":2}]', 2, 0),
        ("a.json", b'[{"a":1},3]', 1, 1),
        ("a.json", b'{\n "a": 1\n}\n', 0, 3),
        ("a.json", b"{}\n", 0, 1),
        ("a.json", b"x\n" * 50, 0, 50),
        ("a.json", b"\xff\xfe[\x00]\x00", 0, None),
        ("a.csv", b'a,b\n"x,1\n2,3\n4,5\n', 0, 3),
        ("a.csv", b"a,b\n" + b"1\n" * 50, 0, 50),
    ],
)
def test_consumed_and_written_agree(
    tmp_path: Path, name: str, data: bytes, good: int, bad: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is bad is told in both, and over the budget both fail."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(data)
    reader = curate.read_csv if name.endswith("csv") else curate.read_json
    if bad is None or bad > 10:
        with pytest.raises(CurateError, match=r"bad rows of|expected UTF-8"):
            reader(tmp_path / "in").take_all()
        if bad is None:
            return
        written = failed_write(reader(tmp_path / "in").write_parquet, tmp_path / "out", backend="inline")
        assert written.state is RunState.FAILED
        assert "bad rows of" in written.failures[0].error
        return
    capsys.readouterr()
    assert len(reader(tmp_path / "in").take_all()) == good
    assert ("bad rows are left out" in "".join(capsys.readouterr())) is bool(bad)
    written = reader(tmp_path / "in").write_parquet(tmp_path / "out", backend="inline")
    assert (written.books.rows_out, written.books.quarantined) == (good, bad)


def test_a_large_array_is_one_shard(tmp_path: Path) -> None:
    """It has no lines to be split at."""
    rows = [{"a": number, "text": "x" * 90} for number in range(1000)]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "b.json").write_text("\n".join(map(json.dumps, rows)))
    found = files("read_json", Format.JSONL, [str(tmp_path)]).in_pieces(50_000)
    assert [shard.id.partition(".")[0] for shard in found.pieces()] == ["a", "b", "b", "b"]


def test_a_first_file_that_has_a_column_twice_is_refused_with_what_to_do() -> None:
    stream = io.BytesIO()
    pq.write_table(pa.table([pa.array([value]) for value in (1, 2, 3)], names=["a", "a", "b"]), stream)
    store = FakeStore()
    object = store.put("1.parquet", stream.getvalue())
    with pytest.raises(ConfigError, match=r"column 'a' is in 1\.parquet 2 times; write it again, each with a name"):
        sample_schema(FileSlice(store, object, detect(object.uri)))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("how", ["job", "dataset", "declared"])
def test_a_later_file_that_has_a_column_twice_is_refused(suffix: str, how: str) -> None:
    """With its name: nobody knows which of the two is meant. Of a column that is not read it does not matter."""
    stream = io.BytesIO()
    twice = pa.table([pa.array([value]) for value in (1, 2, 3)], names=["a", "a", "b"])
    if suffix == "csv":
        stream.write(b"a,a,b\n1,2,3\n")
    else:
        pq.write_table(twice, stream)
    store = FakeStore()
    object = store.put(f"2.{suffix}", stream.getvalue())
    held = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    given = {"job": None, "dataset": ReadAs(Format(suffix), first="1"), "declared": ReadAs(Format(suffix), held)}[how]
    encoding = detect(object.uri, given)
    with pytest.raises(SchemaMismatch, match=rf"^2\.{suffix}: column 'a' occurs 2 times"):
        list(read(FileSlice(store, object, encoding), held, 9, [].append))
    if given is None or given.schema is None:
        part = detect(object.uri, None if given is None else replace(given, whole=False))
        [table] = read(FileSlice(store, object, part), held.remove(0), 9, [].append)
        assert table.to_pylist() == [{"b": 3}]


@pytest.mark.parametrize("rest", [b"", b"\n", b"\r\n\r\n"])
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.txt"])
def test_a_byte_order_mark_alone_is_no_row(name: str, rest: bytes, tmp_path: Path) -> None:
    """As a file of nothing is none, alone and beside others; a header that nobody had closed was looked for."""
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + rest)
    read_any = {"csv": curate.read_csv, "jsonl": curate.read_json, "txt": curate.read_text}[name.rpartition(".")[2]]
    assert read_any(tmp_path / name).take_all() == []
    (tmp_path / f"b.{name[2:]}").write_bytes({"a.csv": b"n\n1\n", "a.jsonl": b'{"n": 1}\n', "a.txt": b"1\n"}[name])
    assert read_any(tmp_path).count() == 1
    if name == "a.csv":
        assert curate.read_csv(tmp_path, column_names=["n"]).take_all() == [{"n": "n"}, {"n": "1"}]
