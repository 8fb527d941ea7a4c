"""What Curation does, with trouble in the shards that are named: once each, until more memory is given, or always."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator

import pyarrow as pa

from curate.job.params import param
from tests.e2e.jobs.curation import Curation, _first_time

STEP_BYTES = 32 << 20
MOST_BYTES = 7 << 30
"""A leak stops here: the machine is shared."""


class Trouble(Curation):
    """Do what Curation does, and have some trouble with it."""

    version = "1"
    once_dir: str = param("", identity=False, help="folder with a mark for each shard that had its trouble")
    kills: list[str] = param([], identity=False, help="files whose worker is killed, once")
    hangs: list[str] = param([], identity=False, help="files that hang, once")
    leaks: list[str] = param([], identity=False, help="files that take all memory, as long as they get less than 2 GiB")

    def process(self, batch: pa.Table) -> Iterator[pa.Table]:
        name, done = batch["file"][0].as_py(), list(super().process(batch))
        if name in self.kills and self._first(name):
            # What the worker has said is on its way by then.
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)
        if name in self.hangs and self._first(name):
            while True:
                time.sleep(3600)
        if name in self.leaks and self._has_little(name):
            self._leak()
        yield from done

    def _first(self, name: str) -> bool:
        return _first_time(f"{self.once_dir}/{name.replace('/', '-')}")

    def _has_little(self, name: str) -> bool:
        """Returns whether this task was launched with less than 2 GiB; elsewhere than on Ray, whether it is the first
        for a file."""
        if "ray" not in sys.modules:
            return self._first(name)
        import ray

        return float(ray.get_runtime_context().get_assigned_resources().get("memory", 0)) < 2 << 30

    @staticmethod
    def _leak() -> None:
        kept = []
        while len(kept) * STEP_BYTES < MOST_BYTES:
            kept.append(b"x" * STEP_BYTES)
            time.sleep(0.02)
        raise RuntimeError(f"{MOST_BYTES} bytes were taken, and nobody minded")


if __name__ == "__main__":
    Trouble.main()
