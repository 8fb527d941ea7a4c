"""What a job's `build` returns, as the steps of a pipeline over the job's inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from curate.dataset import stage
from curate.dataset.formats import OutputFormat
from curate.dataset.lazy.api import Dataset
from curate.dataset.lazy.operators import Operator
from curate.dataset.lazy.plan import Apply, Checkpoint, Plan, Scan
from curate.dataset.pipeline import ActorPool, Compute, Pipeline, task_cpus
from curate.dataset.spec import StageSpec
from curate.errors import ConfigError
from curate.job.operator import Process
from curate.runtime.protocol import Resources

if TYPE_CHECKING:
    from curate.job.base import Job


CHECKPOINT = {"format": "parquet", "codec": "zstd"}
"""How rows are kept in a checkpoint."""


@dataclass(frozen=True, slots=True)
class Given:
    """The rows of a job's inputs, whatever they will be."""

    found: pa.Schema | None
    name: str = "input"
    num_cpus: float | None = None

    def pieces(self) -> Iterator[Any]:
        raise self._not_yet()

    def read(self, *_: Any) -> Iterator[Any]:
        raise self._not_yet()

    def label(self, piece: Any) -> str:
        del piece
        raise self._not_yet()

    def shard(self, piece: Any) -> str:
        del piece
        raise self._not_yet()

    def bundles(self) -> Iterator[tuple[Any, ...]]:
        raise self._not_yet()

    def bare(self) -> Given:
        return self

    def count(self) -> int | None:
        return None

    def _not_yet(self) -> ConfigError:
        return ConfigError("build() says what is to be done; the rows are there when the job runs: return the dataset")


def inputs_of(columns: Mapping[str, Any] | None) -> Dataset:
    """Returns the dataset that `build` is given; its schema is known where the job declares the type of all columns."""
    types = None if columns is None else list(columns.items())
    known = types is not None and all(type is not None for _, type in types)
    return Dataset(Scan(Given(pa.schema(types) if known else None)))


@dataclass(frozen=True, slots=True)
class Part:
    """What happens to a shard between two durable places."""

    operator: stage.Operator
    resources: Resources
    """What a task holds for it."""
    path: str | None = None
    """Where the checkpoint is that it writes; None: it writes the job's output."""


def parts_of(job: Job, ds: Dataset, built: Any) -> tuple[Part, ...]:
    """Returns the parts of what `build` made of `ds`, in order: as many as it has checkpoints, and the last one.

    Raises ConfigError for what is no chain of row-wise operators and checkpoints.
    """
    owner = f"{type(job).__name__}.build"
    if not isinstance(built, Dataset):
        raise ConfigError(f"{owner} gave {type(built).__name__}, expected the Dataset that its input becomes")
    chains = tuple(_chains(owner, ds._plan, built._plan, None))
    steps = [step for chain, _ in chains for step in chain]
    if (job.num_gpus or job.resources or job.compute) and not any(isinstance(step, Process) for step in steps):
        raise ConfigError(
            f"{type(job).__name__}: num_gpus, resources and compute are for `process`, which its build does not use; "
            "give them to map_batches"
        )
    return tuple(Part(Pipeline(chain), resources_of(job, chain), path) for chain, path in chains)


def over_checkpoints(spec: StageSpec, before: Sequence[Part]) -> StageSpec:
    """Returns the stage as it is when these parts come before it, each a stage that is written to its checkpoint."""
    kept: tuple[StageSpec, str] | None = None
    for number, part in enumerate(before):
        assert part.path is not None
        first = replace(
            spec,
            name=f"{spec.name}-checkpoint",
            identity={**spec.identity, "output_schema": None, **CHECKPOINT, "checkpoint": number},
            operator=part.operator,
            output_schema=None,
            format=OutputFormat(CHECKPOINT["format"]),
            codec=CHECKPOINT["codec"],
            resources=part.resources,
            # What makes the job again makes all of it.
            origin={},
        )
        kept = _reading(first, kept), part.path
    return _reading(spec, kept)


def _reading(spec: StageSpec, kept: tuple[StageSpec, str] | None) -> StageSpec:
    """Returns the stage as one that reads a checkpoint."""
    if kept is None:
        return spec
    identity = {**spec.identity, "upstream": kept[0].fingerprint}
    return replace(spec, identity=identity, columns=None, required=frozenset(), upstream=kept)


def _chains(owner: str, start: Plan, plan: Plan, path: str | None) -> Iterator[tuple[tuple[Operator, ...], str | None]]:
    steps: list[Operator] = []
    while isinstance(plan, Apply):
        steps.insert(0, plan.operator)
        plan = plan.input
    if isinstance(plan, Checkpoint):
        yield from _chains(owner, start, plan.input, plan.path)
    elif plan is not start:
        if isinstance(plan, Scan):
            raise ConfigError(
                f"{owner} gave {plan.source.name}, expected what becomes of the dataset that it was given"
            )
        what = type(plan).__name__.lower()
        raise ConfigError(f"{owner}: a job has one output for each shard of its input, so it has no {what}")
    yield tuple(steps), path


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
