"""Refuses a job before anything is written: a run and a dry run ask these functions, so that none knows of less."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import replace

from curate.backends.choose import Ask, Chosen
from curate.graph.keys import ask_of, stages_of
from curate.graph.outdated import refuse_outdated
from curate.graph.start import StagedJob
from curate.ledger.ledger import open_ledger
from curate.ledger.stages import refuse_planted
from curate.resume.identity import job_of
from curate.resume.options import RunOptions, resolve_output
from curate.resume.removal import overwritten, refuse_links
from curate.runtime.protocol import Resources
from curate.stage.stage import Stage
from curate.storage.uris import is_local

Ahead = Callable[[Sequence[Ask]], None]
"""What is called before the first stage is run that is not done, with what the stages that are to run ask of the
backend."""


def over_checkpoint(last: Stage, options: RunOptions, ahead: Ahead) -> Ahead:
    """Returns what is called before a checkpoint is made: it raises ConfigError, too, if the job that is to read it is
    not the one that is there."""
    # What it says is of this job, and not of the checkpoint.
    context = copy_context()

    def asked(asks: Sequence[Ask]) -> None:
        if not options.overwrite:
            ledger = open_ledger(resolve_output(options.output))
            context.run(job_of, last.record, ledger, ledger.list())
        ahead((*asks, ask_of(last)))

    return asked


def refuse_unready(job: StagedJob, options: RunOptions, chosen: Chosen, ahead: Ahead) -> None:
    """Raises ConfigError for each reason not to run the stages of a job that was looked at. Nothing was written then,
    and nothing started but what `ahead` begins."""
    before = [ask_of(one) for one in stages_of(job.last)]
    if job.listing.has_job:
        # Some of them may be done, on a larger machine.
        before = [replace(one, resources=Resources(num_cpus=0.0), pools=()) for one in before]
    ahead((*before, ask_of(job.last)))
    _refuse_mixed_keys(job)
    refuse_outdated(job.last, options, begun=job.begun)
    if is_local(job.ledger.root):
        refuse_links(job.ledger.root)
    if options.part is None and chosen.name != "ray":
        # Of Ray only who is connected knows whether it has other machines, which do not read these.
        refuse_planted(job.ledger.root)
    if options.overwrite and (job.listing.has_job or job.listing.plan_parts):
        overwritten(job.last.record, job.ledger, job.listing)


def refuse_asked(job: StagedJob, options: RunOptions) -> None:
    """Raises ConfigError if a job of which nothing is left to do is to do something that it cannot."""
    if options.redo_stale or options.drop_removed:
        refuse_outdated(job.last, options, begun=job.begun)


def _refuse_mixed_keys(job: StagedJob) -> None:
    """Raises ConfigError if a key has other types in some of the files that a job is about to begin with."""
    if job.job is None:
        for stage in stages_of(job.last):
            if stage.runs is not None:
                stage.rows.refuse_keys(stage.record.name, [key.column for key in stage.runs.order.keys])
