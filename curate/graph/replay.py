"""Runs one shard of a job again, in this process, for debugging. Publishes nothing unless asked.

The very program that workers run, over a throw-away output in a temporary folder: what it publishes there, quarantine
and log too, goes with the folder. Schemas are those that the ledger holds.
"""

from __future__ import annotations

import itertools
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import orjson
import pyarrow as pa

from curate.clock import Clock
from curate.dataclass import dataclass, replace
from curate.errors import ConfigError, ObjectNotFound
from curate.ledger import layout
from curate.ledger.fencing import FencedStore
from curate.ledger.run_log import new_run_id
from curate.ledger.side_outputs import schema_name
from curate.observe.failures import JobFailures
from curate.observe.preview import preview
from curate.pipeline.classify import failure_of, is_users, users_frames
from curate.pipeline.meters import Meter
from curate.pipeline.pipeline import ShardContext
from curate.pipeline.retry_later import Busy
from curate.pipeline.shard_books import ShardBooks
from curate.resume.identity import refuse_other_job
from curate.resume.schemas import Schemas
from curate.sources.protocol import RowSource
from curate.stage.job_record import JobRecord
from curate.stage.messages import Probe, TaskInput
from curate.stage.operator import StageOperator
from curate.stage.program import StageProgram
from curate.stage.stage import Stage
from curate.storage.protocol import Object
from curate.stores.open import open_store
from curate.tasks.failure import FailureKind, ShardRecord
from curate.tasks.shard import Shard, SliceKind
from curate.units import shell_word

LATE_ATTEMPT = 2
"""An attempt after the first looks whether the output exists before it computes anything."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of a shard."""

    shard: Shard
    record: ShardRecord
    rows: Sequence[Mapping[str, Any]]
    """The first rows of the result, as JSON values."""
    published: bool
    """Whether the output exists because of this: False also where it existed before."""
    error: BaseException | None
    """What user code raised, if that is what the shard failed of."""
    notes: tuple[str, ...] = ()
    """What to know about it beside the result."""


def replay(
    found: JobFailures, stage: Stage, shard_id: str, clock: Clock, *, publish: bool, whole: bool, rows: int
) -> Replayed:
    """Runs one shard of the job whose ledger was `found`; `rows` is the number of rows to return.

    `whole`: as a run's last try of it, which may set rows aside for which the job raises. Raises ConfigError for an
    unknown shard, and with `publish` for a job of another identity or code, and for an input that was replaced;
    JobReplacedError if the job was overwritten meanwhile.
    """
    rank, shard = found.shard(shard_id)
    # What a stage reads that comes after another one is there as it was planned, or not at all.
    shard, notes = _as_it_is_now(shard) if stage.rows.grows else (shard, [])
    if publish:
        _refuse_to_publish(found, stage.record, shard_id, notes)
    elif found.job["fingerprint"] != stage.record.fingerprint:
        notes.append("the job's code or parameters are not those of the output: the result may differ from a run's")
    operator: Any = _Watched(stage.operator)
    with ExitStack() as cleanup:
        run_id = new_run_id(clock.now())
        if publish:
            output, scratch = found.ledger.root, found.ledger.uri(f"{layout.TMP}{run_id}")
        else:
            output = cleanup.enter_context(tempfile.TemporaryDirectory(prefix="curate-replay-"))
            scratch = f"{output}/{layout.TMP}{run_id}"
        # Nobody waits for a debugger's user: no time limit here.
        tasks = replace(stage.tasks, task_timeout_s=None)
        tried = replace(stage, tasks=tasks, operator=operator, rows=_with_schema(found, stage.rows, shard))
        fence = _fence(found, clock) if publish else None
        program = StageProgram(tried, run_id, output, scratch, fence=fence)
        given = stage.rows.given(shard.uri)
        schemas = _output_schemas(found, stage.record, program, Probe(shard, given=given), publish=publish)
        attempt = LATE_ATTEMPT if publish else 1
        piece = TaskInput(((rank, shard),), attempt, schemas.main, last=whole, sides=schemas.sides, given=(given,))
        record = _run(program, piece)
        if fence is not None:
            fence.raise_if_lost()
        uri = f"{output}/{shard.id}{stage.record.suffix}"
        done = record.failure is None
        first = _first_rows(uri, record, stage.record, rows) if done else ()
    error = None if record.failure is None else operator.raised
    return Replayed(shard, record, first, publish and done and not record.existed, error, tuple(notes))


def _as_it_is_now(shard: Shard) -> tuple[Shard, list[str]]:
    """Returns the shard over the object that is there now: a mended input is to be tried before it is run."""
    try:
        now = open_store(shard.uri).stat(shard.uri)
    except ObjectNotFound:
        return shard, []  # it fails for that, and says so
    if now.generation == shard.generation or shard.kind is not SliceKind.WHOLE:
        return shard, []
    changed = replace(shard, size_bytes=now.size, object_bytes=now.size, generation=now.generation)
    return changed, ["the input was replaced after the plan was made: this is what it is now"]


def _refuse_to_publish(found: JobFailures, job: JobRecord, shard_id: str, notes: list[str]) -> None:
    refuse_other_job(job, found.ledger, found.job)
    recorded = found.job["code_digest"]
    if recorded and recorded != job.code_digest and job.code_digest not in found.listing.accepted:
        raise ConfigError(
            f"the code of {job.name!r} changed under the same version (digest {recorded} there, {job.code_digest} "
            f"here); accept that for all failed shards with: curate retry {shell_word(found.ledger.root)} "
            "--accept-code-change"
        )
    if notes:
        raise ConfigError(
            f"the input of {shard_id!r} was replaced after the plan was made, which a run writes down first; "
            f"publish it with: curate retry {shell_word(found.ledger.root)}"
        )


def _fence(found: JobFailures, clock: Clock) -> FencedStore:
    """Returns what publishes nothing once the job is another run's: nobody sees that a shard is replayed, and it may
    have been overwritten meanwhile, with other inputs."""
    fence = FencedStore(found.ledger.store, found.ledger.root, clock, beats=False)
    fence.claim(found.listing.job_generation, fence.moment())
    return fence


def _with_schema(found: JobFailures, rows: RowSource, shard: Shard) -> RowSource:
    """Returns what is read with the schema that the ledger has for a shard."""
    encoding = rows.encoding(shard.uri)
    if encoding is None:
        return rows
    format = encoding.format.value
    schema = found.ledger.read_schema(f"input-{format}")
    if schema is None:
        raise ConfigError(f"{found.ledger.root} holds no schema for {format} inputs yet; run the job first")
    return rows.holding({format: schema})


def _output_schemas(
    found: JobFailures, job: JobRecord, program: StageProgram, probe: Probe, *, publish: bool
) -> Schemas:
    """Returns the schemas of the outputs. Where no run could derive one: what this shard gives, if it is only shown."""

    def held(declared: Any, name: str) -> Any:
        return found.ledger.read_schema(name) if declared is None else declared

    main = held(job.output_schema, "output")
    sides = {name: held(declared, schema_name(name)) for name, declared in sorted(job.sides.items())}
    if main is not None and None not in sides.values():
        return Schemas(main, sides)
    if publish:
        return Schemas()
    unknown = tuple(name for name, schema in sides.items() if schema is None)
    try:
        shown = next(iter(program.run(replace(probe, sides=unknown))))
    except SystemExit:
        # The shard is told of it, which ends in the same place.
        return Schemas()
    for name in unknown:
        schema = shown.sides.get(name)
        sides[name] = pa.schema([]) if schema is None else schema
    return Schemas(shown.schema if main is None else main, sides)


def _run(program: StageProgram, piece: TaskInput) -> ShardRecord:
    rank, _ = piece.shards[0]
    try:
        record = next(one for one in program.run(piece) if isinstance(one, ShardRecord))
    except SystemExit as error:
        # On Ray it is the worker's process that ends.
        return ShardRecord(rank, 0.0, replace(failure_of(error), kind=FailureKind.CRASHED))
    return record


def _first_rows(uri: str, record: ShardRecord, job: JobRecord, rows: int) -> Sequence[Mapping[str, Any]]:
    object = Object(uri, record.bytes_out, record.generation)
    lines = preview(open_store(uri), object, job.format, job.codec)
    return [orjson.loads(line) for line in itertools.islice(lines, rows)]


class _Watched:
    """An operator that remembers what it raised last."""

    def __init__(self, inner: StageOperator) -> None:
        self._inner = inner
        self.raised: BaseException | None = None
        self._unread: BaseException | None = None
        """What reading raised: that is not the operator's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def setup(self) -> None:
        """Sets the operator up."""
        try:
            self._inner.setup()
        except Exception as error:
            self.raised = error
            raise

    def apply(self, batch: Any, tally: ShardBooks) -> Iterator[Any]:
        """Yields what the operator makes of an empty table."""
        yield from self._watched(self._inner.apply(batch, tally))

    def stream(
        self, batches: Iterator[Any], tally: ShardBooks, how: ShardContext, meters: Sequence[Meter] = ()
    ) -> Iterator[Any]:
        """Yields what the operator makes of batches."""
        yield from self._watched(self._inner.stream(self._read(batches), tally, how, meters))

    def _watched(self, tables: Iterator[Any]) -> Iterator[Any]:
        try:
            for table in tables:
                if isinstance(table, Busy):
                    # Raised further up if the shard is handed back for it.
                    self.raised = table.error
                yield table
        except (Exception, SystemExit) as error:
            if error is not self._unread:
                self.raised = error
            raise

    def _read(self, batches: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from batches
        except Exception as error:
            self._unread = error
            raise


# What is shown of an exception


def users_traceback(error: BaseException) -> str:
    """Returns the traceback of an exception from the first frame in user code on: what curate did before is no news."""
    return "".join(traceback.format_exception(type(error), error, users_frames(error) or error.__traceback__))


def frames_below(trace: TracebackType | None) -> int:
    """Returns how many frames are below the innermost one in user code: a debugger goes up by that many. 0 if none."""
    users = [is_users(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(trace)]
    return users[::-1].index(True) if True in users else 0
