"""Which backend `auto` is: this process if tasks read or write what is in its memory; Ray if there is a cluster to
join, or if a job asks for what only Ray can place, such as TPUs; else local.

`choose` decides, over facts; `facts_now` looks at the environment and the machine. Neither imports ray.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from curate.backends.make import AUTO, begin_backend, check_backend, check_installed, make_backend
from curate.backends.ray.find import find
from curate.dataclass import dataclass, field, replace
from curate.errors import ConfigError
from curate.keywords import option
from curate.local import machine
from curate.log import get_logger
from curate.runtime.protocol import Backend, PoolSpec, Resources
from curate.runtime.scaling import does_not_fit
from curate.runtime.shipping import refuse_unsendable

VARIABLE = "CURATE_BACKEND"
"""Environment variable that names the backend where nothing else does."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What one stage asks of where it runs."""

    resources: Resources
    """What a task of it holds."""
    pools: tuple[PoolSpec, ...] = ()
    name: str = ""
    """What the stage is called."""
    program: Any = None
    """What is sent to its workers."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the choice goes by."""

    cluster: str = ""
    """The Ray cluster that there is to join, in words; empty: none."""
    gone: str = ""
    """The address of a cluster of this machine that does not answer any more."""
    has: Mapping[str, float] = field(default_factory=dict)
    """What this machine has, in Ray's names."""
    asks: tuple[Ask, ...] = ()
    here: str = ""
    """A URI in the memory of this process that tasks read or write; empty: none is."""


def choose(facts: Facts) -> tuple[str, str]:
    """Returns the backend, and why.

    >>> choose(Facts(has={"CPU": 2.0, "memory": 8e9}, asks=(Ask(Resources(num_cpus=9.0)),)))
    ('local', 'there is no Ray cluster to join')
    >>> choose(Facts(cluster="RAY_ADDRESS is 10.0.0.1:6379"))
    ('ray', 'RAY_ADDRESS is 10.0.0.1:6379')
    >>> choose(Facts(here="memory://bucket/out", cluster="RAY_ADDRESS is 10.0.0.1:6379"))
    ('inline', 'memory://bucket/out is in its memory')
    """
    if facts.here:
        return "inline", f"{facts.here} is in its memory"
    if facts.cluster:
        return "ray", facts.cluster
    for ask in facts.asks:
        if missing := _only_ray_has(ask, facts.has):
            return "ray", missing
    gone = f"; the one that was started at {facts.gone} does not answer" if facts.gone else ""
    return "local", f"there is no Ray cluster to join{gone}"


def _only_ray_has(ask: Ask, has: Mapping[str, float]) -> str:
    """Returns what is asked for that only Ray knows of. Not CPUs, memory or GPUs: without a cluster, Ray would find no
    more of them than there are, and say so later than `local`."""

    def other(asked: Resources) -> Resources:
        return replace(asked, num_cpus=0.0, num_gpus=0.0, memory=None)

    pools = [replace(one, resources=other(one.resources)) for one in ask.pools]
    return does_not_fit(has, other(ask.resources), pools).partition(";")[0]


def for_many(ask: Ask, here: Sequence[str] = ()) -> Chosen:
    """Returns the backend of rows that are consumed through several actors, where none is named: this process, if there
    is no cluster and this machine has no room for the actors. `here`: what they read in its memory."""
    name = default_backend()
    if name != AUTO:
        return Chosen.of(name, [ask], here=here)
    facts = replace(facts_now([ask]), here=next(iter(here), ""))
    name, why = choose(facts)
    # This process would not have the GPUs either: `local` refuses.
    has = {**facts.has, "GPU": math.inf}
    missing = does_not_fit(has, ask.resources, ask.pools) if name == "local" else ""
    return Chosen("inline", missing.partition(";")[0]) if missing else Chosen(name, why)


def facts_now(asks: Iterable[Ask]) -> Facts:
    """Returns the facts, as they are now."""
    found = find()
    has = {"CPU": machine.cpus(), "memory": float(machine.memory_limit())}
    return Facts(found.cluster, found.gone, has, tuple(asks))


def default_backend() -> str:
    """Returns the backend where none is named."""
    return os.environ.get(VARIABLE) or AUTO


@dataclass(slots=True)
class Chosen:
    """The backend of a run, which was named, or chosen for a reason."""

    name: str
    why: str = ""
    """Empty if it was named, and once it was said."""
    given: Backend | None = None
    """Used in place of one that is made."""
    dry: bool = False
    """Whether none is ever started: a dry run only asks."""

    @classmethod
    def of(cls, name: str, asks: Iterable[Ask], given: Backend | None = None, here: Sequence[str] = ()) -> Chosen:
        """Returns the backend of this name; of `auto`, the one that fits now what is asked for.

        `here` are the URIs in the memory of this process that tasks read and write. Raises ConfigError if there are
        any, and tasks were to run in other processes.
        """
        if given is not None:
            return cls(given.name if name == AUTO else name, given=given)
        if name == AUTO:
            return cls(*choose(replace(facts_now(asks), here=next(iter(here), ""))))
        if here and check_backend(name) != "inline":
            raise ConfigError(
                f"{here[0]} is in the memory of this process, and the tasks of {option('backend', name)} run in other "
                f"processes, which do not see it; take {option('backend', 'inline')}, or gs://, s3:// or a folder"
            )
        return cls(name)

    def tell(self) -> None:
        """Says in one line which backend was chosen and why, the first time."""
        if self.why:
            get_logger().info(f"tasks run on {_WORDS[self.name]}", backend=self.name, reason=self.why)
            self.why = ""

    def begin(self, asks: Iterable[Ask]) -> None:
        """Begins what takes time before a backend can start, beside whatever else this process does.

        `asks` are those of the stages that are to run, in order. Raises ConfigError for the first of which it is known
        here that it cannot: its program cannot be sent to workers, this machine has no room for it, or a package is
        not installed.
        """
        for ask in asks if self.name != "inline" else ():
            refuse_unsendable(ask.name, ask.program)
            if self.name == "local" and (missing := does_not_fit(machine.holds(), ask.resources, ask.pools)):
                raise ConfigError(missing)
        if self.given is None:
            check_installed(self.name)
            if not self.dry:
                begin_backend(self.name)

    def backend(self) -> Backend:
        """Returns a backend that has not started. Raises ConfigError if what it needs is not installed."""
        self.tell()
        return self.given or make_backend(self.name)


_WORDS = {"ray": "Ray", "local": "worker processes of this machine", "inline": "this process alone"}
