"""The inline backend: one slot, works when polled, and survives what user code does to its process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from curate.backends.inline import InlineBackend
from curate.backends.make import make_backend
from curate.errors import ConfigError, PoolFailed
from curate.runtime.protocol import CallLostError, Message, Pool, PoolSpec, Resources, TaskEnd, TaskFinished
from tests.support.fakes import NEVER_S


@dataclass
class Calling:
    """A program whose payload is what to do: each piece is called, and its result is the message."""

    key: str = "calling"
    closed: list[int] = field(default_factory=list)

    def run(self, payload: list[Callable[[], Any]]) -> Iterator[Any]:
        done = 0
        try:
            for piece in payload:
                yield piece()
                done += 1
        except GeneratorExit:
            self.closed.append(done)
            raise


@pytest.fixture
def backend() -> InlineBackend:
    made = make_backend("inline")
    assert isinstance(made, InlineBackend)
    made.start(Resources())
    made.load(Calling())
    return made


def drain(backend: InlineBackend) -> list[Message | TaskFinished]:
    """Polls until there is nothing to do."""
    news: list[Message | TaskFinished] = []
    while one := backend.poll(0.5):
        assert len(one) == 1
        news += one
    return news


def raising(error: BaseException) -> Callable[[], Any]:
    def piece() -> Any:
        raise error

    return piece


def test_it_works_in_launch_order_one_piece_a_poll(backend: InlineBackend) -> None:
    """Nothing happens before a poll, and then as little as possible: a signal is looked at after every piece."""
    calls: list[str] = []
    backend.launch(7, [lambda: calls.append("a") or 1, lambda: calls.append("b") or 2], 2)
    backend.launch(3, [lambda: calls.append("c") or 3], 1)
    assert calls == []
    assert backend.poll(0.5) == [Message(7, [1])]
    assert calls == ["a"]
    assert drain(backend) == [
        Message(7, [2]),
        TaskFinished(7, TaskEnd.RETURNED),
        Message(3, [3]),
        TaskFinished(3, TaskEnd.RETURNED),
    ]
    assert calls == ["a", "b", "c"]


def test_it_has_one_slot(backend: InlineBackend) -> None:
    """Whatever a task asks for: it gets this process."""
    backend.start(Resources(num_cpus=64, num_gpus=8, memory=2**50, custom={"TPU": 4}))
    assert backend.slots() == 1


def test_with_nothing_to_do_it_does_not_wait(backend: InlineBackend) -> None:
    """Nothing would come while it waited: the caller sleeps by its own clock."""
    assert backend.poll(3600.0) == []


def test_an_error_that_escapes_ends_its_task_alone(backend: InlineBackend) -> None:
    """The dispatcher is told, with the traceback; the next task runs."""
    backend.launch(1, [lambda: 1, raising(ValueError("boom")), lambda: 3], 3)
    backend.launch(2, [lambda: 4], 1)
    first, second, *rest = drain(backend)
    assert first == Message(1, [1])
    assert isinstance(second, TaskFinished)
    assert (second.task, second.end) == (1, TaskEnd.RAISED)
    assert second.detail.splitlines()[-1] == "ValueError: boom"
    assert rest == [Message(2, [4]), TaskFinished(2, TaskEnd.RETURNED)]


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (SystemExit(3), "SystemExit: 3"),
        (GeneratorExit("odd"), "GeneratorExit: odd"),
        (asyncio.CancelledError(), "CancelledError: "),
    ],
)
def test_what_would_end_a_worker_does_not_end_the_driver(
    error: BaseException, detail: str, backend: InlineBackend
) -> None:
    """`sys.exit()` in user code is a crash of its task, as it is on a cluster: one shard fails, the others finish."""
    backend.launch(1, [raising(error)], 1)
    backend.launch(2, [lambda: 4], 1)
    ended, *rest = drain(backend)
    assert isinstance(ended, TaskFinished)
    assert (ended.task, ended.end, ended.detail.splitlines()[0]) == (1, TaskEnd.CRASHED, detail)
    # Where it was raised, unless the user asked for the end.
    assert (", in piece" in ended.detail) is not isinstance(error, SystemExit)
    assert rest == [Message(2, [4]), TaskFinished(2, TaskEnd.RETURNED)]


def test_an_interrupt_is_the_users(backend: InlineBackend) -> None:
    """Where signals are not handled, Ctrl-C ends the program, and pdb."""
    backend.launch(1, [raising(KeyboardInterrupt())], 1)
    with pytest.raises(KeyboardInterrupt):
        backend.poll(0.5)


def test_cancelling_drops_what_is_queued(backend: InlineBackend) -> None:
    """A task that has begun is closed where it stands."""
    program = Calling()
    backend.load(program)
    backend.launch(1, [lambda: 1, lambda: 2], 2)
    backend.launch(2, [lambda: 3], 1)
    backend.poll(0.5)
    backend.cancel()
    assert backend.poll(0.5) == []
    assert program.closed == [0]


def test_cancelling_from_a_signal_ends_the_piece_at_hand(backend: InlineBackend) -> None:
    """A handler runs in the middle of user code, which may catch every Exception: this is none."""
    seen: list[str] = []

    def stubborn() -> None:
        try:
            os.kill(os.getpid(), signal.SIGUSR1)
            seen.append("went on")
        except Exception:  # noqa: BLE001 - what user code does
            seen.append("caught it")

    before = signal.signal(signal.SIGUSR1, lambda *_: backend.cancel())
    try:
        backend.launch(1, [stubborn], 1)
        backend.launch(2, [lambda: 1], 1)
        assert backend.poll(0.5) == []
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == []
    assert backend.poll(0.5) == []
    backend.launch(3, [lambda: 5], 1)
    assert drain(backend) == [Message(3, [5]), TaskFinished(3, TaskEnd.RETURNED)]


@dataclass
class Adding:
    """What actors run: adds what it loaded to what it is given, and calls what can be called."""

    loads: int | BaseException
    loaded: int | None = None

    def setup(self) -> None:
        if isinstance(self.loads, BaseException):
            raise self.loads
        self.loaded = self.loads

    def call(self, payload: Any) -> Any:
        if callable(payload):
            return payload()
        assert self.loaded is not None
        return self.loaded + payload


@dataclass
class Asking:
    """A program whose payload is what to ask its pools: (pool, payload) each."""

    key: str = "asking"
    pools: list[Any] = field(default_factory=list)

    def connect(self, pools: Sequence[Pool]) -> None:
        self.pools.extend(pools)

    def run(self, payload: list[tuple[int, Any]]) -> Iterator[Any]:
        for pool, asked in payload:
            yield self.pools[pool].call(asked).result()


def test_a_pool_is_one_instance_in_this_process(backend: InlineBackend) -> None:
    """Set up before the program is connected, which is before it runs; a call is answered when it is made."""
    specs = [PoolSpec("one", Adding(1), Resources()), PoolSpec("ten", Adding(10), Resources(num_gpus=8), min_size=4)]
    program = Asking()
    backend.load(program, specs)
    backend.launch(1, [(0, 5), (1, 5), (0, 6)], 3)
    assert drain(backend) == [Message(1, [6]), Message(1, [15]), Message(1, [7]), TaskFinished(1, TaskEnd.RETURNED)]
    one, _ = program.pools
    assert one.room == 1
    call = one.call(7)
    assert call.ready()
    assert call.result() == 8
    assert [(s.name, s.ready, s.starting, s.queued, 0 <= s.busy <= 1) for s in backend.pools()] == [
        ("one", 1, 0, 0, True),
        ("ten", 1, 0, 0, True),
    ]
    # What an actor loads goes with it: the spec, which is given again and again, has none of it.
    assert specs[0].program == Adding(1)


def test_a_pool_is_gone_with_its_program(backend: InlineBackend) -> None:
    """The next program has pools of its own, or none."""
    backend.load(Asking(), [PoolSpec("one", Adding(1), Resources())])
    backend.load(Calling())
    assert backend.pools() == []
    backend.load(Asking(), [PoolSpec("one", Adding(1), Resources())])
    backend.close()
    assert backend.pools() == []


@pytest.mark.parametrize("error", [ValueError("no weights"), SystemExit("no weights")])
def test_an_actor_that_cannot_be_set_up(backend: InlineBackend, error: Any) -> None:
    """The run fails with the traceback of what was raised, as on a cluster; the program goes on."""
    says = rf"(?s)model: an actor cannot be set up.*in setup.*{type(error).__name__}: no weights"
    with pytest.raises(PoolFailed, match=says):
        backend.load(Asking(), [PoolSpec("model", Adding(error), Resources())])


def test_who_stops_while_pools_start_waits_for_no_other(backend: InlineBackend) -> None:
    """To set up a pool may take minutes."""
    backend.load(Asking(), [PoolSpec("model", Adding(ValueError("no weights")), Resources())], stopped=lambda: True)


def test_what_a_call_raises_is_raised_where_its_answer_is_asked_for(backend: InlineBackend) -> None:
    """An exception as it is; what would end an actor is a call that was lost, and the driver lives."""
    program = Asking()
    backend.load(program, [PoolSpec("one", Adding(1), Resources())])
    call = program.pools[0].call(raising(ZeroDivisionError()))
    assert call.ready()
    with pytest.raises(ZeroDivisionError):
        call.result()
    with pytest.raises(CallLostError) as lost:
        program.pools[0].call(raising(SystemExit(3))).result()
    assert (lost.value.ended.end, lost.value.ended.detail) == (TaskEnd.CRASHED, "SystemExit: 3")


def test_closed_it_has_no_program(backend: InlineBackend) -> None:
    """What the program loaded can be freed; to launch is a mistake."""
    backend.launch(1, [lambda: 1], 1)
    backend.close()
    assert backend.poll(0.5) == []
    with pytest.raises(RuntimeError, match="launch before load"):
        backend.launch(2, [lambda: 1], 1)


def test_a_backend_that_does_not_exist_is_refused() -> None:
    """With what there is, and what was probably meant."""
    with pytest.raises(
        ConfigError, match=r"no backend 'inlin'; did you mean 'inline'.*; there are: auto, local, ray, inline"
    ):
        make_backend("inlin")


def test_inline_needs_no_ray() -> None:
    """Importing Ray takes seconds."""
    script = (
        "import sys; from curate.backends.make import make_backend; make_backend('inline'); "
        "assert 'ray' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=NEVER_S).returncode == 0
