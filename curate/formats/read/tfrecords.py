"""TFRecord files: a row for each `tf.train.Example`, a column for each feature.

A feature is a list of bytes, of 32-bit floats or of 64-bit integers. Where it has at most one value in each of the
first records, its column has the value; else lists. One that a record does not have is null there. Features have no
order: columns are in the order of their names. A schema that is declared may say text for bytes, and other numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from curate.arrow.types import is_list, is_text
from curate.arrow.unknown import all_nullable
from curate.errors import ConfigError
from curate.formats.read.json_schema import missing_column
from curate.formats.tf_example import example_class, framed
from curate.objects.bad_line import OnBadRow, RejectedRow
from curate.objects.stream import BLOCK_BYTES, Codec, DecompressedStream
from curate.storage.protocol import Object, Store

_TYPES = {"bytes_list": pa.binary(), "float_list": pa.float32(), "int64_list": pa.int64()}
_BLOCK_RECORDS = 4096
_SAMPLED_RECORDS = 1000
_NO_EXAMPLE = "not a tf.train.Example"


def feature_type(type: pa.DataType) -> pa.DataType | None:
    """Returns the type of a feature whose values can be read as `type`, or as items of that list; None for no feature.

    >>> feature_type(pa.list_(pa.int8())), feature_type(pa.date32())
    (DataType(int64), None)
    """
    if is_list(type):
        type = type.value_type
    if is_text(type) or pt.is_binary(type) or pt.is_large_binary(type):
        return pa.binary()
    if type in (pa.float32(), pa.float64()):
        return pa.float32()
    return pa.int64() if pt.is_integer(type) else type if pt.is_null(type) else None


def sample_tfrecords(
    store: Store, object: Object, codec: Codec | None, wanted: Mapping[str, pa.DataType | None] | None
) -> pa.Schema:
    """Returns the schema of the first records: of a MiB, or of a thousand. Raises CorruptInput; ConfigError for a
    wanted column that none of them has, or of a type that features do not have."""
    kinds: dict[str, str] = {}
    lists: set[str] = set()
    looked = 0
    with DecompressedStream(store, object, codec) as source:
        for number, (record, sound) in enumerate(framed(source)):
            looked += len(record)
            if number >= _SAMPLED_RECORDS or (looked > BLOCK_BYTES and kinds):
                break
            for name, feature in (_features(record) if sound else {}).items():
                kind = feature.WhichOneof("kind") or ""
                kinds[name] = kinds.get(name) or kind
                if kind and len(getattr(feature, kind).value) > 1:
                    lists.add(name)
    found = {name: _TYPES.get(kinds[name], pa.null()) for name in sorted(kinds)}
    found = {name: pa.list_(type) if name in lists else type for name, type in found.items()}
    for name, type in (wanted or {}).items():
        if name not in found:
            raise missing_column(object.uri, name, found)
        if type is not None and feature_type(type) is None:
            raise ConfigError(f"column {name!r} is declared as {type}, which cannot be read from a tf.train.Example")
    if wanted is None:
        return pa.schema(list(found.items()))
    return pa.schema([(name, type or found[name]) for name, type in wanted.items()])


def read_tfrecords(
    store: Store, object: Object, codec: Codec | None, schema: pa.Schema, on_bad_row: OnBadRow
) -> Iterator[pa.Table]:
    """Yields the rows, a block at a time. A record whose checksum is wrong, that is no Example, or does not fit the
    schema is a bad row. Raises CorruptInput for a file that cannot be read on."""
    columns = [_Column(field) for field in schema]
    block = _Block(columns, all_nullable(schema), on_bad_row)
    with DecompressedStream(store, object, codec) as source:
        for number, (record, sound) in enumerate(framed(source), 1):
            if not sound:
                on_bad_row(RejectedRow(number, "the checksum of the record is wrong", record))
                continue
            block.take(number, record)
            if block.full:
                yield from block.tables()
    yield from block.tables()


class _Misfit(Exception):
    """A feature does not fit its column; the message is the reason."""


class _Column:
    """One column of the held schema: takes its values out of features."""

    def __init__(self, field: pa.Field) -> None:
        self.name = field.name
        self.required = not field.nullable
        self.type = field.type
        self._list = is_list(field.type)
        self._base = feature_type(field.type)

    def value(self, features: Mapping[str, Any]) -> Any:
        """Returns the value that a row has. Raises _Misfit."""
        feature = features.get(self.name)
        kind = None if feature is None else feature.WhichOneof("kind")
        values = () if kind is None else getattr(feature, kind).value
        if kind is not None and (values or self._list) and _TYPES[kind] != self._base:
            raise _Misfit(f"column {self.name!r} has a {kind}, expected {self.type}")
        if len(values) > 1 and not self._list:
            raise _Misfit(f"column {self.name!r} has {len(values):,} values, expected one {self.type}")
        if self.required and (kind is None if self._list else not values):
            raise _Misfit(f"column {self.name!r} is null")
        return (None if kind is None else list(values)) if self._list else next(iter(values), None)

    def array(self, values: list[Any]) -> pa.Array:
        """Returns values as an array. Raises _Misfit for what its type cannot hold."""
        try:
            return pa.array(values, self.type)
        except (pa.ArrowException, OverflowError):
            raise _Misfit(f"column {self.name!r} has a value that {self.type} cannot hold") from None


class _Block:
    """Rows on their way into a table."""

    def __init__(self, columns: list[_Column], schema: pa.Schema, on_bad_row: OnBadRow) -> None:
        self._columns, self._schema, self._on_bad_row = columns, schema, on_bad_row
        self._rows: list[tuple[int, bytes, list[Any]]] = []
        self._bytes = 0

    @property
    def full(self) -> bool:
        return self._bytes >= BLOCK_BYTES or len(self._rows) >= _BLOCK_RECORDS

    def take(self, number: int, record: bytes) -> None:
        """Takes a record, or hands it on as a bad row."""
        features = _features(record)
        try:
            if not features and len(record) > 2:
                raise _Misfit(_NO_EXAMPLE)
            self._rows.append((number, record, [column.value(features) for column in self._columns]))
            self._bytes += len(record)
        except _Misfit as misfit:
            self._on_bad_row(RejectedRow(number, str(misfit), record))

    def tables(self) -> Iterator[pa.Table]:
        """Yields the rows as a table, if there are any, and begins anew."""
        rows, self._rows, self._bytes = self._rows, [], 0
        try:
            arrays = self._arrays(rows)
        except _Misfit:
            rows = [row for row in rows if self._fits(row)]
            arrays = self._arrays(rows)
        if rows:
            yield pa.Table.from_arrays(arrays, schema=self._schema)

    def _arrays(self, rows: list[tuple[int, bytes, list[Any]]]) -> list[pa.Array]:
        return [column.array([values[at] for _, _, values in rows]) for at, column in enumerate(self._columns)]

    def _fits(self, row: tuple[int, bytes, list[Any]]) -> bool:
        try:
            self._arrays([row])
        except _Misfit as misfit:
            self._on_bad_row(RejectedRow(row[0], str(misfit), row[1]))
            return False
        return True


def _features(record: bytes) -> Mapping[str, Any]:
    """Returns the features of an Example by name; none of what is none."""
    try:
        features: Mapping[str, Any] = example_class().FromString(record).features.feature
    except Exception:  # noqa: BLE001 - DecodeError, which is imported with the parser
        return {}
    return features
