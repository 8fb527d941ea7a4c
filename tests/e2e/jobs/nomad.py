"""A job of two stages and, if wanted, a pool, that leaves word of where each shard of it was begun and ended.

Shards are small, so that a little input makes several of each kind: one for each input, and as many outputs, however
many there are. So what is begun twice is a shard that is run twice.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curate.dataset.dataset import Dataset
from curate.job.job import Job
from curate.job.params import param
from curate.pipeline.step import ActorPool
from curate.plan import rewrites
from curate.reduce import ranges

rewrites.LEAST_MAP_BYTES = ranges.LEAST_BYTES = 2048
rewrites.MAPS = ranges.PARTS = 1 << 30


def look(batch: pa.Table, what: str, trace: str, pause_s: float, hold: str) -> pa.Table:
    """Passes rows on after a while. Leaves a line when it begins and one when it ends, with the node."""
    if not batch.num_rows:
        return batch
    name = f"{what}:{batch['file'][0].as_py()}:{batch['id'][0].as_py()}"
    note(trace, f"{name} begun")
    time.sleep(pause_s)
    while hold and held(Path(f"{hold}-{what}"), Path(trace), what):
        time.sleep(0.02)
    note(trace, f"{name} ended")
    return batch


def held(file: Path, trace: Path, what: str) -> bool:
    """Returns whether looks are to wait: there is a file, and more were begun than it says."""
    try:
        free = int(file.read_text() or 0)
    except FileNotFoundError:
        return False
    lines = trace.read_text().splitlines()
    return sum(line.startswith(f"{what}:") and " begun" in line for line in lines) > free


def note(trace: str, text: str) -> None:
    """Appends a line: a text, process and node."""
    if trace:
        import ray

        node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else "here"
        descriptor = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, f"{text} {os.getpid()} {node}\n".encode())
        os.close(descriptor)


class Length:
    """Says how long texts are."""

    def __init__(self, trace: str) -> None:
        note(trace, "actor:: begun")

    def __call__(self, batch: pa.Table) -> pa.Table:
        return batch.append_column("length", pc.cast(pc.utf8_length(batch["text"]), pa.int64()))


class Nomad(Job):
    """Look at rows, measure them, sort them, and look at them again."""

    version = "1"
    columns = {"file": pa.string(), "id": pa.int64(), "text": pa.string()}  # noqa: RUF012
    trace: str = param("", help="where to leave word", identity=False)
    pause_s: float = param(0.0, help="how long each look takes", identity=False)
    hold: str = param(
        "",
        help="looks wait while there is this file with -map or -reduce, which says how many need not",
        identity=False,
    )
    chips: float = param(0.0, help="TPU chips that an actor holds", identity=False)

    def build(self, ds: Dataset) -> Dataset:
        told: dict[str, Any] = {"trace": self.trace, "pause_s": self.pause_s, "hold": self.hold}
        looked = ds.map_batches(look, batch_size=None, fn_kwargs={"what": "map", **told})
        measured = looked.map_batches(
            Length,
            fn_constructor_args=[self.trace],
            compute=ActorPool(min_size=1, max_size=2),
            num_cpus=0,
            resources={"TPU": self.chips} if self.chips else None,
        )
        return measured.sort(["text", "file", "id"]).map_batches(
            look, batch_size=None, fn_kwargs={"what": "reduce", **told}
        )


if __name__ == "__main__":
    Nomad.main()
