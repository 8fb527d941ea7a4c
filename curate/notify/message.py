"""What is posted of a run: its end, or that it makes no progress. Pure; no secret and no row of data is in it.

So no error is, and no text that a service sent: they quote what they choked on. Names are: of the job, its output,
shards and nodes, reasons of dropped rows, counters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from curate.dataclass import dataclass, field
from curate.ledger.heartbeat import Heartbeat
from curate.ledger.summary import RunState, Summary
from curate.log import redacted
from curate.units import ellipsize, format_count, format_duration, shell_word

END = "end"
NO_PROGRESS = "no-progress"
KILLED = "killed"
"""The state of a run whose process is gone, and which did not say how it ended."""
MOST_CHARS = 200
MOST_NAMES = 50
_LEFT_OUT = ("errors", "failures", "retrying", "waits", "operators", "at_hand", "incomplete_input")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that is to be told of a run, once."""

    run_id: str
    name: str
    """`end`, or `no-progress-<when something last ended>`: the same whoever sees it."""
    job: str
    output: str
    state: str
    text: str
    """A line for people."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    also: tuple[tuple[str, str], ...] = ()
    """Outputs and runs of which nothing more is to be told then: those of checkpoints, and of other drivers."""

    @property
    def id(self) -> str:
        """What a receiver knows it by: it drops a second one of the same id."""
        return f"{self.run_id}/{self.name}"

    def message(self, by: str) -> dict[str, Any]:
        """Returns what is posted; `by`: which run tells, or that it is `curate serve`."""
        value = {
            "id": self.id,
            "event": NO_PROGRESS if self.name != END else END,
            "state": self.state,
            "run_id": self.run_id,
            "job": self.job,
            "output": self.output,
            "told_by": by,
            **self.more,
            "summary": {name: one for name, one in self.summary.items() if name not in _LEFT_OUT},
        }
        return {"text": slack(harmless(self.text, 1000)), **harmless(value)}


def stall_name(ended: float) -> str:
    """Returns the name of the event that nothing has ended since then.

    >>> stall_name(0.0)
    'no-progress-19700101T000000Z'
    """
    return f"{NO_PROGRESS}-{datetime.fromtimestamp(ended, UTC).strftime('%Y%m%dT%H%M%SZ')}"


def slack(text: str) -> str:
    """Returns text that Slack shows as it is: no name in it calls a channel or becomes a link.

    >>> slack("<!channel> a & b")
    '&lt;!channel&gt; a &amp; b'
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def harmless(value: Any, most: int = MOST_CHARS) -> Any:
    """Returns a value with all texts in one short line each, without secrets, and not many of them."""
    if isinstance(value, str):
        return ellipsize(redacted(value), most)
    if isinstance(value, Mapping):
        return {harmless(str(name), most): harmless(one, most) for name, one in [*value.items()][:MOST_NAMES]}
    if isinstance(value, Sequence):
        return [harmless(one, most) for one in value[:MOST_NAMES]]
    return value if value is None or isinstance(value, bool | int | float) else str(type(value).__name__)


# Ends


def of_summary(summary: Summary, run_id: str = "", host: str = "") -> Event:
    """Returns the end of a run that has a summary; under the id of another run if that one tells of the same end."""
    state, rows = summary.state.value, summary.books.rows()
    part = f" (part {summary.part})" if summary.part else ""
    text = f"{summary.job} {state}{part} after {format_duration(summary.seconds)}: {summary.done:,} of "
    text += f"{format_count(summary.total, 'shard')} done" + (f", {summary.failed:,} failed" if summary.failed else "")
    text += (
        f"; {_rows(rows)}; {summary.output}. {_next(state, summary.output, summary.failed or len(summary.failures))}"
    )
    return Event(
        run_id or summary.run_id,
        END,
        summary.job,
        summary.output,
        state,
        text.rstrip(),
        summary.as_dict(),
        {"host": host} | ({"part": summary.part} if summary.part else {}),
    )


def of_beat(job: str, output: str, beat: Heartbeat, state: str = "", *, now: float | None = None) -> Event:
    """Returns the end of a run of which its last heartbeat is known: as that says, or `state`, with what a killed one
    said last; `now`: it has ended just now."""
    state = state or beat.state
    process, done, total = beat.process, beat.shards["done"], beat.shards["total"]
    part = f" (part {beat.part})" if beat.part else ""
    took = format_duration(max(0.0, (beat.updated if now is None else now) - beat.started))
    failed = f", {beat.shards['failed']:,} failed" if beat.shards["failed"] else ""
    text = f"{job} {state}{part} after {took}: {done:,} of {format_count(total, 'shard')} done{failed}"
    if state == KILLED:
        at = datetime.fromtimestamp(beat.updated, UTC).strftime("%Y-%m-%d %H:%M:%S")
        text = (
            f"{job} was killed{part}: process {process.pid} on {process.host} is gone; at its last heartbeat, {at} "
            f"UTC, {done:,} of {format_count(total, 'shard')} were done{failed}"
        )
    text += f"; {_rows(beat.rows)}; {output}. {_next(state, output, beat.shards['failed'])}"
    return Event(beat.run_id, END, job, output, state, text.rstrip(), _summary(job, output, beat), _where(beat))


def of_stall(job: str, output: str, beat: Heartbeat, plain: str, now: float) -> Event:
    """Returns that nothing has ended in a run since then; `plain` is what it waits for, without what user code said."""
    ended = beat.started if beat.last_end is None else beat.last_end
    quiet = format_duration(max(0.0, now - ended))
    waits = f"; it waits for: {plain}" if plain else ""
    done, total, running = (beat.shards[name] for name in ("done", "total", "running"))
    text = (
        f"{job} makes no progress: nothing has ended for {quiet}, {running:,} running, {done:,} of "
        f"{format_count(total, 'shard')} done{waits}; {output}. Look: curate status {shell_word(output)}"
    )
    more = {"since": _time(ended), "waits_for": plain, "waits_since": _time(beat.waits_since)}
    more = {name: one for name, one in more.items() if one} | ({"node": beat.waits_node} if beat.waits_node else {})
    name, summary = stall_name(ended), _summary(job, output, beat)
    return Event(beat.run_id, name, job, output, beat.state, text, summary, {**_where(beat), **more})


def _summary(job: str, output: str, beat: Heartbeat) -> dict[str, Any]:
    """Returns what is known of a run that has no summary, in the words of one."""
    names = ("total", "done", "skipped", "running", "failed")
    return {
        "job": job,
        "run_id": beat.run_id,
        "output": output,
        "state": beat.state,
        "shards": {name: beat.shards[name] for name in names if name in beat.shards},
        "rows": dict(beat.rows),
        "counters": dict(beat.counters),
        "seconds": round(max(0.0, beat.updated - beat.started), 3),
    }


def _where(beat: Heartbeat) -> dict[str, Any]:
    where = {"host": beat.process.host, "pid": beat.process.pid}
    return where | ({"part": beat.part} if beat.part else {})


def _rows(rows: Mapping[str, Any]) -> str:
    set_aside = f", {rows['quarantined']:,} quarantined" if rows["quarantined"] else ""
    return f"{rows['in']:,} rows in, {rows['out']:,} out{set_aside}"


def _next(state: str, output: str, failed: int) -> str:
    if state == RunState.COMPLETE:
        return ""
    if state in (RunState.FAILED, RunState.ABORTED):
        if failed:
            return f"Look: curate failures {shell_word(output)}"
        # No shard did: the store, or something else, has ended the run.
        return f"Look: curate status {shell_word(output)}. Run it again to resume."
    return "Run it again to resume."


def _time(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
