"""Checks a step's parameters against the file of its job, which is read as text: a status imports no job."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import curate
from curate import jobs
from curate.chain.steps import FOR_ONE_RUN, ONE_RUN, STEP_OPTIONS, Step, parameters_of
from curate.errors import did_you_mean

_BASES = {"Job": (), "FileJob": (), "TextJob": ("job/shapes.py",)}
"""Classes that jobs derive from, and the files of curate that have parameters of theirs."""
_KINDS: Mapping[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}
_OPEN = "?"
"""A type that cannot be told, of which nothing is refused."""


def problem_of(step: Step) -> str:
    """Returns why the parameters of a step are refused when it is run, as far as its job's file says; else nothing.

    What cannot be told from the text is not refused: a class from another file, a type that is more than a name.
    """
    own = parameters_of(step)
    for name in own:
        if name in ONE_RUN:
            return FOR_ONE_RUN.format(name)
    if not own or not isinstance(step.job, str):
        return ""
    known = declared(step.job)
    if known is None:
        return ""
    # Late: it brings all of jobs, though none of those that are run.
    from curate.job.settings import TUNABLE

    names = sorted({*known, *TUNABLE})
    for name, value in own.items():
        if name not in names:
            near = did_you_mean(name, [*names, *STEP_OPTIONS, "input", "input_from", "output"])
            return f"{step.job} has no parameter {name!r}{near}; it has: {', '.join(names)}"
        kinds = _KINDS.get(known.get(name, ""))
        if kinds and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
            return f"{name} is {value!r} ({type(value).__name__}), expected {known[name]}"
    return ""


def declared(job: str) -> dict[str, str] | None:
    """Returns the parameters that a job declares, with their types as text; None if that cannot be told."""
    path, colon, wanted = job.rpartition(":")
    if not colon or not path.endswith(".py"):
        path, wanted = job, ""
    file = Path(path).expanduser() if path.endswith(".py") or "/" in path else jobs.FOLDER / f"{path}.py"
    classes = _classes(file)
    if classes is None:
        return None
    bases = {base for one in classes.values() for base in _bases(one)}
    leaves = [wanted] if wanted else [name for name in classes if name not in bases and _is_job(name, classes)]
    if len(leaves) != 1 or leaves[0] not in classes:
        return None
    return _parameters(leaves[0], classes)


def _classes(file: Path) -> dict[str, ast.ClassDef] | None:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    return {one.name: one for one in tree.body if isinstance(one, ast.ClassDef)}


def _bases(one: ast.ClassDef) -> Iterator[str]:
    """Yields the names of the classes that one derives from; `?` for what is no name."""
    for base in one.bases:
        yield base.id if isinstance(base, ast.Name) else base.attr if isinstance(base, ast.Attribute) else "?"


def _is_job(name: str, classes: Mapping[str, ast.ClassDef], depth: int = 0) -> bool:
    if name in _BASES and name not in classes:
        return True
    return (
        name in classes and depth < len(classes) and any(_is_job(b, classes, depth + 1) for b in _bases(classes[name]))
    )


def _parameters(name: str, classes: Mapping[str, ast.ClassDef], depth: int = 0) -> dict[str, str] | None:
    """Returns the parameters of a class and of those that it derives from, with their types; None if not all of these
    are known. Two of its bases that give one another type leave it open: which of them decides is not told here."""
    found: dict[str, str] = {}
    if name not in classes:
        if name not in _BASES:
            return None
        for file in _BASES[name]:
            there = _classes(Path(curate.__file__).parent / file) or {}
            found |= _own(there[name])
        return found
    for base in _bases(classes[name]):
        inherited = None if depth > len(classes) else _parameters(base, classes, depth + 1)
        if inherited is None:
            return None
        found |= {one: kind if found.get(one, kind) == kind else _OPEN for one, kind in inherited.items()}
    return found | _own(classes[name])


def _own(one: ast.ClassDef) -> dict[str, str]:
    """Returns the parameters that a class itself declares."""
    found: dict[str, str] = {}
    for line in one.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            kind = ast.unparse(line.annotation)
            if not line.target.id.startswith("_") and "ClassVar" not in kind:
                found[line.target.id] = kind
    return found
