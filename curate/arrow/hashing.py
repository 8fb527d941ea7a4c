"""The hash of rows, and the source of random keys. Both are frozen, because exchanges store their values on disk.

Every value becomes one 64-bit word, or two, by XXH3 over a canonical encoding that includes the kind of value. The kind
of array does not matter: dictionaries, views, large types, chunks, slices.

    null                       a word of its own; so None, "", 0 and False are four things
    bool                       0 or 1
    integer                    its value, whatever the width and sign of the type
    floating                   its value as a double; -0.0 is 0.0, and there is one NaN. 1.0 is not the integer 1
    text, bytes                their bytes; a text is not the bytes of its UTF-8
    decimal                    its digits without zeros at the end of the fraction
    date, time of day          days; nanoseconds
    timestamp, duration        their number of units, and the unit; a timestamp with a time zone is an instant
    list                       the words of its elements, one after the other
    struct                     the words of its fields, in order; their names do not matter

Eight bytes and less are hashed by numpy, column by column: XXH3 of eight bytes is a dozen operations, with the same
result as the library. Longer values go through the library one by one, about 100 ns each, and once for each entry of a
dictionary. The words of several columns are combined in order, so the order and number of columns matter.

XXH3 is not cryptographic: collisions can be made on purpose. By chance, two words of 10 billion rows collide once in
10^18 such sets.
"""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from curate.arrow.types import is_list, is_text, is_text_or_binary
from curate.dataclass import dataclass
from curate.errors import ConfigError, unknown_column
from curate.late_pandas import numbers
from curate.units import whole_seed

VERSION = 1
"""Goes into the identity of what depends on these bits. Another encoding is another version."""


Words = npt.NDArray[np.uint64]


_MASK = (1 << 64) - 1

# The default secret of XXH3 at 8 and at 16, and the multiplier of its mix for 4 to 8 bytes (xxhash.h, XXH3_rrmxmx).
_FLIP = 0x1CAD21F72C81017C ^ 0xDB979083E96DD4DE
_PRIME_MX2 = np.uint64(0x9FB21C651E98DF25)
_FOLD = np.uint64(0x9E3779B185EBCA87)
"""XXH_PRIME64_1, by which words are multiplied before the next is added."""


# Kinds of values. Their seeds are far apart, as values of all kinds may have the same eight bytes.
_KINDS: tuple[str, ...] = (
    *("null", "bool", "integer", "large-integer", "floating", "text", "bytes", "decimal", "date", "time"),
    *("list", "struct", "row", "high"),
    *(f"{kind}-{unit}" for kind in ("timestamp", "instant", "duration") for unit in ("s", "ms", "us", "ns")),
)
_SEEDS = {kind: xxhash.xxh3_64_intdigest(f"curate {VERSION} {kind}".encode()) for kind in _KINDS}


def digest_rows(table: pa.Table, columns: Sequence[str], seed: int = 0) -> tuple[Words, Words]:
    """Returns a 128-bit hash of each row's values in `columns`, as two words; other seeds give other hashes.

    Raises ConfigError for a column of a type without a canonical encoding, such as a union, or one that is missing.

    >>> low, high = digest_rows(pa.table({"a": ["x", "y", "x"]}), ["a"])
    >>> bool(low[0] == low[2]), bool(high[0] == high[2]), bool(low[0] == low[1]), bool(low[0] == high[0])
    (True, True, False, False)
    """
    how = _Hash(whole_seed(seed))
    parts, known = [], dict.fromkeys(table.column_names)
    for name in columns:
        if name not in known:
            raise ConfigError.of_column(unknown_column(name, list(known)), name)
        try:
            found = [_values(chunk, how) for chunk in table[name].chunks]
        except _NoEncoding as error:
            told = f"rows cannot be compared by the column {name!r}: it is {error}"
            raise ConfigError.of_column(told, name) from error
        parts.append([np.concatenate([chunk[lane] for chunk in found]) if found else _NONE for lane in range(2)])
    low, high = how.folded("row", parts, table.num_rows)
    return low, high


def random_keys(seed: int, shard: str, start_row: int, rows: int) -> Words:
    """Returns random numbers for rows of a shard, uniform over 64 bits, the same however the rows are cut.

    They are the stream of Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) that
    numpy has, whose bits numpy promises to keep; its key is XXH3-128 of the shard's id, seeded with `seed`. Four rows
    share a counter, so a number costs some nanoseconds wherever the rows begin. Raises ConfigError for a seed that is
    no whole number of 64 bits.

    >>> whole = random_keys(7, "a.parquet", 0, 10)
    >>> bool((whole[3:] == random_keys(7, "a.parquet", 3, 7)).all())
    True
    """
    seed = whole_seed(seed)
    key = xxhash.xxh3_128_intdigest(shard.encode(), seed)
    stream = np.random.Philox(key=np.array([key & _MASK, key >> 64], np.uint64), counter=start_row // 4)
    skipped = start_row % 4
    return stream.random_raw(skipped + rows)[skipped:]


def salted(purpose: str, seed: int) -> int:
    """Returns a seed for hashes of one purpose: what is chosen for another, by the same seed and values, says nothing
    of what is chosen for this one. Raises ConfigError for what is no seed.

    >>> salted("split", 0) == salted("split", 0) != salted("mix", 0)
    True
    """
    seed = whole_seed(seed)
    return xxhash.xxh3_64_intdigest(f"curate {purpose} {seed}".encode())


def hash_words(words: Words, seed: int | Words = 0) -> Words:
    """Returns XXH3-64 of each word's eight bytes, the lowest first, with one seed or a seed for each.

    >>> hex(hash_words(np.array([1], np.uint64), 5)[0]) == hex(xxhash.xxh3_64_intdigest(bytes([1] + [0] * 7), 5))
    True
    """
    if isinstance(seed, int):
        low: Any = int.from_bytes((seed & 0xFFFFFFFF).to_bytes(4, "little"), "big")
        flip: Any = np.uint64((_FLIP - (seed ^ (low << 32))) & _MASK)
    else:
        low = (seed & np.uint64(0xFFFFFFFF)).astype(np.uint32).byteswap().astype(np.uint64)
        flip = np.uint64(_FLIP) - (seed ^ (low << np.uint64(32)))
    found = (words >> np.uint64(32)) | (words << np.uint64(32))
    found ^= flip
    found ^= ((found << np.uint64(49)) | (found >> np.uint64(15))) ^ (
        (found << np.uint64(24)) | (found >> np.uint64(40))
    )
    found *= _PRIME_MX2
    found ^= (found >> np.uint64(35)) + np.uint64(8)
    found *= _PRIME_MX2
    found ^= found >> np.uint64(28)
    return found


def hash_bytes(values: pa.Array, seed: int = 0) -> Words:
    """Returns XXH3-64 of the bytes of each text or binary value, none of which is null.

    >>> hash_bytes(pa.array(["a"]))[0] == xxhash.xxh3_64_intdigest(b"a")
    np.True_
    """
    found = map(xxhash.xxh3_64_intdigest, _bytes(values), repeat(seed))
    return np.fromiter(found, np.uint64, len(values))


@dataclass(frozen=True, slots=True)
class _Hash:
    """What values are hashed to: two words."""

    seed: int

    def seeds(self, kind: str) -> list[int]:
        low = (self.seed + _SEEDS[kind]) & _MASK
        return [low, (low + _SEEDS["high"]) & _MASK]

    def words(self, kind: str, words: Words) -> list[Words]:
        return [hash_words(words, seed) for seed in self.seeds(kind)]

    def bytes(self, kind: str, values: pa.Array) -> list[Words]:
        digests = b"".join(map(xxhash.xxh3_128_digest, _bytes(values), repeat(self.seeds(kind)[0])))
        pairs = np.frombuffer(digests, ">u8").astype(np.uint64).reshape(-1, 2)
        return [np.ascontiguousarray(pairs[:, 1]), np.ascontiguousarray(pairs[:, 0])]

    def folded(self, kind: str, parts: Sequence[Sequence[Words]], rows: int) -> list[Words]:
        """Returns one value for each row of the words of several values."""
        found = []
        for lane, seed in enumerate(self.seeds(kind)):
            word = np.full(rows, len(parts), np.uint64)
            for part in parts:
                word *= _FOLD
                word += part[lane]
                word = hash_words(word, seed)
            found.append(word)
        return found


_NONE: Words = np.zeros(0, np.uint64)


class _NoEncoding(Exception):
    """The type of a column has no canonical encoding."""


def _values(array: pa.Array, how: _Hash) -> list[Words]:
    """Returns the words of each value of an array."""
    type = array.type
    if isinstance(type, pa.BaseExtensionType):
        return _values(array.storage, how)
    if pa.types.is_null(type):
        return how.words("null", np.zeros(len(array), np.uint64))
    if pa.types.is_dictionary(type):
        entries = pa.concat_arrays([array.dictionary, pa.nulls(1, array.dictionary.type)])
        at = numbers(array.indices.cast(pa.int64()).fill_null(len(array.dictionary)))
        return [lane[at] for lane in _values(entries, how)]
    if pa.types.is_run_end_encoded(type):
        return _values(pc.run_end_decode(array), how)
    found = _present(array, how)
    if array.null_count:
        absent = numbers(array.is_null())
        for lane, null in zip(found, how.words("null", np.zeros(1, np.uint64)), strict=True):
            lane[absent] = null
    return found


def _present(array: pa.Array, how: _Hash) -> list[Words]:
    """Returns the words of the values of an array, where it is not null; any where it is."""
    type = array.type
    types = pa.types
    if types.is_boolean(type):
        return how.words("bool", _numbers(array.cast(pa.uint8())).astype(np.uint64))
    if types.is_uint64(type):
        words = _numbers(array)
        large = words > np.uint64(2**63 - 1)
        kinds = zip(how.words("large-integer", words), how.words("integer", words), strict=True)
        return [np.where(large, one, other) for one, other in kinds]
    if types.is_integer(type):
        return how.words("integer", _numbers(array.cast(pa.int64())).view(np.uint64))
    if types.is_floating(type):
        return how.words("floating", _doubles(array))
    if is_text_or_binary(type):
        return how.bytes("text" if is_text(type) else "bytes", array)
    if types.is_decimal(type):
        return how.bytes("decimal", _digits(array))
    if types.is_date(type):
        return how.words("date", _numbers(array.cast(pa.date32()).cast(pa.int32())).astype(np.int64).view(np.uint64))
    if types.is_time(type):
        return how.words("time", _numbers(array.cast(pa.time64("ns")).cast(pa.int64())).view(np.uint64))
    if types.is_timestamp(type) or types.is_duration(type):
        kind = "duration" if types.is_duration(type) else "timestamp" if type.tz is None else "instant"
        return how.words(f"{kind}-{type.unit}", _numbers(array.cast(pa.int64())).view(np.uint64))
    if types.is_struct(type):
        return how.folded("struct", [_values(field, how) for field in array.flatten()], len(array))
    if types.is_map(type):
        pair = pa.struct([pa.field("key", type.key_type, nullable=False), pa.field("value", type.item_type)])
        return _lists(array.cast(pa.list_(pair)), how)
    if is_list(type):
        return _lists(array, how)
    raise _NoEncoding(f"{type}, which has no canonical encoding; leave it out, or convert it to text or numbers")


def _numbers(array: pa.Array) -> Any:
    """Returns numbers as they are, with zeros for nulls."""
    return numbers(array.fill_null(0) if array.null_count else array)


def _doubles(array: pa.Array) -> Words:
    # Adding zero makes 0.0 of -0.0, and a copy that may be written to.
    values = _numbers(array.cast(pa.float64())) + 0.0
    values[np.isnan(values)] = np.nan
    return np.asarray(values, np.float64).view(np.uint64)


def _digits(array: pa.Array) -> pa.Array:
    """Returns decimals as texts that are the same for the same number; Arrow's own depend on the scale."""
    exact = decimal.Context(prec=80)
    return pa.array([None if one is None else str(one.normalize(exact)) for one in array.to_pylist()], pa.string())


def _lists(array: pa.Array, how: _Hash) -> list[Words]:
    """Returns the words of lists: of the words of their elements, as bytes."""
    lengths = numbers(pc.fill_null(pc.list_value_length(array), 0))
    # Not a cast, which makes negative lengths of lists that are views and null (Arrow 26).
    elements = array.flatten()  # without what lies under nulls, and beyond a slice
    words = np.stack(_values(elements, how), axis=1)
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]) * (words.shape[1] * 8)
    data = np.ascontiguousarray(words.astype("<u8", copy=False))
    buffers = [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(data)]
    return how.bytes("list", pa.Array.from_buffers(pa.large_binary(), len(array), buffers))


_FEW, _LONG = 1000, 200
"""Values, and bytes of each on average: so many are not worth an import, and so long ones no copy."""


def _bytes(values: pa.Array) -> Any:
    """Returns texts or binary values as bytes, empty ones for nulls."""
    if not len(values):
        return ()
    if not pa.types.is_large_binary(values.type):
        # By way of large types: texts of views and of fixed size have no other cast that takes them all.
        values = values.cast(pa.large_string() if is_text(values.type) else pa.large_binary())
        values = values.cast(pa.large_binary())
    values = values.fill_null(b"") if values.null_count else values
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    if len(values) > _FEW and ends[-1] - ends[0] < _LONG * len(values):
        # Copies of short ones take half of the time, and Arrow imports pandas for them.
        return values.to_numpy(zero_copy_only=False)
    starts = ends.tolist()
    return map(memoryview(data or b"").__getitem__, map(slice, starts[:-1], starts[1:]))
