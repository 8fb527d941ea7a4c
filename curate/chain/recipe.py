"""Recipe: a chain of jobs as a class, whose parameters are options of one command."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar

from curate.chain.chain import Chain
from curate.chain.steps import Step
from curate.dataclass import dataclass, field, replace
from curate.errors import ConfigError, did_you_mean
from curate.job.params import Param, collect
from curate.keywords import option
from curate.operators.arguments import path_text
from curate.resume.options import PathText, input_texts, resolve_output


@dataclass(frozen=True, slots=True)
class Part:
    """A step of a recipe, which reads the one before it."""

    name: str
    job: str
    """As `curate run` takes it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Parameters and settings of the job, and options of its run."""
    left_out: str = ""
    """Why the step is not there: what it would need was not given. Empty: it is."""


class Recipe:
    """Base of recipes: annotated attributes are parameters, as those of jobs; `parts` says which steps there are.

    >>> from curate.job.params import param
    >>> class Short(Recipe):
    ...     shards: int = param(8, help="number of output files")
    ...     def parts(self, begin):
    ...         yield Part("good", "quality", {"rules": ["gopher"]})
    ...         yield Part("shards", "shuffle", {"shards": self.shards})
    >>> chain = Short(shards=4).chain("in/*.parquet", "/out", changes=["good.min_words=20"])
    >>> [(one.name, one.input_from, one.options) for one in chain.steps][0]
    ('good', (), {'rules': ['gopher'], 'min_words': 20})
    """

    begins: ClassVar[tuple[str, ...]] = ("rows",)
    """What the inputs may be; the first one is the default."""
    _params: ClassVar[Mapping[str, Param]] = {}

    def __init_subclass__(cls) -> None:
        cls._params = collect(cls, {}, ("parts", "chain", "left_out", "unused"))

    def __init__(self, **parameters: Any) -> None:
        """Raises ConfigError for a parameter that there is not, that is missing, or that does not fit its type."""
        for name in parameters:
            if name not in self._params:
                raise ConfigError(
                    f"{type(self).__name__} has no parameter {name!r}{did_you_mean(name, self._params)}; it has: "
                    f"{', '.join(self._params) or 'none'}"
                )
        for name, one in self._params.items():
            if one.required and name not in parameters:
                raise ConfigError(f"{type(self).__name__} needs {name!r}: {one.help}")
            setattr(self, name, one.check(parameters.get(name, one.default), type(self).__name__))

    def parts(self, begin: str) -> Iterable[Part]:
        """Returns the steps in order, the first of which reads the inputs; `begin` is one of `begins`."""
        raise NotImplementedError

    def left_out(self, begin: str = "") -> dict[str, str]:
        """Returns the steps that are not there with what was given, and why."""
        return {one.name: one.left_out for one in self.parts(self._begin(begin)) if one.left_out}

    def unused(self, *names: str) -> str:
        """Returns the end of a reason to leave a step out: which of its parameters are given, and have no effect."""
        given = [option(name, ...) for name in names if getattr(self, name) != self._params[name].default]
        return f", so {', '.join(given)} {'has' if len(given) == 1 else 'have'} no effect" if given else ""

    def chain(
        self,
        inputs: PathText | Sequence[PathText],
        output: PathText,
        *,
        begin: str = "",
        changes: Iterable[str] = (),
        folder: PathText | None = None,
    ) -> Chain:
        """Returns the chain that makes `output` of `inputs`: each step writes below it, in a folder of its name.

        `changes` are options of steps that are to be others, such as `quality.min_words=20`: the value is JSON, or
        text. Raises ConfigError for a step or a beginning that there is not; what a job does not take, the chain
        refuses before it runs.
        """
        inputs, below = input_texts(inputs), path_text(output, "output")
        resolve_output(below)  # Refuses one below which all files lie, as an empty one would be.
        parts = changed(list(self.parts(self._begin(begin))), changes)
        steps: list[Step] = []
        for one in parts:
            reads: Any = {"input_from": steps[-1].name} if steps else {"input": inputs}
            steps.append(Step(one.name, one.job, f"{below.rstrip('/')}/{one.name}", options=one.options, **reads))
        return Chain(steps, folder=folder, parameters={name: getattr(self, name) for name in self._params})

    def _begin(self, begin: str) -> str:
        begin = begin or self.begins[0]
        if begin not in self.begins:
            raise ConfigError(
                f"a recipe that begins with {begin!r}{did_you_mean(begin, self.begins)}; {type(self).__name__} begins "
                f"with: {', '.join(self.begins)}"
            )
        return begin


def changed(parts: Sequence[Part], changes: Iterable[str]) -> list[Part]:
    """Returns the parts that are there, with other options. Raises ConfigError for a change that cannot be understood.

    >>> changed([Part("good", "quality")], ["good.min_words=20", "good.rules=[\\"c4\\"]"])[0].options
    {'min_words': 20, 'rules': ['c4']}
    >>> changed([Part("good", "quality")], ["god.min_words=20"])
    Traceback (most recent call last):
    curate.errors.ConfigError: god.min_words=20: there is no step 'god'; did you mean 'good'?
    """
    found = {one.name: one for one in parts}
    for text in changes:
        key, equals, value = text.partition("=")
        name, dot, option = key.strip().partition(".")
        if not equals or not dot or not option:
            raise ConfigError(f"{text!r} names no option of a step; write it like {parts[0].name}.OPTION=VALUE")
        if name not in found:
            near = did_you_mean(name, found) or f"; there are: {', '.join(found)}"
            raise ConfigError(f"{text}: there is no step {name!r}{near}")
        if found[name].left_out:
            raise ConfigError(f"{text}: step {name!r} is left out: {found[name].left_out}")
        found[name] = replace(found[name], options={**found[name].options, option: _value(value.strip())})
    return [one for one in found.values() if not one.left_out]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def recipes_of(module: ModuleType) -> list[type[Recipe]]:
    """Returns the recipes that a module defines."""
    return [
        one
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, Recipe) and one.__module__ == module.__name__
    ]
