"""`curate status --quick`: what the ledger says of a job, without a look at its outputs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from curate.errors import CorruptInput
from curate.job.job import Job
from curate.ledger import layout
from curate.observe.job import ledger_status, read_status
from curate.observe.place import NoJobError
from curate.storage.protocol import Object, Store
from curate.stores.open import wrap_stores
from tests.cli.running import Curate, curate
from tests.job.inline import run_job, write_jsonl
from tests.support.fakes import FakeClock
from tests.support.ledgers import heartbeat, make_job, make_ledger

__all__ = ["curate"]
RUN = "20240101T000000.000Z-abc123"
STATES = ("running", "interrupted", "failed", "aborted", "stalled", "complete", "pending")


@pytest.fixture
def root() -> str:
    return f"memory://quick-{uuid.uuid4().hex}/out"


class Counting:
    """A store that notes what is listed and read."""

    def __init__(self, real: Store, calls: list[str], root: str) -> None:
        self._real, self._calls, self._root = real, calls, root

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def list(self, prefix: str) -> Iterator[Object]:
        self._calls.append(f"list {prefix.removeprefix(self._root + '/')}")
        return self._real.list(prefix)

    def read(self, uri: str, *range: Any) -> bytes:
        self._calls.append(f"read {uri.removeprefix(self._root + '/')}")
        return self._real.read(uri, *range)


def made(root: str, state: str) -> None:
    """Makes a job of ten shards in a state, whose last heartbeat told of all its outputs."""
    done = 10 if state == "complete" else 4
    told = "running" if state == "stalled" else "complete" if state == "pending" else state
    shards = {"total": 10, "done": done, "running": 2 * (state == "running"), "failed": int(state == "failed")}
    updated = 10.0 if state == "stalled" else 999.0
    make_job(
        root,
        total=10,
        done=done,
        runs={RUN: heartbeat(told, started=5.0, updated=updated, shards=shards)},
        summary=state == "complete",
    )


@pytest.mark.parametrize("state", STATES)
def test_says_what_the_full_status_says_where_the_ledger_knows(root: str, state: str) -> None:
    """All but the bytes of inputs, which lie in the plan."""
    made(root, state)
    full, quick = read_status(root, 1000.0), ledger_status(root, 1000.0)
    assert quick.state == state
    assert (quick.outputs_listed, quick.as_of) == (False, 10.0 if state == "stalled" else 999.0)
    assert full.outputs_listed
    assert quick == replace(full, outputs_listed=False, as_of=quick.as_of, bytes_total=0, bytes_done=0)


def test_lists_no_outputs(root: str) -> None:
    """One listing, of what runs wrote, and three reads, however many shards there are."""
    made(root, "running")
    calls: list[str] = []
    with wrap_stores(lambda real: Counting(real, calls, root)):
        ledger_status(root, 1000.0)
    assert calls == [
        "read _curate/job.json",
        "list _curate/runs/",
        f"read _curate/runs/{RUN}/heartbeat.json",
        "read _curate/summary.json",
    ]


def test_does_not_know_of_what_happened_since(root: str) -> None:
    """Outputs published or removed after the last heartbeat; after the job was complete, too."""
    made(root, "interrupted")
    ledger = make_ledger(root)
    ledger.store.publish(ledger.uri("s0000007.parquet"), b"rows")
    assert (read_status(root, 1000.0).done, ledger_status(root, 1000.0).done) == (5, 4)
    whole = f"{root}/whole"
    made(whole, "complete")
    ledger.store.delete(f"{whole}/s0000003.parquet")
    full, quick = read_status(whole, 1000.0), ledger_status(whole, 1000.0)
    assert (full.state, full.done, quick.state, quick.done) == ("pending", 9, "complete", 10)


def test_several_drivers_each_count_what_they_saw(root: str) -> None:
    """The most that any of them has seen is done; what runs is the sum."""
    runs = {
        f"20240101T00000{k}Z-abc123": heartbeat(
            "running",
            started=5.0 + k,
            updated=999.0 - k,
            part=f"{k}/2",
            shards={"total": 10, "done": 3 + k, "running": 1},
        )
        for k in range(2)
    }
    make_job(root, total=10, done=5, runs=runs)
    quick = ledger_status(root, 1000.0)
    assert (quick.done, quick.running, quick.as_of) == (4, 2, 999.0)


def test_a_run_that_was_killed_before_it_said_anything(root: str) -> None:
    """The plan says how many shards there are; nothing says when."""
    make_job(root, total=10, done=0, runs={RUN: {}})
    quick = ledger_status(root, 1000.0)
    assert (quick.state, quick.total, quick.done, quick.as_of) == ("pending", 10, 0, None)


class Picky(Job):
    """Fails of a file that says so."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        if "bad" in batch["text"].to_pylist():
            raise CorruptInput("bad text")
        return batch


def test_what_failed_in_earlier_runs_counts(tmp_path: Path) -> None:
    """As in the full status, whatever the newest run was asked for; until the shard is done."""
    source, out = tmp_path / "in", tmp_path / "out"
    for name in "abcde":
        write_jsonl(source / f"{name}.jsonl", [{"text": "bad" if name in "bd" else name}])

    def told(at: float, **options: Any) -> tuple[int, int, int, list[Mapping[str, Any]]]:
        run_job(Picky(), source, out, clock=FakeClock(at), **options)
        full, quick = read_status(str(out), at + 100.0), ledger_status(str(out), at + 100.0)
        counts = quick.state, quick.total, quick.done, quick.failed, quick.pending, quick.failures
        assert counts == (full.state, full.total, full.done, full.failed, full.pending, full.failures)
        return quick.done, quick.failed, quick.pending, list(quick.failures)

    assert told(1000.0, limit=2)[:3] == (1, 1, 3)
    done, failed, pending, failures = told(2000.0, limit=1)
    assert (done, failed, pending, [one["shard"] for one in failures]) == (1, 1, 3, ["b"])
    assert told(3000.0)[:3] == (3, 2, 0)
    write_jsonl(source / "b.jsonl", [{"text": "good"}])
    assert told(4000.0, limit=2)[:3] == (4, 1, 0)


def test_no_job(root: str) -> None:
    with pytest.raises(NoJobError, match=f"there is no {layout.JOB}"):
        ledger_status(root, 1000.0)


def test_is_told_on_the_screen_and_in_json(tmp_path: Path, curate: Curate) -> None:
    """That outputs were not looked at, and as of when; the full status has neither."""
    root = f"{tmp_path}/out"
    made(root, "failed")
    shown = curate("status", root, "--quick")
    assert (shown.code, shown.err) == (curate("status", root).code, "")
    assert "as of     1970-01-01 00:16 UTC, " in shown.out
    assert "from the ledger alone, outputs were not looked at" in " ".join(shown.out.split())
    assert "input" not in shown.out
    told, full = curate("status", root, "--quick", "--json").json, curate("status", root, "--json").json
    assert told == full | {"outputs_listed": False, "as_of": 999.0}


@pytest.mark.parametrize("args", [(), ("pipeline.toml",)])
def test_is_refused_without_one_job(curate: Curate, args: tuple[str, ...]) -> None:
    refused = curate("status", "--quick", *args)
    assert refused.code == 2
    assert "--quick is for one job; give the OUTPUT of a job" in refused.err
