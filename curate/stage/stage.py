"""The values that a run needs: a stage, and how its tasks run. Jobs and datasets both make them.

Three values, by who uses them: a `JobRecord` is what the ledger keeps, and its outputs are told by (`job_record`);
`TaskSettings` say how tasks run; the rest of a stage is what it reads, what it does and where its rows go. Format and
codec are of the record: whoever finds an output has to know how it is written, and knows of no task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from curate.dataclass import dataclass, field, replace
from curate.exchange.protocol import Exchange
from curate.exchange.run_file import RunSettings
from curate.ledger.stages import StageReport
from curate.runtime.protocol import Resources
from curate.sources.inputs import FileRows
from curate.sources.protocol import RowSource
from curate.stage.job_record import JobRecord
from curate.stage.operator import StageOperator
from curate.tasks.books import UpstreamBooks
from curate.units import MIB

if TYPE_CHECKING:
    from curate.stage.fusion import FirstRows


MEMORY_BUDGET = 512 * MIB
"""Bytes of blocks that a run has on their way at a time, where nothing else is said."""


class RunRequest(Protocol):
    """What a run is asked that decides what stages there are, where the inputs do."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Paths, URIs and patterns, as they were given."""

    @property
    def output(self) -> str:
        """Where the job writes, and must not read."""

    @property
    def allow_incomplete_input(self) -> bool:
        """Whether inputs of which some are missing will do."""


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """How the tasks of a stage run: how much one takes at a time, what it holds, and what is done with bad rows."""

    batch_rows: int
    shard_bytes: int
    resources: Resources = field(default_factory=Resources)
    max_tasks: int | None = None
    memory_budget: int | None = None
    """Bytes of batches that all tasks have on their way to and from pools, about; None: `MEMORY_BUDGET`."""
    max_bad_rows: str | None = None
    quarantine_errors: bool = False
    """Whether a row that alone makes `process` raise, on a shard's last try, is quarantined."""
    task_timeout_s: float | None = None
    """Seconds after which a shard that has not ended is cancelled; None: never."""

    def needing(self, memory_bytes: int) -> TaskSettings:
        """Returns these for tasks that hold at least that much memory."""
        most = max(self.resources.memory or 0, memory_bytes) or None
        return replace(self, resources=replace(self.resources, memory=most))


@dataclass(frozen=True, slots=True)
class Upstream:
    """A stage that is run before another one."""

    stage: Stage
    path: str | None = None
    """Its output prefix, which outlives the job: a checkpoint. None: one among the job's own stages."""
    listing: Any = None
    """The files that a checkpoint is made of, once they were listed: uri, size and generation."""
    side: int = 0
    """The input of the exchange that its rows are of: the first, the second, ..."""
    marks: int | None = None
    """The step that goes by what it tells of rows that are read elsewhere: the first that goes by marks, the second,
    ...; None: its own rows go on."""


@dataclass(frozen=True, slots=True)
class ExchangeRead:
    """An exchange as it is read: ranges of the run files that stages before have written."""

    how: Exchange
    schema: Any
    """The schema of what comes out; None: only the rows tell."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage over files, from its inputs to one output an input shard."""

    record: JobRecord
    tasks: TaskSettings
    operator: StageOperator
    rows: RowSource = field(default_factory=FileRows)
    """What is read: the files that a run is given, or what it consists of itself; then a run is given none."""
    runs: RunSettings | None = None
    """How its outputs are sorted, if they are run files."""
    limit: FirstRows | None = None
    """The rows that are written, where not all are. How far into its shards they reach is counted when the job begins,
    and kept in `job.json`."""
    inputs: tuple[str, ...] = ()
    """The files that it reads, or its checkpoint, as they were named; empty: what the run is given, or `rows`."""
    before: tuple[Upstream, ...] = ()
    """The stages that are run first, and whose outputs this one reads: run files, or those of a checkpoint as files."""
    exchange: ExchangeRead | None = None
    """The exchange that it reads; of one that moves no row, `rows` say where all of them are."""
    holes: tuple[Mapping[str, Any], ...] = ()
    """What was missing of its inputs when they were listed, which may be incomplete (see `curate.sources.upstream`)."""
    extended: Callable[[tuple[tuple[int, int], ...]], Stage] | None = None
    """Of a job that takes inputs behind those that it began with, since they leave its outputs as they are: returns the
    stage with its files in these segments, of each of which run files are made apart. None: it takes none."""
    seeded: Callable[[int], Stage] | None = None
    """Returns the stage with a seed, where it has none of its own: one is chosen by its first run, and kept."""
    from_inputs: Callable[[RunRequest], Stage] | None = None
    """Returns the stage as it is for the inputs of a run, where these decide what stages there are."""
    earlier: UpstreamBooks | None = None
    """What happened to its rows in the stages before it, once these are done."""
    unwritten: tuple[str, ...] = ()
    """What steps before it would list in extra outputs, but for an exchange behind them: one sentence each."""
    reports: tuple[StageReport, ...] = ()
    """What is known of the job's stages when its last one, which is the last of them, begins."""
    begun: str = ""
    """Of the last stage: the generation of the `job.json` that its run began with, or adopted. Its outputs are not for
    another one, which may have another seed."""

    @property
    def needs_all_inputs(self) -> bool:
        """Whether each output may depend on all inputs, which are frozen when the job begins: it reads an exchange, or
        goes by marks."""
        return self.exchange is not None or any(one.marks is not None for one in self.before)

    def in_worker(self) -> Stage:
        """Returns what workers are given of it: nothing of other stages, nor of what is only written down."""
        record = replace(self.record, parameters={}, origin={})
        return Stage(record, self.tasks, self.operator, self.rows, self.runs)
