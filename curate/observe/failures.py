"""Reads failures from an output prefix: the failed shards, the causes, every try, and what it takes to run them again.
No inputs, no cluster.

A shard has failed if its last run gave it up and it has no output: events record that. The failure documents have the
details of each try. If they lack one (an older curate, or a kill between the two writes), the event is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from curate.dataclass import dataclass
from curate.errors import ConfigError, ObjectNotFound
from curate.keywords import option, start_over
from curate.ledger import layout, validation
from curate.ledger.failures import Group, group_failed, group_tries, signature
from curate.ledger.ledger import Ledger
from curate.ledger.listing import OutputListing
from curate.ledger.segments import failed_now, read_outcomes
from curate.ledger.stages import LAST, stage_title
from curate.observe.job import FoundJob, StageView, find_job, find_shard, find_stages
from curate.storage.uris import absolute
from curate.tasks.events import Outcome
from curate.tasks.shard import Shard
from curate.units import shell_word


class JobFailures(FoundJob):
    """A job as it lies under its output prefix, and what failed of it."""

    @cached_property
    def failed(self) -> Any:
        """One boolean a shard: it has failed, and nothing was done about it yet."""
        return failed_now(self.outcomes(), self.listing, self.matched)

    def outcomes(self) -> Iterator[dict[str, Any]]:
        """Yields how each attempt at a shard ended, as `read_outcomes` does."""
        return read_outcomes(self.ledger, self.listing, self.plan)

    def groups(self) -> list[Group]:
        """Returns the shards that are failed now, grouped by what they failed of; most shards first."""
        if not self.failed.any():
            return []
        return group_failed(self._of_failed_shards(), self.failed)

    def all_groups(self) -> list[Group]:
        """Returns all tries that ever failed, also of shards that were done later; most shards first."""
        return group_tries(self._tries())

    def shard(self, shard_id: str) -> tuple[int, Shard]:
        """Returns rank and shard of an id. Raises ConfigError for an unknown one."""
        rank = self.rank_of(shard_id)
        return rank, self.plan.shard(rank)

    def tries(self, shard_id: str) -> list[dict[str, Any]]:
        """Returns all failed tries of a shard, oldest first; what a run left out of them looked up where it is."""
        self.rank_of(shard_id)
        found = [failure for failure in self._tries() if failure["shard"] == shard_id]
        return [self._with_traceback(failure) for failure in reversed(found)]

    def _tries(self) -> Iterator[dict[str, Any]]:
        """Yields all failed tries, newest first, of runs that wrote no failures from their events."""
        having = {layout.run_id_of(name) for name in self.listing.failures}
        segments = [name for name in self.listing.segments if layout.run_id_of(name) not in having]
        yield from self.plan.ranked(self._failures([*self.listing.failures, *segments]))

    def _failures(self, names: list[str]) -> Iterator[dict[str, Any]]:
        """Yields the failed tries in segments, newest first."""
        for name, event in self.ledger.newest_first(names):
            if validation.failure(event):
                yield {"run_id": layout.run_id_of(name), **event}

    def _of_failed_shards(self) -> Iterator[dict[str, Any]]:
        """Yields the failed tries of shards that are failed now, newest first, then what only events know."""
        missing = self.failed.copy()
        for failure in self.plan.ranked(self._failures(self.listing.failures)):
            if failure["outcome"] == Outcome.FAILED and failure["index"] < len(missing):
                missing[failure["index"]] = False
            yield failure
        if missing.any():
            for event in self.plan.ranked(self._failures(self.listing.segments)):
                if event["index"] < len(missing) and missing[event["index"]]:
                    yield event

    def _with_traceback(self, failure: dict[str, Any]) -> dict[str, Any]:
        """Returns a try with the traceback of another one that failed alike, where its own was left out."""
        if failure.get("traceback") or not failure.get("as"):
            return failure
        of_run = [name for name in self.listing.failures if layout.run_id_of(name) == failure["run_id"]]
        for other in self.ledger.events(of_run):
            if not validation.failure(other) or other["shard"] != failure["as"]:
                continue
            if other.get("traceback") and _alike(other, failure):
                return {**failure, "traceback": other["traceback"]}
        return failure


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Returns whether two tries failed of the same error in the same place, whatever its message says."""
    first, second = (signature(failure.get("error", ""), failure.get("frame", "")) for failure in (one, other))
    return (first.error, first.frame) == (second.error, second.frame)


def read_failures(output: str) -> JobFailures:
    """Returns what failed under an output prefix: of a job with exchanges, of its last stage. Raises NoJobError;
    ConfigError for a damaged ledger."""
    return JobFailures(**vars(find_job(output)))


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """What it takes to run a job again."""

    origin: Mapping[str, Any]
    inputs: Sequence[str]
    """Absolute, as far as that can be told."""
    cwd: str
    """Folder in which it was run; empty where that is not known."""
    backend: str
    allow_incomplete_input: bool
    no_samples: bool = False


def recorded_run(ledger: Ledger, listing: OutputListing) -> RecordedRun:
    """Returns the last run of a job that says where the job comes from. Raises ConfigError if none does."""
    for run_id in sorted(listing.run_ids, reverse=True):
        try:
            run = ledger.read_json(layout.run_file(run_id, "run.json"))
        except ObjectNotFound:
            continue
        if run.get("origin") and run.keys() >= {"inputs", "backend"}:
            cwd = str(run.get("cwd", ""))
            inputs = [absolute(str(one), cwd) if cwd else str(one) for one in run["inputs"]]
            incomplete = bool(run.get("allow_incomplete_input"))
            bare = bool(run.get("no_samples"))
            return RecordedRun(run["origin"], inputs, cwd, str(run["backend"]), incomplete, bare)
    raise ConfigError(
        f"no run under {ledger.root} records the file of its job (runs of a dataset's write_... never do); run the "
        f"job itself with {option('retry_failed')}, or the dataset's script again: finished shards are skipped; "
        f"with a function of it fixed, {start_over()}"
    )


def repeatable(found: FoundJob) -> bool:
    """Returns whether `curate retry` and `curate replay` can make a job again: they are named where they work."""
    try:
        recorded_run(found.ledger, found.listing)
    except ConfigError:
        return False
    return True


def replay_command(output: str, shard: str) -> str:
    """Returns the command that runs a shard again, here, to be pasted into a shell."""
    return f"curate replay {shell_word(output)} --shard {shell_word(shard)}"


def retry_command(output: str) -> str:
    """Returns the command that runs the failed shards of a job again."""
    return f"curate retry {shell_word(output)}"


@dataclass(frozen=True, slots=True)
class StageFailures:
    """What failed of one stage of a job, or of a job that has one."""

    found: JobFailures
    key: str
    text: str
    """Which stage it is, as people are told; empty for the job that has one."""

    def addressed(self, shard_id: str) -> str:
        """Returns what a shard of it is called within the job."""
        return shard_id if self.key == LAST else f"{self.key}/{shard_id}"


def read_all_failures(output: str) -> list[StageFailures]:
    """Returns what failed of each stage that there is something of, in their order. Raises as `read_failures` does."""
    last = read_failures(output)
    stages = find_stages(last)
    found = [_of_stage(stage, key, stages) for key, stage in stages.there.items()]
    return [*found, _of_stage(last, LAST, stages)]


def read_shard(output: str, shard_id: str) -> tuple[StageFailures, str]:
    """Returns the stage that a shard is of, and what it is called there; see `find_shard`."""
    found, key, own, stages = find_shard(output, shard_id)
    return _of_stage(found, key, stages), own


def _of_stage(found: FoundJob, key: str, stages: StageView) -> StageFailures:
    return StageFailures(JobFailures(**vars(found)), key, stage_title(stages.planned, key) if stages.planned else "")
