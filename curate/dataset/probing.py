"""The schema of a job's outputs where the job declares none: what the first rows of its plan become. Decided once."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa

from curate.clock import Clock
from curate.dataset.prepare import Prepared
from curate.dataset.stage import Probe, Probed
from curate.log import get_logger
from curate.runtime.protocol import Backend, Ended, Message
from curate.tasks.dispatcher import POLL_S, Interrupts

PROBES = 32
"""Shards that are asked for their output's schema, in plan order, before the run goes on without."""
TYPE_PROBES = 8
"""Shards that are asked where only the type of a column is unknown, because it was null in all rows so far."""


def output_schema(prepared: Prepared, backend: Backend, interrupts: Interrupts, clock: Clock) -> Any:
    """Returns the schema of all outputs: as declared, as stored, else asked for and stored; None if no shard tells.

    A shard that takes longer than the job's `task_timeout_s` does not tell.
    """
    if prepared.spec.output_schema is not None:
        return prepared.spec.output_schema
    problem = ""

    def probe() -> Any:
        nonlocal problem
        known, read = Probed(), 0
        # Always from the start of the plan, whatever the scope: the schema must not depend on --limit or --sample.
        for number, rank in enumerate([*range(min(PROBES, len(prepared.plan))), None]):
            if known.schema is not None and number >= TYPE_PROBES:
                break
            shard = None if rank is None else prepared.plan.shard(rank)
            answer = _ask(backend, -1 - number, Probe(shard), interrupts, clock, prepared.spec.task_timeout_s)
            if answer is None:
                raise _InterruptedError
            known = known.filled(answer)
            if known.typed:
                break
            read += answer.rows
            # That an empty table is too much for it says nothing about a job that was seen to drop rows.
            problem = problem if rank is None and read else answer.error or problem
        if known.schema is None and problem:
            raise _NoSchemaError
        # Nothing went wrong and there is no table: a job that only counts has outputs without columns.
        return pa.schema([]) if known.schema is None else known.schema

    try:
        return prepared.ledger.create_schema("output", probe)
    except _InterruptedError:
        return None
    except _NoSchemaError:
        get_logger(job=prepared.spec.name, run=prepared.run_id).warning(
            "no output schema could be derived from the first shards", error=problem
        )
        return None


class _InterruptedError(Exception):
    """The run is to stop."""


class _NoSchemaError(Exception):
    """No shard told the schema of its output."""


def _ask(
    backend: Backend, task: int, probe: Probe, interrupts: Interrupts, clock: Clock, timeout_s: float | None
) -> Probed | None:
    """Runs one probe as a task of its own and returns its answer, None if the run is to stop."""
    answer = Probed(error="the worker died")
    until_s = math.inf
    if not (interrupts.interrupts or interrupts.terminated):
        backend.launch(task, probe, 1, announce=timeout_s is not None)
    while not (interrupts.interrupts or interrupts.terminated):
        for news in backend.poll(POLL_S):
            if isinstance(news, Message):
                answer = news.items[0]
            elif isinstance(news, Ended):
                return answer if not news.detail else Probed(error=news.detail)
            elif timeout_s is not None:
                until_s = clock.monotonic() + timeout_s
        if clock.monotonic() > until_s:
            until_s = math.inf
            backend.cancel(task)
    # A probe makes nothing that would be lost.
    backend.cancel()
    return None
