"""The identity of tables, columns and expressions of Arrow, pandas and polars, and of arrays of objects: by content."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Any

import pyarrow as pa

_ARROW = pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table
_OTHERS = ("pandas", "polars")
"""Libraries whose tables and columns are known to give all of their content, time and again."""
_PYTHON = b"PLPYFN"
"""What a function begins with in an expression of polars."""
_PARTS = {
    ("string", "Template"): ("template",),
    ("_struct", "Struct"): ("format",),
    ("_regex", "Pattern"): ("pattern", "flags", "named_lists"),
    ("decimal", "Context"): ("prec", "rounding", "Emin", "Emax", "capitals", "clamp"),
    ("pandas", "Interval"): ("left", "right", "closed"),
}
"""Attributes of values of libraries, by the names of their classes: most programs have none of these."""
_EXPRESSION = ("pyarrow._compute", "Expression")
"""By its name: to import pyarrow.compute takes time of each program."""


def table_text(value: Any) -> str:
    """Returns a text that stands for a table, a column or an expression, the same in every process; empty for another
    value, and for one whose content is none of Arrow, as a column of objects of Python."""
    cls = type(value)
    if (cls.__module__, cls.__qualname__) == _EXPRESSION:  # whose own text leaves out most of a long list
        serialized: pa.Buffer = value.__reduce__()[1][0]
        return f"Expression {_digest(serialized)}"
    if not issubclass(cls, _ARROW) and cls.__module__.partition(".")[0] not in _OTHERS:
        return ""
    try:
        table = _table(value)
    except Exception:  # noqa: BLE001 - whatever a library raises for values that are none of Arrow
        return ""
    if table is None:
        return ""
    # Names of libraries and their versions are in the metadata.
    table = table.combine_chunks().replace_schema_metadata(None)
    columns = [
        pa.chunked_array([_plain(one, is_arrow=issubclass(cls, _ARROW)) for one in column.chunks], column.type)
        for column in table.columns
    ]
    plain = pa.table(columns, table.schema)
    with pa.BufferOutputStream() as sink:
        with pa.ipc.new_stream(sink, plain.schema) as writer:
            writer.write_table(plain)
        return f"{cls.__qualname__} {_kind(value)}{table.num_rows} x {table.num_columns} {_digest(sink.getvalue())}"


def parts_of(value: Any) -> Any:
    """Returns what decides a value of a library's that never changes, as a network or a template; None of others, whose
    class, as one of the user's that is derived from these, may decide it, too."""
    cls = type(value)
    if cls is memoryview:
        with suppress(ValueError):  # released
            return [value.format, value.shape, value.tobytes()]
    if issubclass(cls, BaseException) and cls.__module__ == "builtins":
        return list(value.__reduce__()[1:])
    if cls.__module__ == "pyarrow._compute" and hasattr(cls, "serialize"):  # options of functions
        value = value.serialize()
    if type(value) is pa.Buffer:
        return value.to_pybytes()
    if cls.__module__ == "polars.expr.expr":
        serialized = value.meta.serialize()
        # Functions of Python are pickled, with the paths of their files.
        return None if _PYTHON in serialized else serialized
    if cls.__module__ == "ipaddress" or cls.__module__ == "polars.datatypes.classes":
        return str(value)
    names = _PARTS.get((cls.__module__, cls.__qualname__))
    return None if names is None else [getattr(value, name) for name in names]


def _plain(array: pa.Array, *, is_arrow: bool) -> pa.Array:
    """Returns an array with the bits that one made of its values has: a part of another one has those beside it, too,
    and one of Arrow whatever lies where there is no value; what others convert has the same there each time."""
    kind = array.type
    is_flat = not (pa.types.is_nested(kind) or pa.types.is_boolean(kind) or pa.types.is_dictionary(kind))
    if len(array) == 0 or (is_flat and not array.null_count and not array.offset):
        return array
    try:
        return array.take(pa.array(range(len(array)))) if is_arrow else pa.concat_arrays([array[:1], array[1:]])
    except pa.ArrowNotImplementedError:
        return array


def _table(value: Any) -> pa.Table | None:
    """Returns what a table or a column has as a table of Arrow; None of other objects of these libraries."""
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return pa.table([value], names=[""])
    if isinstance(value, pa.RecordBatch):
        return pa.Table.from_batches([value])
    if hasattr(type(value), "to_frame"):  # which keeps the index of a column of pandas
        value = value.to_frame()
    if not hasattr(type(value), "__arrow_c_stream__"):
        return None
    # Of objects polars gives the addresses.
    return None if any("Object" in str(one) for one in getattr(value, "dtypes", ())) else pa.table(value)


def _kind(value: Any) -> str:
    """Returns what of a table of pandas is in no column: how its rows are numbered."""
    index: Any = getattr(value, "index", None) if type(value).__module__.partition(".")[0] == "pandas" else None
    return f"{index.start}:{index.stop}:{index.step} " if hasattr(type(index), "start") else ""


def _digest(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
