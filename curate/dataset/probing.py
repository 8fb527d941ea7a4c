"""The schemas of a job's outputs where the job declares none: what the first rows of its plan become. Decided once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pyarrow as pa

from curate.clock import Clock
from curate.dataset.prepare import Prepared
from curate.dataset.sides import schema_name
from curate.dataset.stage import Probe, Probed
from curate.log import get_logger
from curate.runtime.protocol import Backend, End, Ended, Message, Started
from curate.tasks.dispatcher import POLL_S, Interrupts
from curate.tasks.scheduler import LONGEST_BACKOFF_S
from curate.tasks.setup import SetUp, SetupWatch

PROBES = 32
"""Shards that are asked for their output's schema, in plan order, before the run goes on without."""
TYPE_PROBES = 8
"""Shards that are asked where only the type of a column is unknown, because it was null in all rows so far, or only the
schema of an extra output."""
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

    An extra output of which the first shards have no row has no columns: a shard that gives some fails, and says that
    the schema is to be declared.

    A shard that takes longer than the job's `task_timeout_s` does not tell. One that needs what is not there now (it
    raised RetryLater, the store throttles, its node was lost) is asked again: were the next one asked instead, a
    service that is down for a minute would decide the schema, or fail the job for want of one.

    `idle` is called every half second while a shard is asked. `setup` hears of the workers that are set up for it.
    """
    spec, ledger = prepared.spec, prepared.ledger
    problem = ""
    log = get_logger(job=spec.name, run=prepared.run_id)
    asking = _Asking(backend, interrupts, clock, spec.task_timeout_s, log, idle, setup)
    unknown = tuple(sorted(name for name, schema in spec.sides.items() if schema is None))

    @cache
    def derived() -> Probed:
        nonlocal problem
        known, read, answered = Probed(spec.output_schema, sides=dict.fromkeys(unknown)), 0, False
        # Always from the start of the plan, whatever the scope: the schema must not depend on --limit or --sample.
        for number, rank in enumerate([*range(min(PROBES, len(prepared.plan))), None]):
            if known.schema is not None and number >= TYPE_PROBES:
                break
            shard = None if rank is None else prepared.plan.shard(rank)
            given = None if spec.rows is None or shard is None else spec.rows.given(shard.uri)
            answer = asking.answer(Probe(shard, unknown, given))
            if answer is None:
                raise _InterruptedError
            known = known.filled(answer)
            if known.typed:
                break
            read += answer.rows
            answered = answered or not answer.error
            # That an empty table is too much for it says nothing about a job that was seen to drop rows.
            problem = problem if rank is None and read else answer.error or problem
        if problem and (known.schema is None or not (known.known or answered)):
            raise _NoSchemaError
        return known

    def stored(name: str, side: str | None) -> Any:
        """Returns a schema as the ledger has it, else as it is derived, stored."""

        def make() -> Any:
            schema = derived().schema if side is None else derived().sides[side]
            # Nothing went wrong and there is no table: a job that only counts has outputs without columns.
            return pa.schema([]) if schema is None else schema

        return ledger.create_schema(name, make)

    try:
        sides = {
            name: stored(schema_name(name), name) if schema is None else schema
            for name, schema in sorted(spec.sides.items())
        }
        main = stored("output", None) if spec.output_schema is None else spec.output_schema
    except _InterruptedError:
        return Schemas()
    except _NoSchemaError:
        log.warning("no output schema could be derived from the first shards", error=problem)
        return Schemas()
    return Schemas(main, sides)


class _InterruptedError(Exception):
    """The run is to stop."""


class _NoSchemaError(Exception):
    """No shard told the schema of its output."""


class _Asking:
    """Asks shards one after the other; waits for what they say is not there now."""

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
        self._setup = setup
        self._backend = backend
        self._interrupts = interrupts
        self._clock = clock
        self._timeout_s = timeout_s
        self._log = log
        self._idle = idle
        self._asked = 0
        self._waits = 0

    def answer(self, probe: Probe) -> Probed | None:
        """Returns what a shard tells when all is there that it needs, or in the end; None if the run is to stop."""
        while True:
            self._asked += 1
            clock, interrupts, timeout_s = self._clock, self._interrupts, self._timeout_s
            answer = _ask(self._backend, -self._asked, probe, interrupts, clock, timeout_s, self._idle, self._setup)
            if answer is None or answer.again_s is None or self._waits >= MOST_WAITS:
                return answer
            wait_s = max(answer.again_s, min(2.0**self._waits, LONGEST_BACKOFF_S))
            self._waits += 1
            self._log.warning(
                "the first shards cannot tell the schema of their output now; they are asked again",
                error=answer.error,
                wait_s=wait_s,
            )
            until_s = self._clock.monotonic() + wait_s
            while (left_s := until_s - self._clock.monotonic()) > 0 and not _stopped(self._interrupts):
                self._clock.sleep(min(POLL_S, left_s))


def _ask(
    backend: Backend,
    task: int,
    probe: Probe,
    interrupts: Interrupts,
    clock: Clock,
    timeout_s: float | None,
    idle: Callable[[], None] = lambda: None,
    setup: SetupWatch | None = None,
) -> Probed | None:
    """Runs one probe as a task of its own and returns its answer, None if the run is to stop."""
    setup = setup or SetupWatch(clock, done=True)
    answer = Probed(error="the worker died")
    until_s = math.inf
    if not _stopped(interrupts):
        asked = replace(probe, says_ready=not setup.done)
        backend.launch(task, asked, 1, announce=timeout_s is not None or not setup.done)
    while not _stopped(interrupts):
        idle()
        setup.look()
        for news in backend.poll(POLL_S):
            if isinstance(news, Message):
                for item in news.items:
                    if isinstance(item, SetUp):
                        setup.told(item)
                    else:
                        answer = item
            elif isinstance(news, Ended):
                ended = setup.ended(task, news)
                lost = ended.end is End.LOST
                return answer if not ended.detail else Probed(error=ended.detail, again_s=0.0 if lost else None)
            elif isinstance(news, Started):
                setup.started(task, f"in process {news.pid} on {news.node}")
                if timeout_s is not None:
                    until_s = clock.monotonic() + timeout_s
        if clock.monotonic() > until_s:
            until_s = math.inf
            backend.cancel(task)
    # A probe makes nothing that would be lost.
    backend.cancel()
    return None


def _stopped(interrupts: Interrupts) -> bool:
    return bool(interrupts.interrupts or interrupts.terminated)
