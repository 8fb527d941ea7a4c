"""The sketch of a column: what is asked depends on its type.

    numbers, durations, times of day     values as numbers
    dates and times                      values as numbers: days, or units since 1970
    text                                 lengths in characters, and bytes
    bytes                                lengths in bytes
    lists and maps                       lengths
    of all                               rows, nulls, about how many different values, the most frequent ones

Fields of structs are columns of their own, called `struct.field`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from curate.arrow.hashing import digest_rows
from curate.arrow.recast import python_value
from curate.arrow.types import is_binary, is_encoded, is_list, is_text
from curate.dataclass import dataclass, field, replace
from curate.errors import ConfigError
from curate.report.days import Days
from curate.report.distinct import Distinct
from curate.report.frequent import Frequent
from curate.report.numbers import Numbers

SHOWN_CHARS = 200
"""Characters of a value that is told of."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column, or a field of a struct in one."""

    name: str
    path: tuple[int, ...]
    """Number of the column, and of the field within each struct."""
    type: pa.DataType

    def of(self, table: pa.Table) -> pa.ChunkedArray:
        """Returns its values, in the chunks that they come in; null where the struct is."""
        chunks = table.column(self.path[0]).chunks
        for place in self.path[1:]:
            chunks = [chunk.flatten()[place] for chunk in chunks]
        return pa.chunked_array(chunks, self.type)


def leaves(schema: pa.Schema) -> list[Leaf]:
    """Returns the columns of a schema, those with fields as their fields.

    >>> [leaf.name for leaf in leaves(pa.schema({"a": pa.int8(), "b": pa.struct({"c": pa.int8()})}))]
    ['a', 'b.c']
    >>> [leaf.name for leaf in leaves(pa.schema({"b.c": pa.int8(), "b": pa.struct({"c": pa.int8()})}))]
    ['"b.c"', 'b.c']
    """
    found = [leaf for at, one in enumerate(schema) for leaf in _leaves(one, one.name, (at,))]
    counted = Counter(leaf.name for leaf in found)
    return [leaf if counted[leaf.name] == 1 else replace(leaf, name=_quoted(schema, leaf)) for leaf in found]


def _quoted(schema: pa.Schema, leaf: Leaf) -> str:
    """Returns the name of a leaf with quotes around parts that have a dot: `"a.b"` is a column, and `a.b` a field."""
    one = schema.field(leaf.path[0])
    parts = [one.name]
    for at in leaf.path[1:]:
        one = one.type.field(at)
        parts.append(one.name)
    return ".".join(f'"{part}"' if "." in part else part for part in parts)


def _leaves(one: pa.Field, name: str, path: tuple[int, ...]) -> Iterator[Leaf]:
    if not pa.types.is_struct(one.type) or not one.type.num_fields:
        yield Leaf(name, path, one.type)
        return
    for at, inner in enumerate(one.type.fields):
        yield from _leaves(inner, f"{name}.{inner.name}", (*path, at))


@dataclass(slots=True)
class Column:
    """What is known of the values of a column."""

    name: str
    type: str
    kind: str
    rows: int = 0
    nulls: int = 0
    bytes: int = 0
    """Of texts and bytes, all in all."""
    distinct: Distinct | None = field(default_factory=Distinct)
    """None of values that cannot be compared."""
    frequent: Frequent = field(default_factory=Frequent)
    numbers: Numbers = field(default_factory=Numbers)
    """The values, or the lengths of them."""
    days: Days = field(default_factory=Days)
    """Of dates and times."""

    @classmethod
    def of(cls, leaf: Leaf) -> Self:
        """Returns the sketch of a column without rows."""
        return cls(leaf.name, str(leaf.type), kind_of(leaf.type))

    def add(self, values: pa.ChunkedArray) -> npt.NDArray[Any]:
        """Takes in further values; returns those that are not null as numbers, or how long they are. Texts are never
        copied to be together."""
        self.rows += len(values)
        self.nulls += values.null_count
        if len(values) == values.null_count:
            return _NO_NUMBERS
        if self.distinct is not None:
            self._compare(values)
        plain = [_plain(chunk) for chunk in values.chunks if len(chunk) > chunk.null_count]
        numbers = np.concatenate([_numbers(self.kind, chunk) for chunk in plain])
        self.numbers.add(numbers)
        if self.kind in ("date", "time"):
            self.days.add(numbers // per_day(plain[0].type))
        if self.kind in ("text", "bytes"):
            self.bytes += sum(pc.sum(pc.binary_length(chunk)).as_py() or 0 for chunk in plain)
        return numbers

    def _compare(self, values: pa.ChunkedArray) -> None:
        try:
            hashes, _ = digest_rows(pa.table({"value": values}), ["value"])
        except ConfigError:
            self.distinct = None
            return
        assert self.distinct is not None
        present = np.arange(len(values))
        if values.null_count:
            present = np.flatnonzero(values.is_valid().to_numpy())
            hashes = hashes[present]
        self.distinct.add(hashes)
        self.frequent.add(hashes, lambda place: shown(read(values[int(present[place])])))

    def merge(self, other: Self) -> None:
        """Takes in what another sketch of the column has seen."""
        self.rows += other.rows
        self.nulls += other.nulls
        self.bytes += other.bytes
        if self.distinct is None or other.distinct is None:
            self.distinct = None
        else:
            self.distinct.merge(other.distinct)
        self.frequent.merge(other.frequent)
        self.numbers.merge(other.numbers)
        self.days.merge(other.days)

    def as_dict(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return {
            "name": self.name,
            "type": self.type,
            "kind": self.kind,
            "rows": self.rows,
            "nulls": self.nulls,
            "bytes": self.bytes,
            "distinct": None if self.distinct is None else self.distinct.as_text(),
            "frequent": self.frequent.as_dict(),
            "numbers": self.numbers.as_dict(),
            "days": self.days.as_dict(),
        }

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Self:
        """Returns what `as_dict` told of."""
        plain = {name: value[name] for name in ("name", "type", "kind", "rows", "nulls", "bytes")}
        distinct = None if value["distinct"] is None else Distinct.parse(value["distinct"])
        return cls(
            **plain,
            distinct=distinct,
            frequent=Frequent.parse(value["frequent"]),
            numbers=Numbers.parse(value["numbers"]),
            days=Days.parse(value["days"]),
        )


def kind_of(type: pa.DataType) -> str:
    """Returns what is asked of values of a type.

    >>> kind_of(pa.dictionary(pa.int8(), pa.large_string())), kind_of(pa.decimal128(5, 2)), kind_of(pa.null())
    ('text', 'number', 'other')
    """
    if isinstance(type, pa.BaseExtensionType):
        return kind_of(type.storage_type)
    if is_encoded(type):
        return kind_of(type.value_type)
    types = pa.types
    kinds = (
        ("bool", types.is_boolean),
        ("number", lambda one: types.is_integer(one) or types.is_floating(one) or types.is_decimal(one)),
        ("date", types.is_date),
        ("time", types.is_timestamp),
        ("span", lambda one: types.is_duration(one) or types.is_time(one)),
        ("text", is_text),
        ("bytes", is_binary),
        ("list", lambda one: is_list(one) or types.is_map(one)),
    )
    return next((kind for kind, is_one in kinds if is_one(type)), "other")


def _plain(values: pa.Array) -> pa.Array:
    """Returns values without an encoding or an extension around them, and no views, which Arrow does not measure."""
    while True:
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        elif isinstance(values, pa.DictionaryArray):
            values = values.dictionary_decode()
        elif pa.types.is_run_end_encoded(values.type):
            values = pc.run_end_decode(values)
        elif pa.types.is_string_view(values.type):
            values = values.cast(pa.large_string())
        elif pa.types.is_binary_view(values.type):
            values = values.cast(pa.large_binary())
        else:
            return values


def per_day(type: pa.DataType) -> int:
    """Returns the units of a day in which dates or times of a type are counted."""
    if pa.types.is_date(type):
        return 1
    return {"s": 86_400, "ms": 86_400 * 10**3, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}[type.unit]


_NO_NUMBERS: npt.NDArray[np.float64] = np.zeros(0)
_DAY_MS = 86_400_000


def _numbers(kind: str, values: pa.Array) -> npt.NDArray[Any]:
    """Returns what of values is a number, without nulls."""
    type = values.type
    # Lengths before nulls go: to take these out of texts copies the texts.
    if kind == "text":
        return _whole(pc.utf8_length(values).drop_null())
    if kind == "bytes":
        return _whole(pc.binary_length(values).drop_null())
    if kind == "list":
        # Of maps Arrow has no lengths, and it takes nothing out of lists of views.
        if pa.types.is_map(type):
            valid = values.is_valid().to_numpy(zero_copy_only=False)
            lengths: npt.NDArray[Any] = np.diff(_whole(values.offsets))[valid]
            return lengths
        return _whole(pc.list_value_length(values).drop_null())
    if values.null_count:
        values = values.drop_null()
    if kind == "date":
        whole = _whole(values.cast(pa.int32() if pa.types.is_date32(type) else pa.int64()))
        return whole // _DAY_MS if pa.types.is_date64(type) else whole
    if kind in ("time", "span"):
        return _whole(values.cast(pa.int64() if type.bit_width == 64 else pa.int32()))
    if kind != "number":
        return _NO_NUMBERS
    if pa.types.is_integer(type):
        return _whole(values)
    if pa.types.is_decimal(type):
        # By its digits: Arrow multiplies, and is off by a last bit of one in three.
        values = values.cast(pa.string())
    return np.asarray(values.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)


def _whole(values: pa.Array) -> npt.NDArray[Any]:
    wide = pa.uint64() if pa.types.is_uint64(values.type) else pa.int64()
    found: npt.NDArray[Any] = values.cast(wide).to_numpy(zero_copy_only=False)
    return found


def read(value: pa.Scalar) -> Any:
    """Returns a value of a column, as text where Python has none for it; of a text that is not UTF-8, what can be read.

    >>> read(pa.scalar("a"))
    'a'
    """
    if value.is_valid and isinstance(value, pa.StringScalar | pa.LargeStringScalar | pa.StringViewScalar):
        return value.as_buffer().to_pybytes().decode(errors="replace")
    return python_value(value)


def shown(value: Any) -> Any:
    """Returns a value as JSON, cut where it is long."""
    if isinstance(value, bool | int | float) or value is None:
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value
    if isinstance(value, bytes):
        value = value[:SHOWN_CHARS].hex(" ")
    return cut(value if isinstance(value, str) else str(value), SHOWN_CHARS)


def cut(text: str, most: int) -> str:
    """Returns the beginning of a long text. Whoever shows it escapes it.

    >>> cut("abcdef", 5)
    'ab...'
    """
    return text if len(text) <= most else text[: most - 3] + "..."
