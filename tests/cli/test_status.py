"""`curate status`: what it prints, and that it needs nothing but read access to the output."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console

import curate as api
from curate.cli import status as rendering
from curate.cli.main import cli, main
from curate.cli.status import SHOWN_RUNS, show_all, show_job
from curate.ledger import layout
from curate.ledger.heartbeat import NEWEST_RUNS, process_started
from curate.ledger.run_log import whereabouts
from curate.ledger.stages import scratch_of
from curate.observe import job as looking
from curate.observe import place, registry
from curate.observe.job import read_status
from curate.pages import known
from curate.pages.read import state_text
from curate.stores import memory
from curate.stores.open import open_store
from curate.tasks.books import Books
from tests.cli.running import check_light
from tests.support.fakes import FakeClock
from tests.support.gcs_emulator import GcsEmulator
from tests.support.ledgers import FINGERPRINT, heartbeat, make_job, make_ledger

RUN = "20240101T000000.000Z-abc123"
FIELDS = {
    "job",
    "output",
    "state",
    "shards",
    "rows",
    "rate",
    "eta_seconds",
    "eta_range_seconds",
    "failures",
    "runs",
}


@pytest.fixture(params=["memory", "local", "gs"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "local":
        yield f"{tmp_path}/out"
    elif request.param == "memory":
        bucket = f"status-{uuid.uuid4().hex}"
        yield f"memory://{bucket}/out"
        memory.clear(bucket)
    else:
        with GcsEmulator().here(monkeypatch):
            yield "gs://bucket/out"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs `curate` with these arguments in this process; returns exit code, standard output and standard error."""

    def call(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["curate", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def running(now: float, **more: Any) -> dict[str, Any]:
    return heartbeat("running", started=now - 100, updated=now - 1, shards={"running": 2, "failed": 1}, **more)


class Shown:
    """What a terminal of some width, or a file, would be sent."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, columns: int, *, terminal: bool, encoding: str = "utf-8"
    ) -> None:
        self.file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)

        def console(**options: Any) -> Console:
            return Console(
                file=self.file, width=columns, force_terminal=terminal, color_system=None, _environ={}, **options
            )

        monkeypatch.setattr(rendering, "Console", console)

    def lines(self) -> list[str]:
        self.file.seek(0)
        return self.file.read().split("\n")[:-1]


# One job


def test_operators_of_a_job_at_work(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    """What each has done, and its actors, while the job runs; what is not valid is left out."""
    pool = {"actors": 2, "starting": 0, "queued": 3, "busy": 0.97, "wait_s": 4.0}
    done = {"rows_in": 0, "rows_out": 0, "wall_s": 75.0, "cpu_s": 4.0}
    operators = [
        {**done, "name": "read", "rows_out": 1200},
        {**done, "name": "map(Model)\x1b[31m", "rows_in": 1200, "rows_out": 1000, **pool},
        {**done, "name": "half", **pool, "busy": None},
        {"name": "write"},
    ]
    root = f"{tmp_path}/out"
    make_job(root, total=10, done=4, runs={RUN: running(time.time(), operators=operators)})
    _, out, _ = run("status", root)
    lines = out.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("operators"))
    assert lines[place] == "operators read: 1,200 rows out; 1 min 15 s busy, 4.0 s of it on a CPU"
    assert lines[place + 1] == (
        "          map(Model)\\x1b[31m: 1,200 rows in, 1,000 rows out; 1 min 15 s busy, 4.0 s of it on a CPU; 2 "
        "actors 97 % busy, 3 calls queued"
    )
    assert lines[place + 2].startswith("run ")
    ended = heartbeat("failed", started=time.time() - 9, updated=time.time(), operators=operators)
    make_job(f"{tmp_path}/ended", total=10, done=4, runs={RUN: ended})
    assert "operators read" not in run("status", f"{tmp_path}/ended")[1]


def test_how_far_long_shards_are(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    """The rows that were read of shards that go on: a shard of an hour is seen to move."""
    root = f"{tmp_path}/out"
    make_job(root, total=10, done=4, runs={RUN: running(time.time(), rows_running=1_204_000)})
    assert "shards    2 running (1,204,000 rows so far), 3 pending, 1 failed\n" in run("status", root)[1]
    assert json.loads(run("status", root, "--json")[1])["rows_running"] == 1_204_000


def test_what_a_job_at_work_waits_for(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    """In a line of its own, where nothing that it says can act on the terminal; in JSON as it is."""
    root, waits = f"{tmp_path}/out", "the pool map(\x1b[31m) waits: no node has 4 TPU; there is 1 node with nothing"
    make_job(root, total=10, done=4, runs={RUN: running(time.time(), waits=waits)})
    shown = waits.replace("\x1b", "\\x1b")
    assert f"waits     {shown}" in run("status", root)[1].splitlines()
    assert json.loads(run("status", root, "--json")[1])["waits"] == waits


def test_every_driver_of_an_output_has_a_line(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    """The newest of each part, in the order of the parts, however many there are and however often some began anew."""
    parts, now = 30, time.time()
    runs = {}
    for number in range(parts):
        for again in range(2):
            state = "running" if again else "interrupted"
            beat = heartbeat(state, started=now - 100 + 10 * again + number / 100, updated=now - 2)
            runs[f"2024010{again + 1}T0000{number:02}Z-aaaaaa"] = beat | {"part": f"{number}/{parts}"}
    make_job(f"{tmp_path}/out", total=90, done=3, runs=runs)
    code, out, _ = run("status", f"{tmp_path}/out")
    assert code == 0
    lines = [line.split() for line in out.splitlines() if "part " in line]
    assert [line[line.index("part") + 1] for line in lines] == [f"{number}/{parts}" for number in range(parts)]
    assert all(line[line.index("part") + 3] == "running" for line in lines)
    assert f"... and {parts} earlier" in out


def test_json_is_one_object_of_the_promised_shape(root: str, run: Callable[..., tuple[int, str, str]]) -> None:
    """Over every store, while the job runs."""
    failures = [{"error": "ValueError: boom", "count": 1, "shard": "s0000007"}]
    make_job(root, total=10, done=4, runs={RUN: running(time.time(), failures=failures)})
    code, out, err = run("status", root, "--json")
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    status = json.loads(out)
    assert status.keys() == FIELDS
    assert (status["job"], status["output"], status["state"]) == ("toxicity", root, "running")
    assert status["shards"] == {"total": 10, "done": 4, "running": 2, "pending": 3, "failed": 1, "stale": 0}
    assert status["rows"].keys() == {"in", "created", "out", "dropped", "quarantined"}
    assert status["rate"].keys() == {"shards_per_s", "rows_per_s", "bytes_per_s"}
    assert (status["eta_seconds"], status["eta_range_seconds"]) == (4.5, [3.8, 5.2])
    assert status["failures"] == failures
    assert [one.keys() for one in status["runs"]] == [{"run_id", "state", "started", "updated"}]


def test_json_has_the_counters_and_runs_that_a_person_sees(root: str, run: Callable[..., tuple[int, str, str]]) -> None:
    """Where there are any."""
    runs = {
        f"20230101T{n:06d}.000Z-abc123": heartbeat("failed", started=n, updated=n + 1) for n in range(NEWEST_RUNS + 2)
    }
    newest = running(time.time(), counters={"words": 7, "share": 0.5})
    make_job(root, total=10, done=4, runs={**runs, RUN: newest})
    status = json.loads(run("status", root, "--json")[1])
    assert status["counters"] == {"words": 7, "share": 0.5}
    assert len(status["runs"]) + status["earlier_runs"] == NEWEST_RUNS + 3
    _, text, _ = run("status", root)
    assert "counters  words = 7\n          share = 0.5\n" in text
    assert f"... and {NEWEST_RUNS + 3 - SHOWN_RUNS} earlier\n" in text


def test_a_person_sees_the_same(root: str, run: Callable[..., tuple[int, str, str]]) -> None:
    """State, progress, rate and what failed."""
    failures = [{"error": "ValueError: boom", "count": 1, "shard": "s0000007"}]
    make_job(root, total=10, done=4, runs={RUN: running(time.time(), failures=failures)})
    code, out, err = run("status", root)
    assert (code, err) == (0, "")
    for text in (
        f"toxicity  running  {root}\n",
        "4 of 10 shards (40.0 %)\n",
        "2 running, 3 pending, 1 failed\n",
        "2 shards/s, 20 rows/s, 1.95 KiB/s\n",
        "ETA       3-6 s\n",
        "1 x ValueError: boom (for example s0000007)\n",
        f"{RUN} running for ",
    ):
        assert text in out


def test_a_job_without_a_plan_yet_is_not_done(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    """A kill right after its first object leaves nothing but `job.json`. One whose plan was removed was said to be
    complete, and its outputs to be others'. A complete job without a shard is done."""
    root = f"{tmp_path}/out"
    make_job(root, total=0, done=0)
    _, text, _ = run("status", root)
    assert "0 of 0 shards (0.0 %)" in text
    assert "shards    not planned yet" in text
    assert "next      run the job again; it resumes" in text
    _, text, _ = run("verify", root)
    assert "next      no shard is planned yet; run the job again, it resumes" in text
    make_job(f"{tmp_path}/told", total=2, done=2, summary=True)
    shutil.rmtree(tmp_path / "told" / layout.PLAN)
    code, _, err = run("status", f"{tmp_path}/told")
    assert code == 2
    assert "the job had 2: a part of the plan is missing" in err
    make_job(f"{tmp_path}/removed", total=2, done=2)
    shutil.rmtree(tmp_path / "removed" / layout.PLAN)
    _, text, _ = run("status", f"{tmp_path}/removed")
    assert "shards    not planned yet" in text
    _, text, _ = run("verify", f"{tmp_path}/removed")
    assert "next      run the job again: it plans its shards anew" in text
    assert "elsewhere" not in text
    make_job(f"{tmp_path}/complete", total=0, done=0, summary=True)
    _, text, _ = run("status", f"{tmp_path}/complete")
    assert "0 of 0 shards (100.0 %)" in text
    assert "shards    all done" in text


@pytest.mark.parametrize("args", [[], ["--json"], ["--watch"]])
def test_no_job_is_exit_2_with_the_next_step(
    root: str, args: list[str], run: Callable[..., tuple[int, str, str]]
) -> None:
    """One line on standard error, nothing on standard output, no traceback."""
    code, out, err = run("status", root, *args)
    assert (code, out) == (2, "")
    assert err == (
        f"error: no curate job at {root} (there is nothing). "
        "Pass the output of a job, or list the known ones with: curate status\n"
    )


@pytest.mark.parametrize("command", ["status", "status --quick", "failures", "head", "logs", "page", "verify", "retry"])
@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("", "OUTPUT is empty, as where a variable is not set; pass the output of a job"),
        ("/", "no curate job at /, which holds all files; pass the output of a job"),
        ("{file}", "no curate job at {file} (it is a file). Pass the output of a job, or list the known ones with: "),
    ],
)
def test_what_no_output_is_is_told_as_what_it_is(
    command: str, output: str, says: str, tmp_path: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    """By each command in the same words, and `/` without a look at all that lies there."""
    file = tmp_path / "job.py"
    file.touch()
    code, out, err = run(*command.split(), output.format(file=file))
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {says.format(file=file)}")


@pytest.mark.parametrize("command", ["failures", "verify", "retry", "page", "serve"])
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            '[steps.a]\njob = "urls"\ninput = "in"\noutput = "a"\n'
            '[steps.b]\njob = "urls"\ninput_from = "a"\noutput = "gs://b/out/"\n',
            "pass the output of one: {folder}/a, gs://b/out\n",
        ),
        ("steps = 3", "(it is a file)"),
        ("[steps.a]\noutput = 3", "(it is a file)"),
        ("[steps.a]\n", "(it is a file)"),
        ("no toml", "(it is a file)"),
    ],
)
def test_of_the_file_of_a_chain_the_outputs_of_its_steps_are_named(
    command: str, text: str, says: str, tmp_path: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    """What is a file of something else is only that."""
    file = tmp_path / "pipeline.toml"
    file.write_text(text)
    code, out, err = run(*command.split(), str(file))
    assert (code, out) == (2, "")
    assert says.format(folder=tmp_path) in err


def test_a_report_of_the_file_of_a_chain_names_the_outputs_of_its_steps(
    tmp_path: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    """A corpus is one of them, and not a file that cannot be read as rows."""
    file = tmp_path / "pipeline.toml"
    file.write_text('[steps.a]\njob = "urls"\ninput = "in"\noutput = "a"\n')
    code, out, err = run("report", str(file))
    assert (code, out) == (2, "")
    assert err.endswith(f"is the file of a chain, whose steps are jobs; pass the output of one: {tmp_path}/a\n")


def test_of_very_much_without_a_job_no_more_is_listed_than_tells_so(
    root: str, run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a bucket, or a disk, that is named by mistake: what is said does not claim to have counted it."""
    monkeypatch.setattr("curate.observe.place.FOREIGN", 3)
    ledger = make_ledger(root)
    for name in ("a", "b", "c"):
        ledger.store.publish(ledger.uri(name), b"{}")
    code, _, err = run("status", root)
    assert code == 2
    assert "(3 or more other objects, but no _curate/job.json)" in err


def test_something_else_than_a_job_is_told_apart_from_nothing(
    root: str, run: Callable[..., tuple[int, str, str]]
) -> None:
    """Perhaps the inputs were given instead of the outputs."""
    ledger = make_ledger(root)
    for name in ("a.jsonl", "b.jsonl"):
        ledger.store.publish(ledger.uri(name), b"{}")
    code, _, err = run("status", root)
    assert code == 2
    assert "no curate job at" in err
    assert "(2 other objects, but no _curate/job.json)" in err


def test_jobs_below_are_named(root: str, run: Callable[..., tuple[int, str, str]]) -> None:
    """As of a recipe, each of whose steps is a job; not the stages of one."""
    make_job(f"{root}/b", total=1, done=1)
    make_job(f"{root}/a/deep", total=1, done=1)
    make_job(f"{root}/b/_curate/stages/0a", total=1, done=1)
    code, _, err = run("status", root)
    says = f"error: no curate job at {root}, but below it: {root}/a/deep, {root}/b. Pass the output of one\n"
    assert (code, err) == (2, says)


@pytest.mark.parametrize("below", ["_side/rejected", "a/b", "a/b.parquet", "_curate"])
def test_what_lies_in_an_output_is_told_with_that(
    root: str, below: str, run: Callable[..., tuple[int, str, str]]
) -> None:
    """As a shell completes it: a folder, or a file, of which there was said that there is nothing."""
    ledger = make_job(root, total=1, done=1, summary=True)
    for name in ("_side/rejected/a.parquet", "a/b.parquet"):
        ledger.store.publish(ledger.uri(name), b"PAR1")
    code, _, err = run("status", f"{root}/{below}")
    assert (code, err) == (2, f"error: no curate job at {root}/{below}: it lies in the output of one; pass {root}\n")


@pytest.mark.parametrize("bad", ["swift://bucket/x", "gs://", "gs:/bucket/x", ""])
def test_a_uri_that_cannot_be_is_exit_2(bad: str, run: Callable[..., tuple[int, str, str]]) -> None:
    """Told as the user's mistake that it is."""
    code, out, err = run("status", bad)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_a_damaged_ledger_is_exit_2(root: str, run: Callable[..., tuple[int, str, str]]) -> None:
    """It names the object."""
    make_job(root, total=2, done=0)
    store = open_store(root, f"{root}/_curate/tmp/t")
    store.replace(f"{root}/{layout.JOB}", b"{")
    code, _, err = run("status", root)
    assert code == 2
    assert f"error: {root}/_curate/job.json is not JSON" in err


SENSELESS = [
    orjson.dumps({**heartbeat("running", started=5.0, updated=90.0), **change})
    for change in ({"shards": {}}, {"shards": 3}, {"updated": "now"}, {"started": None}, {"rows": []})
]


@pytest.mark.parametrize("data", [b"{", b"{}", b'{"state": "running"}', b"[]", *SENSELESS])
def test_a_damaged_heartbeat_hides_only_itself(root: str, data: bytes) -> None:
    """Counts come from outputs; the other runs are shown."""
    runs = {RUN: heartbeat("failed", started=1.0, updated=2.0), RUN + "x": {}}
    ledger = make_job(root, total=2, done=1, runs=runs)
    ledger.store.replace(ledger.uri(layout.run_file(RUN + "x", "heartbeat.json")), data)
    status = read_status(root, 100.0)
    assert (status.state, status.done) == ("failed", 1)
    assert [one.run_id for one in status.runs] == [RUN]


def test_it_costs_one_listing_and_a_few_reads(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Job, plan, summary, and one heartbeat a run."""
    runs = {f"{RUN}{k}": heartbeat("complete", started=k, updated=k) for k in range(3)}
    make_job(root, total=20, done=20, runs=runs, summary=True)
    store = open_store(root)
    monkeypatch.setattr(place, "open_store", lambda _: store)
    assert read_status(root, 100.0).state == "complete"
    assert store.calls.as_dict() == {"list": 1, "get": 3 + 3, "put": 0, "delete": 0}


def test_a_job_of_ten_thousand_runs_is_read_by_its_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty heartbeats, not ten thousand; the others are counted."""
    bucket = f"runs-{uuid.uuid4().hex}"
    root = f"memory://{bucket}/out"
    ledger = make_job(root, total=2, done=1)
    beat = orjson.dumps(heartbeat("failed", started=1.0, updated=2.0))
    for number in range(10_000):
        for name in ("run.json", "heartbeat.json"):
            ledger.store.replace(ledger.uri(layout.run_file(f"20240101T{number:06d}Z-abc123", name)), beat)
    shown = Shown(monkeypatch, 80, terminal=False)
    assert show_job(root, FakeClock(), as_json=False, watch_s=None) == 0
    assert len(read_status(root, 100.0).runs) == NEWEST_RUNS
    assert any("... and 9,995 earlier" in line for line in shown.lines())
    memory.clear(bucket)
    assert list(tmp_path.iterdir()) == []


def test_a_summary_that_vanishes_while_one_looks_is_none(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run begins just then: the job is no longer complete."""
    ledger = make_job(root, total=2, done=2, summary=True)
    listing = ledger.list()
    ledger.store.delete(ledger.uri(layout.SUMMARY))
    monkeypatch.setattr(looking.Ledger, "list", lambda *_, **__: listing)
    assert read_status(root, 100.0).state == "pending"


def test_the_summary_of_another_job_says_nothing(root: str, run: Callable[..., tuple[int, str, str]]) -> None:
    """Somebody copied it here: neither are rows those of it, nor is the job complete because of it."""
    ledger = make_job(root, total=2, done=2, summary=True)
    told = ledger.read_json(layout.SUMMARY)
    ledger.store.replace(ledger.uri(layout.SUMMARY), orjson.dumps({**told, "fingerprint": "fedcba9876543210"}))
    for args in ([], ["--quick"]):
        _, out, _ = run("status", root, "--json", *args)
        assert (json.loads(out)["state"], json.loads(out)["rows"]["out"]) == ("pending", 0)


def test_the_summary_of_other_outputs_of_the_job_says_nothing(root: str) -> None:
    """Somebody copied it from where the same job ran with other inputs: their outputs take other bytes. A run and
    `verify` do not believe it either."""
    ledger = make_job(root, total=2, done=2, summary=True)
    assert (read_status(root, 100.0).state, read_status(root, 100.0).rows["out"]) == ("complete", 20)
    told = ledger.read_json(layout.SUMMARY)
    ledger.store.replace(ledger.uri(layout.SUMMARY), orjson.dumps({**told, "bytes": {"in": 2000, "out": 9}}))
    assert (read_status(root, 100.0).state, read_status(root, 100.0).rows["out"]) == ("pending", 0)


# Watching


def test_watching_ends_when_the_run_has_ended(clock: FakeClock, capsys: pytest.CaptureFixture[str]) -> None:
    """Every two seconds, one object a line, the last of them the end."""
    root = f"memory://watch-{uuid.uuid4().hex}/out"
    ledger = make_job(root, total=3, done=0, runs={RUN: running(clock.now())})

    class Working(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            number = len(self.sleeps)
            ledger.store.publish(ledger.uri(f"s{number - 1:07d}.parquet"), b"rows")
            beat = running(self.now()) if number < 3 else heartbeat("complete", started=0.0, updated=self.now())
            uri = ledger.uri(layout.run_file(RUN, "heartbeat.json"))
            ledger.store.replace(uri, orjson.dumps({**beat, "run_id": RUN}))
            if number == 3:
                ledger.create_json(layout.SUMMARY, {"fingerprint": FINGERPRINT, "rows": Books().rows(), "counters": {}})

    working = Working(clock.time_s)
    assert show_job(root, working, as_json=True, watch_s=2.0) == 0
    seen = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["state"], one["shards"]["done"]) for one in seen] == [
        ("running", 0),
        ("running", 1),
        ("running", 2),
        ("complete", 3),
    ]
    assert working.sleeps == [2.0] * 3


def test_watching_a_run_that_was_killed_ends_when_it_is_stalled(capsys: pytest.CaptureFixture[str]) -> None:
    """After a minute of silence nobody is at work any more."""
    clock = FakeClock()
    root = f"memory://watch-{uuid.uuid4().hex}/out"
    make_job(root, total=3, done=0, runs={RUN: heartbeat("running", started=0.0, updated=clock.now())})
    assert show_job(root, clock, as_json=True, watch_s=2.0) == 0
    states = [json.loads(line)["state"] for line in capsys.readouterr().out.splitlines()]
    assert states == ["running"] * 31 + ["stalled"]


@pytest.mark.parametrize("command", ["status", "failures", "head", "quarantine", "logs", "verify"])
def test_an_interrupt_is_exit_130(
    command: str, run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every command, without a word."""

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(place, "open_store", interrupted)
    assert run(command, "somewhere") == (130, "", "")


@pytest.mark.parametrize("bare", [False, True])
def test_watching_is_left_with_an_interrupt(bare: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """The usual way out: no traceback, and the exit code that shells expect."""

    class Impatient(FakeClock):
        def sleep(self, _: float) -> None:
            raise KeyboardInterrupt

    clock = Impatient()
    root = f"memory://watch-{uuid.uuid4().hex}/out"
    make_job(root, total=3, done=0, runs={RUN: running(clock.now())})
    registry.register(root, "toxicity", RUN, clock.now())
    if bare:
        assert show_all(clock, as_json=True, watch_s=2.0) == 130
    else:
        assert show_job(root, clock, as_json=True, watch_s=2.0) == 130
    assert len(capsys.readouterr().out.splitlines()) == 1


# All jobs


def test_a_job_is_taken_off_the_list(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    """It alone, and nothing of its output; one that is not listed is exit 2."""
    for name in "ab":
        make_job(f"{tmp_path}/{name}", total=1, done=1)
        registry.register(f"{tmp_path}/{name}", "toxicity", RUN, 1.0)
    before = sorted((tmp_path / "a").rglob("*"))
    code, out, err = run("forget", f"{tmp_path}/a/")
    assert (code, out, err) == (0, "", f"{tmp_path}/a/ is no longer listed; its files were not touched\n")
    assert [entry["output"] for entry in registry.list_jobs()] == [f"{tmp_path}/b"]
    assert sorted((tmp_path / "a").rglob("*")) == before
    code, _, err = run("forget", f"{tmp_path}/a")
    assert (code, "is not in the list of jobs under" in err) == (2, True)


def test_bare_status_lists_jobs_newest_first(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    """With state and progress; what is gone, or cannot be read, is listed as that."""
    now = time.time()
    make_job(f"{tmp_path}/a", total=4, done=4, runs={RUN: heartbeat("complete", started=1, updated=2)}, summary=True)
    make_job(f"{tmp_path}/b", total=1000, done=5, runs={RUN: running(now)}, job="language")
    damaged = make_job(f"{tmp_path}/c", total=1, done=0)
    damaged.store.replace(damaged.uri(layout.JOB), b"{")
    for number, name in enumerate(["gone", "a", "c", "b"]):
        registry.register(f"{tmp_path}/{name}", "language" if name == "b" else "toxicity", RUN, 86400.0 * number)
    code, out, err = run("status")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split() for line in lines[:5]] == [
        ["job", "state", "done", "failed", "started", "(UTC)", "output"],
        ["language", "running", "5/1,000", "1", "1970-01-04", "00:00", f"{tmp_path}/b"],
        ["toxicity", "unreachable", "1970-01-03", "00:00", f"{tmp_path}/c"],
        ["toxicity", "complete", "4/4", "0", "1970-01-02", "00:00", f"{tmp_path}/a"],
        ["toxicity", "gone", "1970-01-01", "00:00", f"{tmp_path}/gone"],
    ]
    assert lines[5].startswith(f"unreachable: {tmp_path}/c/_curate/job.json is not JSON")
    assert lines[6:] == ["1 output was removed; to take them off this list: curate forget --removed"]
    code, out, err = run("status", "--json")
    jobs = json.loads(out)["jobs"]
    assert [(one["output"][-1], one["state"]) for one in jobs] == [
        ("b", "running"),
        ("c", "unreachable"),
        ("a", "complete"),
        ("e", "gone"),
    ]
    assert jobs[0].keys() == jobs[2].keys() == FIELDS
    assert jobs[1].keys() == jobs[3].keys() == {"job", "output", "state", "error"}


def test_of_outputs_that_were_removed_some_are_listed_and_all_can_be_forgotten(
    tmp_path: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    """At once; a job that is there, or that cannot be read, stays on the list."""
    make_job(f"{tmp_path}/a", total=1, done=1, runs={RUN: heartbeat("complete", started=1, updated=2)}, summary=True)
    damaged = make_job(f"{tmp_path}/c", total=1, done=0)
    damaged.store.replace(damaged.uri(layout.JOB), b"{")
    for number in range(25):
        registry.register(f"{tmp_path}/gone{number:02}", "toxicity", RUN, 86400.0 * (number + 1))
    for name in ("a", "c"):
        registry.register(f"{tmp_path}/{name}", "toxicity", RUN, 0.0)
    code, out, _ = run("status")
    listed = [line.split()[-1].rpartition("/")[2] for line in out.splitlines() if line.startswith("toxicity")]
    assert (code, listed) == (0, [f"gone{number:02}" for number in range(24, 14, -1)] + ["c", "a"])
    last = "25 outputs were removed, 10 shown; to take them off this list: curate forget --removed"
    assert out.splitlines()[-1] == last
    assert len(json.loads(run("status", "--json")[1])["jobs"]) == 27
    assert run("forget", "--removed") == (0, "", "25 jobs no longer listed\n")
    assert [one["output"][-1] for one in json.loads(run("status", "--json")[1])["jobs"]] == ["c", "a"]
    assert run("forget", "--removed") == (0, "", "0 jobs no longer listed\n")
    for arguments in ([], ["--removed", f"{tmp_path}/a"]):
        code, _, err = run("forget", *arguments)
        assert (code, "give the OUTPUT of a job, or --removed" in err) == (2, True)


@pytest.mark.parametrize("at_work", [False, True])
def test_what_a_removed_output_has_left_on_this_machine_goes_with_it(
    at_work: bool, tmp_path: Path, run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run files of its exchanges, unless their process still runs. Those of other jobs stay, and others' files."""
    scratch = tmp_path / "scratch"
    monkeypatch.setenv("CURATE_SCRATCH", str(scratch))
    with GcsEmulator().here(monkeypatch) as emulator:
        for name in ("gone", "stays"):
            api.range(9).sort("id").write_parquet(f"gs://bucket/{name}", backend="inline", keep_stages=True)
        for uri in emulator.objects("gs://bucket/gone/"):
            emulator.remove(uri)
        ours = Path(scratch_of("gs://bucket/gone"))
        (ours / "notes.txt").write_text("of the user")
        if at_work:
            (path,) = ours.glob("*/_curate/runs/*/heartbeat.json")
            parent = {"pid": os.getppid(), "pid_started": process_started(os.getppid())}
            path.write_bytes(orjson.dumps(orjson.loads(path.read_bytes()) | parent))
        before = {path for path in scratch.rglob("*") if path.is_file()}
        assert any(path.name.startswith("map-") for path in before if ours in path.parents)
        said = "" if at_work else "; intermediate files of 1 job removed from $CURATE_SCRATCH"
        assert run("forget", "--removed") == (0, "", f"1 job no longer listed{said}\n")
        kept = {path for path in before if at_work or ours not in path.parents} | {ours / "notes.txt"}
        assert {path for path in scratch.rglob("*") if path.is_file()} == kept


def test_a_store_that_does_not_answer_hides_no_other_job(
    run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many jobs are there, and whichever was started last: each is listed as unreachable."""
    root = f"memory://answers-{uuid.uuid4().hex}/out"
    make_job(root, total=1, done=1, runs={RUN: heartbeat("complete", started=1, updated=2)}, summary=True)
    registry.register(root, "answers", RUN, 1.0)
    for number in range(2 * known.LOOKERS):
        registry.register(f"gs://silent/{number}", "silent", RUN, 2.0 + number)
    silence = threading.Event()

    def glance(output: str, now: float) -> Any:
        if output.startswith("gs://"):
            silence.wait()
            raise looking.NoJobError(output)
        return read_status(output, now)

    monkeypatch.setattr(known, "quick_status", glance)
    monkeypatch.setattr(known, "ANSWER_S", 0.2)
    monkeypatch.setattr(known, "is_local", lambda output: output.startswith("memory://"))
    try:
        code, out, err = run("status", "--json")
    finally:
        silence.set()
    jobs = json.loads(out)["jobs"]
    assert (code, err) == (0, "")
    assert [one["state"] for one in jobs] == ["unreachable"] * (2 * known.LOOKERS) + ["complete"]
    assert "no answer within" in jobs[0]["error"]


def test_no_jobs_are_no_error(run: Callable[..., tuple[int, str, str]], home: Path) -> None:
    """It says where it looked."""
    assert run("status") == (0, f"No jobs are known under {home}. The first run of a job adds it.\n", "")
    assert run("status", "--json") == (0, '{"jobs":[]}\n', "")


def test_known_jobs_may_be_kept_in_a_bucket(
    root: str, run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`CURATE_HOME=gs://...` shares one list among machines."""
    monkeypatch.setenv("CURATE_HOME", f"{root}/home")
    make_job(f"{root}/job", total=2, done=1)
    registry.register(f"{root}/job", "toxicity", RUN, 0.0)
    code, out, _ = run("status")
    assert code == 0
    assert out.splitlines()[1].split()[:3] == ["toxicity", "pending", "1/2"]


def test_a_large_job_is_listed_as_its_heartbeat_counted(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of jobs does not list a million outputs each; one job, asked for by name, is counted."""
    monkeypatch.setattr(looking, "COUNTED_SHARDS", 5)
    beat = heartbeat("interrupted", started=1.0, updated=2.0, shards={"total": 6, "done": 2, "failed": 1})
    ledger = make_job(root, total=6, done=3, runs={RUN: beat})
    glanced = looking.quick_status(root, 100.0)
    assert (glanced.state, glanced.total, glanced.done, glanced.failed, glanced.pending) == ("interrupted", 6, 2, 1, 3)
    assert read_status(root, 100.0).done == 3
    ledger.create_json(layout.SUMMARY, {"fingerprint": FINGERPRINT, "rows": Books().rows(), "counters": {}})
    assert (looking.quick_status(root, 100.0).state, looking.quick_status(root, 100.0).done) == ("complete", 6)


def test_a_small_job_is_counted_even_in_a_list(root: str) -> None:
    """After a kill the heartbeat lags behind the outputs."""
    beat = heartbeat("running", started=1.0, updated=2.0, shards={"total": 6, "done": 2})
    make_job(root, total=6, done=3, runs={RUN: beat})
    glanced = looking.quick_status(root, 100.0)
    assert (glanced.state, glanced.done) == ("stalled", 3)


# Rendering


def full(now: float) -> dict[str, Any]:
    """A heartbeat with a lot of everything."""
    dropped = {f"reason {k}": k + 1 for k in range(30)}
    return running(
        now,
        rows=Books(12_345_678_901, rows_out=12_345_678_901 - 465 - 50, dropped=dropped, quarantined=50).rows(),
        counters={f"counter {k}": k * 1000.5 for k in range(40)} | {"odd": None},
        failures=[
            {"error": f"KeyError {k}: " + "a column that is not there " * 20, "count": 3000 - k, "shard": f"s{k}"}
            for k in range(60)
        ],
    )


@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize("terminal", [False, True])
def test_lines_fit_the_terminal_and_end_without_spaces(
    columns: int, terminal: bool, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrapped beside their label; in a file each fact is one line, to be searched. Lists are cut, and say so."""
    root = f"memory://render-{uuid.uuid4().hex}/out"
    make_job(root, total=7, done=4, runs={f"{RUN}{k}": full(clock.now()) for k in range(8)})
    shown = Shown(monkeypatch, columns, terminal=terminal)
    assert show_job(root, clock, as_json=False, watch_s=None) == 0
    lines = shown.lines()
    assert all(line == line.rstrip() for line in lines)
    assert "" not in lines
    if terminal:
        assert max(map(len, lines[1:])) <= columns
    labels = [line[:10].strip() for line in lines[2:] if not line.startswith(" ")]
    assert labels == ["shards", "rate", "ETA", "failed", "rows", "dropped", "input", "counters", "run"]
    text = "\n".join(lines)
    assert [text.count(f"... and {n} more") for n in (20, 21, 50)] == [1, 1, 1]
    assert "... and 3 earlier" in text
    assert "30 reason 29" in text
    assert "reason 1\n" not in text


@pytest.mark.parametrize(
    ("state", "hints"),
    [
        ("running", []),
        ("complete", []),
        ("stalled", ["if process 1 on elsewhere is gone, run the job again; it resumes"]),
        ("failed", ["curate failures {root}", "fix the cause and run the job again; finished shards are skipped"]),
        ("aborted", ["curate failures {root}", "fix the cause and run the job again; finished shards are skipped"]),
        ("interrupted", ["run the job again; it resumes"]),
        ("pending", ["run the job again; it resumes"]),
    ],
)
def test_it_ends_with_what_to_do_next(
    state: str, hints: list[str], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing, if all is well."""
    root = f"memory://render-{uuid.uuid4().hex}/out"
    beat = heartbeat(
        "running" if state == "stalled" else state,
        started=clock.now() - 1000,
        updated=clock.now() - (100 if state == "stalled" else 1),
    )
    done = 3 if state == "complete" else 1
    make_job(root, total=3, done=done, runs={} if state == "pending" else {RUN: beat}, summary=state == "complete")
    shown = Shown(monkeypatch, 120, terminal=True)
    show_job(root, clock, as_json=False, watch_s=None)
    lines = shown.lines()
    assert lines[0] == f"toxicity  {state}  {root}"
    at = next((number for number, line in enumerate(lines) if line.startswith("next")), len(lines))
    assert [line[10:] for line in lines[at:]] == [text.format(root=root) for text in hints]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("data", "state", "hint"),
    [
        (b"rows", "complete", ""),
        (b"ro", "complete", "curate verify {root}"),
        (b"", "complete", "curate verify {root}"),
        (None, "complete", "run the job again; it resumes"),
        (b"ro", "interrupted", "run the job again; it resumes"),
    ],
)
def test_who_changed_an_output_is_not_told_to_run_the_job_again(
    data: bytes | None, state: str, hint: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a run would be refused where an output was cut off. One that was interrupted may have changed it itself."""
    root = f"memory://render-{uuid.uuid4().hex}/out"
    beat = heartbeat(state, started=clock.now() - 1000, updated=clock.now() - 1)
    ledger = make_job(root, total=3, done=3, runs={RUN: beat}, summary=True)
    one = ledger.uri("s0000001.parquet")
    ledger.store.delete(one)
    if data is not None:
        ledger.store.publish(one, data)
    shown = Shown(monkeypatch, 120, terminal=True)
    show_job(root, clock, as_json=False, watch_s=None)
    hints = [line[10:] for line in shown.lines() if line.startswith("next")]
    assert hints == [hint.format(root=root)] * bool(hint)
    status = read_status(root, clock.now())
    assert status.as_dict().get("altered", False) == status.altered == ("verify" in hint)
    assert ("curate verify" in state_text(status)) == status.altered


@pytest.mark.parametrize(
    ("ago_s", "said"),
    [
        (0.5, "heartbeat 0.5 s ago"),
        (-0.5, "heartbeat 0.0 s ago"),
        (-3600.0, "heartbeat 1 h ahead of the clock here on"),
    ],
)
def test_a_heartbeat_of_a_time_to_come_is_said_to_be_one(
    ago_s: float, said: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was killed where the clock was wrong is shown as running till then: not as heard of this second."""
    root = f"memory://render-{uuid.uuid4().hex}/out"
    beat = heartbeat("running", started=clock.now() - 1000, updated=clock.now() - ago_s)
    make_job(root, total=3, done=1, runs={RUN: beat})
    shown = Shown(monkeypatch, 160, terminal=True)
    show_job(root, clock, as_json=False, watch_s=None)
    assert said in " ".join(shown.lines())


def test_a_run_of_this_machine_is_stalled_as_soon_as_it_is_gone(root: str) -> None:
    """Killed a second ago: nobody waits a minute to be told."""
    now = time.time()
    here = heartbeat("running", started=now, updated=now, elsewhere=False)
    make_job(root, total=1, done=0, runs={RUN: here})
    assert read_status(root, now).state == "running"
    store = open_store(root, f"{root}/_curate/tmp/t")
    store.replace(
        f"{root}/{layout.run_file(RUN, 'heartbeat.json')}",
        orjson.dumps({**here, **whereabouts(), "pid_started": "1", "run_id": RUN}),
    )
    assert read_status(root, now).state == "stalled"


@pytest.mark.quick
@pytest.mark.parametrize("process", ["there", "gone", "elsewhere"])
def test_a_run_that_is_stopped_is_told_apart_from_one_that_is_gone(
    process: str, root: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its process is for certain, the job cannot be run again; where it is gone, nobody has to look for it."""
    pid = os.getppid()
    own = {"elsewhere": {}, "gone": {"pid": pid, "pid_started": "1"}}
    own["there"] = {"pid": pid, "pid_started": process_started(pid)}
    silent = heartbeat(
        "running", started=clock.now() - 1000, updated=clock.now() - 100, elsewhere=process == "elsewhere"
    )
    make_job(root, total=3, done=1, runs={RUN: silent | own[process]})
    shown = Shown(monkeypatch, 120, terminal=True)
    show_job(root, clock, as_json=False, watch_s=None)
    (hint,) = (line[10:] for line in shown.lines() if line.startswith("next"))
    assert ("run the job again" in hint, f"kill -CONT {pid}" in hint, "if process" in hint) == {
        "there": (False, True, False),
        "gone": (True, False, False),
        "elsewhere": (True, False, True),
    }[process]
    assert ("is there, and is stopped" in state_text(read_status(root, clock.now()))) == (process == "there")


def test_nothing_that_a_job_says_can_act_on_the_terminal(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Escapes, line breaks and markup in errors and names are shown as text."""
    root = f"memory://render-{uuid.uuid4().hex}/out"
    evil = "\x1b]0;owned\x07[red]no\nsecond line\r\x08[/]"
    failures = [{"error": evil, "count": 1, "shard": evil}]
    beat = running(clock.now(), failures=failures, counters={evil: 1}, host=evil)
    make_job(root, total=2, done=0, runs={RUN: beat}, job=evil)
    shown = Shown(monkeypatch, 120, terminal=False)
    show_job(root, clock, as_json=False, watch_s=None)
    text = "\n".join(shown.lines())
    assert not {"\x1b", "\x07", "\r", "\x08"} & set(text)
    assert text.count("\\x1b]0;owned\\x07[red]no second line \\x08[/]") == 5


def test_a_terminal_without_unicode_gets_a_bar_too(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of characters that it has."""
    root = f"memory://render-{uuid.uuid4().hex}/out"
    make_job(root, total=4, done=1)
    shown = Shown(monkeypatch, 80, terminal=False, encoding="ascii")
    show_job(root, clock, as_json=False, watch_s=None)
    assert shown.lines()[1] == "#" * 10 + "." * 30 + " 1 of 4 shards (25.0 %)"


def test_all_but_one_of_a_million_is_not_a_hundred_percent(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Percentages are rounded down."""
    status = looking.job_status(looking.JobCounts("toxicity", "/out", 1_000_000, 999_999, 1, 1), [], None, 0)
    shown = Shown(monkeypatch, 80, terminal=True)
    rendering._render(rendering.Console(highlight=False), status, clock.now())
    assert shown.lines()[1] == "█" * 39 + "░ 999,999 of 1,000,000 shards (99.9 %)"


@pytest.mark.parametrize(("columns", "beneath"), [(80, True), (200, False)])
def test_a_long_output_gets_its_own_line_on_a_narrow_terminal(
    columns: int, beneath: bool, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that columns stay columns."""
    root = f"memory://render-{uuid.uuid4().hex}/" + "a-long-directory-name/" * 3 + "out"
    make_job(root, total=4, done=1)
    registry.register(root, "toxicity", RUN, 0.0)
    shown = Shown(monkeypatch, columns, terminal=True)
    show_all(clock, as_json=False, watch_s=None)
    lines = shown.lines()
    assert len(lines) == (3 if beneath else 2)
    assert lines[-1].endswith(("    " if beneath else "  ") + root)
    assert lines[-1 - beneath].startswith("toxicity  pending")
    assert all(line == line.rstrip() for line in lines)


# The program


@pytest.mark.slow
def test_it_starts_without_ray_gcsfs_or_a_model(tmp_path: Path) -> None:
    """A look at a job costs no cluster, no cloud library and no model."""
    make_job(f"{tmp_path}/out", total=2, done=1)
    for args in (["status", f"{tmp_path}/out"], ["status", f"{tmp_path}/out", "--json"], ["status"], ["status", "-h"]):
        check_light(*args)


@pytest.mark.slow
def test_the_installed_program_prints_json(tmp_path: Path) -> None:
    """`curate status OUTPUT --json`, as a shell runs it."""
    make_job(f"{tmp_path}/out", total=2, done=1)
    program = Path(sys.executable).with_name("curate")
    done = subprocess.run([program, "status", f"{tmp_path}/out", "--json"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["shards"]["done"] == 1
    missing = subprocess.run([program, "status", f"{tmp_path}/no"], capture_output=True, text=True, timeout=60)
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "curate status" in missing.stderr


def test_what_the_encoding_lacks_is_escaped(tmp_path: Path) -> None:
    """A terminal that is not of UTF-8 hides no status behind a traceback."""
    root = f"{tmp_path}/狐"
    make_job(root, total=1, done=1, runs={RUN: heartbeat("complete", started=1, updated=2)}, summary=True)
    program = Path(sys.executable).with_name("curate")
    done = subprocess.run(
        [program, "status", root], capture_output=True, timeout=60, env={**os.environ, "PYTHONIOENCODING": "latin-1"}
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"complete  " in done.stdout
    assert rb"\u72d0" in done.stdout


def test_an_unknown_option_is_exit_2(run: Callable[..., tuple[int, str, str]]) -> None:
    """click's own refusal."""
    code, out, err = run("status", "--jsn")
    assert (code, out) == (2, "")
    assert "--json" in err


def test_every_command_has_help() -> None:
    """What is shown with --help comes from the docstrings."""
    assert all(command.help for command in cli.commands.values())
