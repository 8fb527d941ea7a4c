"""What a run tells about failures while it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import structlog

from curate import Job
from curate.dataset.account import MOST_WARNINGS


class Broken(Job):
    """Fails on every batch."""

    version = "1"

    def process(self, batch: Any) -> Any:
        raise ValueError(f"cannot read {batch.num_rows} rows")


def test_a_flood_of_failures_does_not_flood_the_log(tmp_path: Path) -> None:
    """The first hundred tries that fail are logged, then one line says that more do; each is in the ledger."""
    source = tmp_path / "in"
    source.mkdir()
    for number in range(MOST_WARNINGS + 20):
        # Cut off: fails at once, without a backoff.
        (source / f"{number:04}.parquet").write_bytes(b"PAR1")
    (source / "whole.jsonl").write_text('{"id": 1}\n')
    with structlog.testing.capture_logs() as logs:
        summary = Broken(max_bad_rows=0).run(
            input=str(source / "*.parquet"), output=str(tmp_path / "out"), backend="inline"
        )
    assert summary.failed == MOST_WARNINGS + 20
    assert sum(log["event"] == "shard failed" for log in logs) == MOST_WARNINGS
    assert sum(log["event"].startswith("more shards fail") for log in logs) == 1
