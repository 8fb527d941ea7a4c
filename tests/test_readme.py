"""The README says what is so: its snippets run, its figures of the demo are those of the demo, its tests exist."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
VARIES = re.compile(r"complete in|run +20|output |^toxicity +complete|█")
"""Lines of the console that hold times, paths, or a bar as wide as the terminal."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the README's commands can be typed, with the demo's corpus."""
    home = tmp_path_factory.mktemp("readme")
    (home / "jobs").symlink_to(ROOT / "jobs")
    run(home, sys.executable, str(ROOT / "scripts/corpus"), "--output", "demo/reddit")
    return home


def run(home: Path, *command: str) -> str:
    environ = {**os.environ, "CURATE_HOME": str(home / "home"), "COLUMNS": "100"}
    found = subprocess.run(command, cwd=home, env=environ, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_the_job_and_its_three_line_test_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job of the README, saved as a module, passes the README's own tests of it."""
    job, *checks = blocks("python")
    assert len(checks) == 5
    (home / "shouting.py").write_text(job)
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(str(home))
    import shouting  # type: ignore[import-not-found]

    for check in checks:
        exec(check, {"Shouting": shouting.Shouting})


def test_the_job_of_several_steps_runs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its books say what each step dropped."""
    (job,) = (block for block in blocks("python") if "class Words" in block)
    (home / "words.py").write_text(job)
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(str(home))
    import words  # type: ignore[import-not-found]

    books = words.Words().run(input="demo/reddit", output="out/words", backend="inline").books
    assert books.rows_out
    assert books.dropped.keys() == {"short", "few words"}


def test_the_job_is_a_program(home: Path) -> None:
    """The same module runs from the command line, with its parameter as an option."""
    (home / "shouting.py").write_text(blocks("python")[0])
    options = ["--text-column", "body", "--threshold", "0.9", "--backend", "inline"]
    printed = run(home, sys.executable, "shouting.py", "-i", "demo/reddit", "-o", "out/program", *options)
    assert "24 of 24 done" in printed


def test_the_console_shows_what_is_printed(home: Path) -> None:
    """Every line under a command is printed by that command, but for what differs from run to run."""
    (console,) = blocks("console")
    commands = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", console, re.MULTILINE)
    assert [command.split()[0] for command, _ in commands] == ["python", "curate"]
    for command, shown in commands:
        words = command.split()
        words[0] = sys.executable if words[0] == "python" else str(Path(sys.executable).parent / "curate")
        if words[0] == sys.executable:
            words += ["--backend", "inline"]
        printed = [line.rstrip() for line in run(home, *words).splitlines()]
        for line in shown.splitlines():
            assert VARIES.search(line) or line.rstrip() in printed, f"{command} does not print {line!r}"


def test_every_promise_names_a_test_that_exists() -> None:
    """Each `path::name` in the README is a test function in that file."""
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", README)
    assert len(named) >= 10
    for path, name in named:
        functions = {node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if hasattr(node, "name")}
        assert name in functions, f"{path} has no {name}"


def test_the_bands_are_the_folder_listing() -> None:
    """The rooms in the README are the packages of curate, and the layers of the import contract, in one order."""
    section = README.partition("\n## How it is built\n")[2].partition("\n## ")[0]
    bands = re.findall(r"^\| [a-z ]+ \| (`[^|]*) \|", section, re.MULTILINE)
    listed = [name for band in bands for name in re.findall(r"`(\w+)`", band)]
    rooms = {path.parent.name for path in (ROOT / "curate").glob("*/__init__.py")}
    files = {path.stem for path in (ROOT / "curate").glob("*.py")} - {"__init__"}
    assert set(listed) == rooms | files
    contract = re.search(r"layers = \[\n(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL)
    assert contract is not None
    assert re.findall(r'"(\w+)"', contract[1]) == listed
