"""Keep the rows that fulfil conditions: `curate run filter --input 'gs://b/scored/*.parquet' --output gs://b/clean
--where 'toxicity <= 0.5' --where "lang in ['en', 'de'] and not (score < 0 or author is null)"`.

A condition compares columns with values, or with other columns:

    comparisons      == != < <= > >=, also 0 < score <= 10
    lists            lang in ['en', 'de'], lang not in ['und']
    missing values   author is null, author is not null
    together         and, or, not, parentheses
    values           0.5, -3, 'text', "text", true, false
    columns          toxicity; meta.lang, a field of a struct; col('of another spelling'); toxic, a column of booleans

As in SQL, a comparison with a missing value is neither true nor false, and a row is kept only if all conditions are
true. A condition is parsed, and never run as Python.

Row groups of Parquet files of which no row passes, as their statistics say, are not read. Their rows are counted.
"""

from __future__ import annotations

import ast
import io
import keyword
import operator
import re
import tokenize
from functools import reduce
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curate.dataset.dataset import Dataset
from curate.errors import ConfigError
from curate.job.params import param
from curate.job.shapes import RowsJob

COMPARISONS: dict[type[ast.cmpop], Any] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
VALUES = {"true": True, "false": False, "null": None}
"""Values that are written as names."""
TYPES = {str: pa.string(), int: pa.int64(), float: pa.float64()}
"""Types of values that are written as such: Arrow infers the same ones, and imports pandas to do so."""
_SQL = {word.upper(): word for word in ("and", "or", "not", "in", "is", "null")} | {"=": "==", "<>": "!="}
_RESERVED = {*keyword.kwlist} - {"and", "or", "not", "in", "is", "True", "False", "None"}


class _Unfit(Exception):
    """Something that a condition may not contain."""


class Condition:
    """A condition: as a pyarrow expression, and as text in its normal form.

    >>> Condition("tox<=.5 and lang in ('en',\\"de\\")").text
    "tox <= 0.5 and lang in ['en', 'de']"
    """

    def __init__(self, text: str) -> None:
        """Raises ConfigError, which names the invalid part, for a text that is not a condition."""
        try:
            tree = _Plain().visit(ast.parse(text.strip(), mode="eval")).body
            _refuse_joined(text)
            self.text = ast.unparse(tree)
            self.expression = _condition(tree)
        except _Unfit as error:
            raise ConfigError(f"--where {text!r}: {error}") from error
        except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError, pa.ArrowException) as error:
            raise ConfigError(f"--where {text!r} is not a condition{_hint(text, error)}") from error


class _Plain(ast.NodeTransformer):
    """Writes conditions of the same meaning in one form."""

    def visit_Tuple(self, node: ast.Tuple) -> ast.AST:
        return ast.List([self.visit(one) for one in node.elts], ast.Load())

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        words = {value: name for name, value in VALUES.items()}
        return ast.Name(words[node.value]) if node.value is None or isinstance(node.value, bool) else node


def _refuse_joined(text: str) -> None:
    """Refuses adjacent texts, which Python joins: a quote doubled as in SQL would be lost."""
    tokens = tokenize.generate_tokens(io.StringIO(text.strip()).readline)
    for one, other in pairwise(token for token in tokens if token.type != tokenize.NL):
        if one.type == other.type == tokenize.STRING:
            raise _Unfit(f'{one.string}{other.string} is two texts; write a quote within a text as in "it\'s"')


def _hint(text: str, error: Exception) -> str:
    for word in re.split(r"\s+|(?<=\w)(?=<>|=)|(?<=[>=])(?=\w)", text):
        if word in _SQL:
            return f": write {_SQL[word]} for {word}"
        if word in _RESERVED:
            return f": write col({word!r}) for the column {word}"
    place = f" at {text.strip()[error.offset - 1 :]!r}" if isinstance(error, SyntaxError) and error.offset else ""
    return f" ({getattr(error, 'msg', error)}{place}); write it as in: toxicity <= 0.5 and lang in ['en', 'de']"


def _condition(node: ast.expr) -> Any:
    """Returns a condition as an expression."""
    match node:
        case ast.BoolOp(op, values):
            join = operator.and_ if isinstance(op, ast.And) else operator.or_
            return reduce(join, map(_condition, values))
        case ast.UnaryOp(ast.Not(), operand):
            return ~_condition(operand)
        case ast.Compare(left, ops, comparators):
            pairs = zip(ops, pairwise([left, *comparators]), strict=True)
            return reduce(operator.and_, (_compared(*sides, op) for op, sides in pairs))
        case ast.Name() | ast.Attribute() | ast.Call() if (path := _column(node)) is not None:
            return pc.field(*path)
    raise _Unfit(f"{ast.unparse(node)} is neither true nor false; compare a column with a value: toxicity <= 0.5")


def _compared(left: ast.expr, right: ast.expr, op: ast.cmpop) -> Any:
    path = _column(left)
    if isinstance(op, ast.Is | ast.IsNot):
        if path is None or not (isinstance(right, ast.Name) and right.id == "null"):
            raise _Unfit(f"{ast.unparse(right)} is compared with is; write: column is null, column is not null, or ==")
        return pc.field(*path).is_null() if isinstance(op, ast.Is) else pc.field(*path).is_valid()
    if isinstance(op, ast.In | ast.NotIn):
        if path is None or not isinstance(right, ast.List) or not right.elts:
            raise _Unfit(f"{ast.unparse(right)} is no list of values; write: column in ['en', 'de']")
        # Not `isin`, which takes a missing value for one that is not in the list.
        found = reduce(operator.or_, (pc.field(*path) == _value(one) for one in right.elts))
        return found if isinstance(op, ast.In) else ~found
    sides = _side(left), _side(right)
    if path is None and _column(right) is None:
        raise _Unfit(f"{ast.unparse(left)} and {ast.unparse(right)} are both values; compare a column")
    return COMPARISONS[type(op)](*sides)


def _side(node: ast.expr) -> Any:
    path = _column(node)
    return pc.scalar(_value(node)) if path is None else pc.field(*path)


def _column(node: ast.expr) -> tuple[str, ...] | None:
    """Returns the column that is named, as a path into structs; None if none is."""
    match node:
        case ast.Name(name):
            return None if name in VALUES else (name,)
        case ast.Attribute(of, name):
            return None if (path := _column(of)) is None else (*path, name)
        case ast.Call(ast.Name("col"), [ast.Constant(str(name))], []):
            return (name,)
    return None


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(str() | float() as value):
            return pa.scalar(value, TYPES[type(value)])
        case ast.Constant(int(value)):
            # The large ones are hashes.
            return pa.scalar(value, pa.uint64() if value >= 1 << 63 else pa.int64())
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)):
            return pa.scalar(-value, TYPES[type(value)])
        case ast.Name("true" | "false" as name):
            return pa.scalar(VALUES[name], pa.bool_())
        case ast.Name("null"):
            raise _Unfit("nothing equals null; write: column is null, or column is not null")
    raise _Unfit(f"{ast.unparse(node)} is neither a column nor a value: a number, a text in quotes, true or false")


class Filter(RowsJob):
    """Keep the rows that fulfil conditions.

    Rows keep their order, files and columns. The summary counts the dropped rows for each condition: a row counts for
    the first condition that it fails.
    """

    version = "1"
    where: list[str] = param(
        help="condition that a row must fulfil, such as \"toxicity <= 0.5 and lang in ['en', 'de']\"; can be repeated",
        split=False,
    )

    def __init__(self, **parameters: Any) -> None:
        super().__init__(**parameters)
        if not self.where:
            raise ConfigError("--where is empty, so every row would be kept; give a condition: --where 'score > 0'")
        # In their normal form they are part of the identity.
        self.where = [Condition(one).text for one in self.where]

    def build(self, ds: Dataset) -> Dataset:
        for text in self.where:
            ds = ds.filter(Condition(text).expression, reason=f"not ({text})")
        return ds


if __name__ == "__main__":
    Filter.main()
