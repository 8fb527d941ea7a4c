"""The stages before a stage, one after another. A run, a dry run, a replay and a consumer all loop over `ready_stages`
to reach a stage's inputs, and each does its own work with a stage.

A job's own stage has a folder below the job's root. A checkpoint is a separate job at a path that the user chose: its
stages lie below that path, it stays after the job, and is reused.
"""

from __future__ import annotations

from collections.abc import Generator

from curate.dataclass import dataclass, replace
from curate.errors import DamagedRun
from curate.graph.keys import key_of
from curate.graph.reads import merges, opened
from curate.ledger.ledger import open_ledger
from curate.ledger.listing import match_outputs
from curate.resume.options import RunOptions
from curate.stage.stage import Stage, Upstream
from curate.storage.protocol import Object


@dataclass(frozen=True, slots=True)
class Ready:
    """What is to be run next: a stage of which all that it reads is there, or a checkpoint that it reads."""

    stage: Stage
    options: RunOptions
    """How that stage is run."""
    checkpoint: Upstream | None = None
    """The checkpoint that it reads and that is to be there first: run as `checkpoint_options` says."""


def ready_stages(stage: Stage, root: str, options: RunOptions) -> Generator[Ready]:
    """Yields what a stage reads, in the order in which it is run, and at last that stage, as it reads them.

    Stages have a folder each below `root`; checkpoints come after them. Who asks for the next one has run the one
    before, or found that all of it is done. Raises DamagedRun if its outputs are not there then, and if the end of a
    run file is damaged, which is removed.
    """

    def made(before: Upstream) -> Generator[Ready, None, list[Object]]:
        own = f"{root}/{key_of(before.stage)}"
        # What only marks rows gives none on: a row that it drops is dropped again, or is not gone.
        bare = options.no_samples or before.marks is not None
        for ready in ready_stages(before.stage, root, replace(_stage_options(options, own), no_samples=bare)):
            yield ready
        return outputs_of(ready.stage, own)

    outputs: list[tuple[Upstream, list[Object]]] = []
    for before in stage.before:
        if before.path is None:
            outputs.append((before, (yield from made(before))))
    for merge in merges(stage, outputs):
        others = [one for one in outputs if one[0].marks is not None or one[0].side != merge.side]
        outputs = [(merge, (yield from made(merge))), *others]
    stage, checkpoints = opened(stage, outputs), [one for one in stage.before if one.path is not None]
    for before in checkpoints:
        yield Ready(stage, options, before)
        options = _over_checkpoint(options, before)
    yield Ready(stage, options)


def _stage_options(options: RunOptions, output: str) -> RunOptions:
    """Returns how to run one of the stages before the last: whole, whatever part of that was asked for. What is made
    again, or taken out, of a checkpoint that it reads, is of the stage too."""
    return replace(options, inputs=(), output=output, overwrite=False, retry_failed=False, limit=None, sample=None)


def checkpoint_options(options: RunOptions, before: Upstream) -> RunOptions:
    """Returns how to run the stage whose output is a checkpoint: it outlives what reads it, and is reused."""
    assert before.path is not None
    inputs = before.stage.inputs or options.inputs
    return replace(options, inputs=inputs, output=before.path, overwrite=False, retry_failed=False)


def _over_checkpoint(options: RunOptions, before: Upstream) -> RunOptions:
    """Returns how to run what reads a checkpoint, of which there is as much as was asked for."""
    assert before.path is not None
    part = options.limit is not None or options.sample is not None
    incomplete = options.allow_incomplete_input or part
    return replace(options, inputs=(before.path,), limit=None, sample=None, allow_incomplete_input=incomplete)


def outputs_of(stage: Stage, output: str) -> list[Object]:
    """Returns the outputs of a stage, in the order of its plan. Raises DamagedRun if one is gone, or all of it."""
    ledger = open_ledger(output)
    listing = ledger.list()
    # Of a stage that is complete the summary is there, also if it has no shard. Who overwrites removes the plan late.
    if not listing.has_job or (listing.summary is None and not listing.plan_parts):
        raise DamagedRun(output, "it is missing")
    plan = ledger.read_plan(listing)
    matched = match_outputs(plan, listing, stage.record.suffix)
    for rank in (~matched.done).nonzero()[0][:1].tolist():
        raise DamagedRun(ledger.uri(plan.shard_id(rank) + stage.record.suffix), "it is missing")
    names, sizes, generations = (column.to_pylist() for column in listing.objects.take(matched.position).columns)
    return [Object(ledger.uri(name), size, own) for name, size, own in zip(names, sizes, generations, strict=True)]
