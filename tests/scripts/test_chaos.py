"""scripts/chaos plays, and fails when rows or outputs differ, or a run ends as none may."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support import expected
from tests.support.harness import ROOT, Driver, Ended, Place, alive, bad_lines, corpus, corpus_rows, run


def chaos(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "scripts/chaos", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.ray_lane
def test_some_episodes_end_as_undisturbed_runs_do() -> None:
    """On files and in a bucket, inline and on a cluster that loses nodes; which ones, the seed says."""
    ended = chaos("--seed", "2", "--minutes", "0.1")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["episodes"] > 0
    assert sum(told["happened"].values()) > 0


@pytest.mark.slow
def test_some_episodes_on_worker_processes() -> None:
    """The same without Ray: on one backend alone, by its name."""
    ended = chaos("--seed", "2", "--minutes", "0.1", "--backend", "local")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " local " in ended.stdout
    assert " inline " not in ended.stdout


@pytest.mark.slow
def test_what_differs_is_found() -> None:
    """A job whose bytes depend on luck fails its episode, and the command that repeats it is printed."""
    # The disturbed runs drop shorter texts than the undisturbed one, as if their trouble had changed what they do.
    ended = changed_chaos('argv = [*common, "--output"', 'argv = [*common, "--short", "5", "--output"')
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "outputs differ" in ended.stdout
    assert "repeat it with: scripts/chaos --seed 2 --episode 1 --backend inline" in ended.stdout


LOSS = """
from curate.formats.read import jsonl
whole = jsonl.lines_of
jsonl.lines_of = lambda *given: (lines[1:] for lines in whole(*given))
from tests.e2e.jobs.mayhem import Mayhem
Mayhem.main()
"""


@pytest.mark.slow
def test_rows_that_all_runs_lose_are_found(tmp_path: Path) -> None:
    """A reader that leaves out a row does so in the undisturbed run, too: that one is held against the inputs."""
    (tmp_path / "lossy.py").write_text(LOSS)
    ended = changed_chaos('JOB = "tests/e2e/jobs/mayhem.py"', f'JOB = "{tmp_path}/lossy.py"')
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "the undisturbed run itself is wrong: rows differ from those of the corpus" in ended.stdout
    assert "books differ from those of the corpus" in ended.stdout


def changed_chaos(old: str, new: str) -> subprocess.CompletedProcess[str]:
    """Runs an episode of the script with a part of its text replaced."""
    source = (ROOT / "scripts/chaos").read_text()
    assert source.count(old) == 1
    future = "from __future__ import annotations\n"
    changed = source.replace(old, new).replace(future, "")
    program = f"{future}__file__ = {str(ROOT / 'scripts/chaos')!r}\n{changed}"
    return subprocess.run(
        [sys.executable, "-c", program, "--seed", "2", "--episode", "1", "--backend", "inline"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'scripts'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )


class TestExpected:
    @pytest.mark.slow
    def test_what_a_corpus_becomes_is_what_curation_makes_of_it(self, tmp_path: Path) -> None:
        """Rows and books that are worked out without curate are those of an undisturbed run."""
        place, sizes = Place(str(tmp_path / "data")), (5, 30, 60, 1, 70, 250, 0, 7, 9, 11)
        source = place.write("in", corpus(3, sizes))
        job = "tests/e2e/jobs/curation.py"
        ended = run(job, "--json", "--input", source, "--output", f"{place.root}/out", "--backend", "inline")
        wanted = expected.curated((row for one in corpus_rows(3, sizes).values() for row in one), bad_lines(sizes))
        objects = place.objects("out")
        assert expected.differences(wanted, sorted(expected.written(objects)), ended.json["rows"]) == []

    @pytest.mark.parametrize("loss", [0, 1, 3])
    def test_each_difference_is_named(self, loss: int) -> None:
        """A row that is missing, one that is there twice, and another order."""
        made = [{"file": "a", "id": number, "text": str(9 - number)} for number in range(4)]
        wanted, books = expected.in_order(made)
        fewer = wanted[:loss] + wanted[loss + 1 :]
        (said,) = expected.differences((wanted, books), fewer, books)
        assert f"1 of 4 are missing, such as [{wanted[loss]}]; 0 should not be there" in said
        (said,) = expected.differences((wanted, books), [*wanted, wanted[loss]], books)
        assert "0 of 4 are missing" in said
        assert f"1 should not be there, such as [{wanted[loss]}]" in said
        (said,) = expected.differences((wanted, books), wanted[::-1], books)
        assert said == "the 4 rows of the corpus are in another order"
        (said,) = expected.differences((wanted, books), wanted, {**books, "in": 3})
        assert said.startswith("books differ")


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """The script as a module, which sets variables for what it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("PYTHONFAULTHANDLER", "1")
        patch.syspath_prepend(str(ROOT / "scripts"))
        loader = importlib.machinery.SourceFileLoader("chaos", str(ROOT / "scripts/chaos"))
        spec = importlib.util.spec_from_loader("chaos", loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "chaos", module)
        loader.exec_module(module)
        yield module


@pytest.mark.parametrize(
    ("code", "happened", "wrong"),
    [
        (0, (), False),
        (1, ("dead worker",), False),
        *((code, (), True) for code in (2, 3, 70, 130, 137, -2, -6, -7, -9, -11, -15)),
        *((code, ("SIGKILL", "SIGTERM", "SIGINT"), True) for code in (2, 3, 70, 137, -6, -7, -11)),
        (-9, ("dead worker", "SIGTERM", "SIGINT"), True),
        (-9, ("SIGKILL",), False),
        (-15, ("SIGTERM",), False),
        (-2, ("SIGINT",), False),
        (130, ("SIGINT",), False),
        (130, ("SIGTERM",), False),
        (130, ("SIGKILL", "SIGSTOP"), True),
    ],
)
def test_a_run_ends_by_itself_or_by_a_signal_that_it_was_sent(
    script: ModuleType, code: int, happened: tuple[str, ...], wrong: bool
) -> None:
    """Any other end is a crash, whose cause is nothing that the script did."""
    assert script._is_wrong(Ended(code, "", ""), happened) is wrong
    assert script._is_wrong(Ended(code, "", "Traceback (most recent call last)"), happened) is (wrong or code != -2)


KINDS = ("SIGINT", "SIGKILL", "SIGSTOP", "SIGTERM", "dead fork server", "dead worker", "second driver")


@pytest.fixture
def sleeper() -> Iterator[Driver]:
    with Driver(["-c", "import time; time.sleep(600)"]) as driver:
        yield driver


def disturb(script: ModuleType, driver: Driver, folder: Path, *names: str) -> dict[str, int]:
    """Returns what the script says that happened to a driver on worker processes, after trying these kinds."""
    episode = SimpleNamespace(backend="local", cluster=None, problems=[])
    plan = [(0.0, (KINDS.index(name) + 0.5) / len(KINDS)) for name in names]
    over: Future[Any] = Future()
    found: dict[str, int] = dict(script._disturb(episode, driver, [], {}, folder, plan, over))
    return found


def test_what_met_nothing_did_not_happen(script: ModuleType, sleeper: Driver, tmp_path: Path) -> None:
    """No worker and no fork server to kill, and no process any more to send a signal to."""
    assert disturb(script, sleeper, tmp_path, "dead worker", "dead fork server") == {}
    (tmp_path / "trace").write_text(f"a:0 {2**22 + 1}\n")
    assert disturb(script, sleeper, tmp_path, "dead worker") == {}
    sleeper.signal(signal.SIGKILL)
    sleeper.process.wait()
    assert disturb(script, sleeper, tmp_path, "SIGINT", "SIGKILL", "SIGSTOP", "SIGTERM") == {}


def test_what_met_something_happened(script: ModuleType, sleeper: Driver, tmp_path: Path) -> None:
    """Each once."""
    with Driver(["-c", "import time; time.sleep(600)"]) as worker:
        (tmp_path / "trace").write_text(f"a:0 {worker.process.pid}\n")
        assert disturb(script, sleeper, tmp_path, "dead worker", "SIGKILL") == {"dead worker": 1, "SIGKILL": 1}
        assert worker.process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt])
def test_drivers_end_with_the_script(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, raised: type[BaseException]
) -> None:
    """An exception while one runs, as a signal raises it, does not wait for its end."""
    drivers: list[Driver] = []

    def end(_episode: Any, driver: Driver, *_: Any) -> None:
        drivers.append(driver)
        raise raised

    monkeypatch.setattr(script, "_disturb", end)
    episode = SimpleNamespace(backend="inline", rng=random.Random(1))
    with pytest.raises(raised):
        script._disturbed(episode, ["-c", "import time; time.sleep(600)"], {}, tmp_path, calm=True)
    assert not alive(drivers[0].process.pid)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--minutes", "nan"], "nan is not finite"),
        (["--minutes", "inf"], "inf is not finite"),
        (["--minutes", "-1"], "-1.0 is not in the range x>0"),
        (["--minutes", "0"], "0.0 is not in the range x>0"),
        (["--nodes", "0"], "0 is not in the range x>=1"),
        (["--nodes", "2", "--backend", "ray"], "--backend is for episodes"),
        (["--nodes", "2", "--episode", "1"], "--episode is for episodes"),
    ],
)
def test_what_would_play_nothing_or_for_ever_is_refused(script: ModuleType, words: list[str], said: str) -> None:
    """With exit code 2, before anything starts."""
    ended = CliRunner().invoke(script.main, words)
    assert ended.exit_code == 2
    assert said in ended.output
