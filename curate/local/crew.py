"""The workers of a backend, their tasks, and workers that wait for the next program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from curate.dataclass import dataclass
from curate.local.blocks import LocalBlock, StoredBlock
from curate.local.processes import Process, Processes
from curate.local.worker import Work
from curate.runtime.scaling import fits
from curate.units import format_bytes


@dataclass(eq=False, slots=True)
class Task:
    """A task that was launched and is not over."""

    number: int
    work: Work
    needs: dict[str, float]
    """What has to be free for it to begin."""
    holds: dict[str, float]
    """What it takes of that, and of memory that it did not ask for."""
    announce: bool
    fresh: bool
    worker: Worker | None = None
    """What runs it; None while it is in the queue."""
    offers: StoredBlock | None = None
    """The block that it made and nobody took yet."""
    cancelled: bool = False
    waits: bool = False
    """Whether it waits for an actor: then it holds the memory that it asked for, as its process does, and no more."""

    def held(self) -> dict[str, float]:
        """Returns what it holds now."""
        if not self.waits:
            return self.holds
        return {"memory": self.needs["memory"]} if "memory" in self.needs else {}

    def lacks_memory(self, free: Mapping[str, float]) -> bool:
        """Returns whether there is all that it needs to begin but memory."""
        if "memory" not in self.needs or fits(free, self.needs):
            return False
        return bool(fits(free, {name: n for name, n in self.needs.items() if name != "memory"}))

    def drop(self) -> None:
        """Removes the block that it offers, if there is one: nobody will take it."""
        block, self.offers = self.offers, None
        if block is not None:
            LocalBlock(block, self.number).forget()


def lacking_memory(queue: Iterable[Task], free: Mapping[str, float]) -> str:
    """Returns, in words, which tasks wait for memory while there are CPUs for them; empty if none does."""
    short = [one for one in queue if one.lacks_memory(free)]
    if not short:
        return ""
    waits = "1 task waits" if len(short) == 1 else f"{len(short):,} tasks wait"
    needs_each, left = format_bytes(short[0].needs["memory"]), format_bytes(max(0.0, free["memory"]))
    return f"{waits} for {needs_each} of memory{' each' * (len(short) > 1)}; {left} is free on this machine"


@dataclass(eq=False, slots=True)
class Worker:
    """A process that runs tasks."""

    process: Process
    gpus: tuple[str, ...]
    pid: int = 0
    task: Task | None = None
    blocks: int = 0
    """Blocks that it offered."""
    rests: int = 0
    """How often it was told to, and has not answered."""


@dataclass(frozen=True, slots=True)
class Crew:
    """Workers that wait for a program, as they were told to."""

    processes: Processes
    workers: list[Worker]
    environ: dict[str, str]
    """The variables that they were forked with."""
