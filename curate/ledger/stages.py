"""The stages of a job with exchanges, as recorded in its ledger and results: plain values.

`job.json` lists them in the order in which they run, the last one, which makes the job's outputs, at the end. How far
each is, heartbeats say while a run goes on, and `summary.json` once the job is complete and its stages are removed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from curate.dataclass import dataclass, replace
from curate.errors import ConfigError
from curate.folders import nofollow, private
from curate.ledger import layout
from curate.storage.uris import is_local

SCRATCH = private.SCRATCH


def scratch_root() -> str:
    """Returns where files are kept that only this machine reads: $CURATE_SCRATCH, else a folder of this user's in that
    of the system for temporaries. It exists then. Raises ConfigError if others could put something there.
    """
    return private.private(private.place(SCRATCH), SCRATCH)


def stages_root(output: str, *, alone: bool) -> str:
    """Returns the folder of a job's stages; `alone`: all tasks run on this machine."""
    return scratch_of(output) if alone and may_be_scratch(output) else f"{output}/{layout.STAGES.rstrip('/')}"


def may_be_scratch(output: str) -> bool:
    """Returns whether a job's stages may lie where only one machine reads."""
    return output.startswith(("gs://", "s3://"))


def scratch_of(output: str) -> str:
    """Returns where the stages of a job lie, if they lie where only this machine reads."""
    return f"{private.place(SCRATCH)}/{hashlib.sha256(output.encode()).hexdigest()[:16]}"


def has_scratch(output: str) -> bool:
    """Returns whether there are stages of a job where only this machine reads. Raises ConfigError if others could have
    put something there."""
    return may_be_scratch(output) and private.is_private(scratch_of(output), SCRATCH)


def refuse_planted(output: str) -> None:
    """Raises ConfigError if others could have put something where the stages of a job lie that only this machine reads,
    or there is a link in it. Makes nothing."""
    if has_scratch(output):
        nofollow.refuse_links(private.place(SCRATCH), [scratch_of(output)], [])


def make_scratch(output: str) -> None:
    """Makes the folder of a job's stages where only this machine reads. Raises ConfigError as `refuse_planted`."""
    private.private(scratch_of(output), SCRATCH)


def stages_roots(output: str, stages: set[str]) -> Iterator[str]:
    """Yields the folders in which there are stages of a job; `stages`: those in its output's own store."""
    if stages:
        yield stages_root(output, alone=False)
    if has_scratch(output):
        yield scratch_of(output)


def remove_stages(root: str, kept: Collection[str] = ()) -> None:
    """Removes the stages in a local folder of a job's stages, but for those of these keys, and the folder once it is
    empty; of each its plan and `job.json` last. What has no name of curate's stays, and nothing is removed through a
    link."""
    above, _, name = root.rpartition("/")

    def is_ours(one: str) -> bool:
        own = one.removeprefix(f"{name}/")
        return own != one and (not own or (layout.is_of_stage(own) and own.partition("/")[0] not in kept))

    def goes_first(one: str) -> bool:
        return is_ours(one) and layout.removal_rank(layout.STAGES + one.removeprefix(f"{name}/")) < 2

    def leads(one: str) -> bool:
        own = one.removeprefix(f"{name}/")
        return own != one and layout.may_hold_runs(own) and own.partition("/")[0] not in kept

    with suppress(ConfigError):  # a link in the place of one of these folders: what is behind it is not the job's
        for ours in (goes_first, is_ours):
            nofollow.remove(nofollow.root_of(root), above, ours, leads=leads)


def remove_empty(output: str) -> None:
    """Removes the folders of a ledger that are empty, and that of the ledger if it is: once a job is taken back."""
    if is_local(output):
        with suppress(ConfigError):
            nofollow.remove(nofollow.root_of(output), output, lambda one: one.endswith("/") and layout.is_own(one))


def stages_in(output: str, stages: set[str]) -> Iterator[tuple[str, set[str]]]:
    """Yields the folders in which there are stages of a job, each with the keys of those."""
    for root in stages_roots(output, stages):
        if root == stages_root(output, alone=False):
            yield root, stages
        else:
            with os.scandir(root) as entries:
                yield root, {entry.name for entry in entries if entry.is_dir(follow_symlinks=False)}


LAST = ""
"""The key of the last stage, whose ledger is the job's own."""
WRITE = "write"
"""What the last stage is called."""
WAITING = "waiting"
"""The state of a stage that is not planned yet."""
COMPLETE = "complete"
MAP = ": map"
"""How the name of a stage ends whose rows go into an exchange; before it, that of the exchange."""


@dataclass(frozen=True, slots=True)
class StageReport:
    """How far a stage is."""

    key: str
    name: str
    reads: tuple[str, ...] = ()
    """Keys of the stages whose rows it is given by an exchange; one that is read twice is there twice."""
    state: str = WAITING
    total: int = 0
    done: int = 0
    running: int = 0
    failed: int = 0
    rows: Mapping[str, Any] | None = None
    """What happened to the rows of its shards that are done; None while unknown."""
    bytes_in: int = 0
    bytes_out: int = 0
    seconds: float | None = None
    """How long this run was at work on it; None if that is not known."""

    def as_dict(self) -> dict[str, Any]:
        """Returns it as `--json` prints it, and heartbeats have it."""
        seconds = {} if self.seconds is None else {"seconds": round(self.seconds, 3)}
        shards = {"total": self.total, "done": self.done, "running": self.running, "failed": self.failed}
        sizes = {"in": self.bytes_in, "out": self.bytes_out}
        return {**self.planned(), "state": self.state, "shards": shards, "rows": self.rows, "bytes": sizes, **seconds}

    def planned(self) -> dict[str, Any]:
        """Returns what is known of it before it runs, as `job.json` has it."""
        return {"key": self.key, "name": self.name, "reads": list(self.reads)}

    def settled(self) -> StageReport:
        """Returns what holds of it whoever ran it, and however often."""
        return replace(self, seconds=None)

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> StageReport:
        """Returns what `as_dict` or `planned` told."""
        shards, sizes = told.get("shards") or {}, told.get("bytes") or {}
        return cls(
            str(told["key"]),
            str(told["name"]),
            tuple(told.get("reads", ())),
            str(told.get("state", WAITING)),
            total=int(shards.get("total", 0)),
            done=int(shards.get("done", 0)),
            running=int(shards.get("running", 0)),
            failed=int(shards.get("failed", 0)),
            rows=told.get("rows"),
            bytes_in=int(sizes.get("in", 0)),
            bytes_out=int(sizes.get("out", 0)),
            seconds=told.get("seconds"),
        )


def parse_stages(value: Mapping[str, Any]) -> tuple[StageReport, ...]:
    """Returns the stages that a file of the ledger tells of; none for a job without exchanges.

    >>> parse_stages({"stages": [{"key": "", "name": "write"}]})[0].name
    'write'
    >>> parse_stages({})
    ()
    """
    return tuple(StageReport.of(one) for one in value.get("stages", ()))


def stage_title(stages: Sequence[StageReport], key: str) -> str:
    """Returns which of the stages one is, as people are told.

    >>> stage_title((StageReport("0a", "sort: map"), StageReport("", "write")), "0a")
    'stage 1 of 2: sort: map'
    """
    number = next(number for number, one in enumerate(stages) if one.key == key)
    return f"stage {number + 1} of {len(stages)}: {stages[number].name}"


@dataclass(frozen=True, slots=True)
class ExchangeReport:
    """The equation of an exchange: as many rows come out of it as went in."""

    name: str
    rows_in: int
    rows_out: int

    def as_dict(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return {"name": self.name, "rows_in": self.rows_in, "rows_out": self.rows_out}


def exchanges(stages: Iterable[StageReport]) -> list[ExchangeReport]:
    """Returns the equation of each exchange that is complete on both sides.

    >>> above = StageReport("0a", "sort: map", state="complete", rows={"in": 9, "out": 7})
    >>> exchanges([above, StageReport("", "write", ("0a",), "complete", rows={"in": 7, "out": 5})])
    [ExchangeReport(name='sort', rows_in=7, rows_out=7)]
    """
    known = {one.key: one for one in stages}
    found = []
    for one in known.values():
        above = [known[key] for key in one.reads if key in known]
        if not above or one.rows is None or any(before.state != COMPLETE for before in (one, *above)):
            continue
        name = above[0].name.removesuffix(MAP)
        found.append(ExchangeReport(name, sum(before.rows["out"] for before in above if before.rows), one.rows["in"]))
    return found


def source_bytes(stages: Iterable[StageReport]) -> int:
    """Returns the bytes of what the job is made of: the input of the stages from which rows come, each once.

    >>> marks = StageReport("0b", "marks", bytes_in=5)
    >>> source_bytes([StageReport("0a", "sort: map", bytes_in=7), marks, StageReport("", "write", ("0a",), bytes_in=9)])
    7
    """
    known = {one.key: one for one in stages}
    found, todo = set[str](), [LAST]
    while todo:
        key = todo.pop()
        if key in known and key not in found:
            found.add(key)
            todo += known[key].reads
    return sum(known[key].bytes_in for key in found if not known[key].reads)
