"""Jobs with exchanges: what their stages are, once their inputs are listed.

Row by row, a job's stages are known before its inputs are, and its plan grows with these. What an exchange gives
depends on all inputs. So `build` is called once more when they are listed, with the files themselves, and its stages
are made as those of a dataset are. What the job says of its tasks holds in each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from curate.dataset import stage
from curate.dataset.branching import Branching
from curate.dataset.dedup.plans import pinned
from curate.dataset.lazy.api import Dataset
from curate.dataset.lazy.durable import uncounted
from curate.dataset.lazy.operators import Operator
from curate.dataset.lazy.plan import Apply, Checkpoint, Exchanged, Limit, Marked, Plan, Scan, Union, Zip, schema_of
from curate.dataset.lazy.sinks import stage_of
from curate.dataset.pipeline import Pipeline
from curate.dataset.sides import MAIN
from curate.dataset.spec import Asked, StageSpec
from curate.errors import ConfigError
from curate.job.building import (
    Chain,
    Made,
    Part,
    Settings,
    no_dataset,
    no_sides,
    parts_of,
    refuse_idle_pool,
    resources_of,
    shared_by,
    sides_of,
    tail_of,
    without_sides,
)
from curate.job.inputs import list_for
from curate.job.operator import Process
from curate.runtime.protocol import Resources
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

        def from_inputs(asked: Asked) -> StageSpec:
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

    def _operator(self, shared: Pipeline) -> stage.Operator:
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
