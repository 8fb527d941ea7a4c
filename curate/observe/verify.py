"""Compares every output of a job with its record, and all records with each other. Needs no cluster.

Extra outputs are read with the main output of their shard, and ignored if that does not exist yet. A few threads read
outputs piece by piece, and keep only totals and problems. Missing outputs make a job incomplete, not damaged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import orjson

from curate.dataclass import dataclass, field, replace
from curate.errors import ConfigError, CorruptInput, ObjectNotFound
from curate.ledger import layout
from curate.ledger.side_outputs import sides_of_ids
from curate.ledger.stages import exchanges, parse_stages
from curate.objects.samples import decode_samples
from curate.observe.checks.output import Checker, Finding, is_another, name_of
from curate.observe.job import FoundJob, find_job, find_stages, read_summary
from curate.prefetch import ahead
from curate.stage.shard_index import INDEXED, index_of
from curate.storage.protocol import Special
from curate.tasks.books import Books, UpstreamBooks

READERS = 8
"""Outputs that are read at once, each with some 20 MiB in memory."""
MOST_FINDINGS = 100
"""Findings of one kind that are told one by one; all are counted."""

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
    "beside": "schemas of inputs, and samples of dropped rows, that cannot be read",
    "summary": "totals that are not those of all records",
}
"""What can be off, in the order in which it is told."""


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
    replaced: int = 0
    """Outputs that were replaced or removed while all of them were read: nothing is said of these."""
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
        return OK if self.closed and not self.absent and not self.replaced else INCOMPLETE

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
            "shards": self._shards,
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
        return {
            "name": self.job,
            "output": self.output,
            "state": self.state,
            "shards": self._shards,
            "bytes": self.size_bytes,
        }

    @property
    def _shards(self) -> dict[str, int]:
        found = {"total": self.shards, "read": self.read, "missing": self.absent}
        return found | ({"replaced": self.replaced} if self.replaced else {})


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
    if report.closed and report.absent and _reopened(found):
        report.closed = False
    if report.closed and not name:
        for rank in np.flatnonzero(~found.matched.done).tolist():
            report.add(Finding("missing", name_of(found, rank), "the job was complete with it; run the job again"))
    checker = Checker(found)
    earlier = None if summary is None else UpstreamBooks.of(summary)
    report.earlier = None if earlier is None else earlier.books
    named = set() if earlier is None else {file for _, file in earlier.quarantine}
    if not name:
        for finding in _set_aside_before(found, checker, sorted(named)):
            report.add(finding)
    for rank, result in ahead(checker.check, map(int, ranks), READERS):
        for finding in result.findings:
            report.add(finding)
        report.replaced += result.replaced
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
    for finding in _beside(found):
        report.add(finding)
    whole = not report.absent and not report.replaced
    if whole and not report.counts["record"] and not report.counts["damaged"]:
        # As long as outputs are to come, or not all of them say what they name, a file may be theirs; or of a stage
        # before the last one, which only the summary names.
        for file in found.listing.quarantine if report.closed or not parse_stages(found.job) else ():
            if file not in named:
                reason = "no output names it: a run that was killed may have left it"
                report.add(Finding("unnamed", file, reason, (file,)))
        # An output that is made again has it made anew. What it says of stages that were removed is nowhere else.
        remove = () if parse_stages(found.job) or any(one.remove for one in report.findings) else (layout.SUMMARY,)
        differences = [*_differences(report, found, summary)]
        if differences and _reopened(found):
            report.closed, differences = False, []
        for reason in differences:
            report.add(Finding("summary", layout.SUMMARY, reason, remove))
        if report.closed and not report.counts["record"] and not report.counts["damaged"]:
            for finding in _index(found):
                report.add(finding)
    return report


def _set_aside_before(found: FoundJob, checker: Checker, files: Iterable[str]) -> Iterator[Finding]:
    """Yields what is off with rows that stages before the last one set aside: these may be gone, and nothing but the
    summary names their files."""
    reasons = {file: reason for file in files if (reason := checker.set_aside(file))}
    if reasons and not _reopened(found):
        for file, reason in reasons.items():
            yield Finding("quarantine", file, reason.removeprefix(file).lstrip(": "))


def _beside(found: FoundJob) -> Iterator[Finding]:
    """Yields what cannot be read that no output needs, but the next run does, or who looks at the job."""
    ledger, samples = found.ledger, found.listing.samples
    listed = ledger.store.list(ledger.uri(f"{layout.SCHEMAS}input-"))
    schemas = [one.uri.removeprefix(f"{ledger.root}/") for one in listed if not isinstance(one, Special)]

    def read(name: str) -> str:
        try:
            if layout.is_samples(name):
                decode_samples(ledger.store.read(ledger.uri(name)), ledger.uri(name))
            else:
                ledger.read_schema(name.removeprefix(layout.SCHEMAS).removesuffix(".arrow"))
        except ObjectNotFound:  # made anew, or removed, since it was listed
            return ""
        except (ConfigError, CorruptInput) as error:
            return str(error).removeprefix(f"{ledger.root}/")
        return ""

    for name, reason in ahead(read, [*schemas, *samples.slice(0, len(samples), "name")["name"].to_pylist()], READERS):
        if reason:
            yield Finding("beside", name, reason, (name,))


def _reopened(found: FoundJob) -> bool:
    """Returns whether a job that was complete when listed is not any more, or again: its summary was removed since."""
    return is_another(found.ledger.store, found.ledger.uri(layout.SUMMARY), found.listing.summary)


def _index(found: FoundJob) -> Iterator[Finding]:
    """Yields what is off with the file that names all outputs of a complete job, where the format wants one."""
    listing, store, uri = found.listing, found.ledger.store, found.ledger.uri(layout.INDEX)
    row = listing.row(layout.INDEX)
    there = None if row < 0 else listing.object(found.ledger.root, row)
    if found.job["suffix"] != INDEXED or is_another(store, uri, there):
        return
    if there is None:
        yield Finding("missing", layout.INDEX, "the job was complete with it; run the job again")
    elif store.read(uri) != index_of(found.ledger, listing, found.matched.position, found.job["fingerprint"]):
        yield Finding("damaged", layout.INDEX, "it does not say of the outputs what they are", (layout.INDEX,))


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
