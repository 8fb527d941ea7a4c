"""Run files: sorted pages whose bytes depend on rows alone, read by ranges, and damage that is always noticed."""

from __future__ import annotations

import hashlib
import io
import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.arrow.order import Order, SortKey
from curate.arrow.sizes import row_bytes
from curate.errors import ConfigError, CorruptInput, DamagedRun, SchemaMismatch
from curate.exchange import chunks as gathered
from curate.exchange.run_file import RunFile, RunWriter
from curate.objects.record import OutputFormat, read_record
from curate.storage.protocol import Object, Store
from curate.stores.local import LocalStore
from curate.stores.memory import MemoryStore
from curate.writers.writer import make_writer, suffix
from tests.support.examples import examples
from tests.support.writes import pieces

SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("s", pa.string()),
        ("l", pa.list_(pa.float64())),
        ("d", pa.struct([("a", pa.large_string()), ("b", pa.bool_())])),
        ("m", pa.map_(pa.string(), pa.int8())),
    ]
)
ROW = st.fixed_dictionaries(
    {
        "k": st.none() | st.integers(-3, 3),
        "s": st.none() | st.text("ab€", max_size=40),
        "l": st.none() | st.lists(st.none() | st.integers(-4, 4).map(float), max_size=4),
        "d": st.none() | st.fixed_dictionaries({"a": st.none() | st.text(max_size=9), "b": st.none() | st.booleans()}),
        "m": st.none() | st.lists(st.tuples(st.text(max_size=2), st.none() | st.integers(-9, 9)), max_size=3),
    }
)
ROWS = st.lists(ROW, max_size=30)
BY_K = Order((SortKey("k"),))
ORDERS = st.sampled_from([Order(), BY_K, Order((SortKey("k", True), SortKey("s")), "at_start")])
RECORD = {"shard": "a", "rows_in": 3, "dropped": {"b": 1, "a": 2}}
PLACE_BYTES = 16


def written(tables: list[pa.Table], order: Order = BY_K, schema: pa.Schema = SCHEMA, **how: Any) -> bytes:
    sink = io.BytesIO()
    writer = RunWriter(sink, schema, order, **how)
    for table in tables:
        writer.write(table)
    writer.close(RECORD)
    return sink.getvalue()


class Place:
    """Where a test's files are: put at a name, opened as run files."""

    def __init__(self, store: Store, root: str) -> None:
        self.store = store
        self.uri = f"{root}/a.run"

    def put(self, data: bytes) -> Object:
        if isinstance(self.store, MemoryStore):
            return self.store.replace(self.uri, data)
        # A new file each time: what is mapped stays as it was.
        path = Path(self.uri)
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        return self.store.stat(self.uri)

    def open(self, data: bytes) -> RunFile:
        return RunFile.open(self.store, self.put(data))


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "local":
        return Place(LocalStore(None), str(tmp_path))
    return Place(MemoryStore(), "memory://runs")


@pytest.fixture
def memory() -> Place:
    return Place(MemoryStore(), "memory://runs")


def in_memory(data: bytes) -> RunFile:
    return Place(MemoryStore(), "memory://runs").open(data)


def rows_of(file: RunFile, segment: int) -> pa.Table:
    return file.read(segment, 0, int(file.segments[segment].rows.sum()))


def contents(file: RunFile) -> list[pa.Table]:
    return [rows_of(file, segment) for segment in range(len(file.segments))]


def chunks(table: pa.Table, chunk_bytes: int) -> list[pa.Table]:
    """What the writer's chunks must be, row by row."""
    ends, size = [0], 0
    for row, bytes in enumerate(row_bytes(table).tolist()):
        if size and size + bytes + PLACE_BYTES > chunk_bytes:
            ends.append(row)
            size = 0
        size += bytes + PLACE_BYTES
    return [table.slice(a, b - a) for a, b in itertools.pairwise([*ends, table.num_rows]) if a < b]


@given(
    ROWS, ORDERS, st.lists(st.integers(0, 30), max_size=5), st.integers(1, 3), st.integers(1, 900), st.integers(1, 300)
)
def test_what_is_read_are_the_rows_of_each_chunk_sorted_whatever_tables_they_came_in(
    rows: list[Any], order: Order, cuts: list[int], together: int, chunk_bytes: int, page_bytes: int
) -> None:
    """The bytes depend on the rows, the order and the limits; each segment is a chunk of rows, sorted stably."""
    table = pa.Table.from_pylist(rows, SCHEMA)
    how = {"chunk_bytes": chunk_bytes, "page_bytes": page_bytes}
    whole = written([table], order, **how)
    came = pieces(table, cuts)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(gathered, "UNUSED", together)
        patched.setattr(gathered, "UNUSED_BYTES", 0)
        assert written(came, order, **how) == whole
    file = in_memory(whole)
    assert file.schema == SCHEMA
    assert file.record == RECORD
    expected = [order.sort(chunk).to_pylist() for chunk in chunks(table, chunk_bytes)]
    assert [found.to_pylist() for found in contents(file)] == expected
    for found in contents(file):
        found.validate(full=True)


@pytest.mark.slow
def test_first_pages_are_of_all_sizes() -> None:
    """Segments of random rows have pages of the same keys else, and outputs of many could be cut at few."""
    random = np.random.default_rng(1)
    firsts = []
    for _ in range(400):
        table = pa.table({"key": random.integers(0, 1 << 40, 400)})
        [segment] = in_memory(written([table], Order((SortKey("key"),)), table.schema, page_bytes=800)).segments
        assert set(segment.rows[1:-1].tolist()) == {100}
        firsts.append(int(segment.rows[0]))
    assert min(firsts) >= 1
    assert max(firsts) <= 100
    in_tenths = np.bincount([(one - 1) // 10 for one in firsts], minlength=10)
    assert in_tenths.min() > 15
    assert in_tenths.max() < 75


@given(ROWS, ORDERS, st.integers(1, 300), st.booleans())
def test_pages_are_as_large_as_they_may_be(
    rows: list[Any], order: Order, page_bytes: int, keys_begin_pages: bool
) -> None:
    """A page ends before the row that would take it over the limit, and nowhere else but where a key begins, if keys
    begin pages; a larger row is a page of its own. The first page of a segment may end before. The index has the key of
    each page's first row, and its bytes.
    """
    table = pa.Table.from_pylist(rows, SCHEMA)
    file = in_memory(written([table], order, page_bytes=page_bytes, keys_begin_pages=keys_begin_pages))
    if not rows:
        assert file.segments == ()
        return
    [segment] = file.segments
    expected = order.sort(table)
    sizes = row_bytes(expected).tolist()
    begins = set(order.starts(expected).tolist()) if keys_begin_pages else set()
    first = int(segment.rows[0])
    assert first == 1 or sum(sizes[:first]) <= page_bytes
    ends, size = [0], 0
    for row, bytes in enumerate(sizes):
        if row and (size + bytes > page_bytes or row in begins or row == first):
            ends.append(row)
            size = 0
        size += bytes
    assert segment.rows.tolist() == np.diff([*ends, len(rows)]).tolist()
    assert segment.keys.num_rows == len(ends)
    if order.keys:
        assert segment.keys.to_pylist() == order.keys_of(expected).take(ends).to_pylist()
    pages = [file.read(0, a, b) for a, b in itertools.pairwise([*ends, len(rows)])]
    assert segment.bytes.tolist() == [page.nbytes for page in pages]


@given(ROWS, ORDERS, st.integers(1, 300), st.integers(0, 30), st.integers(0, 30))
def test_any_range_of_rows_is_read(rows: list[Any], order: Order, page_bytes: int, a: int, b: int) -> None:
    """`read` gives those rows; it refuses rows that are not there."""
    table = pa.Table.from_pylist(rows or [dict.fromkeys(SCHEMA.names)], SCHEMA)
    file = in_memory(written([table], order, page_bytes=page_bytes))
    start, stop = sorted((a, b))
    if stop > table.num_rows:
        with pytest.raises(IndexError, match=f"segment 0 has {table.num_rows} rows, not {start} to {stop}"):
            file.read(0, start, stop)
    else:
        assert file.read(0, start, stop).to_pylist() == order.sort(table).slice(start, stop - start).to_pylist()


@given(ROWS.filter(bool), ORDERS, st.integers(1, 300), ROW, st.booleans())
def test_a_position_is_what_it_is_in_all_rows(
    rows: list[Any], order: Order, page_bytes: int, other: Any, after: bool
) -> None:
    """Found by the index and one page, `position` is that of the order in the whole segment."""
    table = pa.Table.from_pylist(rows, SCHEMA)
    file = in_memory(written([table], order, page_bytes=page_bytes))
    key = order.keys_of(pa.Table.from_pylist([other], SCHEMA))
    if order.keys:
        assert file.position(order, 0, key, after) == order.position(order.sort(table), key, after)


def test_calls_of_the_store_are_these(memory: Place) -> None:
    """Opening is one read; two, if the index is long. A range of rows is one; a position, one, or none at the start."""
    table = pa.table({"k": range(2000), "s": ["x" * 90] * 2000})
    for page_bytes, reads in ((4096, 1), (100, 2)):
        stored = memory.put(written([table], schema=table.schema, page_bytes=page_bytes))
        before = memory.store.calls.copy()
        file = RunFile.open(memory.store, stored)
        assert memory.store.calls.since(before).as_dict() == {"list": 0, "get": reads, "put": 0, "delete": 0}
        before = memory.store.calls.copy()
        assert file.read(0, 7, 1900)["k"].to_pylist() == list(range(7, 1900))
        assert file.read(0, 7, 7).num_rows == 0
        assert file.position(BY_K, 0, pa.table({"k": [1234]}), False) == 1234
        assert file.position(BY_K, 0, pa.table({"k": [-1]}), True) == 0
        assert memory.store.calls.since(before).get == 2


def test_only_the_bytes_of_the_pages_wanted_are_fetched(memory: Place) -> None:
    """A range of rows is the byte range from its first page to its last."""
    table = pa.table({"k": range(2000)})
    stored = memory.put(written([table], schema=table.schema, page_bytes=800))
    fetched = []

    class Watched(MemoryStore):
        def read(self, uri: str, start: int = 0, stop: int | None = None) -> bytes:
            data = super().read(uri, start, stop)
            fetched.append(len(data))
            return data

    file = RunFile.open(Watched(), stored)
    fetched.clear()
    assert file.read(0, 150, 250)["k"].to_pylist() == list(range(150, 250))
    [size] = fetched
    assert 2 * 800 <= size < 2 * 1200


def test_local_rows_lie_in_the_file(tmp_path: Path) -> None:
    """What is read of a local file takes no memory of Arrow's, and outlives the object it was read with."""
    place = Place(LocalStore(None), str(tmp_path))
    table = pa.table({"k": range(100_000), "s": ["x" * 20] * 100_000})
    file = place.open(written([table], schema=table.schema))
    before = pa.total_allocated_bytes()
    found = file.read(0, 0, 100_000)
    assert pa.total_allocated_bytes() - before < 10_000
    calls = place.store.calls.copy()
    del file
    Path(place.uri).unlink()
    assert found.equals(table)
    assert place.store.calls == calls


SMALL = written([pa.Table.from_pylist([{"k": k, "s": "ab" * k} for k in (3, 1, 2)], SCHEMA)] * 2, page_bytes=30)


def damage(data: bytes) -> st.SearchStrategy[bytes]:
    flips = st.tuples(st.integers(0, len(data) - 1), st.integers(1, 255)).map(
        lambda flip: data[: flip[0]] + bytes([data[flip[0]] ^ flip[1]]) + data[flip[0] + 1 :]
    )
    ranges = st.tuples(st.integers(0, len(data)), st.integers(0, len(data))).map(sorted)
    cuts = ranges.map(lambda cut: data[: cut[0]] + data[cut[1] :])
    doubled = ranges.map(lambda cut: data[: cut[1]] + data[cut[0] :])
    zeroed = ranges.map(lambda cut: data[: cut[0]] + bytes(cut[1] - cut[0]) + data[cut[1] :])
    return (flips | cuts | doubled | zeroed | st.binary(max_size=200)).filter(lambda found: found != data)


@settings(max_examples=examples(400))
@given(damage(SMALL), st.booleans())
def test_damage_is_noticed_and_no_wrong_row_is_read(tmp_path_factory: Any, data: bytes, local: bool) -> None:
    """Bytes that are flipped, cut out, doubled, zeroed or others: opening or reading says so. What is read is right."""
    expected = contents(in_memory(SMALL))
    if local:
        place = Place(LocalStore(None), str(tmp_path_factory.mktemp("damaged")))
    else:
        place = Place(MemoryStore(), "memory://damaged")
    with pytest.raises(DamagedRun, match=r"a\.run: .*; delete it, and its map shard is run again"):
        assert contents(place.open(data)) == expected


@pytest.mark.slow
def test_every_byte_is_covered() -> None:
    """There is no byte whose change, and no place where a cut, is not noticed."""
    for at in range(len(SMALL)):
        for data in (SMALL[:at] + bytes([SMALL[at] ^ 0x10]) + SMALL[at + 1 :], SMALL[:at]):
            with pytest.raises(DamagedRun):
                contents(in_memory(data))


def test_the_message_names_file_page_and_checksums(place: Place) -> None:
    """Of a page that is not as written: where it is, what was found and expected. Other pages are read."""
    data = bytearray(SMALL)
    file = place.open(SMALL)
    first = int(file.segments[0].rows[0])
    data[100] ^= 1
    file = place.open(bytes(data))
    pattern = r"a\.run: page 0 of segment 0, \d+ bytes at 0, has the checksum [0-9a-f]{16}, expected [0-9a-f]{16};"
    with pytest.raises(DamagedRun, match=pattern) as raised:
        file.read(0, 0, 1)
    assert file.read(0, first, 6).num_rows == 6 - first
    again = pickle.loads(pickle.dumps(raised.value))
    assert (str(again), again.uri) == (str(raised.value), place.uri)
    assert isinstance(again, CorruptInput)


def test_a_file_that_is_gone_or_replaced_is_damaged(place: Place) -> None:
    """So its map shard is run again: also where it goes, or is another, after it was opened."""
    stored = place.put(SMALL)
    file = RunFile.open(place.store, stored)
    place.store.delete(place.uri)
    with pytest.raises(DamagedRun, match="it is missing"):
        RunFile.open(place.store, stored)
    other = written([pa.Table.from_pylist([{"k": 9, "s": "c"}] * 6, SCHEMA)], page_bytes=30)
    if isinstance(place.store, MemoryStore):
        with pytest.raises(DamagedRun, match="it is missing"):
            file.read(0, 0, 6)
        place.put(other)
        with pytest.raises(DamagedRun, match="page 0 of segment 0"):
            file.read(0, 0, 6)
    else:
        assert len(other) == len(SMALL)
        place.put(other)
        assert file.read(0, 0, 6).equals(rows_of(in_memory(SMALL), 0))  # the file that was opened is still there
        with pytest.raises(DamagedRun, match=r"it is at generation \d+-\d+, expected \d+-\d+;"):
            RunFile.open(place.store, stored)


def test_the_record_is_read_with_one_small_read(memory: Place) -> None:
    """The record says what was written; a long one takes a second read. What curate did not write has none."""
    for record, reads in ((RECORD, 1), ({"long": "x" * 50_000}, 2)):
        sink = io.BytesIO()
        writer = RunWriter(sink, SCHEMA, BY_K)
        writer.close(record)
        stored = memory.put(sink.getvalue())
        before = memory.store.calls.copy()
        assert read_record(memory.store, stored, OutputFormat.RUN, "none") == record
        assert memory.store.calls.since(before).get == reads
        assert RunFile.open(memory.store, stored).record == record
    for data in (b"", b"something else" * 20, SMALL[:-1]):
        assert read_record(memory.store, memory.put(data), OutputFormat.RUN, "none") is None
    broken = bytearray(SMALL)
    broken[-70] ^= 1
    with pytest.raises(CorruptInput, match="its record is damaged"):
        read_record(memory.store, memory.put(bytes(broken)), OutputFormat.RUN, "none")


def test_another_version_is_refused(memory: Place) -> None:
    """A file of a version to come says so."""
    at = len(SMALL) - 24
    assert SMALL[at : at + 4] == bytes([1, 0, 0, 0])
    stored = memory.put(SMALL[:at] + bytes([2, 0, 0, 0]) + SMALL[at + 4 :])
    with pytest.raises(DamagedRun, match="it is of version 2, expected 1"):
        RunFile.open(memory.store, stored)


def test_run_files_are_no_format_to_ask_for() -> None:
    """They have a suffix, and no writer but that of exchanges."""
    assert suffix(OutputFormat.RUN, "none") == ".run"
    with pytest.raises(ConfigError, match="run is not written by itself; expected one of parquet, jsonl, csv"):
        make_writer(io.BytesIO(), SCHEMA, OutputFormat.RUN, "none")


TYPES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.null(), [None, None, None]),
    (pa.bool_(), [True, None, False]),
    (pa.float16(), [np.float16(1), None, np.float16(2)]),
    (pa.decimal128(9, 2), ["1.50", None, "2.50"]),
    (pa.binary(3), [b"abc", None, b"def"]),
    (pa.large_binary(), [b"abc", None, b""]),
    (pa.timestamp("us", "UTC"), [1, None, 2]),
    (pa.month_day_nano_interval(), [(1, 2, 3), None, (0, 0, 0)]),
    (pa.list_(pa.list_(pa.string())), [[["a"], None], None, []]),
    (pa.list_(pa.int8(), 2), [[1, 2], None, [3, None]]),
    (pa.large_list(pa.struct([("a", pa.int8())])), [[{"a": 1}, None], None, []]),
    (pa.struct([("a", pa.struct([("b", pa.list_(pa.int8()))]))]), [{"a": {"b": [1]}}, None, {"a": None}]),
    (pa.map_(pa.string(), pa.struct([("a", pa.int8())])), [[("x", {"a": 1})], None, [("y", None)]]),
    (pa.list_(pa.string_view()), [["a"], None, []]),
    (pa.string_view(), ["a longer text than a view holds", None, ""]),
    (pa.dictionary(pa.int8(), pa.string()), ["a", None, "a"]),
    (pa.list_(pa.dictionary(pa.int8(), pa.string())), [["a", "a"], None, ["b"]]),
    (pa.struct([("a", pa.dictionary(pa.int8(), pa.string()))]), [{"a": "x"}, None, {"a": None}]),
]


@pytest.mark.parametrize(("type", "values"), TYPES, ids=[str(type) for type, _ in TYPES])
def test_every_type_comes_back(type: pa.DataType, values: list[Any]) -> None:
    """Values are what they were, in order, in types that say nothing of how they came; ordered by another column."""
    array = pa.array(values, pa.string()).cast(type) if pa.types.is_decimal(type) else pa.array(values, type)
    table = pa.table({"k": [2, 1, 0], "v": array})
    file = in_memory(written([table], schema=table.schema, page_bytes=1))
    found = rows_of(file, 0)
    found.validate(full=True)
    assert found["v"].to_pylist() == table["v"].to_pylist()[::-1]
    assert "dictionary" not in str(found.schema)
    assert "view" not in str(found.schema)


def test_extension_types_and_repeated_runs_come_back() -> None:
    """An extension type stays; run-end encoding is a way of storing."""
    storage = pa.array([bytes([n] * 16) for n in range(3)], pa.binary(16))
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(6, dtype=np.int32).reshape(3, 2))
    table = pa.table(
        {
            "k": [2, 1, 0],
            "u": pa.ExtensionArray.from_storage(pa.uuid(), storage),
            "t": tensors,
            "r": pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["a", "b"])),
        }
    )
    found = rows_of(in_memory(written([table], schema=table.schema)), 0)
    assert found.schema.types == [pa.int64(), pa.uuid(), tensors.type, pa.string()]
    assert found.to_pylist() == table.to_pylist()[::-1]


def under_nulls(number: int) -> pa.Table:
    """Three rows, the second of which is null all through, with `number` beneath."""
    mask = pa.array([False, True, False])
    numbers = pa.array([1, number, 3])
    valid = pa.array([True, False, True])
    leaf = pa.Array.from_buffers(pa.int64(), 3, [pa.array(valid).buffers()[1], numbers.buffers()[1]])
    struct = pa.StructArray.from_arrays([numbers], names=["a"], mask=mask)
    offsets = pa.array([0, 1, 2, 3], pa.int32())
    return pa.table(
        {
            "k": [1, 2, 3],
            "leaf": leaf,
            "struct": struct,
            "structs": pa.StructArray.from_arrays([struct], names=["b"]),
            "list": pa.ListArray.from_arrays(offsets, numbers, mask=mask),
            "list of structs": pa.ListArray.from_arrays(offsets, struct),
            "fixed": pa.FixedSizeListArray.from_arrays(struct, 1),
            "fixed masked": pa.FixedSizeListArray.from_arrays(numbers, 1, mask=mask),
            "map": pa.MapArray.from_arrays(offsets, pa.array(["x", "y", "z"]), struct),
        }
    )


def test_what_lies_under_nulls_is_not_written() -> None:
    """Equal rows are equal bytes, whatever is beneath a null at any depth."""
    one, other = under_nulls(2), under_nulls(7)
    assert one.equals(other)
    assert written([one], schema=one.schema) == written([other], schema=other.schema)
    assert rows_of(in_memory(written([one], schema=one.schema)), 0).equals(one)


def test_no_rows_and_no_columns_are_a_file() -> None:
    """A file of no rows has its schema and its record, and no segment. Rows without columns are refused."""
    for schema in (SCHEMA, pa.schema([])):
        order = BY_K if len(schema) else Order()
        file = in_memory(written([schema.empty_table()], order, schema))
        assert (file.segments, file.schema, file.record) == ((), schema, RECORD)
    with pytest.raises(SchemaMismatch, match="2 rows have no column"):
        written([pa.table({"a": [1, 2]}).select([])], Order(), pa.schema([]))


def test_tables_are_held_to_the_schema() -> None:
    """Columns come in any order and narrower types; what does not fit is refused. Metadata is not kept."""
    schema = pa.schema([pa.field("k", pa.int64(), metadata={"a": "b"}), ("s", pa.string())], metadata={"x": "y"})
    table = pa.table({"s": pa.array(["b", "a"]).dictionary_encode(), "k": pa.array([2, 1], pa.int8())})
    file = in_memory(written([table], schema=schema))
    assert rows_of(file, 0).to_pylist() == [{"k": 1, "s": "a"}, {"k": 2, "s": "b"}]
    assert file.schema.equals(schema.remove_metadata(), check_metadata=False)
    assert file.schema.metadata is None
    assert file.schema.field("k").metadata is None
    with pytest.raises(SchemaMismatch, match="'k' is string, expected int64"):
        written([pa.table({"k": ["a"], "s": ["b"]})], schema=schema)


def test_a_type_that_cannot_be_moved_is_refused_when_the_writer_is_made() -> None:
    """Not when the first rows come."""
    for type in (
        pa.list_view(pa.string()),
        pa.list_(pa.large_list_view(pa.int8())),
        pa.sparse_union([pa.field("a", pa.int8())]),
        pa.struct([("d", pa.dense_union([pa.field("a", pa.int8())]))]),
        pa.json_(pa.string_view()),
        pa.list_(pa.run_end_encoded(pa.int32(), pa.string())),
    ):
        with pytest.raises(
            ConfigError, match=r"column 'u' is .*which an exchange cannot move; cast or drop it before the exchange"
        ):
            RunWriter(io.BytesIO(), pa.schema([("u", type)]), Order())


class Sums:
    """Sums `n` by `k`, and keeps what it was called with."""

    def __init__(self) -> None:
        self.called: list[list[int]] = []

    def __call__(self, table: pa.Table) -> pa.Table:
        assert all(column.num_chunks == 1 for column in table.columns)
        self.called.append(table["k"].to_pylist())
        found = table.group_by("k").aggregate([("n", "sum")]).rename_columns(["k", "n"])
        return BY_K.sort(found)


FOLDED = pa.schema([("k", pa.int64()), ("n", pa.int64())])


@given(st.lists(st.integers(0, 9), max_size=60), st.lists(st.integers(0, 60), max_size=4), st.integers(50, 800))
def test_folds_depend_on_the_rows_alone_and_lose_none(keys: list[int], cuts: list[int], chunk_bytes: int) -> None:
    """Folded rows stand for all that came; `rows` counts what is in the file; when it is folded goes by rows alone."""
    table = pa.table({"k": keys, "n": [1] * len(keys)}, schema=FOLDED)
    first: tuple[bytes, Any] | None = None
    for came in ([table], pieces(table, cuts)):
        sink, fold = io.BytesIO(), Sums()
        writer = RunWriter(sink, FOLDED, BY_K, fold, chunk_bytes=chunk_bytes, page_bytes=40, fold_rows=7)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(gathered, "UNUSED", 1 if came[0] is table else 3)
            patched.setattr(gathered, "UNUSED_BYTES", 0)
            for piece in came:
                writer.write(piece)
            writer.finish()
        rows = writer.rows
        writer.close(RECORD)
        if first is None:
            first = sink.getvalue(), fold.called
            found = [row for part in contents(in_memory(first[0])) for row in part.to_pylist()]
            assert rows == len(found)
            totals = {key: sum(row["n"] for row in found if row["k"] == key) for key in set(keys)}
            assert totals == {key: keys.count(key) for key in set(keys)}
        assert (sink.getvalue(), fold.called) == first


def test_what_does_not_shrink_is_folded_once_more_and_not_again() -> None:
    """A fold that leaves more than half is called again when the chunk is full only."""
    fold = Sums()
    table = pa.table({"k": range(50), "n": [1] * 50}, schema=FOLDED)
    written([table], schema=FOLDED, fold=fold, fold_rows=10, chunk_bytes=32 * 40)
    assert [len(keys) for keys in fold.called] == [10, 40, 10]


def test_what_shrinks_is_folded_each_time_and_fills_no_chunk() -> None:
    """All rows of one key: as many folds as rows for them came, and one row in the end."""
    fold = Sums()
    table = pa.table({"k": [1] * 105, "n": [1] * 105}, schema=FOLDED)
    data = written([table], schema=FOLDED, fold=fold, fold_rows=10, chunk_bytes=32 * 12)
    assert [len(keys) for keys in fold.called] == [10, *[11] * 9, 6]
    assert [part.to_pylist() for part in contents(in_memory(data))] == [[{"k": 1, "n": 105}]]


def test_a_full_chunk_that_a_fold_empties_is_gathered_on() -> None:
    """Where folds come later than chunks are full, a chunk is folded before it is written, and not written then."""
    fold = Sums()
    table = pa.table({"k": [1, 2] * 50, "n": [1] * 100}, schema=FOLDED)
    data = written([table], schema=FOLDED, fold=fold, fold_rows=1000, chunk_bytes=32 * 20)
    assert [len(keys) for keys in fold.called] == [20, 20, 20, 20, 20, 10]
    assert len(in_memory(data).segments) == 1


def test_the_fold_is_held_to_the_schema() -> None:
    """What a fold gives must be rows of the schema."""
    with pytest.raises(SchemaMismatch, match="'n' is missing"):
        written([pa.table({"k": [1], "n": [1]})], schema=FOLDED, fold=lambda table: table.select(["k"]))


class Watching:
    """A sink that looks at what Arrow holds at each write, and when it is told to."""

    def __init__(self) -> None:
        self._before = pa.total_allocated_bytes()
        self.most = 0

    def write(self, data: Any) -> None:
        del data
        self.look()

    def look(self) -> None:
        self.most = max(self.most, pa.total_allocated_bytes() - self._before)


def test_writing_takes_little_more_than_a_chunk() -> None:
    """Rows are held once: while they are gathered, sorted and written, Arrow holds a chunk, its places, and pages."""
    chunk_bytes, rows = 64 << 20, 16_384
    numbers = np.arange(rows, dtype=np.int64)
    sink = Watching()
    writer = RunWriter(sink, pa.schema([("k", pa.int64()), ("s", pa.binary(240))]), BY_K, None, chunk_bytes)
    for number in range(48):
        keys = pa.array(numbers * 7919 % 65_537 + number)
        text = pa.FixedSizeBinaryArray.from_buffers(pa.binary(240), rows, [None, pa.allocate_buffer(240 * rows)])
        writer.write(pa.table({"k": keys, "s": text}))
        sink.look()
    writer.close({})
    assert chunk_bytes / 2 < sink.most < chunk_bytes + (16 << 20)


def test_small_slices_of_large_tables_do_not_keep_them() -> None:
    """A few rows of each table, pending, keep no table alive."""
    sink = Watching()
    writer = RunWriter(sink, pa.schema([("k", pa.int64())]), BY_K)
    for _ in range(2048):
        keys = pa.array(np.arange(10)).take(pa.array(np.zeros(16_384, np.int64)))
        writer.write(pa.table({"k": keys}).slice(0, 1))
        sink.look()
    writer.close({})
    assert sink.most < 100 * 16_384 * 8


def test_the_layout_is_this() -> None:
    """The bytes are a contract: a rerun compares them, and another version must read them."""
    table = pa.table({"k": [2, 1, None], "s": ["b", "a", "c"]})
    data = written([table], schema=table.schema, page_bytes=20)
    digest = "1ec08d0c8bf32ab0b317dca6bb6836b9c3fd4c83bd4a309256e709809c247aa0"
    assert (len(data), hashlib.sha256(data).hexdigest()) == (2483, digest)
    first = pa.ipc.read_record_batch(pa.ipc.read_message(data), table.schema)
    assert first.to_pylist() == [{"k": 1, "s": "a"}]
