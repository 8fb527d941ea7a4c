"""The entry of every run: a stage with the stages before it, options, and the handling of signals."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import current_thread, main_thread
from typing import Any, NamedTuple

from curate.backends.choose import Ask, Chosen
from curate.clock import Clock, SystemClock
from curate.driver.options import RunOptions, resolve_output
from curate.driver.signals import Signals
from curate.driver.state import Prepared
from curate.errors import BegunRunInterrupted, ConfigError
from curate.graph import dry
from curate.graph.graph import JobRun
from curate.graph.keys import checkpoints_of
from curate.late_pandas import import_pandas_late
from curate.ledger.summary import Summary
from curate.log import get_logger
from curate.notify.run_teller import telling
from curate.runtime.protocol import Backend
from curate.sources.patterns import parse_input, refuse_overlap
from curate.stage.stage import Stage


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

    Raises ConfigError for every reason not to run, but for a driver that is at work: the text says so.
    """
    if stage.from_inputs is not None:
        stage = stage.from_inputs(options)
    stage.record.refuse_unwritable(None)
    _refuse_checkpoints(stage, resolve_output(options.output))
    chosen = Chosen.of(options.backend, asks_of(stage))
    prepared, text = dry.dry_run(stage, replace(options, backend=chosen.name))
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
    import_pandas_late()
    if stage.from_inputs is not None:
        stage = stage.from_inputs(options)
    stage.record.refuse_unwritable(None)
    _refuse_checkpoints(stage, resolve_output(options.output))
    chosen = Chosen.of(options.backend, asks_of(stage), backend)
    clock = clock or SystemClock()
    for line, way in _unwritten(stage):
        get_logger(job=stage.record.name).warning(line, next=way)
    with telling(options.notify, resolve_output(options.output), clock) as teller:
        options = replace(options, backend=chosen.name, teller=teller)
        try:
            log = get_logger(job=stage.record.name)
            with Signals(options.handle_signals, log) as signals, _written_down(signals, options):
                ended = JobRun(clock, chosen, signals).run(stage, options)
        except KeyboardInterrupt:
            if teller.begun:
                # Where it was is of no interest, and what follows is.
                raise BegunRunInterrupted("run it again to resume: finished shards are skipped") from None
            raise
        teller.ended(ended)
    return ended


@contextmanager
def _written_down(signals: Signals, options: RunOptions) -> Iterator[None]:
    """Has a program that leaves SIGTERM and SIGHUP to the system end of them as it would, once its run has written down
    that it was interrupted."""
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


def _refuse_checkpoints(stage: Stage, output: str) -> None:
    """Raises ConfigError for a checkpoint in the output, or around it, or among what it is made of: files of one would
    be taken for those of the other."""
    for one in checkpoints_of(stage):
        assert one.path is not None
        path = resolve_output(one.path)
        refuse_overlap([parse_input(text) for text in one.stage.inputs], path)
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


def asks_of(stage: Stage) -> Iterator[Ask]:
    """Yields what a stage, and each of those that are run before it, asks of where it runs."""
    yield Ask(stage.tasks.resources, tuple(stage.operator.pools))
    for before in stage.before:
        yield from asks_of(before.stage)
