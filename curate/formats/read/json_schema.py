"""The types of JSON columns, from a head of the rows.

`pa.infer_type` is no help: it answers int64 for [1, "a"] and bool for [false, 1.5].
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from curate.arrow.unknown import NAMES_ALONE, exact, rounds
from curate.errors import ConfigError, MissingColumn, did_you_mean, listed
from curate.formats.read.json_values import JSON_TEXT, NOT_FINITE, readable


class Mixed(Exception):
    """A column has values of several types; the arguments are the path and the names of the types."""


class Shape:
    """Everything the values of one column (list element, struct field) have been."""

    __slots__ = ("element", "fields", "high", "kinds", "low", "named", "rounded")

    def __init__(self) -> None:
        self.kinds: dict[str, int] = {}  # how often each was seen, in order of appearance
        self.low = 0
        self.high = 0
        self.named = 0  # texts that are names of numbers which JSON does not have
        self.rounded = False  # as floats, some of the whole numbers would have other digits
        self.element: Shape | None = None
        self.fields: dict[str, Shape] = defaultdict(Shape)

    def see(self, value: Any, depth: int = 0) -> None:
        """Takes one more value into account."""
        if value is None:
            return
        kind = type(value)
        if depth > _DEEPEST:
            self.kinds[f"nested more than {_DEEPEST} levels deep"] = 1
            return
        name = _KINDS[kind]
        self.kinds[name] = self.kinds.get(name, 0) + 1
        if kind is str:
            self.named += value in NOT_FINITE
        elif kind is int:
            self.low, self.high = min(self.low, value), max(self.high, value)
            self.rounded = self.rounded or rounds(value)
        elif kind is list:
            if self.element is None:
                self.element = Shape()
            for item in value:
                self.element.see(item, depth + 1)
        elif kind is dict:
            for name, item in value.items():
                self.fields[name].see(item, depth + 1)

    def type(self, path: str) -> pa.DataType:
        """Returns the one type that holds every value seen: null where none was, and what stands for names of numbers
        alone, or for whole numbers that a float would round. Raises Mixed if there is none."""
        kinds = set(self.kinds)
        if not kinds:
            return pa.null()
        if self._is_float():
            return pa.float64()
        if kinds == {"string"} or self._is_text():
            return NAMES_ALONE if self.named == sum(self.kinds.values()) else pa.string()
        if kinds == {"boolean"}:
            return pa.bool_()
        if kinds == {"int64"}:
            return self._integer(path)
        if kinds == {"list"} and self.element is not None:
            return pa.list_(self.element.type(f"{path}[]"))
        if kinds == {"object"} and self.fields:
            return pa.struct([(name, shape.type(f"{path}.{name}")) for name, shape in self.fields.items()])
        # An object without fields has no Arrow type that Parquet can hold.
        kind = "whole numbers that a float would round" if self.rounded else "int64"
        told = [kind if name == "int64" else name for name in self.kinds]
        raise Mixed(path, *(["object without fields"] if kinds == {"object"} else told))

    def _integer(self, path: str) -> pa.DataType:
        type = pa.int64() if self.high < 2**63 else pa.uint64()
        if self.low >= (-(2**63) if type == pa.int64() else 0) and self.high < 2**64:
            return exact(type) if self.rounded else type
        if not self.rounded:  # as JavaScript writes 1e20
            return pa.float64()
        # A float holds them, and rounds what are ids more likely than not.
        if self.low < -(2**63) or self.high >= 2**64:
            raise Mixed(path, "whole numbers of more than 64 bits")
        raise Mixed(path, "whole numbers below 0", "whole numbers from 2^63 on")

    def _is_float(self) -> bool:
        """Returns whether all values are numbers, those that JSON has only names for among them: not all are whole, and
        none is that a float would round."""
        numbers = sum(self.kinds.get(name, 0) for name in ("int64", "float64"))
        broken = bool(numbers) and ("float64" in self.kinds or self.named > 0) and not self.rounded
        return broken and numbers + self.named == sum(self.kinds.values())

    def _is_text(self) -> bool:
        """Returns whether all values are texts but for a few numbers or booleans, which are bad rows then.

        As JSON text, every text would be in quotes: another text than the one in the file, in each row, for the sake of
        a row or two.
        """
        texts = self.kinds.get("string", 0)
        odd = sum(self.kinds.values()) - texts
        return self.kinds.keys() <= _SCALARS and odd < texts and odd <= max(_FEW, _FEW_SHARE * texts)


TEXTS_AND = b"curate:texts_and"
_DEEPEST = 64
_FEW = 10
_FEW_SHARE = 0.01
"""So many values of a column of texts, or this share of them, may be no texts: about the bad rows that are allowed."""
_SCALARS = {"string", "boolean", "int64", "float64"}
_KINDS: dict[type, str] = {str: "string", bool: "boolean", int: "int64", float: "float64", list: "list", dict: "object"}


def infer_schema(
    uri: str, rows: Sequence[Mapping[str, Any]], wanted: Mapping[str, pa.DataType | None] | None
) -> pa.Schema:
    """Returns the schema of JSON rows: every column in order of appearance, or the wanted ones in their order. A type
    that no value tells is null, or what stands for it (see `told_as_text`).

    A column of several types becomes JSON text (see `json_values.JSON_TEXT`) unless it was asked for by name; if there
    are texts among them, its metadata says so (see `say_quoted`). One of texts but for a few numbers or booleans is one
    of texts.

    Raises ConfigError for a wanted column that no row has, that has several types and none was declared, or whose
    declared type cannot be read from JSON.
    """
    shapes: dict[str, Shape] = defaultdict(Shape)
    for row in rows:
        for name, value in row.items():
            shapes[name].see(value)
    fields = []
    for name in shapes if wanted is None else wanted:
        if name not in shapes:
            raise missing_column(uri, name, shapes)
        declared = None if wanted is None else wanted[name]
        if declared is not None:
            if not readable(declared):
                raise ConfigError(f"column {name!r} is declared as {declared}, which cannot be read from JSON")
            fields.append(pa.field(name, declared))
            continue
        try:
            fields.append(pa.field(name, shapes[name].type(name)))
        except Mixed as mixed:
            if wanted is not None:
                path, *kinds = mixed.args
                raise ConfigError(
                    f"column {name!r} of {uri} has no single type: {path!r} is {' and '.join(kinds)}; "
                    f"declare a type for {name!r}"
                ) from None
            told = {TEXTS_AND: f"{', '.join(shapes[name].kinds)} in {uri}"} if "string" in shapes[name].kinds else {}
            fields.append(pa.field(name, pa.string(), metadata=JSON_TEXT | told))
    return pa.schema(fields)


def missing_column(uri: str, name: str, known: Sequence[str] | Mapping[str, Any]) -> MissingColumn:
    """Returns the error for a wanted column that the file does not have."""
    told = f"no column {name!r} in {uri}{did_you_mean(name, known)}; it has {listed(known)}{in_folder(uri, name)}"
    return MissingColumn.of_column(told, name)


def in_folder(uri: str, name: str | None) -> str:
    """Returns what to say where a folder on the way to a file names the column that it does not have."""
    return f"; the folder {name}=... is a column for datasets, and not for jobs" if f"/{name}=" in uri else ""
