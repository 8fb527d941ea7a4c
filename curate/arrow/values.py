"""Converts values of user code to Arrow arrays exactly: to a type that can hold each of them, or not at all.

`pa.array` alone is not exact: with a type it turns 0.5 into 0, "abc" into the list ["a", "b", "c"], cuts fractions of a
second and leaves out keys that a struct does not have; without one it takes "b" beside b"a" for bytes, a time of day
off a date, True for 1.0, and nanoseconds off a timestamp. So the Python types of a column are looked at first, level
by level, and what Arrow may round is compared with what was given.

What fits a type: a whole number a decimal or a float that has it; text, bytes, dictionaries, lists and (sorted) sets
any way of storing them; anything a dictionary or a run-end encoding of it; an array of numpy what has its element type.

Long because every kind of Python value is a case of its own, and all of them are decided in one place.
"""

from __future__ import annotations

import datetime
import decimal
import math
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from curate.arrow.recast import Misfit, list_array, recast, tensor_shape
from curate.arrow.types import contains, is_binary, is_encoded, is_list, is_text, with_children

Values = Sequence[Any] | np.ndarray[Any, Any]

_REFUSED = (pa.ArrowException, OverflowError, TypeError, ValueError, AttributeError)
"""What Arrow raises, and Python below it, for values that do not fit."""


def fitted(values: Values, type: pa.DataType) -> pa.Array | None:
    """Returns values as an array of `type`; None if it does not hold each of them exactly.

    >>> fitted([1, None], pa.int8()).to_pylist()
    [1, None]
    >>> fitted([0.5], pa.int8()), fitted(["ab"], pa.list_(pa.string())), fitted([0.1], pa.float32())
    (None, None, None)
    """
    try:
        return _array(values, type)
    except (Misfit, *_REFUSED):
        return None


def rounded(values: Values, type: pa.DataType) -> pa.Array | None:
    """Returns values as an array of a type that was declared: as `fitted`, but numbers become the nearest floats.

    >>> rounded([0.1, 1], pa.float32()).to_pylist(), rounded([0.5], pa.int8()), rounded([1e300], pa.float32())
    ([0.10000000149011612, 1.0], None, None)
    """
    array = fitted(values, type)
    if array is not None or not contains(type, pt.is_floating):
        return array
    wide = fitted(values, _with_doubles(type))
    if wide is None:
        return None
    try:
        made = wide.cast(type)
    except pa.ArrowException:
        return None
    return made if _infinite(made) == _infinite(wide) else None


def _with_doubles(type: pa.DataType) -> pa.DataType:
    return pa.float64() if pt.is_floating(type) else with_children(type, _with_doubles)


def _infinite(array: pa.Array) -> int:
    while is_list(array.type):
        array = array.flatten()
    if pt.is_map(array.type):
        return _infinite(array.items)
    if pt.is_struct(array.type):
        return sum(map(_infinite, array.flatten()))
    return pc.sum(pc.is_inf(array)).as_py() or 0 if pt.is_floating(array.type) else 0


def inferred(values: Values) -> pa.Array:
    """Returns values as an array of the type that they have in common. Raises Misfit if there is none.

    >>> inferred([2**63, 1]).type, inferred([1, 0.5]).type, inferred([np.ones((2, 2), np.uint8)]).type
    (DataType(uint64), DataType(double), ListType(list<item: list<item: uint8>>))
    """
    try:
        return _array(values, None)
    except _REFUSED as error:
        raise Misfit(str(error)) from error


def clash(values: Sequence[Any]) -> tuple[int | None, int, str]:
    """Returns which two values that cannot be inferred together are the first ones, and why; the earlier is None where
    the later has no type alone."""
    low, high = 0, len(values)
    while high - low > 1:  # values[:low] have a type, values[:high] have none
        middle = (low + high) // 2
        low, high = (middle, high) if _problem(values[:middle]) is None else (low, middle)
    last = high - 1
    alone = _problem([values[last]])
    if alone is not None:
        return None, last, alone
    for first in range(last):
        both = _problem([values[first], values[last]])
        if both is not None:
            return first, last, both
    return 0, last, _problem(values[:high]) or "they have no common type"


def _problem(values: Sequence[Any]) -> str | None:
    try:
        inferred(values)
    except Misfit as misfit:
        return str(misfit)
    return None


# What Python calls values


@lru_cache(maxsize=1024)
def _family(kind: Any) -> str:
    """Returns what values of a Python type are, as far as Arrow is concerned."""
    if kind.__name__ in ("NAType", "NaTType"):  # those of pandas, which nobody has to have imported
        return "none"
    return next((family for family, kinds in _FAMILIES if issubclass(kind, kinds)), kind.__name__)


_FAMILIES: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("none", (type(None),)),
    ("bool", (bool, np.bool_)),
    ("int", (int,)),
    ("delta64", (np.timedelta64,)),  # a whole number to numpy
    ("int", (np.integer,)),
    ("float", (float, np.float16, np.float32)),
    ("str", (str,)),
    ("bytes", (bytes, bytearray, memoryview)),
    ("decimal", (decimal.Decimal,)),
    ("datetime", (datetime.datetime,)),
    ("date", (datetime.date,)),
    ("time", (datetime.time,)),
    ("timedelta", (datetime.timedelta,)),
    ("time64", (np.datetime64,)),
    ("interval", (pa.MonthDayNano,)),
    ("uuid", (uuid.UUID,)),
    ("scalar", (pa.Scalar,)),
    ("dict", (Mapping,)),
    ("list", (list, tuple, np.ndarray, AbstractSet, pa.Array, pa.ChunkedArray)),
)


def _plain(values: Values) -> tuple[list[Any], set[str]]:
    """Returns values, those that are missing as None, and the families of the others."""
    found: list[Any] = values if isinstance(values, list) else list(values)
    kinds: set[Any] = set(map(type, found))
    families = {_family(kind) for kind in kinds}
    if "scalar" in families or np.ndarray in kinds or any(issubclass(kind, set | frozenset) for kind in kinds):
        found = [_bare(value) for value in found]
        kinds = set(map(type, found))
        families = {_family(kind) for kind in kinds}
    missing = {kind for kind in kinds if _family(kind) == "none"}
    if missing - {type(None)}:
        found = [None if type(value) in missing else value for value in found]
    return found, families - {"none"}


def _bare(value: Any) -> Any:
    if isinstance(value, set | frozenset):  # whose own order is another one in each process
        return sorted(value, key=lambda one: (one is not None, one))
    number = isinstance(value, np.ndarray) and not value.ndim
    return value.as_py() if isinstance(value, pa.Scalar) else value.item() if number else value


# Arrays


def _array(values: Values, type: pa.DataType | None) -> pa.Array:
    if isinstance(values, np.ndarray) and values.dtype != object:
        return recast(of_numpy(values), type)
    found, families = _plain(values)
    if type is None:
        return _by_family(found, families)
    return _of_type(found, families, type)


def of_numpy(values: np.ndarray[Any, Any]) -> pa.Array:
    """Returns an array of numpy, not of objects, as one of Arrow: lists of lists where it has several dimensions.
    Raises ValueError for a text of what are no characters."""
    if values.ndim > 1:
        return _nested(of_numpy(np.ravel(values)), values.shape)  # a matrix stays one when it is reshaped
    kind = values.dtype.kind
    if kind == "U" and values.nbytes:
        codes = np.ascontiguousarray(values, values.dtype.newbyteorder("=")).view("u4")
        if codes.max() > sys.maxunicode:  # numpy does not look
            raise ValueError(f"{codes.max():#x} is not a character")
    if kind in "US":
        # Arrow takes each text to end at its first NUL.
        return pa.array(values.tolist(), pa.string() if kind == "U" else pa.binary())
    return pa.array(values)


def _nested(flat: pa.Array, shape: Sequence[int]) -> pa.Array:
    """Returns values as lists of lists of a shape, the first of which is how many there are: also of nothing."""
    for at in range(len(shape) - 1, 0, -1):
        count, size = math.prod(shape[:at]), shape[at]
        flat = pa.ListArray.from_arrays(pa.array(np.arange(count + 1) * size, pa.int32()), flat)
    return flat


def _by_family(values: list[Any], families: set[str]) -> pa.Array:
    """Returns an array of values of these families; raises Misfit if they have no common type."""
    if families == {"list"}:
        return _lists(values, None)
    if families == {"dict"}:
        return _structs(values, None)
    if families == {"datetime"}:
        return pa.array(values, _timestamp(values))
    if families == {"timedelta"}:
        return pa.array(values, pa.duration("ns" if _has_nanoseconds(values) else "us"))
    if families == {"int"}:
        try:
            return pa.array(values)
        except OverflowError:
            return pa.array(values, pa.uint64())
    if len(families) > 1 and families not in ({"int", "float"}, {"int", "decimal"}):
        raise Misfit(f"{' and '.join(sorted(families))} have no common type")
    return pa.array(values)


def _timestamp(values: list[Any]) -> pa.DataType:
    zones = {None if value.tzinfo is None else str(value.tzinfo) for value in values if value is not None}
    if len(zones) > 1 and None in zones:
        raise Misfit("times with a time zone and without have no common type")
    unit = "ns" if _has_nanoseconds(values) else "us"
    if zones == {None}:
        return pa.timestamp(unit)
    # Of several zones none is everybody's: the instants are kept.
    zone = next(value for value in values if value is not None).tzinfo if len(zones) == 1 else None
    return pa.timestamp(unit, "UTC" if zone is None else pa.lib.tzinfo_to_string(zone))


def _has_nanoseconds(values: list[Any]) -> bool:
    """Returns whether one of these is more exact than those of Python: pandas's own are."""
    return any(getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0) for value in values)


def _of_type(values: list[Any], families: set[str], type: pa.DataType) -> pa.Array:
    """Returns an array of a type; raises Misfit, or what Arrow raises, if it does not hold the values exactly."""
    if isinstance(type, pa.BaseExtensionType):
        return _extension(values, families, type)
    if is_encoded(type):
        return recast(_of_type(values, families, type.value_type), type)
    if pt.is_union(type):
        return _union(values, type)
    if not families:
        return pa.nulls(len(values), type)
    if is_list(type):
        return _lists(_only("list", values, families), type)
    if pt.is_map(type):
        return _maps(values, families, type)
    if pt.is_struct(type):
        return _structs(_only("dict", values, families), type)
    if not families <= _held(type):
        raise Misfit(f"{' and '.join(sorted(families))} does not fit {type}")
    if families & {"time64", "delta64"}:
        return recast(pa.array(values), type)
    array = pa.array(values, type)
    if pt.is_floating(type) and type.bit_width < 64:
        _refuse_change(pa.array(values, pa.float64()), array.cast(pa.float64()))
    elif pt.is_temporal(type):
        _refuse_other(values, array)
    return array


def _held(type: pa.DataType) -> set[str]:
    """Returns the families whose values a type without levels below it may hold."""
    for is_type, families in _HELD:
        if is_type(type):
            return families
    return set()


_HELD: tuple[tuple[Callable[[pa.DataType], bool], set[str]], ...] = (
    (pt.is_boolean, {"bool"}),
    (pt.is_integer, {"int"}),
    (pt.is_floating, {"float", "int"}),
    (pt.is_decimal, {"decimal", "int"}),
    (is_text, {"str"}),
    (is_binary, {"bytes"}),
    (pt.is_date, {"date"}),
    (pt.is_time, {"time"}),
    (pt.is_timestamp, {"datetime", "time64"}),
    (pt.is_duration, {"timedelta", "delta64"}),
    (pt.is_interval, {"interval"}),
)


def _refuse_change(before: pa.Array, after: pa.Array) -> None:
    """Raises Misfit unless numbers are the same, NaN among them."""
    same = pc.or_(pc.equal(before, after), pc.and_(pc.is_nan(before), pc.is_nan(after)))
    if pc.all(same).as_py() is False:
        raise Misfit("a number would be rounded")


def _refuse_other(values: list[Any], array: pa.Array) -> None:
    """Raises Misfit unless an array gives these values back."""
    zoned = pt.is_timestamp(array.type) and array.type.tz is not None
    for value, back in zip(values, array.to_pylist(), strict=True):
        if value is None:
            continue
        if value != back or (isinstance(value, datetime.datetime) and (value.tzinfo is not None) != zoned):
            raise Misfit(f"{value!r} is not a value of {array.type}")
        if isinstance(value, datetime.time) and value.tzinfo is not None:
            raise Misfit("a time of day has no time zone in Arrow")


def _only(family: str, values: list[Any], families: set[str]) -> list[Any]:
    if families != {family}:
        raise Misfit(f"{' and '.join(sorted(families))}, expected {family}")
    return values


# Levels


def _lists(values: list[Any], type: pa.DataType | None) -> pa.Array:
    if type is not None and pt.is_fixed_size_list(type):
        size = type.list_size
        if any(value is not None and len(value) != size for value in values):
            raise Misfit(f"a list is not of {size}")
        lengths = np.full(len(values), size)
        flat = _flat([[None] * size if value is None else value for value in values])
    else:
        lengths = np.array([0 if value is None else len(value) for value in values], np.int64)
        flat = _flat([value for value in values if value is not None])
    element = _array(flat, None if type is None else type.value_type)
    if type is None:
        type = pa.list_(element.type) if len(element) < 1 << 31 else pa.large_list(element.type)
    return list_array(element, lengths, pa.array([value is None for value in values], pa.bool_()), type)


def _flat(values: list[Any]) -> Values:
    """Returns the elements of lists one after the other: as an array, if they are arrays of one type of numbers."""
    if values and all(type(value) is np.ndarray for value in values):
        dtypes = {value.dtype for value in values}
        if len(dtypes) == 1 and object not in dtypes and all(value.ndim == 1 for value in values):
            return np.concatenate(values)
    return list(chain.from_iterable(values))


def _structs(values: list[Any], type: pa.DataType | None) -> pa.Array:
    present = [value for value in values if value is not None]
    names = dict.fromkeys(chain.from_iterable(present))
    if type is None:
        if any(not isinstance(name, str) for name in names):
            raise Misfit(f"the key {next(name for name in names if not isinstance(name, str))!r} is not text")
        fields: list[pa.Field] = [pa.field(name, pa.null()) for name in names]
    else:
        fields = list(type.fields)
        if names.keys() - {field.name for field in fields}:
            raise Misfit("a key is not one of the fields")
    if not fields:
        return pa.array([None if value is None else {} for value in values], type or pa.struct([]))
    children = [
        _array([None if value is None else value.get(field.name) for value in values], type and field.type)
        for field in fields
    ]
    if type is None:
        fields = [field.with_type(child.type) for field, child in zip(fields, children, strict=True)]
    mask = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def _maps(values: list[Any], families: set[str], type: pa.DataType) -> pa.Array:
    if not families <= {"list", "dict"}:
        raise Misfit(f"{' and '.join(sorted(families))} does not fit {type}")
    pairs = [
        [] if value is None else list(value.items()) if isinstance(value, Mapping) else list(value) for value in values
    ]
    flat = list(chain.from_iterable(pairs))
    if any(not isinstance(pair, tuple | list) or len(pair) != 2 or pair[0] is None for pair in flat):
        raise Misfit(f"not pairs of key and value, as expected by {type}")
    keys = _array([key for key, _ in flat], type.key_type)
    items = _array([item for _, item in flat], type.item_type)
    offsets = pa.array(np.concatenate([[0], np.cumsum([len(one) for one in pairs])]), pa.int32())
    mask = pa.array([value is None for value in values], pa.bool_())
    return pa.MapArray.from_arrays(offsets, keys, items, type=type, mask=mask)


def _extension(values: list[Any], families: set[str], type: pa.DataType) -> pa.Array:
    match type:
        case pa.FixedShapeTensorType():
            stored: Values = _tensors(values, type)
        case pa.UuidType():
            stored = [None if value is None else value.bytes for value in _only_or_none("uuid", values, families)]
        case pa.Bool8Type():
            stored = [None if value is None else int(value) for value in _only_or_none("bool", values, families)]
        case _:
            stored = values
    return pa.ExtensionArray.from_storage(type, _array(stored, type.storage_type))


def _only_or_none(family: str, values: list[Any], families: set[str]) -> list[Any]:
    return _only(family, values, families) if families else values


def _tensors(values: list[Any], type: pa.FixedShapeTensorType) -> list[Any]:
    shape, order = tensor_shape(type)
    back = np.argsort(order)
    stored: list[Any] = []
    for value in values:
        if value is not None and np.shape(value) != shape:
            raise Misfit(f"{np.shape(value)} is not the shape {shape}")
        array = None if value is None else value if isinstance(value, np.ndarray) else np.array(value, dtype=object)
        stored.append(None if array is None else array.transpose(back).reshape(-1))
    return stored


def _union(values: list[Any], type: pa.DataType) -> pa.Array:
    """Returns values each as the first type of a union that holds it."""
    children: list[list[Any]] = [[] for _ in range(type.num_fields)]
    which, at = [], []
    for value in values:
        number = next((n for n in range(type.num_fields) if fitted([value], type.field(n).type) is not None), None)
        if number is None:
            raise Misfit(f"{value!r:.60} does not fit {type}")
        which.append(type.type_codes[number])
        at.append(len(children[number]))
        children[number].append(value)
        if type.mode == "sparse":
            for other in children[:number] + children[number + 1 :]:
                other.append(None)
    made = [_array(child, type.field(n).type) for n, child in enumerate(children)]
    names = [type.field(n).name for n in range(type.num_fields)]
    codes = pa.array(which, pa.int8())
    if type.mode == "sparse":
        array = pa.UnionArray.from_sparse(codes, made, names, type.type_codes)
    else:
        array = pa.UnionArray.from_dense(codes, pa.array(at, pa.int32()), made, names, type.type_codes)
    if not array.type.equals(type):
        raise Misfit(f"{array.type} is not {type}")
    return array
