"""Runs tasks on Ray: plain tasks for one piece of work, streaming generators for bundles. The one file that knows Ray.

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
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import platform
import re
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray import cloudpickle
from ray import exceptions as ray_errors
from ray.job_config import JobConfig

from curate.errors import ConfigError
from curate.log import get_logger
from curate.runtime import code
from curate.runtime.protocol import (
    Block,
    BlockLostError,
    End,
    Ended,
    Message,
    News,
    Offer,
    PoolSpec,
    PoolState,
    Program,
    Resources,
    Started,
)
from curate.units import format_bytes

STREAM_INTERVAL_S = 0.25
"""A bundle's messages are sent on at least this often, on a small cluster."""
STREAM_ITEMS_PER_S = 2000
"""Items a second that all streams together send: a quarter of what one driver can take."""
SLOTS_MAX_AGE_S = 2.0
"""How long what is known of the cluster's nodes is trusted."""
CONNECT_TIMEOUT_S = 10.0
"""How long to wait for a cluster's head to take a connection. Ray itself would wait for minutes."""
NOTICE_INTERVAL_S = 10.0
"""What Ray tells of the cluster is passed on at most this often."""
MAX_NOTICE = 300
MAX_DETAIL = 4000
"""Characters of a notice of Ray's, and of an end's detail."""

_LOST = (ray_errors.NodeDiedError, ray_errors.ObjectLostError, ray_errors.LocalRayletDiedError)
_AUTH_LOGGER = "ray._private.authentication.authentication_token_setup"
_KILLED_FOR_MEMORY = re.compile(r"Selected to kill: \([^()]*?\bpid=(\d+)[^()]*?\bmemory used=(\d+(?:\.\d+)?)GB")
_NODE_ID = re.compile(r"\bID: ([0-9a-f]{56})\b")

_programs: dict[str, Program] = {}
"""The program that this worker process keeps, with whatever it has loaded, by its key."""


def _program(key: str, reference: Any) -> Program:
    program = _programs.get(key)
    if program is None:
        _programs.clear()
        program = _programs[key] = ray.get(reference)
    return program


def _packed(value: Any) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def _whereabouts() -> tuple[str, int, str]:
    return platform.node(), os.getpid(), ray.get_runtime_context().get_node_id()


def _in_batches(items: Iterable[Any], interval_s: float) -> Iterator[bytes]:
    batch: list[Any] = []
    sent = time.monotonic()
    for item in items:
        batch.append(item)
        if time.monotonic() - sent >= interval_s:
            yield _packed(batch)
            batch, sent = [], time.monotonic()
    if batch:
        yield _packed(batch)


@dataclass(slots=True)
class _Task:
    """A task in flight."""

    number: int
    streams: bool
    node: str = ""
    pid: int = 0
    node_id: str = ""
    cancelled: bool = False
    blocks: bool = False
    """Whether it streams blocks."""
    size_bytes: int | None = None
    """Of the block that comes next, once that is known."""
    offers: bool = False
    """Whether that block is made and waits to be taken."""


class RayBackend:
    """A backend over the Ray cluster at `RAY_ADDRESS`, the one running here, or a local one made for this run."""

    name = "ray"

    def __init__(self) -> None:
        self._connected = False
        self._unhush: Callable[[], None] = lambda: None
        self._tasks: dict[Any, _Task] = {}
        self._slots = 0
        self._largest_memory: int | None = None
        self._nodes_read_s = -math.inf
        self._node_names: dict[str, str] = {}
        self._resources = Resources()
        self._options: dict[str, Any] = {}
        self._functions: dict[tuple[str, int | None], Any] = {}

    def start(self, resources: Resources, pools: Sequence[PoolSpec] = ()) -> None:
        """Connects to Ray if nothing is connected yet.

        Raises ConfigError if no cluster answers where one is said to be, or if one made by this process cannot hold a
        task. That of others may grow.
        """
        if not ray.is_initialized():
            address = _cluster_address()
            # Ray says in two lines that it asks for a token, which is safe and is its default for a cluster of its own.
            authentication = logging.getLogger(_AUTH_LOGGER)
            level = authentication.level
            authentication.setLevel(logging.ERROR)
            try:
                # What workers print stays in Ray's own log files: a million tasks must not talk through one driver.
                ray.init(
                    address or "local",
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level="warning",
                    configure_logging=False,
                    # As if a job's file were the program: what it imports from beside it, workers find too.
                    job_config=JobConfig(_py_driver_sys_path=list(code.FOLDERS)) if code.FOLDERS else None,
                )
            except (ConnectionError, ray_errors.AuthenticationError) as error:
                raise ConfigError(f"cannot join the Ray cluster at {address}: {_first_line(error)}") from error
            finally:
                authentication.setLevel(level)
            self._connected = True
            self._unhush = _hush()
        self._resources = resources
        self._options = {
            "num_cpus": resources.num_cpus,
            "num_gpus": resources.num_gpus,
            "resources": dict(resources.custom) or None,
            "max_retries": 0,
        }
        if resources.memory:
            self._options["memory"] = resources.memory
        self._nodes_read_s = -math.inf
        if _made_by_this_process() and not self.slots():
            has = {name: n for name, n in sorted(ray.cluster_resources().items()) if ":" not in name}
            self.close()
            raise ConfigError(
                f"a task needs {self._needs()}, but this machine has {has}; "
                "lower what the job asks for, or point RAY_ADDRESS at a cluster that has it"
            )

    def load(
        self, program: Program, pools: Sequence[PoolSpec] = (), *, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """Puts the program into the object store, once for all workers; it stays there until the driver ends."""
        if pools:
            raise NotImplementedError("pools on Ray")
        for module in code.shipped():
            cloudpickle.register_pickle_by_value(module)
        key, reference = program.key, ray.put(program)

        # Not methods: Ray ships what a remote function refers to, and that must not be this object.
        def run_piece(payload: bytes) -> bytes:
            return _packed(list(_program(key, reference).run(pickle.loads(payload))))

        def run_bundle(payload: bytes) -> Iterator[bytes]:
            yield _packed(_whereabouts())
            interval_s, work = pickle.loads(payload)
            yield from _in_batches(_program(key, reference).run(work), interval_s)

        def run_stream(payload: bytes) -> Iterator[Any]:
            yield _packed(_whereabouts())
            for item in _program(key, reference).run(pickle.loads(payload)):
                size_bytes = getattr(item, "nbytes", None)
                if size_bytes is None:
                    yield _packed([item])
                else:
                    yield _packed(size_bytes)
                    yield item

        streaming = {**self._options, "num_returns": "streaming"}
        self._functions = {
            ("piece", None): ray.remote(**self._options)(run_piece),
            ("bundle", None): ray.remote(**streaming)(run_bundle),
            ("stream", None): ray.remote(**streaming, _generator_backpressure_num_objects=1)(run_stream),
        }

    def _function(self, name: str, memory: int | None) -> Any:
        """Returns what runs on a worker. Asking for other memory makes no new one of it, and so no new workers."""
        found = self._functions.get((name, memory))
        if found is None:
            found = self._functions[name, memory] = self._functions[name, None].options(memory=memory)
        return found

    def _needs(self) -> dict[str, float]:
        needs = {"CPU": self._resources.num_cpus, "GPU": self._resources.num_gpus, **self._resources.custom}
        if self._resources.memory:
            needs["memory"] = self._resources.memory
        return {name: amount for name, amount in needs.items() if amount}

    def pools(self) -> list[PoolState]:
        """Returns how the pools are doing."""
        return []

    def slots(self) -> int:
        """Returns how many tasks the nodes that live and are not draining can hold; read every two seconds at most."""
        self._look_at_nodes()
        return self._slots

    def largest_memory(self) -> int | None:
        """Returns the most bytes that a task can ask for on one node that lives, or that the autoscaler can start.

        Only nodes that have what else a task needs. None while there is no such node, and none is known to come.
        """
        self._look_at_nodes()
        return self._largest_memory

    def _look_at_nodes(self) -> None:
        now = time.monotonic()
        if now - self._nodes_read_s <= SLOTS_MAX_AGE_S:
            return
        self._nodes_read_s = now
        needs = self._needs()
        nodes, draining = ray.nodes(), _draining()
        # The dead too: they are what is asked for.
        self._node_names = {node["NodeID"]: node["NodeManagerHostname"] for node in nodes}
        live = [node["Resources"] for node in nodes if node["Alive"] and node["NodeID"] not in draining]
        self._slots = sum(
            math.floor(min((has.get(name, 0) / n for name, n in needs.items()), default=1)) for has in live
        )
        needs.pop("memory", None)
        able = [has for has in [*live, *_configurable()] if all(has.get(name, 0) >= n for name, n in needs.items())]
        self._largest_memory = max((int(has["memory"]) for has in able if has.get("memory")), default=None)

    def launch(
        self,
        task: int,
        payload: Any,
        pieces: int,
        *,
        memory: int | None = None,
        announce: bool = False,
        stream: bool = False,
    ) -> None:
        """Submits the task; Ray queues it until a slot is free."""
        if stream:
            ref = self._function("stream", memory).remote(_packed(payload))
            self._tasks[ref] = _Task(task, streams=True, blocks=True)
            return
        if pieces == 1 and not announce:
            self._tasks[self._function("piece", memory).remote(_packed(payload))] = _Task(task, streams=False)
            return
        interval_s = 0.0 if announce else max(STREAM_INTERVAL_S, self._slots / STREAM_ITEMS_PER_S)
        ref = self._function("bundle", memory).remote(_packed((interval_s, payload)))
        self._tasks[ref] = _Task(task, streams=True)

    def poll(self, timeout_s: float) -> list[News]:
        """Returns the messages and ends that are ready, in completion order."""
        waiting = [ref for ref, task in self._tasks.items() if not task.offers]
        if not waiting:
            # What stands still has nothing to tell, however long one waits.
            return []
        # A block that is made may stay where it is.
        fetch = not any(self._tasks[ref].blocks for ref in waiting)
        ready, _ = ray.wait(waiting, num_returns=1, timeout=timeout_s, fetch_local=fetch)
        if ready and len(waiting) > 1:
            ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0, fetch_local=fetch)
        return [news for ref in ready for news in self._harvest(ref)]

    def take(self, task: int) -> Block:
        """Returns a reference to the block, which keeps it in the object store; Ray lets the task go on."""
        ref, running = next((ref, one) for ref, one in self._tasks.items() if one.number == task and one.offers)
        running.offers, running.size_bytes = False, None
        return _Block(next(ref), running, self)

    def _harvest(self, ref: Any) -> Iterator[News]:
        task = self._tasks[ref]
        if task.size_bytes is not None:
            task.offers = True
            yield Offer(task.number, task.size_bytes)
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
            yield Ended(task.number, End.RETURNED, node=task.node, pid=task.pid)
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
            yield Ended(task.number, End.RETURNED)

    def _died(self, task: _Task, error: ray_errors.RayError) -> Ended:
        """Returns what Ray's error means. What it is about may hide as the cause of a task's own error.

        The first line of the detail is the same for all that is alike: failures are grouped by it.
        """
        node, pid, peak_bytes = task.node, task.pid, 0
        end, detail = End.RAISED, str(error)[-MAX_DETAIL:]
        for link in _chain(error):
            if isinstance(link, ray_errors.OutOfMemoryError):
                pid, peak_bytes = killed_for_memory(str(link), pid)
                held = (
                    f"the worker held {format_bytes(peak_bytes)} when" if peak_bytes else "the worker was killed when"
                )
                end, detail = End.OUT_OF_MEMORY, f"{held} its node ran out of memory\n{link}"
            elif isinstance(link, _LOST):
                what = "an object was lost" if isinstance(link, ray_errors.ObjectLostError) else "the node died"
                end, detail = End.LOST, f"{what}\n{type(link).__name__}: {link}"
            elif isinstance(link, ray_errors.TaskCancelledError):
                # Unasked, it is a KeyboardInterrupt that came from the task itself.
                end = End.CANCELLED if task.cancelled else End.CRASHED
                detail = "it was cancelled" if task.cancelled else "KeyboardInterrupt: in the worker"
            elif isinstance(link, ray_errors.WorkerCrashedError):
                if task.cancelled:
                    end, detail = End.CANCELLED, "its worker was killed"
                elif self._leaves(task.node_id):
                    # What takes a machine away may kill its processes one by one.
                    end, detail = End.LOST, "the worker died on a node that is draining or dead"
                else:
                    end, detail = End.CRASHED, "the worker died: killed, a segmentation fault, or an exit"
            else:
                continue
            node = node or self._named(str(link))
            break
        return Ended(task.number, end, detail[:MAX_DETAIL], node, pid, peak_bytes)

    def _leaves(self, node_id: str) -> bool:
        if not node_id:
            return False
        return node_id in _draining() or any(n["NodeID"] == node_id and not n["Alive"] for n in ray.nodes())

    def _named(self, message: str) -> str:
        """Returns the name of the node that a message of Ray's is about, empty if it names none."""
        found = _NODE_ID.search(message)
        return self._node_names.get(found[1], "") if found else ""

    def cancel(self, task: int | None = None) -> None:
        """Kills the worker of a task, or those of all that run.

        A worker whose program stands still, waiting for its block to be taken, hears and lives.
        """
        for ref, running in self._tasks.items():
            if task is None or running.number == task:
                running.cancelled = True
                # What Ray has of a stream and nobody took, makes its task wait.
                ray.cancel(ref, force=not (running.blocks and ref.next_ready()))
                # Its end comes instead of the block.
                running.offers, running.size_bytes = False, None
        if task is None:
            self._tasks.clear()

    def close(self) -> None:
        """Disconnects if it was `start` that connected, and so ends a cluster that was made for this run."""
        self._tasks.clear()
        self._functions.clear()
        if self._connected:
            self._connected = False
            ray.shutdown()
            # Last, because Ray says goodbye.
            self._unhush()


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


def killed_for_memory(message: str, pid: int = 0) -> tuple[int, int]:
    """Returns process and bytes of the worker that Ray's memory monitor killed, by its message: 0 where it says none.

    A message may be about several workers, of which `pid` is meant; if that is not known, the largest stands for it.

    >>> killed_for_memory("Selected to kill: (Task: task name=f, pid=7, actual memory used=1.50GB, worker ID=a)")
    (7, 1610612736)
    >>> killed_for_memory("low on memory", pid=3)
    (3, 0)
    """
    killed = [(int(who), int(float(gibibytes) * 2**30)) for who, gibibytes in _KILLED_FOR_MEMORY.findall(message)]
    if pid:
        return pid, max((size for who, size in killed if who == pid), default=0)
    return killed[0] if len(killed) == 1 else (0, max((size for _, size in killed), default=0))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and all that caused it. Ray keeps what a task raised in `cause`."""
    links: list[Any] = [error]
    for link in links:
        if isinstance(link, BaseException):
            yield link
            causes = (getattr(link, "cause", None), link.__cause__)
            links += [cause for cause in causes if not any(cause is one for one in links)]


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def _cluster_address() -> str | None:
    """Returns where Ray would find a cluster, None if it would make one. Raises ConfigError if no cluster is there."""
    wanted = os.environ.get("RAY_ADDRESS", "")
    if "://" in wanted:
        raise ConfigError(
            f"RAY_ADDRESS is {wanted}, but a driver runs inside its cluster: submit the script with `ray job submit`, "
            "or give host:port of a head that this machine is a node of"
        )
    try:
        from ray._private import services

        address: str | None = services.canonicalize_bootstrap_address(None)
    except (ImportError, AttributeError):
        address = wanted if wanted != "local" else None
    except (ValueError, ConnectionError) as error:
        raise ConfigError(f"RAY_ADDRESS is {wanted!r}: {_first_line(error)}") from error
    if not address:
        return None
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        found = f"RAY_ADDRESS is {wanted}" if wanted else f"the cluster last started here was at {address}"
        raise ConfigError(
            f"{found}, but no cluster answers there ({error}); "
            "start it, or set RAY_ADDRESS=local to run on this machine alone"
        ) from error
    return address


def _made_by_this_process() -> bool:
    """Returns whether the cluster is one of this process alone. `ray.init` may have joined another unasked."""
    try:
        from ray._private.worker import _global_node
    except ImportError:
        return False
    return _global_node is not None and bool(_global_node.is_head())


def _draining() -> frozenset[str]:
    """Returns the ids of the nodes that are about to leave. Ray has no public call for it; none if it has no other."""
    try:
        from ray._private.state import state

        return frozenset(state.get_draining_nodes())
    except (ImportError, AttributeError):
        return frozenset()


def _configurable() -> list[dict[str, float]]:
    """Returns the resources of the kinds of nodes that the autoscaler may start, as far as it has told."""
    try:
        from ray._private.state import state

        config = state.get_cluster_config()
    except (ImportError, AttributeError):
        return []
    groups = config.node_group_configs if config else []
    # -1 means that there is no bound.
    return [{k: n if n >= 0 else sys.maxsize for k, n in g.resources.items()} for g in groups if g.max_count]


def _hush() -> Callable[[], None]:
    """Makes one short log line of what Ray tells of the cluster, now and then; returns what undoes this.

    Ray prints it to standard output whatever it is told: a page for every node that dies, of which there are many.
    """
    try:
        from ray._private import worker

        before = worker.print_to_stdstream
    except (ImportError, AttributeError):
        return lambda: None
    log, told_s, untold = get_logger(), -math.inf, 0

    def notice(data: dict[str, Any], *_: Any, **__: Any) -> None:
        nonlocal told_s, untold
        now = time.monotonic()
        if now - told_s < NOTICE_INTERVAL_S:
            untold += 1
            return
        text = " ".join(" ".join(data.get("lines", ())).split())
        log.warning("Ray says", notice=text[:MAX_NOTICE], untold=untold)
        told_s, untold = now, 0

    worker.print_to_stdstream = notice

    def undo() -> None:
        worker.print_to_stdstream = before

    return undo
