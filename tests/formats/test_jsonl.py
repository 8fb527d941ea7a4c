from __future__ import annotations

import gzip
import itertools
import json
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
import pytest
import structlog.testing
from hypothesis import assume, given
from hypothesis import strategies as st

from curate.arrow.types import contains
from curate.arrow.unknown import NAMES_ALONE, exact
from curate.errors import ConfigError, CorruptInput, PermissionDenied, TransientStorageError
from curate.formats.encoding import detect
from curate.formats.file_slice import FileSlice
from curate.formats.read.json_values import JSON_TEXT
from curate.formats.read.jsonl import read_jsonl
from curate.formats.rows import read, sample_schema
from curate.objects import lines
from curate.objects.bad_line import RejectedRow
from curate.objects.stream import Codec
from curate.sources.columns import say_quoted
from curate.tasks.shard import SliceKind
from tests.support.fake_store import FakeStore
from tests.support.packing import PACK, SUFFIX
from tests.support.reading import read_all

SCHEMA = pa.schema([("id", pa.string()), ("n", pa.int64()), ("x", pa.float64())])
GOOD = st.builds(
    lambda i, n, x: json.dumps({"x": x, "id": i, "n": n, "other": [1]}).encode(),
    st.none() | st.text(max_size=5),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-5, 5),
)
BAD = {
    b"null": "not an object",
    b"[1]": "not an object",
    b"{": "malformed JSON",
    b'{"id":"a"} {"id":"b"}': "malformed JSON",
    b'{"id":"NaN", "x":NaN}': "malformed JSON: NaN or Infinity, which JSON does not have; write null",
    '{"id":"\u00e9", "x": -Infinity}'.encode(): "malformed JSON: NaN or Infinity",
    b'{"other":[1,Infinity]}': "malformed JSON: NaN or Infinity",
    b'{"id":"NaN", "x":Nan}': "malformed JSON: unexpected character",
    b'{"id":"\xff"}': "invalid UTF-8",
    b'{"id":1}': "column 'id' is not a string: found number",
    b'{"n":"5"}': "column 'n' is not an integer: found string",
    b'{"n":true}': "column 'n' is not an integer: found boolean",
    b'{"n":5.5}': "column 'n' is not an integer: found fraction",
    b'{"n":9223372036854775808}': "column 'n' is out of the range of int64",
    b'{"x":true}': "column 'x' is not a number: found boolean",
    b'{"x":{"a":1}}': "column 'x' is not a number: found object",
    b'{"id":["a"]}': "column 'id' is not a string: found list",
}


def rows_of(data: bytes, schema: pa.Schema = SCHEMA, name: str = "a.jsonl", **options: Any) -> Any:
    store = FakeStore()
    return read_all(store, store.put(name, data), schema, **options)


@given(st.lists(GOOD | st.sampled_from([*BAD, b"", b"  \r"]), max_size=30), st.integers(1, 40), st.booleans())
def test_a_bad_row_costs_itself_alone(content: list[bytes], block: int, last_end: bool) -> None:
    """Good rows are the same with and without bad neighbours; each bad one is told with its line and one reason."""
    assume([line for line in content if line.strip()] != [b"[1]"])  # which is a file that is one array
    data = b"\n".join(content) + (b"\n" if last_end else b"")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK_BYTES", block)
        rows, bad = rows_of(data, batch_rows=3)
    expected = [json.loads(line) for line in content if line.strip() and line not in BAD]
    assert rows == [{name: row[name] for name in SCHEMA.names} for row in expected]
    numbered = [(number, line) for number, line in enumerate(content, 1) if line in BAD]
    assert [(row.line, row.raw) for row in bad] == numbered
    assert all(row.reason.startswith(BAD[line]) for row, (_, line) in zip(bad, numbered, strict=True))


@given(st.lists(GOOD | st.sampled_from([*BAD, b""]), max_size=20), st.lists(st.integers(0, 500), max_size=4))
def test_slices_give_the_rows_of_the_whole_in_order(content: list[bytes], cuts: list[int]) -> None:
    """Reading [0,a) [a,b) [b,end) one after the other is reading the file, bad rows included."""
    assume([line for line in content if line.strip()] != [b"[1]"])
    data = b"\n".join(content)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    whole, whole_bad = rows_of(data)
    parts = [rows_of(data, kind=SliceKind.BYTES, start=a, stop=b) for a, b in itertools.pairwise(edges)]
    assert [row for rows, _ in parts for row in rows] == whole
    assert [row.raw for _, bad in parts for row in bad] == [row.raw for row in whole_bad]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-300, 300)
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=5,
)
TYPES = st.recursive(
    st.sampled_from([pa.int8(), pa.uint64(), pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.bool_()]),
    lambda inner: (
        st.builds(pa.list_, inner)
        | st.builds(lambda a, b: pa.struct([("a", a), ("b", b)]), inner, inner)
        | st.builds(lambda t: pa.map_(pa.string(), t), inner)
    ),
    max_leaves=4,
)


def fits(value: Any, type: pa.DataType) -> bool:
    """The rule, said once more and slowly."""
    if value is None:
        return True
    if pa.types.is_integer(type):
        low, high = (-128, 127) if type == pa.int8() else (0, 2**64 - 1)
        whole = isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)
        return whole and low <= value <= high and (isinstance(value, int) or abs(value) < 2**53)
    if pa.types.is_floating(type):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if pa.types.is_boolean(type):
        return isinstance(value, bool)
    if pa.types.is_string(type) or pa.types.is_large_string(type):
        return isinstance(value, str)
    if pa.types.is_list(type):
        return isinstance(value, list) and all(fits(item, type.value_type) for item in value)
    if pa.types.is_map(type):
        return isinstance(value, dict) and all(fits(item, type.item_type) for item in value.values())
    return isinstance(value, dict) and all(fits(value.get(field.name), field.type) for field in type)


def held(value: Any, type: pa.DataType) -> Any:
    """What a value that fits is read as."""
    if value is None:
        return None
    if pa.types.is_integer(type):
        return int(value)
    if pa.types.is_floating(type):
        return float(value)
    if pa.types.is_list(type):
        return [held(item, type.value_type) for item in value]
    if pa.types.is_map(type):
        return [(key, held(item, type.item_type)) for key, item in value.items()]
    if pa.types.is_struct(type):
        return {field.name: held(value.get(field.name), field.type) for field in type}
    return value


@given(TYPES, st.lists(VALUES, max_size=6))
def test_a_value_fits_its_column_or_its_row_is_bad(type: pa.DataType, values: list[Any]) -> None:
    """Nothing is converted behind the user's back: no 5.5 into 5, no true into 1, no "abc" into a list of letters."""
    schema = pa.schema([("v", type)])
    data = b"".join(json.dumps({"v": value}).encode() + b"\n" for value in values)
    rows, bad = rows_of(data, schema)
    assert [row["v"] for row in rows] == [held(value, type) for value in values if fits(value, type)]
    assert [row.line for row in bad] == [n for n, value in enumerate(values, 1) if not fits(value, type)]
    assert all(row.reason.startswith("column 'v") for row in bad)


def test_the_reason_names_the_place_inside_a_nested_column_and_no_data() -> None:
    schema = pa.schema([("a", pa.list_(pa.struct([("b", pa.int8())])))])
    rows, bad = rows_of(b'{"a":[{"b":1},{"b":"secret"}]}\n{"a":[{"b":1000}]}\n{"a":[7]}\n', schema)
    assert rows == []
    assert [row.reason for row in bad] == [
        "column 'a[].b' is not an integer: found string",
        "column 'a[].b' is out of the range of int8",
        "column 'a[]' is not an object: found number",
    ]


NUMBERS = b'{"x":9007199254740993}\n{"x":1e20}\n{"x":123456789012345678901234567890}\n{"x":100000000000000000000}\n'


def test_a_number_in_a_float_column_is_rounded_to_the_nearest_if_its_type_was_declared() -> None:
    rows, bad = rows_of(NUMBERS, pa.schema([("x", pa.float64())]), declared=True)
    assert [row["x"] for row in rows] == [9007199254740992.0, 1e20, 123456789012345678901234567890.0, 1e20]
    assert bad == []


@pytest.mark.parametrize(
    ("type", "form"),
    [
        (pa.float64(), "%s"),
        (pa.list_(pa.float64()), "[0.5, %s]"),
        (pa.struct([("a", pa.float64())]), '{"a": %s}'),
        (pa.map_(pa.string(), pa.float64()), '{"a": %s}'),
    ],
    ids=str,
)
def test_a_whole_number_that_a_float_would_round_is_a_bad_row_where_the_first_rows_told_the_type(
    type: pa.DataType, form: str
) -> None:
    """Had the first rows had it, the column would be none of floats: what is found later is not changed in silence."""
    numbers = [2**53, 2**53 + 1, -(2**60) - 1, 10**20, 10**20 + 1, 2**64 + 1, 1.5]
    data = b"".join(b'{"v": %s}\n' % (form % number).encode() for number in numbers)
    rows, bad = rows_of(data, pa.schema([("v", type)]))
    assert len(rows) == 3
    assert [row.line for row in bad] == [2, 3, 5, 6]
    (reason,) = {row.reason for row in bad}
    assert reason.startswith("column 'v")
    assert reason.endswith("is not double: digits of whole numbers would be lost, declare its type")


def test_a_float32_column_takes_no_number_that_would_become_infinite() -> None:
    rows, bad = rows_of(b'{"x":1e300}\n{"x":16777217}\n', pa.schema([("x", pa.float32())]))
    assert rows == [{"x": 16777216.0}]
    assert [row.reason for row in bad] == ["column 'x' is out of the range of float"]


@pytest.mark.parametrize(
    ("type", "good", "bad", "reason"),
    [
        (pa.timestamp("s"), '"2020-01-02T03:04:05"', '"yesterday"', "column 'v' is not timestamp[s]"),
        (pa.timestamp("ms"), "1577934245000", "1.5", "column 'v' is not timestamp[ms]: found number"),
        (pa.date32(), '"2020-01-02"', '"2020-13-02"', "column 'v' is not date32[day]"),
        (pa.decimal128(5, 2), '"1.25"', '"12345.678"', "column 'v' is not decimal128(5, 2)"),
        (pa.binary(), '"aGk="', '"%"', "column 'v' is not base64 text"),
        (pa.binary(), '"aGk="', "5", "column 'v' is not base64 text: found number"),
        (pa.dictionary(pa.int32(), pa.string()), '"a"', "5", "column 'v' is not a string: found number"),
    ],
)
def test_declared_types_that_json_lacks_are_read_from_text(type: pa.DataType, good: str, bad: str, reason: str) -> None:
    rows, misfits = rows_of(f'{{"v":{good}}}\n{{"v":{bad}}}\n{{}}'.encode(), pa.schema([("v", type)]))
    assert len(rows) == 2
    assert rows[0]["v"] is not None
    assert rows[1]["v"] is None
    assert [row.reason for row in misfits] == [reason]


U64 = 2**64 - 1


@pytest.mark.parametrize(
    ("type", "good", "bad"),
    [
        (pa.decimal32(5, 2), [5, -999], [1000]),
        (pa.decimal64(18, 0), [5, -1, 10**18 - 1], [10**18]),
        (pa.decimal128(10, 2), [0, -5, 12_345_678], [10**8]),
        (pa.decimal128(20, 0), [-1, U64], []),
        (pa.decimal256(60, 2), [-1, U64], []),
        (pa.decimal128(5, -2), [100, -1200], []),
        (pa.date32(), [0, -719_162, 18_321], [2**31]),
        (pa.date64(), [0, 86_400_000, -86_400_000], [1, 2**63]),
        (pa.time32("s"), [0, 86_399], [-1, 86_400]),
        (pa.time32("ms"), [0, 86_399_999], [-1, 86_400_000]),
        (pa.time64("us"), [0, 86_399_999_999], [-1, 86_400_000_000]),
        (pa.time64("ns"), [0, 86_399_999_999_999], [-1, 86_400_000_000_000]),
        (pa.timestamp("s", "UTC"), [0, -1, 2**33], [2**63]),
        (pa.duration("ms"), [0, -1, 2**62], [2**63]),
    ],
    ids=str,
)
@pytest.mark.parametrize("within", [False, True])
def test_whole_numbers_are_decimals_and_counts_of_a_unit(
    type: pa.DataType, good: list[int], bad: list[int], within: bool
) -> None:
    """All that the type has, and no others; in lists, too. A number was a bad row of a decimal that has no room for all
    numbers of 64 bits, and of dates and times of 32."""
    schema = pa.schema([("v", pa.list_(type) if within else type)])
    written = [f'{{"v":{[one] if within else one}}}\n' for one in [*good, *bad]]
    store = FakeStore()
    object = store.put("a.jsonl", "".join(written).encode())
    misfits: list[RejectedRow] = []
    tables = list(read_jsonl(FileSlice(store, object, detect(object.uri)), schema, misfits.append))  # type: ignore[arg-type]
    column = pa.concat_tables(tables)["v"].combine_chunks()
    found = column.flatten() if within else column
    if pa.types.is_decimal(type):
        assert [int(one) for one in found.to_pylist()] == good
    else:
        assert [one.value for one in found] == good
    name = "v[]" if within else "v"
    assert [row.reason for row in misfits] == [f"column {name!r} is not {type}"] * len(bad)


def test_carriage_returns_and_a_last_line_without_end_are_fine() -> None:
    rows, bad = rows_of(b'{"id":"a"}\r\n\r\n{"id":"b"}\r\n\xff\r\n{"id":"c"}')
    assert [row["id"] for row in rows] == ["a", "b", "c"]
    assert [(row.line, row.raw) for row in bad] == [(4, b"\xff")]


@pytest.mark.parametrize("codec", PACK)
def test_compressed_members_and_frames_are_read_one_after_the_other(codec: Codec) -> None:
    data = PACK[codec](b'{"id":"a"}\n{"id"') + PACK[codec](b':"b"}\n')
    rows, bad = rows_of(data, name=f"a.jsonl{SUFFIX[codec]}")
    assert [row["id"] for row in rows] == ["a", "b"]
    assert bad == []


@pytest.mark.parametrize("codec", PACK)
@pytest.mark.parametrize("damage", ["truncated", "empty", "followed", "foreign"])
def test_a_broken_stream_is_corrupt_input(codec: Codec, damage: str) -> None:
    """Truncated, to nothing too, followed by garbage, or not what the suffix says: the shard fails, and says of which
    object."""
    plain = b'{"id":"a"}\n' * 1000
    data = PACK[codec](plain)
    data = {"truncated": data[:-3], "empty": b"", "followed": data + b"garbage", "foreign": plain}[damage]
    with pytest.raises(CorruptInput, match=rf"a\.jsonl{SUFFIX[codec]}: not a whole {codec} stream"):
        rows_of(data, name=f"a.jsonl{SUFFIX[codec]}")


NAMES = ["a.jsonl", *(f"a.jsonl{end}" for end in SUFFIX.values()), "a.csv", "a.csv.gz", "a.txt", "a.parquet"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("error", [TransientStorageError("503"), PermissionDenied("403"), OSError(5, "EIO")])
def test_what_is_wrong_with_the_way_passes_through(store: FakeStore, name: str, error: Exception) -> None:
    """Throttling is not the object's fault: the very error arrives, also from under a decompressor."""
    object = store.put(name, b"some bytes that are never seen")
    store.fail = error
    with pytest.raises(type(error)) as caught:
        read_all(store, object, SCHEMA)
    assert caught.value is error


def test_an_error_of_the_callback_passes_through() -> None:
    store = FakeStore()
    object = store.put("a.jsonl.gz", gzip.compress(b"nonsense\n"))

    def refuse(_: Any) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        list(read(FileSlice(store, object, detect(object.uri)), SCHEMA, 10, refuse))


def test_slices_of_compressed_files_are_refused() -> None:
    with pytest.raises(ValueError, match=r"has no slices of kind 'bytes'"):
        rows_of(b"", name="a.jsonl.gz", kind=SliceKind.BYTES, start=0, stop=10)


# --- the sampled schema


def sampled(rows: str, wanted: Any = None) -> pa.Schema:
    store = FakeStore()
    object = store.put("a.jsonl", rows.encode())
    return sample_schema(FileSlice(store, object, detect(object.uri)), wanted)


@pytest.mark.parametrize(
    ("values", "type"),
    [
        ("1 null 2", pa.int64()),
        ("1 2.5", pa.float64()),
        ("true null", pa.bool_()),
        ('"a" "2020-01-01"', pa.string()),
        ('"2020-01-01T00:00:00Z"', pa.string()),
        ("null null", pa.null()),
        ("[] [1] [2.5,null]", pa.list_(pa.float64())),
        ("[] []", pa.list_(pa.null())),
        ('{"a":1} {"b":"x"} {}', pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ("18446744073709551615", exact(pa.uint64())),
        ("9223372036854775807 -1", exact(pa.int64())),
        ("9007199254740992 -9007199254740992", pa.int64()),
        ("1 100000000000000000000", pa.float64()),
        ("1.5 100000000000000000000 9007199254740994", pa.float64()),
        ('1.5 "NaN" "Infinity" "-Infinity"', pa.float64()),
        ('"NaN" 3 null', pa.float64()),
        ('[0.5] ["NaN",null]', pa.list_(pa.float64())),
        ('"NaN" "Infinity"', NAMES_ALONE),
        ('["NaN"] []', pa.list_(NAMES_ALONE)),
        ('"NaN" "a"', pa.string()),
        ('"NaN" "nan" 1.5', pa.string()),
    ],
)
def test_types_are_inferred_from_every_row_of_the_head(values: str, type: pa.DataType) -> None:
    assert sampled("".join(f'{{"v":{v}}}\n' for v in values.split())) == pa.schema([("v", type)])


def test_names_of_numbers_beside_what_a_float_would_round_are_texts() -> None:
    """9007199254740993 is no float, and neither is a boolean: all values are kept as their JSON text."""
    for values in ('"NaN" 9007199254740993 2', '"NaN" true 1.5'):
        field = sampled("".join(f'{{"v":{v}}}\n' for v in values.split())).field("v")
        assert field.equals(pa.field("v", pa.string(), metadata=field.metadata))
        assert JSON_TEXT.items() <= field.metadata.items()


def test_columns_come_in_order_of_appearance_or_as_wanted() -> None:
    rows = '{"b":1,"a":"x"}\n{"c":1.5,"b":2}\n'
    assert sampled(rows).names == ["b", "a", "c"]
    assert sampled(rows, {"c": None, "b": pa.int8()}) == pa.schema([("c", pa.float64()), ("b", pa.int8())])


def test_a_mixed_column_becomes_json_text_unless_it_is_wanted_by_name() -> None:
    """Pushshift's `edited` is false or a time. All columns asked for: its JSON text. By name: say a type."""
    rows = '{"id":"a","edited":false}\n{"id":"b","edited":1512345.0}\n{"id":"c"}\n'
    schema = sampled(rows)
    assert schema.field("edited").equals(pa.field("edited", pa.string(), metadata=JSON_TEXT), check_metadata=True)
    read_rows, bad = rows_of(rows.encode() + b'{"edited":{"a":"b"}}', schema)
    assert [row["edited"] for row in read_rows] == ["false", "1512345.0", None, '{"a":"b"}']
    assert bad == []
    with pytest.raises(
        ConfigError, match=r"column 'edited' of a\.jsonl has no single type: 'edited' is boolean and float64; declare"
    ):
        sampled(rows, {"edited": None})
    assert sampled(rows, {"edited": pa.float64()}) == pa.schema([("edited", pa.float64())])


def test_whole_numbers_that_no_integer_type_holds_are_not_rounded() -> None:
    """A float would make one id of many. Whoever wants floats, or decimals, says so."""
    rows = '{"id":18446744073709551615}\n{"id":-1}\n'
    schema = sampled(rows)
    assert schema.field("id").equals(pa.field("id", pa.string(), metadata=JSON_TEXT), check_metadata=True)
    assert [row["id"] for row in rows_of(rows.encode(), schema)[0]] == ["18446744073709551615", "-1"]
    with pytest.raises(
        ConfigError, match=r"'id' is whole numbers below 0 and whole numbers from 2\^63 on; declare a type for 'id'"
    ):
        sampled(rows, {"id": None})
    declared = sampled(rows, {"id": pa.decimal128(20, 0)})
    assert [int(row["id"]) for row in rows_of(rows.encode(), declared)[0]] == [18446744073709551615, -1]


@pytest.mark.parametrize("id", ["18446744073709551616", "-9223372036854775809", "1" * 40, "9007199254740993"])
@pytest.mark.parametrize("value", ["{}", "[{},null]", '{{"a":{}}}', '{{"a":{},"é":"x"}}'])
@pytest.mark.parametrize("beside", ["1.5", '"NaN"', ""])
def test_whole_numbers_keep_their_digits_beside_whatever_there_is(id: str, value: str, beside: str) -> None:
    """A float has 15 of them, orjson 64 bits; where a column has no type for them, values are JSON, at any depth."""
    values = [value.format(one) for one in (id, beside) if one]
    data = "".join(f'{{"v":{one}}}\n' for one in values).encode()
    if (type := sampled(data.decode()).field("v").type) == pa.string():
        assert [row["v"] for row in rows_of(data, sampled(data.decode()))[0]] == values
    else:
        assert (contains(type, pt.is_int64), beside) == (True, "")


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ("1.5 9007199254740993", "float64 and whole numbers that a float would round"),
        ('9007199254740993 "NaN"', "whole numbers that a float would round and string"),
        ("18446744073709551616", "whole numbers of more than 64 bits"),
        ("-9223372036854775809 1", "whole numbers of more than 64 bits"),
    ],
)
def test_whole_numbers_that_a_float_would_round_are_told_where_a_type_is_to_be_declared(values: str, told: str) -> None:
    rows = "".join(f'{{"v":{value}}}\n' for value in values.split())
    with pytest.raises(ConfigError, match=f"has no single type: 'v' is {told}; declare a type for 'v'"):
        sampled(rows, {"v": None})
    if '"' not in values and "." not in values:
        read, bad = rows_of(rows.encode(), sampled(rows, {"v": pa.decimal128(38, 0)}))
        assert ([str(row["v"]) for row in read], bad) == (values.split(), [])


def test_a_whole_number_beyond_its_column_is_told_as_that() -> None:
    """And not as a fraction, which a parser makes of it."""
    for value in ("18446744073709551616", "-18446744073709551616", "1e300"):
        _, bad = rows_of(f'{{"n":{value}}}'.encode())
        assert [row.reason for row in bad] == ["column 'n' is out of the range of int64"]


@pytest.mark.parametrize(
    ("values", "is_text"),
    [
        ('"a" 42 "b"', True),
        ('42 "a" "b"', True),
        ('"a" true "b" 1.5 "c"', True),
        ('"a" 42', False),
        ('1 2 3 "n/a"', False),
        ('"a" "b" "c" {"d":1}', False),
        ('"a" "b" "c" ["d"]', False),
        ('"a" ' * 30 + "1 " * 10, True),
        ('"a" ' * 30 + "1 " * 11, False),
        ('"a" ' * 1100 + "1 " * 11, True),
        ('"a" ' * 1100 + "1 " * 12, False),
    ],
)
def test_a_few_numbers_among_texts_are_bad_rows_and_quote_no_text(values: str, is_text: bool) -> None:
    """Whichever comes first. Where there are more, or other values than numbers, all of them are JSON, in quotes."""
    cells = values.split()
    data = "".join(f'{{"v":{cell}}}\n' for cell in cells)
    schema = sampled(data)
    assert (schema.field("v").metadata is None) == is_text
    rows, bad = rows_of(data.encode(), schema)
    texts = [json.loads(cell) for cell in cells if cell.startswith('"')]
    assert [row["v"] for row in rows] == (texts if is_text else cells)
    assert len(rows) + len(bad) == len(cells)
    assert is_text or not bad


def test_a_column_that_is_in_quotes_for_its_other_values_is_told_of() -> None:
    with structlog.testing.capture_logs() as logs:
        schema = say_quoted(sampled('{"v":"a","w":1}\n{"v":1,"w":true}\n'))
    (one,) = logs
    assert (one["column"], one["types"]) == ("v", "string, int64 in a.jsonl")
    assert [field.metadata for field in schema] == [JSON_TEXT, JSON_TEXT]


def test_json_text_and_plain_text_columns_are_kept_apart() -> None:
    """To Arrow the two schemas are equal; a cache that believed so would quote the texts of the other."""
    plain = pa.schema([("v", pa.string())])
    marked = pa.schema([pa.field("v", pa.string(), metadata=JSON_TEXT)])
    assert rows_of(b'{"v":"a"}', plain)[0] == [{"v": "a"}]
    assert rows_of(b'{"v":"a"}', marked)[0] == [{"v": '"a"'}]
    assert rows_of(b'{"v":"a"}', plain)[0] == [{"v": "a"}]


def test_a_mixed_type_deep_inside_is_named_by_its_path() -> None:
    with pytest.raises(ConfigError, match=r"column 'a' of .*: 'a\[\]\.b' is int64 and string"):
        sampled('{"a":[{"b":1},{"b":"x"}]}\n', {"a": None})


@pytest.mark.parametrize("depth", [100, 300, 1000])
def test_a_value_nested_very_deeply_is_json_text_or_a_bad_row(depth: int) -> None:
    """Never a recursion error: neither at plan time nor when read."""
    line = f'{{"a":{"[" * depth}{"]" * depth}}}\n'
    schema = sampled(line)
    assert schema.field("a").metadata == JSON_TEXT
    rows, bad = rows_of(line.encode(), schema)
    if depth < 254:
        assert rows == [{"a": "[" * depth + "]" * depth}]
    else:
        assert [row.reason for row in bad] == ["column 'a' is nested too deeply"]


@given(st.lists(st.text('{}[]",:\\utfn0123456789.e- \x00é', max_size=12).map(str.encode), max_size=20))
def test_reasons_are_few(content: list[bytes]) -> None:
    """They are grouped and counted, so they hold neither data nor positions."""
    _, bad = rows_of(b"\n".join([b"\xef\xbb\xbf{}", *content]))  # which is UTF-8, and no array
    assert all(not any(mark.isdigit() for mark in row.reason) for row in bad)
    assert all(len(row.reason) < 120 for row in bad)


def test_a_missing_wanted_column_is_told_with_the_ones_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no column 'bdy' in a\.jsonl; did you mean 'body'\?; it has 'id', 'body'"):
        sampled('{"id":"a","body":"b"}\n', {"bdy": None})


def test_a_declared_type_that_json_cannot_give_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"declared as map<int64, string>, which cannot be read from JSON"):
        sampled('{"a":[]}\n', {"a": pa.map_(pa.int64(), pa.string())})


@pytest.mark.parametrize("content", ["", "\n \n", "null\n[1]\n{\n"])
def test_a_file_without_rows_gives_an_empty_schema(content: str) -> None:
    assert sampled(content, {"a": None}) == pa.schema([])


@pytest.mark.parametrize("codec", [None, *SUFFIX])
@pytest.mark.parametrize(
    ("rows", "schema"),
    [
        ([b'{"a": 1}', b'{"a": 1.5}'], pa.schema([("a", pa.float64())])),
        ([b'{"a": 1}', b'{"a": null, "b": true}'], pa.schema([("a", pa.int64()), ("b", pa.bool_())])),
        ([b'{"a": null}', b"5", b"", b'{"a": "x"}'], pa.schema([("a", pa.string())])),
        ([b'{"a": 1}', b'{"b": 1'], pa.schema([("a", pa.int64())])),
        ([b'{"a": 1}'], pa.schema([("a", pa.int64())])),
    ],
)
def test_the_last_line_tells_the_schema_whether_or_not_it_ends(
    rows: list[bytes], schema: pa.Schema, codec: Codec | None
) -> None:
    """So that its row is neither bad nor without a column for want of a line feed."""
    store = FakeStore()
    for end in (b"\n", b"\r\n"):
        for last in (b"", end, end * 2):
            data, name = end.join(rows) + last, f"a.jsonl{SUFFIX[codec] if codec else ''}"
            object = store.put(name, PACK[codec](data) if codec else data)
            assert sample_schema(FileSlice(store, object, detect(name))).equals(schema), (end, last)


def test_a_row_longer_than_a_block_is_sampled_and_read() -> None:
    rows = json.dumps({"id": "a" * (3 << 20)}) + "\n"
    assert sampled(rows) == pa.schema([("id", pa.string())])
    assert len(rows_of(rows.encode())[0][0]["id"]) == 3 << 20


def test_a_whole_number_is_read_as_it_is_written_or_not_at_all() -> None:
    """As a float, it may be another number that was rounded: where that can be, it is a bad row."""
    for number, end in itertools.product(range(2**53 - 3, 2**53 + 4), ["", ".0"]):
        store = FakeStore()
        object = store.put("a.jsonl", f'{{"n": {number}{end}}}'.encode())
        rows, bad = read_all(store, object, pa.schema([("n", pa.int64())]))
        assert [row["n"] for row in rows] == ([] if end and number >= 2**53 else [number])
        assert len(rows) + len(bad) == 1


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
@pytest.mark.parametrize("spoilt", ["", "[1]", '"', "   "])
@pytest.mark.parametrize("number", ["18446744073709551617", "-9223372036854775809", "36893488147419103232", "2e19"])
def test_a_column_of_floats_takes_no_whole_number_whose_digits_it_may_lose(
    kind: pa.DataType, spoilt: str, number: str
) -> None:
    """Wherever the row is, and beside lines that are no rows: the numbers of its block tell that it is looked for."""
    schema = pa.schema([("id", pa.int64()), ("v", kind)])
    lines = [f'{{"id":{at},"v":{at}.5}}' for at in range(5)]
    lines[2:2] = [spoilt, f'{{"v":{number},"id":9}}']
    read, bad = rows_of("\n".join(lines).encode(), schema)
    is_float = "e" in number
    assert [row["id"] for row in read] == ([0, 1, 9, 2, 3, 4] if is_float else [0, 1, 2, 3, 4])
    refused = [row.line for row in bad if "digits of whole numbers would be lost" in row.reason]
    assert refused == ([] if is_float else [4])
