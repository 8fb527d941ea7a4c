"""Faults of a store's calls for tests: scripted, or drawn from a seed.

`Faults` only decides. `FaultyStore` asks it before every call and does what it says.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum

from curate.dataclass import dataclass, field
from curate.errors import ConfigError, TransientStorageError, refuse_other

ENVIRONMENT = "CURATE_TESTING_FAULTS"
OPERATIONS = ("list", "stat", "read", "open", "publish", "replace", "delete", "may_delete")
"""The calls that can fail. `publish` is also that of a writer."""


class When(StrEnum):
    """At which point of a call a fault hits.

    >>> Fault("publish", when=When.AFTER).when.value
    'after'
    """

    BEFORE = "before"
    """Nothing happened."""
    AFTER = "after"
    """It happened, and the answer was lost."""
    TORN = "torn"
    """It broke off: a listing after half of its objects, a stream after half of its bytes; what was written is gone."""
    SLOW = "slow"
    """It takes `slow_s` longer, and then ends well."""


def kill() -> BaseException:
    """Kills this process, as `kill -9` does. For `Fault.error`.

    >>> Fault("publish", error=kill).fired
    0
    """
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a process survived its SIGKILL")


def lost() -> BaseException:
    """Returns the error of a request that was throttled, reset or timed out.

    >>> lost()
    TransientStorageError('a scripted fault')
    """
    return TransientStorageError("a scripted fault")


@dataclass(slots=True)
class Fault:
    """One scripted failure: of the `nth` call that matches, and of the `times - 1` calls after it.

    >>> fault = Fault("publish", nth=2, when="after")
    >>> fault.matched, fault.fired
    (0, 0)
    >>> [fault.hits("publish", "gs://b/x") for _ in range(3)], fault.make_error()
    ([False, True, False], TransientStorageError('a scripted fault'))
    """

    operation: str | None = None
    """One of `OPERATIONS`; None for any. A call that is tried again counts again."""
    nth: int = 1
    """Which of the calls that match is the first one hit, from 1."""
    when: When | str = When.BEFORE
    """Whether the store has done what the call asks for by then."""
    times: int = 1
    """How many calls are hit, one after another."""
    name: str = ""
    """Part of the URI; of the prefix, for a listing."""
    error: BaseException | Callable[[], BaseException] = lost
    """What is raised, or makes it."""
    slow_s: float = 1.0
    """How long a slow call takes, in seconds."""
    matched: int = 0
    """Calls so far that the fault applies to."""
    fired: int = 0
    """How often it happened. A test that scripts a fault should look at it."""

    def __post_init__(self) -> None:
        if self.operation is not None:
            refuse_other("Fault: operation", self.operation, OPERATIONS)
        refuse_other("Fault: when", self.when, tuple(When))
        self.when = When(self.when)
        if self.nth < 1 or self.times < 1:
            raise ConfigError(f"nth={self.nth}, times={self.times}: both count from 1")

    def hits(self, operation: str, uri: str) -> bool:
        """Counts the call if it matches; returns whether it fails."""
        if self.operation not in (None, operation) or self.name not in uri:
            return False
        self.matched += 1
        if not self.nth <= self.matched < self.nth + self.times:
            return False
        self.fired += 1
        return True

    def make_error(self) -> BaseException:
        """Returns what is raised."""
        return self.error if isinstance(self.error, BaseException) else self.error()


@dataclass
class Faults:
    """All scripted failures of one store or of a process, and a count of those that happened. Thread-safe.

    `rate` of all calls fail besides the scripted faults, chosen by `seed`, before or after their effect. In one thread
    the same seed gives the same faults.

    >>> faults = Faults([Fault("stat", nth=2)], rate=0.0, error=lost)
    >>> [faults.next("stat", "gs://b/x") is not None for _ in range(4)]
    [False, True, False, False]
    >>> faults.calls, faults.fired
    (Counter({'stat': 4}), Counter({'stat': 1}))
    """

    scripted: Collection[Fault] = ()
    """What is to go wrong."""
    rate: float = 0.0
    """The share of all other calls that fail, from 0 to 1."""
    seed: int = 0
    """Chooses these calls."""
    error: BaseException | Callable[[], BaseException] = lost
    """What is raised by those drawn."""
    calls: Counter[str] = field(default_factory=Counter, init=False)
    """Calls so far, by operation; those that failed included."""
    fired: Counter[str] = field(default_factory=Counter, init=False)
    """Faults so far, by operation."""

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise ConfigError(f"rate is {self.rate}; expected a share of the calls, from 0 to 1")
        self._random = random.Random(self.seed)
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: Mapping[str, object]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def next(self, operation: str, uri: str) -> Fault | None:
        """Returns the fault for the next call, None if it has none."""
        with self._lock:
            self.calls[operation] += 1
            found = [fault for fault in self.scripted if fault.hits(operation, uri)]
            if not found and self.rate and self._random.random() < self.rate:
                when = self._random.choice((When.BEFORE, When.AFTER))
                found = [Fault(operation, when=when, error=self.error)]
            if found:
                self.fired[operation] += 1
        return found[0] if found else None


_ERRORS = {"lost": lost, "kill": kill}


def parse_faults(text: str) -> Faults:
    """Returns the faults that `CURATE_TESTING_FAULTS` means.

    Parts are separated by semicolons, each `name=value` pairs separated by commas. A part with `rate` is drawn, with
    its `seed`; every other is a `Fault`, by the names of its fields, with `error=kill` to kill the process.

    >>> faults = parse_faults("seed=7,rate=0.01; operation=publish,nth=3,when=after,error=kill")
    >>> faults.rate, faults.seed, [(fault.operation, fault.nth, str(fault.when)) for fault in faults.scripted]
    (0.01, 7, [('publish', 3, 'after')])
    """
    scripted, rate, seed = [], 0.0, 0
    for part in filter(None, (part.strip() for part in text.split(";"))):
        given = dict(_pair(pair, text) for pair in part.split(","))
        try:
            if "rate" in given:
                rate, seed = float(given.pop("rate")), int(given.pop("seed", "0"))
            else:
                scripted.append(_fault(given))
        except ValueError as error:
            raise ConfigError(f"{ENVIRONMENT}={text!r}: {error}") from error
        if given:
            raise ConfigError(f"{ENVIRONMENT}={text!r}: {', '.join(given)} has no effect there; see curate.testing")
    return Faults(scripted, rate, seed)


def _fault(given: dict[str, str]) -> Fault:
    """Returns the fault that is described; what it understands is taken out of `given`."""
    error = given.pop("error", "lost")
    if error not in _ERRORS:
        raise ValueError(f"error={error!r}; expected one of {', '.join(_ERRORS)}")
    return Fault(
        given.pop("operation", None),
        int(given.pop("nth", "1")),
        given.pop("when", "before"),
        int(given.pop("times", "1")),
        given.pop("name", ""),
        _ERRORS[error],
        float(given.pop("slow_s", "1")),
    )


def _pair(pair: str, text: str) -> tuple[str, str]:
    name, separator, value = pair.strip().partition("=")
    if not separator:
        raise ConfigError(f"{ENVIRONMENT}={text!r}: found {pair.strip()!r}, expected name=value")
    return name, value
