"""Jobs as metrics in the OpenMetrics text format, for what watches many of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from curate.errors import CurateError
from curate.ledger.heartbeat import RUNNING
from curate.observe.status import JobStatus

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
HELP = {
    "curate_up": "Whether the ledger of a job could be read.",
    "curate_running": "Whether a run of a job goes on.",
    "curate_shards": "Shards of a job, or of its stage that runs, by state.",
    "curate_rows": "Rows of a job so far, by what became of them.",
    "curate_input_bytes": "Bytes of the inputs of shards that are done.",
    "curate_bytes_per_second": "Input bytes that a run reads in a second.",
    "curate_last_word_seconds": "When the newest run last wrote its state, in seconds since 1970.",
}


def open_metrics(jobs: Iterable[tuple[Mapping[str, Any], JobStatus | CurateError]]) -> bytes:
    """Returns known jobs, each with its status or why that is not known, as metrics."""
    found: dict[str, list[str]] = {name: [] for name in HELP}
    for entry, status in jobs:
        job = status.job if isinstance(status, JobStatus) else entry["job"]
        about = {"job": job, "output": entry["output"]}
        for name, labels, value in _samples(status):
            shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in (about | labels).items())
            found[name].append(f"{name}{{{shown}}} {value}")
    lines = []
    for name, samples in found.items():
        lines += [f"# TYPE {name} gauge", f"# HELP {name} {HELP[name]}", *samples]
    return "\n".join([*lines, "# EOF", ""]).encode()


def _samples(status: JobStatus | CurateError) -> Iterator[tuple[str, dict[str, str], float]]:
    if not isinstance(status, JobStatus):
        yield "curate_up", {}, 0
        return
    yield "curate_up", {}, 1
    yield "curate_running", {}, int(status.state == RUNNING)
    for name in ("done", "running", "pending", "failed", "stale"):
        yield "curate_shards", {"state": name}, getattr(status, name)
    for name in ("in", "created", "out", "quarantined"):
        yield "curate_rows", {"kind": name}, status.rows[name]
    yield "curate_rows", {"kind": "dropped"}, sum(status.rows["dropped"].values())
    yield "curate_input_bytes", {}, status.bytes_done
    yield "curate_bytes_per_second", {}, status.rate["bytes_per_s"]
    if status.runs:
        yield "curate_last_word_seconds", {}, status.runs[0].updated


def _escaped(text: str) -> str:
    """Returns text as the value of a label.

    >>> _escaped('a "b"')
    'a \\\\"b\\\\"'
    """
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
