"""Ledgers as jobs leave them, made without running a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from curate.ledger import layout
from curate.ledger.compression import compress
from curate.ledger.ledger import Ledger
from curate.ledger.manifest import shards_table
from curate.ledger.run_log import whereabouts
from curate.stores.open import open_store
from curate.tasks.books import Books
from curate.tasks.shard import Shard, SliceKind

SUFFIX = ".parquet"
SHARD_BYTES = 1000
"""Input bytes of every shard made here."""


def make_shard(shard_id: str, uri: str = "", size: int = SHARD_BYTES, generation: str = "1") -> Shard:
    """Returns a shard that is a whole object."""
    return Shard(shard_id, uri or f"/in/{shard_id}.jsonl", SliceKind.WHOLE, 0, 0, size, size, generation)


def make_ledger(root: str) -> Ledger:
    """Returns the ledger of an output prefix, over a store that can write."""
    return Ledger(open_store(root, f"{root}/{layout.TMP}test"), root)


FINGERPRINT = "0123456789abcdef"
"""Of all jobs of `make_job`."""


def make_job(
    root: str,
    *,
    total: int,
    done: int,
    runs: Mapping[str, Mapping[str, Any]] | None = None,
    summary: bool = False,
    job: str = "toxicity",
    stages: Sequence[Mapping[str, Any]] = (),
) -> Ledger:
    """Writes a job of `total` shards, the first `done` of them with an output, and returns its ledger.

    `runs` are the heartbeats by run id, see `heartbeat`; an empty one stands for a run that was killed before its
    first.
    """
    ledger = make_ledger(root)
    ledger.create_json(
        layout.JOB,
        {
            "format_version": layout.FORMAT_VERSION,
            "job": job,
            "fingerprint": FINGERPRINT,
            "identity": {},
            "parameters": {},
            "code_digest": "",
            "suffix": SUFFIX,
            **({"stages": stages} if stages else {}),
        },
    )
    ids = [f"s{number:07d}" for number in range(total)]
    assert ledger.append_plan(shards_table([make_shard(one) for one in ids]), ledger.list())
    for one in ids[:done]:
        ledger.store.publish(ledger.uri(one + SUFFIX), b"rows")
    for run_id, beat in (runs or {}).items():
        ledger.create_json(layout.run_file(run_id, "run.json"), {"run_id": run_id})
        if beat:
            beat_uri = ledger.uri(layout.run_file(run_id, "heartbeat.json"))
            ledger.store.replace(beat_uri, orjson.dumps({**beat, "run_id": run_id}))
    if summary:
        ledger.create_json(
            layout.SUMMARY,
            {
                "fingerprint": FINGERPRINT,
                "shards": {"total": total, "done": done},
                "rows": Books(10 * done, rows_out=10 * done).rows(),
                "counters": {},
                "bytes": {"in": SHARD_BYTES * done, "out": 4 * done},
            },
        )
    return ledger


def heartbeat(state: str, *, started: float, updated: float, elsewhere: bool = True, **more: Any) -> dict[str, Any]:
    """Returns a heartbeat as runs write it; `elsewhere`: from a machine that cannot be asked whether it lives."""
    shards = {"total": 0, "scope": 0, "done": 0, "skipped": 0, "running": 0, "failed": 0, "stale": 0}
    where = {"host": "elsewhere", "boot_id": "b", "pid_space": "p", "pid": 1, "pid_started": "1"}
    return {
        "run_id": "",
        "job": "toxicity",
        "state": state,
        "started": started,
        "updated": updated,
        **(where if elsewhere else whereabouts()),
        "shards": shards | more.pop("shards", {}),
        "tasks": {"dispatched": 0, "attempts": 0},
        "rows": Books().rows(),
        "counters": {},
        "bytes": {"in": 0, "out": 0},
        "rate": {"shards_per_s": 2.0, "rows_per_s": 20.0, "bytes_per_s": 2000.0},
        "eta_seconds": 4.5,
        "eta_range_seconds": [3.8, 5.2],
        "failures": [],
        **more,
    }


def segment(lines: Iterable[Mapping[str, Any]]) -> bytes:
    """Returns lines as a segment of events or failures."""
    return compress(b"".join(orjson.dumps(line) + b"\n" for line in lines))
