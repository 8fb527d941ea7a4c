"""A job of several stages: what comes before is run first, and kept for as long as the job can go on from it.

    <output>/_curate/inputs/<hash>.parquet   the inputs, as the job began with them
    <output>/_curate/stages/<key>/           a stage before the last one, with a ledger of its own

`keys` says what stages are called, `start` how a job begins and what is removed when it is complete.

Whoever finds a run file that is damaged removes it (see `curate.exchange.ranges`). What needed it fails. Then the
stages are looked at again: of each, the shards run that have no output, and after them what failed. Nothing else
remembers what was lost.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import pyarrow as pa

from curate.clock import Clock
from curate.driver.options import RunOptions, resolve_output
from curate.driver.removal import refuse_links
from curate.driver.signals import Signals
from curate.driver.stage_progress import JobProgress, StageHandle
from curate.driver.state import OutputSnapshot, Prepared, WorkLeftError
from curate.errors import ConfigError, CurateError, DamagedRun, DiskFull, StorageError
from curate.graph.keys import key_of, planned, reports_of, stages_of
from curate.graph.start import (
    PlannedShards,
    StagedJob,
    as_planned,
    begin,
    complete_now,
    is_complete,
    look_at,
    place_of,
    refuse_mixed_keys,
    sweep,
    with_seed,
)
from curate.graph.upstream import Ready, RunCheckpoint, run_upstream
from curate.graph.upstream_books import upstream_books_of
from curate.ledger.ledger import open_ledger
from curate.ledger.listing import match_outputs
from curate.ledger.stages import (
    LAST,
    SCRATCH,
    has_scratch,
    make_scratch,
    refuse_planted,
    scratch_of,
    stage_title,
    stages_root,
    stages_roots,
)
from curate.ledger.summary import RunState, Summary, together
from curate.log import get_logger
from curate.runtime.backends import make_backend
from curate.runtime.protocol import Backend, Resources
from curate.sources.listing import list_inputs
from curate.sources.patterns import parse_input
from curate.stage.spec import StageSpec, Upstream
from curate.storage.local import remove_scratch
from curate.storage.uris import is_local
from curate.units import format_bytes

MOST_MENDED = 3
"""How often a run makes a file again that a later stage found damaged or gone."""


class Runner(Protocol):
    """Runs one stage to its end, of which all that it reads is there."""

    def __call__(
        self, spec: StageSpec, options: RunOptions, *, seen: OutputSnapshot | None = None, at: StageHandle | None = None
    ) -> Summary:
        """Returns its summary. `at` hears how it goes on. With `seen`, which says that nothing is left to do, raises
        WorkLeftError if that is not so."""
        ...


def run_staged(
    spec: StageSpec,
    options: RunOptions,
    clock: Clock,
    run_stage: Runner,
    run_checkpoint: RunCheckpoint[Summary],
    signals: Signals,
    backend: Backend | None = None,
) -> Summary:
    """Runs a job of several stages until every shard is done or has failed, and returns the summary of the last stage,
    or of the one that did not end well. Nothing is started, and no stage looked at, if the job is complete.
    """
    output = resolve_output(options.output)
    job = look_at(spec, options, output, clock)
    if job.done:
        try:
            # It was not asked for what is there; and there is nothing else.
            ended = run_stage(as_planned(job), options, seen=job.seen)
        except WorkLeftError:
            pass
        else:
            if ended.state is RunState.COMPLETE and not options.keep_stages:
                sweep(job.stores.of(output), output, known=job.listing.stages)
            return ended
    refuse_mixed_keys(job)
    if is_local(output):
        refuse_links(output)
    try:
        with _connected(options.backend, backend, signals) as (alone, start_s):
            if alone:
                refuse_planted(output)
            job.spec, options = begin(job, options, clock)
            root = stages_root(output, alone=alone)
            if root == scratch_of(output):
                make_scratch(output)
            with JobProgress(
                job.spec, options, job.ledger, clock, planned(job.spec), lambda: job.stores.calls
            ) as course:
                course.start_s = start_s
                options = replace(options, display=course.display)
                ended = _all(job.spec, options, root, run_stage, run_checkpoint, signals, job, course)
                ended = course.summary(ended)
    finally:
        if is_local(output):
            remove_scratch(job.stores.scratch)
    if ended.state is RunState.COMPLETE and not options.keep_stages and is_complete(job):
        sweep(job.stores.of(output), output)
    return ended


def _all(
    spec: StageSpec,
    options: RunOptions,
    root: str,
    run_stage: Runner,
    run_checkpoint: RunCheckpoint[Summary],
    signals: Signals,
    job: StagedJob,
    course: JobProgress,
) -> Summary:
    """Runs all stages; again, where a later one found files of an earlier one damaged, or gone. Returns the summary of
    the one that was run last."""
    log = get_logger(job=spec.name)
    rounds: list[Summary] = []
    mended: Counter[str] = Counter()
    while True:
        done: list[tuple[StageSpec, str]] = []

        def run(stage: StageSpec, how: RunOptions, done: list[tuple[StageSpec, str]] = done) -> Summary | None:
            key = how.output.rpartition("/")[2]
            ended = run_stage(stage, how, at=course.stage(key, stage.name))
            course.ended(key, ended)
            if ended.state is not RunState.COMPLETE:
                return ended
            if signals.interrupts.interrupts or signals.interrupts.terminated:
                # It came while the last of this stage ran. The next one would hear of it no more.
                return replace(ended, state=RunState.INTERRUPTED)
            done.append((stage, how.output))
            return None

        try:
            try:
                ready = run_upstream(spec, root, options, run, run_checkpoint)
                if isinstance(ready, Ready):
                    _refuse_other_shards(ready.spec, job)
                    earlier = upstream_books_of(spec, partial(place_of, root), job.ledger)
                    last = replace(ready.spec, earlier=earlier, reports=reports_of(course.stages, root))
            except CurateError:
                # Unless the driver beside this one has completed the job, and removed its stages: then whatever.
                if not complete_now(job):
                    raise
                return run_stage(as_planned(job), options, seen=job.seen)
            if isinstance(ready, Ready):
                ended = run_stage(last, ready.options, at=course.stage(LAST, spec.name))
                course.ended(LAST, ended)
                rounds.append(ended)
            else:
                ended = ready
        except DamagedRun as error:
            mended[error.uri] += 1
            if mended[error.uri] > MOST_MENDED:
                raise StorageError(_hopeless(error.uri)) from error
            problem = f"{error.uri}: {error.problem}"
        else:
            _tell_if_full(ended, spec)
            if rounds and ended is rounds[-1]:
                ended = together(rounds)
            failed = ended.state in (RunState.FAILED, RunState.ABORTED)
            if not failed or not (lost := _lost(done)):
                return run_stage(as_planned(job), options, seen=job.seen) if failed and complete_now(job) else ended
            mended.update(lost)
            worst = max(lost, key=mended.__getitem__)
            if mended[worst] > MOST_MENDED:
                log.error(_hopeless(worst))
                return ended
            problem = f"{worst} is gone" + (f", and {len(lost) - 1:,} more" if len(lost) > 1 else "")
        log.warning("files of an earlier stage were damaged or gone; what made them runs again", problem=problem)
        if complete_now(job):
            return run_stage(as_planned(job), options, seen=job.seen)


def _hopeless(uri: str) -> str:
    return (
        f"{uri} was found damaged or gone {MOST_MENDED + 1} times, each time after it had been made again: that disk "
        f"loses what is written, or somebody removes it. Look at it, or have stages elsewhere ({SCRATCH}, or another "
        "--output), and run this again"
    )


def _lost(done: Sequence[tuple[StageSpec, str]]) -> list[str]:
    """Returns the outputs that are gone of stages that were complete."""
    lost = []
    for stage, output in done:
        ledger = open_ledger(output)
        listing = ledger.list()
        if not listing.has_job:
            lost.append(output)
            continue
        plan = ledger.read_plan(listing)
        missing = (~match_outputs(plan, listing, stage.suffix).done).nonzero()[0]
        lost += [ledger.uri(plan.shard_id(rank) + stage.suffix) for rank in missing.tolist()]
    return lost


def _refuse_other_shards(spec: StageSpec, job: StagedJob) -> None:
    """Raises ConfigError if the last stage has other outputs than its plan says: outputs of both would be mixed."""
    if not len(job.plan):
        return
    if spec.rows.grows:
        _refuse_other_files(job)
        return
    there = spec.rows.inputs((), job.stores.of).table
    now, then = set(there["name"].to_pylist()), set(job.plan.ids.to_pylist())
    if now != then:
        raise ConfigError(
            f"{job.ledger.root} was planned as {len(then):,} outputs, and this curate makes other ones of the same "
            f"rows, {len(now):,} of them; go on with the version that began it, or start over with --overwrite"
        )


def _refuse_other_files(job: StagedJob) -> None:
    """Raises ConfigError if the checkpoint that the last stage reads has files that its plan does not know: the stages
    before have not seen their rows, or have seen more rows than the outputs that are there."""
    paths = [parse_input(before.path) for before in job.spec.before if before.path is not None]
    then = set(job.plan.table["uri"].to_pylist())
    if new := [uri for uri in list_inputs(paths, job.stores.of).table["uri"].to_pylist() if uri not in then]:
        raise ConfigError(
            f"the checkpoint {job.spec.before[0].path} has files that {job.ledger.root} did not begin with "
            f"({len(new):,}, such as {new[0]}): another job has added to it. Give this job a checkpoint of its own, or "
            "start over with --overwrite"
        )


def _tell_if_full(ended: Summary, spec: StageSpec) -> None:
    """Says how much room a stage would have needed that has failed because a disk was full."""
    if not any(group.error.startswith(f"{DiskFull.__name__}:") for group in ended.failures):
        return
    ledger = open_ledger(ended.output)
    listing = ledger.list()
    plan = ledger.read_plan(listing)
    stage = next((one for one in stages_of(spec) if ended.output.endswith(f"/{key_of(one)}")), spec)
    matched = match_outputs(plan, listing, stage.suffix)
    read = int(plan.sizes[matched.done].sum())
    written = sum(listing.sizes.take(pa.array(matched.position[matched.done])).to_pylist())
    left = int(plan.sizes[~matched.done].sum())
    # What was written of what was read, if that is known; else as if nothing grew.
    needed = round(left * (written / read if read else 1.0))
    free = shutil.disk_usage(_existing(ended.output)).free if is_local(ended.output) else 0
    get_logger(job=spec.name).error(
        "the disk is full",
        where=ended.output,
        written=format_bytes(written),
        needs=f"about {format_bytes(needed)} more",
        free=format_bytes(free),
        next=f"make room there, or give another place ({SCRATCH}, or --output), and run this again: it goes on",
    )


def _existing(path: str) -> str:
    while not os.path.exists(path):  # noqa: PTH110
        path = os.path.dirname(path)  # noqa: PTH120
    return path


@contextmanager
def _connected(name: str, given: Backend | None, signals: Signals) -> Iterator[tuple[bool, float]]:
    """Stays connected to where tasks run; tells whether that is this machine alone, and the seconds that it took."""
    held = given or make_backend(name)
    try:
        with signals.starting(held):
            start_s = held.start(Resources(num_cpus=0.0))
        yield held.alone(), start_s
    finally:
        if not signals.interrupts.terminated:
            held.close()


def dry_staged(
    spec: StageSpec,
    options: RunOptions,
    clock: Clock,
    look: Callable[[StageSpec, RunOptions], tuple[Prepared, str]],
    look_at_checkpoint: RunCheckpoint[tuple[Prepared, str]],
) -> tuple[Prepared, str]:
    """Returns what a run would begin with, and in words what it would do. Writes nothing."""
    output = resolve_output(options.output)
    job = look_at(spec, options, output, clock)
    spec = with_seed(job, 0) if job.job is None else job.spec
    if job.done:
        return look(replace(spec, rows=PlannedShards(job.plan)), options)
    refuse_mixed_keys(job)
    if is_local(output):
        refuse_links(output)
    told = _stage_text(spec, spec, options)

    def unfinished(stage: StageSpec, how: RunOptions) -> tuple[Prepared, str] | None:
        nonlocal told
        prepared, text = look(stage, how)
        if not len(prepared.todo):
            return None
        told = _stage_text(spec, stage, how)
        return prepared, text

    def lacking(before: Upstream, stage: StageSpec, how: RunOptions) -> tuple[Prepared, str] | None:
        nonlocal told
        found = look_at_checkpoint(before, stage, how)
        if found is not None:
            told = _stage_text(spec, stage, how)
        return found

    # Where a run would have them it knows once it is connected; here, where they are.
    try:
        ready = run_upstream(spec, stages_root(output, alone=has_scratch(output)), options, unfinished, lacking)
    except DamagedRun as error:
        raise ConfigError(f"{error}: run this without --dry-run") from error
    prepared, text = look(ready.spec, ready.options) if isinstance(ready, Ready) else ready
    return prepared, f"{told}\n{text}"


def _stage_text(last: StageSpec, stage: StageSpec, how: RunOptions) -> str:
    """Returns which stage of a job one is, as people are told."""
    key = LAST if stage.name == last.name else how.output.rpartition("/")[2]
    stages = planned(last)
    # One that merges run files was not planned.
    return stage_title(stages, key) if key in {one.key for one in stages} else stage.name.removeprefix(f"{last.name}: ")


@dataclass(frozen=True, slots=True)
class _Reached:
    """The stage that was looked for."""

    spec: StageSpec


def as_run(spec: StageSpec, options: RunOptions, key: str, clock: Clock) -> StageSpec:
    """Returns a stage of a job that has begun, the last one or one before it, as runs have it. Writes nothing.

    Raises ConfigError if the job or its inputs are others by now, and if what the stage reads is not there.
    """
    output = resolve_output(options.output)
    if spec.from_inputs is not None:
        spec = spec.from_inputs(options)
    job = look_at(spec, options, output, clock)
    again = f"run the job first, or with --keep-stages if it is complete; see: curate status {output}"

    def reached(stage: StageSpec, how: RunOptions) -> _Reached | None:
        found = how.output.rpartition("/")[2]
        if found == key:
            return _Reached(stage)
        if open_ledger(how.output).list().summary is None:
            raise ConfigError(
                f"what that shard reads is not there: {_stage_text(job.spec, stage, how)} is not done; {again}"
            )
        return None

    # Where they are is known to those who run the job alone; here, where the first of them is.
    roots = [*stages_roots(output, job.listing.stages), stages_root(output, alone=False)]
    try:
        ready = run_upstream(job.spec, roots[0], options, reached, lambda *_: None)
    except DamagedRun as error:
        raise ConfigError(f"what that shard reads is damaged: {error.uri}: {error.problem}; {again}") from error
    return ready.spec
