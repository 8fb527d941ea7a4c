"""Sorts one listing of an output prefix into outputs and documents of the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.errors import ConfigError
from curate.late_pandas import numbers, text
from curate.ledger import layout
from curate.ledger.manifest import ShardPlan
from curate.ledger.row_buffer import RowBuffer
from curate.storage.protocol import Object, Special

SCHEMA = pa.schema([("name", pa.string()), ("size", pa.int64()), ("generation", pa.string())])


@dataclass(slots=True)
class OutputListing:
    """What is under an output prefix, names relative to it. Columns rather than objects: there may be millions."""

    names: Any
    sizes: Any
    generations: Any
    plan_parts: list[str] = field(default_factory=list)
    segments: list[str] = field(default_factory=list)
    """Segments of events."""
    failures: list[str] = field(default_factory=list)
    """Segments of failures."""
    logs: list[str] = field(default_factory=list)
    """Segments of workers' logs."""
    quarantine: list[str] = field(default_factory=list)
    """Files of quarantined rows, named by outputs or left by a kill."""
    samples: list[str] = field(default_factory=list)
    """Files of rows that were dropped."""
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
    summary: Object | None = None

    @property
    def bytes(self) -> int:
        """Stored bytes of all objects that are not the ledger's."""
        return int(pc.sum(self.sizes).as_py() or 0)

    def object(self, root: str, row: int) -> Object:
        """Returns one of the objects, of the listing of `root`."""
        return Object(f"{root}/{self.names[row].as_py()}", self.sizes[row].as_py(), self.generations[row].as_py())


def sort_listing(objects: Iterable[Object], root: str) -> OutputListing:
    """Returns the objects of one listing of `root + "/"`, sorted into outputs and ledger.

    Raises ConfigError if something of the ledger is no regular file. Anywhere else that is no output, and nobody's
    business: a shard whose output's name it takes says so when it is published.
    """
    outputs = RowBuffer(SCHEMA)
    found = OutputListing(None, None, None)
    cut = len(root) + 1

    def rows() -> Iterator[tuple[str, int, str]]:
        for item in objects:
            name = item.uri[cut:]
            if isinstance(item, Special):
                refuse_special(item, name)
            elif not name.startswith("_curate/"):
                yield name, item.size, item.generation
            else:
                _note(found, name, item)

    outputs.extend(rows())
    # A name that is no Unicode is there with its bytes escaped: no shard is named like it.
    found.names, found.sizes, found.generations = outputs.table().columns
    return found


def _note(found: OutputListing, name: str, item: Object) -> None:
    """Notes an object of the ledger."""
    if layout.is_samples(name):
        # First: there may be one for each output.
        found.samples.append(name)
    elif layout.plan_part_number(name) is not None:
        found.plan_parts.append(name)
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
    expected = pc.binary_join_element_wise(plan.ids, text(suffix), text(""))
    if expected.equals(listing.names):
        # All are there and nothing else, in the same order, as in nearly all reruns: told without a hash table, which
        # takes as much memory as both.
        return OutputMatch(np.ones(len(plan), dtype=bool), np.arange(len(plan), dtype=np.int32), [])
    position = numbers(pc.fill_null(pc.index_in(expected, value_set=listing.names), -1))
    used = np.zeros(len(listing.names), dtype=bool)
    used[position[position >= 0]] = True
    for other in layout.COMPANIONS.get(suffix, ()):
        beside = pc.binary_join_element_wise(plan.ids, text(other), text(""))
        used |= numbers(pc.is_in(listing.names, value_set=beside))
    if suffix == ".mds":
        used |= numbers(pc.equal(listing.names, text(layout.INDEX)))
    foreign = [name for name in listing.names.filter(pa.array(~used)).to_pylist() if not layout.is_hidden(name)]
    return OutputMatch(position >= 0, position, foreign)
