"""Converts arrays to another type that stores the same values in another way, texts to what they say, times to texts,
and columns to values of Python; says which conversions exist."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from curate.arrow.types import contains, is_binary, is_encoded, is_list, is_list_view, is_text, viewless_type

_DAY = "1970-01-01 "
_INFINITY = "(?i)^[+-]?inf"
_MOMENT = "%Y-%m-%dT%H:%M:%S"
_ZONES_OF_MINUTES = datetime.datetime(1973, 1, 1, tzinfo=datetime.UTC)
_YEAR_0, _YEAR_10000 = -719_528, 2_932_897
"""In days since 1970."""
_A_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}


class Misfit(Exception):
    """Values do not fit a type, or have none in common; the message is the reason."""


def recast(array: pa.Array, type: pa.DataType | None, *, wider: bool = False) -> pa.Array:
    """Returns an array as a type which the same values are stored as in another way; raises Misfit for any other type.
    If `wider`, what is not nested is cast, whatever it is.

    The same: text of any offsets, bytes of any, dictionaries, run-end encodings and extensions of them, instants of a
    time zone that came without it (as numpy has them), days that came as milliseconds, lists of these.
    """
    if type is None or array.type.equals(type):
        return array
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pt.is_dictionary(array.type):
        return recast(array.dictionary_decode(), type, wider=wider)
    if pt.is_run_end_encoded(array.type):
        return recast(pc.run_end_decode(array), type, wider=wider)
    if isinstance(type, pa.BaseExtensionType):
        return _extended(array, type)
    if pt.is_dictionary(type):
        encoded = recast(array, type.value_type, wider=wider).dictionary_encode()
        return pa.DictionaryArray.from_arrays(
            encoded.indices.cast(type.index_type), encoded.dictionary, ordered=type.ordered
        )
    if pt.is_run_end_encoded(type):
        return pc.run_end_encode(recast(array, type.value_type, wider=wider), run_end_type=type.run_end_type)
    if pt.is_null(array.type):
        return pa.nulls(len(array), type)
    if is_list(array.type) and is_list(type):
        return _recast_lists(array, type, wider)
    if pt.is_struct(array.type) and pt.is_struct(type) and array.type.names == type.names:
        fields = [recast(field, to.type, wider=wider) for field, to in zip(array.flatten(), type.fields, strict=True)]
        return pa.StructArray.from_arrays(fields, fields=type.fields, mask=array.is_null())
    if pt.is_map(array.type) and pt.is_map(type):
        return _recast_map(array, type, wider)
    same = (
        (is_text(array.type) and is_text(type))
        or (is_binary(array.type) and is_binary(type))
        or (pt.is_timestamp(array.type) and pt.is_timestamp(type) and array.type == pa.timestamp(type.unit))
        or (pt.is_timestamp(array.type) and pt.is_timestamp(type) and array.type == pa.timestamp("ns", type.tz))
    )
    if same or wider:
        return array.cast(type)
    if pt.is_date64(type) and array.type == pa.timestamp("ms"):
        days = array.cast(type)
        if not days.cast(array.type).equals(array):
            raise Misfit("not whole days")
        return days
    raise Misfit(f"{array.type} is not {type}")


def _recast_lists(array: pa.Array, type: pa.DataType, wider: bool) -> pa.Array:
    if pt.is_fixed_size_list(type) and pt.is_fixed_size_list(array.type) and array.type.list_size == type.list_size:
        # What lies under its nulls is there as well.
        element = array.values.slice(array.offset * type.list_size, len(array) * type.list_size)
        return sized_lists(recast(element, type.value_type, wider=wider), type, len(array), array.is_null())
    lengths_of = pc.list_value_length(array)
    if pt.is_fixed_size_list(type) and (array.null_count or (lengths_of.to_numpy() != type.list_size).any()):
        raise Misfit(f"a list is not of {type.list_size}")
    lengths = lengths_of.fill_null(0).to_numpy(zero_copy_only=False)
    return list_array(recast(array.flatten(), type.value_type, wider=wider), lengths, array.is_null(), type)


def _recast_map(array: pa.Array, type: pa.DataType, wider: bool) -> pa.Array:
    start, stop = array.offsets[0].as_py(), array.offsets[-1].as_py()
    keys = recast(array.keys.slice(start, stop - start), type.key_type, wider=wider)
    items = recast(array.items.slice(start, stop - start), type.item_type, wider=wider)
    return pa.MapArray.from_arrays(pc.subtract(array.offsets, start), keys, items, type=type, mask=array.is_null())


def _extended(array: pa.Array, type: pa.DataType) -> pa.Array:
    match type:
        case pa.FixedShapeTensorType():
            shape, order = tensor_shape(type)
            stack, flat = [], array
            while pt.is_list(flat.type) and not flat.null_count:
                lengths = np.unique(flat.value_lengths().to_numpy())
                stack.append(int(lengths[0]) if len(lengths) == 1 else -1)
                flat = flat.flatten()
            if tuple(stack) != shape or not flat.type.equals(type.value_type):
                raise Misfit(f"{array.type} of {stack} is not {type}")
            back = np.argsort(order) + 1
            numbers = flat.to_numpy(zero_copy_only=False).reshape(len(array), *shape).transpose(0, *back).reshape(-1)
            stored = sized_lists(pa.array(numbers, type.value_type), type.storage_type, len(array))
        case pa.Bool8Type() if pt.is_boolean(array.type):
            stored = array.cast(pa.int8())
        case _:
            stored = recast(array, type.storage_type)
    return pa.ExtensionArray.from_storage(type, stored)


def decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column of a dictionary, or of runs, as its values; any other column as it is."""
    if not is_encoded(column.type):
        return column
    decode = pa.DictionaryArray.dictionary_decode if pt.is_dictionary(column.type) else pc.run_end_decode
    return pa.chunked_array(map(decode, column.chunks), column.type.value_type)


def without_views(table: pa.Table) -> pa.Table:
    """Returns a table with plain texts, bytes and lists instead of views of them: Arrow has few functions of views."""
    for at, field in enumerate(table.schema):
        plain = viewless_type(field.type)
        if not plain.equals(field.type):
            column = pa.chunked_array([recast(chunk, plain) for chunk in table.column(at).chunks], plain)
            table = table.set_column(at, field.with_type(plain), column)
    return table


def list_array(element: pa.Array, lengths: np.ndarray[Any, Any], mask: pa.Array, type: pa.DataType) -> pa.Array:
    """Returns lists of a type: of these lengths, of the elements one after the other, null where the mask is true."""
    if pt.is_fixed_size_list(type):
        return sized_lists(element, type, len(lengths), mask)
    ends = np.cumsum(lengths)
    offset_type = pa.int64() if pt.is_large_list(type) or pt.is_large_list_view(type) else pa.int32()
    if is_list_view(type):
        view = pa.ListViewArray if pt.is_list_view(type) else pa.LargeListViewArray
        offsets, sizes = pa.array(ends - lengths, offset_type), pa.array(lengths, offset_type)
        return view.from_arrays(offsets, sizes, element, type=type, mask=mask)
    offsets = pa.array(np.concatenate([[0], ends]), offset_type)
    made = pa.LargeListArray if pt.is_large_list(type) else pa.ListArray
    return made.from_arrays(offsets, element, type=type, mask=mask)


def sized_lists(element: pa.Array, type: pa.DataType, count: int, mask: pa.Array | None = None) -> pa.Array:
    """Returns `count` lists of one size, null where the mask is true. Arrow divides by that size: of 0, it crashes."""
    if type.list_size:
        return pa.FixedSizeListArray.from_arrays(element, type=type, mask=mask)
    return pa.array([[]] * count if mask is None else [None if null else [] for null in mask.to_pylist()], type)


def tensor_shape(type: pa.FixedShapeTensorType) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the shape of tensors as they are meant, and the order of their dimensions as they are stored."""
    order = tuple(type.permutation or range(len(type.shape)))
    return tuple(type.shape[axis] for axis in order), order


def from_text(texts: Any, type: pa.DataType) -> Any:
    """Returns texts, an array or a chunked one, as values of a type. Raises ArrowInvalid for one that is none;
    ArrowNotImplementedError for a type whose values have no text."""
    if pt.is_dictionary(type):
        values = from_text(texts, type.value_type)
        return pc.dictionary_encode(values).cast(type)
    if pt.is_time(type):
        # Arrow reads dates with times, and no times alone.
        return pc.binary_join_element_wise(_DAY, texts, "").cast(pa.timestamp("ns")).cast(type)
    if pt.is_duration(type):
        return texts.cast(pa.int64()).cast(type)
    if pt.is_null(type):
        if texts.null_count < len(texts):
            raise pa.ArrowInvalid("not null")
        return pa.chunked_array([pa.nulls(len(texts))]) if isinstance(texts, pa.ChunkedArray) else pa.nulls(len(texts))
    values = texts.cast(type)
    if pt.is_floating(type):
        # Arrow reads a number that is too large as infinity.
        named = pc.match_substring_regex(texts.filter(pc.is_inf(values)), _INFINITY)
        if pc.any(pc.invert(named)).as_py():
            raise pa.ArrowInvalid(f"out of the range of {type}")
    return values


def from_count(count: int, type: pa.DataType) -> pa.Scalar:
    """Returns a whole number as a decimal, or as what is so many units from 1970, or midnight. Raises ArrowInvalid or
    OverflowError for what the type does not have.

    >>> from_count(5, pa.decimal128(3, 2)).as_py(), from_count(1, pa.date32()).as_py()
    (Decimal('5.00'), datetime.date(1970, 1, 2))
    """
    if pt.is_decimal(type):
        # Not a cast of the number: it asks for room for all numbers of 64 bits.
        return from_text(pa.array([str(count)]), type)[0]
    day = _A_DAY.get("ms" if pt.is_date64(type) else getattr(type, "unit", ""), 86_400_000_000_000)
    if (pt.is_time(type) and not 0 <= count < day) or (pt.is_date64(type) and count % day):
        raise pa.ArrowInvalid(f"{count} does not fit {type}")
    return pa.array([count], pa.int32() if type.bit_width == 32 else pa.int64()).view(type)[0]


def has_text(type: pa.DataType) -> bool:
    """Returns whether `from_text` gives values of a type."""
    try:
        from_text(pa.array([], pa.string()), type)
    except pa.ArrowException:
        return False
    return True


# To text


class BeyondText(Exception):
    """A date or an instant has no text that is read; the message is what a column has, and what to do."""


def is_told_as_text(type: pa.DataType) -> bool:
    """Returns whether values of a type become texts, or counts, in JSON. Python has no nanoseconds, and no dates of all
    years; `orjson` writes no durations, and leaves out the zero that the microseconds of a time of day begin with:
    0.064 s is 0.64 s."""
    return bool(pt.is_temporal(type) and not pt.is_interval(type))


def beyond_text(array: pa.Array) -> pa.BooleanArray:
    """Returns for each date or instant whether its year is before 0 or after 9999. Of those no text is read, and from
    32768 on the text that Arrow has is of another year, which may have four digits."""
    type = array.type
    if pt.is_timestamp(type) and type.unit == "ns":
        return pc.and_(array.is_valid(), False)
    day = 1 if pt.is_date32(type) else _A_DAY["ms" if pt.is_date64(type) else type.unit]
    counts = array.view(pa.int32() if pt.is_date32(type) else pa.int64())
    return pc.or_(pc.less(counts, _YEAR_0 * day), pc.greater_equal(counts, _YEAR_10000 * day)).fill_null(False)


def refuse_beyond_text(array: pa.Array, format: str) -> None:
    """Raises BeyondText for dates or instants whose years have no text in a format; not for those within others."""
    if not (pt.is_date(array.type) or pt.is_timestamp(array.type)):
        return
    beyond = beyond_text(array)
    if pc.any(beyond).as_py():
        raise BeyondText(
            f"has {_counts(array.filter(beyond))[0]}, which {format} cannot store: it has years from 0 to 9999; cast "
            f"the column to int{array.type.bit_width}, make such values null, or write parquet"
        )


def texts_of(array: pa.Array, exact: bool) -> pa.Array:
    """Returns an array for JSON: its times and dates as text, and its durations as counts, at whatever depth.

    Of a date or an instant that no text is read of, its count from 1970 with its unit; if `exact`, raises BeyondText.
    """
    type = array.type
    if pt.is_date(type) or pt.is_timestamp(type):
        if exact:
            refuse_beyond_text(array, "JSON lines")
        beyond = beyond_text(array)
        if not pc.any(beyond).as_py():
            return _moments(array)
        return pc.if_else(beyond, _counts(array), _moments(pc.if_else(beyond, pa.scalar(None, type), array)))
    if pt.is_time64(type):
        return array.cast(pa.string())
    if pt.is_time32(type):
        return pa.array([None if one is None else one.isoformat() for one in array.to_pylist()], pa.string())
    if pt.is_duration(type):
        return array.cast(pa.int64())
    if not contains(type, is_told_as_text):
        return array
    if pt.is_struct(type):
        children = [texts_of(child, exact) for child in array.flatten()]
        return pa.StructArray.from_arrays(children, [field.name for field in type], mask=array.is_null())
    pairs = pt.is_map(type)
    if pairs:
        entry = pa.struct([pa.field("key", type.key_type, nullable=False), type.item_field])
        array = array.cast(pa.list_(entry))
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths.cast(pa.int32()))])
    if pairs:
        keys, items = array.flatten().flatten()
        return pa.MapArray.from_arrays(offsets, keys, texts_of(items, exact), mask=array.is_null())
    return pa.ListArray.from_arrays(offsets, texts_of(array.flatten(), exact), mask=array.is_null())


def _counts(array: pa.Array) -> pa.Array:
    """Returns how far dates and instants are from 1970, as texts with the unit."""
    type = array.type
    unit = type.unit if pt.is_timestamp(type) else "ms" if pt.is_date64(type) else "days"
    counts = array.view(pa.int32() if pt.is_date32(type) else pa.int64())
    return pc.binary_join_element_wise(counts.cast(pa.string()), f"{unit} from 1970", " ")


def _moments(array: pa.Array) -> pa.Array:
    """Returns dates and instants as texts."""
    type = array.type
    if pt.is_date(type):
        return array.cast(pa.string())
    texts = pc.strftime(array, format=_MOMENT + ("%z" if type.tz else ""))
    if type.tz is None:
        return texts
    # Before zones were kept to minutes, their offset has seconds, for which there is not text.
    utc = array.cast(pa.timestamp(type.unit, "UTC"))
    early = pc.less(utc, pa.scalar(_ZONES_OF_MINUTES, utc.type))
    # Of years with five digits there is text, but none that is read: UTC may still be in the year before.
    return pc.if_else(pc.or_(early, pc.starts_with(texts, "10000-")), pc.strftime(utc, format=f"{_MOMENT}%z"), texts)


def is_of_pandas(type: pa.DataType) -> bool:
    """Returns whether a type is pandas' own, of periods or intervals."""
    return getattr(type, "extension_name", "").startswith("pandas.")


def values_of(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Returns the values of a column as Python has them; of types that are pandas' own as pandas has them: a period is
    no number, and an interval says which of its ends are in it."""
    if not is_of_pandas(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    valid = column.is_valid().to_pylist()
    return [one if there else None for one, there in zip(column.to_pandas(), valid, strict=True)]


def dictionaries(names: Sequence[str], columns: Sequence[list[Any]]) -> list[dict[str, Any]]:
    """Returns columns of values, all of one length, as rows.

    >>> dictionaries(["id", "text"], [[1, 2], ["a", "b"]])
    [{'id': 1, 'text': 'a'}, {'id': 2, 'text': 'b'}]
    """
    if not 0 < len(names) <= _MOST_WRITTEN_OUT:
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return _written_out(len(names))(columns, *names)


_MOST_WRITTEN_OUT = 100


@lru_cache(maxsize=_MOST_WRITTEN_OUT)
def _written_out(count: int) -> Callable[..., list[dict[str, Any]]]:
    """Returns the function that makes dictionaries of so many columns and their names, which takes a third of the time
    of `dict(zip(names, row))` (of 6 columns: 0.2 us a row, and 0.58). Its source is the same whatever the names are."""
    names = ", ".join(f"n{number}" for number in range(count))
    values = ", ".join(f"v{number}" for number in range(count))
    row = ", ".join(f"n{number}: v{number}" for number in range(count))
    source = f"lambda columns, {names}: [{{{row}}} for {values}, in zip(*columns, strict=True)]"
    made: Callable[..., list[dict[str, Any]]] = eval(source)
    return made


def python_value(value: pa.Scalar) -> Any:
    """Returns a value as Python has it; as the text that Arrow prints, one that Python has none for: times and spans
    that its types do not reach, or of a zone that it does not know, and texts that are not UTF-8.

    >>> python_value(pa.scalar(7)), python_value(pa.scalar(2**39, pa.timestamp("s")))
    (7, '19391-01-25 12:18:08')
    """
    try:
        return value.as_py()
    except (ValueError, OverflowError, KeyError):
        if is_encoded(value.type) or isinstance(value.type, pa.BaseExtensionType):
            return python_value(value.value)
        # Without the brackets of a column.
        return pa.repeat(value, 1).to_string(skip_new_lines=True)[1:-1]
