"""Reads a job's status from its output prefix: one listing and a few small reads; no inputs, no cluster."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from curate.errors import ConfigError, ObjectNotFound
from curate.storage import normalise, open_store
from curate.tasks import layout
from curate.tasks.ledger import Ledger
from curate.tasks.outputs import match
from curate.tasks.status import JobStatus, job_status

NEWEST_RUNS = 20
"""Runs that are looked at, newest first; a job may have thousands."""


def look(output: str, now: float) -> JobStatus:
    """Returns the status of the job that writes to `output`. Raises ConfigError if there is no job."""
    root = normalise(output).rstrip("/")
    ledger = Ledger(open_store(root), root)
    listing = ledger.list()
    if not listing.has_job:
        found = len(listing.names)
        raise ConfigError(
            f"{root} holds no job: there is no {layout.JOB}"
            + (f" beside {found:,} other objects" if found else "; nothing is there at all")
            + ". Give the --output of a job, or list the known ones with: curate status"
        )
    job = ledger.read_job()
    plan = ledger.read_plan(listing)
    matched = match(plan, listing, job["suffix"])

    def heartbeat(run_id: str) -> dict[str, Any] | None:
        try:
            return ledger.read_json(layout.run_file(run_id, "heartbeat.json"))
        except ObjectNotFound:
            return None  # killed between its first file and its second

    with ThreadPoolExecutor(NEWEST_RUNS) as pool:
        beats = [beat for beat in pool.map(heartbeat, sorted(listing.run_ids)[-NEWEST_RUNS:]) if beat is not None]
    summary = ledger.read_json(layout.SUMMARY) if listing.summary is not None else None
    return job_status(
        job["job"],
        root,
        total=len(plan),
        done=matched.count,
        bytes_total=plan.total_bytes,
        bytes_done=int(plan.sizes[matched.done].sum()),
        heartbeats=beats,
        summary=summary,
        now=now,
    )
