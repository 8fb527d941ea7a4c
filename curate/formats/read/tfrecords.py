"""TFRecord files: a row for each `tf.train.Example`, a column for each feature.

A feature is a list of bytes, of 32-bit floats or of 64-bit integers. Where it has at most one value in each of the
first records, its column has the value; else lists. One that a record does not have is null there. Features have no
order: columns are in the order of their names. A schema that is declared may say text for bytes, and other numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from curate.arrow.types import is_list, is_text
from curate.errors import ConfigError
from curate.formats.file_slice import FileSlice
from curate.formats.read.gathered import Gathered
from curate.formats.read.json_schema import missing_column
from curate.objects.bad_line import OnBadRow
from curate.objects.stream import BLOCK_BYTES
from curate.objects.tf_example import WRONG_CHECKSUM, example_class, framed

_TYPES = {"bytes_list": pa.binary(), "float_list": pa.float32(), "int64_list": pa.int64()}
_SAMPLED_RECORDS = 1000
_EMPTY_BYTES = 2
"""Of an Example that says that it has no features."""


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


def sample_tfrecords(file: FileSlice, wanted: Mapping[str, pa.DataType | None] | None) -> pa.Schema:
    """Returns the schema of the first records: of a MiB, or of a thousand. Raises CorruptInput; ConfigError for a
    wanted column that none of them has, or of a type that features do not have."""
    kinds: dict[str, str] = {}
    lists: set[str] = set()
    looked = 0
    with file.open() as source:
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
            raise missing_column(file.uri, name, found)
        if type is not None and feature_type(type) is None:
            raise ConfigError(f"column {name!r} is declared as {type}, which cannot be read from a tf.train.Example")
    if wanted is None:
        return pa.schema(list(found.items()))
    return pa.schema([(name, type or found[name]) for name, type in wanted.items()])


def read_tfrecords(file: FileSlice, schema: pa.Schema, on_bad_row: OnBadRow) -> Iterator[pa.Table]:
    """Yields the rows, a block at a time. A record whose checksum is wrong, that is no Example, or does not fit the
    schema is a bad row; so is one with a feature that has no column, if all are read. Raises CorruptInput for a file
    that cannot be read on."""
    columns = [_Column(field) for field in schema]
    names = set(schema.names)
    gathered = Gathered(schema, [column.array for column in columns], on_bad_row)
    with file.open() as source:
        for number, (record, sound) in enumerate(framed(source), 1):
            if not sound:
                yield from gathered.reject(number, WRONG_CHECKSUM, record)
                continue
            features = _features(record)
            try:
                if not features and len(record) > _EMPTY_BYTES:
                    raise _Misfit("not a tf.train.Example")
                if file.encoding.all_read and (more := set(features) - names):
                    raise _Misfit(f"it has a feature {min(more)!r}, unlike the first records: declare schema=")
                values = [column.value(features) for column in columns]
            except _Misfit as misfit:
                taken = gathered.reject(number, str(misfit), record)
            else:
                taken = gathered.add(number, record, values, len(record))
            yield from taken
    yield from gathered.rest()


class _Misfit(Exception):
    """A feature does not fit its column; the message is the reason."""


class _Column:
    """One column of the held schema: takes its values out of features."""

    def __init__(self, field: pa.Field) -> None:
        self.name = field.name
        self.type = field.type
        self._list = is_list(field.type)
        self._base = feature_type(field.type)

    def value(self, features: Mapping[str, Any]) -> Any:
        """Returns the value that a row has. Raises _Misfit."""
        feature = features.get(self.name)
        kind = None if feature is None else feature.WhichOneof("kind")
        if kind is None:
            return None
        values = getattr(feature, kind).value
        if (values or self._list) and _TYPES[kind] != self._base:
            raise _Misfit(f"column {self.name!r} has a {kind}, expected {self.type}")
        if len(values) > 1 and not self._list:
            raise _Misfit(f"column {self.name!r} has several values, expected one {self.type}: declare a list")
        return list(values) if self._list else next(iter(values), None)

    def array(self, values: Sequence[Any], misfits: dict[int, str]) -> pa.Array:
        """Returns values as an array; those that its type cannot hold are null there, and added to `misfits`."""
        try:
            return pa.array(values, self.type)
        except (pa.ArrowException, OverflowError):
            if len(values) == 1:
                misfits.setdefault(0, f"column {self.name!r} has a value that {self.type} cannot hold")
                return pa.nulls(1, self.type)
        fitting = []
        for at, value in enumerate(values):
            one: dict[int, str] = {}
            fitting += self.array([value], one).to_pylist()
            if one:
                misfits.setdefault(at, one[0])
        return pa.array(fitting, self.type)


def _features(record: bytes) -> Mapping[str, Any]:
    """Returns the features of an Example by name; none of what is none."""
    try:
        features: Mapping[str, Any] = example_class().FromString(record).features.feature
    except Exception:  # noqa: BLE001 - DecodeError, which is imported with the parser
        return {}
    return features
