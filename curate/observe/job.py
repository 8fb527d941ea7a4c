"""Reads a job's status from its output prefix: one listing and a few small reads; no inputs, no cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from curate.dataclass import dataclass, replace
from curate.errors import ConfigError, CorruptInput, ObjectNotFound, did_you_mean
from curate.formats.encoding import detect
from curate.keywords import start_over
from curate.ledger import layout
from curate.ledger.heartbeat import NEWEST_RUNS, RUNNING, Heartbeat, newest_heartbeats
from curate.ledger.ledger import Ledger
from curate.ledger.listing import OutputListing, OutputMatch, match_outputs, sort_listing
from curate.ledger.manifest import ShardPlan
from curate.ledger.segments import done_events, given_up
from curate.ledger.side_outputs import companion, match_named, side_name, side_rows, sides_of_job
from curate.ledger.stages import LAST, StageReport, parse_stages, source_bytes, stage_title, stages_in
from curate.objects.record import OutputFormat, read_record
from curate.observe.place import FOREIGN, NoJobError, ledger_of, no_job
from curate.observe.run_totals import MOST_GROUPS
from curate.observe.status import (
    COMPLETE,
    PENDING,
    JobCounts,
    JobStatus,
    earlier_failures,
    job_status,
    leading,
    with_stages,
)
from curate.prefetch import ahead
from curate.storage.protocol import Object
from curate.tasks.books import Books
from curate.units import format_count, shell_word
from curate.writers.writer import DEFAULT_CODEC, suffix

RUN_CODEC = "none"
"""Run files, which no reader of datasets reads, are not compressed."""
COUNTED_SHARDS = 10_000
"""Shards up to which a list of jobs counts a job's outputs, ten pages of a listing."""
CLOSE_IDS = 2000
"""Ids up to which a mistyped one is compared with all of them."""
MOST_SHARDS = 100_000
"""Shards of a job up to which its outputs are counted anew: a second or so of events."""
MOST_RECORDS = 2_000
"""Outputs of which no event tells, up to which each one's record is read."""
READERS = 16


@dataclass(frozen=True)
class FoundJob:
    """A job as it lies under its output prefix."""

    ledger: Ledger
    listing: OutputListing
    job: Mapping[str, Any]
    """`job.json`; with its inputs and stages as they are since a run took more inputs."""
    plan: ShardPlan
    matched: OutputMatch

    def output(self, rank: int) -> Object:
        """Returns the output of a shard that is done."""
        return self._object(int(self.matched.position[rank]))

    @cached_property
    def sides(self) -> Mapping[str, Any]:
        """Of each extra output of the job, by name, the row in the listing of each shard's, -1 where there is none."""
        suffix = self.job["suffix"]
        return {one: match_named(self.plan, self.listing, suffix, one) for one in sides_of_job(self.job)}

    def side(self, name: str, rank: int) -> Object | None:
        """Returns the extra output of a shard; None if it is not there."""
        row = int(self.sides[name][rank])
        return self._object(row) if row >= 0 else None

    def side_name(self, name: str, rank: int) -> str:
        """Returns what the extra output of a shard is called, relative to the output prefix."""
        return side_name(name, self.plan.shard_id(rank) + self.job["suffix"])

    def companions(self, rank: int) -> Iterator[tuple[str, str, Object | None]]:
        """Yields what the other files of an output are to say they are, their names, and those that are there."""
        for other, rows in self._beside.items():
            row = int(rows[rank])
            yield other[1:], self.plan.shard_id(rank) + other, self._object(row) if row >= 0 else None

    @cached_property
    def _beside(self) -> Mapping[str, Any]:
        """Of the other files of outputs, by suffix, the row in the listing of each shard's, -1 where there is none."""
        names = companion(self.job["suffix"])
        return {name: match_named(self.plan, self.listing, name) for name in names}

    def foreign_sides(self) -> Iterator[str]:
        """Yields what lies where extra outputs do and is none of a shard of the plan."""
        known = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *self.sides.values()]))
        yield from self.listing.objects.take(np.setdiff1d(side_rows(self.listing), known), "name")["name"].to_pylist()

    def _object(self, row: int) -> Object:
        return self.listing.object(self.ledger.root, row)

    def rank_of(self, shard_id: str) -> int:
        """Returns the rank of a shard. Raises ConfigError for an unknown one."""
        rank = self.plan.rank(shard_id)
        if rank < 0:
            known = self.plan.table.slice(0, CLOSE_IDS, "id")["id"].to_pylist()
            # What lies under the output has its name at hand, what was read its path.
            named = shard_id.removesuffix(self.job["suffix"]).removeprefix(self.ledger.root + "/")
            known = [named] if self.plan.rank(named) >= 0 else known
            guess = did_you_mean(named, known)
            example = f"for example {', '.join(map(repr, known[:2]))}" if known else "and there is none yet"
            raise ConfigError(
                f"{self.ledger.root} has no shard {shard_id!r}{f'{guess} A' if guess else '; a'} shard is called like "
                f"its output without {self.job['suffix']!r}, {example}"
            )
        return rank

    def done_rank(self, shard_id: str) -> int:
        """Returns the rank of a shard that has an output. Raises ConfigError for any other one."""
        rank = self.rank_of(shard_id)
        if not self.matched.done[rank]:
            raise ConfigError(
                f"shard {shard_id!r} of {self.ledger.root} has no output; see: curate failures "
                f"{shell_word(self.ledger.root)} --shard {shell_word(shard_id)}"
            )
        return rank

    @property
    def written_as(self) -> tuple[OutputFormat, str]:
        """Format and codec of the outputs: as the job says, or their names where an earlier one does not."""
        if self.job.keys() >= {"format", "codec"}:
            return OutputFormat(self.job["format"]), self.job["codec"]
        if self.job["suffix"] == suffix(OutputFormat.RUN, RUN_CODEC):
            return OutputFormat.RUN, RUN_CODEC
        encoding = detect("x" + self.job["suffix"])
        return OutputFormat(encoding.format.value), encoding.codec or DEFAULT_CODEC


def find_job(output: str) -> FoundJob:
    """Returns the job that writes to `output`: one listing, `job.json` and the plan.

    Raises NoJobError; ConfigError for a damaged ledger, or one whose files are removed as they are read.
    """
    ledger = ledger_of(output)
    found = _found(ledger)
    # Looked at again: a run may have planned more since the listing.
    if _more_were_planned(found) and (told := _more_were_planned(found := _found(ledger))):
        why = "the ledger is damaged"
        if found.listing.overwritten:
            why = "an overwrite is removing it, in which case look again once it has ended, or was cut off"
        raise ConfigError(
            f"{ledger.uri(layout.PLAN)} names {format_count(_ever_planned(found.plan), 'shard')}, and the job had "
            f"{told:,}: a part of the plan is missing; {why}: run the job again with all of its "
            f"inputs, which plans them anew, or {start_over()}"
        )
    return found


def _found(ledger: Ledger, looks_left: int = 2) -> FoundJob:
    listing = ledger.list(FOREIGN, plan_next=True)
    if not listing.has_job:
        raise no_job(ledger, listing)
    try:
        job = ledger.read_job() | ledger.read_growth(listing)
        plan = ledger.read_plan(listing)
    except ObjectNotFound as error:  # removed since it was listed: the stage is done, or the job is started over
        if not looks_left:
            raise ConfigError(f"{ledger.root} changes while it is read: {error}; look at it again") from error
        return _found(ledger, looks_left - 1)
    return FoundJob(ledger, listing, job, plan, match_outputs(plan, listing, job["suffix"]))


def _ever_planned(plan: ShardPlan) -> int:
    return len(plan.table if plan.written is None else plan.written)


def _more_were_planned(found: FoundJob) -> int:
    """Returns how many shards the job had, as its summary or its last runs say, if the plan names fewer; else 0.

    Asked only where shards may be missing: for objects or failures that are of none, or for want of any shard.
    """
    listing, plan = found.listing, found.plan
    if len(plan) and not found.matched.foreign and not listing.failures:
        return 0
    told = [(summary_of(found) or {}).get("shards", {}).get("total", 0)]
    for beat in newest_heartbeats(found.ledger, listing.run_ids):
        # Of a job of several stages, it counts those of the one that it is at, and has each one's beside them.
        told += [one.total for one in beat.stages if one.key == LAST] if beat.stages else [beat.shards["total"]]
    most = max(told, default=0)
    return most if most > _ever_planned(plan) else 0


def read_status(output: str, now: float) -> JobStatus:
    """Returns the status of the job that writes to `output`. Raises as `find_job` does."""
    return status_of(find_job(output), now)


def status_of(found: FoundJob, now: float) -> JobStatus:
    """Returns the status of a job as it was found, without another listing of its output."""
    beats, summary = _read(found)
    status = _status(found, beats, summary, now)
    if not parse_stages(found.job):
        return status
    if status.state == COMPLETE and summary is not None:
        return _with_reports(status, summary)
    beat = leading(beats, now)
    stages = find_stages(found, beat)
    seen = {key: _status(one, *_read(one), now) for key, one in stages.there.items()}
    return with_stages(status, stages.planned, seen, beat)


def _read(found: FoundJob) -> tuple[list[Heartbeat], dict[str, Any] | None]:
    return newest_heartbeats(found.ledger, found.listing.run_ids), summary_of(found)


def _status(found: FoundJob, beats: list[Heartbeat], summary: Mapping[str, Any] | None, now: float) -> JobStatus:
    plan = found.plan
    counts = JobCounts(
        found.job["job"],
        found.ledger.root,
        len(plan),
        found.matched.count,
        plan.total_bytes,
        int(plan.sizes[found.matched.done].sum()),
    )
    status = job_status(counts, beats, summary, now, max(0, len(found.listing.run_ids) - max(NEWEST_RUNS, len(beats))))
    if status.state == PENDING and summary is None and _own_summary(found) is not None:
        status = replace(status, altered=True)
    if earlier_failures(status, found.listing.failures):
        failed, failures = given_up(found.ledger, found.listing, plan, found.matched, MOST_GROUPS)
        status = replace(status, failed=failed, failures=failures)
    parts = any(run.part for run in status.runs if run.state == RUNNING)
    if (status.state == RUNNING and not parts) or status.counted == status.done:
        return status
    # Killed before it told of its last shards, or outputs were removed since, or each of several drivers tells of its
    # own: rows are those of what is there.
    books = _recount(found)
    if books is None:
        return status
    metrics = books.sorted_metrics().get("metrics", {})
    return replace(status, rows=books.rows(), counters=books.sorted_counters(), metrics=metrics)


def _recount(found: FoundJob) -> Books | None:
    """Returns the books of all outputs: from events, and from the records of outputs that no event tells of.

    For a job that was killed, or outputs that were removed since. None if there are too many of either, or an output
    cannot be read.
    """
    ledger, listing, plan, matched = found.ledger, found.listing, found.plan, found.matched
    if len(plan) > MOST_SHARDS:
        return None
    books, counted = Books(), np.zeros(len(plan), dtype=bool)
    for rank, event in done_events(ledger, listing, plan, matched):
        if not counted[rank]:
            counted[rank] = True
            books.add(Books.parse(event["rows"], event["counters"], event.get("metrics")))
    missing = np.flatnonzero(matched.done & ~counted).tolist()
    if len(missing) > MOST_RECORDS:
        return None

    def read(rank: int) -> Books | None:
        try:
            record = read_record(ledger.store, found.output(rank), *found.written_as)
        except CorruptInput:
            return None
        return None if record is None else Books.parse(record["rows"], record["counters"])

    for _, own in ahead(read, missing, READERS):
        if own is None:
            return None
        books.add(own)
    return books


@dataclass(frozen=True, slots=True)
class StageView:
    """The stages of a job, as far as they can be looked at; of a job without exchanges there are none."""

    planned: tuple[StageReport, ...]
    """All that are known, in order; the last one is the job itself."""
    there: Mapping[str, FoundJob]
    """Those before the last one that have begun, by key."""


def find_stages(found: FoundJob, beat: Heartbeat | None = None) -> StageView:
    """Returns the stages of a job; `beat`, the heartbeat of its run, may tell of others than were planned.

    They lie below the output, or on one machine's disk: see `curate.ledger.stages`. Complete, a job has none left.
    """
    planned = parse_stages(found.job)
    if not planned:
        return StageView((), {})
    # Whether run files are merged first, is known once they are there.
    known = {one.key: one for one in _known_stages(planned, beat)[:-1]}
    there: dict[str, FoundJob] = {}
    for root, keys in stages_in(found.ledger.root, found.listing.stages):
        for key in (*(key for key in known if key in keys), *sorted(keys - known.keys())):
            with contextlib.suppress(NoJobError):
                there[key] = find_job(f"{root}/{key}")
    for key, stage in there.items():
        known.setdefault(key, StageReport(key, str(stage.job["job"]).removeprefix(f"{found.job['job']}: ")))
    return StageView((*known.values(), planned[-1]), there)


def find_shard(output: str, shard_id: str) -> tuple[FoundJob, str, str, StageView]:
    """Returns the job or stage of a shard, its key, what the shard is called there, and all stages.

    A shard of a stage before the last one is called by the stage's key and its own id, with a slash in between; by its
    own id alone too, as long as no other stage has one of that name. Raises as `find_job` does, and ConfigError for a
    stage that is not there.
    """
    found = find_job(output)
    stages = find_stages(found)
    if not stages.planned or found.plan.rank(shard_id) >= 0:
        return found, LAST, shard_id, stages
    key, _, own = shard_id.partition("/")
    if own and key in stages.there:
        return stages.there[key], key, own, stages
    if own and key in {one.key for one in stages.planned}:
        raise ConfigError(
            f"{stage_title(stages.planned, key)} of {found.ledger.root} is not there to look at: it has not begun, it "
            "was removed when the job was complete, or it lies on the disk of the machine that runs it; see: curate "
            f"status {shell_word(found.ledger.root)}"
        )
    having = [key for key, one in stages.there.items() if one.plan.rank(shard_id) >= 0]
    if len(having) == 1:
        return stages.there[having[0]], having[0], shard_id, stages
    return found, LAST, shard_id, stages


def quick_status(output: str, now: float) -> JobStatus:
    """Returns the status for a line in a list of jobs: of a large job, as its last heartbeat counted.

    So the jobs of a year are listed without listing each one's outputs. Raises as `read_status` does.
    """
    ledger = ledger_of(output)
    listing = _below(ledger, layout.RUNS)
    beats = newest_heartbeats(ledger, listing.run_ids)
    newest = leading(beats, now)
    if newest is None or newest.shards["total"] <= COUNTED_SHARDS:
        return read_status(output, now)
    return _told(ledger, _job_of(ledger), listing, beats, now)


def ledger_status(output: str, now: float) -> JobStatus:
    """Returns the status of a job from its ledger alone: one listing of the files of runs, and a few small reads.

    Shards are as the last heartbeat counted them: outputs that were published or removed since are not known of. Those
    that failed in earlier runs count too; where there are any, the plan and the events of all runs are read. `as_of` is
    the time of that heartbeat, with several drivers of the last of theirs. Bytes of inputs are not known. Raises as
    `read_status` does.
    """
    ledger = ledger_of(output)
    job = _job_of(ledger)
    listing = _below(ledger, layout.RUNS)
    return _told(ledger, job, listing, newest_heartbeats(ledger, listing.run_ids), now)


def _job_of(ledger: Ledger) -> dict[str, Any]:
    try:
        return ledger.read_job()
    except ObjectNotFound:
        raise no_job(ledger) from None


def _told(
    ledger: Ledger, job: dict[str, Any], listing: OutputListing, beats: Sequence[Heartbeat], now: float
) -> JobStatus:
    """Returns what the ledger of a job says, with what its runs last said."""
    if job.get("inputs"):
        job |= ledger.read_growth(_below(ledger, layout.INPUTS))
    newest = leading(beats, now)
    total = newest.shards["total"] if newest else len(ledger.read_plan(_below(ledger, layout.PLAN)))
    summary = _own(read_summary(ledger), job)
    counted = [beat for beat in beats if beat is newest or (beat.part and beat.running)]
    done = total if summary is not None else min(max((beat.shards["done"] for beat in counted), default=0), total)
    earlier = max(0, len(listing.run_ids) - max(NEWEST_RUNS, len(beats)))
    status = job_status(JobCounts(job["job"], ledger.root, total, done), beats, summary, now, earlier)
    status = replace(status, outputs_listed=False, as_of=max((beat.updated for beat in counted), default=None))
    if earlier_failures(status, listing.failures):
        plan = ledger.read_plan(_below(ledger, layout.PLAN))
        failed, failures = given_up(ledger, listing, plan, match_outputs(plan, listing, job["suffix"]), MOST_GROUPS)
        status = replace(status, failed=min(failed, total - done), failures=failures)
    planned = parse_stages(job)
    if not planned:
        return status
    if status.state == COMPLETE and summary is not None:
        return _with_reports(status, summary)
    staged = with_stages(status, _known_stages(planned, newest), {}, newest)
    return replace(staged, outputs_listed=False, as_of=status.as_of)


def _with_reports(status: JobStatus, summary: Mapping[str, Any]) -> JobStatus:
    reports = parse_stages(summary)
    size = source_bytes(reports)
    return replace(status, stages=reports, bytes_total=size, bytes_done=size)


def _known_stages(planned: tuple[StageReport, ...], beat: Heartbeat | None) -> tuple[StageReport, ...]:
    """Returns the stages that were planned, and those that only the heartbeat of a run tells of."""
    known = {one.key: one for one in planned[:-1]}
    for one in beat.stages[:-1] if beat else ():
        known.setdefault(one.key, one)
    return (*known.values(), planned[-1])


def _below(ledger: Ledger, folder: str) -> OutputListing:
    return sort_listing(ledger.store.list(ledger.uri(folder)), ledger.root)


def summary_of(found: FoundJob) -> dict[str, Any] | None:
    """Returns what `summary.json` says of the job: nothing, if there is none, or it is another job's, or that of other
    outputs of such a job, which take another number of bytes. The next run does not believe that one, either."""
    summary = _own_summary(found)
    if summary is None or not found.matched.done.all() or found.written_as[0] is OutputFormat.RUN:
        return summary
    size, planned = int(found.listing.objects.numbers("size")[found.matched.position].sum()), len(found.plan)
    told = summary.get("shards", {}).get("total", 0), summary.get("bytes", {}).get("out", size)
    return summary if told[0] > planned or told[1] == size else None


def _own_summary(found: FoundJob) -> dict[str, Any] | None:
    return None if found.listing.summary is None else _own(read_summary(found.ledger), found.job)


def _own(summary: dict[str, Any] | None, job: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns a summary if it is the job's: that of another may have been copied here, or its driver came late."""
    return summary if summary is not None and summary.get("fingerprint") == job["fingerprint"] else None


def read_summary(ledger: Ledger) -> dict[str, Any] | None:
    """Returns `summary.json`, whichever job it is of; None if there is none, or it is not valid."""
    try:
        summary = ledger.read_json(layout.SUMMARY)
    except ObjectNotFound:
        return None  # or removed since it was listed: a run began
    return summary if summary.keys() >= {"rows", "counters"} else None
