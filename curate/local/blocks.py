"""Blocks on their way to a consumer: files in shared memory, which their worker writes and the consumer maps.

So nothing is copied but once, and what was taken outlives the worker that made it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from curate.dataclass import dataclass
from curate.folders.temporary import kept
from curate.runtime.protocol import BlockLostError, TaskEnd, TaskFinished
from curate.units import format_bytes


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block in a file."""

    path: str
    size_bytes: int
    """What it takes in memory."""
    is_table: bool


def store(value: Any, folders: Sequence[str], name: str) -> StoredBlock:
    """Writes a block into the first of some folders that has room. Raises StorageError if none has."""
    import pyarrow as pa

    size_bytes, is_table = int(value.nbytes), isinstance(value, pa.Table)
    for number, folder in enumerate(folders, 1):
        path = f"{folder}/{name}"
        try:
            with pa.OSFile(path, "wb") as sink:
                if is_table:
                    with pa.ipc.new_stream(sink, value.schema) as writer:
                        writer.write_table(value)
                else:
                    sink.write(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
        except OSError as error:
            _remove(path)
            if error.errno != errno.ENOSPC or number == len(folders):
                with kept(f"a block of {format_bytes(size_bytes)}", " or ".join(folders)):
                    raise
        else:
            return StoredBlock(path, size_bytes, is_table)
    raise AssertionError("there is no folder")


class LocalBlock:
    """A block that was taken. Its file is gone once it was fetched, or this is gone."""

    def __init__(self, stored: StoredBlock, task: int) -> None:
        self._stored = stored
        self._task = task
        self.forget = weakref.finalize(self, _remove, stored.path)
        """Removes the file."""

    def fetch(self) -> Any:
        """Returns the block, which stays in the memory that its file had. Raises BlockLostError."""
        import pyarrow as pa

        try:
            if self._stored.is_table:
                with pa.memory_map(self._stored.path) as source, pa.ipc.open_stream(source) as reader:
                    return reader.read_all()
            return pickle.loads(Path(self._stored.path).read_bytes())
        except OSError as error:
            ended = TaskFinished(self._task, TaskEnd.LOST, f"a block was lost\n{error}")
            raise BlockLostError(ended) from error
        finally:
            self.forget()


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)  # noqa: PTH108 - called while objects go, when less is there
