"""Adds new inputs to a job's plan: splits them into shards, names these once, and notices changed inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow.compute as pc

from curate.dataclass import dataclass
from curate.errors import ConfigError, CorruptInput
from curate.formats.encoding import Encoding, Format, stem
from curate.formats.read.json_array import stored_as_array
from curate.formats.read.parquet import row_groups
from curate.keywords import option, start_over
from curate.ledger import layout, validation
from curate.ledger.manifest import SCHEMA, InputDiff, ShardPlan, shard_row, shards_of_rows, shards_table
from curate.ledger.packed import PackedTable, RowBuffer, firsts
from curate.log import get_logger
from curate.sources.listing import Inputs
from curate.sources.split import parts, split_bytes, split_row_groups, whole
from curate.storage.protocol import Object, Store
from curate.storage.uris import KEY_BYTES, room_for_name
from curate.tasks.shard import Shard, SliceKind
from curate.units import format_bytes

FOOTER_READERS = 8
"""Footers of large Parquet files that are read at once."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """How the inputs of a job become shards."""

    job: str
    """The job's name, for who reads the log."""
    output: str
    """The prefix of its outputs."""
    suffix: str
    """That of its outputs, which are named after the shards."""
    shard_bytes: int
    encoding: Callable[[str], Encoding | None]
    """How an input is read, by its URI; None: it is one shard, however large it is, and gives the whole of its name to
    the output."""
    folders: tuple[str, ...] = ()
    """Where its extra outputs lie, below the prefix, under the names of the others."""


def plan_new(
    rule: Sharding, plan: ShardPlan, inputs: Inputs, growth: InputDiff, store_of: Callable[[str], Store]
) -> PackedTable:
    """Returns the rows to append to the plan for inputs that it does not know, as a table.

    Raises ConfigError for an unreadable format, for two inputs whose outputs would have one name, and for an output
    whose name would be too long.
    """

    def split(item: Object, name: str) -> list[Shard]:
        return list(_split(rule, item, name, store_of))

    rows = RowBuffer(SCHEMA)
    large: list[Object] = []
    with ThreadPoolExecutor(FOOTER_READERS) as pool:
        # Block by block: as Python objects, a million of inputs and shards would take a gigabyte.
        for block in inputs.table.filter(growth.new).batches(*inputs.table.schema.names):
            uris, names, sizes, generations = (column.to_pylist() for column in block.columns)
            items = list(map(Object, uris, sizes, generations))
            above = [item for item in items if item.size > rule.shard_bytes]
            large += above
            # Only inputs above the target read anything: most plans are made from the listing alone, without a thread.
            for shards in (pool.map if above else map)(split, items, names):
                for shard in shards:
                    rows.add(shard_row(shard))
    part = rows.table()
    refuse_escaping(part)
    refuse_too_long(rule, part)
    if _may_collide(plan, part, rule.suffix):
        refuse_collisions(plan, shards_of_rows(part.table()), rule.suffix, growth.missing)
    _warn_of_large(rule, large)
    _warn_of_hidden(rule, part)
    return part


def split_otherwise(
    rule: Sharding, plan: ShardPlan, inputs: Inputs, growth: InputDiff, store_of: Callable[[str], Store]
) -> Any:
    """Returns one boolean a shard of the plan: its input is another object now, and is split, or was."""
    found = np.zeros(len(plan), dtype=bool)
    for rank in np.flatnonzero(growth.changed).tolist():
        uri, kind = plan.table.row(rank, "uri", "kind")
        found[rank] = kind != SliceKind.WHOLE.value
        if not found[rank]:
            name, size, generation = inputs.table.row(int(growth.position[rank]), "name", "size", "generation")
            if size > rule.shard_bytes:
                found[rank] = len(list(_split(rule, Object(uri, size, generation), name, store_of))) > 1
    return found


def _split(rule: Sharding, item: Object, name: str, store_of: Callable[[str], Store]) -> Iterator[Shard]:
    try:
        encoding = rule.encoding(item.uri)
    except ConfigError as error:
        raise ConfigError(f"{error}; rename it, or leave it out with a glob such as 'data/*.jsonl'") from error
    if encoding is None:
        # The whole name is the output's, for `a.pdf` and `a.tar` may lie together.
        return iter([whole(name, item.uri, item.size, item.generation)])

    def unreadable(error: CorruptInput) -> None:
        # It fails as one shard, like any other broken input, and the rest of the job goes on.
        get_logger(job=rule.job).warning("a large input cannot be split", error=str(error))

    return shards_of(item, name, encoding, rule.shard_bytes, store_of, unreadable)


def shards_of(
    item: Object,
    name: str,
    encoding: Encoding,
    shard_bytes: int,
    store_of: Callable[[str], Store],
    unreadable: Callable[[CorruptInput], None] = lambda _: None,
) -> Iterator[Shard]:
    """Yields the shards of an input whose path below the input's root is `name`.

    Large ones alone are looked at: the footer of a Parquet file, which is one shard if it is `unreadable`, as then
    reading it says what is wrong; and whether a file of JSON is one array, which has no lines to be split at.
    """
    # The whole name of a file that is one row: `a.png` and `a.jpg` may lie together.
    called = name if encoding.format in (Format.BINARY, Format.IMAGE) else stem(name)
    args = (called, item.uri, item.size, item.generation)
    if item.size <= shard_bytes or not encoding.divisible:
        yield whole(*args)
    elif encoding.format is Format.PARQUET:
        try:
            groups = row_groups(store_of(item.uri), item)
        except CorruptInput as error:
            unreadable(error)
            yield whole(*args)
            return
        ranges = split_row_groups(groups, shard_bytes)
        yield from parts(*args, SliceKind.ROW_GROUPS, ranges, [sum(groups[a:b]) for a, b in ranges])
    elif encoding.format is Format.JSONL and stored_as_array(store_of(item.uri), item):
        yield whole(*args)
    else:
        ranges = split_bytes(item.size, shard_bytes)
        yield from parts(*args, SliceKind.BYTES, ranges, [b - a for a, b in ranges])


def _warn_of_large(rule: Sharding, large: Sequence[Object]) -> None:
    """Says once, however many they are, that some inputs are one shard each although they are larger than that."""
    unsplit = [item for item in large if (read := rule.encoding(item.uri)) is not None and not read.divisible]
    if unsplit:
        largest = max(unsplit, key=lambda item: item.size)
        get_logger(job=rule.job).warning(
            "some inputs are larger than shard_bytes but cannot be split: one task reads each of them",
            inputs=len(unsplit),
            largest=largest.uri,
            size=format_bytes(largest.size),
            shard_bytes=format_bytes(rule.shard_bytes),
            next="store them uncompressed, as Parquet, or in smaller files",
        )


def _may_collide(plan: ShardPlan, part: PackedTable, suffix: str) -> bool:
    """Returns whether `refuse_collisions` has to look: an id is there twice, or a folder is called like an output."""
    ids = plan.table.plus(part)
    if firsts(ids, "id") is not None:
        return True
    return bool(ids.where("id", lambda names: pc.match_substring(names, f"{suffix}/")).any())


def refuse_escaping(part: PackedTable) -> None:
    """Raises ConfigError if an output would lie elsewhere than below the output prefix, or in the job's own folders.

    Object stores take any name for an object, and an input's name becomes its output's.
    """
    for block in part.batches("id", "uri"):
        if (found := validation.paths_outside(block["id"])) is None:
            continue
        uri = block["uri"][pc.index(block["id"], found).as_py()].as_py()
        raise ConfigError(
            f"the input {uri!r} would be written to {found!r}, which is not a valid output name: outputs are named "
            "after inputs, and no part of the path may be empty, '.' or '..', contain control characters, or begin "
            f"with '{layout.LEDGER}/'; rename it, or leave it out with a glob"
        )


def refuse_too_long(rule: Sharding, part: PackedTable) -> None:
    """Raises ConfigError if the name of an output would be longer than its store takes."""
    room = room_for_name(rule.output)
    if room is None:
        return
    folder = max(rule.folders, key=len, default="")
    beside = len(f"{folder}{rule.suffix}")
    for block in part.batches("id", "uri"):
        at = pc.index(pc.greater(pc.binary_length(block["id"]), room - beside), True).as_py()
        if at >= 0:
            key_bytes = KEY_BYTES - room + beside + len(block["id"][at].as_py().encode())
            raise ConfigError(
                f"the name of an {'extra ' * bool(folder)}output would have {key_bytes:,} bytes, and the store "
                f"takes {KEY_BYTES:,}: outputs are named after inputs; choose a shorter output than {rule.output}, "
                f"rename the input, or leave it out with a glob: {block['uri'][at].as_py()!r}"
            )


def refuse_collisions(plan: ShardPlan, shards: Sequence[Shard], suffix: str, missing: Any = None) -> None:
    """Raises ConfigError if two shards would have one output, or one's output would be a directory of another's.

    `missing`: one boolean a shard of the plan, whether its input is not there any more; None: all are there.
    """
    planned: dict[str, str] = (
        dict(zip(plan.ids.to_pylist(), plan.table["uri"].to_pylist(), strict=True)) if shards else {}
    )
    seen = dict(planned)
    for shard in shards:
        other = seen.setdefault(shard.id, shard.uri)
        if other is not shard.uri:
            both = f"{other!r} and {shard.uri!r} would both be written to the output {shard.id + suffix!r}"
            if missing is not None and shard.id in planned and missing[plan.rank(shard.id)]:
                # Who takes all inputs out is refused that.
                out = "" if missing.all() else f"take it out with {option('drop_removed')}, or "
                raise ConfigError(
                    f"{both}. The first one is not there any more: if the other takes its place, {out}{start_over()}; "
                    "if it, or a checkpoint, was moved, move it back"
                )
            apart = other.rpartition("/")[0] != shard.uri.rpartition("/")[0]
            raise ConfigError(
                f"{both}: an output is named after its input's path below the given folder, without the suffix; "
                f"{'pass a directory above both, ' if apart else ''}rename one of them, or run two jobs"
            )
    folders = {shard.id.rpartition("/")[0] for shard in shards}
    for folder in sorted(folders):
        names = folder.split("/")
        for depth in range(1, len(names) + 1):
            above = "/".join(names[:depth])
            if above.endswith(suffix) and (namesake := seen.get(above.removesuffix(suffix))) is not None:
                raise ConfigError(
                    f"the output of {namesake!r} would be named {above!r}, which is a directory of other outputs; "
                    "rename that input, or run two jobs"
                )


def _warn_of_hidden(rule: Sharding, part: PackedTable) -> None:
    hidden = np.flatnonzero(part.where("id", lambda names: pc.match_substring_regex(names, layout.HIDDEN)))
    if len(hidden):
        get_logger(job=rule.job).warning(
            "some outputs begin with '_' or '.', like their inputs, and most readers skip them",
            outputs=len(hidden),
            example=part.row(int(hidden[0]), "id")[0] + rule.suffix,
            next="rename the inputs",
        )


def replan_changed(plan: ShardPlan, inputs: Inputs, growth: InputDiff, done: Any) -> PackedTable | None:
    """Returns rows that replace those of undone, unsplit shards whose input is another object now; None if none are.

    A repaired input is simply read as it is. A split one of which outputs are there keeps its plan, and its shards fail
    saying so: see `split_otherwise`.
    """
    ranks = np.flatnonzero(growth.changed & ~done)
    shards = []
    for rank in ranks.tolist():
        old = plan.shard(rank)
        if old.kind is SliceKind.WHOLE:
            size, generation = inputs.table.row(int(growth.position[rank]), "size", "generation")
            shards.append(whole(old.id, old.uri, size, generation))
    return shards_table(shards) if shards else None
