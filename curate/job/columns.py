"""The columns that a job reads: names, names with Arrow types, or fields."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

import pyarrow as pa

from curate.errors import ConfigError

_ARROW_OF = {str: "pa.string()", int: "pa.int64()", float: "pa.float64()", bool: "pa.bool_()", bytes: "pa.binary()"}
"""What someone who wrote a Python type meant."""


def parse_columns(owner: str, columns: Any) -> tuple[dict[str, pa.DataType | None] | None, frozenset[str]]:
    """Returns the types by name, None where the type is inferred, and the names in which a null is a bad row.

    `columns` are names, a mapping of names to types or fields, fields, or a schema; None, all columns, gives None.
    A field that is not nullable makes a null in its column a bad row. Raises ConfigError naming what is wrong.
    """
    if columns is None:
        return None, frozenset()
    types: dict[str, pa.DataType | None] = {}
    required: set[str] = set()
    for name, kind in _pairs(owner, columns):
        if not isinstance(name, str):
            raise ConfigError(f"{owner}.columns names {name!r}, expected names of columns, as text")
        if isinstance(kind, pa.Field):
            if kind.name != name:
                raise ConfigError(f"{owner}.columns[{name!r}] is a field called {kind.name!r}; one of them is a slip")
            if not kind.nullable:
                required.add(name)
            kind = kind.type
        if kind is not None and not isinstance(kind, pa.DataType):
            hint = f", such as {_ARROW_OF[kind]}" if isinstance(kind, type) and kind in _ARROW_OF else ""
            raise ConfigError(
                f"{owner}.columns[{name!r}] is {kind!r}, expected a pyarrow type{hint}, or None to infer it"
            )
        if name in types and types[name] != kind:
            raise ConfigError(f"{owner}.columns has {name!r} twice, as {types[name]} and as {kind}")
        types[name] = kind
    if not types:
        raise ConfigError(f"{owner}.columns is empty, so there would be nothing to read; None reads all columns")
    return types, frozenset(required)


def column_text(name: str, kind: pa.DataType | None, required: Container[str]) -> str:
    """Returns how a column is written in a job's identity.

    >>> column_text("id", None, ()), column_text("text", pa.string(), ("text",))
    ('id', 'text: string not null')
    """
    return name + ("" if kind is None else f": {kind}") + (" not null" if name in required else "")


def _pairs(owner: str, columns: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(columns, Mapping):
        return columns.items()
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise ConfigError(f"{owner}.columns is {columns!r}, expected a list of names, or names with types")
    return [(item.name, item) if isinstance(item, pa.Field) else (item, None) for item in columns]
