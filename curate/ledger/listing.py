"""Sorts one listing of an output prefix into outputs and documents of the ledger."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.dataclass import dataclass, field, replace
from curate.errors import ConfigError
from curate.late_pandas import numbers
from curate.ledger import layout
from curate.ledger.manifest import ShardPlan, with_suffix
from curate.ledger.packed import BLOCK_ROWS, SMALL, PackedTable, RowBuffer, positions, without_prefix
from curate.storage.listing import in_columns
from curate.storage.protocol import LIST_PAGE, Object, Special

SCHEMA = pa.schema([("name", pa.string()), ("size", pa.int64()), ("generation", pa.string())])

NAMES = pa.schema([("name", pa.string())])


@dataclass
class OutputListing:
    """What is under an output prefix, names relative to it."""

    objects: PackedTable
    """All that is not of the ledger: columns of `SCHEMA`."""
    plan_parts: dict[str, Object] = field(default_factory=dict)
    """Parts of the plan, by name."""
    merged_parts: list[str] = field(default_factory=list)
    """Files that have the rows of many of them."""
    stray_parts: list[str] = field(default_factory=list)
    """Parts of a plan whose beginning an overwrite has removed: a run that it took for gone added them."""
    segments: list[str] = field(default_factory=list)
    """Segments of events."""
    failures: list[str] = field(default_factory=list)
    """Segments of failures."""
    logs: list[str] = field(default_factory=list)
    """Segments of workers' logs."""
    quarantine: list[str] = field(default_factory=list)
    """Files of quarantined rows, named by outputs or left by a kill."""
    samples: PackedTable = field(default_factory=lambda: PackedTable.of(NAMES.empty_table()))
    """Files of rows that were dropped, by name: there may be one for each output."""
    run_ids: list[str] = field(default_factory=list)
    stages: set[str] = field(default_factory=set)
    """Keys of the stages of which something is there."""
    growth: int = 0
    """How often a run took more inputs than the job began with."""
    accepted: set[str] = field(default_factory=set)
    """Code digests accepted under an unfinished job."""
    has_job: bool = False
    job_generation: str = ""
    """Generation of `job.json`; empty where there is none."""
    overwritten: bool = False
    """Whether there was a job before, of which workers may be late."""
    summary: Object | None = None

    @property
    def cut_off(self) -> bool:
        """Whether a job was there before and this one has no plan: of the outputs that are there, none counts."""
        return self.has_job and self.overwritten and not self.plan_parts

    @property
    def bytes(self) -> int:
        """Stored bytes of all objects that are not the ledger's."""
        return int(self.objects.numbers("size").sum())

    def object(self, root: str, row: int) -> Object:
        """Returns one of the objects, of the listing of `root`."""
        name, size, generation = self.objects.row(row)
        return Object(f"{root}/{name}", size, generation)

    def row(self, name: str) -> int:
        """Returns the row of the object of that name; -1 if there is none."""
        return self.objects.find("name", name)

    def samples_named(self, names: Collection[str]) -> list[str]:
        """Returns which of these files of rows that were dropped are there, in their order."""
        there = positions([pa.array(names, pa.string())], self.samples, "name") if names else ()
        return [name for name, row in zip(names, there, strict=True) if row >= 0]

    def rows_named(self, names: pa.Array | pa.ChunkedArray) -> Any:
        """Returns the rows of the objects that have one of these names."""
        return np.flatnonzero(self.objects.where("name", lambda block: pc.is_in(block, value_set=names)))

    def without(self, rows: Sequence[int]) -> OutputListing:
        """Returns it without the objects of these rows."""
        keep = np.ones(len(self.objects), dtype=bool)
        keep[rows] = False
        return replace(self, objects=self.objects.filter(keep))

    def jobs_below(self) -> list[str]:
        """Returns the folders in it that are outputs of other jobs: not of stages, which lie in a ledger."""
        rows = np.flatnonzero(self.objects.where("name", lambda block: pc.ends_with(block, f"/{layout.JOB}")))
        folders = [name.removesuffix(f"/{layout.JOB}") for name in self.objects.take(rows, "name")["name"].to_pylist()]
        return sorted(one for one in folders if layout.LEDGER not in one.split("/"))

    @cached_property
    def generations(self) -> Any:
        """The hash of the generation of each object, as `generation_hash` gives it."""
        found = np.empty(len(self.objects), dtype=np.int64)
        for start, block in self.objects.located("generation"):
            found[start : start + len(block)] = [generation_hash(one) for one in block[0].to_pylist()]
        return found


def empty_listing() -> OutputListing:
    """Returns the listing of an output where nothing is."""
    return OutputListing(PackedTable.of(SCHEMA.empty_table()))


def generation_hash(generation: str) -> int:
    """Returns 64 bits that tell generations apart within this process; never 0."""
    return hash(generation) or 1


def sort_listing(objects: Iterable[Object], root: str, codec: str = SMALL) -> OutputListing:
    """Returns the objects of one listing of `root + "/"`, sorted into outputs and ledger, packed by a codec.

    Raises ConfigError if something of the ledger is no regular file. Anywhere else that is no output, and nobody's
    business: a shard whose output's name it takes says so when it is published.
    """
    outputs, samples = RowBuffer(SCHEMA, codec), RowBuffer(NAMES, codec)
    found, cut = empty_listing(), len(root) + 1
    # By columns: of millions, what is done for each object decides how long it takes.
    for block in in_columns(objects, BLOCK_ROWS - LIST_PAGE):
        names = without_prefix(outputs.texts(block.uris), root + "/")
        ledger = numbers(pc.starts_with(names, f"{layout.LEDGER}/"))
        if block.kinds or ledger.any():
            for at in np.flatnonzero(ledger).tolist():
                item, name = block.object(at), block.uris[at][cut:]
                if isinstance(item, Special):
                    refuse_special(item, name)
                elif layout.is_samples(name):
                    samples.add((name,))
                else:
                    _note(found, name, item)
            ledger[list(block.kinds)] = True
            block = block.take(np.flatnonzero(~ledger).tolist())
            names = names.filter(pa.array(~ledger))
        outputs.add_block(names, block.sizes, block.generations)
    # A name that is no Unicode is there with its bytes escaped: no shard is named like it.
    found.objects, found.samples = outputs.table(), samples.table()
    if found.overwritten and layout.plan_part(0) not in found.plan_parts:
        found.plan_parts, found.stray_parts = {}, [*found.plan_parts]
    return found


def _note(found: OutputListing, name: str, item: Object) -> None:
    """Notes an object of the ledger."""
    if layout.plan_part_number(name) is not None:
        found.plan_parts[name] = item
    elif layout.last_merged(name) is not None:
        found.merged_parts.append(name)
    elif layout.is_events_segment(name):
        found.segments.append(name)
    elif layout.is_failures_segment(name):
        found.failures.append(name)
    elif layout.is_log_segment(name):
        found.logs.append(name)
    elif layout.is_quarantined(name):
        found.quarantine.append(name)
    elif run_id := layout.run_of(name):
        found.run_ids.append(run_id)
    elif name.startswith(layout.ACCEPTED):
        found.accepted.add(name[len(layout.ACCEPTED) :])
    elif stage := layout.stage_of(name):
        found.stages.add(stage)
    elif layout.replaced_number(name) is not None:
        found.overwritten = True
    elif number := layout.growth_number(name):
        found.growth = max(found.growth, number)
    elif name == layout.JOB:
        found.has_job, found.job_generation = True, item.generation
    elif name == layout.SUMMARY:
        found.summary = item


def refuse_special(item: Special, name: str) -> None:
    """Raises ConfigError for what is no regular file, if `name`, relative to the output, is one of the ledger's."""
    if name.startswith(f"{layout.LEDGER}/"):
        raise ConfigError(
            f"{item.uri} is {item.kind}, where only files of the ledger belong; the ledger was damaged from outside: "
            "remove it, or choose another output"
        )


@dataclass(frozen=True, slots=True)
class OutputMatch:
    """Which shards of a plan have their output."""

    done: Any
    """One boolean a shard."""
    position: Any
    """Rank in the listing for each shard, -1 where there is no output."""
    foreign: list[str]
    """Objects outside the ledger that no shard of the plan is named after, hidden ones left out."""

    @property
    def count(self) -> int:
        """Shards whose output exists."""
        return int(np.count_nonzero(self.done))


def match_outputs(plan: ShardPlan, listing: OutputListing, suffix: str) -> OutputMatch:
    """Returns which shards of `plan` have an output named id + `suffix` in the listing."""
    objects = listing.objects
    position = positions(with_suffix(plan.table, suffix), objects, "name").astype(np.int32)
    used = np.zeros(len(objects), dtype=bool)
    used[position[position >= 0]] = True
    for other in layout.COMPANIONS.get(suffix, ()):
        beside = positions(with_suffix(plan.table, other), objects, "name")
        used[beside[beside >= 0]] = True
    if suffix == ".mds" and (index := listing.row(layout.INDEX)) >= 0:
        used[index] = True
    if not used.all():
        used |= objects.where("name", lambda names: pc.match_substring_regex(names, layout.HIDDEN))
    return OutputMatch(position >= 0, position, objects.take(np.flatnonzero(~used), "name")["name"].to_pylist())
