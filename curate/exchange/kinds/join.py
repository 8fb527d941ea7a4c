"""Joins: rows of two datasets that have equal keys, side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from curate.arrow.order import Order
from curate.arrow.recast import decoded
from curate.arrow.schema import cast, widen
from curate.arrow.types import value_type
from curate.dataclass import dataclass
from curate.errors import ConfigError, SchemaMismatch
from curate.exchange.kinds.base import Regrouping, key_columns, order_by
from curate.exchange.kinds.merge_join import JoinedRows, coalesce, match_keys, rows_of, take_or_null
from curate.exchange.protocol import ReducePart
from curate.log import get_logger
from curate.operators.protocol import Operator
from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import READ_ROWS, BatchPosition

UNMATCHED = "unmatched"
"""Why rows are dropped for whose key there is none on the other side."""
MATCHED = "matched"
"""Why an anti join drops left rows."""
JOINED = "joined"
"""Why right rows are dropped that became part of the rows that came of left ones, or were only looked for."""


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
                column = cast(f"{self.name}: the key", decoded(table.column(place)), schema.field(place))
                table = table.set_column(place, schema.field(place), column)
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
        for name, times in Counter(names).items():
            if times > 1:
                raise ConfigError(
                    f"{self.name} would make {times} columns called {name!r}; pass left_suffix and "
                    "right_suffix, or rename one of them first"
                )
        return pa.schema([pa.field(one.name, one.type) for one in made])

    def _types(self, mine: str, type: pa.DataType, other: str, found: pa.DataType) -> str:
        return (
            f"{self.name}: the key {mine!r} is {type} on the left, {other!r} is {found} on the right; keys must have "
            "one type (the width of numbers and the unit of times may differ): cast one first, with "
            "with_column() or map_batches()"
        )

    @classmethod
    def checked(
        cls, name: str, on: Any, right_on: Any, schemas: Sequence[pa.Schema | None], left_suffix: str, right_suffix: str
    ) -> Keys:
        """Returns the keys that `on` and `right_on` say. Raises ConfigError, also for types that are not compared."""
        left = key_columns(name, on)
        right = left if right_on is None else key_columns(name, right_on)
        if len(left) != len(right):
            raise ConfigError(f"{name}: {len(left)} columns on the left, {len(right)} on the right; name equally many")
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
    """Returns the type for the values of two, which differ in width at most, or unit of time; None without one.

    >>> common_type(pa.int32(), pa.uint32()), common_type(pa.int64(), pa.string())
    (DataType(int64), None)
    >>> common_type(pa.timestamp("ms"), pa.timestamp("us"))
    TimestampType(timestamp[us])
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
    if pt.is_temporal(left) and pt.is_temporal(right):
        return widen(left, right)
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
class KeyTypes(Operator):
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

    def apply(self, table: pa.Table, tally: ShardBooks, place: BatchPosition) -> Iterator[pa.Table]:
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

    def combine(self, tables: Sequence[pa.Table], tally: ShardBooks, part: ReducePart) -> Iterator[pa.Table]:
        left, right = tables
        if part.number == 0 and not part.skip:
            self._warn_of_no_columns(left, right)
        if not left.num_rows and not right.num_rows:
            return
        left, right = self._known(0, left, right), self._known(1, right, left)
        schema = self.keys.joined(left.schema, right.schema, self.how)
        named = right.select(self.keys.right).rename_columns(self.keys.left)
        meeting = match_keys(order_by(self.keys.left), left, named)
        joining = JoinedRows.of(meeting, self.how)
        self._book(joining, left, right, tally)
        keys = frozenset(self.keys.right)
        others = right.select([name for name in right.column_names if name not in keys])
        for left_rows, right_rows in joining.slices(READ_ROWS):
            rows = take_or_null(left, left_rows)
            if self.how in ("semi", "anti"):
                yield rows
                continue
            columns = list(rows.columns)
            if self.how in ("right", "outer"):
                keys = take_or_null(named, right_rows)
                for key in self.keys.left:
                    number = left.schema.get_field_index(key)
                    columns[number] = coalesce(columns[number], keys.column(key), left_rows)
            yield pa.table([*columns, *take_or_null(others, right_rows).columns], schema=schema)

    def _warn_of_no_columns(self, left: pa.Table, right: pa.Table) -> None:
        """Says that columns are missing from what is made: where rows without a partner are kept, whatever the other
        side would have had beside its keys is null in none of them."""
        for name, table, other, hows in (
            ("left", left, right, ("right", "outer")),
            ("right", right, left, ("left", "outer")),
        ):
            if self.how in hows and other.num_columns and not table.num_columns:
                get_logger().warning(
                    "a side of a join has no rows, and nobody knows its columns: the joined rows have none of them",
                    join=self.name,
                    side=name,
                    next="declare the columns of what makes that side: output_schema, of map_batches, map or flat_map",
                )

    def _known(self, side: int, table: pa.Table, other: pa.Table) -> pa.Table:
        """Returns a side with key columns: one without rows, made by a function that was not run, may have none."""
        if table.num_rows or set(self.keys.of(side)) <= set(table.column_names):
            return table
        types = [other.schema.field(key).type for key in self.keys.of(1 - side)]
        return pa.schema(list(map(pa.field, self.keys.of(side), types))).empty_table()

    def _book(self, joining: JoinedRows, left: pa.Table, right: pa.Table, tally: ShardBooks) -> None:
        meeting, pairs = joining.meeting, joining.pairs
        matched = meeting.matched
        tally.books.created += int(((meeting.right_counts - 1) * meeting.left_counts * pairs).sum())
        tally.drop(int((meeting.right_counts * matched).sum()), JOINED)
        if self.how == "anti":
            tally.drop_rows(left, rows_of(meeting.left_starts, meeting.left_counts * matched, left.num_rows), MATCHED)
        for table, starts, counts, alone in (
            (left, meeting.left_starts, meeting.left_counts, joining.left_alone),
            (right, meeting.right_starts, meeting.right_counts, joining.right_alone),
        ):
            gone = (counts - alone) * ~matched
            tally.drop_rows(table, rows_of(starts, gone, table.num_rows), UNMATCHED)
