"""Grows a job's plan to the inputs that are there: splits what is new, notices what changed. Decides names, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from curate.dataset.formats import Format, detect, row_groups, stem
from curate.dataset.inputs import Inputs
from curate.dataset.spec import StageSpec
from curate.dataset.split import parts, split_bytes, split_row_groups, whole
from curate.errors import ConfigError
from curate.log import get_logger
from curate.storage.protocol import Object, Store
from curate.tasks.plan import Growth, Plan, shards_table
from curate.tasks.shard import Shard, SliceKind
from curate.units import format_bytes

FOOTER_READERS = 8
"""Footers of large Parquet files that are read at once."""


def plan_new(spec: StageSpec, plan: Plan, inputs: Inputs, growth: Growth, store_of: Callable[[str], Store]) -> Any:
    """Returns the rows to append to the plan for inputs that it does not know, as a table.

    Raises ConfigError for an unreadable format, and for two inputs whose outputs would have one name.
    """
    table = inputs.table.take(growth.new) if len(plan) else inputs.table
    rows = zip(*(table[name].to_pylist() for name in ("uri", "name", "size", "generation")), strict=True)
    if spec.operator.reads_files:
        shards = [whole(_file_stem(name), uri, size, generation) for uri, name, size, generation in rows]
    else:
        objects = [(Object(uri, size, generation), name) for uri, name, size, generation in rows]

        def split(item: tuple[Object, str]) -> list[Shard]:
            return list(_split(spec, *item, store_of))

        # Only inputs above the target read anything: most plans are made from the listing alone, without a thread.
        if any(item.size > spec.shard_bytes for item, _ in objects):
            with ThreadPoolExecutor(FOOTER_READERS) as pool:
                shards = [shard for of_one in pool.map(split, objects) for shard in of_one]
        else:
            shards = [shard for item in objects for shard in split(item)]
    _refuse_collisions(plan, shards)
    return shards_table(shards)


def _file_stem(name: str) -> str:
    """Returns the output name of a file that is no table: all of it, since `a.pdf` and `a.tar` may lie together."""
    return name


def _split(spec: StageSpec, item: Object, name: str, store_of: Callable[[str], Store]) -> Iterator[Shard]:
    encoding = detect(item.uri)
    base = stem(name)
    args = (base, item.uri, item.size, item.generation)
    if item.size <= spec.shard_bytes:
        yield whole(*args)
    elif encoding.format is Format.PARQUET:
        groups = row_groups(store_of(item.uri), item)
        ranges = split_row_groups(groups, spec.shard_bytes)
        yield from parts(*args, SliceKind.ROW_GROUPS, ranges, [sum(groups[a:b]) for a, b in ranges])
    elif encoding.format is Format.JSONL and encoding.codec is None:
        ranges = split_bytes(item.size, spec.shard_bytes)
        yield from parts(*args, SliceKind.BYTES, ranges, [b - a for a, b in ranges])
    else:
        get_logger(job=spec.name).warning(
            "input cannot be split and is larger than shard_bytes: one task will read all of it",
            input=item.uri,
            size=format_bytes(item.size),
            shard_bytes=format_bytes(spec.shard_bytes),
            next="store it uncompressed, as Parquet, or in smaller files",
        )
        yield whole(*args)


def _refuse_collisions(plan: Plan, shards: list[Shard]) -> None:
    seen: dict[str, str] = dict(zip(plan.ids.to_pylist(), plan.table["uri"].to_pylist(), strict=True)) if shards else {}
    for shard in shards:
        other = seen.setdefault(shard.id, shard.uri)
        if other is not shard.uri:
            raise ConfigError(
                f"{other!r} and {shard.uri!r} would both be written to the output {shard.id!r}: output names come from "
                "the part of a path below its --input; name a directory above both, or run two jobs"
            )


def replan_changed(plan: Plan, inputs: Inputs, growth: Growth, done: Any) -> Any:
    """Returns rows that replace those of undone, unsplit shards whose input is another object now; None if none are.

    A repaired input is simply read as it is; a split one keeps its plan, and its shards fail saying so.
    """
    ranks = np.flatnonzero(growth.changed & ~done)
    shards = []
    for rank in ranks.tolist():
        old = plan.shard(rank)
        if old.kind is SliceKind.WHOLE:
            row = growth.position[rank].as_py()
            size = inputs.table["size"][row].as_py()
            shards.append(whole(old.id, old.uri, size, inputs.table["generation"][row].as_py()))
    return shards_table(shards) if shards else None
