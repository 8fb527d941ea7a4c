"""The entry of every run: a stage with the stages before it, options, and the handling of signals."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from threading import current_thread, main_thread
from typing import Any, NamedTuple

from curate.around import contextmanager
from curate.backends.choose import Chosen
from curate.clock import Clock, SystemClock
from curate.driver.signals import Signals
from curate.errors import ConfigError, interrupted_run
from curate.graph import dry
from curate.graph.graph import JobRun
from curate.graph.keys import asks_of, checkpoints_of, in_memory_of, read_by
from curate.keywords import naming_columns, option
from curate.ledger.summary import Summary
from curate.log import get_logger
from curate.notify.run_teller import telling
from curate.resume.options import RunOptions, resolve_output
from curate.resume.prepare import refuse_place
from curate.resume.state import Prepared
from curate.runtime.protocol import Backend
from curate.sources.patterns import parse_input, refuse_overlap
from curate.stage.stage import Stage
from curate.storage.uris import MEMORY


class DryRun(NamedTuple):
    """What a run would do."""

    prepared: Prepared
    """What it would start from."""
    text: str
    """In words."""
    chosen: Chosen
    """Where its tasks would run."""


def dry_run(stage: Stage, options: RunOptions) -> DryRun:
    """Returns what a run would do. Writes nothing, starts nothing, waits not.

    Raises ConfigError for whatever a run would be refused for: both come to it by the same functions. But for what is
    known only to who writes or connects (no right to write, a cluster that does not answer), and for a driver that is
    at work: the text says so.
    """
    with naming_columns(stage.record.parameters):
        stage, chosen = _checked(stage, options, None)
        chosen = replace(chosen, dry=True)
        prepared, text = dry.dry_run(stage, replace(options, backend=chosen.name), chosen)
    for line, way in _unwritten(stage):
        text += f"\nnote     {line}; {way}"
    if len(prepared.todo):
        text += f"\nbackend  {chosen.name}{f': {chosen.why}' if chosen.why else ''}"
    return DryRun(prepared, text, chosen)


def run(stage: Stage, options: RunOptions, *, clock: Clock | None = None, backend: Backend | None = None) -> Summary:
    """Runs a stage until every shard of its scope is done or has failed, and returns the summary.

    Idempotent: what has an output is skipped, whoever made it. Raises ConfigError before anything is dispatched if the
    job cannot run as asked, or another driver is at work on it; KeyboardInterrupt if it was interrupted before;
    RunStoppedError if the store failed the driver; JobReplacedError if someone else overwrote the job meanwhile.
    """
    with naming_columns(stage.record.parameters):
        return _run(stage, options, clock, backend)


def _run(stage: Stage, options: RunOptions, clock: Clock | None, backend: Backend | None) -> Summary:
    stage, chosen = _checked(stage, options, backend)
    clock = clock or SystemClock()
    for line, way in _unwritten(stage):
        get_logger(job=stage.record.name).warning(line, next=way)
    with telling(options.notify, resolve_output(options.output), clock) as teller:
        options = replace(options, backend=chosen.name, teller=teller)
        try:
            log = get_logger(job=stage.record.name)
            with Signals(options.handle_signals, log) as signals, _written_down(signals, options):
                ended = JobRun(clock, chosen, signals).run(stage, options)
                ended = replace(ended, interrupted=signals.interrupts.came)
        except KeyboardInterrupt:
            if teller.begun:
                # Where it was is of no interest, and what follows is.
                raise interrupted_run() from None
            raise
        teller.ended(ended)
    return ended


def _checked(stage: Stage, options: RunOptions, backend: Backend | None) -> tuple[Stage, Chosen]:
    """Returns the stage that makes the outputs of a run's inputs, and where it runs. Raises ConfigError for each reason
    not to run that is known before anything is looked at."""
    if stage.from_inputs is not None:
        stage = stage.from_inputs(options)
    _refuse_options(options)
    stage.record.refuse_unwritable(None)
    _refuse_what_is_read(stage, resolve_output(options.output))
    named = [one for one in (*options.inputs, options.output) if one.startswith(MEMORY)]
    return stage, Chosen.of(options.backend, asks_of(stage), backend, [*named, *in_memory_of(stage)])


@contextmanager
def _written_down(signals: Signals, options: RunOptions) -> Iterator[None]:
    """Lets SIGTERM and SIGHUP end a program as the system would, once its run has noted that it was interrupted."""
    left = () if options.handle_signals or current_thread() is not main_thread() else (signal.SIGTERM, signal.SIGHUP)
    numbers = [number for number in left if signal.getsignal(number) is signal.SIG_DFL]
    came: list[int] = []

    def end(number: int, _: Any) -> None:
        came.append(number)
        signals.terminate()

    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
        if came:
            os.kill(os.getpid(), came[0])


def _refuse_options(options: RunOptions) -> None:
    """Raises ConfigError for options that cannot be, whatever the job is: all of it, and not its first stage alone."""
    refuse_place(options)
    if options.part is not None and options.output.startswith(MEMORY):
        raise ConfigError(
            f"{option('part', str(options.part))}: the output {options.output} is in the memory of this process, where "
            "those of the other parts do not see it; choose gs://, s3:// or a folder that all of them share"
        )
    if options.limit is not None and options.limit < 1:
        raise ConfigError(
            f"{option('limit', options.limit)} leaves nothing to do; it is a number of shards, at least 1"
        )
    if options.overwrite and options.retry_failed:
        raise ConfigError(
            f"{option('overwrite')} removes all outputs, so {option('retry_failed')} would have nothing to retry; pass "
            "one of them"
        )


def _refuse_what_is_read(stage: Stage, output: str) -> None:
    """Raises ConfigError for an output or a checkpoint among the files that are read, and for a checkpoint in the
    output, or around it: files of one would be taken for those of the other."""
    paths = [resolve_output(one.path) for one in checkpoints_of(stage) if one.path is not None]
    read = [parse_input(text) for text in read_by(stage)]
    for path in (*paths, output):
        refuse_overlap(read, path)
    for path in paths:
        if f"{path}/".startswith(f"{output}/") or f"{output}/".startswith(f"{path}/"):
            raise ConfigError(
                f"the checkpoint {path} and the output {output} lie in each other; choose a checkpoint that is neither "
                "the output, nor below it, nor above it"
            )


def _unwritten(stage: Stage) -> Iterator[tuple[str, str]]:
    """Yields what is listed nowhere of a stage and its checkpoints, and what to do if it is wanted."""
    for line in stage.unwritten:
        yield line, "to keep it, put a checkpoint between the two: it is written beside the checkpoint"
    for before in stage.before:
        yield from _unwritten(before.stage)
