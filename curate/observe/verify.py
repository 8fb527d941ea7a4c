"""Compares every output of a job with its record, and all records with each other. Needs no cluster.

Extra outputs are read with the main output of their shard, and ignored if that does not exist yet. A few threads read
outputs piece by piece, and keep only totals and problems. Missing outputs make a job incomplete, not damaged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from curate.dataclass import dataclass, field, replace
from curate.errors import CorruptInput, ObjectNotFound, SchemaMismatch, WrongRecord
from curate.ledger import layout
from curate.ledger.side_outputs import RECORD_SIDE, counter, schema_name, sides_of_ids
from curate.ledger.stages import exchanges, parse_stages
from curate.objects.datatrove import read_metadata
from curate.objects.record import OF_TOKENS, Carried, OutputFormat, read_carried
from curate.observe.check import (
    check_bytes,
    count_quarantined,
    count_rows,
    count_run_rows,
    output_schema,
    wrong_record,
)
from curate.observe.job import FoundJob, find_job, find_stages, read_summary
from curate.prefetch import ahead
from curate.storage.protocol import Object
from curate.tasks.books import Books, UpstreamBooks

UNCOUNTED = (OutputFormat.SINK, *OF_TOKENS)
"""Formats of which the bytes are checked alone."""
READERS = 8
"""Outputs that are read at once, each with some 20 MiB in memory."""
MOST_FINDINGS = 100
"""Findings of one kind that are told one by one; all are counted."""
SCHEMA_VOTERS = 3
"""Outputs that say what the schema is where the job did not have to store one, because its code declares it."""

OK = "ok"
INCOMPLETE = "incomplete"
DAMAGED = "damaged"


KINDS = {
    "missing": "outputs that are gone",
    "foreign": "objects that are not of this job",
    "damaged": "outputs that cannot be read as they were written",
    "record": "outputs without the record of their shard",
    "schema": "outputs of another schema than the job's",
    "rows": "outputs with another number of rows than their record says",
    "books": "records that do not balance",
    "quarantine": "quarantined rows that are not as the record says",
    "unnamed": "quarantined rows that no output names",
    "summary": "totals that are not those of all records",
}
"""What can be off, in the order in which it is told."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is off."""

    kind: str
    object: str
    """Name under the output prefix."""
    reason: str
    remove: tuple[str, ...] = ()
    """What is to be removed, by name, so that the next run of the job makes it as it should be; empty if that does not
    help."""
    left_behind: bool = False
    """Whether the next run of the job removes it: its shard was taken out."""
    held_to: str = ""
    """What the stored schema is called that it has not."""


@dataclass
class VerifyReport:
    """What a job's outputs turned out to be."""

    job: str
    output: str
    shards: int
    """Shards of the plan."""
    closed: bool
    """Whether a run has said that the job is complete."""
    read: int = 0
    """Outputs that were read."""
    size_bytes: int = 0
    """Stored bytes of those."""
    absent: int = 0
    """Outputs that are not there."""
    books: Books = field(default_factory=Books)
    """Sums of the records that make sense: those of the last stage."""
    earlier: Books | None = None
    """Of the stages before that, as the summary says it; None: there were none, or there is no summary."""
    counts: Counter[str] = field(default_factory=Counter)
    """Findings by kind."""
    findings: list[Finding] = field(default_factory=list)
    """The first of each kind."""
    stages: list[VerifyReport] = field(default_factory=list)
    """The stages before the last one that are there; what is off with them is counted, and told, with all else."""

    @property
    def state(self) -> str:
        """`ok`, `incomplete` (what is there is as it should be) or `damaged`."""
        if self.counts:
            return DAMAGED
        return OK if self.closed and not self.absent else INCOMPLETE

    def add(self, finding: Finding) -> None:
        """Counts what is off, and keeps it if there are not many of the kind."""
        self.counts[finding.kind] += 1
        if self.counts[finding.kind] <= MOST_FINDINGS:
            self.findings.append(finding)

    def as_dict(self) -> dict[str, Any]:
        """Returns what `curate verify --json` prints."""
        return {
            "job": self.job,
            "output": self.output,
            "state": self.state,
            "shards": {"total": self.shards, "read": self.read, "missing": self.absent},
            "bytes": self.size_bytes,
            "rows": self.books.rows(),
            "counters": self.books.sorted_counters(),
            **({"earlier": {"rows": self.earlier.rows()}} if self.earlier is not None else {}),
            "problems": {kind: self.counts[kind] for kind in KINDS if self.counts[kind]},
            "findings": [
                {"kind": one.kind, "object": one.object, "reason": one.reason}
                | ({"remove": list(one.remove)} if one.remove else {})
                for one in self.findings
            ],
            **({"stages": [one._as_stage() for one in self.stages]} if self.stages else {}),
        }

    def _as_stage(self) -> dict[str, Any]:
        shards = {"total": self.shards, "read": self.read, "missing": self.absent}
        return {
            "name": self.job,
            "output": self.output,
            "state": self.state,
            "shards": shards,
            "bytes": self.size_bytes,
        }


@dataclass
class _OutputFindings:
    """What one output turned out to be."""

    findings: list[Finding]
    books: Books | None = None
    quarantine: str | None = None


def verify(output: str, progress: Callable[[int, int, int], None] = lambda *_: None) -> VerifyReport:
    """Returns what is off with the outputs of a job, all of them read.

    `progress` is called with outputs done, outputs to read and bytes of those done. Raises NoJobError; ConfigError for
    a damaged ledger; StorageError if the store does not answer.
    """
    found = find_job(output)
    stages = find_stages(found)
    jobs = [*stages.there.values(), found]
    total, read, size_bytes = sum(one.matched.count for one in jobs), 0, 0

    def tick(size: int) -> None:
        nonlocal read, size_bytes
        read, size_bytes = read + 1, size_bytes + size
        progress(read, total, size_bytes)

    report, own = _verified(found, tick), f"{found.ledger.root}/"
    for key, stage in stages.there.items():
        name = next(one.name for one in stages.planned if one.key == key)
        part = _verified(stage, tick, name=name)
        for one in part.findings:
            object, *remove = (stage.ledger.uri(name).removeprefix(own) for name in (one.object, *one.remove))
            report.findings.append(replace(one, object=object, remove=tuple(remove)))
        report.counts += part.counts
        report.stages.append(part)
    return report


def _verified(found: FoundJob, tick: Callable[[int], None], name: str = "") -> VerifyReport:
    """Returns what is off with a job, or with one of its stages before the last one, which is called by a `name`: what
    is gone of that is made again if it is needed."""
    summary = None if found.listing.summary is None else read_summary(found.ledger)
    ranks = np.flatnonzero(found.matched.done)
    report = VerifyReport(
        name or found.job["job"],
        found.ledger.root,
        len(found.plan),
        summary is not None,
        absent=len(found.plan) - len(ranks),
    )
    left = _left_behind(found)
    strangers = dict.fromkeys(found.matched.foreign, "no shard of the plan is called like it")
    strangers |= dict.fromkeys(found.foreign_sides(), "it is not an extra output of a shard of the plan")
    for foreign, reason in strangers.items():
        off = foreign in left
        report.add(
            Finding("foreign", foreign, "its shard was taken out of the job" if off else reason, left_behind=off)
        )
    if report.closed and not name:
        for rank in np.flatnonzero(~found.matched.done).tolist():
            report.add(Finding("missing", _name(found, rank), "the job was complete with it; run the job again"))
    checker = _Checker(found)
    earlier = None if summary is None else UpstreamBooks.of(summary)
    report.earlier = None if earlier is None else earlier.books
    named = set() if earlier is None else {file for _, file in earlier.quarantine}
    for rank, result in ahead(checker.check, map(int, ranks), READERS):
        for finding in result.findings:
            report.add(finding)
        if result.books is not None:
            report.books.add(result.books)
        if result.quarantine is not None:
            named.add(result.quarantine)
        size = found.output(rank).size
        report.read += 1
        report.size_bytes += size
        tick(size)
    for schema in sorted(checker.misfit - checker.fit):
        _blame(report, schema)
    if not report.absent and not report.counts["record"] and not report.counts["damaged"]:
        # As long as outputs are to come, or not all of them say what they name, a file may be theirs; or of a stage
        # before the last one, which only the summary names.
        for file in found.listing.quarantine if report.closed or not parse_stages(found.job) else ():
            if file not in named:
                reason = "no output names it: a run that was killed may have left it"
                report.add(Finding("unnamed", file, reason, (file,)))
        # An output that is made again has it made anew. What it says of stages that were removed is nowhere else.
        remove = () if parse_stages(found.job) or any(one.remove for one in report.findings) else (layout.SUMMARY,)
        for reason in _differences(report, found, summary):
            report.add(Finding("summary", layout.SUMMARY, reason, remove))
    return report


def _blame(report: VerifyReport, schema: str) -> None:
    """Tells of a stored schema that no output has: it, and not all of them, is to be removed. If there is one output
    alone, either may be the wrong one, and both are."""
    if sum(one.held_to == schema for one in report.findings) > 1:
        report.findings = [replace(one, remove=()) if one.held_to == schema else one for one in report.findings]
    name = f"{layout.SCHEMAS}{schema}.arrow"
    report.add(Finding("schema", name, "no output has these columns, so it is not that of this job", (name,)))


def _left_behind(found: FoundJob) -> set[str]:
    """Returns the names of objects that are there of shards that were taken out of the job."""
    rows = sides_of_ids(found.listing, found.plan.removed, found.job["suffix"])
    mains = (f"{shard}{found.job['suffix']}" for shard in found.plan.removed.to_pylist())
    return {*mains, *found.listing.objects.take(rows, "name")["name"].to_pylist()}


class _Checker:
    """Checks outputs; several threads may do so at once."""

    def __init__(self, found: FoundJob) -> None:
        self._found = found
        self._store = found.ledger.store
        self._format, self._codec = found.written_as
        self._files = set(found.listing.quarantine)
        self.fit, self.misfit, self._stored = set[str](), set[str](), set[str]()
        """The stored schemas that an output with rows has, those that one has not, and all."""
        self._schema = self._held("output", found.output)
        self._sides = {name: self._held(schema_name(name), partial(found.side, name)) for name in sorted(found.sides)}

    def check(self, rank: int) -> _OutputFindings:
        """Returns what the output of a shard turned out to be. Raises StorageError if the store does not answer."""
        name, object = _name(self._found, rank), self._found.output(rank)
        off = partial(_finding, object=name, uri=object.uri, remove=(name,))
        try:
            carried = read_carried(self._store, object, self._format, self._codec)
        except WrongRecord as error:
            return _OutputFindings([off("record", error)])
        except CorruptInput as error:
            return _OutputFindings([off("damaged", error)])
        if carried is None:
            return _OutputFindings(
                [off("record", "it carries none: something else than curate wrote it, or cut it off")]
            )
        if wrong := wrong_record(carried.record, self._found.job, self._found.plan.shard_id(rank)):
            return _OutputFindings([off("record", wrong)])
        books, file = Books.parse(carried.record["rows"], carried.record["counters"]), carried.record["quarantine"]
        findings = self._rows(off, object, carried, self._schema, "output", books.rows_out)
        if not books.balanced():
            findings.append(off("books", f"in + created is not out + dropped + quarantined: {_rows_text(books)}"))
        if reason := self._quarantine(file, books.quarantined):
            findings.append(off("quarantine", reason, remove=(name, file) if file in self._files else (name,)))
        for side in self._sides:
            beside = self._found.side_name(side, rank), self._found.side(side, rank)
            findings += self._side(side, beside, name, carried.record)
        checksums = read_metadata(self._store, object) if self._format is OutputFormat.DATATROVE else {}
        for side, called, other in self._found.companions(rank):
            if (checksum := checksums.get(f".{side}")) is not None and other is not None:
                findings += self._bytes(called, other, checksum, name)
            else:
                findings += self._side(side, (called, other), name, carried.record)
        return _OutputFindings(findings, books, file)

    def _rows(
        self,
        off: Callable[..., Finding],
        object: Object,
        carried: Carried,
        schema: pa.Schema | None,
        held_to: str,
        expected: Any,
    ) -> list[Finding]:
        try:
            if self._format in UNCOUNTED:
                # How many rows they are, only readers of the format tell.
                check_bytes(self._store, object, carried)
                return []
            if self._format is OutputFormat.RUN:
                rows = count_run_rows(self._store, object)
            else:
                rows = count_rows(self._store, object, carried, self._format, self._codec, schema)
        except SchemaMismatch as error:
            if held_to not in self._stored:
                return [off("schema", error)]
            self.misfit.add(held_to)
            return [replace(off("schema", error), held_to=held_to)]
        except CorruptInput as error:
            return [off("damaged", error)]
        if rows:
            self.fit.add(held_to)
        if rows == expected:
            return []
        return [off("rows", f"it has {rows:,} rows, its record says {_number(expected)}")]

    def _side(
        self, side: str, beside: tuple[str, Object | None], main: str, record: Mapping[str, Any]
    ) -> list[Finding]:
        """Returns what is off with an extra output of a shard whose main one carries this record, or its other file."""
        name, object = beside
        if object is None:
            reason = f"{main} is there, which is published after it; remove that, and run the job again"
            return [Finding("missing", name, reason, (main,))]
        # One that is there is not replaced if it cannot be read; and none is made as long as the main one is there.
        off = partial(_finding, object=name, uri=object.uri, remove=(main, name))
        try:
            carried = read_carried(self._store, object, self._format, self._codec)
        except CorruptInput as error:
            return [off("damaged", error)]
        if carried is None:
            return [off("record", "it carries none: something else than curate wrote it, or cut it off")]
        expected = {**record, RECORD_SIDE: side}
        differing = sorted(key for key in {*carried.record, *expected} if carried.record.get(key) != expected.get(key))
        if differing:
            return [off("record", f"its record is not that of {main}: they differ in {', '.join(differing)}")]
        rows = record["counters"].get(counter(side))
        return self._rows(off, object, carried, self._sides.get(side), schema_name(side), rows)

    def _bytes(self, name: str, object: Object, checksum: int, main: str) -> list[Finding]:
        """Returns what is off with a file that carries no record, but whose checksum is known."""
        try:
            check_bytes(self._store, object, Carried({}, object.size, checksum))
        except CorruptInput as error:
            return [_finding("damaged", error, object=name, uri=object.uri, remove=(main, name))]
        return []

    def _quarantine(self, name: str | None, rows: int) -> str:
        """Returns what is off with the rows that an output says were set aside; empty if nothing is."""
        if name is None or not rows:
            return "" if name is None and not rows else f"its record says {rows:,} rows, and names {name or 'no file'}"
        if name not in self._files:
            return f"{name}, which its record names, is gone"
        uri = self._found.ledger.uri(name)
        try:
            found, digest = count_quarantined(self._store, self._store.stat(uri))
        except ObjectNotFound:
            return f"{name}, which its record names, is gone"
        except CorruptInput as error:
            return str(error).removeprefix(self._found.ledger.root + "/")
        if name != f"{layout.QUARANTINE}{digest}.jsonl.zst":
            return f"{name} is not what it was: the hash of its bytes is {digest}"
        return "" if found == rows else f"{name} has {found:,} rows, the record says {rows:,}"

    def _held(self, stored_as: str, output: Callable[[int], Object | None]) -> pa.Schema | None:
        """Returns the schema that the job holds its outputs to: as stored, else what most of the first outputs have."""
        schema = self._found.ledger.read_schema(stored_as)
        if schema is not None:
            self._stored.add(stored_as)
        if schema is not None or self._format in (OutputFormat.RUN, OutputFormat.SINK):
            return schema
        votes: Counter[pa.Schema] = Counter()
        for rank in np.flatnonzero(self._found.matched.done).tolist():
            object = output(rank)
            if object is None:
                continue
            try:
                schema = output_schema(self._store, object, self._format, self._codec)
            except CorruptInput:
                continue  # told when its turn comes
            if schema is not None:
                votes[schema] += 1
            if votes.total() >= SCHEMA_VOTERS:
                break
        return votes.most_common(1)[0][0] if votes else None


def _finding(kind: str, reason: object, *, object: str, uri: str, remove: tuple[str, ...]) -> Finding:
    return Finding(kind, object, str(reason).removeprefix(f"{uri}: "), remove)


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else repr(value)


def _name(found: FoundJob, rank: int) -> str:
    return f"{found.plan.shard_id(rank)}{found.job['suffix']}"


def _rows_text(books: Books) -> str:
    dropped = sum(books.dropped.values())
    return f"{books.rows_in:,} + {books.created:,}, {books.rows_out:,} + {dropped:,} + {books.quarantined:,}"


def _differences(report: VerifyReport, found: FoundJob, summary: Mapping[str, Any] | None) -> Iterator[str]:
    """Yields what the summary of a complete job says otherwise than the records of all its outputs."""
    if summary is None:
        return
    told = {
        "fingerprint": found.job["fingerprint"],
        "shards": {"total": len(found.plan), "done": report.read},
        "rows": report.books.rows(),
        "counters": report.books.sorted_counters(),
        "bytes": {"in": found.plan.total_bytes, "out": report.size_bytes},
    }
    # As JSON, which has no word for what is not a number.
    ours = orjson.loads(orjson.dumps(told))
    for name, value in ours.items():
        if summary.get(name) != value:
            yield f"{name} {_short(summary.get(name))}; the outputs say {_short(value)}"
    for one in exchanges(parse_stages(summary)):
        if one.rows_in != one.rows_out:
            yield f"{one.name}: {one.rows_in:,} rows went into the exchange, and {one.rows_out:,} came out"


def _short(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 200 else text[:197] + "..."
