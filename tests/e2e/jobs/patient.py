"""A job of two slots in which one shard ends only when all others were begun, also those behind it in its task."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pyarrow as pa

from curate.job.job import Job
from curate.job.params import param
from curate.local import machine
from curate.tasks import scheduler

# However little it is, an idle slot takes it; and nothing is copied.
scheduler.PART_LEAST_S, scheduler.STRAGGLER_LEAST_S = 0.0, math.inf


class Patient(Job):
    """Leave a file for each shard that is begun; in one of them, wait for those of all others."""

    version = "1"
    num_cpus = machine.cpus() / 2
    columns = {"id": pa.string()}  # noqa: RUF012
    begun: str = param(help="folder for a file of each shard")
    last: str = param(help="id of the row that waits")
    shards: int = param(help="how many there are")

    def process(self, batch: pa.Table) -> pa.Table:
        (name,) = batch["id"].to_pylist()
        folder = Path(self.begun)
        folder.mkdir(exist_ok=True)
        with (folder / name).open("a") as file:
            file.write("begun\n")
        while name == self.last and len(list(folder.iterdir())) < self.shards:
            time.sleep(0.02)
        return batch


if __name__ == "__main__":
    Patient.main()
