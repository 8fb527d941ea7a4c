"""Failures: one line of the ledger for each failed try, and groups of tries with the same cause.

Values in, values out. Failures with the same *signature* are a group: the exception's type, its message without the
parts that differ between shards, and the frame in user code.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from curate.dataclass import dataclass, field
from curate.ledger import layout
from curate.tasks.events import Launch, Outcome
from curate.tasks.failure import FailureKind, ShardRecord
from curate.tasks.shard import Shard

KEPT_TRACEBACKS = 100
"""Tracebacks of one signature that a run keeps: a million shards may fail the same way."""
MOST_SIGNATURES = 1000
"""Signatures that are kept apart; of further ones the message is left out."""
MOST_PATTERN = 300
"""Characters of a message that count."""


_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_QUOTED = re.compile(
    # A quote inside of a word is an apostrophe. One that is never closed was cut off with the rest of the message.
    r"""(?<!\w)b?'(?:[^'\\]|\\.|'(?=\w))*(?:'(?!\w)|\\?$)|(?<!\w)b?"(?:[^"\\]|\\.)*(?:"|\\?$)|`[^`]*(?:`|$)""",
    re.DOTALL,
)
_PATH = re.compile(r"""[a-zA-Z][a-zA-Z0-9+.-]*://[^\s'"`,;)\]}>]+|(?<![\w.…/])~?\.{0,2}/[^\s'"`,;)\]}>]+""")
_RELATIVE_PATH = re.compile(r"""(?<![\w…/])(?:[\w.+=@%-]+/)+[\w.+=@%-]*""")
_NUMBER = re.compile(
    # A UUID or a date; a number; a number in base 16, or a digest, which has letters and digits as few words do.
    r"\b(?=[a-fA-F-]*\d)[0-9a-fA-F]{4,}(?:-[0-9a-fA-F]{2,})+\b"
    r"|(?<!\w)[+-]?\d+(?:[_,]\d+)*(?:\.\d+)*(?:[eE][+-]?\d+)?(?!\w)"
    r"|\b(?:0[xX][0-9a-fA-F]+|(?=[a-fA-F]*\d)(?=\d*[a-fA-F])[0-9a-fA-F]{8,})\b"
    r"|\d+"
)


def pattern(message: str) -> str:
    """Returns a message without what differs from one shard to the next: quoted text, paths, numbers.

    >>> pattern("cannot parse 'abc' in line 17 of gs://b/reddit/RC_2007.jsonl (offset 0x1f)")
    "cannot parse '…' in line 0 of /… (offset 0)"
    >>> pattern("can't be 12.5 % of 3,000 rows")
    "can't be 0 % of 0 rows"
    """
    text = " ".join(_ANSI.sub("", message).split())
    text = _QUOTED.sub("'…'", text)
    text = _PATH.sub("/…", text)
    text = _RELATIVE_PATH.sub("/…", text)
    return _NUMBER.sub("0", text)[:MOST_PATTERN].rstrip()


@dataclass(frozen=True, slots=True)
class Signature:
    """What failures that are alike have in common."""

    error: str
    """The exception's type, or how the task ended."""
    message: str
    """Its message, without what differs from shard to shard."""
    frame: str
    """The innermost frame in user code; empty where there is none."""


def signature(error: str, frame: str = "") -> Signature:
    """Returns the signature of an error, given as "Type: message".

    >>> signature("ValueError: bad row 17", "jobs/a.py:4 in process")
    Signature(error='ValueError', message='bad row 0', frame='jobs/a.py:4 in process')
    """
    kind, _, message = error.partition(":")
    if not kind.strip() or len(kind.split()) > 4:
        kind, message = "", error
    return Signature(" ".join(kind.split()), pattern(message), frame)


class Signatures:
    """Finds signatures, a bounded number of them: messages that differ in every word would fill the memory."""

    def __init__(self) -> None:
        self._known: set[Signature] = set()

    def of(self, failure: Mapping[str, Any]) -> Signature:
        """Returns the signature of a failed try."""
        found = signature(failure.get("error", ""), failure.get("frame", ""))
        if found not in self._known:
            if len(self._known) >= MOST_SIGNATURES:
                return Signature(found.error[:MOST_PATTERN], "", found.frame)
            self._known.add(found)
        return found


# One try, as the ledger has it


def failure_event(
    run_id: str, time: float, shard: Shard, launch: Launch, record: ShardRecord, outcome: str
) -> dict[str, Any]:
    """Returns all there is to know about a failed try, for `RunLog.add_failure`. `time` is in seconds since 1970."""
    failure = record.failure
    assert failure is not None
    return {
        "time": round(time, 3),
        "run_id": run_id,
        "shard": shard.id,
        "index": record.index,
        "attempt": launch.attempt,
        "task": launch.task,
        "outcome": str(outcome),
        "input": shard.uri,
        "slice": {"kind": shard.kind.value, "start": shard.start, "stop": shard.stop},
        "kind": failure.kind.value,
        "error": failure.error,
        "frame": failure.frame,
        "traceback": failure.traceback,
        "node": failure.node,
        "pid": failure.pid,
        "peak_bytes": failure.peak_bytes,
        "seconds": round(record.seconds, 4),
        "log": layout.run_file(run_id, f"logs/{failure.node}-{failure.pid}" if failure.pid else "logs/"),
    }


class Tracebacks:
    """Bounds the tracebacks that a run writes down: the first `KEPT_TRACEBACKS` of a signature, none of the others."""

    def __init__(self) -> None:
        self._signatures = Signatures()
        self._kept: Counter[Signature] = Counter()
        self._examples: dict[Signature, str] = {}

    def bounded(self, failure: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns a failed try as it is to be written; without its traceback, `as` names a shard that has one."""
        if not failure["traceback"]:
            return failure
        found = self._signatures.of(failure)
        if self._kept[found] >= KEPT_TRACEBACKS:
            return {**failure, "traceback": "", "as": self._examples[found]}
        self._kept[found] += 1
        self._examples.setdefault(found, failure["shard"])
        return failure


# Many of them


@dataclass(slots=True)
class Group:
    """Failures of one signature."""

    signature: Signature
    example: Mapping[str, Any]
    """The newest failed try of them."""
    shards: int = 0
    attempts: int = 0
    """Failed tries of these shards."""
    kinds: Counter[str] = field(default_factory=Counter)
    """Their tries, by kind of failure."""
    first: float = 0.0
    last: float = 0.0
    """When the first and the last of these tries failed, in seconds since 1970."""

    @property
    def in_code(self) -> bool:
        """Returns whether a change of the job's code may be what mends it: it raised, or returned what it must not."""
        return bool(self.signature.frame) or self.example.get("kind") == FailureKind.USER_ERROR

    def _add(self, failure: Mapping[str, Any]) -> None:
        time = float(failure["time"])
        self.first = min(self.first, time) if self.attempts else time
        self.last = max(self.last, time)
        self.attempts += 1
        self.kinds[str(failure.get("kind", "unknown"))] += 1

    def as_dict(self) -> dict[str, Any]:
        """Returns the group as JSON values."""
        return {
            "error": self.signature.error,
            "message": self.signature.message,
            "frame": self.signature.frame,
            "shards": self.shards,
            "attempts": self.attempts,
            "kinds": dict(self.kinds.most_common()),
            "first": self.first,
            "last": self.last,
            "example": dict(self.example),
        }


def group_failed(failures: Iterable[Mapping[str, Any]], failed: Any) -> list[Group]:
    """Groups the shards that are failed now by what they failed of at last; most shards first.

    `failures` are failed tries, newest first; `failed` has one boolean a shard, by rank. All tries of such a shard
    count in its group, whatever they failed of.
    """
    groups = _Groups()
    group_of = np.full(len(failed), -1, dtype=np.int32)
    for failure in failures:
        rank = failure["index"]
        if rank >= len(failed) or not failed[rank]:
            continue
        if group_of[rank] < 0:
            if failure["outcome"] != Outcome.FAILED:
                continue  # a later run tries it again, and has not ended
            group_of[rank] = groups.number_of(failure)
            groups.found[group_of[rank]].shards += 1
        groups.found[group_of[rank]]._add(failure)
    return groups.sorted()


def group_tries(failures: Iterable[Mapping[str, Any]]) -> list[Group]:
    """Groups failed tries, newest first, each by what it failed of; most shards first."""
    groups = _Groups()
    shards: list[set[int]] = []
    for failure in failures:
        number = groups.number_of(failure)
        if number == len(shards):
            shards.append(set())
        shards[number].add(failure["index"])
        groups.found[number]._add(failure)
    for group, ranks in zip(groups.found, shards, strict=True):
        group.shards = len(ranks)
    return groups.sorted()


class _Groups:
    def __init__(self) -> None:
        self.found: list[Group] = []
        self._signatures = Signatures()
        self._numbers: dict[Signature, int] = {}

    def number_of(self, failure: Mapping[str, Any]) -> int:
        found = self._signatures.of(failure)
        number = self._numbers.setdefault(found, len(self.found))
        if number == len(self.found):
            self.found.append(Group(found, failure))
        elif not self.found[number].example.get("traceback") and failure.get("traceback"):
            # One that can be shown whole.
            self.found[number].example = failure
        return number

    def sorted(self) -> list[Group]:
        return sorted(self.found, key=lambda group: (-group.shards, -group.attempts, -group.last, str(group.signature)))
