"""The frozen hash: the same for the same value however it is held, other for other values, and the same for ever."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from curate.arrow.hashing import digest_rows, hash_bytes, hash_words, random_keys
from curate.errors import ConfigError

GOLDEN_HASHES = [
    0xB1A3C028EEEE86F5,
    0x7F714C6C44819B0B,
    0x624F497F27C3A1C5,
    0x8FF1E11FAA877B28,
    0x3218B4A2B41EF08A,
    0xBD9F6D6AF340915D,
    0x5E308119A384F717,
    0x964799CF1BA5FCFF,
    0xD5B90C809644D2A0,
    0x8919D9816AE1A623,
    0x4DEA0DE4910B1DD0,
    0x6C5221477BFB1C48,
]
GOLDEN_LARGE = 0x01B7D6AF7077D698
GOLDEN_TEXT = (0x20B128831E47A032, 0xEDAFF335BF69F13B)
GOLDEN_ROWS = [0xD98C6FDC9BD6487E, 0xDC19C0E837F0AD76]
GOLDEN_KEYS = [0xE24429C78D7F9371, 0x80E8334C74F6E928, 0x78BC0913718C65F6]

WORDS = st.integers(0, 2**64 - 1)


def one(value: Any, type: pa.DataType | None = None, seed: int = 0) -> tuple[int, int]:
    """Both words of the hash of one value."""
    table = pa.table({"a": pa.array([value], type)})
    low, high = digest_rows(table, ["a"], seed)
    return int(low[0]), int(high[0])


@given(st.lists(WORDS, min_size=1), WORDS)
def test_eight_bytes_are_hashed_as_the_library_does(words: list[int], seed: int) -> None:
    """The vectorised hash of words gives the bits of XXH3-64, with one seed and with many."""
    array = np.array(words, np.uint64)
    assert hash_words(array, seed).tolist() == [xxhash.xxh3_64_intdigest(w.tobytes(), seed) for w in array]
    seeds = array[::-1].copy()
    expected = [xxhash.xxh3_64_intdigest(w.tobytes(), int(s)) for w, s in zip(array, seeds, strict=True)]
    assert hash_words(array, seeds).tolist() == expected


def test_the_bits_are_frozen() -> None:
    """Golden values: run files and outputs rest on them. A change is a new VERSION, on purpose."""
    values: list[Any] = [None, True, 0, -1, 0.5, "", "é", b"", Decimal("1.50")]
    values += [datetime.date(2020, 1, 2), [1, None], {"x": 1, "y": "z"}]
    assert [one(value)[0] for value in values] == GOLDEN_HASHES
    assert one(2**63, pa.uint64())[0] == GOLDEN_LARGE
    assert one("a text that is longer than sixteen bytes", seed=7) == GOLDEN_TEXT
    rows = pa.table({"a": [1, 2], "b": ["x", None]})
    assert digest_rows(rows, ["a", "b"])[1].tolist() == GOLDEN_ROWS
    assert random_keys(7, "2020/a.parquet#0", 2, 3).tolist() == GOLDEN_KEYS


def test_what_is_not_the_same_is_told_apart() -> None:
    """None, "", 0 and False, and other values that have the same bytes, are all different."""
    us = datetime.datetime(1970, 1, 1)
    values = [
        (None, pa.null()), ("", None), (b"", None), (0, None), (False, None), (0.0, None), (1, None), (True, None),
        (1.0, None), (Decimal(0), None), (Decimal("0.1"), None), (datetime.date(1970, 1, 1), None), (-1, None),
        (2**64 - 1, pa.uint64()), (us, pa.timestamp("us")), (us, pa.timestamp("s")), (us, pa.timestamp("us", "UTC")),
        (datetime.time(0), None), (datetime.timedelta(0), None), ([], pa.list_(pa.int64())), ([0], None), ([[]], None),
        ([0, 0], None), ([None], pa.list_(pa.int64())), ({"x": 0}, None), ({"x": None}, None), ({"x": {"x": 0}}, None),
        ("0", None), (b"0", None), ([""], None), (["", ""], None), ("\x00", None), ("\x00" * 8, None),
    ]  # fmt: skip
    for number in range(2):
        assert len({one(*value)[number] for value in values}) == len(values)


SAME = [
    ("integers", [5, None, -3], [pa.int8(), pa.int16(), pa.int32(), pa.int64()]),
    ("without a sign", [5, None, 200], [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.int64()]),
    ("floats", [0.5, None, -0.0, math.nan, math.inf], [pa.float16(), pa.float32(), pa.float64()]),
    ("texts", ["", "é", None, "x" * 20], [pa.string(), pa.large_string(), pa.string_view()]),
    ("bytes", [b"", None, b"x" * 20], [pa.binary(), pa.large_binary(), pa.binary_view()]),
    ("bytes of a size", [b"abcd", None], [pa.binary(), pa.binary(4)]),
    ("decimals", [Decimal("1.50"), None, Decimal("-3"), Decimal(0)], [pa.decimal128(5, 2), pa.decimal256(40, 9)]),
    ("whole decimals", [Decimal("300"), None], [pa.decimal128(5, 0), pa.decimal128(5, 1), pa.decimal128(5, -2)]),
    ("dates", [datetime.date(1950, 1, 1), None], [pa.date32(), pa.date64()]),
    ("times", [datetime.time(1, 2, 3), None], [pa.time32("s"), pa.time64("us"), pa.time64("ns")]),
    ("lists", [[1], None, [], [2, None]], [pa.list_(pa.int8()), pa.large_list(pa.int64()), pa.list_view(pa.int64())]),
    ("maps", [[(1, "a")], None, []], [pa.map_(pa.int8(), pa.string()), pa.map_(pa.int64(), pa.large_string())]),
    ("lists of a size", [[1, 2], None, [3, None]], [pa.list_(pa.int64()), pa.list_(pa.int8(), 2)]),
]


@pytest.mark.parametrize(("values", "types"), [case[1:] for case in SAME], ids=[case[0] for case in SAME])
def test_how_a_value_is_held_does_not_matter(values: list[Any], types: list[pa.DataType]) -> None:
    """Widths, views, large types, dictionaries, run ends, chunks and slices give the hashes of the plain array."""
    plain = pa.array(values, types[0])
    forms: list[Any] = [pa.array(values, type) for type in types]
    forms += [pa.concat_arrays([form, form]).slice(len(values)) for form in forms]
    forms += [pa.chunked_array([form.slice(0, 1), form.slice(1, 0), form.slice(1)]) for form in forms]
    if not pa.types.is_nested(types[0]):
        forms += [plain.dictionary_encode(), pa.compute.run_end_encode(plain)]
        forms.append(pa.DictionaryArray.from_arrays(pa.array(range(len(values)), pa.int8()), plain))
    wanted = [lane.tolist() for lane in digest_rows(pa.table({"a": plain}), ["a"])]
    for form in forms:
        assert [lane.tolist() for lane in digest_rows(pa.table({"a": form}), ["a"])] == wanted, form


def test_zero_has_no_sign_and_there_is_one_nan() -> None:
    """-0.0 is 0.0, and NaN of any bits is NaN."""
    assert one(-0.0) == one(0.0)
    odd = np.array([0x7FF8000000000001, 0xFFF8000000000000, 0x7FF8000000000000], np.uint64).view(np.float64)
    assert [len(set(lane.tolist())) for lane in digest_rows(pa.table({"a": odd}), ["a"])] == [1, 1]


@given(
    st.lists(st.lists(st.none() | st.integers(-2, 2), max_size=3), max_size=20), st.lists(st.text("ab"), max_size=20)
)
def test_rows_are_equal_where_all_their_values_are(lists: list[Any], texts: list[str]) -> None:
    """Rows have one digest exactly where Python says that their values are equal."""
    rows = min(len(lists), len(texts))
    table = pa.table({"a": pa.array(lists[:rows], pa.list_(pa.int8())), "b": pa.array(texts[:rows], pa.string())})
    found = list(zip(*(lane.tolist() for lane in digest_rows(table, ["a", "b"])), strict=True))
    values = [(tuple(a), b) for a, b in zip(lists[:rows], texts[:rows], strict=True)]
    assert [found.index(one) for one in found] == [values.index(one) for one in values]


def test_order_and_number_of_columns_count() -> None:
    """(a, b) is not (b, a), and ("x", "") is not ("", "x")."""
    table = pa.table({"a": ["x", ""], "b": ["", "x"]})
    hashes = [digest_rows(table, columns)[0][0] for columns in (["a", "b"], ["b", "a"], ["a"], ["a", "a"], [])]
    assert len(set(map(int, hashes))) == 5
    assert digest_rows(table, ["a", "b"])[0][0] == digest_rows(table, ["b", "a"])[0][1]


def test_another_seed_is_another_hash() -> None:
    """Nothing of the hashes of one seed is found among those of another."""
    table = pa.table({"a": range(1000)})
    for one, other in zip(digest_rows(table, ["a"], 1), digest_rows(table, ["a"], 2), strict=True):
        assert not set(one.tolist()) & set(other.tolist())


def test_bits_are_even() -> None:
    """Each bit of the hashes of consecutive numbers is set in half of them, within five standard deviations."""
    for lane in digest_rows(pa.table({"a": range(40_000)}), ["a"]):
        bits = np.unpackbits(lane.view(np.uint8)).reshape(40_000, 64).sum(axis=0, dtype=np.int64)
        assert np.abs(bits - 20_000).max() < 5 * math.sqrt(10_000)


def test_what_cannot_be_hashed_is_refused() -> None:
    """The error names the column, what was found, and what to do."""
    union = pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])])
    with pytest.raises(ConfigError, match=r"column 'a': it is dense_union<.*leave it out"):
        digest_rows(pa.table({"a": union}), ["a"])
    with pytest.raises(ConfigError, match="no column 'b'; there are 'a'"):
        digest_rows(pa.table({"a": [1]}), ["b"])
    with pytest.raises(ConfigError, match="seed is -1, expected a whole number, at least 0"):
        random_keys(-1, "a", 0, 1)


@given(st.integers(0, 2**64 - 1), st.text(max_size=5), st.integers(0, 50), st.integers(0, 50))
def test_random_keys_do_not_depend_on_how_rows_are_cut(seed: int, shard: str, start: int, rows: int) -> None:
    """The keys of rows are those that the whole shard has there."""
    assert random_keys(seed, shard, start, rows).tolist() == random_keys(seed, shard, 0, start + rows)[start:].tolist()


def test_random_keys_are_uniform_and_those_of_other_shards_and_seeds_are_others() -> None:
    """Chi-square over 256 cells stays below its 0.9999 quantile (347.7); no key is seen twice in three streams."""
    streams = [random_keys(1, "a", 0, 50_000), random_keys(1, "b", 0, 50_000), random_keys(2, "a", 0, 50_000)]
    for keys in streams:
        for shift in (56, 0):
            cells = np.bincount(((keys >> np.uint64(shift)) & np.uint64(255)).astype(int), minlength=256)
            assert ((cells - 50_000 / 256) ** 2 / (50_000 / 256)).sum() < 347.7
    assert len(np.unique(np.concatenate(streams))) == 150_000


def test_hash_bytes_is_that_of_the_library() -> None:
    """Texts and bytes are hashed as XXH3-64 of their bytes."""
    assert hash_bytes(pa.array(["é", ""]), 3).tolist() == [xxhash.xxh3_64_intdigest(b, 3) for b in ("é".encode(), b"")]
