"""Parsed JSON values into Arrow arrays of a held type, strictly: what does not fit is a bad row, never a silent change.

`pa.array` alone is not strict: it turns 5.5 into 5, true into 1.0, "abc" into the list ["a", "b", "c"] and 1e300 into
an infinite float32. So the exact Python types of a column are looked at first, level by level (15 ns a value), and only
a column that passes goes to `pa.array` whole. One that does not is gone through value by value, to find the rows.

What fits: null always; a whole number written as a float (5.0) in an integer column; any number in a float column
(rounded to the nearest; of a column that nobody declared, no whole number that a float would round), and "NaN",
"Infinity" and "-Infinity", which JSON has no numbers for; ISO 8601 text or a count of the unit in a temporal column;
text or whole numbers in a decimal; base64 text in a binary column (that is how the JSONL writer writes it). Fields that
a struct does not hold are left out: `other_keys` says which.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from curate.arrow.recast import Misfit, from_count, from_text, recast
from curate.arrow.sizes import per_schema
from curate.arrow.types import contains, is_binary, is_list, is_text
from curate.arrow.unknown import rounds
from curate.objects.lines import json_of

JSON_TEXT = {b"curate:json": b"text"}
"""Metadata of a string field whose values are any JSON value, as its text."""

NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Numbers that JSON does not have, by their names in JavaScript and in Protocol Buffers' JSON."""

_NONE = type(None)
_TEXTS = frozenset({_NONE, str})
_EXACT_FLOAT = 2**53 - 1  # 2**53 may have been a larger number that was rounded


def json_text(field: pa.Field) -> bool:
    """Returns whether the field holds JSON text."""
    return JSON_TEXT.items() <= (field.metadata or {}).items()


@per_schema
def loads_for(schema: pa.Schema, typed: frozenset[str]) -> tuple[Callable[[bytes], Any], list[int]]:
    """Returns what parses JSON for a schema, and of which columns the numbers tell whether `json_of` would have made
    others of some: that takes longer, which counts where there are many rows."""
    fields = [(at, field) for at, field in enumerate(schema) if field.name not in typed]
    floats = [at for at, field in fields if field.type in (pa.float64(), pa.float32())]
    is_within = any(contains(field.type, pt.is_floating) for at, field in fields if at not in floats)
    if is_within or any(json_text(field) or contains(field.type, pt.is_decimal) for field in schema):
        return json_of, []
    return orjson.loads, floats


def has_beyond_64_bits(numbers: pa.Array) -> bool:
    """Returns whether a column of floats has one as large as whole numbers of more than 64 bits are.

    >>> has_beyond_64_bits(pa.array([1e18, None])), has_beyond_64_bits(pa.array([1.0, -1e19]))
    (False, True)
    """
    edges = pc.min_max(numbers)
    least, most = edges["min"].as_py(), edges["max"].as_py()
    return least is not None and max(-least, most) >= _BEYOND_64_BITS


_BEYOND_64_BITS = 2.0**63
"""Of whole numbers without a sign, orjson takes those twice as large as they are; floats of that size are rare."""


def readable(type: pa.DataType, nested: bool = False) -> bool:
    """Returns whether JSON values can be read as this type."""
    if pt.is_dictionary(type):
        return not nested and not pt.is_nested(type.value_type) and readable(type.value_type)
    if is_list(type):
        return readable(type.value_type, nested=True)
    if pt.is_struct(type):
        return type.num_fields > 0 and all(readable(field.type, nested=True) for field in type)
    if pt.is_map(type):
        return is_text(type.key_type) and readable(type.item_type, nested=True)
    if pt.is_boolean(type) or pt.is_integer(type) or pt.is_floating(type) or is_text(type) or pt.is_null(type):
        return True
    return bool((pt.is_temporal(type) and not pt.is_interval(type)) or pt.is_decimal(type) or is_binary(type))


@per_schema
def columns_of(schema: pa.Schema, typed: frozenset[str]) -> tuple[Column, ...]:
    """Returns the columns of a schema, of which somebody declared the type of some."""
    return tuple(Column(field, json_text(field), field.name in typed) for field in schema)


class Column:
    """One column of the held schema: takes its values out of parsed rows."""

    def __init__(self, field: pa.Field, json_text: bool = False, declared: bool = False) -> None:
        """Raises TypeError for a type that JSON values cannot be read as (see `readable`)."""
        self.name, self.type = field.name, field.type
        if not readable(field.type):
            raise TypeError(f"column {field.name!r}: JSON values cannot be read as {field.type}")
        self._rounds, self._narrow = declared, field.type in (pa.float32(), pa.float16())
        kinds = _flat_kinds(field.type)
        # Of whole numbers that become floats, each one is looked at.
        self._kinds = None if kinds is None or (float in kinds and not declared) else kinds
        self._array: Callable[[list[Any]], pa.Array]
        self._convert: Callable[[Any], Any]
        if json_text:
            self._array, self._convert = self._one_by_one, _text_of(self.name)
        elif pt.is_temporal(self.type) or pt.is_decimal(self.type) or is_binary(self.type):
            self._array, self._convert = self._texts, _parser(self.type, repr(self.name))
        else:
            self._array, self._convert = self._strict, _converter(self.type, self.name, declared)
        self.left_out = None if json_text else _left_out(self.type, self.name)
        """Returns the path of a key of a value that the type does not hold, or nothing; None: it holds all keys."""

    def build(self, values: list[Any], misfits: dict[int, str]) -> pa.Array:
        """Returns the values as an array. Positions that do not fit are null there, and added to `misfits`."""
        try:
            return self._array(values)
        except (Misfit, pa.ArrowException, OverflowError, TypeError):
            return _array_of(self._each(values, misfits), self.type)

    def _strict(self, values: list[Any]) -> pa.Array:
        kinds = self._kinds
        if not (_plain(values, self.type, self._rounds) if kinds is None else kinds.issuperset(map(_type_of, values))):
            raise Misfit
        array = pa.array(values, self.type)
        if self._narrow and pc.any(pc.is_inf(array)).as_py():
            raise Misfit
        return array

    def _texts(self, values: list[Any]) -> pa.Array:
        """Returns values that all are text, for the most part, as an array; else one by one."""
        if is_binary(self.type) or not _TEXTS.issuperset(map(_type_of, values)):
            return self._one_by_one(values)
        return from_text(pa.array(values, pa.string()), self.type)

    def _one_by_one(self, values: list[Any]) -> pa.Array:
        return _array_of([None if value is None else self._convert(value) for value in values], self.type)

    def _each(self, values: list[Any], misfits: dict[int, str]) -> list[Any]:
        converted = []
        for index, value in enumerate(values):
            try:
                converted.append(None if value is None else self._convert(value))
            except Misfit as misfit:
                converted.append(None)
                misfits.setdefault(index, str(misfit))
        return converted


def other_keys(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> tuple[int, list[str]]:
    """Returns how many rows have keys that no column holds, at any depth; and those of the first one: `b`, `a[].c`."""
    names = frozenset(column.name for column in columns)
    within = [(column.name, column.left_out) for column in columns if column.left_out is not None]
    others = [row for row in rows if not names.issuperset(row) or (within and any(_paths(within, row)))]
    first = others[0] if others else {}
    return len(others), [*(key for key in first if key not in names), *_paths(within, first)]


def _paths(within: Sequence[tuple[str, Callable[[Any], str]]], value: Mapping[str, Any]) -> Iterator[str]:
    return (path for name, look in within if (path := look(value.get(name))))


def _left_out(type: pa.DataType, path: str) -> Callable[[Any], str] | None:
    if is_list(type) or pt.is_map(type):
        look = _left_out(type.item_type if pt.is_map(type) else type.value_type, f"{path}[]")
        if look is None:
            return None

        def of_list(value: Any) -> str:
            items = value.values() if _type_of(value) is dict else value if _type_of(value) is list else ()
            return next(filter(None, map(look, items)), "")

        return of_list
    if not pt.is_struct(type):
        return None
    names = frozenset(field.name for field in type)
    within = [(field.name, look) for field in type if (look := _left_out(field.type, f"{path}.{field.name}"))]

    def of_struct(value: Any) -> str:
        if _type_of(value) is not dict:
            return ""  # null, or a misfit
        if names.issuperset(value):
            return next(_paths(within, value), "") if within else ""
        return f"{path}.{next(key for key in value if key not in names)}"

    return of_struct


def _array_of(values: list[Any], type: pa.DataType) -> pa.Array:
    if pt.is_dictionary(type):  # Arrow makes none of dates and the like out of values
        return recast(_array_of(values, type.value_type), type)
    return pa.array(values, type)


def _text_of(name: str) -> Callable[[Any], str]:
    def convert(value: Any) -> str:
        try:
            return orjson.dumps(value).decode()
        except TypeError as error:
            if "64-bit" in str(error):
                return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            # orjson writes 254 levels, but reads 1,024
            raise Misfit(f"column {name!r} is nested too deeply") from None

    return convert


def _flat_kinds(type: pa.DataType) -> frozenset[Any] | None:
    """Returns the Python types whose values fit a type without levels below it; None for any other type."""
    if pt.is_dictionary(type):
        return _flat_kinds(type.value_type)
    if is_text(type):
        return frozenset({_NONE, str})
    if pt.is_integer(type):
        return frozenset({_NONE, int})
    if pt.is_floating(type):
        return frozenset({_NONE, float, int})
    if pt.is_boolean(type):
        return frozenset({_NONE, bool})
    return None


def _plain(values: Sequence[Any], type: pa.DataType, rounding: bool) -> bool:
    """Returns whether `pa.array(values, type)` can be trusted to change nothing but ranges, which it checks."""
    flat = _flat_kinds(type)
    if flat is not None:
        kinds = set(map(_type_of, values))
        exact = rounding or int not in kinds or not pt.is_floating(type)
        return kinds <= flat and (exact or not any(_type_of(value) is int and rounds(value) for value in values))
    kinds = set(map(_type_of, values))
    kinds.discard(_NONE)
    if pt.is_dictionary(type):
        return _plain(values, type.value_type, rounding)
    if is_list(type):
        return kinds <= {list} and _plain(list(chain.from_iterable(v for v in values if v)), type.value_type, rounding)
    if pt.is_struct(type):
        if not kinds <= {dict}:
            return False
        present = [value for value in values if value is not None]
        return all(_plain([value.get(field.name) for value in present], field.type, rounding) for field in type)
    if pt.is_map(type):
        return kinds <= {dict} and _plain(
            list(chain.from_iterable(v.values() for v in values if v)), type.item_type, rounding
        )
    return not kinds


_type_of = type

_KINDS = {str: "string", bool: "boolean", int: "number", float: "number", list: "list", dict: "object"}


def _misfit(path: str, expected: str, value: Any) -> Misfit:
    return Misfit(f"column {path!r} is not {expected}: found {_KINDS[_type_of(value)]}")


def _converter(type: pa.DataType, path: str, rounding: bool) -> Callable[[Any], Any]:
    """Returns a function that takes one value that is not null and returns what `pa.array` takes, or raises Misfit."""
    if pt.is_dictionary(type):
        return _converter(type.value_type, path, rounding)
    if pt.is_integer(type):
        return _integer(type, path)
    if pt.is_floating(type):
        return _floating(type, path, rounding)
    if is_text(type):
        return _exactly(str, "a string", path)
    if pt.is_boolean(type):
        return _exactly(bool, "a boolean", path)
    if pt.is_struct(type):
        return _struct(type, path, rounding)
    if pt.is_map(type):
        return _map(type, path, rounding)
    if is_list(type):
        return _list(type, path, rounding)
    if not pt.is_null(type):
        return _parser(type, repr(path))

    def null(value: Any) -> Any:
        raise _misfit(path, "null", value)

    return null


def _exactly(kind: type, expected: str, path: str) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if _type_of(value) is kind:
            return value
        raise _misfit(path, expected, value)

    return convert


def _integer(type: pa.DataType, path: str) -> Callable[[Any], Any]:
    signed = pt.is_signed_integer(type)
    low = -(2 ** (type.bit_width - 1)) if signed else 0
    high = 2 ** (type.bit_width - 1 if signed else type.bit_width)

    def convert(value: Any) -> int:
        if _type_of(value) is float and low <= value < high:
            if not value.is_integer() or abs(value) > _EXACT_FLOAT:
                raise Misfit(f"column {path!r} is not an integer: found fraction")
            value = int(value)
        if _type_of(value) not in (int, float):
            raise _misfit(path, "an integer", value)
        if not low <= value < high:
            raise Misfit(f"column {path!r} is out of the range of {type}")
        return int(value)

    return convert


def _floating(type: pa.DataType, path: str, rounding: bool) -> Callable[[Any], Any]:
    limit = {16: 65504.0, 32: 3.4028234663852886e38}.get(type.bit_width)

    def convert(value: Any) -> float:
        if _type_of(value) is str and value in NOT_FINITE:
            return NOT_FINITE[value]
        if _type_of(value) not in (int, float):
            raise _misfit(path, "a number", value)
        if limit is not None and abs(value) > limit:
            raise Misfit(f"column {path!r} is out of the range of {type}")
        if not rounding and _type_of(value) is int and rounds(value):
            raise Misfit(f"column {path!r} is not {type}: digits of whole numbers would be lost, declare its type")
        return float(value)

    return convert


def _list(type: pa.DataType, path: str, rounding: bool) -> Callable[[Any], Any]:
    element = _converter(type.value_type, f"{path}[]", rounding)
    size = type.list_size if pt.is_fixed_size_list(type) else None

    def convert(value: Any) -> list[Any]:
        if _type_of(value) is not list:
            raise _misfit(path, "a list", value)
        if size is not None and len(value) != size:
            raise Misfit(f"column {path!r} is not a list of {size}")
        return [None if item is None else element(item) for item in value]

    return convert


def _struct(type: pa.DataType, path: str, rounding: bool) -> Callable[[Any], Any]:
    fields = [(field.name, _converter(field.type, f"{path}.{field.name}", rounding)) for field in type]

    def convert(value: Any) -> dict[str, Any]:
        if _type_of(value) is not dict:
            raise _misfit(path, "an object", value)
        return {name: None if (item := value.get(name)) is None else converter(item) for name, converter in fields}

    return convert


def _map(type: pa.DataType, path: str, rounding: bool) -> Callable[[Any], Any]:
    item_of = _converter(type.item_type, f"{path}[]", rounding)

    def convert(value: Any) -> list[tuple[str, Any]]:
        if _type_of(value) is not dict:
            raise _misfit(path, "an object", value)
        return [(key, None if item is None else item_of(item)) for key, item in value.items()]

    return convert


def _parser(type: pa.DataType, name: str) -> Callable[[Any], Any]:
    """Returns a function from a JSON value to that of a type that JSON does not have, as `pa.array` takes it."""

    def convert(value: Any) -> Any:
        if is_binary(type):
            if _type_of(value) is not str:
                raise Misfit(f"column {name} is not base64 text: found {_KINDS[_type_of(value)]}")
            try:
                data = base64.b64decode(value, validate=True)
            except (binascii.Error, ValueError):
                raise Misfit(f"column {name} is not base64 text") from None
            if pt.is_fixed_size_binary(type) and len(data) != type.byte_width:
                raise Misfit(f"column {name} is not base64 text of {type}")
            return data
        if _type_of(value) not in (str, int):
            raise Misfit(f"column {name} is not {type}: found {_KINDS[_type_of(value)]}")
        try:
            is_text = _type_of(value) is str
            parsed = from_text(pa.array([value]), type)[0] if is_text else from_count(value, type)
        except (pa.ArrowException, OverflowError):
            raise Misfit(f"column {name} is not {type}") from None
        # Within lists and structs Arrow takes counts of the unit, and no scalars of some types.
        return parsed.as_py() if pt.is_decimal(type) else parsed.value

    return convert
