"""A Parquet file with any bit flipped: its rows, or an error that names it; never other rows, and never the end of the
process. Arrow ends it for some footers, so the files are read in one of their own."""

from __future__ import annotations

import io
import subprocess
import sys
import textwrap

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.errors import CorruptInput, CurateError
from curate.formats.encoding import detect
from curate.formats.file_slice import FileSlice
from curate.formats.read.parquet import _refuse_numbers, row_groups
from curate.formats.rows import sample_schema
from tests.support.fake_store import FakeStore
from tests.support.reading import read_all

TABLE = pa.table(
    {
        "id": [1, 2, None, 4],
        "text": ["a", "é" * 5, None, "a"],
        "tags": [["x"], [], None, ["y"]],
        "score": [{"of": 1.5}, {"of": None}, None, {"of": 2.5}],
    }
)


def stored() -> bytes:
    stream = io.BytesIO()
    pq.write_table(TABLE, stream, row_group_size=2, write_page_checksum=True, compression="zstd")
    return stream.getvalue()


def read_flipped(bits: range) -> str:
    """Returns what went otherwise than it should, of a file with one of these bits flipped after the other."""
    sound = stored()
    said = []
    for bit in bits:
        spoiled = bytearray(sound)
        spoiled[bit // 8] ^= 1 << bit % 8
        store = FakeStore()
        object = store.put("a.parquet", bytes(spoiled))
        try:
            row_groups(store, object)
            sample_schema(FileSlice(store, object, detect(object.uri)))
            rows, bad = read_all(store, object, TABLE.schema)
        except CurateError as error:
            if "a.parquet" not in str(error):
                said.append(f"{bit}: {error} names no file")
            continue
        if bad or rows != TABLE.to_pylist():
            said.append(f"{bit}: {rows}")
    return "\n".join(said)


@pytest.mark.ci(1)
@pytest.mark.slow
@pytest.mark.parametrize("first", range(4))
def test_with_any_bit_flipped_it_is_its_rows_or_an_error(first: int) -> None:
    """Every 29th bit; in all, that is each byte of the footer in one of its bits at least."""
    program = f"""
        from tests.formats import test_damaged_parquet as tested
        print(tested.read_flipped(range({first}, 8 * len(tested.stored()), 29)))
        print("all read")
    """
    run = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(program)], text=True, capture_output=True
    )
    assert (run.returncode, run.stdout.strip()) == (0, "all read"), run.stderr


def flipped(data: bytes, what: bytes, to: bytes) -> bytes:
    assert data.count(what) >= 1
    return data.replace(what, to)


def test_a_page_that_is_not_as_it_was_written_is_told_by_its_checksum(store: FakeStore) -> None:
    """Uncompressed, nothing else would tell."""
    stream = io.BytesIO()
    pq.write_table(
        pa.table({"text": ["of its own", "and another"]}),
        stream,
        write_page_checksum=True,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
    )
    spoiled = store.put("a.parquet", flipped(stream.getvalue(), b"another", b"anothes"))
    with pytest.raises(CorruptInput, match=r"a\.parquet: not a whole Parquet file: .*could not verify page integrity"):
        read_all(store, spoiled, pa.schema([("text", pa.string())]))


@pytest.mark.parametrize(
    "type",
    [
        pa.list_(pa.string()),
        pa.large_list(pa.string()),
        pa.list_(pa.string(), 2),
        pa.map_(pa.string(), pa.string()),
        pa.struct([("of", pa.list_(pa.string()))]),
        pa.string(),
    ],
    ids=str,
)
def test_a_text_that_its_dictionary_does_not_have_is_refused(type: pa.DataType) -> None:
    """At any depth; in files without checksums nothing else tells."""
    value = {"of": ["a"]} if pa.types.is_struct(type) else [("a", "b")] if pa.types.is_map(type) else ["a", "b"]
    stream = io.BytesIO()
    pq.write_table(pa.table({"x": pa.array(["a", None] if type == pa.string() else [value, None], type)}), stream)
    metadata = pq.ParquetFile(stream).metadata
    paths = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
    (batch,) = pq.ParquetFile(stream, read_dictionary=paths).iter_batches()
    _refuse_numbers(batch.columns)
    (column,) = batch.columns
    with pytest.raises(LookupError, match="text 7 of a dictionary of"):
        _refuse_numbers([renumbered(column)])


def renumbered(column: pa.Array) -> pa.Array:
    """Returns the column with the number 7 at the first place of each of its dictionaries."""
    type = column.type
    if pa.types.is_dictionary(type):
        numbers = pa.array([7, *column.indices.to_pylist()[1:]], type.index_type)
        buffers = numbers.buffers()
        return pa.DictionaryArray.from_arrays(
            pa.Array.from_buffers(type.index_type, len(numbers), buffers), column.dictionary, safe=False
        )
    if pa.types.is_struct(type):
        return pa.StructArray.from_arrays([renumbered(one) for one in column.flatten()], fields=list(type))
    if pa.types.is_map(type):
        return pa.MapArray.from_arrays(column.offsets, renumbered(column.keys), column.items)
    if pa.types.is_fixed_size_list(type):
        return pa.FixedSizeListArray.from_arrays(renumbered(column.values), type.list_size)
    return column.__class__.from_arrays(column.offsets, renumbered(column.values))


def test_rows_that_its_row_groups_do_not_have_are_told(store: FakeStore) -> None:
    """Of two flat columns without statistics, only the sum of the footer tells that a row group lost its rows."""
    stream = io.BytesIO()
    pq.write_table(pa.table({"id": range(4)}), stream, row_group_size=2, write_statistics=False, store_schema=False)
    sound = stream.getvalue()
    found = 0
    for bit in range(8 * sound.rindex(b"schema"), 8 * len(sound)):
        spoiled = bytearray(sound)
        spoiled[bit // 8] ^= 1 << bit % 8
        try:
            metadata = pq.ParquetFile(io.BytesIO(spoiled)).metadata
            rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        except (OSError, pa.ArrowException, ValueError):
            continue
        if sum(rows) != metadata.num_rows:
            found += 1
            with pytest.raises(CorruptInput, match=r"its row groups have -?[0-9,]+ rows, its footer says"):
                sample_schema(FileSlice(store, store.put("a.parquet", bytes(spoiled)), detect("a.parquet")))
    assert found > 2
