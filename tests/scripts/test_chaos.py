"""scripts/chaos plays, and fails when outputs differ."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support.harness import ROOT


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
    ended = subprocess.run(
        [sys.executable, "-c", _with_other_parameter(), "--seed", "2", "--episode", "1", "--backend", "inline"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "scripts"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "outputs differ" in ended.stdout
    assert "repeat it with: scripts/chaos --seed 2 --episode 1 --backend inline" in ended.stdout


def _with_other_parameter() -> str:
    source = (ROOT / "scripts/chaos").read_text()
    changed = source.replace('argv = [*common, "--output"', 'argv = [*common, "--short", "5", "--output"')
    assert changed != source
    future = "from __future__ import annotations\n"
    return f"{future}__file__ = {str(ROOT / 'scripts/chaos')!r}\n" + changed.replace(future, "")
