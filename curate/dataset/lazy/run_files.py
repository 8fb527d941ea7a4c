"""Run files as those find them who read them: opened once in each process, and removed where they are damaged."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

from curate.dataset.exchange.runs import RunFile
from curate.errors import DamagedRun, GenerationMismatch
from curate.log import get_logger
from curate.storage import open_store
from curate.storage.protocol import Object

READERS = 8
"""Indexes of run files that are read at once."""


@lru_cache(maxsize=4096)
def opened(file: Object) -> RunFile:
    """Returns a run file, which stays open in this process: every output reads of every file."""
    return RunFile.open(open_store(file.uri), file)


def remove_damaged(file: Object, error: DamagedRun) -> None:
    """Removes a run file that was found damaged, if nobody has replaced it since: who looks for it next finds that its
    map shard is not done. Others who read it fail, and run again after that too.
    """
    try:
        removed = open_store(file.uri).delete(file.uri, file.generation)
    except GenerationMismatch:
        removed = False
    get_logger().warning(
        "a run file is damaged and was removed; the map shard that wrote it runs again"
        if removed
        else "a run file is gone or was replaced; what reads it runs again",
        file=file.uri,
        problem=error.problem,
    )


def open_all(files: Sequence[Object]) -> list[RunFile]:
    """Returns the run files, opened. Raises DamagedRun, once all that cannot be opened are removed."""
    found: list[RunFile] = []
    damaged: list[DamagedRun] = []
    with ThreadPoolExecutor(READERS) as pool:
        for file, coming in zip(files, [pool.submit(opened, file) for file in files], strict=True):
            try:
                found.append(coming.result())
            except DamagedRun as error:
                remove_damaged(file, error)
                damaged.append(error)
    if damaged:
        raise damaged[0]
    return found
