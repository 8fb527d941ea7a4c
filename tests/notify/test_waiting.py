"""What a run waits for, as a sentence: every cause, which comes first, and since when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from curate.ledger.heartbeat import Heartbeat
from curate.notify.waiting import QUIET_S, Longest, Standing, WaitingSince, causes, without_reason

LAST = Longest("s9", 1000.0, "node-3 (process 7)")


@pytest.mark.parametrize(
    ("at", "kind", "text"),
    [
        (Standing(running=4, slots=4, pending=9), "", ""),
        (Standing(no_place="tasks wait: no node has 1 CPU"), "place", "tasks wait: no node has 1 CPU"),
        (Standing(store="the store refuses requests"), "store", "the store refuses requests"),
        (Standing(others="waiting for 3 shards of other parts"), "parts", "waiting for 3 shards of other parts"),
        (Standing(running=1, busy=1, busy_reason="HTTP 429"), "service", "1 shard waits: service busy (HTTP 429)"),
        (Standing(running=2, busy=1200), "service", "1,200 shards wait: service busy"),
        # Others go on; those that wait are listed among the shards that are being retried.
        (Standing(running=3, slots=3, pending=1, busy=2), "", ""),
        (Standing(running=1, slots=4, longest=LAST), "last", "the last shard: s9 on node-3 (process 7)"),
        (
            Standing(running=3, slots=4, longest=LAST),
            "last",
            "the last 3 shards; longest runs s9 on node-3 (process 7)",
        ),
        # All slots are in use, or something is left to launch.
        (Standing(running=4, slots=4, longest=LAST, ended=1900.0), "", ""),
        (Standing(running=3, slots=4, pending=1, longest=LAST, ended=1900.0), "", ""),
        (
            Standing(running=4, slots=4, pending=1, longest=LAST),
            "shards",
            "4 shards that run; longest s9 on node-3 (pro",
        ),
        (Standing(running=1, slots=1, longest=Longest("s9", 1000.0)), "shards", "the shard that runs: s9"),
    ],
)
def test_what_it_waits_for(at: Standing, kind: str, text: str) -> None:
    found = WaitingSince().look(at, 2000.0)
    if kind in ("store",):
        assert found is None  # it may pass
        assert causes(at, 2000.0) == {kind: text}
    elif not kind:
        assert found is None
    else:
        assert found is not None
        assert found.kind == kind
        assert found.text.startswith(text)


def test_since_when() -> None:
    """From when it began to wait for that; of a shard, from when it began to run."""
    since = WaitingSince()
    place = Standing(no_place="tasks wait: no node has 1 CPU")
    assert since.look(Standing(running=1, slots=1), 100.0) is None
    first = since.look(place, 110.0)
    again = since.look(place, 290.0)
    assert first is not None
    assert again is not None
    assert (first.since, again.since) == (110.0, 110.0)
    assert again.told(290.0) == "tasks wait: no node has 1 CPU (for 3 min)"
    assert since.look(Standing(running=1, slots=1), 300.0) is None
    anew = since.look(place, 400.0)
    assert anew is not None
    assert anew.since == 400.0
    last = since.look(Standing(running=1, slots=2, longest=LAST), 1060.0)
    assert last is not None
    assert (last.since, last.node) == (1000.0, "node-3 (process 7)")


def test_what_passes_soon_is_not_said() -> None:
    since, at = WaitingSince(), Standing(store="the store refuses requests: 1 request at once")
    assert since.look(at, 100.0) is None
    found = since.look(at, 110.0)
    assert found is not None
    assert found.since == 100.0
    assert WaitingSince().look(Standing(running=1, slots=2, longest=LAST), 1005.0) is None


def test_no_progress_is_a_matter_of_the_last_end() -> None:
    """Not of how long the run has gone on, nor of one that has ended."""
    beat = Heartbeat("r", started=0.0, updated=2700.0, last_end=1000.0)
    assert (beat.quiet_s(2799.0), beat.quiet_s(2800.0)) == (0.0, 1800.0)
    assert replace(beat, state="complete").quiet_s(9000.0) == 0.0
    assert not causes(Standing(running=1, slots=1, longest=LAST, ended=1000.0), 1000.0 + QUIET_S - 1)


def test_what_user_code_says_is_not_sent() -> None:
    """A reason may quote a row."""
    at = Standing(running=1, busy=1, busy_reason="no answer (for 'Jane: service busy (Doe)')")
    ((kind, text),) = causes(at, 0.0).items()
    assert without_reason(kind, text) == "1 shard waits: service busy"
    assert without_reason("last", "the last shard: a: service busy (x)") == "the last shard: a: service busy (x)"
