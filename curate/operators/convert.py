"""Converts tables to the types of user code (rows, numpy arrays, pandas data frames), and results back to tables.

    table ──▶ rows        {"id": 1, "image": array of 2 x 2 x 3}     ──▶ function ──▶ gathered ──▶ table
    table ──▶ to_numpy    {"id": array, "image": array of n x 2 x 2 x 3}  ──▶ …   ──▶ to_table ──▶ table
    table ──▶ to_pandas   data frame, of pandas.ArrowDtype

A column that comes back under its name has the type that it had, if each value fits it exactly (see
`curate.arrow.values`); else its type is inferred. An array of numpy, or a series, says its type itself: one of the
type that it was given as becomes what the column was, any other one stays what it is.

Numbers that are null are NaN in numpy, of one bit pattern that indexing and arithmetic keep (as NA of R is one): it
comes back as null, and any other NaN as NaN. Whole numbers beside nulls are floats, and whole numbers again when all
are; where a float would round one of them, they are objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from curate.arrow.batches import kept, with_room
from curate.arrow.groups import one_chunk
from curate.arrow.recast import Misfit, decoded, dictionaries, is_of_pandas, recast, tensor_shape, values_of
from curate.arrow.types import contains, is_encoded, is_list, is_list_view, is_text, is_text_or_binary, value_type
from curate.arrow.unknown import filled, is_known
from curate.arrow.values import clash, fitted, inferred, rounded
from curate.errors import ConfigError, SchemaMismatch, did_you_mean
from curate.imports import imported, need
from curate.units import is_name

FORMATS = ("pyarrow", "numpy", "pandas")
"""What batches are handed to user code as."""
_EXACT_FLOAT = 2**53
"""Up to which every whole number is a float."""
_NULLS = {2: np.uint16(0x7F1D), 4: np.uint32(0x7FE3A000), 8: np.uint64(0x7FFC740000000000)}
"""The NaN that stands for null, by bytes of a float: a float of more bytes has the same."""
_SIGNS = {2: np.uint16(0x7FFF), 4: np.uint32(0x7FFFFFFF), 8: np.uint64(0x7FFFFFFFFFFFFFFF)}
"""All bits but the sign, which a minus changes."""


def check_format(batch_format: str) -> None:
    """Raises ConfigError for a format of batches that there is not, or that needs what is not installed."""
    if batch_format not in FORMATS:
        raise ConfigError(
            f"no batch_format {batch_format!r}{did_you_mean(str(batch_format), FORMATS)}; "
            f"there are {', '.join(FORMATS)}{' (the default of ray.data is numpy)' * (batch_format == 'default')}"
        )
    if batch_format == "pandas":
        need("pandas", "batch_format='pandas' needs pandas", "pandas")


def is_data_frame(value: Any) -> bool:
    """Returns whether a value is a data frame of pandas, which nobody has to have imported."""
    pandas = imported("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame)


# To user code


def formatted(table: pa.Table, batch_format: str) -> Any:
    """Returns a table in a format of batches. Raises SchemaMismatch for values that it cannot hold."""
    match batch_format:
        case "numpy":
            return to_numpy(table)
        case "pandas":
            return to_pandas(table)
        case _:
            return table


def rows(table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Returns rows as dictionaries of Python's values; tensors are arrays of their shape.

    Raises SchemaMismatch for values that Python's types do not hold, such as nanoseconds of a time of day.
    """
    if not table.num_columns:
        return [{} for _ in range(table.num_rows)]
    names = table.schema.names
    columns = [_objects(name, column) for name, column in zip(names, table.columns, strict=True)]
    return dictionaries(names, columns)


def _objects(name: str, column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Returns the values of a column as Python has them. Raises SchemaMismatch if it does not."""
    try:
        if isinstance(column.type, pa.FixedShapeTensorType):
            return _tensors(column)
        values = values_of(column)
        if contains(column.type, _is_cut) and not one_chunk(column).equals(fitted(values, column.type)):
            raise ValueError("some would be cut")
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise SchemaMismatch(
            f"column {name!r} is {column.type}, with values that Python cannot represent exactly ({error}); cast it "
            "first with with_column, or use Arrow batches (batch_format='pyarrow')"
        ) from error
    return values


def _is_cut(type: pa.DataType) -> bool:
    """Returns whether Python's values of a type, or of one with it inside, may be less than it has."""
    return bool(type == pa.time64("ns") or pt.is_date64(type)) or (
        isinstance(type, pa.BaseExtensionType) and not isinstance(type, pa.UuidType | pa.Bool8Type | pa.JsonType)
    )


def _tensors(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    array = one_chunk(column)
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    there = iter(_stacked(array if valid.all() else array.drop_null()))
    return [next(there) if one else None for one in valid]


def _stacked(array: pa.FixedShapeTensorArray) -> np.ndarray[Any, Any]:
    """Returns tensors, of which none is null, as one array."""
    type = array.type
    _, order = tensor_shape(type)
    flat = array.storage.flatten()
    numbers = _of_objects(flat.to_pylist()) if flat.null_count else flat.to_numpy(zero_copy_only=False)
    return numbers.reshape(len(array), *type.shape).transpose(0, *(axis + 1 for axis in order))


def to_numpy(table: pa.Table) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the columns as arrays, tensors with their shape; of nulls as the module says.

    What numpy has no type for are objects: what `rows` gives, lists as arrays. Raises SchemaMismatch as `rows` does.
    """
    return {name: _numpy(name, table[name]) for name in table.column_names}


def _numpy(name: str, column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    type = column.type
    if is_encoded(type):
        return _numpy(name, decoded(column))
    nulls = column.null_count
    if isinstance(type, pa.FixedShapeTensorType) and not nulls:
        return _stacked(one_chunk(column))
    if pt.is_integer(type) and nulls:
        ends = pc.min_max(column).as_py()
        if ends["min"] is not None and max(-ends["min"], ends["max"]) > _EXACT_FLOAT:
            return _of_objects(column.to_pylist())
        return _nulled(column.cast(pa.float64()))
    if pt.is_floating(type) and nulls:
        return _nulled(column)
    if is_list(type):
        array = one_chunk(column)
        if _is_plain(array):
            lists: np.ndarray[Any, Any] = array.to_numpy(zero_copy_only=False)
            return lists
        return _of_objects([_as_array(value) for value in _objects(name, column)])
    if pt.is_time(type) or pt.is_nested(type) or pt.is_interval(type) or isinstance(type, pa.BaseExtensionType):
        return _of_objects(_objects(name, column))
    found: np.ndarray[Any, Any] = column.to_numpy()
    return found


def _nulled(column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    """Returns floats, nulls as the NaN that stands for them."""
    numbers = np.array(column.to_numpy())
    bits = numbers.view(f"u{numbers.itemsize}")
    bits[column.is_null().to_numpy()] = _NULLS[numbers.itemsize]
    return numbers


def _is_plain(array: pa.Array) -> bool:
    """Returns whether Arrow makes arrays of lists that have all that there is."""
    while is_list(array.type):
        if is_list_view(array.type):
            return False  # of a slice, Arrow takes other values
        if pt.is_fixed_size_list(array.type) and array.null_count:
            return False  # what lies under its nulls would count
        array = array.flatten()
    type = array.type
    if is_text_or_binary(type):
        return value_type(type).equals(type) and not pt.is_fixed_size_binary(type)  # of these Arrow makes no arrays
    return not array.null_count and (
        pt.is_integer(type)
        or pt.is_floating(type)
        or pt.is_boolean(type)
        or pt.is_timestamp(type)
        or pt.is_duration(type)
        or pt.is_date32(type)
    )


def _as_array(value: Any) -> Any:
    return _of_objects([_as_array(one) for one in value]) if isinstance(value, list) else value


def _of_objects(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Returns an array of objects, of one dimension whatever they are."""
    found = np.empty(len(values), object)
    found[:] = values if not any(isinstance(one, np.ndarray | list | tuple) for one in values) else [*values]
    return found


def to_pandas(table: pa.Table) -> Any:
    """Returns a data frame whose columns are those of the table, not copies: of pandas.ArrowDtype, so that numbers stay
    what they are beside nulls. Runs are values, dictionaries of texts and numbers become categories (not floats with
    NaN or both zeros); extension types, tensors among them, and columns of nothing but nulls are objects, as in
    `rows`."""
    import pandas as pd

    def is_object(type: pa.DataType) -> bool:
        return (isinstance(type, pa.BaseExtensionType) and not is_of_pandas(type)) or pt.is_null(type)

    def dtype(type: pa.DataType) -> Any:
        return None if _is_category(type) or is_of_pandas(type) else pd.ArrowDtype(type)

    plain = table
    for at, field in enumerate(table.schema):
        if is_object(field.type):
            plain = plain.set_column(at, field.name, pa.nulls(table.num_rows, pa.bool_()))
        elif pt.is_run_end_encoded(field.type):
            plain = plain.set_column(at, field.name, decoded(table.column(at)))
        elif _is_category(field.type) and not all(map(_is_index, table.column(at).chunks)):
            values = decoded(table.column(at))
            plain = plain.set_column(
                at, field.name, values if pt.is_floating(values.type) else values.dictionary_encode()
            )
    frame = plain.to_pandas(types_mapper=dtype)
    for field in table.schema:
        if is_object(field.type):
            frame[field.name] = pd.Series(_of_objects(_objects(field.name, table[field.name])), dtype=object)
    return frame


def _is_category(type: pa.DataType) -> bool:
    if not pt.is_dictionary(type):
        return False
    value = type.value_type
    return bool(is_text(value) or pt.is_integer(value) or pt.is_floating(value) or pt.is_boolean(value))


def _is_index(array: pa.DictionaryArray) -> bool:
    """Returns whether pandas takes the values of a dictionary for categories: no null or NaN, none twice (0 and -0)."""
    values = array.dictionary
    if values.null_count or not pt.is_floating(values.type):
        return not values.null_count and len(values.unique()) == len(values)
    numbers = values.to_numpy(zero_copy_only=False)
    return len(np.unique(numbers[numbers == numbers])) == len(numbers)


# From user code, which returned it, or gave it. Errors begin with `where`: "map(f) returned", "from_items was given".


def returned(where: str, value: Any) -> str:
    """Returns what user code returned, for an error: by its type, and as a mistake where it is nothing.

    >>> returned("map(f) returned", 1), returned("map(f) returned", None)
    ('map(f) returned int', 'map(f) returned NoneType (is a `return` missing?)')
    """
    return f"{where} {type(value).__name__}{' (is a `return` missing?)' if value is None else ''}"


def to_table(where: str, value: Any, before: pa.Table | None = None) -> pa.Table:
    """Returns what user code made of a batch as a table; `before` is the batch. Raises TypeError, SchemaMismatch."""
    if isinstance(value, pa.RecordBatch):
        value = pa.Table.from_batches([value])
    elif isinstance(value, Mapping):
        value = from_columns(where, value, before)
    elif is_data_frame(value):
        value = from_pandas(where, value, before)
    if not isinstance(value, pa.Table):
        raise TypeError(
            f"{returned(where, value)}, expected a pyarrow.Table, a dictionary of columns, a data frame "
            "of pandas, or an iterator of them"
        )
    names = value.column_names
    if not names:
        raise SchemaMismatch(f"{where} no columns; for no rows, return the columns without any, as batch[:0]")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SchemaMismatch(f"{where} {names.count(twice)} columns called {twice!r}; rename one")
    return with_room(kept(value.replace_schema_metadata(None), before), None if before is None else before.schema)


def rows_to_table(
    where: str, rows: Sequence[Mapping[str, Any]], before: pa.Schema | None = None, declared: pa.Schema | None = None
) -> pa.Table:
    """Returns rows as a table; `before` is the schema of the rows that they were made of, `declared` that which they
    are to have: floats of Python become the nearest of its floats.

    Columns come in the order of the first row. Raises SchemaMismatch for rows of other keys, or of none, a key that is
    no text, and values without a common type.
    """
    names = list(rows[0])
    values_of_all = _values(where, names, rows)
    if not names:
        raise SchemaMismatch(f"{where} a row without a key; put at least one key in every row")
    _check_names(where, names)
    types = {} if before is None else {field.name: field.type for field in before}
    wanted = {} if declared is None else {field.name: field.type for field in declared}
    columns = []
    for name, values in zip(names, values_of_all, strict=True):
        column = rounded(values, wanted[name]) if name in wanted else None
        columns.append(column_of(where, name, values, types.get(name)) if column is None else column)
    return pa.table(columns, names=names)


def _values(where: str, names: list[str], rows: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Returns the values of rows, by key. Raises SchemaMismatch for rows of other keys."""
    # Of plain dictionaries as many keys, among them all names, are the same keys: no set of them is made for each row.
    if set(map(type, rows)) == {dict} and set(map(len, rows)) == {len(names)}:
        with suppress(KeyError):
            return [list(map(itemgetter(name), rows)) for name in names]
    for row in rows:
        if row.keys() != rows[0].keys():
            raise SchemaMismatch(
                f"{where} a row with the keys {sorted(map(str, row))} after one with "
                f"{sorted(map(str, names))}; put all keys in every row, with None for missing values"
            )
    return [[row[name] for row in rows] for name in names]


def column_of(where: str, name: str, values: Sequence[Any], type: pa.DataType | None = None) -> pa.Array:
    """Returns values as a column, of `type` if it holds each exactly. Raises SchemaMismatch if no type holds all."""
    if type is not None and (kept := fitted(values, type)) is not None:
        return kept
    try:
        array = inferred(values)
    except Misfit as misfit:
        raise SchemaMismatch(f"{where} column {name!r} {_clash(list(values), str(misfit))}") from None
    if type is not None and not is_known(array.type):
        # What was empty or null in all rows says nothing about its type; what the column was before does.
        refitted = fitted(values, filled(array.type, type))
        return array if refitted is None else refitted
    return array


def _clash(values: list[Any], reason: str) -> str:
    first, last, reason = clash(values) if values else (None, -1, reason)
    if first is None:
        told = "" if last < 0 else f" {values[last]!r:.100} (row {last} of the batch)"
        return (
            f"a value that Arrow has no type for:{told}: {reason}; use numbers, text, times, lists, dictionaries or "
            "None"
        )
    return (
        f"values that do not fit one type: {values[first]!r:.100} (row {first} of the batch) and {values[last]!r:.100} "
        f"(row {last}): {reason}; use values of one type, such as float(value) or str(value) for all of them"
    )


def _check_names(where: str, names: Iterable[Any]) -> None:
    for name in names:
        if not is_name(name):
            told = "which is not text" + " that UTF-8 has" * isinstance(name, str)
            raise SchemaMismatch(f"{where} the key {name!r:.80}, {told}; name columns by text: str(key)")


def from_columns(where: str, columns: Mapping[str, Any], before: pa.Table | None = None) -> pa.Table:
    """Returns columns (arrays of numpy or Arrow, series, lists) as a table; `before` is the batch that they were made
    of. Raises SchemaMismatch for unequal lengths, and what is no column."""
    _check_names(where, columns)
    made: dict[str, Any] = {}
    known = {} if before is None else dict(zip(before.column_names, before.columns, strict=True))
    for name, values in columns.items():
        try:
            made[name] = _returned(where, name, values, known.get(name))
        except (Misfit, pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SchemaMismatch(f"{where} a column {name!r} that is not a list of values: {error}") from None
    lengths = {name: len(values) for name, values in made.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name!r} has {n}" for name, n in lengths.items())
        raise SchemaMismatch(f"{where} columns of different lengths: {told} rows; expected equal lengths")
    return pa.table(made)


def _returned(where: str, name: str, values: Any, before: pa.ChunkedArray | None) -> Any:
    """Returns a column that was `before`, if it is not a new one."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if isinstance(values, str | bytes | Mapping | set | frozenset):
        raise SchemaMismatch(f"{where} a column {name!r} that is not a list of values: {values!r:.40}")
    type = None if before is None else before.type
    if isinstance(values, np.ndarray) and values.dtype != object:
        values = values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))
        if values.dtype.kind == "f" and values.ndim == 1 and not isinstance(values, np.ma.MaskedArray):
            return _of_floats(values, before)
        return _kept(inferred(values), type)
    pandas = imported("pandas")
    if pandas is not None and isinstance(values, pandas.Series | pandas.Index):
        return _of_series(where, name, values, type)
    return column_of(where, name, list(values), type)


def _kept(array: pa.Array, type: pa.DataType | None) -> pa.Array:
    """Returns an array as `type`, if that is what it was made of; else as it is."""
    try:
        return recast(array, type)
    except (Misfit, pa.ArrowException):
        return array


def _of_floats(values: np.ndarray[Any, Any], before: pa.ChunkedArray | None) -> pa.Array:
    """Returns floats as a column: whole numbers again, if they are floats for their nulls alone."""
    size = values.itemsize
    null = np.zeros(len(values), bool)
    if size in _NULLS and np.isnan(values).any():
        bits = np.ascontiguousarray(values).view(f"u{size}")
        null = (bits & _SIGNS[size]) == _NULLS[size]
    array = pa.array(values, mask=null)
    if before is None:
        return array
    type = before.type
    given = decoded(before)
    if pt.is_integer(given.type) and given.null_count and size == 8:
        try:
            # Raises for a fraction, NaN, and what is out of range.
            return _kept(array.cast(given.type), type)
        except pa.ArrowException:
            return array
    return _kept(array, type)


def from_pandas(where: str, frame: Any, before: pa.Table | None = None) -> pa.Table:
    """Returns a data frame as a table, without its index; `before` is the batch that it was made of. Raises
    SchemaMismatch for values of no common type."""
    names = [str(name) for name in frame.columns]
    made = []
    types = {} if before is None else {field.name: field.type for field in before.schema}
    for name, (_, series) in zip(names, frame.items(), strict=True):
        try:
            made.append(_of_series(where, name, series, types.get(name)))
        except (Misfit, pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SchemaMismatch(
                f"{where} column {name!r} of {series.dtype}, which Arrow does not have: {error}; convert it "
                "first, as in frame['a'].astype('float64') or .astype(str)"
            ) from None
    return pa.table(made, names=names)


def _of_series(where: str, name: str, series: Any, type: pa.DataType | None) -> pa.Array:
    if series.dtype == object:
        return column_of(where, name, [None if _is_missing(value) else value for value in series], type)
    own = series.copy() if isinstance(series.dtype, np.dtype) else series  # lent, and not writeable in the frame alone
    return _kept(one_chunk(pa.array(own, from_pandas=True)), type)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)
