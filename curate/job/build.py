"""What a job's `build` returns, as the steps of a pipeline over the job's inputs.

Datasets of several outputs are compared by what they were made from: operators that all of them were derived through,
each called once, run once a shard. What was called again for another output is another operator, even if it is alike.

First jobs with exchanges, or several stages (`spread_of`); then those whose rows stay in their shards (`parts_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Protocol, cast

import pyarrow as pa

from curate.dataset.dataset import Dataset
from curate.errors import ConfigError
from curate.formats.record import OutputFormat
from curate.job.inputs import list_for
from curate.job.operator import Process
from curate.ledger.side_outputs import MAIN, check_side
from curate.operators.protocol import Operator
from curate.pipeline.branches import Branching
from curate.pipeline.pipeline import Pipeline
from curate.pipeline.step import ActorPool, Compute, task_cpus
from curate.plan.nodes import Apply, Checkpoint, Exchanged, Limit, Marked, Plan, Scan, Union, Zip, schema_of
from curate.plan.rewrites import pinned, uncounted
from curate.plan.stages import stage_of
from curate.runtime.protocol import Resources
from curate.sources.inputs import FileRows
from curate.sources.protocol import Piece
from curate.stage import operator as stage
from curate.stage.spec import RunRequest, StageSpec, Upstream
from curate.storage.protocol import Object

MOVES = Exchanged | Marked | Union | Zip
"""What moves rows between shards."""

Build = Callable[[Dataset], Any]
"""A job's `build`."""


def made_of(job: Settings, ds: Dataset, build: Build) -> Made:
    """Returns what `build` makes of `ds`, the job's inputs. Raises ConfigError for what no job can be made of."""
    built = build(ds)
    return spread_of(job, ds, build, built) if has_exchange(built) else parts_of(job, ds, built)


@dataclass(frozen=True, slots=True)
class Spread:
    """What `build` gave where there is an exchange in it."""

    job: Settings
    build: Build
    plan: Plan
    """That of the main output, up to where the outputs part."""
    tails: Mapping[str, Chain]
    """The steps that each output has for itself; none if there is one output."""
    sides: tuple[str, ...]
    """Names of the extra outputs: those of tails, and those that steps have of their own."""

    @property
    def last(self) -> Part:
        """What makes its outputs, of what the last exchange gives."""
        _, steps = below(self.plan)
        chain = Pipeline(tuple(map(step_of, steps)))
        return Part(self._operator(chain), self._resources(chain), None, self.sides)

    def stages(self, spec: StageSpec) -> StageSpec:
        """Returns the stage that makes its outputs. What it reads is known when a run has listed its inputs; then
        `build` is called again, with these.
        """

        def from_inputs(asked: RunRequest) -> StageSpec:
            ds = Dataset(Scan(list_for(spec, asked)))
            again = spread_of(self.job, ds, self.build, self.build(ds))
            # Keys that are not there, or have no order, are said now.
            schema_of(again.plan)
            made, _ = stage_of(again.plan, spec.format, spec.codec, Stages(self.job, spec))
            return again._ended(made, spec)

        return replace(spec, from_inputs=from_inputs)

    def _ended(self, made: StageSpec, spec: StageSpec) -> StageSpec:
        """Returns the stage that the plan ends in as that of the job."""
        chain, bind, with_seed = made.operator, made.bind, made.seeded
        assert isinstance(chain, Pipeline)

        def bound(ready: StageSpec, stages: Sequence[Sequence[Object]]) -> StageSpec:
            assert bind is not None
            # It may give steps what they go by, and knows of no others than the plan has.
            ready = bind(replace(ready, operator=chain), stages)
            return replace(ready, operator=self._operator(cast(Pipeline, ready.operator)))

        return replace(
            made,
            identity=spec.identity,
            operator=self._operator(chain),
            output_schema=spec.output_schema,
            sides=spec.sides,
            resources=self._resources(chain),
            origin=spec.origin,
            bind=None if bind is None else bound,
            seeded=None if with_seed is None else lambda seed: self._ended(with_seed(seed), spec),
        )

    def _operator(self, shared: Pipeline) -> stage.StageOperator:
        if not self.tails:
            return shared
        others = {name: Pipeline(tail) for name, tail in self.tails.items() if name != MAIN}
        return Branching(shared, Pipeline(self.tails[MAIN]), others)

    def _resources(self, shared: Pipeline) -> Resources:
        own = (step for tail in self.tails.values() for step in tail)
        return resources_of(self.job, [*cast(Sequence[Operator], shared.steps), *own])


def has_exchange(built: Any) -> bool:
    """Returns whether there is an exchange in what `build` gave, or what is written as one."""
    outputs = built.values() if isinstance(built, Mapping) else [built]
    plans = [one._plan for one in outputs if isinstance(one, Dataset)]
    return any(isinstance(node, MOVES | Limit) for plan in plans for node in _nodes(plan))


def spread_of(job: Settings, ds: Dataset, build: Build, built: Any) -> Spread:
    """Returns what `build` made of `ds`, `built`, through exchanges, as a plan and what follows where outputs part.

    Raises ConfigError for a limit of the inputs themselves, rows that are not made of the inputs at all, and outputs
    that are not made row by row of what one exchange gives.
    """
    owner = f"{job.owner}.build"
    if isinstance(built, Mapping):
        sides = sides_of(owner, job.sides, built)
        plans = {name: built[name]._plan for name in (MAIN, *sides)}
        bases = {name: below(plan) for name, plan in plans.items()}
        for name, (base, _) in bases.items():
            if base is not bases[MAIN][0]:
                raise ConfigError(
                    f"{owner}: the output {name!r} begins with {_told(base)}, and {MAIN!r} with "
                    f"{_told(bases[MAIN][0])}: outputs are made of the rows of one exchange, row by row; derive them "
                    "from the dataset that comes out of the last one"
                )
        shared = shared_by([steps for _, steps in bases.values()])
        base, steps = bases[MAIN]
        plan = _one_output(steps[shared - 1] if shared else base)
        tails = {name: without_sides(tail_of(owner, name, own[shared:])) for name, (_, own) in bases.items()}
        own_sides = _sides_of_steps(plan)
        if taken := sorted(own_sides & set(sides)):
            raise ConfigError(
                f"{owner} gave the output {taken[0]!r}, and a deduplication before it has an extra output of that "
                "name; choose another one"
            )
        sides = tuple(sorted({*sides, *own_sides}))
    elif isinstance(built, Dataset):
        plan, tails = _one_output(built._plan, keep=True), {}
        sides = tuple(sorted(_sides_of_steps(plan)))
        if set(job.sides) - set(sides):
            raise no_sides(owner, job.sides)
    else:
        raise no_dataset(owner, built)
    nodes = list(_nodes(plan))
    for node in nodes:
        under = list(_nodes(node)) if isinstance(node, Limit) else []
        if _given_in(under, ds) and not any(isinstance(one, MOVES) for one in under):
            raise ConfigError(
                f"{owner}: {_told(node)} of the rows of the job's input, all of which would be looked at for it; "
                "limit what an exchange gives, such as sort or random_shuffle, or give the job less: --limit, --sample"
            )
    plan = uncounted(plan)
    nodes = list(_nodes(plan))
    if not _given_in(nodes, ds):
        raise ConfigError(
            f"{owner} gave what is not made of its input; expected what becomes of the dataset it is given"
        )
    steps_of_all = [step_of(node) for node in nodes if isinstance(node, Apply | Marked)]
    refuse_idle_pool(job, [*steps_of_all, *(step for tail in tails.values() for step in tail)])
    return Spread(job, build, plan, tails, sides)


def _given_in(nodes: Sequence[Plan], ds: Dataset) -> bool:
    """Returns whether the job's input is among these."""
    own = pinned(ds._plan)
    return any(node is ds._plan or node == own for node in nodes)


def _nodes(plan: Plan) -> Iterator[Plan]:
    """Yields the nodes of a plan, from the last one on."""
    yield plan
    match plan:
        case Apply(input, _) | Checkpoint(input, _) | Limit(input, _):
            yield from _nodes(input)
        case Marked(input, _, marks):
            yield from _nodes(input)
            yield from _nodes(marks)
        case Union(inputs) | Zip(inputs) | Exchanged(inputs, _):
            for one in inputs:
                yield from _nodes(one)


def below(plan: Plan) -> tuple[Plan, list[Apply | Marked]]:
    """Returns what a chain of operators begins with, and the chain, in the order in which rows go through it."""
    steps: list[Apply | Marked] = []
    while isinstance(plan, Apply | Marked):
        steps.append(plan)
        plan = plan.input
    return plan, steps[::-1]


def step_of(node: Apply | Marked) -> Operator:
    """Returns what a node of a chain does."""
    return node.operator if isinstance(node, Apply) else node.step


def _sides_of_steps(plan: Plan) -> set[str]:
    """Returns the extra outputs that steps behind the last exchange have of their own."""
    return {name for one in below(plan)[1] for name in getattr(step_of(one), "sides", ())}


def _told(plan: Plan) -> str:
    match plan:
        case Exchanged(_, how):
            return how.name
        case Checkpoint(_, path):
            return f"the checkpoint at {path!r}"
        case Scan(source):
            return source.name
        case Limit(_, rows):
            return f"limit({rows})"
    return f"a {type(plan).__name__.lower()}"


def _one_output(plan: Plan, *, keep: bool = False) -> Plan:
    """Returns a plan whose steps give one output each, but for the last one if `keep`."""
    match plan:
        case Apply(input, operator):
            below = _one_output(input)
            if isinstance(operator, Process) and operator.sides and not keep:
                operator = replace(operator, sides=())
            return Apply(below, operator)
        case Checkpoint(input, path):
            return Checkpoint(_one_output(input), path)
        case Marked(input, step, marks):
            return Marked(_one_output(input), step, _one_output(marks))
        case Exchanged(inputs, how):
            return Exchanged(tuple(map(_one_output, inputs)), how)
        case Union(inputs):
            return Union(tuple(map(_one_output, inputs)))
        case Zip(inputs):
            return Zip(tuple(map(_one_output, inputs)))
        case Limit(input, rows):
            return Limit(_one_output(input), rows)
    return plan


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of a job, the last of which is `last`; each is called by where it is in the job's plan."""

    job: Settings
    last: StageSpec
    path: tuple[int | str, ...] = ()

    def below(self, number: int) -> Stages:
        """Returns the stages that lead to the first, the second, ... that this one reads."""
        return replace(self, path=(*self.path, number))

    def kept(self, path: str) -> Stages:
        """Returns the stage that writes the checkpoint at `path`, wherever in the plan it is read."""
        return replace(self, path=(path,))

    def spec(self, operators: Sequence[Operator], identity: Mapping[str, Any]) -> StageSpec:
        """Returns a stage: with the identity of the job, whose version and parameters stand for its operators."""
        told = {name: value for name, value in self.last.identity.items() if name not in ("sides", "output_schema")}
        return replace(
            self.last,
            identity={**told, **identity, "owner": self.job.job, "stage": list(self.path)},
            output_schema=None,
            sides={},
            resources=resources_of(self.job, operators),
            # What makes the job again makes all of it.
            origin={},
            from_inputs=None,
        )


CHECKPOINT = {"format": "parquet", "codec": "zstd"}
"""How rows are kept in a checkpoint."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a job says of what it builds, and of the tasks that run it."""

    job: str
    """Its name."""
    owner: str
    """The name of its class."""
    sides: tuple[str, ...]
    """Names of the extra outputs that it declares, in order."""
    compute: ActorPool | None
    num_cpus: float
    num_gpus: float
    memory: int | None
    resources: Mapping[str, float]

    @property
    def held(self) -> Resources:
        """What a task, or an actor, holds."""
        return Resources(float(self.num_cpus), float(self.num_gpus), self.memory, dict(self.resources))

    @property
    def wants_pool(self) -> bool:
        """Whether `process` runs in actors: where it asks for a pool, a GPU, or custom resources."""
        return bool(self.compute or self.num_gpus or self.resources)


@dataclass(frozen=True, slots=True)
class Given:
    """The rows of a job's inputs, whatever they will be."""

    found: pa.Schema | None
    name: str = "input"
    num_cpus: float | None = None

    def pieces(self) -> Iterator[Piece]:
        raise self._not_yet()

    def read(self, *_: Any) -> Iterator[Any]:
        raise self._not_yet()

    def bundles(self) -> Iterator[tuple[Piece, ...]]:
        raise self._not_yet()

    def generation(self, data: Any) -> str:
        del data
        raise self._not_yet()

    def identity(self) -> Any:
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

    operator: stage.StageOperator
    resources: Resources
    """What a task holds for it."""
    path: str | None = None
    """Where the checkpoint is that it writes; None: it writes the job's output."""
    sides: tuple[str, ...] = ()
    """Names of the extra outputs that it has."""


Chain = tuple[Operator, ...]


class Made(Protocol):
    """What a job is made of."""

    @property
    def last(self) -> Part:
        """What makes its outputs."""
        ...

    def stages(self, spec: StageSpec) -> StageSpec:
        """Returns the stage that makes its outputs as it is after those that come before it."""
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """What happens to a shard, one after the other; all but the last one are written to their checkpoints."""

    parts: tuple[Part, ...]

    @property
    def last(self) -> Part:
        return self.parts[-1]

    def stages(self, spec: StageSpec) -> StageSpec:
        return over_checkpoints(spec, self.parts[:-1])


def parts_of(job: Settings, ds: Dataset, built: Any) -> Parts:
    """Returns the parts of what `build` made of `ds`, in order: as many as it has checkpoints, and the last one.

    Raises ConfigError for what is no chain of row-wise operators and checkpoints, or several of them, by output, that
    have other steps of their own than row-wise ones in the tasks that read.
    """
    owner = f"{job.owner}.build"
    if isinstance(built, Mapping):
        sides = sides_of(owner, job.sides, built)
        paths = {name: _path(owner, ds._plan, built[name]._plan) for name in (MAIN, *sides)}
        shared = shared_by(list(paths.values()))
        chains = _cut(paths[MAIN][:shared])
        tails = {name: tail_of(owner, name, path[shared:]) for name, path in paths.items()}
        chains = [(without_sides(chain), path) for chain, path in chains]
        tails = {name: without_sides(tail) for name, tail in tails.items()}
    elif isinstance(built, Dataset):
        chains, tails, sides = _cut(_path(owner, ds._plan, built._plan)), {}, ()
        *before, (last, _) = chains
        if job.sides:
            sides = job.sides
            if not last or not isinstance(last[-1], Process):
                raise no_sides(owner, sides)
            chains = [*((without_sides(chain), path) for chain, path in before)]
            chains.append(((*without_sides(last[:-1]), last[-1]), None))
    else:
        raise no_dataset(owner, built)
    own = tuple(step for tail in tails.values() for step in tail)
    refuse_idle_pool(job, [*(step for chain, _ in chains for step in chain), *own])
    *before, (last, _) = chains
    operator: stage.StageOperator = Pipeline(last)
    if sides and tails:
        operator = Branching(Pipeline(last), Pipeline(tails[MAIN]), {name: Pipeline(tails[name]) for name in sides})
    kept = [Part(Pipeline(chain), resources_of(job, chain), path) for chain, path in before]
    return Parts((*kept, Part(operator, resources_of(job, (*last, *own)), None, sides)))


def no_sides(owner: str, sides: Sequence[str]) -> ConfigError:
    """Returns the error for extra outputs that nothing makes."""
    return ConfigError(
        f"{owner} gave a Dataset that does not end in `process`, and sides names further outputs "
        f"({', '.join(sides)}); return a mapping of them: {{{MAIN!r}: ..., {sides[0]!r}: ...}}"
    )


def no_dataset(owner: str, built: Any) -> ConfigError:
    """Returns the error for what `build` may not return."""
    return ConfigError(
        f"{owner} gave {type(built).__name__}, expected the Dataset that its input becomes, or a mapping of the "
        f"outputs' names to Datasets, with {MAIN!r} among them"
    )


def refuse_idle_pool(job: Settings, steps: Iterable[Operator]) -> None:
    """Raises ConfigError where a job asks for a pool, and `process` is not among its steps."""
    if job.wants_pool and not any(isinstance(step, Process) for step in steps):
        raise ConfigError(
            f"{job.owner}: num_gpus, resources and compute are for `process`, which its build does not use; "
            "give them to map_batches"
        )


def sides_of(owner: str, declared: Sequence[str], built: Mapping[Any, Any]) -> tuple[str, ...]:
    """Returns the names of the extra outputs that `build` gave, in order."""
    for name, ds in built.items():
        if name != MAIN:
            check_side(owner, name)
        if not isinstance(ds, Dataset):
            raise ConfigError(f"{owner} gave {type(ds).__name__} for the output {name!r}, expected a Dataset")
    if MAIN not in built:
        raise ConfigError(
            f"{owner} gave the outputs {', '.join(map(repr, built)) or 'of no name'}, and no {MAIN!r}, which is the "
            "one that says what is done"
        )
    sides = tuple(sorted(name for name in built if name != MAIN))
    if declared and set(declared) != set(sides):
        raise ConfigError(
            f"{owner} gave the extra outputs {', '.join(sides) or 'none'}, and sides names "
            f"{', '.join(sorted(declared))}; name the same, or leave sides out"
        )
    return sides


def without_sides(chain: Iterable[Operator]) -> Chain:
    """Returns steps of which none gives several outputs: what it gives goes on to the next."""
    return tuple(replace(step, sides=()) if isinstance(step, Process) else step for step in chain)


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
            what = f"{node.step.name}, which goes by an exchange,"
        elif node.operator.compute is not None:
            what = f"{node.operator.name}, which runs in actors,"
        if what:
            raise ConfigError(
                f"{owner}: {what} is on the way to the output {name!r} alone; put it before the outputs part: derive "
                "all of them from the dataset that comes out of it"
            )
        assert isinstance(node, Apply)
        steps.append(node.operator)
    return tuple(steps)


def over_checkpoints(spec: StageSpec, before: Sequence[Part]) -> StageSpec:
    """Returns the stage as it is when these parts come before it, each a stage that is written to its checkpoint."""
    kept: Upstream | None = None
    # What becomes of the rows of a checkpoint afterwards is nothing to it.
    identity = {name: value for name, value in spec.identity.items() if name != "sides"}
    for number, part in enumerate(before):
        assert part.path is not None
        first = replace(
            spec,
            name=f"{spec.name}-checkpoint",
            identity={**identity, "output_schema": None, **CHECKPOINT, "checkpoint": number},
            operator=part.operator,
            output_schema=None,
            sides={},
            format=OutputFormat(CHECKPOINT["format"]),
            codec=CHECKPOINT["codec"],
            resources=part.resources,
            # What makes the job again makes all of it.
            origin={},
        )
        kept = Upstream(_reading(first, kept), part.path)
    return _reading(spec, kept)


def _reading(spec: StageSpec, kept: Upstream | None) -> StageSpec:
    """Returns the stage as one that reads a checkpoint."""
    if kept is None:
        return spec
    identity = {**spec.identity, "upstream": kept.spec.fingerprint}
    return replace(spec, identity=identity, rows=FileRows(), before=(kept,))


def _path(owner: str, start: Plan, plan: Plan) -> list[Apply | Checkpoint]:
    """Returns the operators and checkpoints from `start` to a plan, in the order in which rows come to them."""
    nodes: list[Apply | Checkpoint] = []
    while isinstance(plan, Apply | Checkpoint):
        nodes.append(plan)
        plan = plan.input
    if plan is not start:
        if isinstance(plan, Scan):
            raise ConfigError(
                f"{owner} gave {plan.source.name}, expected what becomes of the dataset that it was given"
            )
        what = type(plan).__name__.lower()
        raise ConfigError(f"{owner}: a job has one output for each shard of its input, so it has no {what}")
    return nodes[::-1]


def _cut(path: Iterable[Apply | Checkpoint]) -> list[tuple[Chain, str | None]]:
    """Returns the steps up to each checkpoint, with where that is, and those after the last one."""
    chains: list[tuple[Chain, str | None]] = []
    steps: list[Operator] = []
    for node in path:
        if isinstance(node, Checkpoint):
            chains.append((tuple(steps), node.path))
            steps = []
        else:
            steps.append(node.operator)
    return [*chains, (tuple(steps), None)]


def compute_of(job: Settings) -> Compute | None:
    """Returns the pool that a job's `process` runs in; None: in the tasks that read."""
    return Compute(job.compute or ActorPool(), job.held) if job.wants_pool else None


def resources_of(job: Settings, steps: Sequence[Operator]) -> Resources:
    """Returns what a task holds: what the job asks for, if it is not its pool that does."""
    if job.wants_pool:
        return Resources(task_cpus(steps))
    return Resources(task_cpus(steps, float(job.num_cpus)), 0.0, job.memory)
