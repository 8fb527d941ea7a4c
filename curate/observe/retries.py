"""The shards of a run that are being retried: what each waits for, and until when.

Values in, values out; the caller has the clock. One small entry a shard that is tried again and not done, of which the
scheduler bounds the number.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from curate.dataclass import dataclass, field
from curate.ledger.failures import Signature, Signatures
from curate.tasks.failure import Failure, FailureKind, ShardWaits
from curate.units import format_duration

BUSY = "service busy"
SHOWN = 100
"""Different reasons that a heartbeat tells, most frequent first."""
MAX_REASON = 300
"""Characters of a reason."""
MOST_WARNINGS = 100
"""Failed tries that a run logs one by one: a million shards may fail, and each is in the ledger."""
MOST_ALIKE = 3
"""Those of them that are alike: of a line of code that fails on each shard, the hundredth report tells nothing new."""


@dataclass(frozen=True, slots=True)
class _Retry:
    shard: str
    reason: str
    until_s: float
    tries: int
    in_place: bool


@dataclass(slots=True)
class Retrying:
    """The shards that are tried again, by rank."""

    _shards: dict[int, _Retry] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._shards)

    def again(self, rank: int, shard: str, failure: Failure, now_s: float) -> None:
        """Notes a try that failed and is followed by another one."""
        if failure.kind is FailureKind.RETRY_LATER:
            reason = busy_text(failure.reason)
        elif failure.kind is FailureKind.LOST:
            # Nobody waits for anything, and of a large cluster these would be thousands.
            self._shards.pop(rank, None)
            return
        else:
            reason = failure.error
        self._shards[rank] = _Retry(shard, reason[:MAX_REASON], now_s + failure.wait_s, failure.tries, in_place=False)

    def waits(self, word: ShardWaits, shard: str, now_s: float) -> bool:
        """Notes that a shard waits within its task, or no longer does; returns whether that is news."""
        if not word.wait_s:
            return self._shards.pop(word.index, None) is not None
        before = self._shards.get(word.index)
        reason = busy_text(word.reason)[:MAX_REASON]
        self._shards[word.index] = _Retry(shard, reason, now_s + word.wait_s, word.tries, in_place=True)
        return before is None or not before.in_place or before.tries != word.tries

    def waiting(self) -> tuple[int, str]:
        """Returns how many shards wait for a service, and what most of them were answered."""
        reasons = Counter(one.reason for one in self._shards.values() if one.reason.startswith(BUSY))
        if not reasons:
            return 0, ""
        ((most, _),) = reasons.most_common(1)
        return reasons.total(), most[len(BUSY) :].strip(" ()")

    def over(self, rank: int) -> None:
        """Notes that a shard is done, or given up."""
        self._shards.pop(rank, None)

    def as_list(self) -> list[dict[str, Any]]:
        """Returns for each reason how many shards are tried again, and one of them; most shards first."""
        counts = Counter(one.reason for one in self._shards.values())
        examples = {one.reason: one.shard for one in self._shards.values()}
        return [
            {"error": reason, "count": count, "shard": examples[reason]} for reason, count in counts.most_common(SHOWN)
        ]

    def text(self, now_s: float) -> str:
        """Returns it in a line; empty if no shard is tried again.

        >>> retrying = Retrying()
        >>> busy = Failure(FailureKind.RETRY_LATER, "", reason="HTTP 429", tries=3, wait_s=60.0)
        >>> retrying.again(4, "a", busy, 0.0)
        >>> retrying.again(5, "b", busy, 30.0)
        >>> retrying.text(40.0)
        '2 shards are being retried: service busy (HTTP 429); next try in 20 s'
        """
        if not self._shards:
            return ""
        (reason, _), *others = Counter(one.reason for one in self._shards.values()).most_common()
        more = f", and {len(others):,} other reasons" if others else ""
        left_s = min(one.until_s for one in self._shards.values()) - now_s
        when = f"next try in {format_duration(left_s)}" if left_s > 0 else "the next try is under way"
        return f"{shards_text(len(self._shards))} {reason}{more}; {when}"


def busy_text(reason: str) -> str:
    """Returns that a service is busy, as people are told."""
    return f"{BUSY} ({reason})" if reason else BUSY


def next_try(what: str, wait_s: float, tries: int, limit: int) -> str:
    """Returns when something is tried again, and how often it may be.

    >>> next_try("this shard", 60.0, 3, 20)
    'next try of this shard in 60 s (3 of 20)'
    """
    when = f"in {wait_s:.3g} s" if wait_s < 600 else f"in {format_duration(wait_s)}"
    return f"next try of {what} {when if wait_s else 'at once'} ({tries} of {limit})"


def shards_text(count: int) -> str:
    """Returns the beginning of a sentence about shards that are tried again.

    >>> shards_text(1), shards_text(3)
    ('1 shard is being retried:', '3 shards are being retried:')
    """
    return "1 shard is being retried:" if count == 1 else f"{count:,} shards are being retried:"


def failed_text(failure: Failure, limit: int, *, final: bool) -> str:
    """Returns what is logged of a failed try; `final`: of the last one that the `limit` allows."""
    if failure.kind is FailureKind.RETRY_LATER:
        if final:
            return f"shard failed: the service was busy {limit + 1} times in a row"
        return f"{busy_text(failure.reason)}; {next_try('this shard', failure.wait_s, failure.tries, limit)}"
    return "shard failed" if final else f"shard failed; {next_try('it', failure.wait_s, failure.tries, limit)}"


class Warned:
    """Decides which failed tries are logged, so that a flood of them hides nothing else.

    Tries are alike that have the same signature, and are both the last of their shard, or both not.
    """

    def __init__(self) -> None:
        self._signatures = Signatures()
        self._alike: Counter[tuple[Signature, bool]] = Counter()
        self._logged = 0

    def busy(self) -> bool:
        """Counts a wait for a service; returns whether it is logged."""
        return self._room()

    def failed(self, failure: Failure, *, final: bool) -> tuple[bool, str]:
        """Counts a failed try; returns whether it is logged, and what else is, if anything."""
        if failure.kind is not FailureKind.RETRY_LATER:
            alike = (self._signatures.of({"error": failure.error, "frame": failure.frame}), final)
            self._alike[alike] += 1
            if self._alike[alike] > MOST_ALIKE:
                first = self._alike[alike] == MOST_ALIKE + 1
                return False, "more fail in the same way; each is in the ledger, but not logged" if first else ""
        room = self._room()
        over = not room and self._logged == MOST_WARNINGS + 1
        return room, "more shards fail; each is in the ledger, and no more are logged one by one" if over else ""

    def _room(self) -> bool:
        self._logged += 1
        return self._logged <= MOST_WARNINGS


class TryLog:
    """Logs failed tries and waits, as `Warned` decides."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._warned = Warned()

    def failed(self, failure: Failure, limit: int, *, final: bool, **about: Any) -> None:
        """Logs a try that failed."""
        logged, more = self._warned.failed(failure, final=final)
        if logged:
            text = failed_text(failure, limit, final=final)
            self._log.warning(text, **about, kind=failure.kind.value, error=failure.error)
        if more:
            self._log.warning(more, error=failure.error)

    def waits(self, word: ShardWaits, limit: int, **about: Any) -> None:
        """Logs that a shard waits within its task."""
        if self._warned.busy():
            self._log.warning(
                f"{busy_text(word.reason)}; {next_try('its batch', word.wait_s, word.tries, limit)}", **about
            )
