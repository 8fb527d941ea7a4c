"""The keys of a job's stages, their order, and the files that they read.

A stage's key is derived from its operators and its inputs, so an existing stage with that key is the right one: a later
run, or another job with the same first stages, reuses it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import orjson
import pyarrow as pa

from curate.backends.choose import Ask
from curate.ledger import layout
from curate.ledger.ledger import open_ledger
from curate.ledger.stages import LAST, WRITE, StageReport
from curate.ledger.summary import RunState
from curate.sources.listing import list_inputs
from curate.sources.patterns import parse_input
from curate.sources.protocol import LISTED, in_memory
from curate.stage.stage import Stage, Upstream
from curate.storage.uris import MEMORY
from curate.stores.open import Stores


def key_of(stage: Stage) -> str:
    """Returns what a stage is called: 16 hex digits of what it does and what it reads."""
    told = [stage.record.fingerprint, _reads(stage)]
    return hashlib.sha256(orjson.dumps(told)).hexdigest()[:16]


def _reads(stage: Stage) -> Any:
    if stage.before:
        return [key_of(one.stage) if one.path is None else _checkpoint(one) for one in stage.before]
    return stage.rows.manifest()


def _checkpoint(before: Upstream) -> Any:
    # By what it is made of: where it lies, there may be another one by then.
    files = None if before.listing is None else before.listing.to_pylist()
    return [before.stage.record.fingerprint, _reads(before.stage), files]


def stages_of(stage: Stage) -> Iterator[Stage]:
    """Yields the job's own stages before this one, in the order in which they run."""
    for before in stage.before:
        if before.path is None:
            yield from stages_of(before.stage)
            yield before.stage


def checkpoints_of(stage: Stage) -> Iterator[Upstream]:
    """Yields the checkpoints that a stage is made of, in the order in which they are made."""
    for before in stage.before:
        yield from checkpoints_of(before.stage)
        if before.path is not None:
            yield before


def ask_of(stage: Stage) -> Ask:
    """Returns what a stage asks of where it runs."""
    return Ask(stage.tasks.resources, tuple(stage.operator.pools), stage.record.name, stage.operator)


def asks_of(stage: Stage) -> Iterator[Ask]:
    """Yields what a stage, and each of those that are run before it, asks of where it runs, in that order."""
    for before in stage.before:
        yield from asks_of(before.stage)
    yield ask_of(stage)


def in_memory_of(stage: Stage) -> Iterator[str]:
    """Yields the URIs in the memory of this process that a stage, and those before it, read and write."""
    for before in stage.before:
        yield from in_memory_of(before.stage)
    paths = [one.path for one in stage.before if one.path is not None]
    yield from (one for one in (*stage.inputs, *paths, *_assets(stage)) if one.startswith(MEMORY))
    yield from in_memory(stage.rows.listing())


def _assets(stage: Stage) -> Iterator[str]:
    for value in stage.record.parameters.values():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict) and isinstance(uri := one.get("uri"), str):
                yield uri


def read_by(stage: Stage) -> Iterator[str]:
    """Yields what a stage, and those before it, read, as it was named."""
    for before in stage.before:
        yield from read_by(before.stage)
    yield from (*stage.inputs, *stage.rows.paths())


def planned(last: Stage) -> tuple[StageReport, ...]:
    """Returns the job's stages, in the order in which they run, this one last; one that is read twice is there once."""
    found: dict[str, StageReport] = {}
    for stage in stages_of(last):
        name = stage.record.name.removeprefix(f"{last.record.name}: ")
        found.setdefault(key_of(stage), StageReport(key_of(stage), name, _feeding(stage)))
    return (*found.values(), StageReport(LAST, WRITE, _feeding(last)))


def described(last: Stage) -> list[dict[str, Any]]:
    """Returns the job's stages as `job.json` has them: of those before the last one also the identity, which is in no
    ledger once they were removed, and says what is another where the job is refused."""
    identities = {key_of(stage): dict(stage.record.identity) for stage in stages_of(last)}
    found = [(one.key, one.planned()) for one in planned(last)]
    return [{**told, "identity": identities[key]} if key in identities else told for key, told in found]


def _feeding(stage: Stage) -> tuple[str, ...]:
    return tuple(key_of(before.stage) for before in stage.before if before.path is None and before.marks is None)


def reports_of(stages: Sequence[StageReport], root: str) -> tuple[StageReport, ...]:
    """Returns the job's stages, of which all are done but the last one, as their ledgers tell of them."""
    *before, last = stages

    def read(one: StageReport) -> StageReport:
        output = f"{root}/{one.key}"
        told = open_ledger(output).read_json(layout.SUMMARY)
        return StageReport.of({**told, **one.planned(), "state": RunState.COMPLETE.value})

    return (*map(read, before), last)


def listed(stage: Stage, known: dict[tuple[str, ...], Any]) -> Stage:
    """Returns a stage with the files listed that its checkpoints are made of; each of `known` is listed once."""

    def of(before: Upstream) -> Upstream:
        inputs = before.stage.inputs if before.path is not None else ()
        if inputs and inputs not in known:
            patterns = [parse_input(text) for text in inputs]
            known[inputs] = list_inputs(patterns, Stores().of).table.table().select(LISTED.names)
        return replace(before, stage=listed(before.stage, known), listing=known.get(inputs))

    return replace(stage, before=tuple(map(of, stage.before))) if stage.before else stage


def manifest_of(stage: Stage) -> Any:
    """Returns the files that the first stages of a job read, in their order: uri, size and generation."""
    tables = [LISTED.empty_table()]
    for before in stage.before:
        tables.append(manifest_of(before.stage))
        if before.listing is not None:
            tables.append(before.listing.cast(LISTED))
    return pa.concat_tables([*tables, stage.rows.listing()])
