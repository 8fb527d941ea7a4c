"""Jobs whose pages are looked at: finished, running, failed, staged, and one whose every text is hostile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import curate
from curate.clock import Clock
from curate.job.job import Job
from curate.job.params import param
from curate.ledger import layout
from tests.job.inline import numbered, run_job, write_jsonl
from tests.support.ledgers import heartbeat, make_job, segment

HOSTILE = "<script>alert(1)</script>\"'><img src=http://evil.example/x onerror=alert(1)> \x1b[31m\u202e \x00 ]]> &amp;"
SHARDS = 4
NOW = 1_700_000_000.0
RUN = "20231114T220000Z-abc123"


class Tenths(Job):
    """Drops every tenth row, sets some aside, and counts."""

    version = "1"
    max_bad_rows = "100%"
    least: int = param(0, help="the least number that is kept")

    def process(self, batch: pa.Table) -> pa.Table:
        numbers = batch["n"].to_pylist()
        for n in numbers:
            if n % 10 == 7:
                self.quarantine({"n": n}, "it ends in seven")
        kept = batch.filter(pa.array([n % 10 not in (0, 7) for n in numbers]))
        self.drop(batch.filter(pa.array([n % 10 == 0 for n in numbers])), "each tenth")
        self.count("half", len(kept) / 2)
        return kept


class Poisoned(Tenths):
    """The same; one shard always fails."""

    def process(self, batch: pa.Table) -> pa.Table:
        if 25 in batch["n"].to_pylist():
            raise ValueError("row 25 is poison")
        return super().process(batch)


class Hostile(Job):
    """All that it says is hostile."""

    version = HOSTILE
    max_bad_rows = "100%"
    texts: str = param("", help="a text")

    def process(self, batch: pa.Table) -> pa.Table:
        if 15 in batch["n"].to_pylist():
            raise ValueError(HOSTILE + "\u05d0\u202e" * 20_000)
        self.quarantine({"n": HOSTILE + 1_000_000 * "w"}, HOSTILE)
        self.drop([{HOSTILE: HOSTILE + str(n) + 1_000_000 * "w"} for n in range(2)], HOSTILE)
        self.count(HOSTILE, 1)
        return batch[3:]


def finished(folder: Path, clock: Clock | None = None) -> str:
    """Makes a job that is complete."""
    for shard in range(SHARDS):
        write_jsonl(folder / "in" / f"s{shard}.jsonl", numbered(10 * shard, 10 * shard + 10))
    assert run_job(Tenths(), folder / "in", folder / "out", clock=clock).state == "complete"
    return str(folder / "out")


def failed(folder: Path, clock: Clock | None = None) -> str:
    """Makes a job of which one shard failed."""
    for shard in range(SHARDS):
        write_jsonl(folder / "in" / f"s{shard}.jsonl", numbered(10 * shard, 10 * shard + 10))
    assert run_job(Poisoned(), folder / "in", folder / "out", clock=clock).state == "failed"
    return str(folder / "out")


def staged(folder: Path) -> str:
    """Makes a job with an exchange that is complete."""
    rows = (
        curate.range(100).filter(lambda row: row["id"] % 3 > 0, reason="a third").random_shuffle(seed=1, num_shards=3)
    )
    assert rows.write_parquet(str(folder / "out"), backend="inline").state == "complete"
    return str(folder / "out")


def hostile(folder: Path) -> str:
    """Makes a job that puts hostile texts wherever texts may be."""
    for shard in range(3):
        name = f"<b onclick=alert({shard})>\u202e.jsonl"
        write_jsonl(folder / "in" / name.replace(")", f"{shard})"), numbered(10 * shard, 10 * shard + 10))
    job = Hostile(texts=HOSTILE)
    assert run_job(job, folder / "in", folder / "out").state == "failed"
    return str(folder / "out")


def running(folder: Path) -> str:
    """Makes a ledger of a job of 3,000 shards that runs, waits for a node and tries shards again."""
    total, done = 3_000, 1_200
    shards = {"total": total, "scope": total, "done": done, "running": 8, "failed": 2}
    operators = [
        {"name": name, "rows_in": 10 * done, "rows_out": 10 * done, "wall_s": seconds, "cpu_s": seconds / 2}
        | ({"bytes_out": 10**7, "largest_bytes": 10**6, "peak_bytes": 10**8} if name == "read" else {})
        for name, seconds in (("read", 60.0), ("map(clean)", 300.0), ("write", 40.0))
    ]
    beat = heartbeat(
        "running",
        started=NOW - 600,
        updated=NOW - 3,
        shards=shards,
        rows={"in": 10 * done, "created": 0, "out": 9 * done, "dropped": {"short": done}, "quarantined": 0},
        storage_calls={"list": 3, "get": 4_000, "put": done, "delete": 0},
        tasks={"dispatched": 300, "attempts": done + 50},
        operators=operators,
        retrying=[{"error": "service busy (HTTP 429)", "count": 6, "shard": "s0001200"}],
        waits="2 tasks wait for a node with 4 CPUs",
        failures=[{"error": "ValueError: no", "count": 2, "shard": "s0001201"}],
    )
    ledger = make_job(str(folder / "out"), total=total, done=done, runs={RUN: beat})
    generations = {one.uri.rpartition("/")[2][:-8]: one.generation for one in ledger.store.list(ledger.uri("s"))}
    lines = [
        _done(rank, shard, generation) | {"time": NOW - 590 + 0.45 * rank}
        for rank, (shard, generation) in enumerate(sorted(generations.items()))
    ]
    lines += [_failed(rank, "retry", "lost") for rank in range(0, 400, 8)]
    lines += [_failed(rank, "failed", "user_error") for rank in (done, done + 1)]
    ledger.store.publish(ledger.uri(layout.events_segment(RUN, 1)), segment(lines))
    return str(folder / "out")


def _done(rank: int, shard: str, generation: str) -> dict[str, Any]:
    rows = {"in": 10, "created": 0, "out": 9, "dropped": {"short": 1}, "quarantined": 0}
    return {
        "outcome": "done", "index": rank, "shard": shard, "attempt": 1, "task": rank, "seconds": 3.0 + rank % 7,
        "rows": rows, "counters": {}, "bytes_out": 4, "generation": generation,
    }  # fmt: skip


def _failed(rank: int, outcome: str, kind: str) -> dict[str, Any]:
    return {
        "time": NOW - 580 + 0.45 * rank, "outcome": outcome, "index": rank, "shard": f"s{rank:07d}", "attempt": 1,
        "task": rank, "seconds": 2.0, "input": f"/in/s{rank:07d}.jsonl", "kind": kind, "error": "ValueError: no",
    }  # fmt: skip


JOBS: dict[str, Callable[[Path], str]] = {
    "finished": finished,
    "failed": failed,
    "staged": staged,
    "hostile": hostile,
    "running": running,
}


@pytest.fixture(scope="package")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The outputs of all of these jobs, by name; nobody changes them."""
    return {name: make(tmp_path_factory.mktemp(name)) for name, make in JOBS.items()}
