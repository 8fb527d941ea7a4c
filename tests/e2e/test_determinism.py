"""The same bytes and names whatever the parallelism, the bundling, the order of completion, the failures."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from curate.backends.inline import InlineBackend
from curate.runtime.protocol import Message, TaskFinished
from tests.support.fakes import FakeClock
from tests.support.harness import CURATION, Place, check_same, corpus, run
from tests.support.workbench import Bench, complete

FILES = corpus(seed=5, sizes=(120, 3, 60, 0, 200, 1, 75, 40, 90, 10, 30, 300))


class Shuffled(InlineBackend):
    """An inline backend that works on a random one of its tasks at each poll: shards end in any order."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._rng = random.Random(seed)

    def poll(self, timeout_s: float) -> list[Message | TaskFinished]:
        self._queue.rotate(self._rng.randrange(max(1, len(self._queue))))
        return super().poll(timeout_s)


@pytest.mark.slow
@pytest.mark.parametrize("parameters", [{}, {"format": "jsonl"}, {"format": "jsonl", "codec": "gzip"}], ids=str)
def test_nothing_about_a_run_shows_in_its_outputs(
    local: Place, tmp_path: Path, parameters: dict[str, Any], clock: FakeClock
) -> None:
    """One shard a task or many, one task in flight or all, in order or not, with failures or without."""
    bench = Bench(local, tmp_path / "trace", local.write("in", FILES), parameters | {"shard_bytes": 4000})
    plain = complete(bench.run(output="plain"))
    assert plain.total > len(FILES), "the largest inputs should be split"
    expected = local.objects("plain")
    names = iter(range(1000))

    def check(**options: Any) -> None:
        name = f"out-{next(names)}"
        complete(bench.run(output=name, clock=clock, **options))
        check_same(local.objects(name), expected, options)

    check(target_task_seconds=0.001)
    check(max_in_flight=1)
    check(max_in_flight=1, target_task_seconds=0.001)
    for seed in range(5):
        check(backend=Shuffled(seed), max_in_flight=(1, 2, 5, 16, 64)[seed])
    bench.parameters |= {"once": str(tmp_path / "once")}
    check(backend=Shuffled(99))
    assert (tmp_path / "once").exists()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["local", pytest.param("ray", marks=[pytest.mark.ray_lane, pytest.mark.nightly])])
def test_workers_make_what_the_inline_backend_makes(
    backend: str, local: Place, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """With shards bundled and alone, and with a worker that is killed on the way."""
    if backend == "ray":
        request.getfixturevalue("on_ray")
    source = local.write("in", FILES)
    common = (CURATION, "--json", "--shard-bytes", "4000", "--input", source)
    assert run(*common, "--backend", "inline", "--output", f"{local.root}/inline").code == 0
    expected = local.objects("inline")
    for name, options in {
        "bundled": (),
        "alone": ("--target-task-seconds", "0.001", "--max-in-flight", "3"),
        "killed": ("--once", str(tmp_path / "once"), "--fault", "kill"),
    }.items():
        ended = run(*common, "--backend", backend, "--output", f"{local.root}/{name}", *options)
        assert ended.code == 0, ended.err
        check_same(local.objects(name), expected, name)
