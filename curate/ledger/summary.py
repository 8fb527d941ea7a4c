"""The result of a run, which it returns and prints: scripts rely on its shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import reduce
from typing import Any, Self

from curate.dataclass import dataclass, field, replace
from curate.errors import WriteFailed
from curate.keywords import option
from curate.ledger.stages import StageReport, exchanges
from curate.notebook import html_facts
from curate.storage.protocol import Calls
from curate.tasks.books import Books
from curate.units import format_count, plain_line, shell_word


class RunState(StrEnum):
    """How a run ended.

    >>> curate.RunState.INTERRUPTED.exit_code
    130
    """

    COMPLETE = "complete"
    """All shards are done."""
    FAILED = "failed"
    """Some shards failed; all others are done."""
    ABORTED = "aborted"
    """Stopped by `max_failed_shards`."""
    INTERRUPTED = "interrupted"
    """Stopped by Ctrl-C or SIGTERM."""

    @property
    def exit_code(self) -> int:
        """The program's exit code: 0 complete, 1 failed, 3 aborted, 130 interrupted (2 is a refused start)."""
        return {"complete": 0, "failed": 1, "aborted": 3, "interrupted": 130}[self.value]


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failed shards with the same error."""

    error: str
    count: int
    shard: str
    """One of them."""
    frame: str = ""
    """The innermost frame in user code, such as "jobs/toxicity.py:41 in process"; empty where there is none."""
    user_error: bool = False
    """Whether user code raised, or returned what it must not: that has no frame there."""

    @property
    def in_code(self) -> bool:
        """Returns whether a change of the job's code may be what mends it."""
        return self.user_error or bool(self.frame)

    @property
    def at(self) -> str:
        """Returns the words for that place."""
        return f", at {plain_line(self.frame)}" if self.frame else ""


@dataclass(frozen=True, slots=True, repr=False)
class Summary:
    """The result of a run. `shards` counts the requested shards (all, or `limit`, or `sample`).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     summary = curate.range(5).write_parquet(folder + "/out", backend="inline")
    >>> summary.state, summary.done, summary.books.rows_out, summary.as_dict()["rows"]["out"]
    (<RunState.COMPLETE: 'complete'>, 1, 5, 5)
    """

    job: str
    """The job's name."""
    run_id: str
    """The run, as `curate status` shows it."""
    output: str
    """The folder of the outputs: a path or a URI."""
    state: RunState
    """How the run ended."""
    total: int
    """Shards that the run was asked for."""
    done: int
    """Shards whose output exists now, those of earlier runs included."""
    skipped: int
    """Shards whose output existed before this run."""
    failed: int
    """Shards that have no more tries."""
    dispatched: int
    """Tasks launched by this run."""
    attempts: int
    """Tries of shards that ended in this run: done, failed or lost; each has a line in the ledger. What a task that
    died had not begun is no try."""
    books: Books
    """Rows and counters of all shards that are done, earlier runs included."""
    bytes_in: int
    """Bytes of the inputs of all shards that are done, as they are stored."""
    bytes_out: int
    """Bytes of their outputs."""
    seconds: float
    """How long this run took."""
    calls: Calls
    """Storage calls of this run: the driver's and its workers'."""
    failures: tuple[FailureGroup, ...] = field(default=())
    """The failed shards, those with the same error together."""
    stale: int = 0
    """Done shards whose input changed after the plan was made."""
    stages: tuple[StageReport, ...] = ()
    """All stages of a job with exchanges, in order. Then shards and tasks are those of its last stage, or of the one
    that did not end well, and so are the books of a job that is not complete; all else is that of the whole job."""
    incomplete_input: tuple[Mapping[str, Any], ...] = ()
    """Outputs of other jobs that were read and were not all there, which was allowed: output, job, missing, planned."""
    start_seconds: float = 0.0
    """Seconds, of `seconds`, that it took to start Ray, or to join a cluster; 0 where this process had done so."""
    missing: tuple[int, int] = (0, 0)
    """Inputs of earlier runs that this one was not given, and their shards, which are still part of the job."""
    pending: int = 0
    """Shards of the job that this run was not asked for, and that are not done."""
    only: str = ""
    """What restricted this run to a part of the job, as it was given: `--limit 3` or `limit=3`."""
    dropped: int = 0
    """Shards that this run took out of the job, for their inputs were removed."""
    part: str = ""
    """Which of several drivers of the output this run was, such as `0/4`; empty if it was the only one."""
    by_others: int = 0
    """Shards, of those done, that the other drivers made during this run."""
    interrupted: bool = False
    """Whether an interrupt came while its last shards ran, after which there was nothing left to stop."""
    by_code: bool = False
    """Whether the job has no version: it is known by its code, and with a line mended it is another one."""

    def raise_unless_complete(self, next: str = "after fixing the cause, run it again") -> Self:
        """Returns this. Raises WriteFailed, with it and with what to do `next`, if shards failed, or too many did.

        >>> import tempfile
        >>> ended = curate.range(5).write_parquet(f"{tempfile.mkdtemp()}/out", backend="inline")
        >>> ended.raise_unless_complete().done
        1
        """
        if not self.state.exit_code:
            return self
        output = shell_word(self.output)
        errors = [f"{one.count:,} x {one.error}{one.at} (for example {plain_line(one.shard)})" for one in self.failures]
        left = self.total - self.done - self.failed
        error = WriteFailed(
            f"{plain_line(self.job)} of {output} is not complete ({self.state.value}): {self.failed:,} of "
            f"{format_count(self.total, 'shard')} failed{f', {left:,} were not tried' if left > 0 else ''}\n"
            + "".join(f"  {one}\n" for one in errors)
            + f"What failed: curate failures {output}; {next}"
        )
        error.summary = self
        raise error

    def __repr__(self) -> str:
        """Returns how it ended, in a line; all of it is in `as_dict()`."""
        failed = f", {self.failed:,} failed" if self.failed else ""
        quarantined = f", {self.books.quarantined:,} quarantined" if self.books.quarantined else ""
        return (
            f"Summary({plain_line(self.job)}: {self.state.value}, {self.done:,} of {format_count(self.total, 'shard')} "
            f"done{failed}, {self.books.rows_in:,} rows in, {self.books.rows_out:,} out{quarantined}, "
            f"output {plain_line(self.output)!r})"
        )

    def _repr_html_(self) -> str:
        """Returns what a notebook shows: how the run ended, its books and its failures."""
        rows = self.books.rows()
        facts = {
            "state": self.state.value,
            "shards": f"{self.done:,} of {self.total:,} done",
            "failed": self.failed,
            "rows": f"{rows['in']:,} in + {rows['created']:,} created = {rows['out']:,} out",
            "quarantined": rows["quarantined"],
            **{f"dropped: {reason}": count for reason, count in rows["dropped"].items()},
            **{f"{one.count:,} x failed": one.error for one in self.failures},
            "seconds": round(self.seconds, 1),
            "output": self.output,
        }
        return html_facts(self.job, facts)

    def as_dict(self) -> dict[str, Any]:
        """Returns what `--json` prints."""
        return {
            "job": self.job,
            "run_id": self.run_id,
            "output": self.output,
            "state": self.state.value,
            "shards": {
                "total": self.total,
                "done": self.done,
                "skipped": self.skipped,
                "failed": self.failed,
            },
            "tasks": {"dispatched": self.dispatched, "attempts": self.attempts},
            "rows": self.books.rows(),
            "counters": self.books.sorted_counters(),
            **self.books.sorted_metrics(),
            "bytes": {"in": self.bytes_in, "out": self.bytes_out},
            "seconds": round(self.seconds, 3),
            "start_seconds": round(self.start_seconds, 3),
            "storage_calls": self.calls.as_dict(),
            **({"missing_inputs": {"inputs": self.missing[0], "shards": self.missing[1]}} if any(self.missing) else {}),
            **({"pending": {"shards": self.pending, "restricted_by": self.only}} if self.pending else {}),
            **({"dropped_shards": self.dropped} if self.dropped else {}),
            **({"part": self.part, "shards_by_others": self.by_others} if self.part else {}),
            **({"incomplete_input": [dict(one) for one in self.incomplete_input]} if self.incomplete_input else {}),
            **staged_as_dict(self.stages),
        }


def incomplete_text(holes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns in words what was missing of the inputs, from the records of runs.

    >>> incomplete_text([{"output": "/data/a", "missing": 1, "planned": 24}])
    ['incomplete: 1 of 24 outputs of /data/a was missing (allow_incomplete_input=True)']
    """
    lines = []
    for one in holes:
        missing, planned, output = one["missing"], one["planned"], plain_line(one["output"])
        was = f"{missing:,} of {planned:,} outputs of {output} {'was' if missing == 1 else 'were'} missing"
        text = was if missing else f"the job was not complete that writes to {output}"
        lines.append(f"incomplete: {text} ({option('allow_incomplete_input')})")
    return lines


def missing_text(inputs: int, shards: int) -> str:
    """Returns in words that inputs of earlier runs are missing.

    >>> missing_text(1, 1).partition("; ")[2]
    'its shard is still part of this job (drop_removed=True takes it out)'
    """
    some = "1 input of an earlier run is" if inputs == 1 else f"{inputs:,} inputs of earlier runs are"
    whose = "its" if inputs == 1 else "their"
    what, them = (f"{whose} shard is", "it") if shards == 1 else (f"{whose} {shards:,} shards are", "them")
    return f"{some} missing now; {what} still part of this job ({option('drop_removed')} takes {them} out)"


def staged_as_dict(stages: Sequence[StageReport]) -> dict[str, Any]:
    """Returns what `--json` and `summary.json` say of stages, and of exchanges between them; nothing without any."""
    if not stages:
        return {}
    return {
        "stages": [one.as_dict() for one in stages],
        "exchanges": [one.as_dict() for one in exchanges(stages)],
    }


def together(rounds: Sequence[Summary]) -> Summary:
    """Returns the summary of a run that did again what was disturbed: the last one, with the work of all of them."""
    return replace(
        rounds[-1],
        skipped=rounds[0].skipped,
        dispatched=sum(one.dispatched for one in rounds),
        attempts=sum(one.attempts for one in rounds),
        start_seconds=sum(one.start_seconds for one in rounds),
        calls=reduce(Calls.plus, (one.calls for one in rounds)),
        dropped=sum(one.dropped for one in rounds),
        by_others=sum(one.by_others for one in rounds),
    )
