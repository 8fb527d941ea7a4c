"""What a page of a job says: plain values, all texts of it short and fit for a screen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from curate.dataclass import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Head:
    """Which job it is, and how far it is."""

    job: str
    output: str
    state: str
    says: str
    """The state in words, with what to do next."""
    shards: Mapping[str, int] = field(default_factory=dict)
    """Numbers of shards: total, done, running, pending, failed, stale."""
    stage: str = ""
    """The stage that these are of, in a job of several that is not complete."""
    rows: Mapping[str, Any] = field(default_factory=dict)
    counters: Mapping[str, Any] = field(default_factory=dict)
    bytes_in: int = 0
    """Bytes of the inputs of shards that are done."""
    bytes_total: int = 0
    bytes_out: int = 0
    """Bytes of the outputs that exist, without extra outputs."""
    rate: Mapping[str, float] = field(default_factory=dict)
    eta_range_s: tuple[float, float] | None = None
    waits: str = ""
    """What the run waits for."""
    identity: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StageBooks:
    """What happened to the rows of one stage: in + created = out + dropped + quarantined."""

    key: str
    name: str
    reads: tuple[str, ...]
    """Keys of the stages that it reads."""
    state: str
    shards: int
    done: int
    failed: int
    rows_in: int
    created: int
    rows_out: int
    dropped: tuple[tuple[str, int], ...]
    """Rows by reason, most first; those beyond the first as "other reasons"."""
    quarantined: int
    bytes_in: int
    bytes_out: int
    seconds: float | None
    """How long the newest run worked on it; None if that is not known."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that was set aside."""

    shard: str
    line: int
    reason: str
    row: str


@dataclass(frozen=True, slots=True)
class StageSpan:
    """When the attempts at the shards of a stage were at work, in seconds since 1970."""

    name: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class SampledRow:
    """A row that was dropped."""

    shard: str
    row: str
    cut: str = ""
    """How long values are that are cut, and how many columns are left out."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """Some of the rows that a stage dropped for a reason."""

    stage: str
    """The key of the stage."""
    reason: str
    rows: tuple[SampledRow, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Slots in use, and what was done, over equal spans of time."""

    start: float
    """In seconds since 1970."""
    span_s: float
    """Seconds of one span."""
    runs: tuple[str, ...]
    """The runs that were at work in this time."""
    slots: tuple[float, ...]
    """Shards at work at once, on average."""
    bytes_per_s: tuple[float, ...]
    rows_per_s: tuple[float, ...]
    retried: tuple[int, ...]
    """Tries that failed and were made again."""
    failed: tuple[int, ...]
    lost: tuple[int, ...]
    """Tries whose node was lost."""
    stages: tuple[StageSpan, ...] = ()
    """Those of a job of several that were at work in this time, in their order."""


@dataclass(frozen=True, slots=True)
class Strip:
    """The shards in the order of the plan, one a cell, or several where there are many."""

    per_cell: int
    total: int
    counts: Mapping[str, int]
    """Shards by state."""
    cells: tuple[str, ...]
    """One letter a shard, if a cell is one: see `LETTERS`."""
    bins: tuple[tuple[int, ...], ...]
    """Otherwise, for each cell, the number of shards of each state, in the order of `LETTERS`."""


LETTERS = {"done": "d", "retried": "r", "failed": "f", "pending": "p"}
"""States of a shard and their letters. Retried: done, and not by the first try."""


@dataclass(frozen=True, slots=True)
class LongShard:
    """A shard that took long."""

    shard: str
    seconds: float
    """Of all its tries together."""
    tries: int
    bytes: int
    state: str
    why: str


@dataclass(frozen=True, slots=True)
class Operator:
    """What an operator of a pipeline did."""

    name: str
    rows_in: int
    rows_out: int
    seconds: float
    cpu_seconds: float
    share: float
    """Of the seconds of all operators."""
    bytes_out: int = 0
    """Of the rows that it gave, in memory."""
    largest_bytes: int = 0
    """Of the largest batch that it gave."""
    peak_bytes: int = 0
    """The most memory of a process that it ran in, with all else there; 0 if that is not known."""
    actors: int | None = None
    busy: float | None = None
    limits: bool = False
    """Whether it took the most time."""


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Shards that failed alike."""

    error: str
    frame: str
    stage: str
    shards: int
    tries: int
    kinds: str
    first: float
    last: float
    shard: str
    """One of them; of it are the rest."""
    input: str
    where: str
    traceback: str
    commands: tuple[str, ...]
    """What shows every try; of a job that its ledger can make again, also what runs it here, and what retries."""


@dataclass(frozen=True, slots=True)
class Retried:
    """Shards that are tried again now, for one reason."""

    error: str
    shards: int
    shard: str


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A job whose output is read, or that reads the output."""

    output: str
    job: str
    state: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Lineage:
    """What the output was made from."""

    given: tuple[str, ...]
    """Inputs, as the newest run was given them."""
    inputs: int
    """Files that the job reads."""
    bytes: int
    """Of these files."""
    examples: tuple[str, ...]
    upstream: tuple[Neighbour, ...]
    downstream: tuple[Neighbour, ...]
    """Known jobs that read the output."""
    remarks: tuple[str, ...]
    """What is stale, missing or incomplete."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the job."""

    run_id: str
    state: str
    started: float
    updated: float
    who: str
    where: str
    command: str
    cwd: str
    backend: str
    part: str
    versions: str
    inputs: tuple[str, ...]
    done: int
    tries: int
    calls: Mapping[str, int]
    ended_by: str
    """The error that ended it, where no shard did."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What the job has cost so far."""

    slot_hours: float
    slots: str
    """The same in words."""
    requests: Mapping[str, int]
    """Storage calls by kind."""
    money: float | None
    """None where no prices are given."""
    currency: str
    lines: tuple[tuple[str, str, str], ...]
    """What was paid for: what, how much of it, and its price where there is one."""
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """All that a page says."""

    made: float
    """When it was made, in seconds since 1970."""
    head: Head
    notes: tuple[str, ...] = ()
    """What could not be read, and is not shown."""
    books: tuple[StageBooks, ...] = ()
    sampled: tuple[Sampled, ...] = ()
    bad_rows: tuple[BadRow, ...] = ()
    """Some of the rows in quarantine."""
    time: Timeline | None = None
    shards: Strip | None = None
    longest: tuple[LongShard, ...] = ()
    operators: tuple[Operator, ...] = ()
    failures: tuple[FailureGroup, ...] = ()
    more_failures: int = 0
    """Groups beyond those."""
    retrying: tuple[Retried, ...] = ()
    lineage: Lineage | None = None
    runs: tuple[Run, ...] = ()
    earlier_runs: int = 0
    costs: Costs | None = None

    def as_dict(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return asdict(self)
