"""`curate failures`: what failed, for people at 80 columns and for programs; and the next command to type."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from curate import ActorPool, Dataset
from curate.cli import failures
from curate.errors import PoolFailed
from curate.job.job import Job
from curate.ledger import layout
from curate.ledger.ledger import Ledger
from curate.ledger.run_log import RunLog, new_run_id
from curate.pages.document import document
from curate.pages.read import read_page
from tests.cli.running import Curate, curate
from tests.e2e.jobs.choosy import Choosy
from tests.job.inline import run_job, write_jsonl
from tests.support.fakes import FakeClock
from tests.support.ledgers import make_job

__all__ = ["curate"]

POISON = [{"id": "y", "text": "fine"}, {"id": "z", "text": "poison"}]
FINE = [{"id": "x", "text": "fine"}]


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """Inputs of which two choke the job and one is cut off, and the output."""
    source, output = tmp_path / "in", tmp_path / "out"
    for name in ("one", "two"):
        write_jsonl(source / f"{name}.jsonl", POISON)
    write_jsonl(source / "fine.jsonl", FINE)
    write_jsonl(source / "cut off.jsonl.gz", FINE * 100)
    whole = (source / "cut off.jsonl.gz").read_bytes()
    (source / "cut off.jsonl.gz").write_bytes(whole[:-20])
    run_job(Choosy(), source, output, clock=FakeClock())
    return source, output


def test_groups(places: tuple[Path, Path], curate: Curate) -> None:
    """Most shards first; count, kind, message, frame, example, input, and how to replay it; then how to retry."""
    shown = curate("failures", str(places[1]))
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert lines[:2] == [f"choosy  {places[1]}", "3 shards have failed, for 2 reasons"]
    assert lines[3].startswith("2 shards, 8 tries: user error, last on 2023-11-14 22:13:")
    assert lines[4:6] == [
        "  ValueError: cannot measure 'poison'",
        "  at tests/e2e/jobs/choosy.py:31 in measure",
    ]
    assert lines[6].startswith("    raise ValueError(")
    assert lines[7].split() in (["shard", "one"], ["shard", "two"])
    assert lines[10].strip().startswith(f"replay  curate replay {places[1]} --shard ")
    assert "1 shard, 1 try: corrupt input" in shown.out
    # What has a blank is quoted, so that it can be pasted.
    assert f"curate replay {places[1]} --shard 'cut off'" in shown.out
    assert lines[-2:] == [
        f"  retry   curate retry {places[1]}",
        "          after a change of the job's code: the same with --accept-code-change",
    ]


def test_status_counts_those_that_the_newest_run_left_alone(places: tuple[Path, Path], curate: Curate) -> None:
    """It was asked for less: the others have failed still, as `curate failures` says."""
    source, output = places
    next(output.glob("fine.*")).unlink()
    assert run_job(Choosy(), source, output, limit=2).done == 1
    status = curate("status", str(output), "--json").json
    shards = {name: status["shards"][name] for name in ("done", "failed", "pending")}
    assert shards == {"done": 1, "failed": 3, "pending": 0}
    assert [(one["count"], one["error"].partition(":")[0]) for one in status["failures"]] == [
        (2, "ValueError"),
        (1, "CorruptInput"),
    ]
    assert "curate failures" in curate("status", str(output)).out


def test_json(places: tuple[Path, Path], curate: Curate) -> None:
    """The groups, each with its newest example whole."""
    found = curate("failures", str(places[1]), "--json").json
    assert (found["failed"], found["output"]) == (3, str(places[1]))
    assert [(group["shards"], group["attempts"], group["kinds"]) for group in found["groups"]] == [
        (2, 8, {"user_error": 8}),
        (1, 1, {"corrupt_input": 1}),
    ]
    example = found["groups"][0]["example"]
    assert example["traceback"].rstrip().splitlines()[-2:] == [
        "ValueError: cannot measure 'poison'",
        "in Choosy.process, in rows 0 to 1 of its input",
    ]
    assert example["slice"] == {"kind": "whole", "start": 0, "stop": 0}


def test_all_tries_of_one_shard_need_no_option(places: tuple[Path, Path], curate: Curate) -> None:
    shown = curate("failures", str(places[1]), "--shard", "one", "--all")
    assert shown.code == 2
    assert "--shard shows every try of that shard, also after it was done; leave out --all" in shown.err


@pytest.mark.usefixtures("no_backoff")
@pytest.mark.parametrize("command", ["failures", "retry"])
def test_a_segment_that_cannot_be_read_is_told_once(places: tuple[Path, Path], curate: Curate, command: str) -> None:
    """However often it is looked into."""
    (segment,) = places[1].glob(f"{layout.RUNS}*/events-*")
    segment.write_bytes(b"broken")
    shown = curate(command, str(places[1]))
    assert shown.err.count("cannot read a segment of events") == 1


def test_what_was_done_since_is_shown_with_all(places: tuple[Path, Path], curate: Curate) -> None:
    """Failed tries of shards that are done now are no failures of the job; they are there to be looked at."""
    for name in ("one.jsonl", "two.jsonl"):
        write_jsonl(places[0] / name, FINE)
    write_jsonl(places[0] / "cut off.jsonl.gz", FINE)
    run_job(Choosy(), places[0], places[1], clock=FakeClock())
    shown = curate("failures", str(places[1]))
    assert (shown.code, shown.out.splitlines()[1:]) == (0, ["no shard has failed"])
    everything = curate("failures", str(places[1]), "--all")
    assert "0 shards have failed; 9 tries failed in all, for 2 reasons" in everything.out
    assert "curate retry" not in everything.out


def test_one_shard_whole(places: tuple[Path, Path], curate: Curate) -> None:
    """Equal tries once: the error, the job's own line, the traceback in full; then what can be done."""
    shown = curate("failures", str(places[1]), "--shard", "two")
    assert shown.code == 0
    assert shown.out.splitlines()[0] == "two  failed"
    lines = shown.out.splitlines()
    at = lines.index("4 tries, the same error: user error, given up")
    assert lines[at + 3 : at + 5] == [
        "  ValueError: cannot measure 'poison'",
        "  at tests/e2e/jobs/choosy.py:31 in measure",
    ]
    assert lines[at + 5].startswith("    raise ValueError(")
    assert lines[at + 6] == "  Traceback (most recent call last):"
    assert shown.out.count("Traceback (most recent call last)") == 1
    assert "of memory at most" in shown.out
    for command in ("replay", "logs", "retry"):
        assert f"curate {command} {places[1]}" in shown.out
    found = curate("failures", str(places[1]), "--shard", "two", "--json").json
    assert (found["state"], [one["attempt"] for one in found["tries"]]) == ("failed", [1, 2, 3, 4])
    assert all(one["traceback"] for one in found["tries"])


def test_tries_that_failed_of_different_things_are_shown_one_by_one(tmp_path: Path, curate: Curate) -> None:
    """Only those that follow one another and say the very same are one."""
    root = str(tmp_path / "out")
    said = ["a", "a", "b", "a"]
    tries = [
        {"index": 0, "shard": "s0000000", "attempt": n + 1, "error": f"ValueError: {e}"} for n, e in enumerate(said)
    ]
    fail(root, [{**one, "outcome": "failed" if one["attempt"] == 4 else "retry"} for one in tries])
    shown = curate("failures", root, "--shard", "s0000000").out
    assert [line for line in shown.splitlines() if "user error" in line] == [
        "2 tries, the same error: user error, tried again",
        "try 3: user error, tried again",
        "try 4: user error, given up",
    ]


def test_a_shard_that_never_failed(places: tuple[Path, Path], curate: Curate) -> None:
    """Is known, and done."""
    shown = curate("failures", str(places[1]), "--shard", "fine")
    assert (shown.code, shown.out.splitlines()[0]) == (0, "fine  done")
    assert "no try of it has failed" in shown.out
    assert "curate replay" not in shown.out


def test_no_job_is_exit_2(tmp_path: Path, curate: Curate) -> None:
    """With the next step."""
    shown = curate("failures", str(tmp_path))
    assert shown.code == 2
    assert "no curate job" in shown.err


def fail(root: str, lines: list[dict[str, Any]]) -> Ledger:
    """Writes failures of shards as a run does; returns the ledger."""
    ledger = make_job(root, total=len(lines), done=0)
    log = RunLog(ledger, new_run_id(1e9), FakeClock(), dict)
    for number, line in enumerate(lines):
        event = {"index": number, "shard": f"s{number:07d}", "outcome": "failed", "time": 1e9, "task": 1, "attempt": 1}
        log.add_failure({**event, "kind": "user_error", "frame": "", "traceback": "", "input": "/in", **line})
    log.flush()
    return ledger


@pytest.mark.parametrize(
    ("about", "again"),
    [
        ({}, False),
        ({"origin": {"class": "A"}}, False),
        ({"origin": {"class": "A"}, "inputs": ["/in"], "backend": "inline"}, True),
    ],
    ids=["a dataset", "an old record", "a job"],
)
def test_commands_are_named_where_they_work(about: dict[str, Any], again: bool, tmp_path: Path, curate: Curate) -> None:
    """Only where a run says where its job is from: in text and JSON, of groups and of one shard, and on the page."""
    root = str(tmp_path / "out")
    ledger = fail(root, [{"error": "ValueError: a"}])
    ledger.create_json(layout.run_file(new_run_id(1e9), "run.json"), about)
    replay, retry = f"curate replay {root} --shard s0000000", f"curate retry {root}"
    for given in ([], ["--shard", "s0000000"]):
        shown = curate("failures", root, *given).out
        assert [one in shown for one in (replay, retry, failures.AGAIN)] == [again, again, not again]
    [group] = curate("failures", root, "--json").json["groups"]
    assert group["replay"] == (replay if again else None)
    found = curate("failures", root, "--shard", "s0000000", "--json").json
    assert (found["replay"], found["retry"]) == ((replay, retry) if again else (None, None))
    [told] = read_page(root, 2e9).failures
    assert told.commands[1:] == ((replay, retry) if again else ())


def test_many_reasons_are_cut_short(tmp_path: Path, curate: Curate) -> None:
    """The screen has an end; --json has all of them."""
    root = str(tmp_path / "out")
    fail(root, [{"error": f"ValueError: {chr(97 + n) * 5}"} for n in range(25)])
    shown = curate("failures", root)
    assert shown.out.count("1 shard, 1 try") == failures.SHOWN_GROUPS
    assert "... and 5 more reasons; --json shows all" in shown.out
    assert len(curate("failures", root, "--json").json["groups"]) == 25


def test_nothing_acts_on_the_terminal(tmp_path: Path, curate: Curate) -> None:
    """Messages, tracebacks, names: whatever they hold is shown, and not done."""
    root = str(tmp_path / "out")
    evil = "\x1b]0;title\x07\x1b[2Jgone\r\n"
    fail(root, [{"error": f"ValueError: {evil}", "traceback": f"Traceback\n  {evil}", "frame": evil, "input": evil}])
    for given in ([], ["--all"], ["--shard", "s0000000"]):
        shown = curate("failures", root, *given)
        assert shown.code == 0
        assert not {"\x1b", "\x07", "\r"} & set(shown.out)
        assert "gone" in shown.out


def test_at_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal messages are wrapped beneath each other; what is copied is left in one piece."""
    root = str(tmp_path / "out")
    fail(root, [{"error": f"ValueError: {'word ' * 60}", "input": f"/in/{'x' * 90}.jsonl"}])

    def console(**options: Any) -> Console:
        return Console(width=80, force_terminal=True, no_color=True, legacy_windows=False, **options)

    monkeypatch.setattr(failures, "Console", console)
    assert failures.show_failures(root, everything=False, as_json=False) == 0
    lines = capsys.readouterr().out.splitlines()
    prose = [line for line in lines if "word" in line]
    assert len(prose) == 5
    assert all(line.startswith(("  ", "\x1b")) for line in prose)
    assert f"  input   /in/{'x' * 90}.jsonl" in lines


class Unmade:
    """Cannot be made."""

    def __init__(self) -> None:
        raise RuntimeError("no weights")

    def __call__(self, batch: Any) -> Any:
        return batch


class Served(Job):
    """Needs what cannot be made; after a sort, if asked to."""

    version = "1"
    sorts: bool = False

    def build(self, ds: Dataset) -> Dataset:
        served = ds.map_batches(Unmade, compute=ActorPool(size=1))
        return served.sort("id") if self.sorts else served


@pytest.mark.parametrize("sorts", [False, True])
def test_an_error_that_ends_a_run_before_any_shard_is_kept(tmp_path: Path, curate: Curate, *, sorts: bool) -> None:
    """Nothing else tells of it later: no shard has failed, so `curate failures` is no place to look."""
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"id": "1"}])
    with pytest.raises(PoolFailed):
        run_job(Served(sorts=sorts), tmp_path / "in", tmp_path / "out")
    shown = curate("status", str(tmp_path / "out")).out
    ended_by = "PoolFailed: map_batches(Unmade): an actor cannot be set up: RuntimeError: no weights"
    assert ended_by in " ".join(shown.split())
    assert "curate failures" not in shown
    assert "next      fix the cause and run the job again" in shown
    [run] = json.loads(curate("status", str(tmp_path / "out"), "--json").out)["runs"]
    assert run["ended_by"].endswith("RuntimeError: no weights")
    page = document(read_page(str(tmp_path / "out"), time.time())).decode()
    # Of the newest run in the head, and of each in the list of runs.
    assert page.count(ended_by) == 2
