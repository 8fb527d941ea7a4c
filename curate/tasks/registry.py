"""The jobs that were run from here, under `$CURATE_HOME` (default `~/.curate`, may be `gs://`): no truth.

One small object a job, replaced at the start of each run. Losing it loses nothing but a line of `curate status`.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import orjson

from curate.errors import CurateError
from curate.log import get_logger
from curate.storage import open_store
from curate.storage.uris import normalise


def home() -> str:
    """Returns the URI under which known jobs are kept."""
    return normalise(os.environ.get("CURATE_HOME") or str(Path.home() / ".curate"))


def remember(output: str, job: str, run_id: str, started: float) -> None:
    """Notes that a job runs on `output`. A home that cannot be written is said, and never stops a run."""
    name = hashlib.sha256(output.encode()).hexdigest()[:16]
    entry = {"output": output, "job": job, "run_id": run_id, "started": started}
    root = home()
    try:
        open_store(root, scratch=f"{root}/tmp").replace(f"{root}/jobs/{name}.json", orjson.dumps(entry))
    except CurateError as error:
        get_logger().warning(
            "cannot note the job under CURATE_HOME; `curate status` will not list it", error=str(error)
        )


def known() -> list[dict[str, Any]]:
    """Returns the entries, the job that was started last first."""
    root = home()
    store = open_store(root)
    entries = [orjson.loads(store.read(item.uri)) for item in store.list(f"{root}/jobs/") if item.uri.endswith(".json")]
    return sorted(entries, key=lambda entry: entry["started"], reverse=True)
