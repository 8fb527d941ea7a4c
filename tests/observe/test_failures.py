"""What failed, read from the ledger alone: by the last outcome, whatever was lost of what tells of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.ledger import layout
from curate.ledger.compression import compress
from curate.ledger.ledger import Ledger
from curate.ledger.listing import match_outputs
from curate.ledger.segments import failed_now, read_outcomes
from curate.observe.failures import JobFailures, read_failures, recorded_run
from curate.observe.job import read_status
from curate.observe.place import NoJobError
from curate.tasks.events import Outcome
from tests.job.inline import refusing
from tests.support.ledgers import SUFFIX, heartbeat, make_job

DONE, FAILED, RETRY = Outcome.DONE, Outcome.FAILED, Outcome.RETRY

TOTAL = 6
IDS = [f"s{number:07d}" for number in range(TOTAL)]


def event(rank: int, outcome: str, time: float, error: str = "ValueError: bad", **more: Any) -> dict[str, Any]:
    return {"index": rank, "shard": IDS[rank], "outcome": outcome, "time": time, "task": 1, "attempt": 1} | (
        {"input": f"/in/{IDS[rank]}.jsonl", "kind": "user_error", "error": error, **more} if outcome != DONE else {}
    )


def whole(rank: int, outcome: str, time: float, error: str = "ValueError: bad", **more: Any) -> dict[str, Any]:
    """A line of the failures: what an event has, and more."""
    return event(rank, outcome, time, error) | {"frame": "a.py:1 in f", "traceback": f"Traceback {time}", **more}


class Run:
    """Writes what a run leaves."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def events(self, run_id: str, *segments: Sequence[Mapping[str, Any]]) -> None:
        for number, lines in enumerate(segments, 1):
            self._write(layout.events_segment(run_id, number), lines)

    def failures(self, run_id: str, *segments: Sequence[Mapping[str, Any]]) -> None:
        for number, lines in enumerate(segments, 1):
            self._write(layout.failures_segment(run_id, number), lines)

    def _write(self, name: str, lines: Sequence[Mapping[str, Any]]) -> None:
        self.ledger.store.publish(self.ledger.uri(name), compress(b"".join(orjson.dumps(one) + b"\n" for one in lines)))


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "out")


@pytest.fixture
def wrote(root: str) -> Run:
    return Run(make_job(root, total=TOTAL, done=1, runs={"1-a": {}, "2-b": {}}))


def failed(root: str) -> list[int]:
    found = read_failures(root).failed
    return [int(rank) for rank in np.flatnonzero(found)]


class TestFailedNow:
    def test_the_last_outcome_counts(self, wrote: Run, root: str) -> None:
        """Given up: failed. Given up and done later, or done and removed by hand: not. A try alone is no outcome."""
        wrote.events(
            "1-a",
            [event(rank, FAILED, 10.0) for rank in (0, 1, 2, 3)] + [event(4, RETRY, 11.0), event(5, DONE, 12.0)],
        )
        wrote.events("2-b", [event(2, DONE, 20.0), event(3, RETRY, 21.0)])
        # 0 has an output, 2 had one that was removed, 3 is being tried again.
        assert failed(root) == [1, 3]

    def test_a_status_counts_as_all_failures_do(self, wrote: Run, root: str) -> None:
        """Without a look at lines of other shards, or at tries that others followed."""
        wrote.events("1-a", [event(rank, FAILED, 10.0) for rank in (0, 1, 2, 3)] + [event(4, DONE, 12.0)])
        wrote.events("2-b", [event(2, DONE, 20.0), event(3, RETRY, 21.0), event(4, RETRY, 22.0)])
        wrote.failures("1-a", [whole(rank, outcome, 10.0) for rank in (0, 1, 2, 3) for outcome in (RETRY, FAILED)])
        wrote.failures("2-b", [whole(3, RETRY, 21.0), whole(1, RETRY, 22.0)])
        status, found = read_status(root, 100.0), read_failures(root)
        assert (status.failed, [one["count"] for one in status.failures]) == (2, [2])
        assert (int(found.failed.sum()), [one.shards for one in found.groups()]) == (2, [2])

    @pytest.mark.parametrize("state", ["running", "interrupted"])
    def test_what_a_run_told_at_its_end_is_not_counted_again(self, wrote: Run, root: str, state: str) -> None:
        """Of a million shards, that took 16 s. One that was killed may have had more to tell."""
        beat = heartbeat(state, started=1.0, updated=2.0, shards={"failed": 2}, failures=[])
        uri = wrote.ledger.uri(layout.run_file("2-b", "heartbeat.json"))
        wrote.ledger.store.replace(uri, orjson.dumps({**beat, "run_id": "2-b"}))
        wrote.failures("2-b", [whole(1, FAILED, 10.0)])
        assert read_status(root, 100.0).failed == (1 if state == "running" else 2)

    def test_either_stream_tells(self, wrote: Run, root: str) -> None:
        """A run that was killed may have written the one and not the other."""
        wrote.failures("1-a", [whole(1, FAILED, 10.0)])
        wrote.events("2-b", [event(2, FAILED, 20.0)])
        assert failed(root) == [1, 2]

    def test_two_drivers_at_once(self, wrote: Run, root: str) -> None:
        """Not the run that began last says it, but the outcome that came last."""
        wrote.events("1-a", [event(1, FAILED, 30.0), event(2, DONE, 40.0)])
        wrote.events("2-b", [event(1, DONE, 20.0), event(2, FAILED, 35.0)])
        assert failed(root) == [1]

    @given(
        st.lists(
            st.tuples(st.integers(0, TOTAL + 2), st.sampled_from((FAILED, DONE, RETRY))),
            max_size=20,
        )
    )
    def test_any_history(self, outcomes: list[tuple[int, str]]) -> None:
        """Whatever order segments are read in, and whatever ranks they tell of: the last outcome of each shard."""
        times = [(float(n), rank, outcome) for n, (rank, outcome) in enumerate(outcomes)]

        class Scripted(Ledger):
            def events(self, names: Any, wanted: Any = None) -> Any:
                del names, wanted
                yield from (
                    {"index": rank, "outcome": outcome, "time": time} for time, rank, outcome in reversed(times)
                )

        ledger = make_job(f"memory://failed-{id(outcomes)}/out", total=TOTAL, done=2)
        listing = ledger.list()
        plan = ledger.read_plan(listing)
        outcomes = read_outcomes(Scripted(ledger.store, ledger.root), listing, plan)
        found = failed_now(outcomes, listing, match_outputs(plan, listing, SUFFIX))
        last = {rank: outcome for _, rank, outcome in times if outcome != RETRY}
        assert list(np.flatnonzero(found)) == [rank for rank in range(2, TOTAL) if last.get(rank) == FAILED]


class TestGroups:
    def test_shards_that_failed_and_what_of(self, wrote: Run, root: str) -> None:
        """Two for one reason, one for another; the newest is the example; what was done since is not there."""
        wrote.events("1-a", [event(rank, FAILED, 10.0 + rank) for rank in (1, 2, 3, 4)])
        wrote.failures(
            "1-a",
            [
                whole(1, RETRY, 5.0),
                whole(1, FAILED, 11.0),
                whole(2, FAILED, 12.0, "ValueError: bad 'x'"),
            ],
            [whole(3, FAILED, 13.0, "KeyError: 'y'"), whole(4, FAILED, 14.0)],
        )
        wrote.ledger.store.publish(wrote.ledger.uri(IDS[4] + SUFFIX), b"rows")
        wrote.failures("2-b", [whole(1, RETRY, 20.0)])
        groups = read_failures(root).groups()
        assert [(one.signature.error, one.signature.message, one.shards, one.attempts) for one in groups] == [
            ("ValueError", "bad", 1, 2),
            ("KeyError", "'…'", 1, 1),
            ("ValueError", "bad '…'", 1, 1),
        ]
        first = groups[0]
        assert (first.example["run_id"], first.example["time"], first.example["traceback"]) == (
            "1-a",
            11.0,
            "Traceback 11.0",
        )
        assert sum(one.attempts for one in read_failures(root).all_groups()) == 6

    def test_a_ledger_of_an_older_curate(self, wrote: Run, root: str) -> None:
        """Its events have the traceback, and no frame."""
        wrote.events("1-a", [event(1, RETRY, 9.0, traceback="Old"), event(1, FAILED, 10.0, traceback="Old")])
        for groups in (read_failures(root).groups(), read_failures(root).all_groups()):
            assert [(one.shards, one.attempts, one.example["traceback"]) for one in groups] == [(1, 2, "Old")]
        tries = read_failures(root).tries(IDS[1])
        assert [(one["outcome"], one["run_id"], one["traceback"]) for one in tries] == [
            (RETRY, "1-a", "Old"),
            (FAILED, "1-a", "Old"),
        ]

    def test_what_was_lost_of_the_failures_comes_from_events(self, wrote: Run, root: str) -> None:
        """A shard that is failed now is in some group, though its run was killed before it wrote its failures."""
        wrote.failures("1-a", [whole(1, FAILED, 10.0)])
        wrote.events("1-a", [event(1, FAILED, 10.0), event(2, FAILED, 11.0, "KeyError: 1")])
        found = read_failures(root)
        assert sum(group.shards for group in found.groups()) == int(found.failed.sum()) == 2

    def test_a_damaged_segment_hides_only_itself(self, wrote: Run, root: str) -> None:
        """What can be read is shown."""
        wrote.failures("1-a", [whole(1, FAILED, 10.0)])
        wrote.ledger.store.publish(wrote.ledger.uri(layout.failures_segment("1-a", 2)), b"no zstd")
        wrote.ledger.store.publish(wrote.ledger.uri(layout.failures_segment("1-a", 3)), compress(b"{not json\n"))
        assert [group.shards for group in read_failures(root).groups()] == [1]

    def test_nothing_failed(self, wrote: Run, root: str) -> None:
        """Then there is no group, and only the failures and events were listed."""
        wrote.events("1-a", [event(1, DONE, 10.0)])
        assert read_failures(root).groups() == []
        assert read_failures(root).all_groups() == []


class TestOneShard:
    def found(self, wrote: Run, root: str) -> JobFailures:
        wrote.failures(
            "1-a",
            [
                whole(1, FAILED, 10.0, "ValueError: row 1", traceback="", **{"as": IDS[2]}),
                whole(2, RETRY, 8.0, "KeyError: 1", traceback="another"),
                whole(2, FAILED, 9.0, "ValueError: row 7", traceback="this"),
            ],
        )
        wrote.failures("2-b", [whole(1, FAILED, 20.0)])
        return read_failures(root)

    def test_all_its_tries_oldest_first(self, wrote: Run, root: str) -> None:
        """Of all runs; a traceback that was left out is that of the shard which failed alike."""
        tries = self.found(wrote, root).tries(IDS[1])
        assert [(one["run_id"], one["traceback"]) for one in tries] == [("1-a", "this"), ("2-b", "Traceback 20.0")]

    def test_an_unknown_shard(self, wrote: Run, root: str) -> None:
        """With the one that was probably meant, and how shards are called."""
        with refusing("has no shard 's000001'; did you mean 's0000001'?"):
            self.found(wrote, root).tries("s000001")

    def test_an_output_is_no_shard_and_says_which(self, wrote: Run, root: str) -> None:
        """What people have at hand is its name, or its path."""
        found = self.found(wrote, root)
        suffix = found.job["suffix"]
        for named in (f"{IDS[1]}{suffix}", f"{found.ledger.root}/{IDS[1]}{suffix}"):
            with refusing(f"has no shard {named!r}; did you mean {IDS[1]!r}? A shard is called like its output"):
                found.shard(named)

    def test_no_job(self, root: str) -> None:
        """There is nothing to read."""
        with pytest.raises(NoJobError, match="no curate job"):
            read_failures(root)


class TestRecordedRun:
    def test_the_last_run_that_says_it(self, tmp_path: Path) -> None:
        """Runs of an older curate, and runs that were killed before they wrote anything, are passed over."""
        ledger = make_job(str(tmp_path / "out"), total=1, done=0, runs={"1-a": {}, "4-d": {}})
        for run_id, name in (("2-b", "Old"), ("3-c", "New")):
            about = {"origin": {"class": name}, "inputs": ["in/*.jsonl", "gs://b/x", "/abs/"], "backend": "inline"}
            ledger.create_json(layout.run_file(run_id, "run.json"), about | {"cwd": "/some/where"})
        found = recorded_run(ledger, ledger.list())
        assert (found.origin, found.backend) == ({"class": "New"}, "inline")
        assert found.inputs == ["/some/where/in/*.jsonl", "gs://b/x", "/abs/"]
        assert not found.allow_incomplete_input

    def test_no_run_says_it(self, tmp_path: Path) -> None:
        """The job's own command can do the same."""
        ledger = make_job(str(tmp_path / "out"), total=1, done=0, runs={"1-a": {}})
        with refusing("run the job itself with retry_failed=True"):
            recorded_run(ledger, ledger.list())
