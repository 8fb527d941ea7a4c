"""Programs that call pools, and what their actors run. Workers import it."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from curate.runtime.process_guard import spoil
from curate.runtime.protocol import Call, CallLostError, Pool
from tests.backends.calling import process_while


@dataclass
class Serving:
    """What an actor runs: a payload is what to call and with what; the answer has its process.

    Writes a file with its process into `folder` when it was set up. With `gate`, it is not set up while that exists.
    """

    folder: Path
    fails: str = ""
    gate: Path | None = None

    def setup(self) -> None:
        if self.fails == "raise":
            raise ValueError("no weights")
        if self.fails == "exit":
            raise SystemExit(3)
        if self.fails == "hang":
            time.sleep(1000)
        if self.fails == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fails == "later" and list(self.folder.iterdir()):
            raise ValueError("the weights are gone")
        if self.gate is not None:
            held(None, self.gate)
        (self.folder / str(os.getpid())).touch()

    def call(self, payload: tuple[Any, ...]) -> Any:
        what, *arguments = payload
        return what(*arguments), os.getpid()


@dataclass(frozen=True)
class Narrow:
    """A payload: calls that go on until all of some tasks have seen as little room as this. The last to begin would see
    more, if the others had ended."""

    folder: Path
    task: int
    tasks: int
    room: int

    def calls(self, pool: Pool) -> Iterator[tuple[Any, ...]]:
        for number in itertools.count():
            if pool.room <= self.room:
                (self.folder / str(self.task)).touch()
            if len(list(self.folder.iterdir())) >= self.tasks:
                return
            yield slowly, number, 0.02


@dataclass(frozen=True)
class Waiting:
    """A payload: no call, and a wait in the task's own process while a file is there."""

    path: Path

    def calls(self, pool: Pool) -> Iterator[tuple[Any, ...]]:
        del pool
        process_while(str(self.path))
        yield from ()


@dataclass
class Conducting:
    """A program whose payload is calls of its pool; yields their answers in order, then what room there was at least.

    A call that was lost is answered with how it ended.
    """

    key: str = "conducting"
    pools: list[Pool] = field(default_factory=list)

    def connect(self, pools: Sequence[Pool]) -> None:
        assert not self.pools
        self.pools.extend(pools)

    def run(self, payload: list[tuple[Any, ...]] | Narrow | Waiting) -> Iterator[Any]:
        (pool,) = self.pools
        calls: deque[Call] = deque()
        least = pool.room
        for one in payload.calls(pool) if isinstance(payload, Narrow | Waiting) else payload:
            while calls and (len(calls) >= pool.room or calls[0].ready()):
                yield answer(calls.popleft())
            calls.append(pool.call(one))
            least = min(least, pool.room)
        while calls:
            yield answer(calls.popleft())
        yield ("room", least)


@dataclass
class Slicing(Conducting):
    """A program whose payload is how many rows a table has, and how many of them are sent at a time.

    Yields how many bytes the actor held for each, and whether its own came back.
    """

    key: str = "slicing"

    def run(self, payload: tuple[int, int]) -> Iterator[Any]:
        (pool,) = self.pools
        rows, step = payload
        table = pa.table({"n": range(rows)})
        for start in range(0, rows, step):
            part = table.slice(start, step)
            (back, held), _ = pool.call((held_for, part)).result()
            yield held, back.equals(part)


def held_for(table: pa.Table) -> tuple[pa.Table, int]:
    """Returns the table, and how many bytes are kept for it."""
    return table, table.get_total_buffer_size()


def answer(call: Call) -> Any:
    """Returns the answer of a call, or how it was lost."""
    try:
        return call.result()
    except CallLostError as lost:
        return lost.ended


def slowly(value: Any, wait_s: float) -> Any:
    """Returns the value after a while, in which the CPU is free."""
    time.sleep(wait_s)
    return value


def held(value: Any, gate: Path) -> Any:
    """Returns the value once a file is gone."""
    while gate.exists():
        time.sleep(0.01)
    return value


def poison(value: Any) -> Any:
    """Kills the actor, when others have had time to queue."""
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)
    return value


def spoilt(value: Any) -> Any:
    """Returns the value, in a process in which nothing else is to run."""
    spoil("what cannot be given back")
    return value


def leave(value: Any) -> Any:
    """Tries to end the actor as a program does."""
    raise SystemExit(value)
