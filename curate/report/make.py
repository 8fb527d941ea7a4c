"""Makes a report: runs the job that sketches a corpus shard by shard, merges the sketches, and reads the books of the
job that made the corpus.

Sketches are outputs of a dataset's write, so a report is sharded, resumable and runs anywhere, and grows with its
corpus. They are merged in the order of the plan: the report is the same at any parallelism.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from curate.arrow.expressions import refuse_unknown
from curate.arrow.unknown import all_nullable, told_as_text
from curate.clock import SystemClock
from curate.dataclass import dataclass, replace
from curate.dataset.dataset import Dataset
from curate.dataset.read import files as read
from curate.errors import ConfigError, CorruptInput, ObjectNotFound, WriteFailed
from curate.formats.encoding import Format, ReadAs, detect
from curate.keywords import naming_columns, option
from curate.ledger.compression import decompress
from curate.ledger.segments import done_events
from curate.ledger.stages import LAST, StageReport
from curate.log import get_logger
from curate.objects.samples import MOST_SAMPLED, DroppingShards, lowest, read_samples
from curate.observe.browse import by_reason, inputs_of_job, quarantined
from curate.observe.job import FoundJob, find_job, status_of
from curate.observe.place import NoJobError
from curate.observe.status import JobStatus
from curate.prefetch import ahead
from curate.report.against import compare_ids
from curate.report.column import cut
from curate.report.corpus import Corpus, Source
from curate.report.duplicates import cluster_sizes, lost_to, place_of, removed_by_source, sampled_pairs
from curate.report.model import Origin, report_of, tenths
from curate.report.sink import Sketches
from curate.sources.listing import Search
from curate.sources.patterns import parse_input
from curate.storage.uris import is_foreign, join, normalise, normalise_input
from curate.stores.open import open_store
from curate.units import shell_word

BESIDE = "_report-"
"""What the name of a report's folder begins with: what begins with `_` is nobody's data."""
READERS = 16
GLOB = "*?["
MOST_QUARANTINED = 100_000
"""Quarantined rows that are read, to show some of each reason."""
SHOWN_CHARS = 2_000

_READERS: Mapping[Format, Callable[..., Dataset]] = {
    Format.PARQUET: read.read_parquet,
    Format.JSONL: read.read_json,
    Format.CSV: read.read_csv,
    Format.TEXT: read.read_text,
    Format.WEBDATASET: read.read_webdataset,
    Format.TFRECORDS: read.read_tfrecords,
    Format.NUMPY: read.read_numpy,
}

_UNTYPED = (Format.CSV, Format.JSONL, Format.TFRECORDS)
"""Formats that do not tell the types of their columns."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be reported."""

    corpus: str
    """An output of a job, a folder, a file or a glob."""
    work: str
    """Folder of what the report keeps: the outputs of some jobs, each in a folder of its own."""
    by: str = ""
    """The column that names the source of a row."""
    backend: str | None = None
    against: str = ""
    """Another corpus, which it is put beside; empty: none."""
    id_column: str = ""
    """The column by which their rows are compared; empty: they are not."""


def wanted(
    corpus: str,
    by: str = "",
    work: str | None = None,
    backend: str | None = None,
    against: str = "",
    id_column: str = "",
) -> Wanted:
    """Returns what is to be reported; its files go beside the corpus, unless said. Raises ConfigError for a glob, which
    has no such place."""
    if work is None:
        # Of each column a report of its own, whatever it is called.
        apart = f"-by-{by if by.isidentifier() else hashlib.sha256(by.encode()).hexdigest()[:16]}" if by else ""
        work = f"{_beside(corpus)}{apart}"
    if id_column and not against:
        raise ConfigError(f"{option('id_column', id_column)} compares rows: add {option('against', 'OTHER')}")
    return Wanted(corpus, normalise(work), by, backend, against, id_column)


def _beside(corpus: str) -> str:
    """Returns where the report of a corpus keeps its files: beside it, under a name that is passed over where the
    folder around both is read as data. Raises ConfigError if nothing can be beside it."""
    why = "a glob has no place beside it" if any(sign in corpus for sign in GLOB) else ""
    # As a path `.` has a name, too.
    folder, _, name = normalise_input(corpus).rpartition("/")
    if not name or folder.endswith(":/"):
        why = "it is all of a store, so nothing is beside it"
    if is_foreign(corpus):
        why = "curate only reads where it is"
    if why:
        raise ConfigError(f"a report of {corpus!r} needs {option('work', 'PATH')}: {why}")
    return f"{folder}/{BESIDE}{name}"


def make_report(wanted: Wanted) -> dict[str, Any]:
    """Sketches what is new in a corpus and returns `report.json`. Raises ConfigError for what is no corpus, and for one
    whose files are not alike."""
    ds = _dataset([wanted.corpus])
    other = _dataset([wanted.against]) if wanted.against else None
    _refuse_unknown(wanted, ds, other)
    report = _report(ds, wanted)
    if other is None:
        return report
    # What is made of the other corpus lies beside what is made of this one: there, nobody may write.
    work = join(wanted.work, f"against-{hashlib.sha256(wanted.against.encode()).hexdigest()[:16]}")
    by = wanted.by if wanted.by in (other.columns() or []) else ""
    beside = _report(other, replace(wanted, corpus=wanted.against, work=work, by=by))
    ids = compare_ids(ds, other, wanted.id_column, join(work, "ids"), wanted.backend) if wanted.id_column else None
    return report | {"against": {"report": beside, "ids": None if ids is None else ids.as_dict()}}


def _refuse_unknown(wanted: Wanted, ds: Dataset, other: Dataset | None) -> None:
    """Raises ConfigError for columns that are named and not there: before all rows are read."""
    with naming_columns({"by": wanted.by, "id_column": wanted.id_column}):
        if (names := ds.columns()) and wanted.by:
            refuse_unknown("reporting by source", [wanted.by], names)
            _refuse_nested("reporting by source", ds, "by", wanted.by)
        for one in (ds, other) if other is not None and wanted.id_column else ():
            refuse_unknown("comparing rows by id", [wanted.id_column], names := one.columns() or [])
            if names:
                _refuse_nested("comparing rows by id", one, "id_column", wanted.id_column)


def _refuse_nested(what: str, ds: Dataset, named: str, column: str) -> None:
    if pa.types.is_nested(kind := ds.schema().field(column).type):
        raise ConfigError(
            f"{what}: {column!r} is {kind}; choose a column of texts or numbers with {option(named, 'COLUMN')}"
        )


def _report(ds: Dataset, wanted: Wanted) -> dict[str, Any]:
    found = _job_at(wanted.corpus)
    corpus = _sketch(ds, join(wanted.work, "rows"), wanted, _told_by(found))
    return report_of(corpus, wanted.corpus, None if found is None else _origin(found, wanted, ds))


def _job_at(path: str) -> FoundJob | None:
    """Returns the job that writes to `path`; None if none does."""
    if any(sign in path for sign in GLOB):
        return None
    try:
        return find_job(path)
    except NoJobError:
        return None


def _dataset(paths: Sequence[str]) -> Dataset:
    """Returns the rows of files, read as the first of them is called."""
    pattern = parse_input(paths[0])
    # The first page of a listing: the dataset lists them all.
    first, _ = next(Search(pattern, open_store(pattern.prefix), {}).found())
    format = detect(first.uri).format
    how = _told_by(_job_at(paths[0])) if format in _UNTYPED else None
    told = {"schema": how.schema} if how is not None and how.format is format else {}
    return _READERS[format](list(paths), allow_incomplete_input=True, **told)


def _told_by(found: FoundJob | None) -> ReadAs | None:
    """Returns how outputs are read whose format does not tell their types: as the job held its rows to. What the first
    rows look like need not hold for later ones: numbers are larger, and values are several. None if nobody knows."""
    if found is None or found.written_as[0].value not in _UNTYPED:
        return None
    format, schema = Format(found.written_as[0].value), found.ledger.read_schema("output")
    return ReadAs(format, all_nullable(told_as_text(schema.remove_metadata()))) if schema else None


def _sketch(ds: Dataset, work: str, wanted: Wanted, how: ReadAs | None = None) -> Corpus:
    """Returns the sketch of a dataset; those of its shards are kept below `work`. `how` is how a job told to read it,
    which may be known better by now than when they were made."""
    options: dict[str, Any] = {"allow_incomplete_input": True, "drop_removed": True, "redo_stale": True}
    try:
        try:
            ds.write_datasink(work, Sketches(wanted.by), backend=wanted.backend, **options)
        except ConfigError:
            if how is None or not _reads_otherwise(work, how):
                raise
            options |= {"overwrite": True, "yes": True}
            ds.write_datasink(work, Sketches(wanted.by), backend=wanted.backend, **options)
    except WriteFailed as error:
        raise ConfigError(
            f"the report of {wanted.corpus} is not complete: {error.summary.done:,} of {error.summary.total:,} shards "
            f"are done; see: curate failures {shell_word(work)}"
        ) from error
    merged: Corpus | None = None
    for value in _sketches(find_job(work)):
        if merged is None:
            merged = value
        else:
            merged.merge(value)
    return merged or Corpus([])


def _reads_otherwise(work: str, how: ReadAs) -> bool:
    """Returns whether a report lies there that was made of rows that were read as others."""
    found = _job_at(work)
    if found is None or found.job["job"] != Sketches.job_name:
        return False
    return bool(found.job["identity"].get("read") != orjson.loads(orjson.dumps(how.identity())))


def _sketches(found: FoundJob) -> Iterator[Corpus]:
    """Yields the sketches of shards, in the order of the plan. Raises CorruptInput for one that is damaged."""

    def one(rank: int) -> Corpus:
        uri = found.output(rank).uri
        data = found.ledger.store.read(uri)
        try:
            return Corpus.parse(orjson.loads(decompress(data)))
        except (OSError, ArithmeticError, ValueError, LookupError, TypeError, AttributeError, zlib.error) as error:
            raise CorruptInput(
                f"{uri} cannot be read as a part of the report ({error}); remove it and run this again, which makes it "
                "anew"
            ) from error

    for _, own in ahead(one, np.flatnonzero(found.matched.done).tolist(), READERS):
        yield own


def _origin(found: FoundJob, wanted: Wanted, ds: Dataset) -> Origin:
    """Returns what the ledger of the job says that made a corpus."""
    status = status_of(found, SystemClock().now())
    reasons, looked_at = _set_aside(found)
    inputs, unknown = _sources_in(found, wanted) if wanted.by else ({}, "")
    dropped = _dropped(found, status)
    return Origin(
        str(found.job["job"]),
        status.state,
        found.job["identity"],
        status.rows,
        inputs,
        unknown,
        reasons,
        looked_at,
        dropped,
        _duplicates(found, wanted, ds, dropped),
    )


def _duplicates(
    found: FoundJob, wanted: Wanted, ds: Dataset, dropped: Sequence[Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    """Returns what a deduplication removed; None if the job lists none."""
    place = place_of(found)
    if not place or not found.matched.count:
        return None
    removed, work = _dataset([place]), join(wanted.work, "duplicates")
    sketch = _sketch(removed, join(work, "rows"), replace(wanted, by=""))
    alike = next((one for one in sketch.columns if one.name == "similarity"), None)
    if alike is None:
        return None
    id_column, pairs = sampled_pairs(dropped, removed, ds, found.job["identity"])
    sources: list[list[Any]] = []
    if wanted.by and id_column:
        try:
            inputs = _dataset(_paths(inputs_of_job(found)["uri"].to_pylist()))
            if {id_column, wanted.by} <= set(inputs.columns() or []):
                columns = (id_column, wanted.by)
                sources = removed_by_source(
                    inputs, removed, columns, join(work, "by"), wanted.backend, read.read_parquet
                )
        except (ConfigError, ObjectNotFound) as error:
            get_logger().warning("what was removed of each source is not known", error=str(error))
    return {
        "rows": sketch.rows,
        "clusters": cluster_sizes(removed, join(work, "sizes"), wanted.backend, read.read_parquet),
        "similarities": tenths(alike),
        "sources": sources,
        "lost_to": lost_to(removed, join(work, "lost"), wanted.backend, read.read_parquet),
        "pairs": pairs,
    }


def _sources_in(found: FoundJob, wanted: Wanted) -> tuple[Mapping[str | None, Source], str]:
    """Returns what each source had in the inputs of a job; or nothing, and why that is not known."""
    try:
        ds = _dataset(_paths(inputs_of_job(found)["uri"].to_pylist()))
        if wanted.by not in (ds.columns() or []):
            return {}, f"the inputs of the job have no column {wanted.by!r}"
        return _sketch(ds.select_columns([wanted.by]), join(wanted.work, "inputs"), wanted).sources, ""
    except (ConfigError, ObjectNotFound) as error:
        return {}, str(error)


def _paths(uris: Sequence[str]) -> Sequence[str]:
    """Returns what to read so that it is these files: their folder, if it has no others, since that is one listing, and
    names columns by folders as the job saw them; else each file."""
    if not uris:
        raise ConfigError("the job has planned no inputs, or makes its rows itself")
    first, last = min(uris), max(uris)
    same = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    root = first[:same].rpartition("/")[0]
    if not root or root.endswith((":", ":/")):
        return uris
    pattern = parse_input(f"{root}/")
    try:
        # One more than these is enough to know.
        there = islice(Search(pattern, open_store(pattern.prefix), {}).found(), len(uris) + 1)
        return [f"{root}/"] if sorted(one.uri for one, _ in there) == sorted(uris) else uris
    except (ConfigError, ObjectNotFound):
        return uris  # one that is gone is named when they are read


def _set_aside(found: FoundJob) -> tuple[list[Mapping[str, Any]], int]:
    """Returns the reasons of quarantined rows, each with the rows of the lowest hashes: the same ones each time; and
    how many rows were looked at."""
    chosen, counted = by_reason(islice(quarantined(found), MOST_QUARANTINED), MOST_SAMPLED)
    told: list[Mapping[str, Any]] = [
        {
            "reason": reason,
            "rows": counted[reason],
            "samples": [{"shard": shard, "line": row.line, "row": cut(row.row, SHOWN_CHARS)} for shard, row in own],
        }
        for reason, own in chosen.items()
    ]
    return told, sum(counted.values())


def _dropped(found: FoundJob, status: JobStatus) -> list[Mapping[str, Any]]:
    """Returns the reasons for which each stage dropped rows, each with some of them."""
    dropping = DroppingShards()
    for rank, event in done_events(found.ledger, found.listing, found.plan, found.matched):
        dropping.note(rank, event["rows"]["dropped"])
    keys = [one.key for one in status.stages if one.key != LAST]
    rows = lowest(read_samples(found.ledger, found.listing, found.plan, dropping, keys))
    stages = status.stages or (StageReport(LAST, status.job, rows=status.rows),)
    return [
        {
            "stage": one.name,
            "reason": reason,
            "rows": count,
            "samples": [
                {"shard": row.shard, "row": row.row, "cut": dict(row.cut), "left_out": row.left_out}
                for row in rows.get((one.key, reason), ())
            ],
        }
        for one in stages
        for reason, count in sorted((one.rows or {}).get("dropped", {}).items(), key=lambda pair: (-pair[1], pair[0]))
    ]
