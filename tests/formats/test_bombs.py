"""Files that unpack to far more than they are: what is held of one is bounded, or it is refused with the arithmetic."""

from __future__ import annotations

import gzip
import io
import itertools
import random
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.arrow.batches import rechunk
from curate.errors import CorruptInput
from curate.formats.encoding import Format, ReadAs, detect
from curate.formats.file_slice import FileSlice
from curate.formats.read import csv, parquet
from curate.formats.rows import read, sample_schema
from tests.support.fake_store import FakeStore

RECHUNK = sys.modules["curate.arrow.batches"]  # in the package its function has that name
KIB, MIB = 1 << 10, 1 << 20
RANDOM = random.Random(0)
TEXT = "".join(map(str, range(20_000)))[: 64 * KIB]


def tables(name: str, data: bytes, batch_rows: int = 16_384) -> Any:
    store = FakeStore()
    file = FileSlice(store, store.put(name, data), detect(name))  # type: ignore[arg-type]
    return read(file, sample_schema(file), batch_rows, lambda row: None)  # noqa: ARG005


def stored(table: pa.Table, **how: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, store_schema=False, **how)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("texts", "dictionary"),
    [
        ([TEXT[:1000], "x"] * 8000, True),
        ([f"{number:06}" for number in range(16_000)], True),
        ([RANDOM.randbytes(80).hex() for _ in range(16_000)], False),
        ([RANDOM.randbytes(200).hex() for _ in range(16_000)], False),
        ([f"{number % 9000:06}{TEXT[:294]}" for number in range(16_000)], True),
    ],
    ids=["two texts", "short ones", "many behind it", "most behind it", "one of 2.7 MiB"],
)
def test_texts_behind_a_dictionary_are_not_made_to_one(texts: list[str], dictionary: bool) -> None:
    """They take half as long again to decode, and what they take is known from what is stored."""
    sink = pa.BufferOutputStream()
    most = 4 * MIB if len(set(texts)) == 9000 else MIB
    pq.write_table(pa.table({"v": texts}), sink, compression="zstd", dictionary_pagesize_limit=most)
    metadata = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    assert parquet._repeated(metadata, pa.schema([("v", pa.string())])) == ["v"] * dictionary


@pytest.mark.parametrize("nested", ["no", "list", "struct"])
def test_texts_that_repeat_themselves_are_decoded_a_few_at_a_time(nested: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held follows from what they take decoded, and not from what is stored of them."""
    monkeypatch.setattr(RECHUNK, "MOST_BYTES", 4 * MIB)
    monkeypatch.setattr(parquet, "_DECODE_BYTES", MIB)
    texts = pa.array([TEXT, None, "x"]).dictionary_encode().take(pa.array([0, 0, 1, 0, 2] * 400))
    column = {
        "no": texts,
        "list": pa.ListArray.from_arrays(range(0, 2001, 2), texts),
        "struct": pa.StructArray.from_arrays([texts], ["a"]),
    }[nested]
    data = stored(pa.table({"v": column, "n": range(len(column))}))
    assert len(data) < 256 * KIB
    before = pa.total_allocated_bytes()
    held, rows, values = 0, 0, 0
    for table in tables("a.parquet", data):
        held = max(held, pa.total_allocated_bytes() - before)
        assert table["n"].to_pylist() == list(range(rows, rows + len(table)))
        values += sum(str(value).count(TEXT) for value in table["v"].to_pylist())
        rows += len(table)
    assert (rows, values) == (len(column), 1200)
    assert held < 16 * MIB, "of 75 MiB"


@pytest.mark.parametrize("group_rows", [1, 7, 1000])
@pytest.mark.parametrize("dictionary_bytes", [1, 200, 1 << 20])
def test_texts_at_any_depth_are_read_from_many_row_groups(group_rows: int, dictionary_bytes: int) -> None:
    """Texts that are read as dictionaries for their size, or in part, come back as they were written: below lists and
    structs too, of which Arrow does not put several dictionaries together."""
    texts = pa.array([None if k % 5 == 0 else f"text {k % 9}" for k in range(120)])
    lists = pa.ListArray.from_arrays(list(range(0, 121, 2)), texts)
    structs = pa.StructArray.from_arrays([texts.slice(0, 60), lists], ["text", "texts"])
    whole = pa.table({"flat": texts.slice(0, 60), "list": lists, "struct": structs, "n": range(60)})
    data = stored(whole, row_group_size=group_rows, dictionary_pagesize_limit=dictionary_bytes)
    assert [row for table in tables("a.parquet", data) for row in table.to_pylist()] == whole.to_pylist()


@pytest.mark.ci(1)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["v", "v.w"])
def test_a_row_that_no_one_wrote_is_refused_before_it_is_decoded(name: str) -> None:
    """A footer counts the values of a column, whatever it is called."""
    data = stored(pa.table({name: pa.array([[0] * 40_000_000], pa.list_(pa.int64())), "n": [1]}))
    assert len(data) < 4 * KIB
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(
        CorruptInput,
        match=rf"column '{name}\.list\.element' of row group 0 has 40,000,000 values in 1 rows, 320,000,000 bytes "
        r"decoded from \d+; a row may take up to 256 MiB: leave that column out with columns=",
    ):
        list(tables("a.parquet", data))
    assert pa.default_memory_pool().max_memory() == before
    store = FakeStore()
    how = ReadAs(Format.PARQUET, whole=False)
    file = FileSlice(store, store.put("a.parquet", data), detect("a.parquet", how))  # type: ignore[arg-type]
    assert [len(one) for one in read(file, pa.schema([("n", pa.int64())]), 9, print)] == [1]


def test_a_row_of_one_text_many_times_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_ROW_BYTES", MIB)
    texts = pa.array([TEXT]).dictionary_encode().take(pa.array([0] * 2000))
    data = stored(pa.table({"v": pa.ListArray.from_arrays([0, 1, 2000], texts)}))
    with pytest.raises(CorruptInput, match=r"a row takes 131,\d+,\d+ bytes, decoded from \d+,\d+; a row may take"):
        list(tables("a.parquet", data))


def test_large_rows_that_somebody_wrote_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of many MiB may be a row."""
    monkeypatch.setattr(parquet, "_ROW_BYTES", MIB)
    data = stored(pa.table({"v": [np.random.default_rng(0).bytes(3 * MIB)] * 3, "e": [list(range(200_000))] * 3}))
    assert sum(len(one) for one in tables("a.parquet", data)) == 3


@pytest.mark.slow
def test_texts_that_share_their_beginnings_are_decoded_a_few_at_a_time() -> None:
    table = pa.table({"v": [TEXT + str(number) for number in range(5000)]})
    data = stored(table, use_dictionary=False, column_encoding={"v": "DELTA_BYTE_ARRAY"})
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    assert parquet.decode_rows(metadata, range(1)) * len(TEXT) <= 256 * MIB


ROWS = st.lists(st.integers(0, 30), max_size=60)


@given(ROWS, st.lists(st.integers(0, 60), max_size=5), st.integers(1, 20), st.integers(1, 60))
def test_batches_are_cut_by_their_rows_alone(sizes: list[int], cuts: list[int], rows: int, most: int) -> None:
    """Each has as many rows as asked for, or as many as fit, wherever the tables were cut that they came in."""
    whole = pa.table({"v": pa.array(["x" * size for size in sizes], pa.string()), "n": range(len(sizes))})
    edges = [0, *sorted(min(cut, len(sizes)) for cut in cuts), len(sizes)]
    parts = [whole.slice(a, b - a) for a, b in itertools.pairwise(edges)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RECHUNK, "MOST_BYTES", most)
        found = [one["n"].to_pylist() for one in rechunk(iter(parts), rows)]
    expected: list[list[int]] = []
    for start in range(0, len(sizes), rows):
        batch: list[int] = []
        for number in range(start, min(start + rows, len(sizes))):
            if batch and sum(sizes[one] + 12 for one in [*batch, number]) > most:
                expected.append(batch)
                batch = []
            batch.append(number)
        expected.append(batch)
    assert found == expected


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.json.gz", "a.csv.gz", "a.txt.gz", "utf-16.txt.gz"])
def test_a_line_that_never_ends_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of gigabytes that a few KiB unpack to, no more than a line may have is held."""
    monkeypatch.setattr("curate.objects.lines.LARGEST_LINE_BYTES", 4 * MIB)
    monkeypatch.setattr("curate.formats.read.text.LARGEST_LINE_BYTES", 4 * MIB)
    monkeypatch.setattr("curate.formats.read.json_array._LARGEST_ELEMENT_BYTES", 4 * MIB)
    monkeypatch.setattr(csv, "_LARGEST_ROW_BYTES", 16 * MIB)
    head = {"a.json.gz": b'[{"a":"', "a.csv.gz": b'a\n"'}.get(name, b'{"a":"')
    data = gzip.compress(head + b"x" * (40 * MIB), 1)
    store = FakeStore()
    object = store.put(name, data)
    how = ReadAs(Format.TEXT, text_encoding="utf-16-le") if name.startswith("utf") else None
    schema = pa.schema([("text", pa.string())]) if "txt" in name else pa.schema([("a", pa.string())])
    reading = read(FileSlice(store, object, detect(name, how)), schema, 9, print)  # type: ignore[arg-type]
    with pytest.raises(CorruptInput, match=r"(larger than|of more than) .*(split it|JSON lines|not closed\?)"):
        list(reading)
