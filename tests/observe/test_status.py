"""What a ledger says about a job: every state, and the shape that scripts rely on."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.ledger.heartbeat import NO_RATE, Heartbeat
from curate.ledger.run_log import whereabouts
from curate.observe.status import JobCounts, JobStatus, RateWindow, job_status, run_status
from curate.tasks.books import Books
from tests.support.ledgers import heartbeat

NOW = 1_700_000_000.0
ROWS = Books(100, rows_out=90, dropped={"empty": 8}, quarantined=2).rows()
SUMMARY = {"rows": Books(500, rows_out=500).rows(), "counters": {"words": 7}}
FAILURES = [
    {"error": "ValueError: boom", "count": 2, "shard": "a"},
    {"error": "KeyError: 'x'", "count": 1, "shard": "b"},
]


def beat(run_id: str, state: str, *, started: float = NOW - 100, ago: float = 5.0, **more: Any) -> dict[str, Any]:
    return {**heartbeat(state, started=started, updated=NOW - ago, rows=ROWS, **more), "run_id": run_id}


def status(*beats: dict[str, Any], total: int = 10, done: int = 4, summary: dict[str, Any] | None = None) -> JobStatus:
    return job_status(JobCounts("toxicity", "gs://b/out", total, done, 1000, 400), [*map(parsed, beats)], summary, NOW)


def parsed(value: dict[str, Any]) -> Heartbeat:
    found = Heartbeat.of(value["run_id"], value)
    assert found is not None
    return found


# Runs


@pytest.mark.parametrize("state", ["complete", "failed", "aborted", "interrupted"])
@pytest.mark.parametrize("ago", [0.0, 1e6])
def test_a_run_that_ended_stays_as_it_ended(state: str, ago: float) -> None:
    """Silence is expected of it."""
    assert run_status(parsed(beat("r", state, ago=ago)), NOW).state == state


@pytest.mark.parametrize(("ago", "state"), [(0.0, "running"), (60.0, "running"), (60.1, "stalled"), (1e6, "stalled")])
def test_a_run_that_was_silent_for_a_minute_is_stalled(ago: float, state: str) -> None:
    """It says it runs; it has not been heard of."""
    assert run_status(parsed(beat("r", "running", ago=ago)), NOW).state == state


def test_a_clock_that_is_behind_makes_nobody_stalled() -> None:
    """The reader's clock may be behind the writer's."""
    assert run_status(parsed(beat("r", "running", ago=-3600.0)), NOW).state == "running"


def test_a_run_whose_process_is_gone_is_stalled_at_once() -> None:
    """On the same host nobody has to wait for the minute to pass."""
    here = beat("r", "running", ago=1.0) | whereabouts()
    assert run_status(parsed(here), NOW).state == "running"
    assert run_status(parsed(here | {"pid_started": "1"}), NOW).state == "stalled"


# Jobs


def test_a_job_that_no_run_was_heard_of_is_pending() -> None:
    """Planned, and killed before the first heartbeat."""
    job = status(done=0)
    assert (job.state, job.pending, job.running, job.failed, job.stale) == ("pending", 10, 0, 0, 0)
    assert job.rows == {"in": 0, "created": 0, "out": 0, "dropped": {}, "quarantined": 0}
    assert (job.rate, job.eta_seconds, job.failures, job.runs) == (NO_RATE, None, [], [])


def test_a_running_job_tells_how_fast_and_how_long() -> None:
    """Counts of done from the outputs, the rest from the heartbeat."""
    job = status(beat("r", "running", shards={"running": 2, "failed": 1, "stale": 3}, failures=FAILURES[1:]))
    assert (job.state, job.total, job.done, job.running, job.failed, job.stale) == ("running", 10, 4, 2, 1, 3)
    assert job.pending == 3
    assert job.rate == {"shards_per_s": 2.0, "rows_per_s": 20.0, "bytes_per_s": 2000.0}
    assert (job.eta_range_s, job.eta_seconds) == ((3.8, 5.2), 4.5)
    assert job.rows == ROWS
    assert job.failures == FAILURES[1:]


@pytest.mark.parametrize(
    ("state", "ago", "expected"),
    [
        ("running", 61.0, "stalled"),
        ("failed", 5.0, "failed"),
        ("aborted", 5.0, "aborted"),
        ("interrupted", 5.0, "interrupted"),
    ],
)
def test_a_job_that_does_not_run_has_no_rate(state: str, ago: float, expected: str) -> None:
    """Nothing is running, and no time is promised."""
    job = status(beat("r", state, ago=ago, shards={"running": 2, "failed": 1}, failures=FAILURES))
    assert (job.state, job.running, job.failed, job.pending) == (expected, 0, 1, 5)
    assert (job.rate, job.eta_seconds) == (NO_RATE, None)
    assert job.failures == FAILURES


def test_a_complete_job_is_as_its_summary_says() -> None:
    """Rows and counters of all runs; failures of earlier tries are history."""
    failed = beat("r1", "failed", started=NOW - 900, shards={"failed": 3}, failures=FAILURES)
    job = status(failed, beat("r2", "complete"), done=10, summary=SUMMARY)
    assert (job.state, job.done, job.failed, job.pending, job.failures) == ("complete", 10, 0, 0, [])
    assert (job.rows, job.counters) == (SUMMARY["rows"], SUMMARY["counters"])
    assert [(run.run_id, run.state) for run in job.runs] == [("r2", "complete"), ("r1", "failed")]


def test_a_summary_does_not_outlive_the_outputs() -> None:
    """Outputs were removed since: they are the truth."""
    job = status(beat("r", "complete"), done=9, summary=SUMMARY)
    assert (job.state, job.done, job.pending) == ("pending", 9, 1)


def test_a_complete_part_does_not_complete_the_job() -> None:
    """After `--limit` or `--sample` the rest is pending."""
    job = status(beat("r", "complete"), done=4)
    assert (job.state, job.pending) == ("pending", 6)


def test_the_run_at_work_speaks_for_the_job() -> None:
    """Of two drivers, the one that still runs, whichever started first; with none at work, the last that started."""
    old = beat("r1", "running", started=NOW - 500, shards={"running": 7})
    new = beat("r2", "interrupted", started=NOW - 100)
    assert (status(old, new).state, status(new, old).running) == ("running", 6)
    assert status(new, old | {"updated": NOW - 400}).state == "interrupted"


def test_a_new_run_starts_with_no_failures() -> None:
    """What failed before is pending again: it is tried again."""
    before = beat("r1", "failed", started=NOW - 900, shards={"failed": 3}, failures=FAILURES)
    job = status(before, beat("r2", "running"))
    assert (job.failed, job.failures, job.pending) == (0, [], 6)


@pytest.mark.parametrize("value", [None, [], [1.0], 4.5, "soon", ["a", "b"], [1, 2, 3]])
def test_a_range_that_makes_no_sense_is_unknown(value: Any) -> None:
    """So is that of an older curate, which tells none."""
    assert status(beat("r", "running", eta_range_seconds=value)).eta_range_s is None
    older = beat("r", "running")
    del older["eta_range_seconds"]
    assert status(older).as_dict()["eta_range_seconds"] is None


@given(
    total=st.integers(0, 50),
    done=st.integers(0, 50),
    running=st.integers(0, 100),
    failed=st.integers(0, 100),
    state=st.sampled_from(["running", "failed", "interrupted", "aborted", "complete"]),
)
def test_counts_always_add_up(total: int, done: int, running: int, failed: int, state: str) -> None:
    """The listing is older than the heartbeat, or newer: no count is negative, and their sum is the total."""
    done = min(done, total)
    job = status(beat("r", state, shards={"running": running, "failed": failed}), total=total, done=done)
    shards = job.as_dict()["shards"]
    assert all(n >= 0 for n in shards.values())
    assert shards["done"] + shards["running"] + shards["pending"] + shards["failed"] == shards["total"] == total


def test_the_json_has_exactly_this_shape() -> None:
    """Scripts rely on it."""
    job = status(beat("r", "running", shards={"running": 2, "failed": 1, "stale": 3}, failures=FAILURES))
    assert job.as_dict() == {
        "job": "toxicity",
        "output": "gs://b/out",
        "state": "running",
        "shards": {"total": 10, "done": 4, "running": 2, "pending": 3, "failed": 1, "stale": 3},
        "rows": {"in": 100, "created": 0, "out": 90, "dropped": {"empty": 8}, "quarantined": 2},
        "rate": {"shards_per_s": 2.0, "rows_per_s": 20.0, "bytes_per_s": 2000.0},
        "eta_seconds": 4.5,
        "eta_range_seconds": [3.8, 5.2],
        "failures": [
            {"error": "ValueError: boom", "count": 2, "shard": "a"},
            {"error": "KeyError: 'x'", "count": 1, "shard": "b"},
        ],
        "runs": [{"run_id": "r", "state": "running", "started": NOW - 100, "updated": NOW - 5}],
    }


# Rates


def test_a_rate_is_that_of_the_last_minute() -> None:
    """An hour at one speed and a minute at another: the last minute counts, and little is kept."""
    window = RateWindow()
    shards = 0
    for second in range(3600):
        shards += 10
        window.add(float(second), shards, 100 * shards, 1000 * shards)
    for second in range(3600, 3600 + 62):
        shards += 1
        window.add(float(second), shards, 100 * shards, 1000 * shards)
    assert window.rates() == {"shards_per_s": 1.0, "rows_per_s": 100.0, "bytes_per_s": 1000.0}
    assert len(window._points) < 70


def test_a_rate_takes_a_second_to_tell() -> None:
    """Two harvests a millisecond apart say nothing, however many shards they brought."""
    window = RateWindow()
    assert window.rates() == NO_RATE
    window.add(5.0, 0, 0, 0)
    assert window.rates() == NO_RATE
    for now_s in (5.0, 5.001, 5.9):
        window.add(now_s, 1000, 1000, 1000)
        assert window.rates() == NO_RATE
    window.add(6.0, 1000, 2000, 3000)
    assert window.rates() == {"shards_per_s": 1000.0, "rows_per_s": 2000.0, "bytes_per_s": 3000.0}


@given(
    st.lists(st.tuples(st.floats(0, 30), st.integers(0, 50)), min_size=1, max_size=200),
)
def test_rates_agree_with_all_points_kept(steps: list[tuple[float, int]]) -> None:
    """The window keeps a point a second; the rate is that between the last point and one a minute before, or more
    recent than that by no more than the gaps between points."""
    window = RateWindow()
    now_s, shards, points = 0.0, 0, []
    for gap_s, n in steps:
        now_s += gap_s
        shards += n
        window.add(now_s, shards, 0, 0)
        points.append((now_s, shards))
    rate = window.rates()["shards_per_s"]
    far_enough = [(then_s, before) for then_s, before in points if now_s - then_s >= 1.0]
    assert rate in [round((shards - before) / (now_s - then_s), 3) for then_s, before in far_enough] or not far_enough
    assert len(window._points) <= 66
    # Of the points kept, only the first may be older than the minute: it is what the minute is measured from.
    assert len(window._points) <= 2 or now_s - window._points[1][0] <= 60.0


@pytest.mark.parametrize("apart", [100, 0, -86400])
def test_runs_are_newest_first(apart: int) -> None:
    """Whatever order they were read in, by their ids: each is made to come behind all that were there, whatever the
    clocks of their machines say."""
    beats = [beat(f"r{k}", "failed", started=NOW + apart * k) for k in range(1, 5)]
    for order in itertools.permutations(beats):
        assert [run.run_id for run in status(*order).runs] == ["r4", "r3", "r2", "r1"]


@pytest.mark.parametrize(
    ("state", "ago", "told"), [("running", 5.0, True), ("running", 999.0, False), ("failed", 5.0, False)]
)
def test_what_a_run_waits_for_is_told_while_it_runs(state: str, ago: float, told: bool) -> None:
    """As its heartbeat says; one that is over, or stalled, waits for nothing."""
    found = status(beat("a", state, ago=ago, waits="tasks wait: no node has 1 CPU"))
    assert found.waits == ("tasks wait: no node has 1 CPU" if told else "")
    assert ("waits" in found.as_dict()) is told
    assert status(beat("a", state, ago=ago, waits=["no text"])).waits == ""


# Several drivers


def part(number: int, count: int = 3, state: str = "running", **more: Any) -> dict[str, Any]:
    """Returns the heartbeat of the driver of a part."""
    return {**beat(f"2024010{number}T000000Z-aaaaaa", state, **more), "part": f"{number}/{count}"}


def test_drivers_of_parts_are_told_of_together() -> None:
    """Running shards and rates are those of all that run; what has failed may have failed for several."""
    shards = {"running": 2, "failed": 1}
    lost = part(0, ago=90.0, shards=shards)
    now = status(lost, part(1, shards=shards), part(2, shards={"running": 1}), total=20)
    assert (now.state, now.running, now.failed) == ("running", 3, 1)
    assert now.rate["rows_per_s"] == 40.0
    assert now.eta_range_s == (3.8, 5.2)
    assert [(run.part, run.state) for run in now.runs] == [("2/3", "running"), ("1/3", "running"), ("0/3", "stalled")]
    assert [run["part"] for run in now.as_dict()["runs"]] == ["2/3", "1/3", "0/3"]


def test_one_driver_of_several_that_failed_does_not_end_the_job() -> None:
    assert status(part(0, state="running"), part(1, state="failed")).state == "running"
    assert status(part(0, state="interrupted"), part(1, state="failed")).state == "failed"


@pytest.mark.parametrize("told", ["3/3", "x", 7, None, ["0/3"]])
def test_a_part_that_makes_no_sense_is_none(told: Any) -> None:
    assert status({**part(0), "part": told}).runs[0].part == ""
    assert parsed({**part(0), "at_hand": told}).at_hand == ()
