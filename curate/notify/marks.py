"""Who is to be told how runs go, and what was told: create-only marks beside each run, which hold no URL.

A mark is made after the post has arrived. So an event is told again if the process was killed in between: by the same
id, by which the receiver drops it.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from typing import Any

from curate.dataclass import dataclass, field, replace
from curate.errors import ConfigError, ObjectNotFound
from curate.ledger import layout
from curate.ledger.heartbeat import NEWEST_RUNS, Heartbeat, Liveness, ProcessState, first_look, read_heartbeats
from curate.ledger.ledger import Ledger, open_ledger
from curate.ledger.summary import RunState
from curate.notify.message import END, KILLED, Event, of_beat, of_stall, stall_name
from curate.notify.waiting import without_reason
from curate.storage.uris import is_local
from curate.stores.local import remove_scratch
from curate.stores.open import open_store

ASKED = "asked"


@dataclass(slots=True)
class Marks:
    """The runs of an output, with their marks."""

    run_ids: list[str] = field(default_factory=list)
    told: dict[str, set[str]] = field(default_factory=dict)
    """Events of which somebody was told, by run; `asked` among them if somebody is to be told at all."""

    def has(self, run_id: str, event: str) -> bool:
        """Returns whether a run has a mark."""
        return event in self.told.get(run_id, ())

    def open_runs(self, *, asked: bool = False) -> list[str]:
        """Returns the newest runs of whose end nobody was told; if `asked`, of those of which somebody is to be."""
        runs = [one for one in sorted(self.run_ids) if not self.has(one, END)]
        return [one for one in runs if not asked or self.has(one, ASKED)][-NEWEST_RUNS:]


def read_marks(ledger: Ledger) -> Marks:
    """Returns the marks of an output: one listing of the folder of its runs. Raises what the store raises."""
    found, cut = Marks(), len(ledger.root) + 1
    for item in ledger.store.list(ledger.uri(layout.RUNS)):
        name = item.uri[cut:]
        if run_id := layout.run_of(name):
            found.run_ids.append(run_id)
        elif mark := layout.told_of(name):
            found.told.setdefault(mark[0], set()).add(mark[1])
    return found


def mark(output: str, run_id: str, event: str, about: Mapping[str, Any]) -> None:
    """Marks a run. Does nothing if there is no such run any more. Raises what the store raises."""
    scratch = f"{output}/{layout.TMP}begin-{uuid.uuid4().hex[:8]}"
    ledger = Ledger(open_store(output, scratch=scratch), output)
    try:
        if event != ASKED:
            ledger.store.stat(ledger.uri(layout.run_file(run_id, "run.json")))
        ledger.create_json(layout.told_file(run_id, event), about)
    except ObjectNotFound:
        return  # the job was overwritten
    finally:
        if is_local(output):
            remove_scratch(scratch)


def untold(
    job: str,
    output: str,
    marks: Marks,
    beats: Collection[Heartbeat],
    now: float,
    *,
    leader: str = "",
    stalls: bool = False,
    after_s: float | None = None,
) -> list[Event]:
    """Returns what is to be told of runs that do not tell it themselves any more, oldest first: pure.

    Of those of which somebody is to be told: the ends of which nobody was, also of those that were killed. Drivers of
    parts that completed the job have one end, under the id of their `leader`. With `stalls`, also of runs that go on
    and make no progress: by `after_s`, else as they say themselves.
    """
    found: list[Event] = []
    parts = [one for one in beats if leader and _completed_part(one) and marks.has(one.run_id, ASKED)]
    also = tuple((output, one.run_id) for one in parts if one.run_id != leader and not marks.has(one.run_id, END))
    for beat in sorted(beats, key=lambda beat: beat.run_id):
        if not marks.has(beat.run_id, ASKED) or marks.has(beat.run_id, END):
            continue
        if first_look(beat, beat.process.state(), now) is Liveness.GONE:
            event = of_beat(job, output, beat, KILLED if beat.running else "")
            if beat in parts:
                event = replace(event, run_id=leader, also=also)
            if event.id not in [one.id for one in found]:
                found.append(event)
        elif stalls and beat.quiet_s(now, after_s) and not marks.has(beat.run_id, stall_name(beat.last_end or 0.0)):
            found.append(of_stall(job, output, beat, without_reason(beat.waits_kind, beat.waits), now))
    return found


def earlier_events(output: str, now: float) -> list[Event]:
    """Returns what is to be told of earlier runs of an output, which said nothing themselves.

    One listing of its runs, a small read for each that somebody is to be told of. Raises what the store raises.
    """
    ledger = open_ledger(output)
    marks = read_marks(ledger)
    asked = marks.open_runs(asked=True)
    if not asked:
        return []
    beats = last_words(ledger, asked)
    return untold(job_name(ledger), output, marks, beats, now, leader=leader_of(ledger, beats))


def leader_of(ledger: Ledger, beats: Collection[Heartbeat]) -> str:
    """Returns the run that said that the job is complete, if drivers of its parts ended so; else nothing."""
    if not any(map(_completed_part, beats)):
        return ""
    try:
        return str(ledger.read_json(layout.SUMMARY).get("run_id") or "")
    except (ObjectNotFound, ConfigError):
        return ""


def _completed_part(beat: Heartbeat) -> bool:
    return bool(beat.part) and beat.state == RunState.COMPLETE.value


def last_words(ledger: Ledger, run_ids: Collection[str]) -> list[Heartbeat]:
    """Returns what runs last said of themselves; of one that was killed before it said anything, that it began, and of
    one that was killed after it had completed the job, that it did."""
    beats = read_heartbeats(ledger, run_ids, begun=True, newest=len(run_ids))
    for run_id in set(run_ids) - {beat.run_id for beat in beats}:
        try:
            value = ledger.read_json(layout.run_file(run_id, "run.json"))
        except (ObjectNotFound, ConfigError):
            continue  # removed since, or damaged
        shards = dict.fromkeys(("total", "done", "skipped", "running", "failed"), 0)
        if (beat := Heartbeat.of(run_id, {**value, "shards": shards})) is not None:
            beats.append(beat)
    if not any(beat.running for beat in beats):
        return beats
    try:
        summary = ledger.read_json(layout.SUMMARY)
    except (ObjectNotFound, ConfigError):
        return beats
    return [_completed(beat, summary) if beat.run_id == summary.get("run_id") else beat for beat in beats]


def _completed(beat: Heartbeat, summary: Mapping[str, Any]) -> Heartbeat:
    if not beat.running or beat.process.state() is ProcessState.ALIVE:
        return beat
    shards = {**beat.shards, **summary.get("shards", {}), "running": 0, "failed": 0}
    rows, counters = summary.get("rows", beat.rows), summary.get("counters", beat.counters)
    return replace(beat, state=RunState.COMPLETE.value, shards=shards, rows=rows, counters=counters)


def job_name(ledger: Ledger) -> str:
    """Returns the name of the job that writes to an output; that of its folder if the ledger does not say."""
    try:
        return str(ledger.read_json(layout.JOB).get("job", ""))
    except ObjectNotFound:
        return ledger.root.rpartition("/")[2]
