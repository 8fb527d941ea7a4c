"""Reads what an output was made from, and what was made from it: the jobs before and after it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow.compute as pc

from curate.errors import CurateError
from curate.keywords import option
from curate.ledger import layout
from curate.ledger.ledger import INPUTS, open_ledger
from curate.ledger.summary import incomplete_text, missing_text
from curate.ledger.validation import one_part
from curate.observe.browse import inputs_of_job
from curate.observe.job import FoundJob, quick_status
from curate.observe.registry import list_jobs
from curate.observe.status import JobStatus
from curate.pages.model import Lineage, Neighbour
from curate.sources.listing import ledger_above
from curate.storage.uris import absolute
from curate.units import ellipsize, format_count

READERS = 8
MOST_FOLDERS = 200
"""Folders of inputs that are looked at for the job that wrote them."""
MOST_JOBS = 10
MOST_KNOWN = 50
"""Known jobs that are asked whether they read an output, the newest first."""


def read_lineage(found: FoundJob, status: JobStatus, given: tuple[str, ...], now: float, notes: list[str]) -> Lineage:
    """Returns the lineage of a job, which was given these inputs. What cannot be read is noted."""
    try:
        inputs = inputs_of_job(found)
    except CurateError as error:
        notes.append(ellipsize(f"the list of the job's inputs cannot be read: {error}"))
        inputs = INPUTS.empty_table()
    remarks = [*incomplete_text(status.incomplete_input)]
    if any(status.missing):
        remarks.append(missing_text(*status.missing))
    if status.stale:
        shards = format_count(status.stale, "shard")
        remarks.append(f"The inputs of {shards} changed after they were done; {option('redo_stale')} replaces them")
    return Lineage(
        given,
        len(inputs),
        pc.sum(inputs["size"]).as_py() or 0,
        tuple(map(ellipsize, inputs["uri"][:3].to_pylist())),
        tuple(_upstream(inputs["uri"], now, notes)),
        tuple(_downstream(found.ledger.root, now)),
        tuple(map(ellipsize, remarks)),
    )


def _upstream(uris: Any, now: float, notes: list[str]) -> Iterator[Neighbour]:
    """Yields the jobs that wrote these inputs."""
    checked: set[str] = set()
    roots: set[str] = set()
    folders = pc.unique(pc.replace_substring_regex(uris, "/[^/]*$", ""))
    for folder in folders[:MOST_FOLDERS].to_pylist():
        try:
            root = ledger_above(folder, open_ledger(folder).store, checked)
            if root and root not in roots and len(roots) < MOST_JOBS:
                roots.add(root)
                yield _neighbour(root, now)
        except CurateError as error:
            notes.append(ellipsize(f"cannot look at the input folder {folder}: {error}"))
            return


def _downstream(output: str, now: float) -> Iterator[Neighbour]:
    """Yields the known jobs that were given this output, or something in it, as their input."""
    try:
        known = [one for one in list_jobs() if one["output"] != output and one_part(one["run_id"])]
    except CurateError:
        return  # there is no list, or none that can be read
    # Those in a store of another kind may be out of reach, and would be waited for.
    others = [one for one in known if _scheme(one["output"]) == _scheme(output)][:MOST_KNOWN]

    def reads(entry: dict[str, Any]) -> bool:
        try:
            run = open_ledger(entry["output"]).read_json(layout.run_file(entry["run_id"], "run.json"))
        except CurateError:
            return False  # it was removed, or cannot be reached: nothing is known of it
        given = (absolute(one, run.get("cwd", "")) for one in run.get("inputs", ()))
        return any(f"{one}/".startswith(f"{output}/") for one in given)

    with ThreadPoolExecutor(READERS) as pool:
        readers = [one for one, reading in zip(others, pool.map(reads, others), strict=True) if reading]
    for one in readers[:MOST_JOBS]:
        try:
            yield _neighbour(one["output"], now)
        except CurateError:
            continue  # as above


def _neighbour(output: str, now: float) -> Neighbour:
    status = quick_status(output, now)
    return Neighbour(ellipsize(output), ellipsize(status.job), ellipsize(status.state), status.done, status.total)


def _scheme(uri: str) -> str:
    return uri.partition("://")[0] if "://" in uri else ""
