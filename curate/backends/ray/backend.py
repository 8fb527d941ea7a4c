"""Runs tasks on Ray: plain tasks for one piece of work, streaming generators for bundles.

Ray's own retries are off: what follows a failure is the scheduler's decision. A bundle streams its messages back in
batches (one item a message would cost 0.13 ms each); a single piece returns them with the task, which is cheaper than a
generator. `ray.wait` costs time for every reference it is given, so the window stays small and each harvest takes two
calls: one that waits for the first, one that collects whatever else is ready.

What goes back and forth is pickled here and handed to Ray as bytes, and the program's reference is part of the remote
function instead of an argument. Ray would take 0.2 ms a task, half of what the task itself costs, to pickle small
objects its own way and to count a reference in every task.

The first item of a stream tells where it runs. Ray's errors do not: of a worker that died, Ray says that it died.

A task that streams blocks sends two items for each: its size, and the table itself, which stays in the object store of
its node. Ray lets it be one item ahead. So its program stands still until the block was taken, and the size of a block
is known before: for 1.2 ms a block.

A task that waits for a pool lets go of its CPU, and the next one starts: so actors have work while a task writes.

Long because it implements all of the backend's protocol: what runs in a worker, and what the driver knows of each
task.
"""

from __future__ import annotations

import math
import os
import pickle
import platform
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Unpack, cast

import ray
from ray import cloudpickle
from ray import exceptions as ray_errors

from curate.backends.ray import leaving
from curate.backends.ray import session as ray_session
from curate.backends.ray.calls import CalledPool, PoolAddress, TaskAtWork
from curate.backends.ray.cluster import ClusterView, Node, leaves, made_by_this_process
from curate.backends.ray.errors import CallSite, ended, unserved
from curate.backends.ray.pools import Pools
from curate.backends.ray.versions import check_of_workers, refuse_other_code
from curate.dataclass import dataclass
from curate.errors import ConfigError
from curate.runtime import shipping
from curate.runtime.demand import Demand, DemandWatch
from curate.runtime.interrupts import uninterrupted
from curate.runtime.protocol import (
    BackendEvent,
    Block,
    BlockLostError,
    BlockReady,
    LaunchOptions,
    Message,
    PoolSpec,
    PoolState,
    PoolUser,
    Program,
    Resources,
    Started,
    TaskEnd,
    TaskFinished,
)
from curate.runtime.scaling import does_not_fit, fits, needs
from curate.runtime.worker import guarded, in_batches

LOOK_S = 1.0
"""How often it is looked whether there is a place for what is to run, and whether what was cancelled has ended."""
END_S = 0.1
"""How long to wait for how a stream ended, once it is known that it did."""
BY_ITSELF_S = 0.1
"""How long a task that runs has to end by itself before it is told to: where the two meet, Ray ends the driver (`Tried
to complete task that was not pending`). What is left of a task is often done by then."""
STREAM_INTERVAL_S = 0.25
"""A bundle's messages are sent on at least this often, on a small cluster."""
STREAM_ITEMS_PER_S = 2000
"""Items a second that all streams together send: a quarter of what one driver can take."""


FRESH = "CURATE_FRESH_WORKER"
"""A variable that is another for each task that gets a worker of its own."""
MOST_CALLS = 1 << 30
"""Tasks that a worker may run before it is replaced: so many that none does, but one that says that it has."""


_programs: dict[str, Program] = {}
"""The program that this worker process keeps, with whatever it has loaded, by its key."""


def _run(key: str, reference: Any, addresses: Sequence[PoolAddress], task: int, work: Any) -> Iterator[Any]:
    """Returns what a task of a program yields, in a worker."""
    program = _programs.get(key)
    if new := program is None:
        _programs.clear()
        program = ray.get(reference)
        if addresses:
            cast(PoolUser, program).connect([CalledPool(address) for address in addresses])
        _programs[key] = program
    TaskAtWork.number = task
    return guarded(program, work, new=new, retire=_retire)


def _retire() -> None:
    """Makes this worker end when the task at hand has, as if it had reached the calls that a function may get in one
    process. What the task returned is delivered."""
    from ray._private.worker import global_worker

    counters = global_worker.function_actor_manager._num_task_executions
    for function in counters:
        counters[function] = MOST_CALLS - 1


def _packed(value: Any) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def _refuse_if_left() -> None:
    # Asked anything, Ray would start anew.
    if not ray.is_initialized():
        raise ConfigError("Ray was shut down while curate used it; call ray.shutdown() after what runs on it has ended")


def _whereabouts() -> tuple[str, int, str]:
    return platform.node(), os.getpid(), ray.get_runtime_context().get_node_id()


@dataclass(slots=True)
class _Task:
    """A task in flight."""

    number: int
    streams: bool
    node: str = ""
    pid: int = 0
    node_id: str = ""
    told_s: float | None = None
    """When it was told to end, the last time, on the monotonic clock."""
    ends_s: float | None = None
    """When it is to be told to end, unless it has ended by then."""
    blocks: bool = False
    """Whether it streams blocks."""
    size_bytes: int | None = None
    """Of the block that comes next, once that is known."""
    offers: bool = False
    """Whether that block is made and waits to be taken."""

    @property
    def cancelled(self) -> bool:
        return self.told_s is not None


class RayBackend:
    """A backend over the Ray cluster at `RAY_ADDRESS`, the one running here, or a local one made for this process."""

    name = "ray"

    def __init__(self) -> None:
        self._session: ray_session.Session | None = None
        """The connection to Ray, while it is used and was made here."""
        self._tasks: dict[Any, _Task] = {}
        self._view = ClusterView()
        self._pools: Pools | None = None
        self._slots = 0
        self._slot_memory: int | None = None
        self._counted = (0, 0)
        """What the slots were counted from: versions of the view and the pools."""
        self._largest_memory: int | None = None
        self._measured = (0, 0)
        """What that was read from: the same."""
        self._resources = Resources()
        self._options: dict[str, Any] = {}
        self._functions: dict[tuple[str, int | None, bool], Any] = {}
        self._watch = DemandWatch()
        self._looked_s = -math.inf

    def start(self, resources: Resources, pools: Sequence[PoolSpec] = ()) -> float:
        """Connects this process to Ray, unless it is connected; returns the seconds that this took.

        Raises ConfigError if no cluster answers where one is said to be, if Ray cannot be started, or if a cluster made
        by this process cannot hold a task beside the pools. That of others may grow.
        """
        # Joined before the one before is left, so that nobody starts Ray in between.
        before, (self._session, started_s) = self._session, ray_session.join()
        if before is not None:
            ray_session.leave(before)
        self._resources = resources
        self._options = {
            "num_cpus": resources.num_cpus,
            "num_gpus": resources.num_gpus,
            "resources": dict(resources.custom) or None,
            "max_retries": 0,
            # Not Ray's default for GPUs, which is a new process for each task.
            "max_calls": MOST_CALLS,
        }
        if resources.memory:
            self._options["memory"] = resources.memory
        self._view.forget()
        if made_by_this_process():
            has = ray.cluster_resources()
            missing = does_not_fit(has, resources, pools)
            if missing:
                self.close()
                raise ConfigError(missing)
        return started_s

    def load(
        self, program: Program, pools: Sequence[PoolSpec] = (), *, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """Puts the program into the object store, once for all workers; it stays there until the driver ends.

        Its pools are started, and looked after whenever `poll` is called.
        """
        if self._pools is not None:
            self._pools.close()
            self._pools = None
        for module in shipping.shipped():
            cloudpickle.register_pickle_by_value(module)
        if pools:
            self._pools = Pools(pools, self._view, self._resources)
            self._pools.wait(stopped, self._look_for_places)
        addresses = self._pools.addresses if self._pools else []
        # A worker that still has the program of an earlier load has its pools too, which are no more.
        key = " ".join([program.key, *(one.key for one in addresses)])
        try:
            reference = ray.put(program)
        except ray_errors.RayError as error:
            if says := unserved(error):
                raise ConfigError(
                    f"the code of the job, with the values it captures, cannot be sent: {says}"
                ) from error
            raise

        check = check_of_workers()

        # Not methods: Ray ships what a remote function refers to, and that must not be this object.
        def run_piece(payload: bytes) -> bytes:
            check()
            return _packed(list(_run(key, reference, addresses, *pickle.loads(payload))))

        def run_bundle(payload: bytes) -> Iterator[bytes]:
            check()
            yield _packed(_whereabouts())
            interval_s, task, work = pickle.loads(payload)
            for batch in in_batches(_run(key, reference, addresses, task, work), interval_s):
                # Ray sends something into the generator: a `map` would not take it.
                yield _packed(batch)

        def run_stream(payload: bytes) -> Iterator[Any]:
            check()
            yield _packed(_whereabouts())
            for item in _run(key, reference, addresses, *pickle.loads(payload)):
                size_bytes = getattr(item, "nbytes", None)
                if size_bytes is None:
                    yield _packed([item])
                else:
                    yield _packed(size_bytes)
                    yield item
                    # Two at a time otherwise: the one that was sent, and the one that is made.
                    del item

        streaming = {**self._options, "num_returns": "streaming"}
        self._functions = {
            ("piece", None, False): ray.remote(**self._options)(run_piece),
            ("bundle", None, False): ray.remote(**streaming)(run_bundle),
            ("stream", None, False): ray.remote(**streaming, _generator_backpressure_num_objects=1)(run_stream),
        }

    def _function(self, name: str, memory: int | None) -> Any:
        """Returns what runs on a worker. Asking for other memory makes no new one of it, and so no new workers.

        A worker that is done with a task is given the next one of the same kind without asking its node, which may be
        draining by now. So tasks are of another kind, by how they are placed, once a node was found to drain.
        """
        spread = self._view.drains % 2 == 1
        if memory is None and not spread:
            return self._functions[name, None, False]
        found = self._functions.get((name, memory, spread))
        if found is None:
            asked: dict[str, Any] = {} if memory is None else {"memory": memory}
            asked |= {"scheduling_strategy": "SPREAD"} if spread else {}
            found = self._functions[name, memory, spread] = self._functions[name, None, False].options(**asked)
        return found

    def pools(self) -> list[PoolState]:
        """Returns how the pools are doing, as their actors last said."""
        return self._pools.states() if self._pools else []

    def held_up(self) -> frozenset[int]:
        """Returns the tasks that wait for actors which are at work on calls of others, as the actors last said."""
        return self._pools.held_up(one.number for one in self._tasks.values()) if self._pools else frozenset()

    def crowded_out(self) -> bool:
        """Returns whether a pool without an actor waits for one that there would be room for without tasks."""
        return self._pools is not None and self._pools.crowded_out()

    def waits(self) -> str:
        """Returns what there has been no place for in the cluster for a while, empty if there is one for everything."""
        return self._watch.text

    def _look_for_places(self) -> None:
        """Sees what cannot run, for want of a place, and says so if that goes on."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        wants = [Demand("tasks", needs(self._resources))] if self._tasks and not self.slots() else []
        wants += self._pools.wants() if self._pools else []
        nodes = [node.resources for node in self._view.nodes().values() if node.stays]
        self._watch.look(now_s, wants, nodes, self._view.kinds)

    def slots(self) -> int:
        """Returns how many tasks fit on the nodes that live and are not draining, beside the actors of pools there."""
        _refuse_if_left()
        nodes = self._view.nodes().values()
        counted = (self._view.version, self._pools.version if self._pools else 0)
        if counted == self._counted:
            return self._slots
        self._counted, held = counted, needs(self._resources)
        left = self._left(nodes)
        # A node without anything, such as a head that is to run no tasks, holds nothing whatever they need.
        places = [(fits(has, held) if held else 1, has.get("memory", 0.0)) for has in left]
        self._slots = sum(slots for slots, _ in places)
        self._slot_memory = min((int(memory / slots) for slots, memory in places if slots and memory > 0), default=None)
        return self._slots

    def largest_memory(self) -> int | None:
        """Returns the most bytes that a task can ask for on one node that lives, beside the actors there, or that the
        autoscaler can start.

        Only nodes that have what else a task needs. None while there is no such node, and none is known to come.
        """
        nodes = self._view.nodes().values()
        counted = (self._view.version, self._pools.version if self._pools else 0)
        if counted != self._measured:
            self._measured, held = counted, needs(self._resources)
            held.pop("memory", None)
            able: list[int] = []
            # Where actors have all that there is, some will go.
            for kinds in ([*self._left(nodes), *self._view.kinds], [node.resources for node in nodes if node.stays]):
                fit = [has for has in kinds if not held or fits(has, held)]
                able = able or [int(has["memory"]) for has in fit if has.get("memory", 0) > 0]
            self._largest_memory = max(able, default=None)
        return self._largest_memory

    def _left(self, nodes: Iterable[Node]) -> list[dict[str, float]]:
        """Returns what each node that stays has beside the actors there."""
        return self._pools.left(nodes) if self._pools else [dict(node.resources) for node in nodes if node.stays]

    def slot_memory(self) -> int | None:
        """Returns the memory of a node by the number of its slots, the least of the nodes that have any."""
        self.slots()
        return self._slot_memory

    def alone(self) -> bool:
        """Returns whether this process made the cluster. One that was joined may have other nodes, or get them."""
        return made_by_this_process()

    def launch(self, task: int, payload: Any, pieces: int, **how: Unpack[LaunchOptions]) -> None:
        """Submits the task; Ray queues it until a slot is free."""

        def function(name: str) -> Any:
            found = self._function(name, how.get("memory"))
            # Ray gives a worker to tasks of one environment only.
            return found.options(runtime_env={"env_vars": {FRESH: uuid.uuid4().hex}}) if how.get("fresh") else found

        if how.get("stream"):
            ref = function("stream").remote(_packed((task, payload)))
            self._tasks[ref] = _Task(task, streams=True, blocks=True)
            return
        announce = how.get("announce", False)
        if pieces == 1 and not announce:
            self._tasks[function("piece").remote(_packed((task, payload)))] = _Task(task, streams=False)
            return
        interval_s = 0.0 if announce else max(STREAM_INTERVAL_S, self._slots / STREAM_ITEMS_PER_S)
        ref = function("bundle").remote(_packed((interval_s, task, payload)))
        self._tasks[ref] = _Task(task, streams=True)

    def poll(self, timeout_s: float) -> list[BackendEvent]:
        """Returns the messages and ends that are ready, in completion order. Raises ConfigError if Ray was left."""
        _refuse_if_left()
        if self._pools:
            self._pools.tend(len(self._tasks))
        self._look_for_places()
        timeout_s = self._tell_due(timeout_s)
        late_s = time.monotonic() - LOOK_S
        for ref in [ref for ref, task in self._tasks.items() if task.told_s is not None and task.told_s < late_s]:
            self._tell(ref, again=True)
        waiting = [ref for ref, task in self._tasks.items() if not task.offers]
        if not waiting:
            # What stands still has nothing to tell, however long one waits.
            return []
        # A block that is made may stay where it is.
        fetch = not any(self._tasks[ref].blocks for ref in waiting)
        try:
            ready, _ = ray.wait(waiting, num_returns=1, timeout=timeout_s, fetch_local=fetch)
        except SystemExit:
            # What Ray raises in the threads that wait while another one shuts it down.
            _refuse_if_left()
            raise
        if ready and len(waiting) > 1:
            ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0, fetch_local=fetch)
        return [news for ref in ready for news in self._harvest(ref)]

    def take(self, task: int) -> Block:
        """Returns a reference to the block, which keeps it in the object store; Ray lets the task go on."""
        ref, running = next((ref, one) for ref, one in self._tasks.items() if one.number == task and one.offers)
        running.offers, running.size_bytes = False, None
        return _Block(next(ref), running, self)

    def _harvest(self, ref: Any) -> Iterator[BackendEvent]:
        task = self._tasks[ref]
        if task.size_bytes is not None:
            task.offers = True
            yield BlockReady(task.number, task.size_bytes)
            return
        if task.streams and ref._stream_exhausted() and not ray.wait([ref.completed()], timeout=END_S)[0]:
            # How it ended is not known yet; asked for the next item, Ray would wait for that without a limit.
            return
        try:
            item = ray.get(next(ref) if task.streams else ref)
            if task.blocks and task.cancelled:
                # It was between two blocks and did not hear.
                ray.cancel(ref, force=True)
                return
            value = pickle.loads(item)
        except StopIteration:
            del self._tasks[ref]
            yield TaskFinished(task.number, TaskEnd.RETURNED, node=task.node, pid=task.pid)
            return
        except ray_errors.RayError as error:
            del self._tasks[ref]
            yield self._died(task, error)
            return
        if task.streams and not task.pid:
            task.node, task.pid, task.node_id = value
            yield Started(task.number, task.node, task.pid)
            return
        if isinstance(value, int):
            task.size_bytes = value
        elif value:
            yield Message(task.number, value)
        if not task.streams:
            del self._tasks[ref]
            yield TaskFinished(task.number, TaskEnd.RETURNED)

    def _died(self, task: _Task, error: ray_errors.RayError) -> TaskFinished:
        """Returns how a task, or the worker that held a block of it, ended. Raises ConfigError if it was no worker for
        this driver."""
        refuse_other_code(error)
        return ended(
            task.number,
            error,
            CallSite(task.node, task.pid, task.node_id),
            leaves=leaves,
            names=self._view.names,
            cancelled=task.cancelled,
        )

    def cancel(self, task: int | None = None) -> None:
        """Kills the worker of a task, or those of all that run, and waits until all have ended.

        A worker whose program stands still, waiting for its block to be taken, hears and lives. If all are cancelled,
        streams get there first, where they soon do.
        """
        if not ray.is_initialized():
            # Asked anything, Ray would start anew. What ran there went with it.
            self._tasks.clear()
            return
        told = {ref: one for ref, one in self._tasks.items() if task is None or one.number == task}
        running = {_end_of(ref, one): ref for ref, one in told.items() if one.pid and not one.blocks}
        if task is not None and running:
            for ref in running.values():
                told[ref].ends_s = time.monotonic() + BY_ITSELF_S
            return
        if running:
            ended, _ = ray.wait(list(running), num_returns=len(running), timeout=BY_ITSELF_S, fetch_local=False)
            told = {ref: one for ref, one in told.items() if ref not in {running[end] for end in ended}}
        soon = [ref for ref, one in told.items() if one.blocks] if task is None else []
        for ref in told.keys() - soon:
            self._tell(ref)
        if self._pools:
            self._pools.cancelled([one.number for one in told.values()])
        if task is None:
            self._tasks.clear()
            leaving.end_streams(soon)
            leaving.kill_until_ended([_end_of(ref, one) for ref, one in told.items()])

    def _tell_due(self, timeout_s: float) -> float:
        """Tells tasks to end that have not by themselves; returns how long may be waited for news."""
        now_s, due = time.monotonic(), [(ref, one) for ref, one in self._tasks.items() if one.ends_s is not None]
        for ref, one in due:
            assert one.ends_s is not None
            if one.ends_s <= now_s:
                one.ends_s = None
                self._tell(ref)
                if self._pools:
                    self._pools.cancelled([one.number])
        return min(timeout_s, BY_ITSELF_S) if due else timeout_s

    def _tell(self, ref: Any, *, again: bool = False) -> None:
        """Tells a task to end. Its end comes instead of the block that it offers."""
        task = self._tasks[ref]
        ray.cancel(ref, force=again or not (task.blocks and leaving.stands(ref)))
        task.told_s = time.monotonic()
        task.offers, task.size_bytes = False, None

    def close(self) -> None:
        """Releases what was made on the cluster: tasks, pools, the program, blocks. The process stays connected."""
        session, self._session = self._session, None
        with uninterrupted():
            try:
                if ray.is_initialized():
                    self._release()
            finally:
                self._tasks.clear()
                self._functions.clear()
                self._pools = None
                if session is not None:
                    ray_session.leave(session)

    def _release(self) -> None:
        if self._tasks:
            self.cancel()
        if self._pools:
            self._pools.close()


def _end_of(ref: Any, task: _Task) -> Any:
    """Returns what is there once a task has ended."""
    return ref.completed() if task.streams else ref


@dataclass(frozen=True, slots=True)
class _Block:
    """A block in the object store of the node that made it."""

    ref: Any
    task: _Task
    backend: RayBackend

    def fetch(self) -> Any:
        try:
            return ray.get(self.ref)
        except ray_errors.RayError as error:
            raise BlockLostError(self.backend._died(self.task, error)) from error
