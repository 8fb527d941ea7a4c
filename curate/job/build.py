"""Turns the result of a job's `build` into the stages that make its outputs.

For several outputs, the datasets are compared by identity: an operator that all of them were derived from runs once per
shard. An operator that was called again for another output is another one, even if it is equal.

Without an exchange, the job reads its inputs, or its last checkpoint. With one, its stages are those of the plan, which
is lowered once the inputs of a run are listed.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import chain, takewhile
from typing import Any, cast

import pyarrow as pa

from curate.attributes.join import WithAttributes
from curate.dataclass import dataclass, replace
from curate.dataset.dataset import Dataset
from curate.errors import ConfigError
from curate.job.inputs import NotListed, list_for
from curate.job.operator import Process
from curate.job.settings import Settings
from curate.keywords import option
from curate.ledger.side_outputs import MAIN, check_sides
from curate.objects.places import POSITION, placed_schema
from curate.objects.record import OutputFormat
from curate.operators.columns import FilterExpression
from curate.operators.parts import SplitOff
from curate.operators.protocol import Operator
from curate.pipeline.branches import Branching
from curate.pipeline.pipeline import Pipeline
from curate.pipeline.step import task_cpus
from curate.plan.nodes import (
    Apply,
    Checkpoint,
    Exchanged,
    Limit,
    Marked,
    Plan,
    Scan,
    Union,
    Zip,
    name_of,
    schema_of,
    transform,
    walk,
)
from curate.plan.rewrites import operator_of, own_sides, pinned, steps_of, uncounted
from curate.plan.stages import stage_of
from curate.runtime.protocol import Resources
from curate.sources.inputs import FileRows
from curate.stage.operator import StageOperator
from curate.stage.stage import RunRequest, Stage, Upstream

MOVES = Exchanged | Marked | Union | Zip
"""What moves rows between shards."""

Build = Callable[[Dataset], Any]
"""A job's `build`."""

Chain = tuple[Operator, ...]


@dataclass(frozen=True, slots=True)
class Made:
    """What a job is made of."""

    operator: StageOperator
    """What makes its outputs, of what its last stage reads."""
    resources: Resources
    """What a task of that stage holds."""
    sides: tuple[str, ...] = ()
    """Names of the extra outputs."""
    stages: Callable[[Stage], Stage] = lambda last: last
    """Returns the stage that makes its outputs as it is after those that come before it."""
    attributes: tuple[Any, ...] = ()
    """What is known of the attributes that it reads, which decide its outputs."""


def made_of(job: Settings, ds: Dataset, build: Build) -> Made:
    """Returns what `build` makes of `ds`, the job's inputs. Raises ConfigError for what no job can be made of."""
    built = _built(job, ds, build)
    shared = Pipeline(steps_of(built.plan))
    steps = [*(one.operator for one in walk(built.plan) if isinstance(one, Apply)), *chain(*built.tails.values())]
    attributes = tuple(one.identity() for one in steps if isinstance(one, WithAttributes))
    if job.attributes:
        _refuse_no_attributes(job, built.plan, steps)
    return Made(built.operator(shared), built.resources(shared), built.sides, built.stages, attributes)


def _refuse_no_attributes(job: Settings, plan: Plan, steps: Sequence[Operator]) -> None:
    """Raises ConfigError if what is to be attributes is not what `process` makes of the rows of the inputs."""
    process = [one for one in steps if isinstance(one, Process)]
    others = [one for one in steps if not isinstance(one, Process)]
    alone = all(isinstance(one, Apply | Scan) for one in walk(plan))
    if len(process) != 1 or not alone or not all(one.keeps_rows for one in others):
        raise ConfigError(
            f"{job.owner}: attributes are what `process` adds to rows, and it has a `build` that makes other "
            "rows of these, or none of them"
        )


@dataclass(frozen=True, slots=True)
class Built:
    """What `build` returned, checked."""

    job: Settings
    build: Build
    plan: Plan
    """That of the main output, up to where the outputs part."""
    tails: Mapping[str, Chain]
    """The steps that each output has for itself; none if there is one output."""
    sides: tuple[str, ...]
    """Names of the extra outputs: those of tails, and those that steps have of their own."""

    def operator(self, shared: Pipeline) -> StageOperator:
        """Returns what the last stage does, which begins with these steps."""
        others = {name: Pipeline(tail) for name, tail in self.tails.items() if name != MAIN}
        return Branching(shared, Pipeline(self.tails[MAIN]), others) if others else shared

    def resources(self, shared: Pipeline) -> Resources:
        """Returns what a task of the last stage holds, which begins with these steps."""
        return resources_of(self.job, [*cast(Sequence[Operator], shared.steps), *chain(*self.tails.values())])

    def stages(self, last: Stage) -> Stage:
        """Returns the stage that makes the outputs, of which all else is said, after those that come before it.

        What it reads through an exchange is known when a run has listed its inputs: then `build` is called again, with
        these.
        """
        if not any(isinstance(node, MOVES) for node in walk(self.plan)):
            found = self._over_checkpoints(last)
            first = takewhile(lambda step: isinstance(step, FilterExpression), steps_of(self.plan))
            filters = tuple((step.expression, step.reason) for step in cast(Iterable[FilterExpression], first))
            rows = found.rows
            return replace(found, rows=replace(rows, filters=filters)) if isinstance(rows, FileRows) else found

        def from_inputs(asked: RunRequest) -> Stage:
            paths = dict.fromkeys(node.path for node in walk(self.plan) if isinstance(node, Checkpoint))
            again = _built(self.job, Dataset(Scan(files := list_for(last, asked, tuple(paths)))), self.build)
            schema_of(again.plan)  # keys that are not there, or have no order, are said now
            stages = Stages(self.job, last, tuple(paths))
            made = stage_of(again.plan, last.record.format, last.record.codec, stages)
            if made.exchange is not None:
                files.warn_of_folders(last.record.name)
            return again._ended(made, last)

        return replace(last, from_inputs=from_inputs)

    def _ended(self, made: Stage, last: Stage) -> Stage:
        """Returns the stage that the plan ends in as that of the job."""
        chain, with_seed, with_segments = made.operator, made.seeded, made.extended
        assert isinstance(chain, Pipeline)
        return replace(
            made,
            record=last.record,
            tasks=replace(made.tasks, resources=self.resources(chain)),
            operator=self.operator(chain),
            seeded=None if with_seed is None else lambda seed: self._ended(with_seed(seed), last),
            extended=None if with_segments is None else lambda found: self._ended(with_segments(found), last),
        )

    def _over_checkpoints(self, last: Stage) -> Stage:
        """Returns the stage after those that write the checkpoints on the way to it, one after another."""
        checkpoints = [node for node in walk(self.plan) if isinstance(node, Checkpoint)]
        # What becomes of the rows of a checkpoint afterwards is nothing to it.
        identity = {name: value for name, value in last.record.identity.items() if name != "sides"}
        kept: Upstream | None = None
        for number, checkpoint in enumerate(reversed(checkpoints)):
            steps = steps_of(checkpoint.input)
            own = {**identity, "output_schema": None, **CHECKPOINT, "checkpoint": number}
            record = last.record.of_stage(own, OutputFormat(CHECKPOINT["format"]), CHECKPOINT["codec"])
            record = replace(record, name=f"{record.name}-checkpoint", sides=own_sides(steps))
            tasks = replace(last.tasks, resources=resources_of(self.job, steps))
            first = replace(last, record=record, tasks=tasks, operator=Pipeline(steps))
            kept = Upstream(_reading(first, kept), checkpoint.path)
        return _reading(last, kept)


def _reading(stage: Stage, kept: Upstream | None) -> Stage:
    """Returns the stage as one that reads a checkpoint."""
    if kept is None:
        return stage
    record = replace(stage.record, identity={**stage.record.identity, "upstream": kept.stage.record.fingerprint})
    return replace(stage, record=record, rows=FileRows(), before=(kept,))


def _built(job: Settings, ds: Dataset, build: Build) -> Built:
    """Returns what `build` makes of `ds` as a plan, and what follows where outputs part.

    Raises ConfigError for a limit of the inputs themselves, rows that are not made of the inputs at all, and outputs
    that are not made row by row of the same rows.
    """
    owner, built = f"{job.owner}.build", build(ds)
    if isinstance(built, Mapping):
        sides = sides_of(owner, job.sides, built)
        plans = {name: built[name]._plan for name in (MAIN, *sides)}
        _refuse_other_rows(owner, ds, list(plans.values()))
        plan, tails = _parted(owner, plans)
        of_steps = own_sides(steps_of(plan)) | own_sides([one for one in tails[MAIN] if isinstance(one, SplitOff)])
        _refuse_taken(owner, sides, of_steps)
        sides = tuple(sorted({*sides, *of_steps}))
    elif isinstance(built, Dataset):
        _refuse_other_rows(owner, ds, [built._plan])
        plan, tails = _one_output(built._plan, keep=True), {}
        steps = steps_of(plan)
        sides = tuple(sorted(own_sides(steps)))
        # Only of the last step is it `process` that gives tables of extra outputs.
        if steps and isinstance(steps[-1], Process):
            _refuse_taken(owner, steps[-1].sides, own_sides(steps[:-1]))
        if set(job.sides) - set(sides):
            raise no_sides(owner, job.sides)
    else:
        raise no_dataset(owner, built)
    for node in walk(plan):
        under = list(walk(node)) if isinstance(node, Limit) else []
        if _given_in(under, ds) and not any(isinstance(one, MOVES) for one in under):
            raise ConfigError(
                f"{owner}: {_told(node)} of the rows of the job's input, which would need the complete input; put it "
                "after an exchange such as sort or random_shuffle, or run less of the job, with "
                f"{option('limit', ...)} or {option('sample', ...)}"
            )
    plan = uncounted(plan)
    nodes = list(walk(plan))
    if not _given_in(nodes, ds):
        raise ConfigError(
            f"{owner} returned a Dataset that does not use its input; derive it from the dataset that build receives"
        )
    steps_of_all = [operator_of(node) for node in nodes if isinstance(node, Apply | Marked)]
    refuse_idle_pool(job, [*steps_of_all, *(step for tail in tails.values() for step in tail)])
    return Built(job, build, plan, tails, sides)


def _refuse_taken(owner: str, sides: Iterable[str], of_steps: Container[str]) -> None:
    """Raises ConfigError where an output of the job is called as the extra output of a step."""
    for name in sides:
        if name in of_steps:
            raise ConfigError(
                f"{owner} returned the output {name!r}, but a step of {MAIN!r}, or one before it, already has an "
                "extra output of that name; choose another one"
            )


def _parted(owner: str, plans: Mapping[str, Plan]) -> tuple[Plan, Mapping[str, Chain]]:
    """Returns what several outputs have in common, by name, and the steps that each has for itself."""
    paths = {name: _path(plan) for name, plan in plans.items()}
    first, shared_path = paths[MAIN]
    for name, (base, _) in paths.items():
        if base is not first:
            raise ConfigError(
                f"{owner}: the output {name!r} begins with {_told(base)}, and {MAIN!r} with {_told(first)}: all "
                "outputs must be row-wise results of the same exchange; derive them from the dataset after the last one"
            )
    shared = shared_by([nodes for _, nodes in paths.values()])
    tails = {name: tail_of(owner, name, nodes[shared:]) for name, (_, nodes) in paths.items()}
    return _one_output(shared_path[shared - 1] if shared else first), tails


def _path(plan: Plan) -> tuple[Plan, list[Apply | Marked | Checkpoint]]:
    """Returns what a plan begins with behind its last exchange, and its operators and checkpoints since then, in the
    order in which rows come to them."""
    nodes: list[Apply | Marked | Checkpoint] = []
    while isinstance(plan, Apply | Marked | Checkpoint):
        nodes.append(plan)
        plan = plan.input
    return plan, nodes[::-1]


def _refuse_other_rows(owner: str, ds: Dataset, plans: Sequence[Plan]) -> None:
    """Raises ConfigError where rows stay in their shards, and are not those of the job's inputs."""
    if any(isinstance(node, MOVES | Limit) for plan in plans for node in walk(plan)):
        return
    for plan in plans:
        base, _ = _path(plan)
        if isinstance(base, Scan) and base is not ds._plan:
            raise ConfigError(
                f"{owner} returned {base.source.name}, expected a Dataset derived from the one that build receives"
            )


def _given_in(nodes: Sequence[Plan], ds: Dataset) -> bool:
    """Returns whether the job's input is among these."""
    own = pinned(ds._plan)
    return any(node is ds._plan or node == own for node in nodes)


def _told(plan: Plan) -> str:
    if isinstance(plan, Checkpoint):
        return f"the checkpoint at {plan.path!r}"
    return f"a {name_of(plan)}" if isinstance(plan, Union | Zip) else name_of(plan)


def _one_output(plan: Plan, *, keep: bool = False) -> Plan:
    """Returns a plan whose steps give one output each, but for the last one if `keep`."""

    def single(node: Plan) -> Plan:
        if isinstance(node, Apply) and isinstance(node.operator, Process) and node.operator.sides:
            return replace(node, operator=replace(node.operator, sides=()))
        return node

    if keep and isinstance(plan, Apply):
        return replace(plan, input=_one_output(plan.input))
    return transform(plan, single)


SETTINGS = ("job", "columns", "batch_size", "shard_bytes", "attributes", "keep_positions", "with_attributes")
"""Of a job's identity, what says how rows are read, not what becomes of them."""


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of a job, the last of which is `last`; each is called by where it is in the job's plan."""

    job: Settings
    last: Stage
    checkpoints: tuple[str, ...]
    """The paths of all checkpoints, in the order of the plan. Where they lie is no part of an identity."""
    path: tuple[int | str, ...] = ()

    def below(self, number: int) -> Stages:
        """Returns the stages that lead to the first, the second, ... that this one reads."""
        return replace(self, path=(*self.path, number))

    def kept(self, path: str) -> Stages:
        """Returns the stage that writes the checkpoint at `path`, wherever in the plan it is read."""
        return replace(self, path=("checkpoint", self.checkpoints.index(path)))

    def title(self, text: str) -> str:
        """Returns what a stage is called: by the job, too."""
        return f"{self.last.record.name}: {text}"

    def spec(
        self, asked: Sequence[Operator], operators: Sequence[Operator], cpus: float | None, identity: Mapping[str, Any]
    ) -> Stage:
        """Returns a stage: with the identity of the job, whose version and parameters stand for its operators; unless
        these say all of it, as a job with other parameters may have the same stage."""
        del cpus
        record = self.last.record
        told = {name: value for name, value in record.identity.items() if name not in ("sides", "output_schema")}
        if asked and all(one.says_all for one in asked):
            told = {name: value for name, value in told.items() if name in SETTINGS}
            told["operators"] = [one.identity() for one in asked]
        own = {**told, **identity, "owner": self.job.job, "stage": list(self.path)}
        record = record.of_stage(own, OutputFormat(identity["format"]), identity["codec"])
        tasks = replace(self.last.tasks, resources=resources_of(self.job, operators))
        return replace(self.last, record=record, tasks=tasks, from_inputs=None)


CHECKPOINT = {"format": "parquet", "codec": "zstd"}
"""How rows are kept in a checkpoint."""


def no_sides(owner: str, sides: Sequence[str]) -> ConfigError:
    """Returns the error for extra outputs that nothing makes."""
    return ConfigError(
        f"{owner} returned a Dataset that does not end in `process`, but sides names extra outputs "
        f"({', '.join(sides)}); return a mapping of them: {{{MAIN!r}: ..., {sides[0]!r}: ...}}"
    )


def no_dataset(owner: str, built: Any) -> ConfigError:
    """Returns the error for what `build` may not return."""
    return ConfigError(
        f"{owner} returned {type(built).__name__}, expected a Dataset, or a mapping of output names to Datasets "
        f"that includes {MAIN!r}"
    )


def refuse_idle_pool(job: Settings, steps: Iterable[Operator]) -> None:
    """Raises ConfigError where a job asks for a pool, and `process` is not among its steps."""
    if job.wants_pool and not any(isinstance(step, Process) for step in steps):
        raise ConfigError(
            f"{job.owner}: num_gpus, resources and compute are for `process`, which build does not use; pass them to "
            "map_batches"
        )


def sides_of(owner: str, declared: Sequence[str], built: Mapping[Any, Any]) -> tuple[str, ...]:
    """Returns the names of the extra outputs that `build` gave, in order."""
    check_sides(owner, (name for name in built if name != MAIN))
    for name, ds in built.items():
        if not isinstance(ds, Dataset):
            raise ConfigError(f"{owner} returned {type(ds).__name__} for the output {name!r}, expected a Dataset")
    if MAIN not in built:
        raise ConfigError(
            f"{owner} returned the outputs {', '.join(map(repr, built)) or 'of no name'}, but not {MAIN!r}, the main "
            "output"
        )
    sides = tuple(sorted(name for name in built if name != MAIN))
    if declared and set(declared) != set(sides):
        raise ConfigError(
            f"{owner} returned the extra outputs {', '.join(sides) or 'none'}, but sides names "
            f"{', '.join(sorted(declared))}; name the same ones, or leave sides out"
        )
    return sides


def shared_by(paths: Sequence[Sequence[Apply | Checkpoint | Marked]]) -> int:
    """Returns how many nodes of plans, from the start, are the same ones in all of them."""
    same = (all(node is nodes[0] for node in nodes) for nodes in zip(*paths, strict=False))
    return sum(1 for _ in takewhile(bool, same))


def tail_of(owner: str, name: str, path: Sequence[Apply | Checkpoint | Marked]) -> Chain:
    """Returns the steps that one output has for itself. Raises ConfigError for what can only be shared."""
    steps = []
    for node in path:
        what = ""
        if isinstance(node, Checkpoint):
            what = f"the checkpoint at {node.path!r}"
        elif isinstance(node, Marked):
            what = f"{node.step.name}, which needs an exchange,"
        elif node.operator.compute is not None:
            what = f"{node.operator.name}, which runs in actors,"
        elif hasattr(node.operator, "of_shard"):
            what = f"{node.operator.name}, which takes whole shards,"
        elif isinstance(node.operator, SplitOff) and name != MAIN:
            what = f"{node.operator.name}, which has extra outputs of its own,"
        if what:
            raise ConfigError(
                f"{owner}: {what} is used by the output {name!r} only; apply it before the outputs part, and "
                "derive all outputs from its result"
            )
        assert isinstance(node, Apply)
        # What it gives goes on to the next step: of several outputs, the main one.
        steps.append(replace(node.operator, sides=()) if isinstance(node.operator, Process) else node.operator)
    return tuple(steps)


def inputs_of(columns: Mapping[str, Any] | None, places: tuple[str, ...] = ()) -> Dataset:
    """Returns the dataset that `build` is given; its schema is known where the job declares the type of all columns."""
    types = None if columns is None else list(columns.items())
    known = types is not None and all(type is not None for _, type in types)
    schema = placed_schema(pa.schema(types), places) if known else None
    return Dataset(Scan(NotListed(schema, positions=POSITION in places)))


def resources_of(job: Settings, steps: Sequence[Operator]) -> Resources:
    """Returns what a task holds: what the job asks for, if it is not its pool that does."""
    if job.wants_pool:
        return Resources(task_cpus(steps))
    return Resources(task_cpus(steps, float(job.num_cpus)), 0.0, job.memory)
