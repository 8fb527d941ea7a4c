"""The program of `start`: a job that writes down when its plan was made and when its first task began, into the file
that $START_MOMENTS names."""

from __future__ import annotations

import os
import time
from typing import Any

from curate.driver import stage_run
from curate.job.shapes import TextJob


def note(what: str) -> None:
    """Writes down that this happens now."""
    with open(os.environ["START_MOMENTS"], "a") as said:
        said.write(f"{what} {time.time()}\n")


class Passing(TextJob):
    """Pass texts through, and say when that begins."""

    version = "1"
    moments: str = os.environ["START_MOMENTS"]

    def setup(self) -> None:
        with open(self.moments, "a") as said:
            said.write(f"task {time.time()}\n")

    def process(self, batch: Any) -> Any:
        return self.passed_through(batch, text=True)


if __name__ == "__main__":
    module: Any = stage_run
    prepare = module.prepare

    def prepared(*args: Any, **kwargs: Any) -> Any:
        found = prepare(*args, **kwargs)
        note("planned")
        return found

    module.prepare = prepared
    Passing.main()
