"""Workers on this machine, without Ray, that die, hang or run out of memory, under a job run as users run it."""

from __future__ import annotations

import os
import platform
import random
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from curate.local import machine
from curate.observe.failures import read_failures
from tests.support.harness import (
    Driver,
    Ended,
    Place,
    balanced,
    check_same,
    corpus,
    executions,
    marked,
    run,
    totals,
    workers,
)

pytestmark = pytest.mark.slow
TROUBLE = "tests/e2e/jobs/trouble.py"
POOLED = "tests/e2e/jobs/pooled.py"
FILES = corpus(sizes=(60, 30, 60, 40, 70, 10, 45, 20))
NAMES = sorted(FILES)
TIMEOUT_S = 8.0
"""Less than after which what is late is begun once more elsewhere, which would end the run without a time limit."""
MIB = 1 << 20
KILLS = 50
GONE_S = 2.0
"""How long after its driver was killed a process of a run may be there, at most."""


@dataclass
class Work:
    """A job over the files of this module, and the same job undisturbed."""

    place: Place
    source: str
    trace: Path

    def run(self, *trouble: str, **env: str) -> Ended:
        own = ["--input", self.source, "--output", f"{self.place.root}/out", "--once-dir", str(self.trace.parent)]
        return run(TROUBLE, "--json", "--backend", "local", *own, "--trace", str(self.trace), *trouble, env=env)

    def failure(self, kind: str) -> dict[str, Any]:
        """Returns what the ledger says of the one try that failed, of that kind, at a known place."""
        (group,) = read_failures(f"{self.place.root}/out").all_groups()
        assert group.kinds == {kind: 1}
        assert group.example["node"] == platform.node()
        assert group.example["pid"] in workers(self.trace)
        return dict(group.example)

    def check(self, ended: Ended, again: str) -> None:
        """Checks that the output and all that is counted are those of a job in which nothing happened; but that one
        shard was tried twice."""
        assert ended.code == 0, ended.err
        whole = run(TROUBLE, "--backend", "inline", "--json", "--input", self.source, "--output", self.whole)
        assert whole.code == 0, whole.err
        assert totals(ended.json) == totals(whole.json)
        assert balanced(ended.json["rows"])
        check_same(self.place.objects("out"), self.place.objects("whole"))
        assert ended.json["tasks"]["attempts"] == len(NAMES)
        begun = {name.split(":")[0]: count for name, count in executions(self.trace).items()}
        assert begun == dict.fromkeys(NAMES[1:], 1) | {again: 2}

    @property
    def whole(self) -> str:
        return f"{self.place.root}/whole"


@pytest.fixture
def work(local: Place, tmp_path: Path) -> Work:
    made = Work(local, local.write("in", FILES), tmp_path / "trace")
    # What follows needs no task to find out the schema.
    assert made.run("--limit", "1").code == 0
    made.trace.unlink()
    return made


def test_a_worker_is_killed_in_a_bundle(work: Work) -> None:
    """The shard that it died of runs again; those before and behind it in the task run once."""
    work.check(work.run("--kills", NAMES[3]), again=NAMES[3])
    assert work.failure("crashed")["error"] == "crashed: the worker died: killed by SIGKILL"


def test_a_task_hangs(work: Work) -> None:
    """Once the shard has taken `task_timeout_s`, its worker is killed, and it runs again."""
    began_s = time.monotonic()
    ended = work.run("--hangs", NAMES[5], "--task-timeout-s", str(TIMEOUT_S))
    assert time.monotonic() - began_s > TIMEOUT_S
    work.check(ended, again=NAMES[5])
    work.failure("timed_out")


def test_a_task_leaks_until_it_is_killed(work: Work) -> None:
    """The shard alone is launched again; the ledger says how much its worker held, and what there was."""
    limit = 800 * MIB
    ended = work.run("--leaks", NAMES[2], **{machine.MEMORY: str(limit)})
    work.check(ended, again=NAMES[2])
    failure = work.failure("out_of_memory")
    says = r"out of memory: the worker used [\d.]+ MiB when its node ran out of memory"
    assert re.fullmatch(says, failure["error"])
    assert f"of {limit:,} bytes" in failure["traceback"]
    assert 300 * MIB < failure["peak_bytes"] < 3 * limit


def test_no_file_is_left_behind(work: Work, tmp_path: Path) -> None:
    """Nothing of a run that ended stays among the temporaries, nor in shared memory."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    assert work.run(TMPDIR=str(folder)).code == 0
    deadline = time.monotonic() + 600
    while list(folder.glob("curate-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [path for path in folder.iterdir() if path.name != f"curate-{os.geteuid()}"] == []


@pytest.mark.nightly
def test_nothing_is_there_two_seconds_after_a_kill(local: Place) -> None:
    """Fifty drivers, each killed at a random moment of a run with a pool: while it starts, works or ends. It prints how
    long the last of their processes lived: an ordinary test waits for the event (tests/local/test_local.py)."""
    source, draw, took_s = local.write("in", corpus(seed=5, sizes=(200,) * 12)), random.Random(1), []
    for number in range(KILLS):
        argv = [POOLED, "--input", source, "--output", f"{local.root}/{number}", "--backend", "local"]
        with Driver([*argv, "--pause-s", "0.05", "--actor-cpus", "0", "--actors", "2"]) as driver:
            time.sleep(draw.uniform(0.0, 4.0))
            driver.signal(signal.SIGKILL)
            killed_s = time.monotonic()
            while left := marked(driver.mark):
                assert time.monotonic() < killed_s + 60, left
            took_s.append(time.monotonic() - killed_s)
    took_s.sort()
    print(f"gone after {took_s[KILLS // 2]:.2f} s (median of {KILLS}), {took_s[-1]:.2f} s at most")  # noqa: T201
    assert took_s[-1] < GONE_S, took_s
