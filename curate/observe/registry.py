"""The list of jobs that were run from here, under `$CURATE_HOME` (default `~/.curate`, may be `gs://`).

One small object per job, replaced at the start of each run. Without it, only a line of `curate status` is missing.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson

from curate.errors import ConfigError, CurateError, ObjectNotFound
from curate.folders.private import SCRATCH, place
from curate.ledger import layout
from curate.ledger.heartbeat import Liveness, ProcessState, first_look, read_heartbeats
from curate.ledger.ledger import Ledger, open_ledger
from curate.ledger.stages import remove_stages, stages_in
from curate.log import get_logger
from curate.storage.protocol import Special
from curate.storage.uris import is_local, normalise
from curate.stores.local import sweep_scratch
from curate.stores.open import open_store

READERS = 8
LEFTOVER_S = 86_400.0
"""Temporaries of this age are swept."""


def home() -> str:
    """Returns the URI under which known jobs are kept. Raises ConfigError if it is no URI."""
    given = os.environ.get("CURATE_HOME") or "~/.curate"
    if not given.startswith("~"):
        return normalise(given)
    try:
        return normalise(str(Path(given).expanduser()))
    except RuntimeError as error:
        raise ConfigError(f"the home directory of {given!r} is not known ({error}); set CURATE_HOME") from error


def register(output: str, job: str, run_id: str, started: float) -> None:
    """Notes that a job runs on `output`. A home that cannot be written is said, and never stops a run.

    What a consumer reads of a dataset is written to scratch and removed at once: that is no job to list.
    """
    if output.startswith(f"{place(SCRATCH)}/"):
        return
    entry = {"output": output, "job": job, "run_id": run_id, "started": started}
    try:
        root = home()
        open_store(root, scratch=f"{root}/tmp").replace(_note(root, output), orjson.dumps(entry))
        if is_local(root):
            # What a kill in the middle of that left, of whatever job. No folder is curate's there.
            sweep_scratch(f"{root}/tmp", "", started, LEFTOVER_S)
    except CurateError as error:
        get_logger().warning(
            "cannot record the job under CURATE_HOME; `curate status` will not list it", error=str(error)
        )


def forget(output: str) -> None:
    """Removes the note of the job that writes to `output`, and nothing else. Raises ConfigError if there is none."""
    root, output = home(), normalise(output).rstrip("/")
    if not open_store(root, scratch=f"{root}/tmp").delete(_note(root, output)):
        raise ConfigError(f"{output} is not in the list of jobs under {root}; see the list with: curate status")


def remove_abandoned(output: str, now: float) -> bool:
    """Removes what a job whose output was removed has left where only this machine reads: its stages, which nobody else
    would ever remove. Returns whether it did: not if a process may be at work on them. Raises ConfigError if others
    could have put something there."""
    removed = False
    for root, keys in stages_in(output, set()):
        if not any(_at_work(open_ledger(f"{root}/{key}"), now) for key in keys):
            remove_stages(root)
            removed = True
    return removed


def _at_work(ledger: Ledger, now: float) -> bool:
    """Returns whether the process of a run of a stage may be at work, on this stage or on one after it."""
    names = (item.uri[len(ledger.root) + 1 :] for item in ledger.store.list(ledger.uri(layout.RUNS)))
    beats = read_heartbeats(ledger, {run_id for name in names if (run_id := layout.run_of(name))}, begun=True)
    seen = ((beat, beat.process.state()) for beat in beats)
    return any(at is ProcessState.ALIVE or first_look(beat, at, now) is not Liveness.GONE for beat, at in seen)


def _note(root: str, output: str) -> str:
    return f"{root}/jobs/{hashlib.sha256(output.encode()).hexdigest()[:16]}.json"


def list_jobs() -> list[dict[str, Any]]:
    """Returns the entries, the job that was started last first; damaged ones are left out with a warning."""
    root = home()
    store = open_store(root)

    def read(uri: str) -> dict[str, Any] | None:
        try:
            entry = orjson.loads(store.read(uri))
            texts = {name: str(entry[name]) for name in ("output", "job", "run_id")}
            return {**texts, "started": float(entry["started"])}
        except ObjectNotFound:
            return None
        except (ValueError, TypeError, KeyError, CurateError) as error:
            get_logger().warning("cannot read a job's record; remove it", note=uri, error=repr(error))
            return None

    found = [item for item in store.list(f"{root}/jobs/") if item.uri.endswith(".json")]
    for item in found:
        if isinstance(item, Special):
            get_logger().warning("cannot read a job's record; remove it", note=item.uri, error=f"it is {item.kind}")
    uris = [item.uri for item in found if not isinstance(item, Special)]
    with ThreadPoolExecutor(READERS) as pool:
        entries = [entry for entry in pool.map(read, uris) if entry is not None]
    return sorted(entries, key=lambda entry: (entry["started"], entry["output"]), reverse=True)
