"""Derives the schemas of a job's outputs from the first rows of its plan, if the job declares none. Decided once.

It samples the first shards one after the other; usually the first is enough. If they have no rows, whole shards run,
several at a time, until one has: the first rows decide, wherever they are. Answers count in the order of the plan. Only
if there are no rows at all, an empty table is processed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from functools import cache
from typing import Any

import pyarrow as pa

from curate.arrow.unknown import is_of_no_rows
from curate.clock import Clock
from curate.dataclass import dataclass, field, replace
from curate.errors import ConfigError, CurateError
from curate.ledger.ledger import Ledger
from curate.ledger.side_outputs import schema_name
from curate.log import bound, get_logger
from curate.pipeline.pipeline import Pipeline
from curate.resume.state import Prepared
from curate.runtime.protocol import Backend, Message, Started, TaskEnd, TaskFinished
from curate.sources.listing import Inputs
from curate.stage.messages import TYPE_PROBES, Probe, Probed
from curate.stage.stage import Stage
from curate.stores.open import Stores
from curate.tasks.dispatcher import POLL_S, Interrupts
from curate.tasks.policy import LONGEST_BACKOFF_S
from curate.tasks.setup import SetUp, SetupWatch


def with_input_schemas(
    stage: Stage, ledger: Ledger | None, inputs: Inputs, undone: Iterable[str], stores: Stores
) -> Stage:
    """Returns a stage whose source has the schemas of the inputs `undone`: as the ledger has them, else sampled from
    the first such inputs. Raises ConfigError for a missing column."""

    def stored(name: str) -> Any:
        return None if ledger is None else ledger.read_schema(f"input-{name}")

    with bound(job=stage.record.name):
        return replace(stage, rows=stage.rows.sampled(inputs, undone, stores.of, stored))


PROBES = 32
"""Shards of which a little is looked at, in plan order, before shards are looked at whole."""

MOST_WAITS = 20
"""Times that a run waits, in all, for what the code of its shards says is not there now; then it goes on without."""


@dataclass(frozen=True, slots=True)
class Schemas:
    """What a job's outputs are held to."""

    main: Any = None
    """None: no shard tells."""
    sides: Mapping[str, Any] = field(default_factory=dict)
    """Those of extra outputs by name, in the order of their names; all of them if there is a main one."""


def output_schemas(
    prepared: Prepared,
    backend: Backend,
    interrupts: Interrupts,
    clock: Clock,
    idle: Callable[[], None] = lambda: None,
    setup: SetupWatch | None = None,
) -> Schemas:
    """Returns the schemas of all outputs: as declared, as stored, else asked for and stored; none if no shard tells.

    An output without a row in any shard has no columns, unless an empty table tells them.

    A shard that takes longer than the job's `task_timeout_s` does not tell. One that needs what is not there now (it
    raised RetryLater, the store throttles, its node was lost) is asked again: were the next one asked instead, a
    service that is down for a minute would decide the schema, or fail the job for want of one. So is, once, a shard
    whose worker died.

    `idle` is called every half second while a shard is asked. `setup` hears of the workers that are set up for it.
    """
    job, ledger = prepared.record, prepared.ledger
    log = get_logger(job=job.name, run=prepared.run_id)
    unknown = tuple(sorted(name for name, schema in job.sides.items() if schema is None))
    asking = _Asking(backend, interrupts, clock, prepared.stage.tasks.task_timeout_s, log, idle, setup)

    walk = _Walk(prepared, asking, unknown, log)

    @cache
    def derived() -> Probed:
        return walk.found()

    def stored(name: str, side: str | None) -> Any:
        """Returns a schema as the ledger has it, else as it is derived, stored."""

        def make() -> Any:
            schema = derived().schema if side is None else derived().sides[side]
            # Nothing went wrong and there is no table: a job that only counts has outputs without columns.
            schema = pa.schema([]) if schema is None else schema
            if walk.read_nothing and (not len(schema) or _of_no_rows(prepared.stage)):
                # Inputs without a row tell nothing of those that may come: it does not hold for good.
                raise _NothingReadError(schema)
            return schema

        try:
            return ledger.create_schema(name, make)
        except _NothingReadError as error:
            return error.args[0]

    try:
        sides = {
            name: stored(schema_name(name), name) if schema is None else schema
            for name, schema in sorted(job.sides.items())
        }
        main = stored("output", None) if job.output_schema is None else job.output_schema
    except _InterruptedError:
        return Schemas()
    except _NoSchemaError as error:
        log.warning("no output schema could be derived from any shard", error=error.args[0])
        return Schemas()
    return Schemas(main, sides)


class _InterruptedError(Exception):
    """The run is to stop."""


class _NothingReadError(Exception):
    """No input has a row, so nothing is known of an output but what it is without one: the argument, its schema."""


class _NoSchemaError(Exception):
    """No shard told the schema of its output; the argument says why."""


class _Walk:
    """The way through a plan until schemas are known. Whatever the scope of a run is, it goes through all of the plan:
    a schema must not depend on --limit or --sample."""

    def __init__(self, prepared: Prepared, asking: _Asking, unknown: tuple[str, ...], log: Any) -> None:
        self._prepared = prepared
        self._asking = asking
        self._unknown = unknown
        self._log = log
        declared = prepared.record.output_schema
        declared = planned_schema(prepared.stage) if declared is None else declared
        self._known = Probed(declared, sides=dict.fromkeys(unknown))
        self._vacant = Probed(sides=dict.fromkeys(unknown))
        """What tables without rows say."""
        self._ended: set[int] = set()
        """Shards that were looked at to their end, or fail: to look again would tell no more."""
        self._problem = ""
        self._answered = False
        self._rows = 0

    @property
    def read_nothing(self) -> bool:
        """Whether rows are read of files, and none has one."""
        return bool(self._prepared.stage.rows.schemas) and not self._rows

    def found(self) -> Probed:
        """Returns what is known in the end. Raises _NoSchemaError, _InterruptedError."""
        self._first_ones()
        if not self._known.known:
            self._all_of_them()
        if not self._known.known:
            # There is no row. That an empty table is too much for it says nothing about what it makes of others.
            answer = self._one(Probe(None, self._unknown))
            for one in (self._vacant, answer):
                self._known = self._known.filled(replace(one, error=""))
        if self._problem and not self._known.known and (self._known.schema is None or not self._answered):
            raise _NoSchemaError(self._problem)
        return self._known

    def _first_ones(self) -> None:
        for number in range(min(PROBES, len(self._prepared.plan))):
            if self._known.typed or (self._known.known and number >= TYPE_PROBES):
                return
            self._take(number, self._one(self._probe(number)))

    def _all_of_them(self) -> None:
        left = [number for number in range(len(self._prepared.plan)) if number not in self._ended]
        if not left:
            return
        missing = [f"the extra output {name!r}" for name in self._unknown if self._known.sides.get(name) is None]
        self._log.warning(
            "the first shards return no rows to derive a schema from; whole shards are run until one does",
            of=", ".join([*(["the output"] if self._known.schema is None else []), *missing]),
            shards=len(left),
            next="declare the schema (output_schema, sides) to skip this",
        )
        typing = 0
        with closing(self._asking.answers((self._probe(one, whole=True) for one in left), many=True)) as answers:
            for number, answer in zip(left, answers, strict=False):
                self._take(number, answer)
                typing += self._known.known
                if self._known.typed or typing >= TYPE_PROBES:
                    return

    def _probe(self, number: int, *, whole: bool = False) -> Probe:
        stage, shard = self._prepared.stage, self._prepared.plan.shard(number)
        return Probe(shard, self._unknown, stage.rows.given(shard.uri), whole)

    def _one(self, probe: Probe) -> Probed:
        with closing(self._asking.answers([probe])) as answers:
            return _heard(next(answers))

    def _take(self, number: int, answer: Probed | None) -> None:
        answer = _heard(answer)
        self._known = self._known.filled(answer)
        self._vacant = self._vacant if answer.vacant is None else self._vacant.filled(answer.vacant)
        self._rows += answer.rows
        self._problem = answer.error or self._problem
        self._answered = self._answered or not answer.error
        if answer.ended or answer.error:
            self._ended.add(number)


def refuse_unfitting(stage: Stage) -> None:
    """Raises ConfigError where a step cannot take the rows that a stage reads: a filter by a column that is not there.

    Every row is read with the schemas that are known now, so no shard could be done.
    """
    if isinstance(stage.operator, Pipeline):
        for schema in stage.rows.row_schemas:
            try:
                if len(schema):
                    _through(stage.operator, schema)
            except ConfigError:
                # Where no row tells types, what matters is that the columns are there.
                if not _of_no_rows(stage):
                    raise
                _through(stage.operator, pa.schema([one.with_type(pa.string()) for one in schema]))
    if stage.runs is None:
        stage.record.refuse_unwritable(planned_schema(stage))


def _of_no_rows(stage: Stage) -> bool:
    """Returns whether no row told the schemas of what a stage reads."""
    return any(is_of_no_rows(schema) for schema in stage.rows.schemas.values())


def planned_schema(stage: Stage) -> Any:
    """Returns the schema of a stage's rows where its steps know what they make of those that it reads; None where only
    user functions tell."""
    found = stage.rows.row_schemas
    if not isinstance(stage.operator, Pipeline) or not found:
        return None
    try:
        found = [_through(stage.operator, schema) for schema in found]
    except CurateError:
        # Rows will say so, where it is known which ones.
        return None
    if None in found:
        return None
    told = [schema.remove_metadata() for schema in found]
    return told[0] if all(schema.equals(told[0]) and len(schema) for schema in told) else None


def _through(pipeline: Pipeline, schema: Any) -> Any:
    """Returns the schema of what steps make of rows, None where a step does not know. Raises CurateError for a step
    that cannot take them."""
    for step in pipeline.steps:
        if schema is not None:
            schema = getattr(step, "schema", lambda _: None)(schema)
    return schema


def _heard(answer: Probed | None) -> Probed:
    if answer is None:
        raise _InterruptedError
    return answer


@dataclass(slots=True)
class _Asked:
    """A probe on its way."""

    number: int
    """Its place among those that are asked."""
    probe: Probe
    answer: Probed = field(default_factory=lambda: Probed(error="the worker died"))
    until_s: float = math.inf
    """When it takes too long."""
    crashes_left: int = 1
    """How many more times a worker may die over it: it may have died of something else. None once it is cancelled."""
    died: bool = False
    """Whether a worker just died over it: a wait would bring nothing."""


class _Asking:
    """Asks shards; waits for what they say is not there now."""

    def __init__(
        self,
        backend: Backend,
        interrupts: Interrupts,
        clock: Clock,
        timeout_s: float | None,
        log: Any,
        idle: Callable[[], None] = lambda: None,
        setup: SetupWatch | None = None,
    ) -> None:
        self._setup = setup or SetupWatch(clock, done=True)
        self._backend = backend
        self._interrupts = interrupts
        self._clock = clock
        self._timeout_s = timeout_s
        self._log = log
        self._idle = idle
        self._asked = 0
        self._waits = 0

    def answers(self, probes: Iterable[Probe], *, many: bool = False) -> Generator[Probed | None]:
        """Yields what shards tell when all is there that they need, or in the end, in the order of `probes`; None, and
        no more, if the run is to stop. Asks one at a time, or as `many` as there are slots. Closing ends what runs.
        """
        left: Iterator[_Asked] = (_Asked(number, probe) for number, probe in enumerate(probes))
        running: dict[int, _Asked] = {}
        waiting: list[tuple[float, _Asked]] = []
        """What is asked again, and when."""
        found: dict[int, Probed] = {}
        first = 0
        try:
            while not self._stopped():
                while first in found:
                    yield found.pop(first)
                    first += 1
                now_s = self._clock.monotonic()
                for at in [one for one in waiting if one[0] <= now_s]:
                    waiting.remove(at)
                    self._launch(at[1], running)
                most = max(1, self._backend.slots()) if many else 1
                # What was told out of order is counted too, so that there is never more of it than is asked at a time.
                while len(running) + len(waiting) + len(found) < most and (one := next(left, None)) is not None:
                    self._launch(one, running)
                if not running and not waiting:
                    return
                if not running:
                    self._idle()
                    self._clock.sleep(min(POLL_S, max(0.0, min(at for at, _ in waiting) - now_s)))
                    continue
                for ended in self._ended(running):
                    if ended.answer.again_s is None or (self._waits >= MOST_WAITS and not ended.died):
                        found[ended.number] = ended.answer
                    else:
                        again = _Asked(ended.number, ended.probe, crashes_left=ended.crashes_left)
                        waiting.append((self._again_s(ended), again))
            yield None
        finally:
            if running:
                # A probe makes nothing that would be lost.
                self._backend.cancel()

    def _launch(self, one: _Asked, running: dict[int, _Asked]) -> None:
        self._asked += 1
        running[-self._asked] = one
        untried = not self._setup.done
        asked = replace(one.probe, says_ready=untried)
        self._backend.launch(-self._asked, asked, 1, announce=self._timeout_s is not None or untried)

    def _ended(self, running: dict[int, _Asked]) -> Iterator[_Asked]:
        """Yields those that have ended, after a while; they are taken out of `running`."""
        self._idle()
        self._setup.look()
        for news in self._backend.poll(POLL_S):
            one = running.get(news.task)
            if one is None:
                continue
            if isinstance(news, Message):
                self._hear(one, news)
            elif isinstance(news, TaskFinished):
                del running[news.task]
                ended = self._setup.ended(news.task, news)
                if ended.detail:
                    crashed = ended.end is TaskEnd.CRASHED
                    again = ended.end in (TaskEnd.LOST, TaskEnd.UNSERVED) or (crashed and one.crashes_left > 0)
                    one.crashes_left, one.died = one.crashes_left - crashed, crashed
                    one.answer = Probed(error=ended.detail, again_s=0.0 if again else None)
                yield one
            elif isinstance(news, Started):
                self._setup.started(news.task, f"in process {news.pid} on {news.node}")
                if self._timeout_s is not None:
                    one.until_s = self._clock.monotonic() + self._timeout_s
        for task, one in running.items():
            if self._clock.monotonic() > one.until_s:
                one.until_s, one.crashes_left = math.inf, 0
                self._backend.cancel(task)

    def _hear(self, one: _Asked, news: Message) -> None:
        for item in news.items:
            if isinstance(item, SetUp):
                self._setup.told(item)
            else:
                one.answer = item

    def _again_s(self, one: _Asked) -> float:
        """Returns when to ask again."""
        longest_s = 0.0 if one.died else LONGEST_BACKOFF_S
        wait_s = max(one.answer.again_s or 0.0, min(2.0**self._waits, longest_s))
        self._waits += not one.died
        self._log.warning(
            "the schema of some outputs could not be derived now; their shards are tried again",
            error=one.answer.error,
            wait_s=wait_s,
        )
        return self._clock.monotonic() + wait_s

    def _stopped(self) -> bool:
        return bool(self._interrupts.interrupts or self._interrupts.terminated)
