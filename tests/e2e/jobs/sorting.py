"""A write with an exchange: rows are looked at, sorted or shuffled, and looked at again.

Each look at a shard leaves a line in a file. Shards are small, so that a little input makes several of each kind. Where
the file is, and what looks wait for, is in the environment: it is no part of what is written.
"""

from __future__ import annotations

import json
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import curate
from curate import log
from curate.dataset.dataset import Dataset
from curate.errors import ConfigError, CurateError
from curate.graph.entry import dry_run, run
from curate.keywords import on_command_line
from curate.objects.record import OutputFormat
from curate.plan import rewrites, stages
from curate.reduce import ranges
from curate.resume.options import RunOptions
from curate.tasks.parts import Part

rewrites.LEAST_MAP_BYTES = ranges.LEAST_BYTES = int(os.environ.get("SORTING_BYTES", "2048"))


def look_before(batch: pa.Table) -> pa.Table:
    """Passes rows on, before they are sorted."""
    return look("map", batch)


def look_after(batch: pa.Table) -> pa.Table:
    """Passes rows on, once they are sorted."""
    return look("reduce", batch)


def look_again(batch: pa.Table) -> pa.Table:
    """Does something else with rows that are sorted."""
    return look("reduce", batch).append_column("length", pc.utf8_length(batch["text"]))


def look(what: str, batch: pa.Table) -> pa.Table:
    """Leaves word of a batch, and waits as long as it is to: while there is a file, which says how many need not."""
    hold, trace = os.environ.get("SORTING_HOLD", ""), os.environ.get("SORTING_TRACE", "")
    if not batch.num_rows:
        return batch
    if trace:
        descriptor = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, f"{what}:{batch['file'][0].as_py()}:{batch['id'][0].as_py()} {os.getpid()}\n".encode())
        os.close(descriptor)
    while hold and held(Path(f"{hold}-{what}"), Path(trace), what):
        time.sleep(0.02)
    return batch


def held(file: Path, trace: Path, what: str) -> bool:
    """Returns whether looks are to wait: there is a file, and there were more looks than it says."""
    try:
        free = int(file.read_text() or 0)
    except FileNotFoundError:
        return False
    return sum(line.startswith(f"{what}:") for line in trace.read_text().splitlines()) > free


def dataset(arguments: Namespace) -> Dataset:
    """Returns what is written."""
    ds = curate.read_parquet(arguments.input).map_batches(look_before, batch_size=None)
    if arguments.checkpoint:
        ds = ds.checkpoint(arguments.checkpoint)
    ds = ds.random_shuffle() if arguments.shuffle else ds.sort(["text", "file", "id"])
    if arguments.twice:
        ds = ds.random_shuffle(seed=5)
    return ds.map_batches(look_again if arguments.again else look_after, batch_size=None)


def written(arguments: Namespace) -> tuple[Any, RunOptions]:
    """Returns the stage that is run, and how."""
    spec = stages.stage_of(dataset(arguments)._plan, OutputFormat.PARQUET, None)
    return spec, RunOptions(
        inputs=spec.inputs,
        output=arguments.output,
        backend=arguments.backend,
        overwrite=arguments.overwrite,
        confirm=lambda _: True,
        keep_stages=arguments.keep_stages,
        allow_concurrent=arguments.allow_concurrent,
        max_in_flight=arguments.max_in_flight,
        part=Part.parse(arguments.part) if arguments.part else None,
        handle_signals=True,
    )


def parsed(argv: list[str]) -> Namespace:
    """Returns the arguments."""
    parser = ArgumentParser()
    for name in ("--input", "--output", "--trace", "--hold", "--checkpoint", "--part"):
        parser.add_argument(name, default="")
    parser.add_argument("--backend", default="ray")
    parser.add_argument("--max-in-flight", type=int)
    for flag in ("--shuffle", "--again", "--twice", "--overwrite", "--keep-stages", "--allow-concurrent", "--dry-run"):
        parser.add_argument(flag, action="store_true")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Runs it, prints what came of it as JSON, and returns the exit code that a job would have."""
    log.configure()
    arguments = parsed(argv)
    os.environ |= {"SORTING_HOLD": arguments.hold, "SORTING_TRACE": arguments.trace}
    try:
        with on_command_line():
            if arguments.dry_run:
                sys.stdout.write(dry_run(*written(arguments))[1])
                return 0
            ended = run(*written(arguments))
    except CurateError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; run it again to resume\n")
        return 130
    sys.stdout.write(json.dumps(ended.as_dict()))
    return ended.state.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
