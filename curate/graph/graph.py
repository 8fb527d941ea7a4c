"""Runs a job of several stages in order, and keeps the earlier stages as long as the job can resume from them.

    <output>/_curate/inputs/                 the inputs, as the job began with them, and those that it took since
    <output>/_curate/stages/<key>/           a stage before the last one, with a ledger of its own

`keys` names the stages; `start` begins a job and removes stages when it is complete.

A task that finds a damaged run file removes it (see `curate.reduce.ranges`) and fails. Then all stages are checked
again: in each, the shards without output run, and then the failed ones. Nothing else records the loss.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from curate.around import contextmanager
from curate.backends.choose import Chosen
from curate.clock import Clock
from curate.driver.signals import Signals
from curate.driver.stage_progress import JobProgress
from curate.driver.stage_run import run_stage
from curate.errors import CannotBeMet, ConfigError, CurateError, DamagedRun, DiskFull, ObjectNotFound, StorageError
from curate.graph.keys import ask_of, checkpoints_of, key_of, planned, reports_of, stages_of
from curate.graph.start import (
    StagedJob,
    as_planned,
    begin,
    complete_now,
    confirm_overwrite,
    is_complete,
    look_at,
    place_of,
    sweep,
    take_back,
)
from curate.graph.unready import Ahead, over_checkpoint, refuse_asked, refuse_unready
from curate.graph.upstream import Ready, checkpoint_options, ready_stages
from curate.graph.upstream_books import upstream_books_of
from curate.keywords import of_checkpoint, start_over
from curate.ledger.ledger import open_ledger
from curate.ledger.listing import match_outputs
from curate.ledger.run_log import new_run_id
from curate.ledger.stages import LAST, SCRATCH, make_scratch, refuse_planted, scratch_of, stages_root
from curate.ledger.summary import RunState, Summary, together
from curate.log import get_logger
from curate.resume.options import RunOptions, resolve_output
from curate.resume.state import WorkLeftError
from curate.runtime.protocol import Resources
from curate.sources.listing import list_inputs
from curate.sources.patterns import parse_input
from curate.stage.stage import Stage, Upstream
from curate.storage.uris import is_local
from curate.stores.local import remove_scratch
from curate.units import format_bytes

MOST_MENDED = 3
"""How often a run makes a file again that a later stage found damaged or gone."""


class JobRun:
    """Runs jobs: one, and the checkpoints that it reads, each of which is a job."""

    def __init__(self, clock: Clock, chosen: Chosen, signals: Signals) -> None:
        self._clock = clock
        self._chosen = chosen
        self._signals = signals
        self._run_stage = partial(run_stage, clock=clock, chosen=chosen, signals=signals)

    def run(self, last: Stage, options: RunOptions, ahead: Ahead | None = None) -> Summary:
        """Runs a job until every shard is done or has failed, and returns the summary of the last stage, or of the
        stage or checkpoint that did not end well. `ahead` is called if there is something to run; None: the backend
        begins."""
        ahead = ahead or self._chosen.begin
        if not last.needs_all_inputs:
            for ready in ready_stages(last, "", options):
                if ready.checkpoint is None:
                    return self._run_stage(ready.stage, ready.options, ahead=lambda: ahead([ask_of(last)]))
                ended = self._run_checkpoint(ready.checkpoint, ready.options, over_checkpoint(last, options, ahead))
                if ended.state is not RunState.COMPLETE:
                    break
            return ended
        ended = self._run_staged(last, options, ahead)
        if ended.state is RunState.COMPLETE and not ended.dispatched:
            # Nothing was left to do, so that no checkpoint was looked at; others may read it.
            for before in checkpoints_of(last):
                if _lacks_outputs(before):
                    made = self._run_checkpoint(before, options)
                    if made.state is not RunState.COMPLETE:
                        return made
        return ended

    def _run_checkpoint(self, before: Upstream, options: RunOptions, ahead: Ahead | None = None) -> Summary:
        """Runs the job of a checkpoint, for who is run with these options."""
        with of_checkpoint():
            ended = self.run(before.stage, checkpoint_options(options, before), ahead)
        if ended.state is RunState.COMPLETE and self._stopped():
            raise KeyboardInterrupt
        return ended

    def _stopped(self) -> bool:
        return self._signals.interrupts.came

    def _run_staged(self, last: Stage, options: RunOptions, ahead: Ahead) -> Summary:
        """Runs a job of several stages. Nothing is started, and no stage looked at, if it is complete."""
        output = resolve_output(options.output)
        job = look_at(last, options, output, self._clock)
        if job.done:
            refuse_asked(job, options)
            try:
                ended = self._conclude(job, options)
            except WorkLeftError:
                pass
            else:
                if ended.state is RunState.COMPLETE and not options.keep_stages:
                    sweep(job.stores.of(output), output, known=job.listing.stages)
                return ended
        refuse_unready(job, options, self._chosen, ahead)
        try:
            with _connected(self._chosen, self._signals) as (alone, start_s):
                # The drivers of other parts read what this one writes.
                alone = alone and options.part is None
                if alone:
                    refuse_planted(output)
                if options.overwrite and (checkpoints := [*checkpoints_of(last)]):
                    options = confirm_overwrite(job, options)
                    # What they are refused for, they are before anything of the job is removed.
                    for before in checkpoints:
                        made = self._run_checkpoint(before, options)
                        if made.state is not RunState.COMPLETE:
                            return made
                run_id = new_run_id(self._clock.now(), job.listing.run_ids)
                job.last, options = begin(job, options, self._clock, run_id)
                root = stages_root(output, alone=alone)
                if root == scratch_of(output):
                    make_scratch(output)
                with JobProgress(
                    job.last, options, job.ledger, self._clock, planned(job.last), lambda: job.stores.calls, run_id
                ) as course:
                    course.start_s = start_s
                    ended = self._run_stages(job, replace(options, display=course.display), root, course)
                    ended = course.summary(ended)
        except CannotBeMet as error:
            take_back(job, options, self._clock, run_id, error.key if isinstance(error, UnmetError) else "")
            raise ConfigError(str(error)) from None
        finally:
            if is_local(output):
                remove_scratch(job.stores.scratch)
        if ended.state is RunState.COMPLETE and not options.keep_stages and is_complete(job):
            sweep(job.stores.of(output), output)
        return ended

    def _conclude(self, job: StagedJob, options: RunOptions) -> Summary:
        """Concludes a job of which all outputs are there. Raises WorkLeftError if that is not so."""
        return self._run_stage(as_planned(job), options, seen=job.seen)

    def _conclude_meanwhile(self, job: StagedJob, options: RunOptions, course: JobProgress) -> Summary:
        """The same of a job that another driver has completed while this one was at work on it."""
        ended = self._conclude(job, options)
        course.concluded(ended)
        return ended

    def _run_stages(self, job: StagedJob, options: RunOptions, root: str, course: JobProgress) -> Summary:
        """Runs all stages; again, where a later one found files of an earlier one damaged, or gone. Returns the summary
        of the one that was run last."""
        last, log = job.last, get_logger(job=job.last.record.name)
        rounds: list[Summary] = []
        mended: Counter[str] = Counter()
        while True:
            done: list[tuple[Stage, str]] = []

            try:
                try:
                    ready, ended = self._run_before(last, options, root, course, done)
                    if ended is None:
                        _refuse_other_shards(ready.stage, job)
                        earlier = upstream_books_of(last, partial(place_of, root), job.ledger)
                        reports = reports_of(course.stages, root)
                        whole = replace(ready.stage, earlier=earlier, reports=reports, begun=job.owned.job)
                except CurateError as error:
                    # Unless the driver beside this one has completed the job, and removed its stages: then whatever.
                    if not complete_now(job):
                        if isinstance(error, ObjectNotFound):
                            raise DamagedRun(error.uri or str(error), "another driver removed it") from error
                        raise
                    log.info("another driver has completed the job meanwhile", here=str(error))
                    return self._conclude_meanwhile(job, options, course)
                if ended is None:
                    ended = self._run_stage(whole, ready.options, at=course.stage(LAST, last.record.name))
                    course.ended(LAST, ended)
                    rounds.append(ended)
            except DamagedRun as error:
                mended[error.uri] += 1
                if mended[error.uri] > MOST_MENDED:
                    raise StorageError(_hopeless(error.uri)) from error
                problem = f"{error.uri}: {error.problem}"
            else:
                _tell_if_full(ended, last)
                if rounds and ended is rounds[-1]:
                    ended = together(rounds)
                failed = ended.state in (RunState.FAILED, RunState.ABORTED)
                if not failed or not (lost := _lost(done)):
                    return self._conclude_meanwhile(job, options, course) if failed and complete_now(job) else ended
                mended.update(lost)
                worst = max(lost, key=mended.__getitem__)
                if mended[worst] > MOST_MENDED:
                    log.error(_hopeless(worst))
                    return ended
                problem = f"{worst} is missing" + (f", and {len(lost) - 1:,} more" if len(lost) > 1 else "")
            log.warning("files of an earlier stage were damaged or missing; their shards run again", problem=problem)
            if complete_now(job):
                return self._conclude_meanwhile(job, options, course)

    def _run_before(
        self, last: Stage, options: RunOptions, root: str, course: JobProgress, done: list[tuple[Stage, str]]
    ) -> tuple[Ready, Summary | None]:
        """Runs what the last stage reads. Returns that one, which is ready then; or what did not end well, with its
        summary. Stages that are complete are added to `done`."""
        for ready in ready_stages(last, root, options):
            stage, output = ready.stage, ready.options.output
            key = LAST if output == options.output else output.rpartition("/")[2]
            if ready.checkpoint is not None:
                # Who watches the job is told of the stage that reads it.
                course.stage(key, stage.record.name)
                ended = self._run_checkpoint(ready.checkpoint, ready.options)
                if ended.state is RunState.COMPLETE:
                    continue
            elif key == LAST:
                break
            else:
                ended = self._run_stage(stage, ready.options, at=course.stage(key, stage.record.name))
            course.ended(key, ended)
            _refuse_unmet(ended, key)
            if ended.state is not RunState.COMPLETE:
                return ready, ended
            if self._stopped():
                # It came while the last of this stage ran. The next one would hear of it no more.
                return ready, replace(ended, state=RunState.INTERRUPTED)
            done.append((stage, output))
        return ready, None


class UnmetError(CannotBeMet):
    """Also says which stage found it."""

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message)
        self.key = key


def _refuse_unmet(ended: Summary, key: str) -> None:
    """Raises UnmetError if a stage has found that what was asked for cannot be made of these rows."""
    before = f"{CannotBeMet.__name__}: "
    for group in ended.failures:
        if group.error.startswith(before):
            raise UnmetError(group.error.removeprefix(before), key)


def _lacks_outputs(before: Upstream) -> bool:
    """Returns whether outputs are gone of a checkpoint that is there; one that was removed as a whole is not missed."""
    assert before.path is not None
    output = resolve_output(before.path)
    ledger = open_ledger(output)
    listing = ledger.list()
    if not listing.has_job or ledger.read_job()["fingerprint"] != before.stage.record.fingerprint:
        return False
    return not match_outputs(ledger.read_plan(listing), listing, before.stage.record.suffix).done.all()


def _hopeless(uri: str) -> str:
    return (
        f"{uri} was found damaged or gone {MOST_MENDED + 1} times, although it was written again each time: the disk "
        f"loses data, or another process removes files. Check the disk, or move the stages ({SCRATCH}, or another "
        "output), and run this again"
    )


def _lost(done: Sequence[tuple[Stage, str]]) -> list[str]:
    """Returns the outputs that are gone of stages that were complete."""
    lost = []
    for stage, output in done:
        ledger = open_ledger(output)
        listing = ledger.list()
        if not listing.has_job:
            lost.append(output)
            continue
        plan = ledger.read_plan(listing)
        missing = (~match_outputs(plan, listing, stage.record.suffix).done).nonzero()[0]
        lost += [ledger.uri(plan.shard_id(rank) + stage.record.suffix) for rank in missing.tolist()]
    return lost


def _refuse_other_shards(stage: Stage, job: StagedJob) -> None:
    """Raises ConfigError if the last stage has other outputs than its plan says: outputs of both would be mixed."""
    if not len(job.plan):
        return
    if stage.rows.grows:
        _refuse_other_files(job)
        return
    now, then = stage.rows.inputs((), job.stores.of).table["name"].to_pylist(), job.plan.ids.to_pylist()
    if set(now[: len(then)] if job.last.extended is not None else now) != set(then):
        raise ConfigError(
            f"{job.ledger.root} was planned as {len(then):,} outputs, but this version of curate makes different ones "
            f"from the same rows, {len(now):,} of them; continue with the version that began it, or "
            f"{start_over()}"
        )


def _refuse_other_files(job: StagedJob) -> None:
    """Raises ConfigError if the checkpoint that the last stage reads has files that its plan does not know: the stages
    before have not seen their rows, or have seen more rows than the outputs that are there."""
    paths = [parse_input(before.path) for before in job.last.before if before.path is not None]
    then = set(job.plan.table["uri"].to_pylist())
    if new := [uri for uri in list_inputs(paths, job.stores.of).table["uri"].to_pylist() if uri not in then]:
        raise ConfigError(
            f"the checkpoint {job.last.before[0].path} has files that {job.ledger.root} did not begin with "
            f"({len(new):,}, such as {new[0]}): another job added them. Give this job its own checkpoint, or "
            f"{start_over()}"
        )


def _tell_if_full(ended: Summary, last: Stage) -> None:
    """Says how much room a stage would have needed that has failed because a disk was full."""
    full = [group.error for group in ended.failures if group.error.startswith(f"{DiskFull.__name__}:")]
    # Where inodes are lacking, bytes are no answer; the error says so.
    if not full or "0 inodes" in full[0]:
        return
    ledger = open_ledger(ended.output)
    listing = ledger.list()
    plan = ledger.read_plan(listing)
    stage = next((one for one in stages_of(last) if ended.output.endswith(f"/{key_of(one)}")), last)
    matched = match_outputs(plan, listing, stage.record.suffix)
    read = int(plan.sizes[matched.done].sum())
    written = int(listing.objects.numbers("size")[matched.position[matched.done]].sum())
    left = int(plan.sizes[~matched.done].sum())
    # What was written of what was read, if that is known; else as if nothing grew.
    needed = round(left * (written / read if read else 1.0))
    free = shutil.disk_usage(_existing(ended.output)).free if is_local(ended.output) else 0
    get_logger(job=last.record.name).error(
        "the disk is full",
        where=ended.output,
        written=format_bytes(written),
        needs=f"about {format_bytes(needed)} more",
        free=format_bytes(free),
        next=f"free space there, or use another {SCRATCH} or output, then run this again; it resumes",
    )


def _existing(path: str) -> str:
    while not os.path.exists(path):  # noqa: PTH110
        path = os.path.dirname(path)  # noqa: PTH120
    return path


@contextmanager
def _connected(chosen: Chosen, signals: Signals) -> Iterator[tuple[bool, float]]:
    """Stays connected to where tasks run; tells whether that is this machine alone, and the seconds that it took."""
    held = chosen.backend()
    try:
        with signals.starting(held):
            start_s = held.start(Resources(num_cpus=0.0))
        yield held.alone(), start_s
    finally:
        if not signals.interrupts.terminated:
            held.close()
