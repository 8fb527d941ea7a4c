"""A step of a chain as a value, and the checks of all steps together. Reads no storage."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from curate.dataclass import dataclass, field, replace
from curate.errors import ConfigError, did_you_mean
from curate.ledger.side_outputs import side_name
from curate.resume.options import OPTIONS, resolve_output
from curate.sources.patterns import could_match, parse_input
from curate.storage.uris import absolute, at_home, normalise

ONE_RUN = ("limit", "sample", "retry_failed", "overwrite", "accept_code_change", "allow_concurrent", "part", "notify")
"""Options of a run that a step cannot have: they are for one run, and a chain is run many times."""
FOR_ONE_RUN = "{} is for one run; take it out of the step"
STEP_OPTIONS = tuple(name for name in OPTIONS if name not in ("input", "output", *ONE_RUN))
"""Options of a run that a step may have."""


@dataclass(frozen=True, slots=True)
class Step:
    """A job of a chain: what it reads, and where it writes.

    >>> step = curate.Step("long", "quality", output="out/long", input="texts/*.jsonl", options={"min_words": 9})
    >>> curate.Step("scored", "toxicity", output="out/scored", input_from="long").input_from
    ('long',)
    >>> curate.Chain([step, curate.Step("scored", "toxicity", output="out/scored", input_from="lang")])
    Traceback (most recent call last):
    curate.errors.ConfigError: step 'scored': input_from names 'lang', and there is no such step; did you mean 'long'?
    """

    name: str
    """What later steps and commands call it."""
    job: Any
    """A job; or its name as `curate run` takes it: that of a job that curate brings, or the path of a Python file."""
    output: str
    """Prefix that the outputs and the ledger go under."""
    input: Sequence[str] = ()
    """Files, folders and globs; one or several."""
    input_from: Sequence[str] = ()
    """Names of earlier steps whose outputs are read; `STEP/NAME` is the extra output NAME of one."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Parameters and settings of a job that is named, and options of its run, such as `max_failed_shards`."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or "/" in self.name:
            raise ConfigError(f"a step has the name {self.name!r}, expected a text without '/'")
        for key in ("input", "input_from"):
            object.__setattr__(self, key, self._texts(key))
        output = os.fspath(self.output) if isinstance(self.output, os.PathLike) else self.output
        if not isinstance(output, str) or not output:
            raise ConfigError(f"step {self.name!r}: output is {output!r}, expected a path as text")
        object.__setattr__(self, "output", output)
        if not self.input and not self.input_from:
            raise ConfigError(
                f"step {self.name!r} reads nothing; give it input (files, folders, globs) or input_from (earlier steps)"
            )

    def _texts(self, key: str) -> tuple[str, ...]:
        given: Any = getattr(self, key)
        listed = [given] if isinstance(given, str | os.PathLike) else given
        if not isinstance(listed, list | tuple) or not all(
            isinstance(one, str | os.PathLike) and one for one in listed
        ):
            instead = "; the output of an earlier step is input_from" if key == "input" else ""
            raise ConfigError(f"step {self.name!r}: {key} is {given!r}, expected a text, or a list of texts{instead}")
        return tuple(map(os.fspath, listed))

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the steps that it reads, each once."""
        return tuple(dict.fromkeys(one.partition("/")[0] for one in self.input_from))


def checked(steps: Iterable[Step], folder: str) -> tuple[Step, ...]:
    """Returns the steps with absolute paths; relative ones are taken as below `folder`.

    Raises ConfigError for two steps of one name or one output, and for one that reads what no earlier step makes.
    """
    given = list(steps)
    if not given:
        raise ConfigError("a chain has no step; give it one or more")
    for one in given:
        if not isinstance(one, Step):
            raise ConfigError(f"a chain has {one!r} as a step, expected a curate.Step")
    _refuse_same_names(given)
    _refuse_other_order(given)
    placed = tuple(_placed(one, folder) for one in given)
    _refuse_same_outputs(placed)
    for one in placed:
        _refuse_outputs_as_input(one, placed)
    return placed


def parameters_of(step: Step) -> dict[str, Any]:
    """Returns those of a step's options that its job takes, and not the run of it."""
    return {name: value for name, value in step.options.items() if name not in STEP_OPTIONS}


def inputs_of(step: Step, steps: Iterable[Step]) -> tuple[str, ...]:
    """Returns what a step reads, as its job is given it: files, then the outputs of earlier steps."""
    outputs = {one.name: one.output for one in steps}
    found = list(step.input)
    for one in step.input_from:
        name, _, side = one.partition("/")
        found.append(f"{outputs[name]}/{side_name(side, '').rstrip('/')}" if side else outputs[name])
    return tuple(found)


def below(names: Iterable[str], steps: Iterable[Step]) -> frozenset[str]:
    """Returns these steps and all that read them, directly or through others."""
    found = set(names)
    for one in steps:
        if found.intersection(one.reads):
            found.add(one.name)
    return frozenset(found)


def _placed(step: Step, folder: str) -> Step:
    try:
        # Refuses a relative one that would be lost, which an absolute one hides.
        resolve_output(step.output)
        output = normalise(absolute(at_home(step.output), folder))
        return replace(step, output=output, input=tuple(absolute(at_home(one), folder) for one in step.input))
    except ConfigError as error:
        raise ConfigError(f"step {step.name!r}: {error}") from error


def _refuse_same_names(steps: Sequence[Step]) -> None:
    seen: set[str] = set()
    for one in steps:
        if one.name in seen:
            raise ConfigError(f"two steps have the name {one.name!r}; rename one of them")
        seen.add(one.name)


def _refuse_other_order(steps: Sequence[Step]) -> None:
    """Raises ConfigError for a step that reads itself, a later one, or none."""
    by_name = {one.name: one for one in steps}
    earlier: list[str] = []
    for step in steps:
        for name in step.reads:
            if name not in by_name:
                hint = did_you_mean(name, by_name) or f"; the steps before it are: {', '.join(earlier) or 'none'}"
                raise ConfigError(f"step {step.name!r}: input_from names {name!r}, and there is no such step{hint}")
            if name == step.name:
                raise ConfigError(f"step {name!r} reads its own output; name an earlier step in input_from")
            if name not in earlier:
                if circle := _way(name, step.name, by_name):
                    raise ConfigError(
                        f"steps read each other in a circle: {' reads '.join([step.name, *circle])}; take one of these "
                        "out of an input_from"
                    )
                raise ConfigError(
                    f"step {step.name!r} reads {name!r}, which is a later step; move {name!r} before {step.name!r}"
                )
        earlier.append(step.name)


def _way(start: str, end: str, steps: Mapping[str, Step]) -> list[str]:
    """Returns the steps from one to another, along what each reads; empty if there is no way."""
    ways, seen = [[start]], {start}
    for way in ways:
        if way[-1] == end:
            return way
        for name in steps[way[-1]].reads if way[-1] in steps else ():
            if name not in seen:
                seen.add(name)
                ways.append([*way, name])
    return []


def _refuse_same_outputs(steps: Sequence[Step]) -> None:
    for number, one in enumerate(steps):
        for other in steps[:number]:
            if one.output == other.output:
                raise ConfigError(
                    f"steps {other.name!r} and {one.name!r} have one output, {one.output}; give each its own"
                )
            if f"{one.output}/".startswith(f"{other.output}/") or f"{other.output}/".startswith(f"{one.output}/"):
                raise ConfigError(
                    f"the outputs of steps {other.name!r} and {one.name!r} lie one in the other ({other.output} and "
                    f"{one.output}); give each a folder of its own"
                )


def _refuse_outputs_as_input(step: Step, steps: Sequence[Step]) -> None:
    """Raises ConfigError for an input that lies in, or matches, the output of a step: the order would not be known."""
    for text in step.input:
        pattern = parse_input(text)
        for other in steps:
            if could_match(pattern, pattern.root, other.output) or pattern.root.startswith(f"{other.output}/"):
                if other.name == step.name:
                    raise ConfigError(
                        f"step {step.name!r}: its input {text!r} reaches its own output {other.output}; choose an "
                        "output beside the input"
                    )
                raise ConfigError(
                    f"step {step.name!r}: its input {text!r} reaches the output of step {other.name!r}; name the step "
                    f"instead: input_from = {other.name!r}"
                )
