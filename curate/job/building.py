"""What a job's `build` returns, as the steps of a pipeline over the job's inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from curate.dataset.lazy.api import Dataset
from curate.dataset.lazy.operators import Operator
from curate.dataset.lazy.plan import Apply, Plan, Scan
from curate.dataset.pipeline import ActorPool, Compute, task_cpus
from curate.errors import ConfigError
from curate.job.operator import Process
from curate.runtime.protocol import Resources

if TYPE_CHECKING:
    from curate.job.base import Job


@dataclass(frozen=True, slots=True)
class Given:
    """The rows of a job's inputs, whatever they will be."""

    found: pa.Schema | None
    name: str = "input"

    def pieces(self) -> Iterator[Any]:
        raise self._not_yet()

    def read(self, *_: Any) -> Iterator[Any]:
        raise self._not_yet()

    def label(self, piece: Any) -> str:
        del piece
        raise self._not_yet()

    def count(self) -> int | None:
        return None

    def _not_yet(self) -> ConfigError:
        return ConfigError("build() says what is to be done; the rows are there when the job runs: return the dataset")


def inputs_of(columns: Mapping[str, Any] | None) -> Dataset:
    """Returns the dataset that `build` is given; its schema is known where the job declares the type of all columns."""
    types = None if columns is None else list(columns.items())
    known = types is not None and all(type is not None for _, type in types)
    return Dataset(Scan(Given(pa.schema(types) if known else None)))


def steps_of(job: Job, ds: Dataset, built: Any) -> tuple[Operator, ...]:
    """Returns the steps of what `build` made of `ds`. Raises ConfigError for what is no chain of row-wise operators."""
    owner = f"{type(job).__name__}.build"
    if not isinstance(built, Dataset):
        raise ConfigError(f"{owner} gave {type(built).__name__}, expected the Dataset that its input becomes")
    steps = tuple(_chain(owner, ds._plan, built._plan))
    if (job.num_gpus or job.resources or job.compute) and not any(isinstance(step, Process) for step in steps):
        raise ConfigError(
            f"{type(job).__name__}: num_gpus, resources and compute are for `process`, which its build does not use; "
            "give them to map_batches"
        )
    return steps


def _chain(owner: str, start: Plan, plan: Plan) -> Iterator[Operator]:
    if plan is start:
        return
    if not isinstance(plan, Apply):
        what = type(plan).__name__.lower()
        if isinstance(plan, Scan):
            raise ConfigError(
                f"{owner} gave {plan.source.name}, expected what becomes of the dataset that it was given"
            )
        raise ConfigError(f"{owner}: a job has one output for each shard of its input, so it has no {what}")
    yield from _chain(owner, start, plan.input)
    yield plan.operator


def compute_of(job: Job) -> Compute | None:
    """Returns where a job's `process` runs: in a pool where it asks for one, a GPU, or custom resources."""
    if job.compute is None and not job.num_gpus and not job.resources:
        return None
    held = Resources(float(job.num_cpus), float(job.num_gpus), job.memory, dict(job.resources))
    return Compute(job.compute or ActorPool(), held)


def resources_of(job: Job, steps: tuple[Operator, ...]) -> Resources:
    """Returns what a task holds: what the job asks for, if it is not its pool that does."""
    if any(isinstance(step, Process) and step.compute is not None for step in steps):
        return Resources(task_cpus(steps))
    return Resources(task_cpus(steps, float(job.num_cpus)), 0.0, job.memory)
