"""Where every run begins: the stages that a job needs before its own, and then its own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from curate.clock import Clock, SystemClock
from curate.driver.options import RunOptions, resolve_output
from curate.driver.prepare import describe, prepare
from curate.driver.rivals import describe_rivals, running_drivers
from curate.driver.signals import Signals
from curate.driver.stage_progress import StageHandle
from curate.driver.stage_run import run_stage
from curate.driver.state import OutputSnapshot, Prepared
from curate.graph.graph import dry_staged, run_staged
from curate.graph.keys import checkpoints_of
from curate.ledger.ledger import open_ledger
from curate.ledger.listing import match_outputs
from curate.ledger.run_log import new_run_id
from curate.ledger.summary import RunState, Summary
from curate.log import get_logger
from curate.runtime.protocol import Backend
from curate.stage.spec import StageSpec, Upstream


def dry_run(spec: StageSpec, options: RunOptions) -> tuple[Prepared, str]:
    """Returns what a run would start from, and in words what it would do. Writes nothing, starts nothing, waits not.

    Raises ConfigError for every reason not to run, but for a driver that is at work: the text says so.
    """
    if spec.from_inputs is not None:
        spec = spec.from_inputs(options)
    if spec.bind is not None:
        return dry_staged(spec, options, SystemClock(), _dry_stage)
    return _dry_stage(spec, options)


def _dry_stage(spec: StageSpec, options: RunOptions) -> tuple[Prepared, str]:
    clock = SystemClock()
    for before in spec.before if spec.bind is None else ():
        assert before.path is not None
        prepared, text = dry_run(before.spec, _of_upstream(options, before))
        if len(prepared.todo):
            return prepared, f"{text}\nthen     {spec.name} over this checkpoint, into {options.output}"
        options = _after_upstream(options, before.path)
    prepared = prepare(spec, options, new_run_id(clock.now()), clock)
    rivals = running_drivers(prepared.ledger, prepared.run_ids, clock, wait=False) if prepared.has_work else []
    return prepared, describe(prepared, describe_rivals(rivals))


def run(spec: StageSpec, options: RunOptions, *, clock: Clock | None = None, backend: Backend | None = None) -> Summary:
    """Runs a stage until every shard of its scope is done or has failed, and returns the summary.

    Idempotent: what has an output is skipped, whoever made it. Raises ConfigError before anything is dispatched if the
    job cannot run as asked, or another driver is at work on it; KeyboardInterrupt if it was interrupted before;
    RunStoppedError if the store failed the driver; JobReplacedError if someone else overwrote the job meanwhile.
    """
    clock = clock or SystemClock()
    if spec.from_inputs is not None:
        spec = spec.from_inputs(options)
    with Signals(options.handle_signals, get_logger(job=spec.name)) as signals:
        return _run(spec, options, clock, backend, signals)


def _run(spec: StageSpec, options: RunOptions, clock: Clock, backend: Backend | None, signals: Signals) -> Summary:
    run_one = partial(run_with_checkpoints, clock=clock, backend=backend, signals=signals)
    if spec.bind is None:
        return run_one(spec, options)
    ended = run_staged(spec, options, clock, run_one, signals, backend)
    if ended.state is RunState.COMPLETE and not ended.dispatched:
        # Nothing was left to do, so that no checkpoint was looked at; others may read it.
        for before in checkpoints_of(spec):
            if not _lacks_outputs(before):
                continue
            made = _run(before.spec, _of_upstream(options, before), clock, backend, signals)
            if made.state is not RunState.COMPLETE:
                return made
            if signals.interrupts.interrupts or signals.interrupts.terminated:
                raise KeyboardInterrupt
    return ended


def _lacks_outputs(before: Upstream) -> bool:
    """Returns whether outputs are gone of a checkpoint that is there; one that was removed as a whole is not missed."""
    assert before.path is not None
    output = resolve_output(before.path)
    ledger = open_ledger(output)
    listing = ledger.list()
    if not listing.has_job or ledger.read_job()["fingerprint"] != before.spec.fingerprint:
        return False
    return not match_outputs(ledger.read_plan(listing), listing, before.spec.suffix).done.all()


def run_with_checkpoints(
    spec: StageSpec,
    options: RunOptions,
    *,
    clock: Clock | None = None,
    backend: Backend | None = None,
    signals: Signals | None = None,
    seen: OutputSnapshot | None = None,
    at: StageHandle | None = None,
) -> Summary:
    """Runs one stage as `run_stage` does, after the checkpoints that it reads as files are read.

    Returns the summary of the first that does not end well, or of the stage. `signals` is what a run of several stages
    hears of them.
    """
    clock = clock or SystemClock()
    if signals is None:
        with Signals(options.handle_signals, get_logger(job=spec.name)) as signals:
            return run_with_checkpoints(spec, options, clock=clock, backend=backend, signals=signals, seen=seen, at=at)
    for before in spec.before if spec.bind is None else ():
        assert before.path is not None
        ended = _run(before.spec, _of_upstream(options, before), clock, backend, signals)
        if ended.state is not RunState.COMPLETE:
            return ended
        if signals.interrupts.interrupts or signals.interrupts.terminated:
            raise KeyboardInterrupt
        options = _after_upstream(options, before.path)
    return run_stage(spec, options, clock, backend, signals, seen=seen, at=at)


def _of_upstream(options: RunOptions, before: Upstream) -> RunOptions:
    """Returns how to run the stage whose output is a checkpoint: it outlives what reads it, and is reused."""
    assert before.path is not None
    inputs = before.inputs or options.inputs
    return replace(options, inputs=inputs, output=before.path, overwrite=False, retry_failed=False)


def _after_upstream(options: RunOptions, path: str) -> RunOptions:
    """Returns how to run what reads a checkpoint, of which there is as much as was asked for."""
    part = options.limit is not None or options.sample is not None
    incomplete = options.allow_incomplete_input or part
    return replace(options, inputs=(path,), limit=None, sample=None, allow_incomplete_input=incomplete)
