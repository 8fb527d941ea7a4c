"""What is posted: ids that stay the same whoever tells, and neither a secret nor a row."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from curate.dataclass import replace
from curate.ledger.heartbeat import Heartbeat, Process
from curate.ledger.summary import FailureGroup, RunState, Summary
from curate.notify.message import KILLED, of_beat, of_stall, of_summary
from curate.storage.protocol import Calls
from curate.tasks.books import Books

ROW = "Jane Doe, 12 Elm Street"
SIGNED = "gs://b/o?X-Goog-Signature=0a1b2c"
RUN = "20231114T220000.000Z-abc123"
BEAT = Heartbeat(
    RUN,
    started=1_700_000_000.0,
    updated=1_700_000_600.0,
    shards={"total": 24, "done": 12, "skipped": 0, "running": 2, "failed": 1},
    process=Process("node-1", 77),
    failures=({"error": f"ValueError: {ROW}", "count": 1, "shard": "a"},),
    retrying=({"error": f"service busy ({ROW})", "count": 1, "shard": "a"},),
    waits=f"1 shard waits: service busy ({ROW})",
    waits_kind="service",
    waits_since=1_700_000_100.0,
    last_end=1_700_000_000.0,
)


def summary(**changes: Any) -> Summary:
    books = Books(20, rows_out=17, quarantined=3, counters={"half": 2.0})
    failures = (FailureGroup(f"ValueError: {ROW}", 1, "a"),)
    values = {"job": "toxicity", "run_id": RUN, "output": SIGNED, "state": RunState.FAILED, "total": 24, "done": 23}
    values |= {
        "skipped": 0,
        "failed": 1,
        "dispatched": 9,
        "attempts": 30,
        "books": books,
        "bytes_in": 9,
        "bytes_out": 5,
    }
    return Summary(**{**values, "seconds": 63.0, "calls": Calls(), "failures": failures, **changes})


def test_neither_a_secret_nor_a_row() -> None:
    """Errors, and what a service said, quote what they choked on."""
    for event in (
        of_summary(summary()),
        of_beat("toxicity", SIGNED, BEAT),
        of_beat("toxicity", SIGNED, BEAT, KILLED),
        of_stall("toxicity", SIGNED, BEAT, "1 shard waits: service busy", 1_700_002_000.0),
    ):
        sent = orjson.dumps(event.message("me")).decode()
        assert ROW not in sent
        assert "0a1b2c" not in sent


def test_the_end_of_a_run() -> None:
    message = of_summary(summary(output="/data/out"), host="node-1").message(RUN)
    assert message["text"] == (
        "toxicity failed after 1 min 3 s: 23 of 24 shards done, 1 failed; 20 rows in, 17 out, 3 quarantined; "
        "/data/out. Look: curate failures /data/out"
    )
    assert {name: message[name] for name in ("id", "event", "state", "run_id", "job", "told_by", "host")} == {
        "id": f"{RUN}/end", "event": "end", "state": "failed", "run_id": RUN, "job": "toxicity", "told_by": RUN,
        "host": "node-1",
    }  # fmt: skip
    whole = summary(output="/data/out").as_dict()
    assert message["summary"] == orjson.loads(orjson.dumps(whole))


def test_the_end_of_a_killed_run() -> None:
    message = of_beat("toxicity", "/data/out", BEAT, KILLED).message("curate serve")
    assert message["text"] == (
        "toxicity was killed: process 77 on node-1 is gone; at its last heartbeat, 2023-11-14 22:23:20 UTC, 12 of 24 "
        "shards were done, 1 failed; 0 rows in, 0 out; /data/out. Run it again to resume."
    )
    assert (message["id"], message["state"], message["summary"]["shards"]["done"]) == (f"{RUN}/end", "killed", 12)


@pytest.mark.parametrize("state", [RunState.FAILED, RunState.ABORTED])
@pytest.mark.parametrize("failed", [0, 1])
def test_failures_are_looked_at_where_there_are_any(state: RunState, failed: int) -> None:
    """Where the store has ended a run, no shard has failed: then it is run again."""
    beat = replace(BEAT, shards={**BEAT.shards, "failed": failed})
    for event in (
        of_summary(summary(output="/data/out", state=state, failed=failed, failures=summary().failures[:failed])),
        of_beat("toxicity", "/data/out", beat, state.value),
    ):
        assert ("Look: curate failures /data/out" in event.text) == bool(failed)
        assert event.text.endswith("Look: curate status /data/out. Run it again to resume.") != bool(failed)


def test_no_progress() -> None:
    event = of_stall("toxicity", "/data/out", BEAT, "1 shard waits: service busy", 1_700_002_400.0)
    message = event.message(RUN)
    assert message["text"] == (
        "toxicity makes no progress: nothing has ended for 40 min, 2 running, 12 of 24 shards done; it waits for: 1 "
        "shard waits: service busy; /data/out. Look: curate status /data/out"
    )
    assert (message["id"], message["event"]) == (f"{RUN}/no-progress-20231114T221320Z", "no-progress")
    assert (message["since"], message["waits_since"]) == ("2023-11-14T22:13:20Z", "2023-11-14T22:15:00Z")


@pytest.mark.parametrize("name", ["<!channel>", "<http://evil.example|click>", "a & b", "\x1b[31mred\u202e\nline"])
def test_names_act_on_nobody(name: str) -> None:
    """Neither in Slack nor on a terminal, however long they are; and there may be very many."""
    message = of_summary(summary(job=name, books=Books(counters={f"{name}{n}": 1.0 for n in range(500)}))).message("me")
    assert "<" not in message["text"]
    assert message["text"].isprintable()
    assert len(message["summary"]["counters"]) <= 50
    long = of_summary(summary(job=1_000_000 * "w")).message("me")
    assert len(orjson.dumps(long)) < 10_000
