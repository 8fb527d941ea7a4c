"""Which dropped rows of a shard are kept to be looked at: of each reason those of the lowest hashes, each kind once.

The hash is of a row's values, so the same rows are kept however a shard is cut into batches, where it runs, and in each
try. It must cost next to nothing where most rows are dropped. So it is no hash of all bytes: of a text, or of bytes,
it takes the length and eight bytes in the middle and at the end; of a number all of it; of up to `HASHED_COLUMNS`
columns, texts before numbers. Nested columns count only where there are no others. Rows whose hash is the same are
taken for alike, and the first of them is kept. One row of sixteen comes before the others: see `is_favoured`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from curate.arrow.hashing import Words, digest_rows, hash_words
from curate.arrow.recast import python_value
from curate.arrow.types import is_text
from curate.dataclass import dataclass
from curate.errors import ConfigError
from curate.objects.samples import MOST_SAMPLED, DroppedRow

HASHED_COLUMNS = 6
SHOWN_COLUMNS = 30
SHOWN_CHARS = 500
"""Characters of a text that are kept."""
SHOWN_ELEMENTS = 20
SHOWN_DEPTH = 4
ROW_CHARS = 3_000
"""Characters of a row that are kept, about: columns beyond that are left out."""

Ints = npt.NDArray[np.int64]
Chosen = npt.NDArray[np.bool_]

_ODD = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], np.uint64)
"""Odd numbers that words are multiplied by, so that equal words at other places differ."""
_NULL = np.uint64(0xA0761D6478BD642F)
_DISFAVOURED = np.uint64(1 << 63)
"""A hash has this bit unless its row is favoured."""
_OF_BYTES = frozenset(
    type.id
    for type in (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())
)
_AT_ONCE = 4096
"""Rows whose words are made at once: their numbers fit into a cache."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """The rows of one reason so far, in the order of their hashes."""

    words: Words
    rows: tuple[DroppedRow, ...]


class DroppedSamples:
    """The rows of a shard that were dropped and are kept, by reason."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}

    def __bool__(self) -> bool:
        return bool(self._kept)

    def rows(self) -> list[DroppedRow]:
        """Returns the rows that are kept."""
        return [row for kept in self._kept.values() for row in kept.rows]

    def by_reason(self) -> dict[str, tuple[DroppedRow, ...]]:
        """Returns the rows that are kept, by reason."""
        return {reason: kept.rows for reason, kept in self._kept.items()}

    def seen(self) -> dict[str, Any]:
        """Returns what is kept now, for `back_to`."""
        return dict(self._kept)

    def back_to(self, seen: dict[str, Any]) -> None:
        """Keeps what was kept when `seen` was called."""
        self._kept = seen

    def add(self, reason: str, table: pa.Table, at: Ints) -> None:
        """Takes the rows of a table at these places, which were dropped for a reason."""
        kept = self._kept.get(reason)
        full = kept is not None and len(kept.words) == MOST_SAMPLED
        favoured = is_favoured(table, at)
        if kept is not None and full and kept.words[-1] < _DISFAVOURED:
            at, favoured = at[favoured], favoured[favoured]
        words = row_words(table, at) >> np.uint64(1)
        words[~favoured] |= _DISFAVOURED
        if kept is not None and full:
            low = np.flatnonzero(words < kept.words[-1])
            words, at = words[low], at[low]
        if not len(words):
            return
        if len(words) > 4 * MOST_SAMPLED:
            # Alike rows count once: more than the lowest few are looked at only if these do not do.
            part = words[np.argpartition(words, 4 * MOST_SAMPLED)[: 4 * MOST_SAMPLED]].max()
            if len(np.unique(words[words <= part])) >= MOST_SAMPLED:
                low = np.flatnonzero(words <= part)
                words, at = words[low], at[low]
        words, first = np.unique(words, return_index=True)
        if kept is not None:
            other = ~np.isin(words, kept.words)
            words, first = words[other], first[other]
        own = words[:MOST_SAMPLED].tolist()
        limit = _limit(kept, own)
        new = [(word, int(at[place])) for word, place in zip(own, first.tolist(), strict=False) if word <= limit]
        self.take(reason, [_row_at(reason, table, place, word) for word, place in new])

    def take(self, reason: str, rows: Iterable[DroppedRow]) -> None:
        """Takes rows that were sampled elsewhere, later ones than those before."""
        kept = self._kept.get(reason)
        known = {} if kept is None else {one.hash: one for one in kept.rows}
        for one in rows:
            known.setdefault(one.hash, one)
        if known:
            best = sorted(known)[:MOST_SAMPLED]
            self._kept[reason] = _Kept(np.array(best, np.uint64), tuple(known[word] for word in best))


def _limit(kept: _Kept | None, own: list[int]) -> int:
    """Returns the highest hash that will be kept of those before and new ones."""
    every = sorted([*own, *([] if kept is None else kept.words.tolist())])[:MOST_SAMPLED]
    return every[-1] if every else -1


# Words of rows


def is_favoured(table: pa.Table, at: Ints) -> Chosen:
    """Returns for each of these rows of a table whether it comes before those that are not: one of sixteen, by lengths
    of texts and by numbers alone. So a hash need not be made of the others once there are enough of these."""
    found = np.zeros(len(at), np.uint64)
    counted = 0
    for column in _hashed(table.schema):
        type = table.schema.types[column]
        for_lengths = _has_bytes(type) and not (pt.is_string_view(type) or pt.is_binary_view(type))
        if for_lengths or (_is_flat(type) and _stored(type) == type and not _has_bytes(type)):
            found += _column_words(table.column(column), at, _lengths if for_lengths else _words)
            found *= _ODD[counted % 4]
            counted += 1
    found ^= found >> np.uint64(32)
    found *= _ODD[0]
    return (found >> np.uint64(60)) == 0 if counted else np.ones(len(at), bool)


def row_words(table: pa.Table, at: Ints) -> Words:
    """Returns a word for each of these rows of a table, from its values; see above."""
    if len(at) > _AT_ONCE:
        parts = [row_words(table, at[begin : begin + _AT_ONCE]) for begin in range(0, len(at), _AT_ONCE)]
        return np.concatenate(parts)
    chosen = _hashed(table.schema)
    found = np.full(len(at), _ODD[0], np.uint64)
    if not chosen:
        names = [name for name, times in Counter(table.column_names).items() if times == 1]
        try:
            return digest_rows(table.select(names).take(pa.array(at)), names)[0]
        except (ConfigError, pa.ArrowNotImplementedError):
            return found  # of types that cannot be compared: one row stands for all
    for column in chosen:
        found ^= _column_words(table.column(column), at, _words)
        found *= _ODD[1]
        found ^= found >> np.uint64(32)
    return hash_words(found)


def _hashed(schema: pa.Schema) -> list[int]:
    """Returns the columns that count: texts and bytes, then numbers."""
    texts = [at for at, type in enumerate(schema.types) if _has_bytes(_stored(type))]
    others = [at for at, type in enumerate(schema.types) if _is_flat(_stored(type)) and not _has_bytes(_stored(type))]
    return sorted([*texts, *others][:HASHED_COLUMNS])


def _stored(type: pa.DataType) -> pa.DataType:
    while True:
        if isinstance(type, pa.BaseExtensionType):
            type = type.storage_type
        elif pt.is_dictionary(type) or pt.is_run_end_encoded(type):
            type = type.value_type
        else:
            return type


def _has_bytes(type: pa.DataType) -> bool:
    return type.id in _OF_BYTES


def _is_flat(type: pa.DataType) -> bool:
    return not (pt.is_nested(type) or pt.is_null(type))


def _column_words(column: pa.ChunkedArray, at: Ints, of: Callable[[pa.Array, Ints], Words]) -> Words:
    if column.num_chunks == 1:
        return of(column.chunk(0), at)
    found = np.zeros(len(at), np.uint64)
    begin = 0
    for chunk in column.chunks:
        # In order: those of a chunk are neighbours.
        low, high = np.searchsorted(at, (begin, begin + len(chunk)))
        if low < high:
            found[low:high] = of(chunk, at[low:high] - begin)
        begin += len(chunk)
    return found


def _words(array: pa.Array, at: Ints) -> Words:
    """Returns the words of values of an array."""
    type = array.type
    if isinstance(type, pa.BaseExtensionType):
        return _words(array.storage, at)
    if pt.is_run_end_encoded(type):
        return _words(pc.run_end_decode(array), at)
    if pt.is_dictionary(type):
        inner = array.dictionary
        own = np.append(_words(inner, np.arange(len(inner))), _NULL)
        entries: Ints = array.indices.take(pa.array(at)).cast(pa.int64()).fill_null(len(inner)).to_numpy()
        return own.take(entries)
    if pt.is_string_view(type) or pt.is_binary_view(type):
        plain = pa.large_string() if pt.is_string_view(type) else pa.large_binary()
        return _words(array.cast(plain), at)
    found = _byte_words(array, at) if _has_bytes(type) else _fixed_words(array, at)
    if array.null_count:
        absent = array.is_null().to_numpy(zero_copy_only=False)[at]
        found[absent] = _NULL
    return found


def _offsets(array: pa.Array) -> Any:
    wide = pt.is_large_string(array.type) or pt.is_large_binary(array.type)
    places: Any = np.frombuffer(array.buffers()[1], np.int64 if wide else np.int32)
    return places[array.offset : array.offset + len(array) + 1]


def _lengths(array: pa.Array, at: Ints) -> Words:
    """Returns how many bytes each of these values has; none where it is null."""
    lengths: Words = np.diff(_offsets(array)).take(at).astype(np.uint64)
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)[at]] = 0
    return lengths


def _byte_words(array: pa.Array, at: Ints) -> Words:
    values, offsets = array.buffers()[2], _offsets(array)
    start = offsets.take(at).astype(np.int64)
    length = offsets.take(at + 1) - start
    data = np.frombuffer(b"" if values is None else values, np.uint8)
    short = np.flatnonzero(length < 8)
    middle, last = start + (length - 8) // 2, start + length - 8
    middle[short] = last[short] = start[short]
    centre, tail = _eight_bytes(data, middle), _eight_bytes(data, last)
    # What is behind a short one is its neighbour's.
    centre[short] &= (np.uint64(1) << (8 * length[short]).astype(np.uint64)) - np.uint64(1)
    tail[short] = centre[short]
    found: Words = centre * _ODD[0] ^ tail * _ODD[2] ^ length.astype(np.uint64) * _ODD[3]
    return found


def _eight_bytes(data: npt.NDArray[np.uint8], places: Ints) -> Words:
    """Returns the eight bytes from each place on as one word; zeros where there are none any more.

    By way of aligned words, two for each place: numpy is ten times as long at words that are not.
    """
    if len(data) < 8 or data.ctypes.data % 8:
        data = np.concatenate([data, np.zeros(8, np.uint8)])
    whole = len(data) // 8
    words: Any = data[: 8 * whole].view("<u8")
    rest = int.from_bytes(data[8 * whole :].tobytes(), "little")
    at = places >> 3
    beyond = np.flatnonzero(at >= whole - 1)
    low, high = words.take(np.minimum(at, whole - 1)), words.take(np.minimum(at + 1, whole - 1))
    if len(beyond):
        high[beyond] = np.where(at[beyond] == whole - 1, rest, 0).astype(np.uint64)
        low[beyond[at[beyond] == whole]] = rest
        low[beyond[at[beyond] > whole]] = 0
    bits = ((places & 7) << 3).astype(np.uint64)
    low >>= bits
    # Not by 64 bits, of which nothing is said.
    high <<= np.uint64(63) - bits
    high <<= np.uint64(1)
    low |= high
    found: Words = low
    return found


def _fixed_words(array: pa.Array, at: Ints) -> Words:
    if pt.is_boolean(array.type):
        flags: Words = array.cast(pa.uint8()).fill_null(0).to_numpy()[at].astype(np.uint64)
        return flags
    width = array.type.bit_width // 8
    values = array.buffers()[1]
    if not width or values is None:
        return np.zeros(len(at), np.uint64)
    if width in (1, 2, 4, 8):
        numbers = np.frombuffer(values, f"<u{width}", array.offset + len(array))
        plain: Words = numbers.take(at + array.offset).astype(np.uint64, copy=False)
        return plain
    own = np.frombuffer(values, np.uint8)[: (array.offset + len(array)) * width].reshape(-1, width)
    wide = np.zeros((len(at), -(-width // 8) * 8), np.uint8)
    wide[:, :width] = own[at + array.offset]
    parts = wide.view("<u8")
    found: Words = parts[:, 0].copy()
    for other in range(1, parts.shape[1]):
        found = found * _ODD[1] ^ parts[:, other]
    return found


# How a row is kept


def _row_at(reason: str, table: pa.Table, at: int, word: int) -> DroppedRow:
    row: dict[str, Any] = {}
    cut: dict[str, int] = {}
    size = 0
    for name, column in zip(table.column_names[:SHOWN_COLUMNS], table.columns, strict=False):
        value, whole = shown(column[at])
        size += len(name) + len(str(value))
        if row and size > ROW_CHARS:
            break
        row[name] = value
        if whole is not None:
            cut[name] = whole
    return DroppedRow(reason, word, _json(row), cut, table.num_columns - len(row))


def _json(row: Mapping[str, Any]) -> str:
    try:
        return orjson.dumps(row).decode()
    except TypeError:
        return orjson.dumps({str(name): str(value) for name, value in row.items()}).decode()


def shown(value: pa.Scalar, depth: int = 0) -> tuple[Any, int | None]:
    """Returns a value as JSON has it, a long one cut, and then how long it is: characters, bytes or elements."""
    type = value.type
    if not value.is_valid:
        return None, None
    if isinstance(type, pa.BaseExtensionType):
        return shown(value.value, depth)
    if pt.is_dictionary(type):
        return shown(value.dictionary[value.index.as_py()], depth)
    if _has_bytes(type) or pt.is_fixed_size_binary(type):
        return _shown_bytes(value.as_buffer(), text=is_text(type))
    if pt.is_nested(type) and depth >= SHOWN_DEPTH:
        return "…", None
    if pt.is_struct(type):
        return {field.name: shown(value[number], depth + 1)[0] for number, field in enumerate(type)}, None
    if pt.is_nested(type) and not pt.is_union(type):
        elements = value.values
        some = [shown(one, depth + 1)[0] for one in elements[:SHOWN_ELEMENTS]]
        return some, len(elements) if len(elements) > len(some) else None
    plain = python_value(value)
    if isinstance(plain, float) and not math.isfinite(plain):
        return str(plain), None
    if isinstance(plain, bool | float) or (isinstance(plain, int) and abs(plain) < 2**63):
        return plain, None
    return str(plain)[:SHOWN_CHARS], None


def _shown_bytes(data: pa.Buffer | None, *, text: bool) -> tuple[str, int | None]:
    whole = memoryview(b"" if data is None else data)
    if not text:
        some = bytes(whole[: SHOWN_CHARS // 2])
        return some.hex(), len(whole) if len(whole) > len(some) else None
    if len(whole) <= SHOWN_CHARS:
        return bytes(whole).decode(errors="replace"), None
    begin = bytes(whole[: 4 * SHOWN_CHARS]).decode(errors="replace")[:SHOWN_CHARS]
    characters = int(np.count_nonzero((np.frombuffer(whole, np.uint8) & 0xC0) != 0x80))
    return begin, characters if characters > len(begin) else None
