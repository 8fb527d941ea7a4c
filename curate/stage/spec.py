"""What a run is given: the stage to run, and how. Frozen values that jobs and datasets both fill in."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from curate.exchange.protocol import Exchange
from curate.exchange.run_file import RunSettings
from curate.formats.record import OutputFormat
from curate.formats.write.writer import suffix
from curate.ledger.stages import StageReport
from curate.runtime.protocol import Resources
from curate.sources.inputs import FileRows
from curate.sources.protocol import RowSource
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
        ...

    @property
    def output(self) -> str:
        """Where the job writes, and must not read."""
        ...

    @property
    def allow_incomplete_input(self) -> bool:
        """Whether inputs of which some are missing will do."""
        ...


@dataclass(frozen=True, slots=True)
class Upstream:
    """A stage that is run before another one."""

    spec: StageSpec
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
class StageSpec:
    """A stage over files, from its inputs to one output an input shard."""

    name: str
    identity: Mapping[str, Any]
    """Everything that decides the bytes of an output but the inputs: JSON values only."""
    code_digest: str
    parameters: Mapping[str, Any]
    """All parameters as they were given, for the reader of the ledger; secrets by name."""
    operator: StageOperator
    output_schema: Any
    """The schema of the outputs; None: derived from the first rows."""
    batch_rows: int
    shard_bytes: int
    format: OutputFormat
    codec: str
    resources: Resources = field(default_factory=Resources)
    max_tasks: int | None = None
    max_bad_rows: str | None = None
    task_timeout_s: float | None = None
    """Seconds after which a shard that has not ended is cancelled; None: never."""
    quarantine_errors: bool = False
    """Whether a row that alone makes `process` raise, on a shard's last try, is quarantined."""
    origin: Mapping[str, Any] = field(default_factory=dict)
    """Where the job comes from, for who makes it again: script, class, settings that were given."""

    memory_budget: int | None = None
    """Bytes of batches that all tasks have on their way to and from pools, about; None: `MEMORY_BUDGET`."""
    rows: RowSource = field(default_factory=FileRows)
    """What is read: the files that a run is given, or what it consists of itself; then a run is given none."""
    sides: Mapping[str, Any] = field(default_factory=dict)
    """Schemas of the extra outputs by name, which are part of the identity; None: derived from the first rows."""
    limit: FirstRows | None = None
    """The rows that are written, where not all are. How far into its shards they reach is counted when the job begins,
    and kept in `job.json`."""
    runs: RunSettings | None = None
    """How its outputs are sorted, if they are run files."""
    inputs: tuple[str, ...] = ()
    """The files that it reads, or its checkpoint, as they were named; empty: what the run is given, or `rows`."""
    before: tuple[Upstream, ...] = ()
    """The stages that are run first, and whose outputs this one reads: run files, or those of a checkpoint as files."""
    exchange: ExchangeRead | None = None
    """The exchange that it reads; of one that moves no row, `rows` say where all of them are."""
    seeded: Callable[[int], StageSpec] | None = None
    """Returns the stage with a seed, where it has none of its own: one is chosen by its first run, and kept."""
    earlier: UpstreamBooks | None = None
    """What happened to its rows in the stages before it, once these are done."""
    reports: tuple[StageReport, ...] = ()
    """What is known of the job's stages when its last one, which is the last of them, begins."""
    holes: tuple[Mapping[str, Any], ...] = ()
    """What was missing of its inputs when they were listed, which may be incomplete (see `curate.sources.upstream`)."""
    from_inputs: Callable[[RunRequest], StageSpec] | None = None
    """Returns the stage as it is for the inputs of a run, where these decide what stages there are."""

    @property
    def fingerprint(self) -> str:
        """Returns 16 hex digits of the identity: the same for the same bytes out, whoever runs it."""
        canonical = orjson.dumps(dict(self.identity), option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(canonical).hexdigest()[:16]

    @property
    def needs_all_inputs(self) -> bool:
        """Whether each output may depend on all inputs, which are frozen when the job begins: it reads an exchange, or
        goes by marks."""
        return self.exchange is not None or any(one.marks is not None for one in self.before)

    def in_worker(self) -> StageSpec:
        """Returns what workers are given of it: nothing of other stages, nor of what is only written down."""
        return replace(
            self,
            parameters={},
            origin={},
            limit=None,
            before=(),
            exchange=None,
            seeded=None,
            earlier=None,
            reports=(),
            holes=(),
            from_inputs=None,
        )

    @property
    def suffix(self) -> str:
        """Returns the suffix of output names."""
        return suffix(self.format, self.codec)
