"""The identity of tables, columns and expressions of Arrow, pandas and polars, and of arrays of objects: by content."""

from __future__ import annotations

import gc
import hashlib
import sys
import threading
import types
import weakref
from contextlib import suppress
from typing import Any, get_args, get_origin

import pyarrow as pa

from curate.code.kinds import is_a, own_dict

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
    ("pydantic.fields", "FieldInfo"): ("_attributes_set", "metadata"),
    ("pydantic.type_adapter", "TypeAdapter"): ("_type", "_config"),
    ("pandas", "Interval"): ("left", "right", "closed"),
}
"""Attributes of values of libraries, by the names of their classes: most programs have none of these."""
_NEVER_SAME = frozenset(
    [
        "_hashlib",
        "_queue",
        "_thread",
        "asyncio",
        "concurrent",
        "logging",
        "multiprocessing",
        "queue",
        "socket",
        "subprocess",
        "threading",
    ]
)
"""Modules of objects of which each process has its own, which say what happens now, and of those that tell nothing."""
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
    if (args := args_of(value)) is not None:
        return args
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


def inside(value: Any) -> list[Any] | None:
    """Returns what an object of Python's own libraries or of numpy is made of, as pickle would send it or as it refers
    to it; None of others, which may hold moments and addresses, and where neither tells all."""
    if is_a(value, threading.local):
        return [dict(own_dict(value))]
    cls = type(value)
    root, _, rest = cls.__module__.partition(".")
    if (root not in sys.stdlib_module_names and root != "numpy") or root in _NEVER_SAME or rest == "robotparser":
        return None
    if is_a(value, weakref.ref | types.CellType):
        return gc.get_referents(value) if is_a(value, types.CellType) else [value()]
    try:
        return [one for one in value.__reduce_ex__(4) if not isinstance(one, str)]
    except Exception:  # noqa: BLE001 - a class may raise what it likes
        parts = gc.get_referents(value) if not own_dict(value) else []
        return [one for one in parts if not is_a(one, types.CodeType) and one is not cls] or None


def args_of(kind: Any) -> list[Any] | None:
    """Returns what a type with others in it, as `list[int]` or `Literal["a"]`, is made of; None of other values."""
    if not (is_a(kind, types.GenericAlias | types.UnionType) or type(kind).__module__ == "typing"):
        return None
    if (of := get_origin(kind)) is not None:
        return [of, *get_args(kind)]
    names = ("_name", "__name__", "__forward_arg__", "__bound__", "__constraints__", "__supertype__")
    return [getattr(kind, name) for name in names if hasattr(kind, name)]


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
