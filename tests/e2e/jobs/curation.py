"""A small job that does everything a job may do to rows, and notes each attempt at a shard in a file beside."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from curate.job.job import Job
from curate.job.params import param


class Curation(Job):
    """Keep long texts, drop short ones, set rows aside that say so, count what was seen."""

    version = "1"
    columns = {"file": pa.string(), "id": pa.int64(), "text": pa.field("text", pa.string(), nullable=False)}  # noqa: RUF012
    batch_size = 50
    short: int = param(20, help="texts with fewer characters are dropped")
    trace: str = param("", identity=False, help="file in which each attempt at a shard leaves a line")
    pause_s: float = param(0.0, identity=False, help="time that each batch takes")
    hold: str = param("", identity=False, help="path: batches wait while a file is there")
    once: str = param("", identity=False, help="path: where there is no file, makes one and does what `fault` says")
    always: list[str] = param([], identity=False, help="files in which `fault` happens each time")
    fault: str = param("raise", identity=False, help="raise, or kill")

    def process(self, batch: pa.Table) -> Iterator[pa.Table]:
        name, first = batch["file"][0].as_py(), batch["id"][0].as_py()
        if self.trace and self._tally is not getattr(self, "_traced", None):
            self._traced = self._tally
            _append(self.trace, f"{name}:{first} {os.getpid()}\n")
        time.sleep(self.pause_s)
        while self.hold and os.path.exists(self.hold):  # noqa: PTH110
            time.sleep(0.02)
        if self.once and _first_time(self.once):
            self._fail()
        if name in self.always:
            self._fail()
        length = pc.utf8_length(batch["text"])
        self.count("batches")
        self.count("characters", pc.sum(length).as_py())
        self.count("weight", sum(n * 0.1 for n in length.to_pylist()))
        for row in batch.filter(pc.starts_with(batch["text"], "aside")).to_pylist():
            self.quarantine(row, "asked for it")
        rest = batch.filter(pc.invert(pc.starts_with(batch["text"], "aside")))
        kept = rest.filter(pc.greater_equal(pc.utf8_length(rest["text"]), self.short))
        self.drop(len(rest) - len(kept), "short")
        # What is neither returned nor accounted for is `dropped: unspecified`.
        kept = kept.filter(pc.not_equal(pc.bit_wise_and(kept["id"], 31), 7))
        yield kept.append_column("length", pc.utf8_length(kept["text"]))

    def _fail(self) -> None:
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("this was to be expected")


def _append(path: str, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def _first_time(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


if __name__ == "__main__":
    Curation.main()
