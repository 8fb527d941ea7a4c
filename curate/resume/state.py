"""The state of a run as values: what it found, and what it has yet to write. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.dataclass import dataclass, field
from curate.ledger import layout
from curate.ledger.fencing import FencedStore
from curate.ledger.ledger import Ledger
from curate.ledger.listing import OutputListing, OutputMatch
from curate.ledger.manifest import InputDiff, ShardPlan, diff_inputs
from curate.ledger.packed import positions
from curate.objects.samples import shard_samples
from curate.resume.history import History, JobOutputs
from curate.resume.options import RunOptions
from curate.sources.listing import Inputs
from curate.sources.upstream import Hole
from curate.stage.job_record import JobRecord
from curate.stage.stage import Stage
from curate.storage.protocol import Object
from curate.stores.open import Stores


@dataclass
class PendingWrites:
    """What a run has to write, or remove, before its first task."""

    remove: list[Object] | None = None
    """Outputs to remove, and with them the whole ledger; None: nothing is overwritten."""
    stages: set[str] = field(default_factory=set)
    """Keys of the stages that go with them: what is overwritten may have some, where what takes its place has none."""
    job: dict[str, Any] | None = None
    accepted: str = ""
    """Code digest that was accepted."""
    part: Any = None
    """Rows to append to the plan."""
    left: list[Object] = field(default_factory=list)
    """What is there of shards that earlier runs took out of the job: they were killed."""
    dropped: Any = None
    """Rows to append to the plan, before all others, that take shards out of the job."""
    dropped_outputs: list[Object] = field(default_factory=list)
    """What was made of those."""
    split_anew: int = 0
    """How many of those shards are parts of inputs that changed: others take their places."""
    not_split: Any = field(default_factory=lambda: pa.chunked_array([], pa.string()))
    """The inputs that changed and would be split anew, but this run was not asked for that."""
    foreign: list[Object] = field(default_factory=list)
    """Outputs of another identity, or input, under this job's names, to be done again."""
    stale: list[Object] = field(default_factory=list)
    """Outputs whose input changed, to be replaced because that was asked for: each once the new one is whole."""
    stale_sides: list[Object] = field(default_factory=list)
    """The extra outputs of those."""
    renewed: Any = None
    """Rows of the plan with the new inputs of those shards, to be appended once they are done."""
    made_elsewhere: set[int] = field(default_factory=set)
    """Ranks of those that another driver has made meanwhile, maybe of other inputs."""

    @property
    def removed_inputs(self) -> int:
        """Shards that are taken out because their input is no longer given."""
        return 0 if self.dropped is None else len(self.dropped) - self.split_anew

    def __bool__(self) -> bool:
        some = self.job or self.accepted or self.left or self.foreign or self.stale
        return bool(some) or any(one is not None for one in (self.remove, self.dropped, self.part))


EXAMPLES = 5
"""How many names a message shows of a longer list."""


@dataclass(frozen=True, slots=True)
class OutputSnapshot:
    """A listing of an output that was just made."""

    moment: tuple[float, float]
    """Before it was: a `moment` of a `FencedStore`."""
    listing: OutputListing
    stores: Stores
    """Those that it was made with, whose calls are to be counted."""


class WorkLeftError(Exception):
    """Something is to be done after all."""


@dataclass
class Prepared:
    """A run that may start: what is there and what is left to do."""

    stage: Stage
    """The stage; what it reads has its schemas, if there is something to do."""
    output: str
    run_id: str
    stores: Stores
    ledger: Ledger
    listing: OutputListing
    inputs: Inputs
    plan: ShardPlan
    job: dict[str, Any]
    """`job.json`, as it is or is to be."""
    owned: FencedStore
    """The store of the ledger."""
    run_ids: frozenset[str]
    """Runs that the output knew before this one."""
    uncommitted: PendingWrites
    history: History = field(default_factory=History)
    scope: Any = None
    """Ranks of the shards that this run was asked for, in plan order."""
    holes: Sequence[Hole] = ()
    """What was missing of the inputs, which may be incomplete."""
    beside_redo: bool = False
    """Whether another driver replaces outputs, and rows set aside that no output names were left to it."""
    unsaid: bool = False
    """Whether this run replaced outputs beside another driver, and is to look once more at all there is."""

    def planned(self, plan: ShardPlan, inputs: Inputs | None = None) -> None:
        """Takes a plan, and `inputs`, in the place of those that there are, which are then compared anew."""
        self.plan, self.inputs = plan, inputs or self.inputs
        for name in ("growth", "matched"):
            self.__dict__.pop(name, None)

    def inputs_may_be_behind(self, options: RunOptions) -> bool:
        """Returns whether inputs are to be listed again before this run acts on how the plan differs from them.

        The plan is read after they were listed. What another driver has planned in between came, or changed, since the
        listing: it seems removed, or changed; and what that one has taken out seems new.
        """
        plan, growth = self.plan, self.growth
        other, new = growth.changed | growth.missing, bool(growth.new.any())
        if not (options.drop_removed or options.redo_stale or options.retry_failed or new):
            other &= ~self.matched.done
        if other.any() or not new or plan.written is None:
            return bool(other.any())
        names = self.inputs.table.filter(growth.new).batches("uri")
        return bool((positions((block[0] for block in names), plan.written, "uri") >= 0).any())

    def forget_inputs(self) -> None:
        """Lets go of what only planning needs, 30 bytes a shard: nobody may ask for it from now on."""
        self.__dict__.pop("growth", None)
        del self.inputs

    @cached_property
    def growth(self) -> InputDiff:
        """The plan beside the inputs."""
        return diff_inputs(self.plan, self.inputs.table)

    @cached_property
    def matched(self) -> OutputMatch:
        """The plan beside the outputs."""
        return self.there.matched()

    @property
    def record(self) -> JobRecord:
        """Which job it is."""
        return self.stage.record

    @property
    def there(self) -> JobOutputs:
        """What there is of the job."""
        return JobOutputs(self.record, self.ledger, self.listing, self.plan)

    @cached_property
    def over(self) -> dict[str, str]:
        """Generations of the outputs that new ones take the places of, by URI."""
        return {one.uri: one.generation for one in (*self.uncommitted.stale, *self.uncommitted.stale_sides)}

    @cached_property
    def sampled(self) -> frozenset[int]:
        """Ranks of shards to run of which an earlier run has left samples of dropped rows."""
        if not len(self.listing.samples):
            return frozenset()
        found: set[int] = set()
        for block in self.plan.blocks(self.todo, "id"):
            names = [layout.samples(shard_samples(name)) for name in block[0].to_pylist()]
            there = set(self.listing.samples_named(names))
            left = [id for id, name in zip(block[0].to_pylist(), names, strict=True) if name in there]
            found.update(self.plan.ranks(pa.array(left, pa.string())).tolist())
        return frozenset(found)

    @property
    def incomplete_input(self) -> tuple[Mapping[str, Any], ...]:
        """What was missing of the inputs, as the record of the run says it."""
        if self.history.summarised:
            return self.history.incomplete_input
        return tuple(one.as_dict() for one in self.holes) or self.stage.holes

    @property
    def missing_inputs(self) -> tuple[int, int]:
        """How many inputs of earlier runs are not among those of this one, and their shards."""
        missing = self.growth.missing
        if not missing.any():
            return 0, 0
        gone = self.plan.table.take(np.flatnonzero(missing), "uri")["uri"]
        return pc.count_distinct(gone).as_py(), len(gone)

    @property
    def todo(self) -> Any:
        """Ranks of the shards to run."""
        return self.scope[~self.matched.done[self.scope]]

    @property
    def has_work(self) -> bool:
        """Whether there is something to do or to remove; then another driver at work is in its way."""
        return bool(len(self.todo) or self.uncommitted)

    @property
    def stale(self) -> Any:
        """Ranks of done shards whose input is another object now."""
        return np.flatnonzero(self.growth.changed & self.matched.done)
