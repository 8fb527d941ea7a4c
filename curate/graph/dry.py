"""Dry runs: what a run of a job would do; and a stage of an unfinished job as a run sees it. Nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from curate.backends.choose import Chosen
from curate.clock import Clock, SystemClock
from curate.driver.helping import describe_part
from curate.driver.rivals import describe_rivals, running_drivers
from curate.errors import ConfigError, DamagedRun
from curate.graph.keys import ask_of, planned
from curate.graph.start import PlannedShards, look_at, with_seed
from curate.graph.unready import Ahead, over_checkpoint, refuse_asked, refuse_unready
from curate.graph.upstream import Ready, checkpoint_options, ready_stages
from curate.keywords import of_checkpoint, option
from curate.ledger.ledger import open_ledger
from curate.ledger.run_log import new_run_id
from curate.ledger.stages import LAST, has_scratch, stage_title, stages_root, stages_roots
from curate.resume.options import RunOptions, resolve_output
from curate.resume.prepare import describe, prepare
from curate.resume.state import Prepared
from curate.stage.stage import Stage
from curate.units import format_count, shell_word


def dry_run(last: Stage, options: RunOptions, chosen: Chosen, ahead: Ahead | None = None) -> tuple[Prepared, str]:
    """Returns what a run of a job would begin with, and in words what it would do. Writes nothing. `ahead` is
    called if there is something to run; None: `chosen` says alone whether that can be."""
    ahead = ahead or chosen.begin
    if not last.needs_all_inputs:
        _, prepared, text = _unfinished(last, "", options, chosen, ahead)
        return prepared, text
    output = resolve_output(options.output)
    job = look_at(last, options, output, SystemClock())
    last = with_seed(job, 0) if job.job is None else job.last
    if job.done:
        refuse_asked(job, options)
        return _dry_stage(replace(last, rows=PlannedShards(job.plan)), options)
    # Where a run would have them it knows once it is connected; here, where they are.
    refuse_unready(job, options, chosen, ahead)
    try:
        root = stages_root(output, alone=has_scratch(output) and options.part is None)
        ready, prepared, text = _unfinished(last, root, options, chosen)
    except DamagedRun as error:
        raise ConfigError(f"{error}: run the job, which makes it again") from error
    if job.added:
        text = f"new      {format_count(len(job.added), 'input')} behind the others, such as {job.added[0]}\n{text}"
    return prepared, f"{_stage_text(last, ready.stage, ready.options)}\n{text}"


def _unfinished(
    last: Stage, root: str, options: RunOptions, chosen: Chosen, ahead: Ahead | None = None
) -> tuple[Ready, Prepared, str]:
    """Looks at the stages of a job, and returns the first that is not done; the last one, if all before it are. `ahead`
    is called if there is something to run; None: it was."""
    for ready in ready_stages(last, root, options):
        if ready.checkpoint is None:
            prepared, text = _dry_stage(ready.stage, ready.options, lambda: ahead and ahead([ask_of(last)]))
        else:
            before, how = ready.checkpoint.stage, checkpoint_options(ready.options, ready.checkpoint)
            asked = ahead and over_checkpoint(last, options, ahead)
            with of_checkpoint():
                prepared, text = dry_run(before, how, chosen, asked)
            text += f"\nthen     {ready.stage.record.name} over this checkpoint, into {ready.options.output}"
        if len(prepared.todo):
            break
    return ready, prepared, text


def _dry_stage(stage: Stage, options: RunOptions, ask: Callable[[], None] = lambda: None) -> tuple[Prepared, str]:
    clock = SystemClock()
    prepared = prepare(stage, options, new_run_id(clock.now()), clock, work_ahead=ask)
    found = prepared.run_ids if prepared.has_work else ()
    rivals = running_drivers(prepared.ledger, found, clock, wait=False, part=options.part)
    return prepared, describe(prepared, describe_rivals(rivals), describe_part(options.part, prepared))


def _stage_text(last: Stage, stage: Stage, how: RunOptions) -> str:
    """Returns which stage of a job one is, as people are told."""
    key = LAST if stage.record.name == last.record.name else how.output.rpartition("/")[2]
    stages = planned(last)
    # One that merges run files was not planned.
    if key in {one.key for one in stages}:
        return stage_title(stages, key)
    return stage.record.name.removeprefix(f"{last.record.name}: ")


def as_run(last: Stage, options: RunOptions, key: str, clock: Clock) -> Stage:
    """Returns a stage of a job that has begun, the last one or one before it, as runs have it. Writes nothing.

    Raises ConfigError if the job or its inputs are others by now, and if what the stage reads is not there.
    """
    output = resolve_output(options.output)
    if last.from_inputs is not None:
        last = last.from_inputs(options)
    job = look_at(last, options, output, clock)
    status = f"curate status {shell_word(output)}"
    again = f"run the job first, or with {option('keep_stages')} if it is complete; see: {status}"

    # Where they are is known to those who run the job alone; here, where the first of them is.
    roots = [*stages_roots(output, job.listing.stages), stages_root(output, alone=False)]
    try:
        for ready in ready_stages(job.last, roots[0], options):
            own = ready.options.output
            if own.rpartition("/")[2] == key:
                break
            if own != options.output and ready.checkpoint is None and open_ledger(own).list().summary is None:
                text = _stage_text(job.last, ready.stage, ready.options)
                raise ConfigError(f"an input of that shard is missing: {text} is not done; {again}")
    except DamagedRun as error:
        raise ConfigError(f"an input of that shard is damaged: {error.uri}: {error.problem}; {again}") from error
    return ready.stage
