"""pyarrow.compute expressions: applied to tables, checked against schemas, and which columns they read."""

from __future__ import annotations

import hashlib
import math
import pickle
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from curate.arrow.order import rows_where
from curate.arrow.schema import format_schema
from curate.arrow.unknown import empty
from curate.errors import ConfigError, did_you_mean

_NO_MATCH = re.compile(r"No match for FieldRef\.(?:Name\((.*?)\)|Nested\(FieldRef\.Name\((.*?)\).*?) in ", re.DOTALL)


_CALL = re.compile(r"(\w+)\(")
"""A function in the text of an expression."""


def project(table: pa.Table, expressions: Sequence[Any], names: Sequence[str]) -> pa.Table:
    """Returns a table of these expressions over `table`, row by row, in order."""
    import pyarrow.acero as acero  # 60 ms, which processes that need no expression need not wait

    return _run(table, acero.Declaration("project", acero.ProjectNodeOptions(list(expressions), list(names))))


def filter_by(table: pa.Table, expression: Any) -> pa.Table:
    """Returns the rows for which `expression` is true, in order; not those for which it is null."""
    import pyarrow.acero as acero

    try:
        return _run(table, acero.Declaration("filter", acero.FilterNodeOptions(expression)))
    except pa.ArrowNotImplementedError:  # of a column of views or runs, which is not looked at as well
        return rows_where(table, chosen_by(table, expression))


def chosen_by(table: pa.Table, expression: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Returns for each row whether `expression` is true of it, and not false or null."""
    chosen = project(table, [expression], ["chosen"])["chosen"]
    found: np.ndarray[Any, np.dtype[np.bool_]] = chosen.fill_null(False).to_numpy()
    return found


def _run(table: pa.Table, node: Any) -> pa.Table:
    import pyarrow.acero as acero

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    # One thread: several would hand the rows out in the order in which they are done with them.
    return acero.Declaration.from_sequence([source, node]).to_table(use_threads=False)


def type_of(expression: Any, schema: pa.Schema, where: str) -> pa.DataType:
    """Returns the type of an expression over rows of `schema`. Raises ConfigError if it has none.

    >>> type_of(pc.field("a") + 1, pa.schema([("a", pa.int64())]), "with_column('b')")
    DataType(int64)
    """
    try:
        return project(empty(schema), [expression], ["value"]).schema.field(0).type
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise ConfigError(f"{where}: {_problem(error, schema)}") from error


def _problem(error: Exception, schema: pa.Schema) -> str:
    found = _NO_MATCH.match(str(error))
    if found is None:
        return f"{error}; the rows have {format_schema(schema)}"
    name, *inside = re.findall(r"FieldRef\.Name\((.*?)\)", found[0])
    if inside and name in schema.names:
        return f"column {name!r} has no field {'.'.join(inside)!r}; it is {schema.field(name).type}"
    return unknown_column(name, schema.names)


def unknown_column(name: str, names: Sequence[str]) -> str:
    """Returns the words for a column that is not there."""
    return f"there is no column {name!r}{did_you_mean(name, names)}; there are {', '.join(map(repr, names)) or 'none'}"


def columns_of(expression: Any, schema: pa.Schema) -> frozenset[str]:
    """Returns the columns that an expression reads: those without which it cannot be bound.

    >>> schema = pa.schema([("a", pa.int8()), ("b", pa.string()), ("c", pa.string())])
    >>> sorted(columns_of((pc.field("a") > 1) | (pc.field("b") == "x"), schema))
    ['a', 'b']
    """
    text = str(expression)
    # A plain name that is read stands in the text of the expression; others may be escaped there.
    candidates = [name for name in schema.names if name in text or not name.isidentifier()]
    return frozenset(name for name in candidates if not _binds(expression, _without(schema, name)))


def _without(schema: pa.Schema, name: str) -> pa.Schema:
    return pa.schema([field for field in schema if field.name != name])


def _binds(expression: Any, schema: pa.Schema) -> bool:
    try:
        project(empty(schema), [expression], ["value"])
    except pa.ArrowInvalid:
        return False
    return True


def may_keep_nan(expression: Any, schema: pa.Schema) -> bool:
    """Returns whether a filter may keep rows of which a column that it reads is NaN, as far as can be told.

    The statistics of Parquet leave NaN out: by them, a row group of 1.0 and NaN has nothing but ones.

    >>> schema = pa.schema([("x", pa.float64()), ("lang", pa.string())])
    >>> may_keep_nan((pc.field("lang") == "en") & (pc.field("x") > 0.5), schema)
    False
    >>> may_keep_nan(pc.field("x") != 1, schema)
    True
    """
    columns = columns_of(expression, schema)
    floats = [name for name in columns if pt.is_floating(schema.field(name).type)]
    if not floats:
        return False
    if len(columns) > 1 and set(_CALL.findall(str(expression))) - {"invert"}:
        # What null becomes there says nothing about other values; what is compared, or joined by and and or, is false
        # with null only if it is false with every value.
        return True
    for name in floats:
        row = {field.name: pa.nulls(1, field.type) for field in schema}
        row[name] = pa.array([math.nan]).cast(schema.field(name).type)
        kept = project(pa.table(row), [expression], ["kept"])["kept"][0].as_py()
        if kept or (kept is None and len(columns) > 1):
            return True
    return False


def expression_text(expression: Any) -> str:
    """Returns a text that stands for an expression with all its values, of which its `str` leaves some out."""
    return f"{expression} {hashlib.sha256(pickle.dumps(expression, protocol=5)).hexdigest()[:16]}"


def is_expression(value: Any) -> bool:
    """Returns whether a value is an expression, of pyarrow.compute or of ray.data."""
    return isinstance(value, pc.Expression) or callable(getattr(type(value), "to_pyarrow", None))


def as_expression(where: str, value: Any) -> Any:
    """Returns an expression of pyarrow.compute, as which one of ray.data's is taken that is of columns and values.

    Raises ConfigError for anything else, a text among it.
    """
    if not isinstance(value, pc.Expression) and is_expression(value):
        try:
            value = value.to_pyarrow()
        except (TypeError, ValueError, NotImplementedError) as error:
            raise ConfigError(
                f"{where}: this expression of ray.data has no equivalent in pyarrow.compute: {error}; use map_batches "
                "to call a function"
            ) from error
    if isinstance(value, str):
        raise ConfigError(f"{where}: text is not an expression: {value!r}; name a column with curate.col('n')")
    if not isinstance(value, pc.Expression):
        raise ConfigError(
            f"{where} takes a pyarrow.compute expression such as curate.col('n') * 2, found {value!r}; use map_batches "
            "for a function"
        )
    return value


def col(name: str) -> Any:
    """Returns a column, for expressions: `pyarrow.compute.field`. Functions of pyarrow.compute take it, too.

    >>> curate.range(3).filter(curate.col("id") > 1).take_all()
    [{'id': 2}]
    """
    return pc.field(name)


def lit(value: Any) -> Any:
    """Returns a literal for expressions: `pyarrow.compute.scalar`. Beside a column, plain values work without it.

    >>> curate.range(1).with_column("source", curate.lit("demo")).take_all()
    [{'id': 0, 'source': 'demo'}]
    """
    return pc.scalar(value)
