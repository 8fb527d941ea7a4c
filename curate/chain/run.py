"""Runs a chain: checks all steps first, then runs each as a separate job, in order."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from curate.chain.look import look
from curate.chain.names import same_names
from curate.chain.plan import Action, Asked, StepState, Verdict, takes_changed, takes_removed, verdicts
from curate.chain.steps import FOR_ONE_RUN, ONE_RUN, STEP_OPTIONS, Step, below, inputs_of, parameters_of
from curate.clock import Clock, SystemClock
from curate.dataclass import dataclass, field, replace
from curate.errors import ConfigError, CurateError, did_you_mean
from curate.graph.entry import dry_run, run
from curate.job.job import Job
from curate.job.locate import named_job
from curate.job.origin import job_origin
from curate.job.params import recorded_value
from curate.job.settings import SIZES, TUNABLE
from curate.keywords import in_file, of_step, option
from curate.ledger.summary import RunState, Summary
from curate.log import quiet
from curate.notify.receiver import parse_receiver
from curate.observe.job import FoundJob
from curate.resume.identity import accepted_code, refuse_other_job
from curate.resume.options import RunArguments, RunOptions, parse_quiet, parse_run_options
from curate.stage.stage import Stage
from curate.units import json_line, parse_bytes


@dataclass(frozen=True, slots=True)
class StepEnd:
    """How a step of a chain ended."""

    name: str
    summary: Summary | None = None
    """None: it was not run, or it raised."""
    error: CurateError | None = None
    """What it raised."""
    after: tuple[str, ...] = ()
    """Steps that it reads and that did not complete; then it was not run."""

    @property
    def complete(self) -> bool:
        """Whether all of its shards are done."""
        return self.summary is not None and self.summary.state is RunState.COMPLETE and not self.summary.pending

    @property
    def state(self) -> str:
        """Its job's state; `refused`, `error` or `not run`."""
        if self.summary is not None:
            return self.summary.state.value
        if self.error is None:
            return "not run"
        return "refused" if isinstance(self.error, ConfigError) else "error"


@dataclass(frozen=True, slots=True)
class ChainSummary:
    """The result of a run of a chain, step by step."""

    steps: tuple[StepEnd, ...]

    @property
    def complete(self) -> bool:
        """Whether all steps are complete."""
        return all(one.complete for one in self.steps)

    @property
    def state(self) -> str:
        """`complete`; else the state of the first step that is not, or `interrupted` if it was not run for that."""
        for one in self.steps:
            if not one.complete:
                return one.state if one.summary or one.error or one.after else RunState.INTERRUPTED.value
        return RunState.COMPLETE.value

    def __getitem__(self, name: str) -> StepEnd:
        """Returns how a step ended."""
        for one in self.steps:
            if one.name == name:
                return one
        raise KeyError(name)

    def as_dict(self) -> dict[str, Any]:
        """Returns what `--json` prints."""
        return {
            "state": self.state,
            "steps": [
                {"step": one.name, "state": one.state}
                | ({"summary": one.summary.as_dict()} if one.summary is not None else {})
                | ({"error": str(one.error)} if one.error is not None else {})
                | ({"not_complete": list(one.after)} if one.after else {})
                for one in self.steps
            ],
        }


@dataclass(frozen=True, slots=True)
class Request:
    """How a chain is run this time."""

    asked: Asked = field(default_factory=Asked)
    only: str | None = None
    """The one step to run; None: all of them."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options for the runs of all steps, over those of the steps."""
    ended: Callable[[StepEnd], None] = lambda _: None
    """Told of each step that ends."""
    clock: Clock = field(default_factory=SystemClock)


@dataclass(frozen=True, slots=True)
class Planned:
    """A chain that may be run: every step with its stage, its state, and what a run would do."""

    steps: tuple[Step, ...]
    stages: Mapping[str, Stage]
    options: Mapping[str, RunOptions]
    states: tuple[StepState, ...]
    verdicts: tuple[Verdict, ...]
    asked: Asked


def prepare(steps: Sequence[Step], request: Request) -> Planned:
    """Checks all steps and returns what there is to run. Writes nothing, and logs nothing that a run will.

    Raises ConfigError with every step that cannot run as asked, and why.
    """
    with quiet():
        return _prepare(steps, request)


def _prepare(steps: Sequence[Step], request: Request) -> Planned:
    by_name = {one.name: one for one in steps}
    for name in (*request.asked.overwrite, *([] if request.only is None else [request.only])):
        if name not in by_name:
            hint = did_you_mean(name, by_name) or f"; there are: {', '.join(by_name)}"
            raise ConfigError(f"there is no step {name!r}{hint}")
    _refuse_unknown_options(request.options)
    # Once, and not for each step.
    parse_receiver(request.options.get("notify"))
    parse_quiet(request.options.get("no_progress_after"))
    asked = replace(request.asked, overwrite=below(request.asked.overwrite, steps))
    digest = digest_of(steps)
    stages: dict[str, Stage] = {}
    options: dict[str, RunOptions] = {}
    problems: list[str] = []
    for step in steps:
        try:
            with in_file(), of_step(step.name):
                stages[step.name] = stage_of(step, {"step": step.name, "sha256": digest})
            options[step.name] = _options(step, inputs_of(step, steps), request)
            _refuse_unknown_sides(step, stages)
        except ConfigError as error:
            problems.append(f"step {step.name!r}: {error}")
    _raise(problems)
    scope = set(by_name) if request.only is None else {request.only}
    looks = look(steps, request.clock.now())
    states = tuple(
        _identified(one, looks.found.get(name), stages[name], options[name]) for name, one in looks.states.items()
    )
    # One that has begun has a plan of what it reads, and says itself what does not fit into that.
    new = {one.name for one in states if one.name in scope and (not one.begun or one.name in asked.overwrite)}
    _raise([f"step {name!r}: {why}" for name, why in same_names(steps, stages) if name in new])
    found = verdicts(states, asked)
    _raise([text for state in states for text in _not_in_parts(state, asked, options[state.name])])
    refused = (one for one in found if one.action is Action.REFUSED and one.name in scope)
    _raise([f"step {one.name!r}: {'; '.join(one.why)}" for one in refused])
    planned = Planned(tuple(steps), stages, options, states, found, asked)
    _raise([text for one in steps if one.name in scope for text in _refused_by_job(planned, one)])
    return planned


def _not_in_parts(state: StepState, asked: Asked, options: RunOptions) -> Iterator[str]:
    """Yields why a step cannot be run by several drivers together: one of them would remove what others read."""
    replaced = state.changed if takes_changed(state, asked) else 0
    removed = state.removed if takes_removed(state, asked) else 0
    if options.part is not None and (replaced or removed or state.name in asked.overwrite):
        yield (
            f"step {state.name!r}: {option('part', str(options.part))} makes outputs beside other drivers, and some of "
            "this step are to be replaced or removed: run the chain once without it, then start the parts"
        )


def _refused_by_job(planned: Planned, step: Step) -> Iterator[str]:
    """Yields why the job of a step refuses to run, where it is to run and all that it reads is there already."""
    by_name = {one.name: one for one in planned.verdicts}
    (state,) = (one for one in planned.states if one.name == step.name)
    ready = all(by_name[name].action is Action.NOTHING for name in step.reads)
    # A job with an exchange that has begun may find run files damaged: a run makes them again, and a look refuses.
    if ready and by_name[step.name].action is Action.RUN and not state.frozen:
        try:
            with of_step(step.name):
                dry_run(planned.stages[step.name], _run_options(planned, step, state))
        except ConfigError as error:
            yield f"step {step.name!r}: {error}"


def run_chain(planned: Planned, request: Request) -> ChainSummary:
    """Runs all steps in order, each once those that it reads are complete. Returns how each ended.

    A step that is done is run too, as its job alone would be: it looks, starts nothing and writes nothing. Raises
    ConfigError, before anything is removed, if what is to be made anew was not confirmed; KeyboardInterrupt if it was
    interrupted between steps.
    """
    planned = _confirmed(planned, request)
    ends: dict[str, StepEnd] = {}
    interrupted = False
    for step, state in zip(planned.steps, planned.states, strict=True):
        if request.only not in (None, step.name):
            continue
        after = tuple(name for name in step.reads if name in ends and not ends[name].complete)
        end = StepEnd(step.name, after=after)
        if not after and not interrupted:
            end = _run(planned, step, state, request.clock)
        if (ended := end.summary) is not None:
            interrupted = interrupted or ended.interrupted or ended.state is RunState.INTERRUPTED
        ends[step.name] = end
        request.ended(end)
    return ChainSummary(tuple(ends.values()))


def _confirmed(planned: Planned, request: Request) -> Planned:
    """Asks once about all steps to make anew, as nobody may be there to answer when the second one begins."""
    anew = [
        state
        for state in planned.states
        if (state.begun or state.damaged)
        and state.name in planned.asked.overwrite
        and request.only in (None, state.name)
    ]
    if not anew:
        return planned
    found = "; ".join(f"step {one.name!r}: {one.done:,} outputs under {one.output}" for one in anew)
    question = f"remove the outputs and the ledger of each of these? {found}"
    if not planned.options[anew[0].name].confirm(question):
        raise ConfigError(
            f"{option('overwrite', ...)} was not confirmed, and nothing was removed ({found}); answer yes, or add "
            f"{option('yes')}"
        )
    return replace(
        planned, options={name: replace(one, confirm=lambda _: True) for name, one in planned.options.items()}
    )


def _run(planned: Planned, step: Step, state: StepState, clock: Clock) -> StepEnd:
    try:
        with of_step(step.name):
            return StepEnd(step.name, run(planned.stages[step.name], _run_options(planned, step, state), clock=clock))
    except CurateError as error:
        return StepEnd(step.name, error=error)


def _run_options(planned: Planned, step: Step, state: StepState) -> RunOptions:
    """Returns how the job of a step is run: what earlier steps changed or removed, it takes."""
    options, asked = planned.options[step.name], planned.asked
    # What is missing by permission was not removed.
    removed = takes_removed(state, asked) and not options.allow_incomplete_input
    # With other drivers there is nothing to replace, or it was refused.
    alone = options.part is None
    return replace(
        options,
        overwrite=step.name in asked.overwrite,
        redo_stale=options.redo_stale or (alone and takes_changed(state, asked)),
        drop_removed=options.drop_removed or (alone and removed),
    )


def _raise(problems: Collection[str]) -> None:
    if problems:
        raise ConfigError("\n".join(problems))


def stage_of(step: Step, chain: Mapping[str, str] | None = None) -> Stage:
    """Returns the job of a step as a stage, whose runs record the `chain` that they are of. Raises ConfigError for an
    option that it does not take."""
    own = parameters_of(step)
    for name in own:
        if name in ONE_RUN:
            raise ConfigError(FOR_ONE_RUN.format(name))
    if isinstance(step.job, Job):
        if own:
            raise ConfigError(
                f"its job is made already, and it has the options {', '.join(own)}; give these to the job"
                f"{did_you_mean(next(iter(own)), STEP_OPTIONS)}"
            )
        return _in_chain(step.job, chain).spec()
    if not isinstance(step.job, str):
        raise ConfigError(f"its job is {step.job!r}, expected a job, or a name as `curate run` takes it")
    cls = named_job(step.job)
    known = sorted({*cls._params, *TUNABLE})
    for name in own:
        if name not in known:
            near = did_you_mean(name, [*known, *STEP_OPTIONS, "input", "input_from", "output"])
            raise ConfigError(f"{step.job} has no parameter {name!r}{near}; it has: {', '.join(known)}")
    sizes = {name: parse_bytes(own[name]) for name in SIZES if isinstance(own.get(name), str)}
    return _in_chain(cls(**{**own, **sizes}), chain).spec()


def _in_chain(job: Job, chain: Mapping[str, str] | None) -> Job:
    made = copy.copy(job)
    made._chain = chain
    return made


def digest_of(steps: Sequence[Step]) -> str:
    """Returns the SHA-256 of what all steps are, in order: names, jobs, options and what each reads; not of where.

    >>> one = Step("good", "quality", "/out", input="/in", options={"min_words": 9})
    >>> digest_of([one]) == digest_of([replace(one, output="/elsewhere")]) != digest_of([replace(one, options={})])
    True
    """
    told = [
        {
            "step": one.name,
            "job": job_origin(one.job) if isinstance(one.job, Job) else one.job,
            "options": {name: _recorded(value) for name, value in sorted(one.options.items())},
            "reads": one.input_from,
        }
        for one in steps
    ]
    return hashlib.sha256(json_line(told, default=str)).hexdigest()


def _recorded(value: Any) -> Any:
    return recorded_value(value, _recorded)


def _options(step: Step, inputs: Sequence[str], request: Request) -> RunOptions:
    given: dict[str, Any] = {name: value for name, value in step.options.items() if name in STEP_OPTIONS}
    try:
        # Its own are checked even where this run has others in their place.
        parse_run_options(input=inputs, output=step.output, **given)
        return parse_run_options(input=inputs, output=step.output, **{**given, **request.options})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"an option of its run has a value of another type: {error}") from error


def _refuse_unknown_options(given: Mapping[str, Any]) -> None:
    """Raises ConfigError for an option that no run has, or that makes no sense for all steps."""
    known = {*RunArguments.__annotations__} - {"input", "output", "limit", "sample", "retry_failed"}
    for name in given:
        if name not in known:
            raise ConfigError(
                f"a run of a chain has no option {name!r}{did_you_mean(name, known)}; it has: "
                f"{', '.join(sorted(known))}"
            )


def _refuse_unknown_sides(step: Step, stages: Mapping[str, Stage]) -> None:
    for one in step.input_from:
        name, _, side = one.partition("/")
        if side and name in stages and side not in stages[name].record.sides:
            known = stages[name].record.sides
            raise ConfigError(
                f"input_from names {one!r}, and {name!r} has no extra output {side!r}{did_you_mean(side, known)}; it "
                f"has: {', '.join(sorted(known)) or 'none'}"
            )


def _identified(state: StepState, found: FoundJob | None, stage: Stage, options: RunOptions) -> StepState:
    """Returns the state with what differs, by the identity of the job itself and its code."""
    if found is None:
        return state
    differs, other_code = "", ""
    try:
        with of_step(state.name):
            refuse_other_job(stage.record, found.ledger, found.job)
    except ConfigError as error:
        differs = str(error)
    try:
        done = int(found.matched.count)
        accepted_code(stage.record, options, found.ledger, found.listing, found.job, done=done, idle=False)
    except ConfigError as error:
        other_code = str(error)
    return replace(state, differs=differs, other_code=other_code)
