"""What an attributes job has written, as its ledger says it; and whether that is of the files that are read now."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from curate.dataclass import dataclass, field
from curate.errors import ConfigError, ObjectNotFound, did_you_mean
from curate.formats.encoding import UTF_8, Format, ReadAs, detect
from curate.formats.read.parquet_file import open_parquet
from curate.keywords import option
from curate.ledger.ledger import Ledger, open_ledger
from curate.ledger.listing import match_outputs
from curate.ledger.manifest import ShardPlan
from curate.objects.places import POSITION
from curate.objects.stream import StoredStream
from curate.storage.protocol import Object
from curate.storage.uris import normalise_input
from curate.units import format_count

SHARDS = ("uri", "start", "stop", "id", "generation")
"""Columns of a plan that say of which slice of which file an output has the attributes."""


@dataclass(frozen=True, slots=True)
class Found:
    """The output of an attributes job, all of it."""

    root: str
    job: str
    fingerprint: str
    """Of the job that made it: the same for the same values of the same rows."""
    shard_bytes: int
    """Stored bytes at which its inputs were cut."""
    suffix: str
    schema: pa.Schema
    """The attributes: without the position, and without the id."""
    shards: pa.Table = field(repr=False)
    """The slices that it was made of, with `SHARDS` as columns."""


def find(path: str | os.PathLike[str], columns: Sequence[str] | None) -> Found:
    """Returns the attributes below a path, those of these names; None: all. Raises ConfigError for what is no output of
    an attributes job, one that is not complete, and a column that it does not have."""
    root = normalise_input(os.fspath(path))
    ledger = open_ledger(root)
    listing = ledger.list()
    if not listing.has_job:
        raise ConfigError(f"with_attributes: no curate job at {root}; run an attributes job with this output first")
    job = ledger.read_job()
    identity, name = job["identity"], job["job"]
    if not identity.get("attributes"):
        raise ConfigError(
            f"with_attributes: {root} is the output of {name!r}, which is not an attributes job: its rows do not say "
            f"which input rows they belong to; run that job with {option('attributes', True)} to another output"
        )
    plan = ledger.read_plan(listing)
    matched = match_outputs(plan, listing, job["suffix"])
    if matched.count < len(plan) or not len(plan):
        raise ConfigError(
            f"with_attributes: {format_count(len(plan) - matched.count, 'output')} of the {len(plan):,} that {name!r} "
            f"planned at {root} missing; run it again, which makes only those (curate status {root})"
        )
    schema = ledger.read_schema("output") or _schema(ledger, plan, job["suffix"])
    own = str(identity.get("parameters", {}).get("id_column", ""))
    there = [one for one in schema.names if one not in (POSITION, own)]
    wanted = there if columns is None else list(dict.fromkeys([columns] if isinstance(columns, str) else columns))
    for one in wanted:
        if one not in schema.names or one == POSITION:
            near = did_you_mean(one, there)
            raise ConfigError(f"with_attributes: {root} has no attribute {one!r}{near}; it has: {', '.join(there)}")
    held = pa.schema([schema.field(one).with_nullable(True).remove_metadata() for one in wanted])
    found = plan.table.table().select(list(SHARDS))
    return Found(root, name, job["fingerprint"], int(identity["shard_bytes"]), job["suffix"], held, found)


def _schema(ledger: Ledger, plan: ShardPlan, suffix: str) -> pa.Schema:
    """Returns the schema of the first output."""
    with StoredStream(ledger.store, ledger.store.stat(ledger.uri(plan.shard_id(0) + suffix))) as stored:
        return open_parquet(stored).schema_arrow


def is_of(found: Found, listing: pa.Table) -> bool:
    """Returns whether attributes are of some of the listed files, be it of other versions of them."""
    return bool(pc.any(pc.is_in(listing["uri"], value_set=pc.unique(found.shards["uri"]))).as_py())


def refuse_others(found: Found, listing: pa.Table) -> None:
    """Raises ConfigError if there are no attributes of a file that is read, or of another version of it."""
    at = pc.index_in(listing["uri"], value_set=found.shards["uri"])
    without = listing.filter(pc.is_null(at))
    if len(without):
        raise ConfigError(
            f"with_attributes: {found.root} has no attributes of {without['uri'][0].as_py()}"
            f"{f' and {len(without) - 1:,} more' if len(without) > 1 else ''}: {found.job!r} was run over "
            f"{_files(found)}; run it again over all files, which makes only those that are missing"
        )
    other = listing.filter(pc.not_equal(listing["generation"], found.shards["generation"].take(at)))
    if len(other):
        uri = other["uri"][0].as_py()
        made = found.shards.filter(pc.equal(found.shards["uri"], uri))["generation"][0].as_py()
        raise ConfigError(another_version(found.root, uri, made, other["generation"][0].as_py()))


def refuse_other_reading(found: Found, listing: pa.Table, how: ReadAs) -> None:
    """Raises ConfigError if files are read in another way than jobs read them, so that another row has the number that
    a row had when its attributes were made."""
    told = how.delimiter or how.column_names or how.text_encoding != UTF_8 or not how.drop_empty_lines
    if not told and how.format is not Format.BINARY:
        # Of others, only files are read whose names say what they are.
        return
    for uri in listing["uri"].to_pylist():
        # A job goes by names alone.
        theirs, ours = detect(uri), detect(uri, how)
        pairs = {
            "format": (theirs.format.value, ours.format.value),
            "delimiter": (theirs.delimiter, ours.delimiter) if ours.format is Format.CSV else ("", ""),
            "column_names": (None, how.column_names and list(how.column_names)),
            "encoding": (UTF_8, how.text_encoding) if ours.format is Format.TEXT else ("", ""),
            "drop_empty_lines": (True, how.drop_empty_lines if ours.format is Format.TEXT else True),
        }
        for name, (their, our) in pairs.items():
            if their != our:
                raise ConfigError(
                    f"with_attributes: {uri} is read with {name}={our!r} here, and {found.job!r}, which made the "
                    f"attributes at {found.root}, read it with {name}={their!r}: rows would be given attributes of "
                    "others; read it as the job did"
                )


def another_version(root: str, uri: str, made: str, read: str) -> str:
    """Returns the error for a file that was another one when its attributes were made."""
    return (
        f"with_attributes: the attributes at {root} were made of {uri} of version {made}, and the rows are of version "
        f"{read}; run that job again with {option('redo_stale', True)}, or where files are cut into shards with "
        f"{option('overwrite', True)}"
    )


def _files(found: Found) -> str:
    uris = pc.unique(found.shards["uri"])
    return f"{uris[0].as_py()}{f' and {len(uris) - 1:,} more' if len(uris) > 1 else ''}"


def object_of(ledger_root: str, uri: str) -> Object:
    """Returns an output as it is now. Raises ConfigError if it is gone."""
    try:
        return open_ledger(ledger_root).store.stat(uri)
    except ObjectNotFound as error:
        raise ConfigError(
            f"with_attributes: {uri} is missing; run the job at {ledger_root} again, which makes only that"
        ) from error
