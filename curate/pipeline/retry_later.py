"""Handles `RetryLater` of user code: waits, and repeats the same call.

The unit is the call that raised: a batch of `process` or `map_batches`, a row of `map`, `flat_map` and `filter`, a
group of `map_groups`. Results of other calls are kept; results and counts of this one are discarded. The code that
makes the calls does not wait. It yields `Busy` among its tables and repeats the call when the next item is requested,
so the code that runs the shard decides how to wait, reports it, and can be stopped:

    short wait (below `SHORT_WAIT_S`)       in place; not reported, and no try of the shard
    long wait, no call of the shard done    the shard is handed back: its slot is free, and nothing is lost
    long wait, some calls done              in place, told to the driver, for as long as it was asked to
    `MOST_TRIES` long waits in a row        the shard is given up

Why in place: an output is all or nothing, so finished batches exist only in the worker (open writers, quarantined rows,
the state of every step). Storing them elsewhere would need a second record of finished work, for each writer and step.
A waiting slot costs less than repeated calls: other shards of the job would wait for the same service.

In an actor of a pool, a short wait happens in the actor. For a long one, the task that sent the batch waits and sends
it again; only between the rows of a batch the actor itself waits, because the rows before are done. That wait is not
reported and counts as work: set `task_timeout_s` above the longest outage of the service.

`process_file` is one call for a whole file, whose tables are written as they come: its shard is handed back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from curate.clock import Clock
from curate.dataclass import dataclass
from curate.pipeline.classify import failure_of, kind_of
from curate.pipeline.remote_error import CapturedError, RemoteError
from curate.pipeline.shard_books import RowsBooked, ShardBooks
from curate.tasks.failure import FailureKind, ShardWaits
from curate.tasks.policy import LONGEST_BACKOFF_S, Policy

SHORT_WAIT_S = 1.0
"""A wait below this is short: to hand a shard back and launch it again costs the driver and a worker milliseconds, and
what was read of it is read again; who watches sees nothing that lasts less than a second."""
FIRST_WAIT_S = 0.005
"""Seconds before the second try of a call that asked for no time; they double with every further one, up to a minute.
So eight short waits come before the first long one, and a service that stumbles costs no shard a try."""
MOST_TRIES = Policy().retry_later_limit
"""Long waits in a row of one call, after which its shard is given up: as often as one that gets nothing done."""
WORD_S = 5.0
"""How often a shard that waits says so: a time limit counts from its last word."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Busy:
    """Among the tables of a shard: a call raised `RetryLater`. It is made again when the next item is asked for."""

    error: Exception
    after_s: float
    """Seconds that user code asked to wait for."""
    tries: int
    """How often this call was made, in a row."""
    kept: bool = False
    """Whether calls of the same batch are done, which are lost if this one is not waited for here."""

    @property
    def wait_s(self) -> float:
        """Seconds to wait before the call is made again."""
        return wait_s(self.tries, self.after_s)

    @property
    def short(self) -> bool:
        """Whether it is waited in place, whatever else."""
        return self.wait_s < SHORT_WAIT_S

    @property
    def long_tries(self) -> int:
        """How many waits of this call were long so far, with this one."""
        return sum(wait_s(tries, self.after_s) >= SHORT_WAIT_S for tries in range(1, self.tries + 1))


def wait_s(tries: int, after_s: float) -> float:
    """Returns the seconds to wait after a call was made `tries` times: what it asks for, and longer each time.

    >>> [wait_s(tries, 0.01) for tries in (1, 2, 3, 4)], wait_s(40, 0.01), wait_s(1, 300.0)
    ([0.01, 0.01, 0.02, 0.04], 60.0, 300.0)
    """
    return max(after_s, min(FIRST_WAIT_S * 2.0 ** min(tries - 1, 60), LONGEST_BACKOFF_S))


def is_busy(error: BaseException) -> bool:
    """Returns whether an exception says that what a call needs is not there now."""
    return kind_of(error) is FailureKind.RETRY_LATER


def busy(error: Exception, tries: int, *, kept: bool = False) -> Busy:
    """Returns what is told of a call that raised."""
    after_s = error.raised.failure.after_s if isinstance(error, RemoteError) else failure_of(error).after_s
    return Busy(error, after_s, tries, kept)


def call_with_retries(call: Callable[[], T], *, kept: bool, tries: int = 0) -> Iterator[Busy | Answer[T]]:
    """Yields the `Answer` of a call, and before it a `Busy` for each time that it raised `RetryLater`.

    `kept`: whether calls of the same batch are done. `tries`: how often it was made in vain before.
    """
    try:
        answer = call()
    except Exception as error:  # noqa: BLE001 - raised there, if it is none of these
        yield from called_again(error, call, kept=kept, tries=tries)
    else:
        yield Answer(answer)


def called_again(error: Exception, call: Callable[[], T], *, kept: bool, tries: int = 0) -> Iterator[Busy | Answer[T]]:
    """Yields a `Busy` for what a call raised, and for each time that it does so again, then its `Answer`. Raises the
    error if it is not `RetryLater`. The rest is as of `call_with_retries`."""
    while True:
        if not is_busy(error):
            raise error
        tries += 1
        yield busy(error, tries, kept=kept)
        try:
            answer = call()
        except Exception as again:  # noqa: BLE001 - raised above, if it is another
            error = again
        else:
            yield Answer(answer)
            return


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What a call returned in the end."""

    value: T


def wait_between(
    items: Iterator[Any],
    tally: ShardBooks,
    clock: Clock,
    rank: int = 0,
    *,
    stays: bool | None = None,
    asks: bool = False,
    word_s: float = WORD_S,
) -> Iterator[Any]:
    """Yields what a shard becomes, and waits where a call was `Busy`; yields a `ShardWaits` before and during a long
    wait, and when that is over.

    `stays`: whether a long wait is waited in place; None: where a call of the shard is done. `asks`: whether word is
    wanted of the first item, for nobody knew whether what it needs is there. Raises what the call raised where the
    shard is handed back, or given up.
    """
    told = asks
    for item in items:
        if not isinstance(item, Busy):
            if told:
                told = False
                yield ShardWaits(rank, 0.0)
            yield item
        elif item.short:
            clock.sleep(item.wait_s)
        elif item.long_tries > MOST_TRIES:
            raise given_up(item)
        elif not (tally.calls or item.kept if stays is None else stays):
            raise item.error
        else:
            told = True
            yield from _long_wait(item, clock, rank, word_s)


def _long_wait(item: Busy, clock: Clock, rank: int, word_s: float) -> Iterator[ShardWaits]:
    until_s = clock.monotonic() + item.wait_s
    reason = reason_of(item.error)
    while (left_s := until_s - clock.monotonic()) > 0:
        yield ShardWaits(rank, left_s, reason, item.long_tries)
        clock.sleep(min(left_s, word_s))


def wait_in_place(item: Busy, clock: Clock) -> None:
    """Waits where nobody can be told. Raises what the call raised once it was tried too often."""
    if item.long_tries > MOST_TRIES:
        raise given_up(item)
    clock.sleep(item.wait_s)


def reason_of(error: Exception) -> str:
    """Returns what a service said, as far as user code tells."""
    return (error.raised.failure if isinstance(error, RemoteError) else failure_of(error)).reason


def given_up(item: Busy) -> Exception:
    """Returns the error of a call that was made too often, which says how often."""
    error = item.error
    if isinstance(error, RemoteError):
        error.raised = error.raised.tried(item.long_tries)
    else:
        # Not every exception has room for an attribute; such a shard is tried again, and given up then.
        with contextlib.suppress(AttributeError):
            error.curate_tries = item.long_tries  # type: ignore[attr-defined]
    return error


@dataclass(frozen=True, slots=True)
class RetryBatch:
    """The answer of an actor: the batch is to be sent again, after a wait."""

    raised: CapturedError
    batch: Any
    tries: int
    booked: RowsBooked
    """Its metrics."""
    wall_s: float
    cpu_s: float

    def busy(self) -> Busy:
        """Returns what the task that sent the batch tells."""
        return busy(RemoteError(self.raised), self.tries)
