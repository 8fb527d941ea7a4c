"""Where every run begins: the stages that a job needs before its own, and then its own."""

from __future__ import annotations

from functools import partial

from curate.clock import Clock, SystemClock
from curate.driver.options import RunOptions, resolve_output
from curate.driver.prepare import describe, prepare
from curate.driver.rivals import describe_rivals, running_drivers
from curate.driver.signals import Signals
from curate.driver.stage_run import run_stage
from curate.driver.state import Prepared
from curate.graph.graph import dry_staged, run_staged
from curate.graph.keys import checkpoints_of
from curate.graph.upstream import Ready, checkpoint_options, run_upstream
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
    if spec.needs_all_inputs:
        return dry_staged(spec, options, SystemClock(), _dry_stage, _dry_checkpoint)
    ready = run_upstream(spec, "", options, _no_stage, _dry_checkpoint)
    return _dry_stage(ready.spec, ready.options) if isinstance(ready, Ready) else ready


def _dry_stage(spec: StageSpec, options: RunOptions) -> tuple[Prepared, str]:
    clock = SystemClock()
    prepared = prepare(spec, options, new_run_id(clock.now()), clock)
    rivals = running_drivers(prepared.ledger, prepared.run_ids, clock, wait=False) if prepared.has_work else []
    return prepared, describe(prepared, describe_rivals(rivals))


def _dry_checkpoint(before: Upstream, reader: StageSpec, options: RunOptions) -> tuple[Prepared, str] | None:
    prepared, text = dry_run(before.spec, checkpoint_options(options, before))
    then = f"{text}\nthen     {reader.name} over this checkpoint, into {options.output}"
    return (prepared, then) if len(prepared.todo) else None


def _no_stage(spec: StageSpec, options: RunOptions) -> None:
    raise AssertionError(f"{spec.name} is before a stage that only checkpoints are before, for {options.output}")


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
    run_one = partial(run_stage, clock=clock, backend=backend, signals=signals)

    def run_checkpoint(before: Upstream, reader: StageSpec, how: RunOptions) -> Summary | None:
        del reader
        ended = _run(before.spec, checkpoint_options(how, before), clock, backend, signals)
        if ended.state is not RunState.COMPLETE:
            return ended
        if signals.interrupts.interrupts or signals.interrupts.terminated:
            raise KeyboardInterrupt
        return None

    if not spec.needs_all_inputs:
        ready = run_upstream(spec, "", options, _no_stage, run_checkpoint)
        return run_one(ready.spec, ready.options) if isinstance(ready, Ready) else ready
    ended = run_staged(spec, options, clock, run_one, run_checkpoint, signals, backend)
    if ended.state is RunState.COMPLETE and not ended.dispatched:
        # Nothing was left to do, so that no checkpoint was looked at; others may read it.
        for before in checkpoints_of(spec):
            if _lacks_outputs(before) and (made := run_checkpoint(before, spec, options)) is not None:
                return made
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
