"""Finds the statements that a piece of code depends on: at the top level of its module, and of what that imports.

Followed are imports of the user's own modules. Those of the standard library and of installed packages are not: the
lock file pins them.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from curate import jobs
from curate.code.closures import is_curates
from curate.code.loaded import changed_since_import
from curate.errors import ConfigError


@dataclass(frozen=True)
class Module:
    """The top level of one file."""

    name: str
    package: str
    """What relative imports start from."""
    defined: dict[str, list[ast.stmt]]
    """The statements that give each name a value."""
    imports: Imports


@dataclass(frozen=True)
class Imports:
    """What import statements bind."""

    modules: dict[str, str] = field(default_factory=dict)
    """Local name, which may be dotted, to module."""
    names: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Local name to module and name in it."""
    stars: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Used:
    """A statement that gives a name of its module a value."""

    module: Module
    statement: ast.stmt
    name: str
    root: str = ""
    """What it is called by where it is used, up to the first dot; empty if a function imports it."""


class Sources:
    """The user's modules as they are on disk, each parsed once."""

    def __init__(self) -> None:
        self._modules: dict[str, Module | None] = {}

    def module(self, name: str) -> Module | None:
        """Returns a module of the user's own; None if it is another, or has no file."""
        if name not in self._modules:
            self._modules[name] = None
            path = _file(name)
            if path is not None and _is_own(name, path):
                self._modules[name] = _parsed(name, path)
        return self._modules[name]

    def used_by(self, module: Module, node: ast.AST) -> Iterator[Used]:
        """Yields the top-level statements that `node`, a part of `module`, names."""
        nodes = list(ast.walk(node))
        local = _imports(nodes, module.package)
        for child in nodes:
            if isinstance(child, ast.Name):
                root = "" if child.id in local.names else child.id
                yield from (replace(one, root=root) for one in self._named(module, local, child.id))
            elif isinstance(child, ast.Attribute) and (dotted := _dotted(child.value)):
                for imports in (local, module.imports):
                    root = "" if imports is local else dotted.partition(".")[0]
                    if dotted in imports.modules:
                        found = self._in(imports.modules[dotted], child.attr)
                    elif dotted in imports.names:  # `from package import module`
                        found = self._in(".".join(imports.names[dotted]), child.attr)
                    else:
                        continue
                    yield from (replace(one, root=root) for one in found)

    def _named(self, module: Module, local: Imports, name: str) -> Iterator[Used]:
        if name in local.names:
            yield from self._in(*local.names[name])
        elif name in module.defined:
            yield from (Used(module, statement, name) for statement in module.defined[name])
        elif name in module.imports.names:
            yield from self._in(*module.imports.names[name])
        elif not hasattr(builtins, name):
            for star in (*local.stars, *module.imports.stars):
                yield from self._in(star, name)

    def _in(self, module_name: str, name: str) -> Iterator[Used]:
        module = self.module(module_name)
        if module is not None:
            yield from self._named(module, Imports(), name)


def _parsed(name: str, path: Path) -> Module | None:
    try:
        data = path.read_bytes()
        # What runs as `python -m package.job` is called __main__, and knows in which package it lies.
        known = getattr(sys.modules.get(name), "__package__", None)
        module = _top(name, known or (name if path.name == "__init__.py" else name.rpartition(".")[0]), data)
    except (OSError, SyntaxError, ValueError):
        return None
    if (loaded := sys.modules.get(name)) is not None and (changed := changed_since_import(loaded, str(path), data)):
        raise ConfigError(
            f"{path} has changed since this process imported it: {changed} is another function there now. Rows would "
            "be made by the old code, and recorded as those of the new: start the program again, or importlib.reload "
            "it and make again what uses it"
        )
    return module


@lru_cache(maxsize=16)
def _top(name: str, package: str, data: bytes) -> Module:
    """Returns the top level of a file; of bytes, as the file says itself how it is encoded."""
    top = ast.parse(data).body
    defined: dict[str, list[ast.stmt]] = {}
    for statement in top:
        for one in names_defined(statement):
            defined.setdefault(one, []).append(statement)
    return Module(name, package, defined, _imports((node for one in top for node in top_level(one)), package))


def top_level(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yields a statement and those inside of it that run with it: not what is in functions and classes."""
    yield statement
    if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        for child in ast.iter_child_nodes(statement):
            if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                yield from top_level(child)  # type: ignore[arg-type]


def names_defined(statement: ast.stmt) -> set[str]:
    """Returns the names that a statement gives values, and those inside of it that run with it."""
    return {name for node in top_level(statement) for name in names_assigned(node)}


def names_assigned(node: ast.AST) -> set[str]:
    """Returns the names that a statement alone gives values."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        # Not only names: `TABLE["x"] = 1` gives TABLE another value.
        targets = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.For):
        targets = [node.target]
    elif isinstance(node, ast.With):
        targets = [item.optional_vars for item in node.items if isinstance(item.optional_vars, ast.Name)]
    return {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}


def _imports(nodes: Iterable[ast.AST], package: str) -> Imports:
    found = Imports()
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.modules[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            for alias in node.names:
                if alias.name == "*":
                    found.stars.append(base)
                else:
                    found.names[alias.asname or alias.name] = (base, alias.name)
    return found


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)):
        return f"{before}.{node.attr}"
    return ""


def _file(name: str) -> Path | None:
    module = sys.modules.get(name)
    if module is not None:
        path = getattr(module, "__file__", None)
    else:
        spec = _spec(name)
        path = spec.origin if spec is not None and spec.has_location else None
    return Path(path) if path and path.endswith(".py") and Path(path).exists() else None


def _spec(name: str) -> ModuleSpec | None:
    """Returns where a module would be imported from. Imports nothing, where `find_spec` imports what it lies in: a
    driver that only hashes a job would load the job's libraries."""
    package, _, _ = name.rpartition(".")
    try:
        if not package or package in sys.modules:
            return importlib.util.find_spec(name)
        above = _spec(package)
        if above is None or above.submodule_search_locations is None:
            return None
        return PathFinder.find_spec(name, list(above.submodule_search_locations))
    except (ImportError, ValueError, AttributeError):
        return None


def _is_own(name: str, path: Path) -> bool:
    if is_curates(name):
        return False
    # A job that curate brings is one job, in a checkout and installed.
    real = path.resolve()
    return real.is_relative_to(jobs.FOLDER.resolve()) or not any(map(real.is_relative_to, _installed()))


@lru_cache(maxsize=1)
def _installed() -> tuple[Path, ...]:
    folders = {sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    return tuple(Path(folder).resolve() for folder in folders)
