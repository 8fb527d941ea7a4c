"""Runs tasks in worker processes of this machine: forked when a task finds none idle, killed to cancel it.

The driver waits for the sockets of all workers at once, and for the fork server, which tells how a worker ended. What a
worker said before it died is in its socket then, so that nothing is left unsaid.

A task holds what it asks for, of the CPUs, GPUs and memory that this machine has, and is begun once that is free. While
it waits for an actor of a pool, it lets go of all but memory that it asked for, which its process keeps, and the next
one starts: so actors have work while a task writes. One that asks for nothing runs beside what has all CPUs. One that
asks for no memory waits for none, and holds its slot's share: what asks for more runs beside fewer of them, and alone
if it asks for all. Workers that have nothing to do end where what they keep was given to a task.
"""

from __future__ import annotations

import math
import pickle
import platform
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from curate.local import machine, spawner
from curate.local.blocks import LocalBlock
from curate.local.crew import Crew, Task, Worker, lacking_memory
from curate.local.pools import Pools
from curate.local.processes import Processes, end_of
from curate.local.restraint import Restraint
from curate.local.room import NOTHING, Room
from curate.local.server import WorkerEnd
from curate.local.worker import Ahead, Hello, Imported, Offer, Over, Rest, Said, Take, Waits, Work
from curate.runtime import shipping
from curate.runtime.protocol import (
    BackendEvent,
    Block,
    BlockReady,
    LaunchOptions,
    Message,
    PoolSpec,
    PoolState,
    Program,
    Resources,
    Started,
    TaskEnd,
    TaskFinished,
)
from curate.runtime.scaling import fits, needs, take_resources

MESSAGE_INTERVAL_S = 0.25
"""What a bundle says is sent on at least this often."""
KILLED_S = 0.5
"""How long the ends of workers that were killed are waited for."""
REFUSED_S = 5.0
"""How long no further process is asked for after the machine has started none."""


class LocalBackend:
    """A backend over processes of this machine."""

    name = "local"

    def __init__(self) -> None:
        self._resources = Resources()
        self._room = Room()
        self._processes = Processes()
        self._loaded = False
        self._pools: Pools | None = None
        self._queue: deque[Task] = deque()
        self._tasks: dict[int, Task] = {}
        """Those that run."""
        self._idle: list[Worker] = []
        self._coming: list[Worker] = []
        """Those that import what the first one has, or forget what they ran, and then have nothing to do."""
        self._ahead: Ahead | None = None
        """What that is."""
        self._restraint = Restraint()
        self._held_s = math.inf
        """How long tasks wait for a worker that is not forked yet."""
        self._refused_until_s = -math.inf
        """None is forked before while others work: the machine did not start another one."""
        self._news: list[BackendEvent] = []
        self._blocks: weakref.WeakSet[LocalBlock] = weakref.WeakSet()

    def start(self, resources: Resources, pools: Sequence[PoolSpec] = ()) -> float:
        """Looks at what this machine has; starts what forks workers, and does not wait for it.

        Raises ConfigError if the machine cannot hold a task beside the pools.
        """
        room = Room.of_machine(resources, pools)
        self.close()
        self._resources, self._room = resources, room
        spawner.start()
        return 0.0

    def load(
        self, program: Program, pools: Sequence[PoolSpec] = (), *, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """Pickles the program, once for all workers.

        Those of the one before run this one, too, unless there are pools, or they would have to import what the server
        imports now: then they end, and actors with them.
        """
        programs = [shipping.pickle_value(one) for one in (program, *(spec.program for spec in pools))]
        if pools or self._pools or not self._processes.reload(programs):
            self._end_all()
            self._processes.load(programs)
        else:
            # Again, where they have waited since the last one: modules may have changed.
            self._rest_all()
        if pools:
            self._pools = Pools(pools, self._processes, needs(self._resources), self._room)
            self._pools.wait(stopped)
        self._loaded = True

    def pools(self) -> list[PoolState]:
        """Returns how the pools are doing, as their actors last said."""
        return self._pools.states() if self._pools else []

    def crowded_out(self) -> bool:
        """Returns False: an actor is started whatever tasks hold."""
        return False

    def waits(self) -> str:
        """Returns which tasks wait for memory while there are CPUs for them; empty if none does."""
        return lacking_memory(self._queue, self._room.free)

    def slots(self) -> int:
        """Returns how many tasks this machine can hold, beside the actors of pools."""
        return fits(self._left(), needs(self._resources) or NOTHING)

    def largest_memory(self) -> int | None:
        """Returns the bytes that tasks may hold together, beside what actors of pools ask for."""
        return int(self._left()["memory"])

    def slot_memory(self) -> int | None:
        """Returns these by the number of slots."""
        slots = self.slots()
        return int(self._left()["memory"] / slots) if slots else None

    def _left(self) -> dict[str, float]:
        """Returns what there is beside the actors of pools."""
        return self._room.left(self._pools.held() if self._pools else ())

    def alone(self) -> bool:
        """Returns True."""
        return True

    def held_up(self) -> frozenset[int]:
        """Returns the tasks that wait for actors which are at work on calls of others."""
        at_work = self._pools.at_work() if self._pools else frozenset()
        return frozenset(
            n for n, one in self._tasks.items() if one.waits and one.worker and one.worker.pid not in at_work
        )

    def launch(self, task: int, payload: Any, pieces: int, **how: Unpack[LaunchOptions]) -> None:
        """Begins the task if there is room for it; else `poll` does, once there is."""
        if not self._loaded:
            raise RuntimeError("launch before load")
        announce, stream = how.get("announce", False), how.get("stream", False)
        interval_s = 0.0 if announce else math.inf if pieces == 1 else MESSAGE_INTERVAL_S
        memory = how.get("memory")
        asks = needs(self._resources if memory is None else replace(self._resources, memory=memory)) or NOTHING
        slot = float(self.slot_memory() or 0)
        # What it asks for is often less than what a slot has, and what it frees is what the next one takes.
        share = int(max(slot, asks.get("memory", 0.0)))
        work = Work(task, pickle.dumps(payload, pickle.HIGHEST_PROTOCOL), interval_s, share, stream)
        # One that stands still until its block is taken may stand in the way of the one that waits.
        holds = asks if stream else {"memory": slot, **asks}
        self._queue.append(Task(task, work, asks, holds, announce or stream, how.get("fresh", False)))
        self._begin()

    def poll(self, timeout_s: float) -> list[BackendEvent]:
        """Returns what was told since the last call, in the order in which it was."""
        if self._pools:
            # What they have said meanwhile, first: this may not have been called for long.
            self._processes.wait(0.0)
            self._pools.tend(len(self._queue) + len(self._tasks))
        if not self._news:
            # Of tasks that all stand still, there is nothing to wait for, however long.
            waits = self._queue or any(task.offers is None for task in self._tasks.values())
            self._processes.wait(min(timeout_s, self._held_s) if waits else 0.0)
            self._begin()
        news, self._news = self._news, []
        return news

    def take(self, task: int) -> Block:
        """Returns the block, which stays in its file; its task goes on."""
        running = self._tasks[task]
        assert running.offers is not None
        assert running.worker is not None
        block, running.offers = LocalBlock(running.offers, task), None
        self._blocks.add(block)
        running.worker.process.say(Take())
        return block

    def cancel(self, task: int | None = None) -> None:
        """Kills the worker of a task, or those of all that run."""
        if self._pools:
            # What they have said: first of all, which processes they are, by which actors know who calls.
            self._processes.wait(0.0)
        if task is None:
            self._queue.clear()
            if self._pools:
                self._pools.cancelled(one.worker.pid for one in self._tasks.values() if one.worker is not None)
            killed = [one.worker for one in self._tasks.values() if one.worker is not None]
            for worker in killed:
                self._processes.kill(worker.process)
                self._leave(worker)
            # Nobody polls after this, and what they had stored is known when they have ended.
            self._processes.wait_for([worker.process for worker in killed], KILLED_S)
            self._news.clear()
            return
        for queued in [one for one in self._queue if one.number == task]:
            self._queue.remove(queued)
            self._news.append(TaskFinished(task, TaskEnd.CANCELLED, "it was cancelled"))
        running = self._tasks.get(task)
        if running is not None and running.worker is not None:
            running.cancelled = True
            running.drop()
            if self._pools:
                self._pools.cancelled([running.worker.pid])
            self._processes.kill(running.worker.process)

    def close(self) -> None:
        """Ends all workers and removes what they made; the fork server stays for the next run of this process."""
        self.end()

    def end(self) -> None:
        """Ends all workers and removes what they made."""
        self._end_all()
        self._forget_blocks()

    def leave(self) -> Crew | None:
        """Ends as `end`, but for workers that have no pool, no GPU and nothing to do: these are returned, if any."""
        if self._pools or self._resources.num_gpus:
            self.end()
            return None
        self._rest_all()
        crew = Crew(self._processes, self._coming, self._room.gpus.environ((), self._resources))
        if not crew.workers:
            self.end()
            return None
        self._processes, self._coming = Processes(), []
        self._forget_blocks()
        return crew

    def adopt(self, crew: Crew) -> bool:
        """Takes workers for the program that is loaded next; returns False if they were forked for other tasks."""
        if self._resources.num_gpus or crew.environ != self._room.gpus.environ((), self._resources):
            return False
        self._end_all()
        self._processes, self._coming = crew.processes, crew.workers
        for worker in crew.workers:
            worker.process.hear = partial(self._hear, worker)
        return True

    def _forget_blocks(self) -> None:
        for block in list(self._blocks):
            block.forget()

    def _rest_all(self) -> None:
        self.cancel()
        self._coming += self._idle
        self._idle.clear()
        for worker in self._coming:
            # They come back with nothing of a program.
            worker.rests += 1
            worker.process.say(Rest())
        self._forget()

    def _end_all(self) -> None:
        self.cancel()
        self._processes.close()
        if self._pools:
            self._pools.close()
            self._pools = None
        # Who held it is gone, and not heard of.
        self._room.all_free()
        self._idle.clear()
        self._coming.clear()
        self._forget()

    def _forget(self) -> None:
        """Forgets what is known of a program."""
        self._ahead = None
        self._restraint = Restraint()
        self._loaded = False

    # Tasks and workers

    def _begin(self) -> None:
        """Begins what there is room for: the first of the queue that fits."""
        self._held_s = math.inf
        for task in list(self._queue):
            if not fits(self._room.free, task.needs) and not self._is_crowded_out(task):
                continue
            worker = self._worker(task)
            if worker is None:
                return
            self._queue.remove(task)
            take_resources(self._room.free, task.holds)
            self._tasks[task.number] = task
            task.worker, worker.task = worker, task
            if worker.pid:
                self._started(worker)
            if "memory" in task.needs:
                self._make_room()
            worker.process.say(replace(task.work, program=self._processes.program(0)))

    def _is_crowded_out(self, task: Task) -> bool:
        """Returns whether actors alone keep memory from a task, of which there was enough when it was launched: with no
        other at work, nobody would free it."""
        return not self._tasks and task.lacks_memory(self._room.free) and bool(fits(self._room.has, task.needs))

    def _make_room(self) -> None:
        """Ends workers that have nothing to do while they keep more than what no task holds."""
        kept = [machine.held_bytes(worker.pid) for worker in self._idle]
        while kept and sum(kept) > self._room.free["memory"]:
            self._processes.kill(self._idle.pop().process)
            kept.pop()

    def _worker(self, task: Task) -> Worker | None:
        """Returns a worker that has nothing to do, None if there cannot be another now, or is not worth its start."""
        if task.fresh:
            return self._fork()
        if self._idle:
            return self._idle.pop()
        if self._tasks or self._coming:
            waiting = min(len(self._queue), fits(self._room.free, task.needs)) - len(self._coming)
            self._held_s = self._restraint.left_s(time.monotonic(), waiting) if waiting > 0 else math.inf
            if self._held_s:
                return None
            if self._ahead is not None:
                made = [self._fork(self._ahead) for _ in range(waiting)]
                self._coming += [one for one in made if one is not None]
                self._held_s = math.inf
                return None
        return self._fork()

    def _fork(self, ahead: Ahead | None = None) -> Worker | None:
        """Forks a worker, which imports `ahead` first; returns None if one must end before there can be another."""
        left_s = self._refused_until_s - time.monotonic()
        if left_s > 0 and self._tasks:
            self._held_s = min(self._held_s, left_s)
            return None
        gpus = self._room.gpus.take(self._resources)
        if self._idle:
            self._processes.kill(self._idle.pop().process)
        if gpus is None:
            return None
        process = self._processes.fork(
            self._room.gpus.environ(gpus, self._resources),
            lambda value: self._hear(worker, value),
            pools=self._pools.addresses if self._pools else (),
            ahead=ahead,
        )
        worker = Worker(process, gpus)
        return worker

    def _leave(self, worker: Worker) -> None:
        """Takes a worker's task from it: that is over, or nobody wants to hear of it."""
        task, worker.task = worker.task, None
        if task is None:
            return
        del self._tasks[task.number]
        take_resources(self._room.free, task.held(), -1)
        task.drop()

    def _started(self, worker: Worker) -> None:
        if worker.task is not None and worker.task.announce:
            self._news.append(Started(worker.task.number, platform.node(), worker.pid))

    # What workers say

    def _hear(self, worker: Worker, value: Any) -> None:
        match value:
            case Hello(pid, rested):
                worker.pid = pid
                worker.rests -= rested
                if worker in self._coming and not worker.rests:
                    self._coming.remove(worker)
                    self._idle.append(worker)
                self._started(worker)
            case Said(items):
                if worker.task is not None:
                    self._news.append(Message(worker.task.number, items))
            case Imported(count, seconds, ahead):
                # Of others, it is too late.
                alone = len(self._tasks) == 1 and not self._idle and not self._coming
                if alone and self._restraint.imported(count, seconds):
                    self._ahead = ahead
            case Waits(waits):
                if worker.task is not None:
                    take_resources(self._room.free, worker.task.held(), -1)
                    worker.task.waits = waits
                    take_resources(self._room.free, worker.task.held())
            case Offer(block):
                worker.blocks += 1
                if worker.task is None or worker.task.cancelled:
                    LocalBlock(block, 0).forget()
                else:
                    worker.task.offers = block
                    self._news.append(BlockReady(worker.task.number, block.size_bytes))
            case Over(end, retires):
                worker.process.doomed |= retires
                if worker.task is not None and worker.task.fresh:
                    # What it ran is suspect: nothing else is to run there.
                    self._processes.kill(worker.process)
                if worker.task is not None:
                    self._news.append(replace(end, node=end.node or platform.node(), pid=end.pid or worker.pid))
                    self._leave(worker)
                if not worker.process.doomed:
                    self._idle.append(worker)
            case WorkerEnd():
                self._ended(worker, value)

    def _ended(self, worker: Worker, end: WorkerEnd) -> None:
        self._room.gpus.give(worker.gpus, self._resources)
        if worker in self._idle:
            self._idle.remove(worker)
        if worker in self._coming:
            # It died of that, or what it imported came out otherwise.
            self._coming.remove(worker)
            self._ahead = None
        for folder in self._processes.folders:
            # It may have been killed in the middle of it.
            Path(f"{folder}/{worker.pid}-{worker.blocks + 1}").unlink(missing_ok=True)
        task = worker.task
        if end.refused:
            self._refused_until_s = time.monotonic() + REFUSED_S
        if task is not None:
            self._leave(worker)
            if end.refused and self._tasks and not task.cancelled:
                # For one of those that are there.
                self._queue.appendleft(task)
                return
            self._news.append(end_of("worker", task.number, worker.pid, worker.process, end, cancelled=task.cancelled))
