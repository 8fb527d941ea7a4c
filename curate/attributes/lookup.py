"""Reads attributes by the places of rows: of each output its positions, and those row groups that are asked for.

Rows come in the order of their file mostly, so that a row group is read once. A row of which the job has set aside its
own, or has written none, has null for all attributes, as long as the job says that it set so many aside.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.arrow.schema import conform
from curate.attributes.found import SHARDS, Found, another_version, object_of
from curate.dataclass import dataclass, field
from curate.errors import ConfigError, CorruptInput
from curate.formats.read.parquet_file import broken, open_parquet
from curate.late_pandas import numbers
from curate.objects.places import PLACE_TYPE, POSITION
from curate.objects.record import OutputFormat, read_record
from curate.objects.stream import StoredStream
from curate.stores.open import open_store

OPEN = 2
"""Outputs that are held open, and row groups of each that are held: rows that follow each other are neighbours."""


@dataclass(slots=True)
class _Output:
    """One output of the job: the attributes of one slice of a file."""

    file: Any
    stored: StoredStream
    rows: np.ndarray[Any, np.dtype[np.int64]]
    """The numbers of the rows that it has attributes of, ascending."""
    ends: np.ndarray[Any, np.dtype[np.int64]]
    """Rows up to the end of each row group."""
    set_aside: int
    """Rows that the job has none of, because it quarantined them."""
    missing: set[int] = field(default_factory=set)
    """Those of which none were found so far."""
    groups: OrderedDict[int, pa.Table] = field(default_factory=OrderedDict)


class Lookup:
    """The attributes of rows; keeps what it has read last."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._slices: dict[tuple[str, int, int], tuple[str, str]] | None = None
        self._outputs: OrderedDict[str, _Output] = OrderedDict()

    def of(self, places: pa.ChunkedArray) -> pa.Table:
        """Returns the attributes of rows at these places, in their order. Raises ConfigError for rows of which there
        can be none: of other files, another version of one, or another cut of it."""
        place = places.combine_chunks() if isinstance(places, pa.ChunkedArray) else places
        if place.null_count:
            raise ConfigError("with_attributes: there are rows without a place, whose position is null")
        file, generation, start, stop, row = (place.field(name) for name in PLACE_TYPE.names)
        of = (file, generation, start, stop)
        if len(place) and all(pc.all(pc.equal(one, one[0])).as_py() for one in of):
            # As nearly always: a batch has rows of one shard.
            return self._values(self._output(*(one[0].as_py() for one in of)), numbers(row))
        cut = (pc.cast(one, pa.string()) for one in (start, stop))
        run_of = pc.binary_join_element_wise(file, generation, *cut, "\0").dictionary_encode()
        codes = numbers(run_of.indices)
        rows = numbers(row)
        tables, order = [], []
        for code in range(len(run_of.dictionary)):
            at = np.flatnonzero(codes == code)
            first = int(at[0])
            output = self._output(*(one[first].as_py() for one in of))
            tables.append(self._values(output, rows[at]))
            order.append(at)
        if not tables:
            return self._found.schema.empty_table()
        made = pa.concat_tables(tables)
        if len(order) == 1:
            return made
        return made.take(pa.array(np.argsort(np.concatenate(order), kind="stable")))

    def _output(self, uri: str, generation: str, start: int, stop: int) -> _Output:
        if self._slices is None:
            columns = (self._found.shards[name].to_pylist() for name in SHARDS)
            self._slices = {(own, at, to): (id, made) for own, at, to, id, made in zip(*columns, strict=True)}
        there = self._slices.get((uri, start, stop))
        if there is None:
            raise ConfigError(self._nothing_of(uri, start, stop))
        id, made = there
        if made != generation:
            raise ConfigError(another_version(self._found.root, uri, made, generation))
        output = self._outputs.get(id)
        if output is None:
            output = self._outputs[id] = self._opened(id)
            if len(self._outputs) > OPEN:
                self._outputs.popitem(last=False)[1].stored.close()
        self._outputs.move_to_end(id)
        return output

    def _nothing_of(self, uri: str, start: int, stop: int) -> str:
        found = self._found
        cuts = sorted((at, to) for own, at, to in self._slices or () if own == uri)
        if not cuts:
            return (
                f"with_attributes: {found.root} has no attributes of {uri}, which the rows are from; they were made of "
                f"{found.shards['uri'][0].as_py()}"
            )
        told = ", ".join(_cut(*one) for one in cuts[:3]) + (", ..." if len(cuts) > 3 else "")
        return (
            f"with_attributes: the rows are from {_cut(start, stop)} of {uri}, and the attributes at {found.root} of "
            f"{told}: files have to be cut at the same shard_bytes, which are {found.shard_bytes:,} there"
        )

    def _opened(self, id: str) -> _Output:
        uri = f"{self._found.root}/{id}{self._found.suffix}"
        store, item = open_store(uri), object_of(self._found.root, uri)
        record = read_record(store, item, OutputFormat.PARQUET, "")
        if record is None or record.get("fingerprint") != self._found.fingerprint:
            raise ConfigError(
                f"with_attributes: {uri} is of another job ({(record or {}).get('fingerprint', 'no record')}) than the "
                f"attributes were looked up of ({self._found.fingerprint}); it was made again meanwhile: run again"
            )
        stored = StoredStream(store, item)
        file = open_parquet(stored)
        with broken(stored):
            place = file.read(columns=[f"{POSITION}.row"], use_threads=False)[POSITION].combine_chunks()
        rows = numbers(place.field("row")).astype(np.int64)
        if np.any(np.diff(rows) <= 0):
            raise CorruptInput(f"{uri}: its positions do not ascend")
        groups = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
        return _Output(file, stored, rows, np.cumsum(groups, dtype=np.int64), int(record["rows"].get("quarantined", 0)))

    def _values(self, output: _Output, rows: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Table:
        """Returns the attributes of rows of one output."""
        schema = self._found.schema
        at = np.searchsorted(output.rows, rows)
        there = at < len(output.rows)
        there[there] = output.rows[at[there]] == rows[there]
        if not there.all():
            output.missing.update(rows[~there].tolist())
            if len(output.missing) > output.set_aside:
                raise ConfigError(
                    f"with_attributes: {output.stored.uri} has the attributes of {len(output.rows):,} rows, and "
                    f"{output.set_aside:,} were set aside; row {int(rows[~there][-1]) + 1:,} of the data is neither: "
                    "the data is read otherwise than it was for the attributes"
                )
        if not len(schema):
            return pa.table({}, schema=schema)
        groups = np.searchsorted(output.ends, at, side="right")
        if (
            len(at)
            and there.all()
            and groups[0] == groups[-1]
            and at[-1] - at[0] == len(at) - 1
            and np.all(np.diff(at) == 1)
        ):
            group = int(groups[0])
            start = int(at[0]) - (int(output.ends[group - 1]) if group else 0)
            return self._group(output, group).slice(start, len(at))
        parts, order = [], []
        for group in np.unique(groups[there]).tolist():
            own = np.flatnonzero(there & (groups == group))
            before = int(output.ends[group - 1]) if group else 0
            parts.append(self._group(output, group).take(pa.array(at[own] - before)))
            order.append(own)
        if not there.all():
            gone = np.flatnonzero(~there)
            parts.append(pa.table([pa.nulls(len(gone), one.type) for one in schema], schema=schema))
            order.append(gone)
        if len(parts) == 1:
            return parts[0]
        return pa.concat_tables(parts).take(pa.array(np.argsort(np.concatenate(order), kind="stable")))

    def _group(self, output: _Output, group: int) -> pa.Table:
        if group not in output.groups:
            with broken(output.stored):
                table = output.file.read_row_group(group, columns=self._found.schema.names, use_threads=False)
            output.groups[group] = conform(
                table.select(self._found.schema.names), self._found.schema, output.stored.uri
            )
            if len(output.groups) > OPEN:
                output.groups.popitem(last=False)
        output.groups.move_to_end(group)
        return output.groups[group]


def _cut(start: int, stop: int) -> str:
    return f"{start:,} to {stop:,}" if stop else "the whole"
