"""Compares two outputs: identity, shards, books, schema, and rows by an id column. Reads outputs only; no cluster.

The comparison is pure: what is read of an output is one frozen value, and of its rows a table of ids and hashes.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from curate.arrow.canonical import stored_schema
from curate.arrow.expressions import refuse_unknown
from curate.arrow.hashing import digest_rows
from curate.arrow.types import is_binary
from curate.dataclass import asdict, dataclass
from curate.errors import ConfigError
from curate.formats.encoding import Encoding, Format
from curate.formats.file_slice import FileSlice
from curate.formats.rows import read
from curate.objects.record import OFFERED, OutputFormat
from curate.observe.browse import rows
from curate.observe.checks.contents import output_schema
from curate.observe.job import FoundJob, find_job, status_of
from curate.observe.preview import broken_row
from curate.writers.jsonl import json_lines

IDENTITY, PLAN, BOOKS, SCHEMA = "identity", "plan", "books", "schema"
MOST_EXAMPLES = 5
"""Ids of a kind that are shown."""
_BATCH_ROWS = 65_536
_NO_ID = "no id"
_IDS = pa.schema([("id", pa.string()), ("row", pa.uint64())])


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that two outputs do not have in common."""

    kind: str
    name: str
    left: Any
    right: Any


@dataclass(frozen=True, slots=True)
class OutputFacts:
    """What is compared of an output, by name and value; all but its rows."""

    job: str
    output: str
    state: str
    identity: Mapping[str, Any]
    """What decides the bytes of its outputs, parameters among it; and the digest of the code."""
    plan: Mapping[str, Any]
    """Shards, those that are done, and the bytes of their inputs."""
    books: Mapping[str, Any]
    """Rows in, created and out; dropped and quarantined ones; counters."""
    schema: Mapping[str, str]
    """Types by column; those of CSV and JSON lines are not known."""


@dataclass(frozen=True, slots=True)
class RowDifference:
    """Rows of two outputs by their ids. An id that several rows have is one, and equal if all its rows are."""

    equal: int
    changed: int
    only_left: int
    only_right: int
    examples: Mapping[str, list[str]]
    """The first ids that are changed, and of only one output, in order."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two outputs and what they do not have in common."""

    left: OutputFacts
    right: OutputFacts
    differences: tuple[Difference, ...]
    rows: RowDifference | None
    """None: they were not compared."""

    @property
    def equal(self) -> bool:
        """Whether nothing that was compared differs."""
        told = self.rows
        return not self.differences and (told is None or not (told.changed or told.only_left or told.only_right))

    def as_dict(self) -> dict[str, Any]:
        """Returns what `curate diff --json` prints."""
        return {"equal": self.equal, **asdict(self)}


def compare_outputs(left: str, right: str, id_column: str | None, now: float) -> Comparison:
    """Returns how two outputs differ; with an id column, all their rows are read.

    Raises NoJobError; ConfigError for a column that is not there; CorruptInput.
    """
    one, other = find_job(left), find_job(right)
    facts = facts_of(one, now), facts_of(other, now)
    found = None
    if id_column is not None:
        found = row_difference(row_hashes(one, other, id_column), row_hashes(other, one, id_column))
    return Comparison(*facts, differences(*facts), found)


def facts_of(found: FoundJob, now: float) -> OutputFacts:
    """Returns what is compared of an output. Without a schema in its ledger, outputs are read until one has columns."""
    status = status_of(found, now)
    schema = _schema_of(found)
    return OutputFacts(
        status.job,
        status.output,
        status.state,
        dict(flat(found.job["identity"])) | {"code": found.job.get("code_digest")},
        {"shards": status.total, "done": status.done, "input bytes": int(found.plan.total_bytes)},
        dict(flat(status.rows)) | {f"counter {name}": value for name, value in status.counters.items()},
        {} if schema is None else {one.name: "" if pa.types.is_null(one.type) else str(one.type) for one in schema},
    )


def _schema_of(found: FoundJob) -> pa.Schema | None:
    """Returns the schema of an output by its files: types of JSON lines and CSV are null. None if they do not tell."""
    ranks, (format, codec) = found.matched.done.nonzero()[0].tolist(), found.written_as
    if format not in OFFERED or not ranks:
        return None
    # Not what the first output says: without rows it may have no columns, where all others have.
    if held := found.ledger.read_schema("output"):
        return (
            stored_schema(held) if format is OutputFormat.PARQUET else pa.schema([(n, pa.null()) for n in held.names])
        )
    told = (output_schema(found.ledger.store, found.output(rank), format, codec) for rank in ranks)
    return next(filter(None, told), None)


def flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values of nested mappings by their path.

    >>> dict(flat({"version": "1", "parameters": {"threshold": 0.5}}))
    {'version': '1', 'parameters.threshold': 0.5}
    """
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{name}.")
        else:
            yield before + name, value


def differences(left: OutputFacts, right: OutputFacts) -> tuple[Difference, ...]:
    """Returns what differs, in the order of names; what one of them does not have is None."""
    pairs = {
        IDENTITY: (left.identity, right.identity),
        PLAN: (left.plan, right.plan),
        BOOKS: (left.books, right.books),
        SCHEMA: (left.schema, right.schema),
    }
    return tuple(
        Difference(kind, name, one.get(name), other.get(name))
        for kind, (one, other) in pairs.items()
        for name in dict.fromkeys((*one, *other))
        if one.get(name) != other.get(name)
    )


def row_hashes(found: FoundJob, other: FoundJob, id_column: str) -> pa.Table:
    """Returns the id of each row as text, and a hash of its values by their columns' names, whatever their order.

    Tables are hashed if both outputs are Parquet, else rows as JSON, which is what all formats have in common; of two
    outputs of CSV the texts. Raises ConfigError for CSV of unknown types that is compared with another format.
    """
    formats = {one.written_as[0] for one in (found, other)}
    if formats == {OutputFormat.PARQUET}:
        return pa.concat_tables([_IDS.empty_table(), *_of_tables(found, id_column)])
    return pa.concat_tables([_IDS.empty_table(), *_of_lines(found, id_column, typed=formats != {OutputFormat.CSV})])


def _of_tables(found: FoundJob, id_column: str) -> Iterator[pa.Table]:
    store = found.ledger.store
    for rank in found.matched.done.nonzero()[0].tolist():
        object = found.output(rank)
        schema = output_schema(store, object, *found.written_as)
        if not schema:
            continue  # of an input without rows, before there was one that told columns
        refuse_unknown(found.ledger.root, [id_column], schema.names)
        file = FileSlice(store, object, Encoding(Format.PARQUET))
        for table in read(file, schema, _BATCH_ROWS, partial(broken_row, object)):
            names = sorted(table.column_names)
            digests, _ = digest_rows(table, names, seed=zlib.crc32("\0".join(names).encode()))
            yield pa.table([_ids(table.select([id_column])), digests], schema=_IDS)


def _ids(table: pa.Table) -> pa.ChunkedArray | list[str | None]:
    """Returns the values of the one column of a table as texts, or null; as JSON those that Arrow has no text for."""
    column = table.column(0)
    if is_binary(column.type):
        return [_text(one) for one in column.to_pylist()]
    try:
        return column.cast(pa.string())
    except pa.ArrowNotImplementedError:
        return [_told(*orjson.loads(line).values()) for line in json_lines(table)]


def _told(value: Any) -> str | None:
    """Returns a value of JSON as text; None for null, which is no text."""
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()


def _text(value: bytes | None) -> str | None:
    """Returns bytes as the text that they are, else as JSON has them."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def _of_lines(found: FoundJob, id_column: str, *, typed: bool) -> Iterator[pa.Table]:
    root, lines = found.ledger.root, rows(found, texts=False, typed=typed)
    untold = typed and found.written_as[0] is OutputFormat.CSV and not found.ledger.read_schema("output")
    while chunk := [orjson.loads(line) for _, line in islice(lines, _BATCH_ROWS)]:
        refuse_unknown(root, [id_column], list(chunk[0]))
        if untold:
            raise ConfigError(
                f"{root} is CSV, which tells no types, and its ledger has no schema, because its job declares one: its "
                "rows can be compared with those of other CSV alone; write the other output as CSV, or this one as "
                "parquet"
            )
        ids = [_told(row.get(id_column)) for row in chunk]
        yield pa.table([ids, [_digest(row) for row in chunk]], schema=_IDS)


def _digest(row: Mapping[str, Any]) -> int:
    text = orjson.dumps(row, option=orjson.OPT_SORT_KEYS)
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())


def row_difference(left: pa.Table, right: pa.Table) -> RowDifference:
    """Returns how rows differ, given tables of ids and hashes.

    >>> one = pa.table([["1", "2"], [5, 6]], schema=_IDS)
    >>> other = pa.table([["2", "3"], [7, 8]], schema=_IDS)
    >>> row_difference(one, other)  # doctest: +NORMALIZE_WHITESPACE
    RowDifference(equal=0, changed=1, only_left=1, only_right=1,
        examples={'changed': ['2'], 'only_left': ['1'], 'only_right': ['3']})
    """
    # Of the rows of an id, the number and the sum of hashes: the same in whichever order they are.
    grouped = [
        one.group_by(["id", _NO_ID]).aggregate([("row", "sum"), ("row", "count")])
        for one in map(_with_no_ids, (left, right))
    ]
    both = grouped[0].join(grouped[1], ["id", _NO_ID], join_type="full outer", right_suffix="_right")
    alone = {
        "only_left": pc.is_null(both["row_count_right"]),
        "only_right": pc.is_null(both["row_count"]),
    }
    same = pc.and_(
        pc.equal(both["row_sum"], both["row_sum_right"]), pc.equal(both["row_count"], both["row_count_right"])
    )
    changed = pc.fill_null(pc.invert(same), False)
    masks = {"changed": changed, **alone}
    counts = {name: pc.sum(mask).as_py() or 0 for name, mask in masks.items()}
    examples = {name: _first(both["id"].filter(mask)) for name, mask in masks.items()}
    return RowDifference(equal=len(both) - sum(counts.values()), **counts, examples=examples)


def _with_no_ids(ids: pa.Table) -> pa.Table:
    """Returns ids with which of them are null: a join finds no pairs of nulls, and "null" may be an id, too."""
    return ids.set_column(0, "id", ids["id"].fill_null("null")).append_column(_NO_ID, pc.is_null(ids["id"]))


def _first(ids: pa.ChunkedArray) -> list[str]:
    chosen = ids.take(pc.select_k_unstable(ids, MOST_EXAMPLES, [("id", "ascending")])) if len(ids) else ids
    found: list[str] = chosen.to_pylist()
    return found
