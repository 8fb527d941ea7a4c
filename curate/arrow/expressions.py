"""pyarrow.compute expressions: applied to tables, checked against schemas, and which columns they read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, wraps
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from curate.arrow.order import rows_where
from curate.arrow.recast import without_views
from curate.arrow.schema import format_schema
from curate.arrow.types import contains, is_list_view, is_view, plain_type
from curate.arrow.unknown import empty
from curate.errors import ConfigError, unknown_column

T = TypeVar("T")

_NO_MATCH = re.compile(r"No match for FieldRef\.(?:Name\((.*?)\)|Nested\(FieldRef\.Name\((.*?)\).*?) in ", re.DOTALL)
_NO_KERNEL = re.compile(
    r"Function '(\w+?)(?:_checked|_kleene)?' has no kernel matching input types \((.*)\)", re.DOTALL
)
_NAMES = re.compile(r"FieldRef\.Name\((.*?)\)")
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_BY_POSITION = re.compile(r"(?:^|[(, ]|(?<!field_ref=FieldRef)\.)FieldPath\(\d")
"""In the text of an expression, and not in texts in it: a column by its number, or a field by one where it may be a
column. Not so in `struct_field`, which is given the column."""
FEW = 16
"""Columns of a schema that is a key as it is."""
_WORD = re.compile(r"\w+", re.ASCII)


def project(table: pa.Table, expressions: Sequence[Any], names: Sequence[str]) -> pa.Table:
    """Returns a table of these expressions over `table`, row by row, in order."""
    known = Columns(table.schema)
    return _project(table, [_wide(one, known.named_in(one)) for one in expressions], names)


def _project(table: pa.Table, expressions: Sequence[Any], names: Sequence[str]) -> pa.Table:
    import pyarrow.acero as acero  # 60 ms, which processes that need no expression need not wait

    node = acero.Declaration("project", acero.ProjectNodeOptions(list(expressions), list(names)))
    try:
        if not _casts_views(expressions, table.schema):
            return _run(table, node)
    except pa.ArrowNotImplementedError:
        if not any(contains(type, is_view) for type in table.schema.types):
            raise
    if len(expressions) == 1:
        return _run(without_views(table), node)
    # Each for itself, so that what needs no other types keeps its own.
    return pa.table([_project(table, [one], ["value"])["value"] for one in expressions], list(names))


def _casts_views(expressions: Sequence[Any], schema: pa.Schema) -> bool:
    """Returns whether expressions may cast views of lists, of which Arrow makes other lists, and says nothing."""
    views = [field.name for field in schema if contains(field.type, is_list_view)]
    texts = map(shown, expressions) if views else ()
    return any("cast(" in text and any(name in text for name in views) for text in texts)


def filter_by(table: pa.Table, expression: Any) -> pa.Table:
    """Returns the rows for which `expression` is true, in order; not those for which it is null."""
    import pyarrow.acero as acero

    if not _casts_views([expression], table.schema):
        try:
            exact = with_wide_literals(expression, table.schema)
            return _run(table, acero.Declaration("filter", acero.FilterNodeOptions(exact)))
        except pa.ArrowNotImplementedError:  # of a column of views or runs, which is not looked at as well
            pass
    return rows_where(table, chosen_by(table, expression))


def chosen_by(table: pa.Table, expression: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Returns for each row whether `expression` is true of it, and not false or null."""
    chosen = project(table, [expression], ["chosen"])["chosen"]
    found: np.ndarray[Any, np.dtype[np.bool_]] = chosen.fill_null(False).to_numpy()
    return found


def _run(table: pa.Table, node: Any) -> pa.Table:
    import pyarrow.acero as acero

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    try:
        # One thread: several would hand the rows out in the order in which they are done with them.
        return acero.Declaration.from_sequence([source, node]).to_table(use_threads=False)
    except pa.ArrowInvalid as error:
        for words, note in _NOTES.items():
            if words in str(error):
                error.add_note(note)
        raise


_NOTES = {
    "to 9223372036854775807": "a whole number in an expression is int64, and so becomes a column of uint64 that is "
    "calculated with beside it; write pyarrow.scalar(1, pyarrow.uint64()) in place of 1",
    "to 9007199254740992": "a whole number beside a float becomes a double, which has all of them up to 2^53 only; "
    "if the nearest double will do, write curate.col('n').cast('double', safe=False)",
    "overflow": "what is calculated of whole numbers is of the type of the column, where a literal fits into it, or of "
    "the wider one of two columns; for a wider one write curate.col('n').cast('int64')",
}
"""What to do about an error of Arrow with these words."""


def with_wide_literals(expression: Any, schema: pa.Schema) -> Any:
    """Returns an expression in which 0.5 is a double beside whole numbers, as it is in functions of pyarrow.compute,
    and 1 is compared with a column of uint64, or of decimals, as such.

    Arrow makes 0.5 a float32 there, which has room for it, and the column as well: of `n / 3.0` seven digits would be
    right, and `n > 0.5` would fail for a number above 2^24. A float32 column that is read, and decides the type of the
    result, stays one. And it makes 1 an int64, and the column as well: `n != 1` would fail for one above 2^63, as half
    of all hashes are. Beside decimals it has digits for an int8, which 1 is not: each comparison would fail.

    >>> schema = pa.schema([("n", pa.int64())])
    >>> type_of(pc.field("n") / 3.0, schema, "with_column('third')")
    DataType(double)
    """
    return _wide(expression, Columns(schema).named_in(expression))


def _wide(expression: Any, schema: pa.Schema) -> Any:
    """Returns an expression with wide literals; `schema` has the columns that it may read: a few of thousands."""
    _, (data,) = expression.__reduce__()
    known = _with_wide_literals if _has_hash(schema) else _with_wide_literals.__wrapped__
    exact = known(data.to_pybytes(), schema)
    return expression if exact is None else exact


@lru_cache(maxsize=256)
def _with_wide_literals(data: bytes, schema: pa.Schema) -> Any:
    """Returns what a serialised expression becomes; None if it stays as it is."""
    given = found = pc.Expression._deserialize(pa.py_buffer(data))
    if any(contains(type, pt.is_uint64) for type in schema.types):
        unsigned = _with_literals(given, lambda one: one.cast(pa.uint64()) if _is_whole(one) else None)
        # Of other types than before is what is calculated and not compared: that overflows, and it says so.
        if unsigned is not given and (before := _type_over(given, schema)) is not None:
            found = unsigned if _type_over(unsigned, schema) == before else given
    if any(contains(type, pt.is_decimal) for type in schema.types) and _type_over(found, schema) is None:
        found = _with_literals(found, _least)
    # A dictionary is decoded, but not made narrower.
    exact = _with_literals(found, lambda one: one.dictionary_encode() if pt.is_float64(one.type) else None)
    if exact is not found:
        before, after = _type_over(given, schema), _type_over(exact, schema)
        # Not of a function that takes no dictionary, or that fits no such columns; nor where the literal itself is the
        # result, or in it.
        if after is not None and before is not None and after == plain_type(after):
            narrow = (contains(schema.field(name).type, _is_narrow) for name in columns_of(given, schema))
            if before == after or not any(narrow):
                found = exact
    return None if found is given else found


def _with_literals(expression: Any, wider: Callable[[pa.Array], pa.Array | None]) -> Any:
    """Returns an expression with what `wider` makes of its literals, arrays of one; None leaves one as it is."""
    _, (data,) = expression.__reduce__()
    literals = pa.ipc.open_file(data).get_batch(0)
    made = [(at, found) for at, one in enumerate(literals.columns) if (found := wider(one)) is not None]
    if not made:
        return expression
    for at, one in made:
        # The metadata of the schema, which is the tree, stays.
        literals = literals.set_column(at, literals.schema.names[at], one)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, literals.schema) as writer:
        writer.write_batch(literals)
    return pc.Expression._deserialize(sink.getvalue())


def _type_over(expression: Any, schema: pa.Schema) -> pa.DataType | None:
    """Returns the type of an expression over rows of a schema; None if it has none."""
    try:
        return _project(empty(schema), [expression], ["value"]).schema.field(0).type
    except pa.ArrowException:
        return None


def _least(literal: pa.Array) -> pa.Array | None:
    """Returns a literal of int64 in the least signed type that has room for it; None for another one."""
    if not pt.is_int64(literal.type) or (value := literal[0].as_py()) is None:
        return None
    return literal.cast(pa.from_numpy_dtype(np.min_scalar_type(min(value, ~value))))


def _is_whole(literal: pa.Array) -> bool:
    return bool(pt.is_int64(literal.type) and literal[0].is_valid and literal[0].as_py() >= 0)


def _is_narrow(type: pa.DataType) -> bool:
    return pt.is_floating(type) and not pt.is_float64(type)


def type_of(expression: Any, schema: pa.Schema, where: str) -> pa.DataType:
    """Returns the type of an expression over rows of `schema`. Raises ConfigError if it has none.

    >>> type_of(pc.field("a") + 1, pa.schema([("a", pa.int64())]), "with_column('b')")
    DataType(int64)
    """
    return types_of([(where, expression)], schema)[0]


def types_of(expressions: Iterable[tuple[str, Any]], schema: pa.Schema) -> list[pa.DataType]:
    """Returns the types of expressions, each given where it is. Raises ConfigError for the first that has none."""
    few = _few_in(schema)
    return [_type_of(one, schema, few(one), where) for where, one in expressions]


class _Same:
    """An expression as a key: Arrow gives it no hash, and it does not change."""

    __slots__ = ("expression",)

    def __init__(self, expression: Any) -> None:
        self.expression = expression

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.expression is other.expression

    def __hash__(self) -> int:
        return id(self.expression)


def _remembered(ask: Callable[[Any, pa.Schema], T]) -> Callable[[Any, pa.Schema], T]:
    """Returns what asks Arrow once of an expression and a few columns: it takes 0.1 ms, and who plans unions in unions
    asks for each part as often as there are unions around it."""

    @lru_cache(maxsize=1024)
    def known(same: _Same, schema: pa.Schema) -> T:
        return ask(same.expression, schema)

    @wraps(ask)
    def asked(expression: Any, schema: pa.Schema) -> T:
        return known(_Same(expression), schema) if _has_hash(schema) else ask(expression, schema)

    return asked


def _has_hash(schema: pa.Schema) -> bool:
    """Returns whether a schema can be a key: a type that is defined in Python has no hash."""
    try:
        hash(schema)
    except TypeError:
        return False
    return True


@_remembered
def _type_in(expression: Any, schema: pa.Schema) -> pa.DataType:
    """Returns the type of an expression over rows of a schema. Raises an error of Arrow if it has none."""
    few = Columns(schema).named_in(expression)
    return project(empty(few), [expression], ["value"]).schema.field(0).type


def _type_of(expression: Any, schema: pa.Schema, few: pa.Schema, where: str) -> pa.DataType:
    try:
        return _type_in(expression, few)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise _unfit(where, error, schema) from error


def _unfit(where: str, error: Exception, schema: pa.Schema) -> ConfigError:
    """Returns what to say of an expression that Arrow refuses for rows of a schema, and with which of its columns."""
    told = ConfigError(f"{where}: {_problem(str(error), schema)}")
    if names := frozenset(schema.names):
        told.column = next((name for name in _NAMES.findall(str(error)) if name not in names), None)
    return told


def _problem(said: str, schema: pa.Schema) -> str:
    if found := _NO_MATCH.match(said):
        name, *inside = _NAMES.findall(found[0])
        if inside and name in schema.names:
            return f"column {name!r} has no field {'.'.join(inside)!r}; it is {schema.field(name).type}"
        return unknown_column(name, schema.names)
    if found := _NO_KERNEL.match(said):
        said = (
            f"there is no {found[1]!r} of {found[2]}; write a value as its column is, text in quotes, or in Python "
            "cast one of them, as in curate.col('n').cast('string')"
        )
    return f"{said}; the rows have {format_schema(schema)}"


def refuse_unknown(where: str, wanted: Iterable[str], names: Sequence[str]) -> None:
    """Raises ConfigError naming the first of the wanted columns that is not there. `where` asks for it."""
    known = frozenset(names)
    for name in wanted:
        if name not in known:
            # Where there is none at all, to name another one does not help.
            told = f"{where}: {unknown_column(name, names)}"
            raise ConfigError.of_column(told, name) if names else ConfigError(told)


def columns_of(expression: Any, schema: pa.Schema) -> frozenset[str]:
    """Returns the columns that an expression reads: those without which it cannot be bound.

    >>> schema = pa.schema([("a", pa.int8()), ("b", pa.string()), ("c", pa.string())])
    >>> sorted(columns_of((pc.field("a") > 1) | (pc.field("b") == "x"), schema))
    ['a', 'b']
    """
    return columns_of_all([expression], schema)


def columns_of_all(expressions: Iterable[Any], schema: pa.Schema) -> frozenset[str]:
    """Returns the columns that any of the expressions reads."""
    few = _few_in(schema)
    return frozenset().union(*(_read_of(one, few(one)) for one in expressions))


@_remembered
def _read_of(expression: Any, schema: pa.Schema) -> frozenset[str]:
    """Returns the columns of a schema that an expression reads."""
    few = Columns(schema).named_in(expression)
    return frozenset(name for name in few.names if not binds(expression, _without(few, name)))


def _few_in(schema: pa.Schema) -> Callable[[Any], pa.Schema]:
    """Returns what tells the columns that an expression may read: all, where there are few, which is told at once."""
    return (lambda _: schema) if len(schema) <= FEW else Columns(schema).named_in


class Columns:
    """The columns of a schema by their names, which are gone through once for any number of expressions."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._plain: dict[str, list[int]] = {}
        self._other: list[int] = []
        for at, name in enumerate(schema.names):
            if name.isidentifier() and name.isascii():
                self._plain.setdefault(name, []).append(at)
            else:
                self._other.append(at)

    def named_in(self, expression: Any) -> pa.Schema:
        """Returns the columns that an expression may read, as far as its text tells."""
        # A plain name that is read is a word of the text of the expression; others may be escaped there.
        words = set(_WORD.findall(shown(expression)))
        named = chain(self._other, *(self._plain.get(word, ()) for word in words))
        return pa.schema([self.schema.field(at) for at in sorted(named)])


def _without(schema: pa.Schema, name: str) -> pa.Schema:
    return pa.schema([field for field in schema if field.name != name])


def binds(expression: Any, schema: pa.Schema) -> bool:
    """Returns whether a schema has all columns that an expression reads."""
    try:
        _project(empty(schema), [expression], ["value"])
    except pa.ArrowInvalid:
        return False
    return True


def shown(expression: Any) -> str:
    """Returns the text of an expression, which leaves some of its values out, or parts of them."""
    try:
        return str(expression)
    except UnicodeDecodeError as error:  # Arrow has cut a value within a character
        return error.object.decode(errors="replace")


def is_expression(value: Any) -> bool:
    """Returns whether a value is an expression, of pyarrow.compute or of ray.data."""
    return isinstance(value, pc.Expression) or callable(getattr(type(value), "to_pyarrow", None))


def as_expression(where: str, value: Any) -> Any:
    """Returns an expression of pyarrow.compute, as which one of ray.data's is taken that is of columns and values.

    Raises ConfigError for anything else, a text among it, and for a column by its number.
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
        raise ConfigError(
            f"{where}: text is not an expression: {value!r}; name a column with curate.col('n'), as in "
            f"curate.col('n') > 2, and write a text with curate.lit({value!r})"
        )
    if not isinstance(value, pc.Expression):
        plain = value is None or type(value).__module__ in ("builtins", "datetime", "decimal")
        instead = f"curate.lit({value!r:.80})" if plain else "it with curate.col and functions of pyarrow.compute"
        raise ConfigError(
            f"{where} takes a pyarrow.compute expression such as curate.col('n') * 2, found {value!r:.80}; "
            f"{'use map_batches for a function' if callable(value) else f'write {instead}'}"
        )
    if _BY_POSITION.search(_TEXT.sub('""', shown(value))):
        # Columns that nobody needs are not read, so that there is another one at its place.
        raise ConfigError(
            f"{where}: {shown(value)} takes a column by its number, which depends on what else is read; take it by its "
            "name, curate.col('n'), and a field in it by both, pyarrow.compute.field('n', 'field')"
        )
    return value


def col(name: str) -> Any:
    """Returns a column, for expressions: `pyarrow.compute.field`. Functions of pyarrow.compute take it, too.

    As in SQL, whole numbers are divided without a fraction, and a null beside anything is null, which no filter keeps:

    >>> curate.range(3).filter(curate.col("id") > 1).take_all()
    [{'id': 2}]
    >>> n = curate.col("n")
    >>> curate.from_items([{"n": 7}]).with_column("whole", n / 2).with_column("exact", n / 2.0).take_all()
    [{'n': 7, 'whole': 3, 'exact': 3.5}]
    """
    return pc.field(name)


def lit(value: Any) -> Any:
    """Returns a literal for expressions: `pyarrow.compute.scalar`. Beside a column, plain values work without it.

    Raises ConfigError, with what to write, for a value that Arrow has no literal of; beside a column Arrow itself
    raises an OverflowError, or a TypeError.

    >>> curate.range(1).with_column("source", curate.lit("demo")).take_all()
    [{'id': 0, 'source': 'demo'}]
    """
    try:
        return pc.scalar(value)
    except (OverflowError, TypeError, UnicodeError, pa.ArrowException) as error:
        raise ConfigError(f"lit({value!r:.80}) of type {type(value).__name__}: {_literal(value)}") from error


def _literal(value: Any) -> str:
    """Returns what to write for a value that is no literal of Arrow."""
    if isinstance(value, int) and 0 <= value < 1 << 64:
        return "whole numbers are int64 here, up to 9223372036854775807; write pyarrow.scalar(n, pyarrow.uint64())"
    if isinstance(value, int):
        return "whole numbers are int64 here, up to 9223372036854775807; write curate.lit(decimal.Decimal(n))"
    if isinstance(value, np.datetime64 | np.timedelta64):
        return "Arrow has the units s, ms, us and ns; write curate.lit(value.item()), a date or a time of Python"
    return "expected a number, a text, bytes, a date, a time, or a pyarrow.Scalar"
