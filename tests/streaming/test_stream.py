"""Streams of blocks from other processes: workers that are killed, consumers that leave, memory on a long stream."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from curate.errors import StreamFailed
from curate.runtime.protocol import BlockReady, Resources, TaskFinished
from curate.streaming.engine import stream_blocks
from curate.units import MIB
from tests.backends.polling import WORKERS
from tests.streaming.streaming import Blocks, OneAndNoMore, Unsendable
from tests.support.fakes import NEVER_S
from tests.support.harness import alive
from tests.support.ray_head import own_ray

STORE_BYTES = 100 * MIB


@pytest.fixture(scope="module", params=WORKERS)
def machine(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A backend with two CPUs; on Ray, a cluster of this process alone, with a small object store."""
    if request.param == "local":
        from curate.local.backend import LocalBackend

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("curate.local.machine.cpus", lambda: 2.0)
            backend: Any = LocalBackend()
            backend.start(Resources())
            yield backend
            backend.close()
        return
    from curate.backends.ray.backend import RayBackend

    with own_ray(2, object_store_memory=STORE_BYTES):
        backend = RayBackend()
        backend.start(Resources())
        yield backend
        backend.close()


def places(tables: list[pa.Table]) -> list[tuple[int, int]]:
    return [(table["piece"][0].as_py(), table["block"][0].as_py()) for table in tables]


def in_order(pieces: int, blocks: int) -> list[tuple[int, int]]:
    return [(piece, block) for piece in range(pieces) for block in range(blocks)]


def until(true: Callable[[], bool], within_s: float = NEVER_S) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def store_in_use(machine: Any) -> float:
    """Returns the bytes of blocks that are stored."""
    if machine.name == "local":
        paths = [path for folder in machine._processes.folders for path in Path(folder).iterdir()]
        # Beside them: programs, and the lock of the folder.
        return float(sum(path.stat().st_size for path in paths if re.fullmatch(r"\d+-\d+", path.name)))
    import ray

    return STORE_BYTES - ray.available_resources().get("object_store_memory", 0.0)


def is_free(machine: Any) -> bool:
    """Returns whether nothing is stored, and no task runs."""
    if machine.name == "local":
        return not machine._tasks and not store_in_use(machine)
    import ray

    return store_in_use(machine) < MIB and ray.available_resources().get("CPU") == 2.0


@pytest.mark.slow
def test_the_first_block_comes_while_the_source_is_read(machine: Any, tmp_path: Path) -> None:
    """The program stands still until its block is taken; then all blocks come, in order."""
    stream = stream_blocks(Blocks(tmp_path, 10_000), [(i, 20) for i in range(6)], machine, budget_bytes=4 * MIB)
    tables = [next(stream)]
    assert len(list(tmp_path.iterdir())) < 120
    tables += stream
    assert places(tables) == in_order(6, 20)
    assert len(list(tmp_path.iterdir())) == 120


@pytest.mark.slow
def test_a_worker_is_killed(machine: Any, tmp_path: Path) -> None:
    """Its piece runs again from the block that is needed: the same blocks, each once, and what was taken is kept."""
    stream = stream_blocks(Blocks(tmp_path, 10_000), [(i, 30) for i in range(4)], machine, budget_bytes=2 * MIB)
    tables: list[pa.Table] = []
    killed: set[int] = set()
    for table in stream:
        tables.append(table)
        if len(tables) in (5, 50):
            written = [path for path in tmp_path.iterdir() if path.stat().st_size]
            pid = int(max(written, key=lambda path: path.stat().st_mtime_ns).read_text())
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
    assert places(tables) == in_order(4, 30)
    assert len(killed) == 2


@pytest.mark.slow
def test_a_program_that_always_kills_its_worker(machine: Any, tmp_path: Path) -> None:
    """Three times; the consumer gets what came before, then the error: no hang."""
    got: list[pa.Table] = []
    with pytest.raises(StreamFailed, match=r"^\(1, -1\) failed 3 times: crashed: the worker died"):
        got.extend(stream_blocks(Blocks(tmp_path, 10), [(0, 2), (1, -1), (2, 2)], machine, budget_bytes=MIB))
    assert places(got) == in_order(1, 2)


@pytest.mark.slow
def test_an_error_of_user_code_has_its_type_and_the_workers_traceback(machine: Any, tmp_path: Path) -> None:
    """After the blocks before it. One that cannot be pickled comes as a StreamFailed with the same text."""
    got: list[pa.Table] = []
    with pytest.raises(ZeroDivisionError) as caught:
        got.extend(stream_blocks(Blocks(tmp_path, 10), [(0, 2), (1, 0)], machine, budget_bytes=MIB))
    assert places(got) == in_order(1, 2)
    (note,) = caught.value.__notes__
    assert "In process" in note
    assert "in run" in note
    with pytest.raises(StreamFailed, match=r"(?s)Unsendable: a lock.*Traceback.*in run"):
        list(stream_blocks(Blocks(tmp_path, 10, Unsendable), [(1, 0)], machine, budget_bytes=MIB))


@pytest.mark.slow
def test_who_stops_early_frees_tasks_and_memory(machine: Any, tmp_path: Path) -> None:
    """The slots and the object store are as free as before, and nothing more is made."""
    until(lambda: is_free(machine))
    pieces = [(i, 1000) for i in range(100)]
    taken = 0
    for taken, _ in enumerate(stream_blocks(Blocks(tmp_path, 100_000), pieces, machine, budget_bytes=30 * MIB), 1):
        # Until blocks of the second piece wait for their turn: its worker may have to be started first.
        if taken > 20 and store_in_use(machine) > MIB:
            break
        time.sleep(0.05)
    assert 20 < taken < 1000
    until(lambda: is_free(machine))
    assert len(list(tmp_path.iterdir())) < taken + 80


@pytest.mark.ray(0)
@pytest.mark.slow
def test_memory_stays_flat_on_a_long_stream(machine: Any, tmp_path: Path) -> None:
    """Two gigabytes, a consumer slower than the tasks: the object store holds the budget and a block for each task."""
    rows = 250_000
    pieces = [(i, 25) for i in range(20)]
    most, count = 0.0, 0
    for count, table in enumerate(stream_blocks(Blocks(tmp_path, rows), pieces, machine, budget_bytes=30 * MIB), 1):
        assert table.nbytes == rows * 16
        del table
        if count % 20 == 0:
            time.sleep(0.2)
            most = max(most, store_in_use(machine))
    assert count == 500
    assert 4 * MIB < most <= 30 * MIB + 4 * rows * 16


@pytest.mark.parametrize("machine", WORKERS[1:], indirect=True)
def test_rays_workers_outlive_a_consumer_that_stops(
    machine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time after time: none is killed, so none takes the task with it that Ray gave it meanwhile."""
    # None is late, however slow the machine is.
    monkeypatch.setattr("curate.backends.ray.leaving.NEXT_BLOCK_S", NEVER_S)
    monkeypatch.setattr("curate.backends.ray.leaving.AGAIN_S", NEVER_S)
    for n in range(10):
        folder = tmp_path / str(n)
        folder.mkdir()
        stream = stream_blocks(Blocks(folder, 1000), [(i, 3) for i in range(6)], machine, budget_bytes=MIB)
        assert places([next(stream)]) == [(0, 0)]
        stream.close()
    pids = {one.read_text() for one in tmp_path.glob("*/*")}
    assert all(alive(int(pid)) for pid in pids)


@pytest.mark.ray(1)
@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize("at_once", [False, True])
def test_what_is_cancelled_ends_whenever_that_is(machine: Any, tmp_path: Path, at_once: bool) -> None:
    """Before a worker has it, while one is given it, in the middle of a block, between two and at its end: Ray loses
    some of these, and their CPUs with them."""
    rng = random.Random(7)
    machine.load(Blocks(tmp_path, 10))
    for first in range(0, 80 if at_once and machine.name == "ray" else 400, 4):
        tasks = list(range(first, first + 4))
        for task in tasks:
            machine.launch(task, (task, 5), 1, stream=True)
        ended: set[int] = set()

        def hear(ended: set[int] = ended) -> None:
            for news in machine.poll(0.001):
                if isinstance(news, BlockReady):
                    machine.take(news.task)
                if isinstance(news, TaskFinished):
                    ended.add(news.task)

        for _ in range(rng.randrange(8)):
            hear()
        if at_once:
            machine.cancel()
            continue
        for task in rng.sample(tasks, 4):
            if task not in ended:
                machine.cancel(task)
        until(lambda: hear() or ended == set(tasks))  # noqa: B023 - called before the next round
    until(lambda: is_free(machine))


@pytest.mark.slow
def test_a_task_that_makes_no_other_block_is_killed(
    machine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer has left, and does not wait for long; Ray may be left at once."""
    if machine.name == "ray":
        monkeypatch.setattr("curate.backends.ray.leaving.NEXT_BLOCK_S", 0.2)
    stream = stream_blocks(OneAndNoMore(tmp_path), [0, 1], machine, budget_bytes=MIB)
    next(stream)
    # A file is there before what it says.
    until(lambda: len({one.read_text() for one in tmp_path.iterdir()} - {""}) == 2)
    pids = [one.read_text() for one in tmp_path.iterdir()]
    stream.close()
    until(lambda: not any(alive(int(pid)) for pid in pids))
    assert places(list(stream_blocks(Blocks(tmp_path, 10), [(0, 1)], machine, budget_bytes=MIB))) == [(0, 0)]
