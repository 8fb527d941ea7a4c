"""About what a chain costs: some shards of its input go through all steps in a temporary folder, in this process."""

from __future__ import annotations

import gc
import resource
import tempfile
import time
from collections.abc import Sequence

from curate.chain.run import stage_of
from curate.chain.steps import Step, inputs_of, parameters_of
from curate.dataclass import dataclass, replace
from curate.errors import ConfigError
from curate.graph.entry import run
from curate.keywords import of_step
from curate.ledger.summary import RunState, Summary
from curate.log import quiet
from curate.resume.options import parse_run_options
from curate.sources.listing import list_inputs
from curate.sources.patterns import parse_input
from curate.stores.open import open_store

SAMPLE_BYTES = 4 << 20
"""About how much is read of the input: more, where a larger file cannot be read in parts."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a step took for the sample."""

    name: str
    rows_in: int
    rows_out: int
    bytes_out: int
    seconds: float
    """The processor's time, in all threads, and in processes beside the worker."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What all steps took for the sample, and how large that is."""

    steps: tuple[StepCost, ...]
    sample: int
    """Bytes of the input that were read."""
    whole: int
    """Bytes of all of it."""

    @property
    def times(self) -> float:
        """How many times the sample the input is."""
        return self.whole / self.sample if self.sample else 0.0


def sample_cost(steps: Sequence[Step]) -> Cost:
    """Runs the steps on some shards of their input and returns what each took. Writes to a temporary folder alone.

    The time contains what a worker needs to start, such as the load of a model. Raises ConfigError if a step fails.
    """
    with tempfile.TemporaryDirectory(prefix="curate-sample-") as folder, quiet():
        placed = [replace(one, output=f"{folder}/{one.name}") for one in steps]
        found, sample, whole = [], 0, 0
        for step in placed:
            sizes = _sizes(step)
            summary, seconds = _ran(step, placed, sizes)
            whole += sum(sizes)
            sample += summary.bytes_in if step.input else 0
            books = summary.books
            found.append(StepCost(step.name, books.rows_in, books.rows_out, summary.bytes_out, seconds))
    return Cost(tuple(found), sample, whole)


def _ran(step: Step, steps: Sequence[Step], inputs: Sequence[int]) -> tuple[Summary, float]:
    """Runs a step on so many files, of these sizes, that they are about the sample; or on what earlier steps made."""
    own = parameters_of(step)
    shard = max(min(SAMPLE_BYTES, sum(inputs) // max(len(inputs), 1)), 1)
    sized = replace(step, options={**own, "shard_bytes": SAMPLE_BYTES} if step.input else own)
    options = parse_run_options(
        input=inputs_of(step, steps),
        output=step.output,
        backend="inline",
        no_samples=True,
        limit=-(-SAMPLE_BYTES // shard) if step.input else None,
        allow_incomplete_input=bool(step.input_from),
    )
    before, others = time.process_time(), _others_s()
    with of_step(step.name):
        summary = run(stage_of(sized), options)
    own_s = time.process_time() - before
    if summary.state is not RunState.COMPLETE:
        why = "; ".join(one.error for one in summary.failures) or summary.state.value
        raise ConfigError(f"step {step.name!r} fails on a sample of its input: {why}")
    # A process beside the worker ends with what has started it, and its time is known from then on.
    gc.collect()
    return summary, own_s + _others_s() - others


def _others_s() -> float:
    """Returns the processor's time of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _sizes(step: Step) -> list[int]:
    listed = (list_inputs([parse_input(one)], open_store).table for one in step.input)
    return [size for table in listed for size in table["size"].to_pylist()]
