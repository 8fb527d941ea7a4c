"""The rows of a slice of a file, as all have them who read files: booked, with their places where these are asked for.

Of Parquet files behind filters, row groups that one of them drops whole, as statistics or folders say, are not read.
Their rows are booked as read, and as dropped for the reason of the filter that a row fails first, as if all were read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa

from curate.arrow.expressions import columns_of, filter_by, with_wide_literals
from curate.arrow.schema import plain, widens
from curate.dataclass import dataclass, replace
from curate.formats.encoding import Encoding, Format
from curate.formats.file_columns import file_columns, filled_in
from curate.formats.file_slice import FileSlice
from curate.formats.read.parquet_file import broken, refuse_damaged_chunks
from curate.formats.rows import read
from curate.formats.statistics import misled_by_statistics
from curate.objects.bad_line import RowNumbers
from curate.objects.places import with_places
from curate.pipeline.shard_books import ShardBooks, counted
from curate.storage.protocol import Store
from curate.tasks.shard import Shard, SliceKind

Filters = Sequence[tuple[Any, str]]
"""Expressions, each with a reason; nothing before them drops rows."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group of a file."""

    number: int
    rows: int
    left_out_by: int | None = None
    """The number of the first filter that drops all of its rows; None: it is to be read."""


def row_groups(file: FileSlice, filters: Filters, schema: pa.Schema) -> list[RowGroup]:
    """Returns the row groups of a file that is read as `schema`, with what is known of them. Raises CorruptInput."""
    import pyarrow.dataset as pads

    with file.open_stored() as stored, broken(stored):
        fragment = pads.ParquetFileFormat().make_fragment(pa.PythonFile(stored, mode="r"))
        there, metadata = fragment.physical_schema, fragment.metadata
        refuse_damaged_chunks(stored, metadata)
    groups = [RowGroup(number, metadata.row_group(number).num_rows) for number in range(metadata.num_row_groups)]
    if not metadata.num_rows:
        # Where no row has told its columns, there is none for a filter to look at.
        return groups
    names, times = frozenset(file_columns(file.how).names), Counter(there.names)
    of_file = pa.schema([field for field in schema if field.name in names])
    inside = pa.schema([field for field in schema if field.name not in names])
    for field in inside:
        # Reading it sets nulls aside, says what is wrong, or fills a column that is missing.
        if not field.nullable or times[field.name] != 1:
            return groups
        if not widens(plain(there.field(field.name).type), field.type):
            return groups
    for number, (expression, _) in enumerate(filters):
        looked_at = columns_of(expression, schema)
        if looked_at and looked_at <= set(of_file.names):
            (row,) = filled_in(file.uri, iter([pa.table({"": [None]})]), of_file, file.how)
            left = {one.number for one in groups} if filter_by(row, expression).num_rows else set[int]()
        elif looked_at <= set(inside.names) and not misled_by_statistics(expression, inside):
            try:
                exact = with_wide_literals(expression, inside)
                left = {group.id for group in fragment.subset(exact, schema=inside).row_groups}
            except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
                # Of a type that statistics say nothing of, or not to be computed of what they say, such as a division
                # by zero: a filter before it may drop such rows, and otherwise they say so when they are read.
                break
        else:
            break  # it has to be seen which rows it drops
        groups = [
            replace(one, left_out_by=number) if one.left_out_by is None and one.number not in left else one
            for one in groups
        ]
    return groups


def slice_rows(
    store: Store,
    shard: Shard,
    encoding: Encoding,
    schema: pa.Schema,
    batch_rows: int,
    tally: ShardBooks,
    *,
    filters: Filters = (),
    places: Sequence[str] = (),
    declared: bool = False,
) -> Iterator[pa.Table]:
    """Yields the rows of a shard as `schema`, behind which come columns of the `places` of rows, in batches of at most
    `batch_rows` rows; books them as read as they are taken, and those that are bad.

    `filters` are the first steps over the rows, if these are filters, and are looked at in Parquet files only, where no
    places are asked for. `declared`: somebody has said which columns there are, so that others are left out on purpose.
    """
    file = FileSlice.of(store, shard, encoding)
    if filters and not places and encoding.format is Format.PARQUET:
        # Of row groups that are left out, nobody counts the rows.
        tally.numbers = None
        return counted(_read_filtered(file, filters, schema, batch_rows, tally), tally)
    told = tally.bad_row, tally.blank_line, None if declared else tally.other_keys
    tally.numbers = numbers = RowNumbers(unit=encoding.unit)
    tables = read(file, schema, batch_rows, *told)
    return counted(with_places(tables, shard, numbers, places) if places else tables, tally)


def _read_filtered(
    file: FileSlice, filters: Filters, schema: pa.Schema, batch_rows: int, tally: ShardBooks
) -> Iterator[pa.Table]:
    """Yields the rows of a slice of a Parquet file as `schema`, as `read` does, but for row groups that one of the
    filters drops whole: these are booked."""
    groups = row_groups(file, filters, schema)[file.start : file.stop]
    if all(one.left_out_by is None for one in groups):
        yield from read(file, schema, batch_rows, tally.bad_row)
        return
    for left_out_by, found in groupby(groups, key=lambda one: one.left_out_by):
        some = list(found)
        part = file.part(SliceKind.ROW_GROUPS, some[0].number, some[-1].number + 1)
        if left_out_by is None:
            yield from read(part, schema, batch_rows, tally.bad_row)
            continue
        rows = left = sum(one.rows for one in some)
        tally.books.rows_in += rows
        before, (_, reason) = filters[:left_out_by], filters[left_out_by]
        for dropped, own in _dropped(part, before, schema, batch_rows, tally):
            tally.drop(dropped, own)
            left -= dropped
        tally.drop(left, reason)


def _dropped(
    file: FileSlice, filters: Filters, schema: pa.Schema, batch_rows: int, tally: ShardBooks
) -> Iterator[tuple[int, str]]:
    """Yields how many rows of some row groups filters drop, each with its reason; reads what they look at alone."""
    if not filters:
        return
    of_file = file_columns(file.how).names
    # One inside at least, which tells how many rows there are.
    inside = next(name for name in schema.names if name not in of_file)
    names = {inside}.union(*(columns_of(expression, schema) for expression, _ in filters))
    looked_at = pa.schema([field for field in schema if field.name in names])
    how = None if file.how is None else replace(file.how, whole=False, beside=None)
    narrow = replace(file, encoding=replace(file.encoding, how=how, job_reads_all=False))
    for table in read(narrow, looked_at, batch_rows, tally.bad_row):
        for expression, reason in filters:
            kept = filter_by(table, expression)
            yield table.num_rows - kept.num_rows, reason
            table = kept
