"""Runs tasks on Ray: plain tasks for one piece of work, streaming generators for bundles. The one file that knows Ray.

Ray's own retries are off: what follows a failure is the scheduler's decision. A bundle streams its messages back in
batches (one item a message would cost 0.13 ms each); a single piece returns them with the task, which is cheaper than a
generator. `ray.wait` costs time for every reference it is given, so the window stays small and each harvest takes two
calls: one that waits for the first, one that collects whatever else is ready.

What goes back and forth is pickled here and handed to Ray as bytes, and the program's reference is part of the remote
function instead of an argument. Ray would take 0.2 ms a task, half of what the task itself costs, to pickle small
objects its own way and to count a reference in every task.
"""

from __future__ import annotations

import math
import os
import pickle
import time
from collections.abc import Iterable, Iterator
from typing import Any

import ray
from ray import cloudpickle
from ray import exceptions as ray_errors
from ray.job_config import JobConfig

from curate.errors import ConfigError
from curate.runtime import code
from curate.runtime.protocol import End, Ended, Message, News, Program, Resources

STREAM_INTERVAL_S = 0.25
"""A bundle's messages are sent on at least this often."""
SLOTS_MAX_AGE_S = 2.0
"""How long a count of the cluster's slots is trusted."""

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


def _in_batches(items: Iterable[Any]) -> Iterator[bytes]:
    batch: list[Any] = []
    sent = time.monotonic()
    for item in items:
        batch.append(item)
        if time.monotonic() - sent >= STREAM_INTERVAL_S:
            yield _packed(batch)
            batch, sent = [], time.monotonic()
    yield _packed(batch)


class RayBackend:
    """A backend over the Ray cluster at `RAY_ADDRESS`, the one running here, or a local one made for this run."""

    name = "ray"

    def __init__(self) -> None:
        self._connected = False
        self._owns_cluster = False
        self._tasks: dict[Any, int] = {}
        self._slots = 0
        self._slots_read_s = -math.inf
        self._resources = Resources()
        self._options: dict[str, Any] = {}

    def start(self, resources: Resources) -> None:
        """Connects to Ray if nothing is connected yet. Raises ConfigError if a cluster made here cannot hold a task."""
        if not ray.is_initialized():
            # What workers print stays in Ray's own log files: a million tasks must not talk through one driver.
            ray.init(
                include_dashboard=False,
                log_to_driver=False,
                logging_level="warning",
                configure_logging=False,
                # As if the job's file were the program: what it imports from beside it, workers find too.
                job_config=JobConfig(_py_driver_sys_path=list(code.FOLDERS)) if code.FOLDERS else None,
            )
            self._connected = True
            self._owns_cluster = not os.environ.get("RAY_ADDRESS")
        self._resources = resources
        self._options = {
            "num_cpus": resources.num_cpus,
            "num_gpus": resources.num_gpus,
            "resources": dict(resources.custom) or None,
            "max_retries": 0,
        }
        if resources.memory:
            self._options["memory"] = resources.memory
        if self._owns_cluster and not self.slots():
            has = {name: n for name, n in sorted(ray.cluster_resources().items()) if ":" not in name}
            self.close()
            raise ConfigError(
                f"a task needs {self._needs()}, but this machine has {has}; "
                "lower what the job asks for, or point RAY_ADDRESS at a cluster that has it"
            )

    def load(self, program: Program) -> None:
        """Puts the program into the object store, once for all workers; it stays there until the driver ends."""
        for module in code.BY_VALUE:
            cloudpickle.register_pickle_by_value(module)
        key, reference = program.key, ray.put(program)

        # Not methods: Ray ships what a remote function refers to, and that must not be this object.
        def run_piece(payload: bytes) -> bytes:
            return _packed(list(_program(key, reference).run(pickle.loads(payload))))

        def run_bundle(payload: bytes) -> Iterator[bytes]:
            yield from _in_batches(_program(key, reference).run(pickle.loads(payload)))

        self._piece = ray.remote(**self._options)(run_piece)
        self._bundle = ray.remote(**self._options, num_returns="streaming")(run_bundle)

    def _needs(self) -> dict[str, float]:
        needs = {"CPU": self._resources.num_cpus, "GPU": self._resources.num_gpus, **self._resources.custom}
        if self._resources.memory:
            needs["memory"] = self._resources.memory
        return {name: amount for name, amount in needs.items() if amount}

    def slots(self) -> int:
        """Returns how many tasks the nodes that live now can hold; read from Ray every two seconds at most."""
        now = time.monotonic()
        if now - self._slots_read_s > SLOTS_MAX_AGE_S:
            needs = self._needs()
            self._slots = sum(
                math.floor(min((node["Resources"].get(name, 0) / n for name, n in needs.items()), default=1))
                for node in ray.nodes()
                if node["Alive"]
            )
            self._slots_read_s = now
        return self._slots

    def largest_memory(self) -> int | None:
        """Returns the most bytes that one task can ask for on any node that lives now."""
        return max((int(node["Resources"].get("memory", 0)) for node in ray.nodes() if node["Alive"]), default=None)

    def launch(
        self, task: int, payload: Any, pieces: int, *, memory: int | None = None, announce: bool = False
    ) -> None:
        """Submits the task; Ray queues it until a slot is free."""
        del announce
        run = self._piece if pieces == 1 else self._bundle
        if memory is not None:
            run = run.options(memory=memory)
        self._tasks[run.remote(_packed(payload))] = task

    def poll(self, timeout_s: float) -> list[News]:
        """Returns the messages and ends that are ready, in completion order."""
        if not self._tasks:
            return []
        waiting = list(self._tasks)
        ready, _ = ray.wait(waiting, num_returns=1, timeout=timeout_s)
        if ready and len(waiting) > 1:
            ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)
        return [news for ref in ready for news in self._harvest(ref)]

    def _harvest(self, ref: Any) -> Iterator[Message | Ended]:
        task = self._tasks[ref]
        streaming = isinstance(ref, ray.ObjectRefGenerator)
        try:
            items = pickle.loads(ray.get(next(ref) if streaming else ref))
        except StopIteration:
            del self._tasks[ref]
            yield Ended(task, End.RETURNED)
            return
        except ray_errors.RayError as error:
            del self._tasks[ref]
            yield Ended(task, *_end_of(error))
            return
        if items:
            yield Message(task, items)
        if not streaming:
            del self._tasks[ref]
            yield Ended(task, End.RETURNED)

    def cancel(self, task: int | None = None) -> None:
        """Kills the worker of a task, or those of all that run."""
        if task is not None:
            for ref, number in self._tasks.items():
                if number == task:
                    ray.cancel(ref, force=True)
            return
        for ref in self._tasks:
            ray.cancel(ref, force=True)
        self._tasks.clear()

    def close(self) -> None:
        """Disconnects if it was `start` that connected, and so ends a cluster that was made for this run.

        Ray goes on printing what it hears of the cluster for as long as it is connected.
        """
        self._tasks.clear()
        if self._connected:
            self._connected = False
            ray.shutdown()


def _end_of(error: ray_errors.RayError) -> tuple[End, str]:
    """Returns what Ray's error means for the task. A lost object may hide as the cause of a task's own error."""
    chain: list[BaseException] = [error]
    cause = getattr(error, "cause", None) or error.__cause__
    if isinstance(cause, BaseException):
        chain.append(cause)
    for link in chain:
        if isinstance(link, ray_errors.NodeDiedError | ray_errors.ObjectLostError | ray_errors.LocalRayletDiedError):
            return End.LOST, _first_line(link)
        if isinstance(link, ray_errors.TaskCancelledError):
            return End.CANCELLED, _first_line(link)
        if isinstance(link, ray_errors.WorkerCrashedError | ray_errors.OutOfMemoryError):
            return End.CRASHED, str(link)[:2000]
    return End.RAISED, str(error)[-4000:]


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
