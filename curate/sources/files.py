"""Files as a source of rows, in pieces: one task reads each, and always gets the same batches.

A piece is a shard: what a write makes one output of, with the same id. Small ones are bundled: one task reads several,
one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.arrow.schema import may_be_strict
from curate.arrow.types import type_to_read
from curate.dataclass import dataclass, replace
from curate.errors import ConfigError, CorruptInput, PermissionDenied, SchemaMismatch, did_you_mean, listed
from curate.formats.encoding import Encoding, Format, ReadAs, detect
from curate.formats.file_columns import PATH, file_columns, partition_schema, with_file_columns
from curate.formats.file_schema import refuse_mismatch
from curate.formats.file_slice import FileSlice
from curate.formats.read.parquet_file import read_footer
from curate.formats.rows import SAMPLED_FILES, check_declared, known_schema, sample_schema
from curate.ledger.packed import BLOCK_ROWS
from curate.log import get_logger
from curate.objects.places import placed_schema
from curate.pipeline.shard_books import ShardBooks
from curate.prefetch import ahead
from curate.sources.columns import MORE_BYTES, first_schema, objects_in, refuse_other_types, some_of, warn_of_misfits
from curate.sources.listing import SCHEMA, list_inputs
from curate.sources.patterns import parse_input
from curate.sources.planning import shards_of
from curate.sources.protocol import FileListing, Piece, Projection, StoreOf
from curate.sources.slice_rows import row_groups, slice_rows
from curate.sources.split import bundled
from curate.sources.upstream import list_whole, refuse_holes, warn_of_holes
from curate.storage.protocol import Object
from curate.stores.open import open_store
from curate.tasks.shard import Shard, SliceKind
from curate.units import format_bytes, format_count

READERS = 8
"""Footers that are read at once."""

_FILLED = (Format.JSONL, Format.CSV, Format.TFRECORDS)
"""Formats of which a row, or a file, that lacks a declared column has null there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileShards(FileListing):
    """Files, of which each shard is a piece."""

    fills: ClassVar[bool] = True
    """Whether a column that a file does not have is null there."""

    @property
    def found(self) -> pa.Schema:
        """The schema of the rows."""
        raise NotImplementedError

    def encoding(self, uri: str) -> Encoding:
        """Returns how a file is read."""
        raise NotImplementedError

    def pieces(self) -> Iterator[Piece]:
        """Yields the shards of the files, in order."""
        for _, shards in ahead(self._shards, self._named(), READERS, when=self._may_be_cut):
            yield from (Piece(one.id, label(one), one.size_bytes, one) for one in shards)

    def bundles(self) -> Iterator[tuple[Piece, ...]]:
        """Yields shards that one task reads."""
        return bundled(self.pieces(), lambda piece: piece.size)

    def bare(self) -> Self:
        """Returns it without its listing."""
        return replace(self, listing=SCHEMA.empty_table())

    def generation(self, data: Shard) -> str:
        """Returns the generation of a piece's file."""
        return data.generation

    def refuse_keys(self, what: str, columns: Sequence[str]) -> None:
        """Raises ConfigError if one of these columns cannot be read, in some Parquet files, as the type that it has in
        the schema of the rows. Reads footers."""
        if not columns:
            return  # such as a shuffle's, which no file has: the listing is long
        files = [item for item, _ in self._named() if self.encoding(item.uri).format is Format.PARQUET]
        refuse_other_types(what, columns, self.found, files, nulls_for_missing=self.fills)

    def warn_of_misfits(self, view: Projection) -> None:
        """Warns of files that cannot be read for a view, as far as some of them show."""
        raise NotImplementedError

    def _named(self) -> Iterator[tuple[Object, str]]:
        # Block by block: as Python objects, a million of files would take a gigabyte.
        for block in self.listing.to_batches(max_chunksize=BLOCK_ROWS):
            uris, names, sizes, generations = (column.to_pylist() for column in block.columns)
            yield from zip(map(Object, uris, sizes, generations), names, strict=True)

    def _shards(self, named: tuple[Object, str]) -> list[Shard]:
        item, name = named
        return list(shards_of(item, name, self.encoding(item.uri), self.shard_bytes, open_store))

    def _may_be_cut(self, named: tuple[Object, str]) -> bool:
        # The footers of large Parquet files are read for that, and the beginning of large ones of JSON.
        formats = (Format.PARQUET, Format.JSONL)
        return named[0].size > self.shard_bytes and self.encoding(named[0].uri).format in formats


@dataclass(frozen=True, slots=True)
class Files(FileShards):
    """The rows of files of one format."""

    method: str
    how: ReadAs
    schema: pa.Schema
    num_cpus: float | None = None
    allow_incomplete_input: bool = False
    """Whether to read the output of a job that is not all there."""
    places: tuple[str, ...] = ()
    """Names of columns that say where a row lies, the last ones. Then no row group is left out, whose rows nobody would
    count, and files are cut into the same pieces whatever reads them."""

    @property
    def name(self) -> str:
        return f"{self.method}({', '.join(map(repr, self.paths))})"

    @property
    def format(self) -> Format:
        """The format of all files."""
        return self.how.format

    @property
    def found(self) -> pa.Schema:
        return placed_schema(self.schema, self.places)

    def placed(self, name: str, shard_bytes: int | None = None) -> Files:
        """Returns it with the places of rows as a column of this name, cut into pieces of `shard_bytes`."""
        names = tuple(dict.fromkeys([*self.places, name]))
        return replace(self, places=names, pinned=True, shard_bytes=shard_bytes or self.shard_bytes)

    @property
    def inside(self) -> pa.Schema:
        """The columns that files have inside: all but their paths, and what folders say."""
        of_file = file_columns(self.how).names
        return pa.schema([field for field in self.schema if field.name not in of_file])

    def encoding(self, uri: str) -> Encoding:
        return detect(uri, self.how)

    def identity(self) -> Any:
        return ["files", self.how.identity(), *self.places]

    def read(
        self, data: Shard, view: Projection, batch_rows: int, tally: ShardBooks, store_of: StoreOf
    ) -> Iterator[pa.Table]:
        names, schema = self.columns_in(view), self.schema_in(view)
        return slice_rows(
            *(store_of(data.uri), data, detect(data.uri, self.reading(view)), schema, batch_rows, tally),
            filters=view.filters,
            places=self.places_in(view),
            declared=names is not None or view.named or self.how.schema is not None,
        )

    def places_in(self, view: Projection) -> tuple[str, ...]:
        """Returns the names of the columns of places that a view has."""
        return tuple(one for one in self.places if view.columns is None or one in view.columns)

    def columns_in(self, view: Projection) -> tuple[str, ...] | None:
        """Returns the columns of files that a view has; None: all."""
        if view.columns is None:
            return None
        return tuple(one for one in view.columns if one not in self.places or one in self.schema.names)

    def schema_in(self, view: Projection) -> pa.Schema:
        """Returns the columns of files that a view has, with their types."""
        names = self.columns_in(view)
        return self.schema if names is None else pa.schema([self.schema.field(one) for one in names])

    def warn_of_misfits(self, view: Projection) -> None:
        if self.format is Format.PARQUET and len(self.listing) > 1:
            warn_of_misfits(some_of(self.listing), self.schema_in(view), lambda uri: detect(uri, self.reading(view)))

    def reading(self, view: Projection) -> ReadAs:
        """Returns how the files are read for a view."""
        if view.columns is None:
            return self.how
        strict = [one for one in self.inside if self.pinned and one.name not in view.columns and may_be_strict(one)]
        return replace(self.how, whole=False, beside=pa.schema(strict) if strict else None)

    def count(self) -> int | None:
        if self.format is Format.BINARY:
            return int(self.listing.num_rows)
        if self.format is not Format.PARQUET:
            return None
        with ThreadPoolExecutor(READERS) as pool:
            strict = [one for one in self.inside if may_be_strict(one)]
            found = list(pool.map(lambda named: _rows_in_footer(named[0], strict), self._named()))
        return None if None in found else sum(one for one in found if one is not None)

    def describe(self) -> str:
        """Returns how much there is to read, as far as the listing tells: files, stored bytes, shards."""
        sizes = self.listing["size"].to_numpy()
        large = np.flatnonzero(sizes > self.shard_bytes)
        split = [int(one) for one in large if detect(self.listing["uri"][int(one)].as_py(), self.how).divisible]
        shards = len(sizes) + sum(-(-int(sizes[one]) // self.shard_bytes) - 1 for one in split)
        packed = len(sizes) and detect(self.listing["uri"][0].as_py(), self.how).codec is not None
        # Where a Parquet file can be cut, its row groups tell.
        about = "about " if split and self.format is Format.PARQUET else ""
        return (
            f"{format_count(len(sizes), 'file')}, {format_bytes(int(sizes.sum()))}{' compressed' if packed else ''}, "
            f"{about}{format_count(shards, 'shard')}"
        )

    def pruned(self, view: Projection) -> str:
        """Returns how many row groups a view leaves of the first files, whose footers it reads."""
        if not view.filters:
            return ""
        items = [item for item, _ in islice(self._named(), READERS)]

        def groups(item: Object) -> tuple[int, int]:
            encoding = detect(item.uri, self.how)
            found = row_groups(FileSlice(open_store(item.uri), item, encoding), view.filters, self.schema)
            return sum(one.left_out_by is None for one in found), len(found)

        with ThreadPoolExecutor(READERS) as pool:
            left, there = map(sum, zip(*pool.map(groups, items), strict=True))
        where = "" if len(items) == len(self.listing) else f" in the first {format_count(len(items), 'file')}"
        return f"{left:,} of {format_count(there, 'row group')} left{where}"


def files(
    method: str,
    format: Format,
    paths: Sequence[str],
    how: ReadAs | None = None,
    num_cpus: float | None = None,
    allow_incomplete_input: bool = False,
    partitioning: str | None = None,
    columns: Sequence[str] | None = None,
) -> Files:
    """Lists files and finds their schema: as it was declared, else that of the first that has rows. With
    `partitioning="hive"`, the columns that folders name and these files do not have inside are part of it. Columns of
    Parquet files that have one name are not, if there are `columns` that leave it out.

    Raises ConfigError for a path that matches nothing, for the output of a job that is not complete, or not all there,
    unless that is allowed, for a file of another format, or a declared schema that the first
    Parquet file cannot be read as; CorruptInput if the files that are looked at cannot be read.
    """
    if not paths:
        raise ConfigError(f"{method} needs at least one path")
    if num_cpus is not None and (isinstance(num_cpus, bool) or not num_cpus > 0):
        raise ConfigError(f"{method}(num_cpus={num_cpus!r}): expected a number of CPUs above 0")
    if partitioning not in (None, "hive"):
        raise ConfigError(f"{method}(partitioning={partitioning!r}): expected 'hive' (folders like year=2024) or None")
    how = how or ReadAs(format)
    if how.schema is not None:
        how = replace(how, schema=check_declared(method, format, how.schema))
    patterns = [parse_input(path) for path in paths]
    inputs, holes = list_whole(patterns, lambda: list_inputs(patterns, open_store), open_store)
    if allow_incomplete_input:
        warn_of_holes(holes, method)
    else:
        refuse_holes(holes, open_store, f"{method}(..., allow_incomplete_input=True)")
    listing = inputs.table.table()
    for uri in listing["uri"].to_pylist():
        try:
            detect(uri, how)
        except ConfigError as error:
            raise ConfigError(f"{method} was given {uri!r}: {error}") from error
    found = Files(
        *(method, replace(how, include_paths=False), pa.schema([]), num_cpus, allow_incomplete_input),
        paths=tuple(paths),
        listing=listing,
        holes=tuple(holes),
    )
    asked = columns if how.schema is None else how.schema.names
    schema, first = _sampled(found, None if asked is None else frozenset(asked))
    if how.schema is None:
        if how.include_paths and PATH in schema.names:
            raise ConfigError(f"{method}(include_paths=True): {first} already has a column {PATH!r}; omit it")
        how = replace(how, first=first)
    if partitioning is not None:
        named = partition_schema(listing["uri"].to_pylist(), how.schema)
        taken = [*(schema.names if how.schema is None else ()), *([PATH] if how.include_paths else ())]
        how = replace(how, partitions=pa.schema([one for one in named if one.name not in taken]) or None)
    _warn_of_absent(found, how)
    schema = with_file_columns(schema, how) if len(schema) else schema
    return replace(found, schema=schema, how=how if how.schema is None else replace(how, schema=schema))


def _sampled(source: Files, asked: frozenset[str] | None) -> tuple[pa.Schema, str]:
    """Returns the schema of all files, and the file that it is from."""
    how = source.how
    known = known_schema(how)
    if known is not None and how.format is not Format.PARQUET:
        return known, ""
    listing = source.listing
    filled = listing.filter(pc.greater(listing["size"], 0))
    schema, first, problem = first_schema(
        objects_in(filled.slice(0, SAMPLED_FILES) if len(filled) else listing.slice(0, 1)),
        # What is declared is compared with what the first file itself has.
        lambda: some_of(filled) if known is None else [],
        lambda uri: detect(uri, replace(how, schema=None, asked=asked)),
        open_store,
    )
    if known is not None:
        if first:
            try:
                refuse_mismatch(first, schema, known, detect(first, how))
            except SchemaMismatch as error:
                raise ConfigError(f"{source.method}(schema=...): {error}") from error
        return known, ""
    if problem is not None and not len(schema):
        raise problem
    return schema.remove_metadata(), first


def _warn_of_absent(source: Files, how: ReadAs) -> None:
    """Says which declared columns the beginning of the first file does not have, as rows without one get nulls: it may
    be a slip of the pen. Nothing is refused, as rows further on may have it, and what cannot be read says so later."""
    if how.schema is None or how.format not in _FILLED:
        return
    for item in objects_in(source.listing.filter(pc.greater(source.listing["size"], 0)).slice(0, 1)):
        own = replace(how, schema=None, partitions=None, include_paths=False)
        try:
            file = FileSlice(open_store(item.uri), item, detect(item.uri, own))
            there = sample_schema(file, None, MORE_BYTES).names
        except (ConfigError, CorruptInput, PermissionDenied):
            return
        known = frozenset((*there, *file_columns(how).names))
        absent = [one for one in how.schema.names if one not in known]
        if absent and there:
            get_logger(job=source.method).warning(
                "declared columns that the first rows do not have; rows without them get nulls",
                columns=f"{listed(absent)}{did_you_mean(absent[0], there) if len(absent) == 1 else ''}",
                rows_have=listed(there),
                file=item.uri,
            )


def label(shard: Shard) -> str:
    """Returns what a shard is called in errors."""
    if shard.kind is SliceKind.WHOLE:
        return shard.uri
    return f"{shard.uri}, {shard.kind.value.replace('_', ' ')} {shard.start:,} to {shard.stop:,},"


def _rows_in_footer(object: Object, strict: Sequence[pa.Field]) -> int | None:
    """Returns how many rows a file has; None where nulls in columns that have none may make some bad."""
    footer = read_footer(open_store(object.uri), object)
    own = {one.name: one for one in footer.schema.to_arrow_schema()} if strict and footer.num_rows else {}
    for field in strict if own else ():
        found = own.get(field.name)
        if found is None or (found.nullable and not field.nullable) or not type_to_read(found.type).equals(field.type):
            return None
    return int(footer.num_rows)
