"""Pools of actors in processes of their own: order, deaths, poison, growth, cancellation, what is refused."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from curate.backends.make import make_backend
from curate.errors import ConfigError, PoolFailed
from curate.runtime.protocol import Message, PoolSpec, Resources, Started, TaskEnd, TaskFinished
from tests.backends.calling import Calling, keep_interpreter, process_while
from tests.backends.polling import WORKERS, begun, ends, polled
from tests.backends.pooling import Conducting, Narrow, Serving, Slicing, Waiting, leave, poison, slowly, spoilt
from tests.support.fakes import NEVER_S
from tests.support.harness import alive, wait_until
from tests.support.ray_head import own_ray

pytestmark = pytest.mark.slow
HALF = Resources(num_cpus=0.5)
SETUP_S = 600.0
"""How long an actor may take to be set up, on either."""
DIED = {
    "local": "the actor died: killed by SIGKILL",
    "ray": "the actor died: killed, a segmentation fault, or an exit",
}


@pytest.fixture(scope="module", params=WORKERS)
def backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A backend with two CPUs; on Ray, on a cluster of this process alone."""
    if request.param == "local":
        from curate.local.backend import LocalBackend

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("curate.local.machine.cpus", lambda: 2.0)
            local = LocalBackend()
            local.start(HALF)
            yield local
            local.close()
        return
    from curate.backends.ray.backend import RayBackend

    with own_ray(2, object_store_memory=80 << 20):
        made = RayBackend()
        made.start(HALF)
        yield made
        made.close()


class Pooled:
    """A pool on the backend, and how to use it."""

    def __init__(self, backend: Any, folder: Path) -> None:
        self.backend = backend
        self.folder = folder
        self.news: list[Any] = []
        """What was told while one waited for something else."""

    def load(self, fails: str = "", gate: Path | None = None, **spec: Any) -> None:
        serving = Serving(self.folder, fails, gate)
        asked = {"resources": HALF, **spec}
        self.backend.load(Conducting(), [PoolSpec("serving", serving, **asked)])

    def pids(self) -> set[int]:
        """Returns the processes of all actors that were ever set up."""
        return {int(path.name) for path in self.folder.iterdir()}

    def answers(self, *tasks: Any, within_s: float = NEVER_S) -> list[list[Any]]:
        """Returns the answers to the calls of some tasks."""
        for task, payload in enumerate(tasks):
            self.backend.launch(task, payload, 1)
        return self.told(len(tasks), within_s)

    def told(self, tasks: int, within_s: float = NEVER_S) -> list[list[Any]]:
        """Returns what tasks tell that were launched."""
        news, self.news = self.news, []
        news += polled(self.backend, lambda more: ends(tasks)(news + more), within_s)
        assert [one.end for one in news if isinstance(one, TaskFinished)] == [TaskEnd.RETURNED] * tasks
        items: dict[int, list[Any]] = {}
        for one in news:
            if isinstance(one, Message):
                items.setdefault(one.task, []).extend(one.items)
        return [items[task] for task in sorted(items)]

    def until(self, true: Callable[[Any], bool], within_s: float = NEVER_S) -> None:
        """Polls until the state of the pool is such."""
        until_s = time.monotonic() + within_s
        while not true(state := self.backend.pools()[0]):
            assert time.monotonic() < until_s, state
            self.news += self.backend.poll(0.0)
            time.sleep(0.05)


@pytest.fixture
def pooled(backend: Any, tmp_path: Path) -> Iterator[Pooled]:
    yield Pooled(backend, tmp_path)
    backend.cancel()
    backend.load(Calling())


def values(items: list[Any]) -> list[Any]:
    *answers, (word, _) = items
    assert word == "room"
    return [value for value, _ in answers]


@pytest.mark.ray(0)
def test_each_task_gets_its_answers_in_order_from_all_actors(pooled: Pooled) -> None:
    """Three tasks, two actors: each call is answered once, where it was asked, and no actor is left out."""
    pooled.load(min_size=2, max_size=2)
    tasks = [[(slowly, (task, k), 0.001 * (k % 3)) for k in range(100)] for task in range(3)]
    pooled.until(lambda state: state.ready == 2)
    told = pooled.answers(*tasks)
    assert [values(items) for items in told] == [[(task, k) for k in range(100)] for task in range(3)]
    for items in told:
        assert {pid for _, pid in items[:-1]} == pooled.pids()


def test_what_actors_hold_is_not_offered_to_tasks(pooled: Pooled) -> None:
    """Of a node's memory, too: a task that asked for all of it, as after it ran out, would wait for ever."""
    there = pooled.backend.largest_memory()
    pooled.load(min_size=1, max_size=1, resources=replace(HALF, memory=1 << 30))
    pooled.until(lambda state: state.ready == 1)
    assert pooled.backend.largest_memory() == there - (1 << 30)
    pooled.backend.launch(0, [(abs, -1)], 1, memory=pooled.backend.largest_memory())
    assert values(pooled.told(1)[0]) == [1]


@pytest.mark.ray(0)
def test_a_tables_answer_is_its_own(pooled: Pooled) -> None:
    """Tables of many megabytes go there and back; of a large one, only the rows that are sent."""
    spec = PoolSpec("serving", Serving(pooled.folder), HALF)
    pooled.backend.load(Slicing(), [spec])
    small, large = pooled.answers((1_000_000, 50_000), (1_000_000, 1_000_000))
    assert [same for _, same in small] == [True] * 20
    assert max(held for held, _ in small) < 500_000
    assert large == [(8_000_000, True)]


@pytest.mark.ray(0)
def test_the_room_is_shared(pooled: Pooled) -> None:
    """One task may have as many calls on their way as its actors take; of many tasks, each may have two."""
    pooled.load(min_size=1, max_size=1, max_in_flight=8)
    (items,) = pooled.answers([(slowly, k, 0.02) for k in range(150)])
    assert items[-1] == ("room", 8)
    seen = pooled.folder.parent / f"{pooled.folder.name}-seen"
    seen.mkdir()
    told = pooled.answers(*(Narrow(seen, task, 8, 2) for task in range(8)))
    assert [items[-1] for items in told] == [("room", 2)] * 8


@pytest.mark.ray(0)
def test_an_actor_is_killed_under_load(pooled: Pooled) -> None:
    """All answers come, in order, and the actor is replaced; no call is to blame."""
    pooled.load(min_size=2, max_size=2)
    pooled.until(lambda state: state.ready == 2)
    for task in range(2):
        pooled.backend.launch(task, [(slowly, (task, k), 0.02) for k in range(150)], 1)
    before = pooled.pids()
    pooled.until(lambda state: state.queued > 0)
    os.kill(min(before), signal.SIGKILL)
    told = pooled.told(2)
    assert [values(items) for items in told] == [[(task, k) for k in range(150)] for task in range(2)]
    pooled.until(lambda state: state.ready == 2)
    assert len(pooled.pids() - before) == 1


@pytest.mark.ray(0)
def test_the_only_actor_is_killed_again_and_again(pooled: Pooled) -> None:
    """The tasks wait for the next one; they let go of their CPUs, which it may need."""
    pooled.load(min_size=1, max_size=1, resources=Resources(num_cpus=1.5))
    for task in range(4):
        pooled.backend.launch(task, [(slowly, (task, k), 0.02) for k in range(30)], 1)
    news: list[Any] = []
    killed: set[int] = set()
    for _ in range(2):
        news += polled(pooled.backend, lambda _: bool(pooled.pids() - killed))
        time.sleep(0.3)
        (pid,) = pooled.pids() - killed
        os.kill(pid, signal.SIGKILL)
        killed.add(pid)
    news += polled(pooled.backend, lambda more: ends(4)(news + more))
    items = {one.task: one.items for one in news if isinstance(one, Message)}
    assert [values(items[task]) for task in range(4)] == [[(task, k) for k in range(30)] for task in range(4)]
    assert len(pooled.pids()) == 3


def test_poison_is_lost_after_three_actors_and_harms_no_other(pooled: Pooled) -> None:
    """Every other call is answered, those too that were sent to the actors that died: they only waited there."""
    pooled.load(min_size=2, max_size=2)
    pooled.until(lambda state: state.ready == 2)
    tasks = [[(slowly, (task, k), 0.02) for k in range(40)] for task in range(3)]
    tasks[1][20] = (poison, "bad")
    told = pooled.answers(*tasks)
    lost = told[1].pop(20)
    del tasks[1][20]
    assert isinstance(lost, TaskFinished)
    assert (lost.task, lost.end) == (1, TaskEnd.CRASHED)
    assert lost.detail.splitlines()[0] == DIED[pooled.backend.name]
    assert lost.pid in pooled.pids()
    assert [values(items) for items in told] == [[one[1] for one in task] for task in tasks]
    # The last one to die may still be counted as ready when the last answer is there.
    pooled.until(lambda state: state.ready == 2 and len(pooled.pids()) >= 2 + 3)
    assert len(pooled.pids()) == 2 + 3


@pytest.mark.ray(0)
def test_what_waits_behind_poison_is_answered(pooled: Pooled) -> None:
    """It is sent again with the poison, and dies with it each time, and it was not begun."""
    pooled.load(max_size=1, max_in_flight=16)
    (items,) = pooled.answers([(poison, "bad"), *((slowly, k, 0.02) for k in range(20))])
    assert items[0].end is TaskEnd.CRASHED
    assert values(items[1:]) == list(range(20))
    pooled.until(lambda _: len(pooled.pids()) >= 1 + 3)
    assert len(pooled.pids()) == 1 + 3


def test_user_code_that_exits_loses_its_call_and_not_the_actor(pooled: Pooled) -> None:
    """It is known whose fault it was; what the actor has loaded is kept."""
    pooled.load()
    (items,) = pooled.answers([(slowly, 1, 0.0), (leave, 3), (slowly, 2, 0.0)])
    (pid,) = pooled.pids()
    assert items[0] == (1, pid)
    assert (items[1].end, items[1].detail, items[1].pid) == (TaskEnd.CRASHED, "SystemExit: 3", pid)
    assert items[2] == (2, pid)


@pytest.mark.ray(0)
def test_an_actor_that_user_code_has_spoilt_answers_and_is_replaced(pooled: Pooled) -> None:
    """What was changed there, and cannot be given back, would fail all that comes. No call is to blame, however often:
    what waited is answered by others."""
    pooled.load(max_size=1, max_in_flight=16)
    (items,) = pooled.answers([(slowly, 0, 0.0), *((spoilt, k) for k in range(1, 6)), (slowly, 6, 0.0)])
    assert values(items) == list(range(7))
    # None does anything once it is spoilt.
    assert len({pid for _, pid in items[1:6]}) == 5


@pytest.mark.ray(0)
def test_what_curate_itself_raises_ends_the_task(pooled: Pooled) -> None:
    """With the traceback of the actor."""
    pooled.load()
    pooled.backend.launch(1, [(int, "no number")], 1)
    (end,) = (one for one in polled(pooled.backend, ends(1)) if isinstance(one, TaskFinished))
    assert end.end is TaskEnd.RAISED
    assert "invalid literal for int() with base 10: 'no number'" in end.detail
    assert "pooling.py" in end.detail


@pytest.mark.parametrize(
    ("fails", "says"), [("raise", "ValueError: no weights"), ("exit", "setup raised SystemExit: 3")]
)
def test_an_actor_that_cannot_be_set_up_fails_the_run_at_once(pooled: Pooled, fails: str, says: str) -> None:
    """With its traceback; not when its time is up."""
    began = time.monotonic()
    with pytest.raises(PoolFailed, match=rf"(?s)serving: an actor cannot be set up\n.*in setup.*{says}"):
        pooled.load(fails)
    assert time.monotonic() - began < SETUP_S / 2


def test_an_actor_that_dies_while_it_is_set_up_is_tried_three_times(pooled: Pooled) -> None:
    """Then the run fails: a hang would cost more."""
    with pytest.raises(
        PoolFailed, match="serving: an actor cannot be set up, 3 times in a row\nthe actor died: killed"
    ):
        pooled.load("kill")


def test_an_actor_whose_setup_does_not_return_fails_the_run(pooled: Pooled, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told from one that waits for a place, and says where it is."""
    monkeypatch.setattr("curate.runtime.pools.SETUP_S", 1.0)
    with pytest.raises(
        PoolFailed, match=r"serving: an actor cannot be set up\nsetup did not return within 1 s, in process \d+ on "
    ):
        pooled.load("hang")


def test_a_pool_whose_last_actor_cannot_be_replaced_fails_the_run(pooled: Pooled) -> None:
    """The tasks that call it would wait for ever."""
    pooled.load("later")
    pooled.backend.launch(0, [(slowly, k, 0.02) for k in range(500)], 1)
    pooled.until(lambda state: state.queued > 0)
    (pid,) = pooled.pids()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(PoolFailed, match=r"(?s)serving: an actor cannot be set up\n.*ValueError: the weights are gone"):
        polled(pooled.backend, ends(1))


def test_a_pool_grows_under_load(pooled: Pooled, tmp_path: Path) -> None:
    """From one to the most it may have; the new one gets calls of tasks that run."""
    hold = tmp_path.parent / f"{tmp_path.name}-hold"
    hold.touch()
    pooled.load(min_size=1, max_size=2)
    # Of two tasks: one has no more calls on their way than the room it knew when it began, which may have been one.
    pooled.backend.launch(0, [(process_while, str(hold))], 1)
    pooled.backend.launch(1, [(slowly, k, 0.05) for k in range(80)], 1)
    pooled.until(lambda state: state.ready == 2)
    hold.unlink()
    _, items = pooled.told(2)
    assert values(items) == list(range(80))
    assert len({pid for _, pid in items[-40:-1]}) == 2
    assert pooled.backend.pools()[0].ready == 2


def test_who_stops_does_not_wait_for_a_pool(pooled: Pooled) -> None:
    """To load a model may take minutes, to get a machine for it an hour: here there is none."""
    stop = [False, False, True]
    pooled.backend.load(
        Conducting(),
        [PoolSpec("elsewhere", Serving(pooled.folder), Resources(custom={"moon": 1.0}))],
        stopped=lambda: stop.pop(0),
    )
    assert stop == []
    assert (pooled.backend.pools()[0].ready, pooled.backend.pools()[0].starting) == (0, 1)


def test_cancelling_ends_the_actor_that_goes_on(pooled: Pooled, tmp_path: Path) -> None:
    """Not at once, as most calls end soon; it is replaced, and what waited behind that call is answered."""
    stuck = tmp_path.parent / f"{tmp_path.name}-stuck"
    stuck.touch()
    pooled.load(max_size=1)
    pooled.backend.launch(7, [(process_while, str(stuck)), (slowly, 0, 0.0)], 1, announce=True)
    begun(stuck)
    pooled.backend.launch(8, [(slowly, k, 0.0) for k in range(5)], 1)
    pooled.backend.cancel(7)
    news = polled(pooled.backend, ends(2))
    assert {one.task: one.end for one in news if isinstance(one, TaskFinished)} == {
        7: TaskEnd.CANCELLED,
        8: TaskEnd.RETURNED,
    }
    (items,) = (one.items for one in news if isinstance(one, Message) and one.task == 8)
    assert values(items) == list(range(5))
    assert len(pooled.pids()) == 2


@pytest.mark.ray(0)
def test_cancelling_ends_the_actor_that_cannot_answer(
    pooled: Pooled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says nothing any more, as the call keeps the interpreter's lock."""
    monkeypatch.setattr("curate.local.pools.CANCEL_S", 1.0)
    for name in ("CANCEL_S", "SILENT_S", "LONG_SILENT_S"):
        monkeypatch.setattr(f"curate.backends.ray.pools.{name}", 1.0)
    stuck = tmp_path.parent / f"{tmp_path.name}-stuck"
    pooled.load(max_size=1)
    pooled.backend.launch(7, [(keep_interpreter, str(stuck)), (slowly, 0, 0.0)], 1, announce=True)
    begun(stuck)
    pooled.backend.cancel(7)
    polled(pooled.backend, ends(1))
    (items,) = pooled.answers([(slowly, k, 0.0) for k in range(5)])
    assert values(items) == list(range(5))
    assert len(pooled.pids()) == 2


def test_who_waits_behind_a_call_of_another_is_held_up(pooled: Pooled, tmp_path: Path) -> None:
    """So its time limit does not run; that of the other one does. Nor is one that is at work in its own process."""
    stuck, own = (tmp_path.parent / f"{tmp_path.name}-{name}" for name in ("stuck", "own"))
    stuck.touch()
    own.touch()
    pooled.load(max_size=1)
    assert pooled.backend.held_up() == frozenset()
    pooled.backend.launch(7, [(process_while, str(stuck))], 1, announce=True)
    begun(stuck)
    pooled.backend.launch(8, [(slowly, 8, 0.0)], 1, announce=True)
    pooled.until(lambda _: pooled.backend.held_up() == {8})
    pooled.backend.launch(9, Waiting(own), 1, announce=True)
    begun(own)
    pooled.until(lambda _: pooled.backend.held_up() == {8})
    stuck.unlink()
    own.unlink()
    pooled.until(lambda _: sum(isinstance(one, TaskFinished) for one in pooled.news) == 3)
    assert pooled.backend.held_up() == frozenset()
    pooled.news.clear()


@pytest.mark.ray(0)
def test_cancelling_lets_an_actor_live_that_is_soon_done(pooled: Pooled) -> None:
    """What waits of the task is dropped."""
    pooled.load(max_size=1, max_in_flight=16)
    pooled.backend.launch(7, [(slowly, k, 1.0) for k in range(1000)], 1, announce=True)
    polled(pooled.backend, lambda news: any(isinstance(one, Started) for one in news))
    pooled.until(lambda state: state.queued > 0)
    pooled.backend.cancel(7)
    polled(pooled.backend, ends(1))
    pooled.news.clear()
    (items,) = pooled.answers([(slowly, 1, 0.0)])
    assert values(items) == [1]
    pooled.until(lambda state: state.busy == 0.0)
    assert len(pooled.pids()) == 1


def test_slots_are_those_beside_the_pools(pooled: Pooled) -> None:
    """Two CPUs hold four tasks of half a CPU, or two and two actors."""
    assert pooled.backend.slots() == 4
    pooled.load(min_size=2)
    assert pooled.backend.slots() == 2
    pooled.backend.load(Calling())
    assert pooled.backend.slots() == 4


def test_pools_that_leave_no_room_for_a_task_are_refused(pooled: Pooled) -> None:
    """With the arithmetic, before anything is started."""
    other = make_backend(pooled.backend.name)
    spec = PoolSpec("embed", Serving(pooled.folder), Resources(num_cpus=1), min_size=2)
    with pytest.raises(
        ConfigError, match=r"embed: 2 actors x 1 CPU \+ 1 task x 1 CPU = 3 CPU, but this machine has 2 CPU; shrink the"
    ):
        other.start(Resources(num_cpus=1), [spec])
    with pytest.raises(ConfigError, match=r"embed: 1 actor x 1 GPU = 1 GPU, but this machine has 0 GPU"):
        other.start(Resources(num_cpus=1), [PoolSpec("embed", Serving(pooled.folder), Resources(0, num_gpus=1))])


def test_actors_are_gone_with_their_program(pooled: Pooled) -> None:
    """The next program has their CPUs."""
    pooled.load(min_size=2)
    pooled.until(lambda state: state.ready == 2)
    pooled.backend.load(Calling())
    assert pooled.backend.pools() == []
    wait_until(lambda: not any(alive(pid) for pid in pooled.pids()), "all actors end")


@pytest.mark.parametrize("backend", WORKERS[1:], indirect=True)
def test_rays_calls_wait_for_no_actor_that_has_no_place(pooled: Pooled, tmp_path: Path) -> None:
    """There are two actors, and room for one, which is replaced: calls that were sent to either go to that one."""
    gate = tmp_path.parent / f"{tmp_path.name}-gate"
    pooled.load(gate=gate, min_size=2, max_size=2, resources=Resources(num_cpus=1.5))
    (first,) = pooled.pids()
    gate.touch()
    os.kill(first, signal.SIGKILL)
    pooled.until(lambda state: state.starting == 2)
    pooled.backend.launch(0, [(slowly, k, 0.0) for k in range(8)], 1, announce=True)
    pooled.news += polled(pooled.backend, lambda news: any(isinstance(one, Started) for one in news))
    gate.unlink()
    (items,) = pooled.told(1)
    assert values(items) == list(range(8))
    assert len(pooled.pids()) == 2


@pytest.mark.parametrize("backend", WORKERS[1:], indirect=True)
def test_rays_boards_are_gone_with_their_program(pooled: Pooled) -> None:
    """The next program has the CPUs, and nothing is left in the cluster's store."""
    import ray
    from ray.experimental import internal_kv

    def boards() -> set[bytes]:
        return set(internal_kv._internal_kv_list("curate-", namespace="curate"))

    # An actor that was killed while it was set up may have had the last word.
    before = boards()
    pooled.load(min_size=2)
    pooled.until(lambda state: state.ready == 2)
    assert len(boards() - before) == 1
    pooled.backend.load(Calling())
    assert boards() <= before
    until_s = time.monotonic() + NEVER_S
    while ray.available_resources().get("CPU") != 2.0 or any(alive(pid) for pid in pooled.pids()):
        assert time.monotonic() < until_s
        time.sleep(0.05)
