"""A job's inputs as the source of a plan: files of any format, read with the job's settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from curate.arrow.schema import conform, format_schema
from curate.dataclass import dataclass
from curate.errors import ConfigError
from curate.formats.encoding import Encoding, detect, stem
from curate.formats.file_columns import partition_values
from curate.log import get_logger
from curate.objects.places import placed_schema
from curate.pipeline.shard_books import ShardBooks
from curate.resume.options import no_input, resolve_output
from curate.resume.schemas import with_input_schemas
from curate.sources.files import FileShards
from curate.sources.inputs import FileRows
from curate.sources.patterns import parse_input, refuse_overlap
from curate.sources.protocol import Projection, RowSource, StoreOf
from curate.sources.upstream import list_whole, refuse_holes
from curate.stage.stage import RunRequest, Stage
from curate.stores.open import Stores
from curate.tasks.shard import Shard


@dataclass(frozen=True, slots=True)
class JobFiles(FileShards):
    """The rows of a job's inputs: files whose suffixes say how they are read, in the order of their listing."""

    rows: RowSource
    """What says how they are read."""
    num_cpus: float | None = None
    name = "input"
    fills = False

    @property
    def found(self) -> pa.Schema:
        """The schema of the rows, whichever format they come from."""
        first = next(iter(self.rows.schemas.values()), pa.schema([]))
        places = self.rows.places if isinstance(self.rows, FileRows) else ()
        return placed_schema(pa.schema([one.with_nullable(True) for one in first]), places)

    def encoding(self, uri: str) -> Encoding:
        """Returns how a file is read: its suffix says so."""
        return detect(uri)

    def warn_of_misfits(self, view: Projection) -> None:
        del view
        self.rows.warn_of_misfits(self.listing)

    def warn_of_folders(self, job: str) -> None:
        """Says which columns datasets have of folders, and rows of a job lose: its outputs do not lie in these."""
        if not isinstance(self.rows, FileRows) or self.rows.columns is not None:
            return
        values: dict[str, set[str | None]] = {}
        for folder in dict.fromkeys(uri.rpartition("/")[0] for uri in self.listing["uri"].to_pylist()):
            for key, value in partition_values(f"{folder}/").items():
                values.setdefault(key, set()).add(value)
        known = frozenset(self.found.names)
        lost = [key for key, some in values.items() if len(some) > 1 and key not in known]
        if lost:
            get_logger(job=job).warning(
                f"rows lose what their folders say ({lost[0]}=...): it is a column for datasets, and not for jobs, and "
                "the outputs lie in other folders",
                columns=lost,
                next="write it into the files first: curate.read_parquet(INPUT).write_parquet(OTHER)",
            )

    def identity(self) -> Any:
        """Returns nothing of its own: how a job's inputs are read is part of the job's identity."""
        return ["input"]

    def count(self) -> int | None:
        """Returns None: files have to be looked at."""
        return None

    def read(
        self, data: Shard, view: Projection, batch_rows: int, tally: ShardBooks, store_of: StoreOf
    ) -> Iterator[pa.Table]:
        """Yields a piece's rows, which are booked as they are taken; those that do not fit are bad."""
        del view
        ((_, _, tables),) = self.rows.parts(data, 0, None, batch_rows, tally, store_of)
        return tables if len(self.rows.schemas) == 1 else (conform(table, self.found, data.uri) for table in tables)


@dataclass(frozen=True, slots=True)
class NotListed:
    """The rows of a job's inputs, whatever they will be: the source that `build` is given before a run lists them."""

    found: pa.Schema | None
    name: str = "input"
    num_cpus: float | None = None
    positions: bool = False
    """Whether the rows will have the column of their positions."""

    def bare(self) -> NotListed:
        return self

    def count(self) -> int | None:
        return None

    def _not_yet(self, *_: Any, **__: Any) -> Any:
        raise ConfigError("build() only describes the work and cannot read rows; return the dataset")

    pieces = bundles = read = generation = identity = _not_yet


def _refuse_namesakes(listing: pa.Table) -> None:
    """Raises ConfigError if two files have one name: it is by these that rows are told apart, wherever they lie."""
    seen: dict[str, str] = {}
    for uri, name in zip(listing["uri"].to_pylist(), listing["name"].to_pylist(), strict=True):
        if (other := seen.setdefault(stem(name), uri)) is not uri:
            raise ConfigError(
                f"{other!r} and {uri!r} have the same name, {stem(name)!r}: an input is named by its path below "
                "the given folder, without the suffix; pass a directory above both, or rename one of them"
            )


def list_for(stage: Stage, asked: RunRequest, checkpoints: Sequence[str] = ()) -> JobFiles:
    """Lists the inputs that a run was asked to read, and looks into the first of each format for their schema.

    `stage` says which columns are read. Raises ConfigError for inputs that are not there, lie in the output or around
    one of the `checkpoints`, are those of a job that is not complete, have one name, or are of several formats
    whose columns differ.
    """
    if not asked.inputs:
        raise ConfigError(no_input())
    patterns = [parse_input(text) for text in asked.inputs]
    for output in (asked.output, *checkpoints):
        refuse_overlap(patterns, resolve_output(output))
    stores = Stores()
    inputs, holes = list_whole(patterns, lambda: stage.rows.inputs(patterns, stores.of), stores.of)
    if not asked.allow_incomplete_input:
        refuse_holes(holes, stores.of)
    listing = inputs.table.table()
    _refuse_namesakes(listing)
    rows = with_input_schemas(stage, None, inputs, listing["uri"].to_pylist(), stores).rows
    places = rows.places if isinstance(rows, FileRows) else ()
    size, told = stage.tasks.shard_bytes, tuple(holes)
    found = JobFiles(rows, listing=listing, shard_bytes=size, holes=told, pinned=bool(places))
    for format, schema in rows.schemas.items():
        plain = placed_schema(pa.schema([one.with_nullable(True) for one in schema]), places)
        # By types, and not as text: what the values of a list are called differs with the format, and is no difference.
        if {one.name: one.type for one in plain} != {one.name: one.type for one in found.found}:
            raise ConfigError(
                "an exchange reads inputs of several formats whose columns differ: "
                f"{next(iter(rows.schemas))} ({format_schema(found.found)}), {format} ({format_schema(plain)}); "
                "name the columns with their types in `columns`, or pass files of one format"
            )
    return found
