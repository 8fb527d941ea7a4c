"""Cluster files with one thing wrong."""

from __future__ import annotations

from pathlib import Path

from scripts.clusters.check import Expected, check_file
from scripts.clusters.lock import read_lock
from scripts.clusters.parameters import read_parameters
from scripts.clusters.problems import ROOT, Problem
from scripts.clusters.render import INFRA


def expected() -> Expected:
    """Returns what the repository's files are checked against."""
    parameters, problems = read_parameters()
    assert parameters is not None, problems
    return Expected(parameters, read_lock(ROOT / "requirements.lock"))


def edited(folder: Path, name: str, old: str, new: str) -> tuple[Path, int]:
    """Writes a file of infra/ with one text replaced, and returns it and the line of the replacement."""
    text = (INFRA / name).read_text()
    assert text.count(old) >= 1, f"{old!r} is not in {name}"
    path = folder / name
    path.write_text(text.replace(old, new, 1))
    return path, text[: text.index(old)].count("\n") + 1


def problems_of(folder: Path, name: str, old: str, new: str) -> tuple[list[Problem], int]:
    """Returns what the check finds in a file of infra/ with one text replaced, and the line of the replacement."""
    path, line = edited(folder, name, old, new)
    return check_file(path, expected()), line
