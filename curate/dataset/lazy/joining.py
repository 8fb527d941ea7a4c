"""Joins: rows of two datasets that have equal keys, side by side."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from curate.dataset.exchange.aggregate import value_type
from curate.dataset.exchange.how import Part
from curate.dataset.exchange.merge_join import HOWS, Joining, either, gathered, has_null, meet
from curate.dataset.exchange.order import Order, rows_where
from curate.dataset.lazy.grouping import Regrouping, key_columns, order_by
from curate.dataset.lazy.operators import Plain
from curate.dataset.lazy.plan import Apply, Exchanged, Plan, schema_of
from curate.dataset.nulls import is_blank
from curate.dataset.pipeline import READ_ROWS, Place
from curate.dataset.tally import Tally
from curate.errors import ConfigError, SchemaMismatch, did_you_mean
from curate.units import format_bytes

UNMATCHED = "unmatched"
"""Why rows are dropped for whose key there is none on the other side."""
MATCHED = "matched"
"""Why an anti join drops left rows."""
JOINED = "joined"
"""Why right rows are dropped that became part of the rows that came of left ones, or were only looked for."""
BROADCAST_HOWS = ("inner", "left", "semi", "anti")
"""Joins of which each left row tells by itself what comes of it."""
BROADCAST_BYTES = 1 << 30
"""Bytes of a right side that every task is given a copy of, at most."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The columns that two sides are joined by, and what becomes of the names of others."""

    name: str
    """What the join is called in errors."""
    left: tuple[str, ...]
    right: tuple[str, ...]
    types: tuple[pa.DataType, ...] | None
    """What they are compared as; None: as the widest type of their kind."""
    left_suffix: str = ""
    right_suffix: str = "_right"

    def of(self, side: int) -> tuple[str, ...]:
        """Returns the key columns of a side: 0 is left."""
        return self.right if side else self.left

    def identity(self) -> Any:
        types = None if self.types is None else list(map(str, self.types))
        return [list(self.left), list(self.right), types, self.left_suffix, self.right_suffix]

    def cast_schema(self, side: int, found: pa.Schema) -> pa.Schema:
        """Returns a side's schema with key columns of the types that are compared. Raises ConfigError."""
        order_by(self.of(side)).check(f"{self.name}, {'right' if side else 'left'} side", found)
        for number, key in enumerate(self.of(side)):
            place = found.get_field_index(key)
            wanted = widest(found.field(place).type) if self.types is None else self.types[number]
            found = found.set(place, pa.field(key, wanted))
        return found

    def cast(self, side: int, table: pa.Table) -> pa.Table:
        """Returns a side's rows with key columns of the types that are compared."""
        schema = self.cast_schema(side, table.schema)
        for key in self.of(side):
            place = schema.get_field_index(key)
            if table.schema.field(place).type != schema.field(place).type:
                table = table.set_column(place, schema.field(place), table.column(place).cast(schema.field(place).type))
        return table

    def joined(self, left: pa.Schema, right: pa.Schema, how: str) -> pa.Schema:
        """Returns the schema of joined rows from those of two sides with keys of the types that are compared.

        Raises ConfigError for names that meet. Raises SchemaMismatch for keys of other types.
        """
        for mine, other in zip(self.left, self.right, strict=True):
            if left.field(mine).type != right.field(other).type:
                raise SchemaMismatch(self._types(mine, left.field(mine).type, other, right.field(other).type))
        if how in ("semi", "anti"):
            return pa.schema(list(left))
        others = [one for one in right if one.name not in self.right]
        twice = {one.name for one in others} & set(left.names)
        made = [
            one.with_name(one.name + self.left_suffix) if one.name in twice - set(self.left) else one for one in left
        ]
        made += [one.with_name(one.name + self.right_suffix) if one.name in twice else one for one in others]
        names = [one.name for one in made]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(
                    f"{self.name} would make {names.count(name)} columns called {name!r}; give left_suffix and "
                    "right_suffix that tell them apart, or rename one before it"
                )
        return pa.schema([pa.field(one.name, one.type) for one in made])

    def _types(self, mine: str, type: pa.DataType, other: str, found: pa.DataType) -> str:
        return (
            f"{self.name}: the key {mine!r} is {type} on the left, {other!r} is {found} on the right; keys must be of "
            "one type, but for the width of numbers: cast one before it, with with_column() or map_batches()"
        )

    @classmethod
    def checked(
        cls,
        name: str,
        on: Any,
        right_on: Any,
        schemas: Sequence[pa.Schema | None],
        left_suffix: str,
        right_suffix: str,
    ) -> Keys:
        """Returns the keys that `on` and `right_on` say. Raises ConfigError, also for types that are not compared."""
        left = key_columns(name, on)
        right = left if right_on is None else key_columns(name, right_on)
        if len(left) != len(right):
            raise ConfigError(f"{name}: {len(left)} columns on the left, {len(right)} on the right; name as many")
        keys = cls(name, left, right, None, left_suffix, right_suffix)
        one, other = schemas
        for side, found in enumerate(schemas):
            if found is not None:
                keys.cast_schema(side, found)
        if one is None or other is None:
            return keys
        types = []
        for mine, theirs in zip(left, right, strict=True):
            type, found = one.field(mine).type, other.field(theirs).type
            common = common_type(type, found)
            if common is None:
                raise ConfigError(keys._types(mine, type, theirs, found))
            types.append(common)
        return cls(name, left, right, tuple(types), left_suffix, right_suffix)


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Returns the type that holds the values of two, which differ in width at most; None if there is none.

    >>> common_type(pa.int32(), pa.uint32()), common_type(pa.int64(), pa.string())
    (DataType(int64), None)
    """
    left, right = value_type(left), value_type(right)
    if left == right or pt.is_null(right):
        return left
    if pt.is_null(left):
        return right
    if pt.is_integer(left) and pt.is_integer(right):
        if pt.is_signed_integer(left) == pt.is_signed_integer(right):
            return left if left.bit_width >= right.bit_width else right
        signed, unsigned = (left, right) if pt.is_signed_integer(left) else (right, left)
        bits = max(signed.bit_width, 2 * unsigned.bit_width)
        return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.get(bits)
    wide = widest(left)
    return wide if wide == widest(right) and not pt.is_integer(wide) else None


def widest(type: pa.DataType) -> pa.DataType:
    """Returns the widest type of the kind: what keys are compared as where types are known only with the rows."""
    type = value_type(type)
    if pt.is_integer(type):
        return type if pt.is_uint64(type) else pa.int64()
    if pt.is_floating(type):
        return pa.float64()
    if pt.is_string(type):
        return pa.large_string()
    return pa.large_binary() if pt.is_binary(type) else type


@dataclass(frozen=True, slots=True)
class KeyTypes(Plain):
    """Brings the key columns of a side to the types that are compared."""

    keys: Keys
    side: int
    keeps_rows = True

    @property
    def name(self) -> str:
        return self.keys.name

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        return None if found is None else self.keys.cast_schema(self.side, found)

    def needs(self, schema: pa.Schema, needed: set[str]) -> set[str]:
        del schema
        return {*needed, *self.keys.of(self.side)}

    def identity(self) -> Any:
        return ["key_types", self.keys.identity(), self.side]

    def apply(self, table: pa.Table, tally: Tally, place: Place) -> Iterator[pa.Table]:
        del tally, place
        yield self.keys.cast(self.side, table)


@dataclass(frozen=True, slots=True)
class Join(Regrouping):
    """Rows of two inputs with equal keys, in order of the keys, then of the left rows, then of the right ones."""

    keys: Keys
    how: str

    @property
    def name(self) -> str:
        return self.keys.name

    @property
    def orders(self) -> tuple[Order, ...]:
        return order_by(self.keys.left), order_by(self.keys.right)

    def identity(self) -> Any:
        return ["join", self.keys.identity(), self.how]

    def schema(self, found: Sequence[pa.Schema | None]) -> pa.Schema | None:
        left, right = (
            None if schema is None else self.keys.cast_schema(side, schema) for side, schema in enumerate(found)
        )
        return None if left is None or right is None else self.keys.joined(left, right, self.how)

    def prepare(self, side: int) -> tuple[Any, ...]:
        return (KeyTypes(self.keys, side),)

    def combine(self, tables: Sequence[pa.Table], tally: Tally, part: Part) -> Iterator[pa.Table]:
        del part
        left, right = tables
        if not left.num_rows and not right.num_rows:
            return
        left, right = self._known(0, left, right), self._known(1, right, left)
        schema = self.keys.joined(left.schema, right.schema, self.how)
        named = right.select(self.keys.right).rename_columns(self.keys.left)
        meeting = meet(order_by(self.keys.left), left, named)
        joining = Joining.of(meeting, self.how)
        self._book(joining, tally)
        others = right.select([name for name in right.column_names if name not in self.keys.right])
        for left_rows, right_rows in joining.slices(READ_ROWS):
            rows = gathered(left, left_rows)
            if self.how in ("semi", "anti"):
                yield rows
                continue
            columns = list(rows.columns)
            if self.how in ("right", "outer"):
                keys = gathered(named, right_rows)
                for key in self.keys.left:
                    number = left.schema.get_field_index(key)
                    columns[number] = either(columns[number], keys.column(key), left_rows)
            yield pa.table([*columns, *gathered(others, right_rows).columns], schema=schema)

    def _known(self, side: int, table: pa.Table, other: pa.Table) -> pa.Table:
        """Returns a side with key columns: one without rows, made by a function that was not run, may have none."""
        if table.num_rows or all(key in table.column_names for key in self.keys.of(side)):
            return table
        types = [other.schema.field(key).type for key in self.keys.of(1 - side)]
        return pa.schema(list(map(pa.field, self.keys.of(side), types))).empty_table()

    def _book(self, joining: Joining, tally: Tally) -> None:
        meeting, pairs = joining.meeting, joining.pairs
        matched = meeting.matched
        tally.books.created += int(((meeting.right_counts - 1) * meeting.left_counts * pairs).sum())
        tally.drop(int((meeting.right_counts * matched).sum()), JOINED)
        if self.how == "anti":
            tally.drop(int((meeting.left_counts * matched).sum()), MATCHED)
        alone = (meeting.left_counts - joining.left_alone) + (meeting.right_counts - joining.right_alone)
        tally.drop(int((alone * ~matched).sum()), UNMATCHED)


@dataclass(frozen=True, slots=True)
class BroadcastJoin(Plain):
    """Joins rows with those of a table in memory: the same rows as by an exchange, in the order of the left ones."""

    keys: Keys
    how: str
    right: pa.Table
    digest: str
    """Of the right rows, which are part of what decides the bytes that are made."""
    index: Any = field(default=None, repr=False, compare=False)
    """Where the rows of each key are, once it was made."""
    keeps_rows = False

    @property
    def name(self) -> str:
        return self.keys.name

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        if found is None:
            return None
        right = self.keys.cast_schema(1, self.right.schema)
        return self.keys.joined(self.keys.cast_schema(0, found), right, self.how)

    def identity(self) -> Any:
        return ["broadcast_join", self.keys.identity(), self.how, self.digest]

    def opened(self) -> Self:
        """Returns the operator with an index of the right rows by key."""
        right = self.keys.cast(1, self.right)
        rows: dict[Any, list[int]] = {}
        for row, key in enumerate(_plain_keys(right.select(self.keys.right))):
            if key is not None:
                rows.setdefault(key, []).append(row)
        counts = np.array([len(one) for one in rows.values()], np.int64)
        numbers = {key: number for number, key in enumerate(rows)}
        order = np.array([row for one in rows.values() for row in one], np.int64)
        others = right.select([name for name in right.column_names if name not in self.keys.right])
        index = (numbers, counts, np.cumsum(counts) - counts, gathered(others, order))
        return type(self)(self.keys, self.how, right, self.digest, index)

    def apply(self, table: pa.Table, tally: Tally, place: Place) -> Iterator[pa.Table]:
        del place
        numbers, counts, starts, others = (self.opened() if self.index is None else self).index
        left = self.keys.cast(0, table)
        schema = self.keys.joined(left.schema, self.keys.cast_schema(1, self.right.schema), self.how)
        keys = np.array([numbers.get(key, -1) for key in _plain_keys(left.select(self.keys.left))], np.int64)
        matched = keys >= 0
        if self.how in ("semi", "anti"):
            kept = matched if self.how == "semi" else ~matched
            tally.drop(int((~kept).sum()), UNMATCHED if self.how == "semi" else MATCHED)
            yield rows_where(left, kept)
            return
        width = np.where(matched, np.append(counts, 0)[keys], int(self.how == "left"))
        tally.drop(int((width == 0).sum()), UNMATCHED)
        tally.books.created += int(np.maximum(width - 1, 0).sum())
        ends = np.cumsum(width)
        for at in range(0, int(ends[-1]) if len(ends) else 0, READ_ROWS):
            made = np.arange(at, min(at + READ_ROWS, int(ends[-1])))
            row = np.searchsorted(ends, made, side="right")
            place_in_key = made - (ends[row] - width[row])
            right_rows = np.where(matched[row], np.append(starts, 0)[keys[row]] + place_in_key, -1)
            columns = [*gathered(left, row).columns, *gathered(others, right_rows).columns]
            yield pa.table(columns, schema=schema)


def _plain_keys(table: pa.Table) -> Iterator[Any]:
    """Yields keys as values that Python compares as an order does; None for those with a null, which match nothing."""
    columns = []
    for column in table.columns:
        if pt.is_temporal(column.type):
            # As numbers: Python's times have no nanoseconds.
            column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
        values = column.to_pylist()
        columns.append(
            [NAN if value != value else value for value in values] if pt.is_floating(column.type) else values
        )
    nulls = has_null(table).tolist()
    for key, null in zip(zip(*columns, strict=True), nulls, strict=True):
        yield None if null else key


NAN = "NaN"
"""Stands for what is no number, and equals itself."""


def join(
    left: Plan,
    right: Plan,
    on: Any,
    how: str,
    right_on: Any = None,
    left_suffix: str = "",
    right_suffix: str = "_right",
    broadcast: Callable[[], pa.Table] | None = None,
) -> Plan:
    """Returns the rows of two plans joined by keys. Raises ConfigError.

    With `broadcast`, which runs the right one and returns its rows, every task has a copy of these.
    """
    if how not in HOWS:
        raise ConfigError(f"join(how={how!r}){did_you_mean(str(how), HOWS)}; there are {', '.join(HOWS)}")
    if broadcast is not None and how not in BROADCAST_HOWS:
        raise ConfigError(
            f"join(how={how!r}, broadcast=True): a task does not know whether others have a match for a right row; "
            f"leave broadcast out, or join by {', '.join(BROADCAST_HOWS)}"
        )
    given = f"on={on!r}" + (f", right_on={right_on!r}" if right_on is not None else "")
    name = f"join({given}, how={how!r}{'' if broadcast is None else ', broadcast=True'})"
    if broadcast is None:
        schemas = [schema_of(left), schema_of(right)]
        keys = Keys.checked(name, on, right_on, schemas, left_suffix, right_suffix)
        return Exchanged((left, right), Join(keys, how))
    rows = broadcast().replace_schema_metadata(None).combine_chunks()
    if is_blank(rows):
        rows = pa.table({key: pa.nulls(0) for key in key_columns("join", on if right_on is None else right_on)})
    if rows.nbytes > BROADCAST_BYTES:
        raise ConfigError(
            f"{name}: the right side has {format_bytes(rows.nbytes)}, of which every task would hold a copy; up to "
            f"{format_bytes(BROADCAST_BYTES)} are: leave broadcast out"
        )
    keys = Keys.checked(name, on, right_on, [schema_of(left), rows.schema], left_suffix, right_suffix)
    return Apply(left, BroadcastJoin(keys, how, rows, _digest(rows)))


def _digest(table: pa.Table) -> str:
    """Returns what stands for the rows of a table."""
    found = hashlib.sha256(str(table.schema).encode())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    found.update(sink.getvalue())
    return found.hexdigest()
