"""Finds the statements that a piece of code depends on: at the top level of its module, and of what that imports.

Of a statement that has others in it, as a main block, those count that decide on a name which is used, with the
conditions around them (see `curate.code.syntax.parts`): what a program prints there makes no row.
Followed are imports of the user's own modules. Those of the standard library and of installed packages are not: the
lock file pins them.
"""

from __future__ import annotations

import ast
import importlib.util
import site
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from itertools import accumulate, chain
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from curate import jobs
from curate.code.closures import is_curates, module_of
from curate.code.kinds import is_a, loaded
from curate.code.loaded import changed_since_import
from curate.code.names import CALLED, WHOLE, names_in, own_names
from curate.code.syntax import definition, has_line, has_parts, part_at, parts, top_level
from curate.dataclass import dataclass, field, replace
from curate.errors import ConfigError


@dataclass(frozen=True)
class Module:
    """The top level of one file."""

    name: str
    package: str
    """What relative imports start from."""
    defined: dict[str, list[ast.stmt]]
    """The statements that give each name a value, of those that are in others only what decides on it."""
    imports: Imports
    body: list[ast.stmt] = field(default_factory=list)
    """All of its statements, in order."""
    path: str = ""

    def around(self, line: int) -> ast.stmt | None:
        """Returns the statement that a line is in, of those that are in others with what decides on whether it runs."""
        return next((part_at(one, line) for one in self.body if has_line(one, line)), None)

    def binds(self, name: str) -> bool:
        """Returns whether a statement of its top level gives a name a value."""
        return name in self.defined or name in self.imports.names or name in self.imports.modules


@dataclass(frozen=True)
class Imports:
    """What import statements bind. Several may bind one name, as where there is a faster one on some machines."""

    modules: dict[str, list[str]] = field(default_factory=dict)
    """Local name, which may be dotted, to modules."""
    names: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Local name to modules and names in them."""
    stars: list[str] = field(default_factory=list)

    def called(self, name: str) -> list[str]:
        """Returns what a local name stands for, in full.

        >>> Imports({"p": ["p"]}, {"g": [("fast", "g"), ("slow", "g")]}).called("g")
        ['fast.g', 'slow.g']
        """
        return [".".join(one) for one in self.names.get(name, ())] or self.modules.get(name, [])

    def joined(self, others: Imports) -> Imports:
        """Returns these with others, which hide those of their names."""
        return Imports({**self.modules, **others.modules}, {**self.names, **others.names}, [*self.stars, *others.stars])


@dataclass(frozen=True)
class Used:
    """A statement that gives a name of its module a value."""

    module: Module
    statement: ast.stmt
    name: str
    root: str = ""
    """What it is called by where it is used, up to the first dot; empty if a function imports it."""

    @property
    def place(self) -> tuple[str, int, str]:
        """Returns where it lies: a module may be there by two names, of which one is `__main__`. Of a statement with
        others in it, as an `if`, there are parts by name."""
        return self.module.path, self.statement.lineno, self.name if has_parts(self.statement) else ""


class Sources:
    """The user's modules as they are on disk, each parsed once."""

    def __init__(self) -> None:
        self._modules: dict[str, Module | None] = {}
        self._sought: set[tuple[str, str]] = set()

    def module(self, name: str) -> Module | None:
        """Returns a module of the user's own; None if it is another, or has no file."""
        if name not in self._modules:
            self._modules[name] = None
            path = _file(name)
            if path is not None and _is_own(name, path):
                self._modules[name] = _parsed(name, path)
        return self._modules[name]

    def of(self, code: FunctionType | type) -> Used | None:
        """Returns the statement of the user's own modules that defines a class, or that a function is in."""
        lies_in = module_of(code) if isinstance(code, FunctionType) else code.__module__
        module = self.module(lies_in) if lies_in else None
        if module is None:
            return None
        found: ast.stmt | None
        if isinstance(code, type):
            name = code.__qualname__.partition(".")[0]
            defined = module.defined.get(name, [])
            found = next((one for one in defined if isinstance(one, ast.ClassDef | ast.FunctionDef)), None)
        else:
            name = code.__code__.co_name
            # What `exec` made, as a dataclass does, lies in no file.
            is_there = Path(module.path).name == Path(code.__code__.co_filename).name
            found = module.around(code.__code__.co_firstlineno) if is_there else None
        return None if found is None else Used(module, found, name)

    def of_module(self, module: ModuleType, asked: Collection[str], names: Collection[str]) -> Iterator[Used]:
        """Yields the statements of a module that is in a value: of what it is `asked` for, which if it is a module
        has some of all `names` in the code; all statements where it is handed on."""
        if {WHOLE, CALLED}.intersection(asked):
            yield from self._all_of(module.__name__)
        elif self.module(module.__name__) is not None:
            for name in asked:
                inner: Any = vars(module).get(name)
                if is_a(inner, ModuleType):
                    has = [one for one in names if one in vars(inner)]
                    yield from self.of_module(inner, has or [WHOLE], has)
                else:
                    yield from self._in(module.__name__, name)

    def used_by(self, module: Module, node: ast.AST) -> Iterator[Used]:
        """Yields the top-level statements that `node`, a part of `module`, names; all of a module that it hands on, as
        to `getattr` with a name that is computed."""
        nodes = list(ast.walk(node))
        local = imports_in(nodes, module.package)
        own = own_names(node) - {*local.names, *(one.partition(".")[0] for one in local.modules)}
        for name in _whole(nodes, module.name, lambda one: [] if one in own else self._handed(module, local, one)):
            yield from self._all_of(name)
        for child in nodes:
            if isinstance(child, ast.Name) and child.id not in own:
                root = "" if child.id in local.names else child.id
                yield from (replace(one, root=root) for one in self._named(module, local, child.id))
            elif (asked := _asked(child)) and (dotted := _dotted(asked[0])) and dotted.partition(".")[0] not in own:
                for imports in (local, module.imports):
                    root = "" if imports is local else dotted.partition(".")[0]
                    for target in self._target(module, imports, dotted):
                        yield from (replace(one, root=root) for one in self._in(target, asked[1]))

    def foreign(self, module: Module, node: ast.AST) -> Iterator[str]:
        """Yields what `node`, a part of `module`, names that is not the user's, in full: `time.time` of what is
        imported, `.now` of a method that is called, and what no statement of the module binds, as `__file__`."""
        nodes = list(ast.walk(node))
        local = imports_in(nodes, module.package)
        own = own_names(node) | {
            one.id for one in nodes if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)
        }
        own -= {*local.names, *local.modules}
        called = {id(one.func) for one in nodes if isinstance(one, ast.Call)}
        for one in nodes:
            dotted = _dotted(one) if isinstance(one, ast.Name | ast.Attribute) else ""
            root, _, rest = dotted.partition(".")
            imports = local if root in local.names or root in local.modules else module.imports
            if root and root not in own and (root in imports.names or root in imports.modules):
                theirs = [(above, f".{name}") for above, name in imports.names.get(root, ())]
                for above, name in theirs or [(one, "") for one in imports.modules[root]]:
                    if self.module(above) is None:
                        yield f"{above}{name}{rest and '.'}{rest}"
            elif id(one) in called and isinstance(one, ast.Attribute):
                yield f".{one.attr}"
            elif root and root not in own and not module.binds(root):
                stars = (*local.stars, *module.imports.stars)
                yield from (dotted, *(f"{star}.{dotted}" for star in stars if self.module(star) is None))

    def _handed(self, module: Module, local: Imports, name: str) -> list[str]:
        """Returns which modules a name alone may be."""
        found = self._target(module, local, name)
        return found or ([] if name in module.defined else self._target(module, module.imports, name))

    def _all_of(self, module_name: str) -> Iterator[Used]:
        module = self.module(module_name)
        if module is None or (module_name, "*") in self._sought:
            return
        self._sought.add((module_name, "*"))
        try:
            for name in (*module.defined, *module.imports.names):
                yield from self._in(module_name, name)
            for name in (*chain.from_iterable(module.imports.modules.values()), *module.imports.stars):
                yield from self._all_of(name)
        finally:
            self._sought.remove((module_name, "*"))

    def _target(self, module: Module, imports: Imports, dotted: str) -> list[str]:
        """Returns which modules a dotted name may be."""
        if dotted in imports.modules:
            return imports.modules[dotted]
        if dotted in imports.names:  # `from package import module`
            return imports.called(dotted)
        root, _, rest = dotted.partition(".")
        if root in imports.modules or root in imports.names:
            found = imports.modules.get(root) or imports.called(root)
        else:  # `m = importlib.import_module("package.module")`
            value: Any = vars(known).get(root) if (known := loaded(module.name)) is not None else None
            if imports is not module.imports or not is_a(value, ModuleType):
                return []
            found = [value.__name__]
        for part in rest.split(".") if rest else ():
            found = [inner for one in found for inner in self._part(one, part)]
        return found

    def _part(self, package: str, name: str) -> list[str]:
        """Returns which modules a name of a package may be: one that it imports, or one that lies in it."""
        above = self.module(package)
        if above is None:
            return []
        inner = [".".join(one) for one in above.imports.names.get(name, [(package, name)])]
        return [one for one in inner if self.module(one) is not None] or above.imports.modules.get(name, [])

    def _named(self, module: Module, local: Imports, name: str) -> Iterator[Used]:
        if name in local.names:
            yield from (one for target in local.names[name] for one in self._in(*target))
        elif name in module.defined:
            yield from (Used(module, statement, name) for statement in module.defined[name])
        elif name in module.imports.names:
            yield from (one for target in module.imports.names[name] for one in self._in(*target))
        else:
            for star in (*local.stars, *module.imports.stars):
                yield from self._in(star, name)

    def computes(self, module_name: str, name: str) -> bool:
        """Returns whether a module of the user's has a name by its `__getattr__` alone."""
        module = self.module(module_name)
        if module is None or name[:2] == "__" or module.imports.stars or not module.binds("__getattr__"):
            return False
        is_package = Path(module.path).name == "__init__.py"
        return not (module.binds(name) or (is_package and self.module(f"{module_name}.{name}") is not None))

    def _in(self, module_name: str, name: str) -> list[Used]:
        module = self.module(module_name)
        # A package that imports a module of its own has that by a name which is looked for in it again.
        if module is None or (module_name, name) in self._sought:
            return []
        self._sought.add((module_name, name))
        try:
            asked = "__getattr__" if self.computes(module_name, name) else name
            return list(self._named(module, Imports(), asked))
        finally:
            self._sought.remove((module_name, name))


def _parsed(name: str, path: Path) -> Module | None:
    try:
        data = path.read_bytes()
        # What runs as `python -m package.job` is called __main__, and knows in which package it lies.
        known = getattr(loaded(name), "__package__", None)
        package = known or (name if path.name == "__init__.py" else name.rpartition(".")[0])
        module = replace(_top(name, package, data), path=str(path))
    except (OSError, SyntaxError, ValueError):
        return None
    if (now := loaded(name)) is not None and (changed := changed_since_import(now, str(path), data)):
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
        for one, part in parts(statement).items():
            defined.setdefault(one, []).append(part)
    return Module(name, package, defined, imports_in((node for one in top for node in top_level(one)), package), top)


def imports_in(nodes: Iterable[ast.AST], package: str) -> Imports:
    found = Imports()
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                _add(found.modules, alias.asname or alias.name, alias.name)
                if not alias.asname:  # which binds the package, too
                    for one in accumulate(alias.name.split("."), "{}.{}".format):
                        found.modules.setdefault(one, [one])
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            for alias in node.names:
                if alias.name == "*":
                    found.stars.append(base)
                else:
                    _add(found.names, alias.asname or alias.name, (base, alias.name))
    return found


def _add(found: dict[str, list[Any]], name: str, target: Any) -> None:
    if target not in found.setdefault(name, []):
        found[name].append(target)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _asked(node: ast.AST) -> tuple[ast.expr, str] | None:
    """Returns of what an expression asks which attribute: `module.name`, or `getattr(module, "name")`."""
    if isinstance(node, ast.Attribute):
        return node.value, node.attr
    match node:
        case ast.Call(ast.Name("getattr"), [value, ast.Constant(str(name)), *_]):
            return value, name
    return None


def _whole(nodes: Sequence[ast.AST], own: str, modules_of: Callable[[str], list[str]]) -> Iterator[str]:
    """Yields the modules of which expressions may use anything: those that are handed on and not asked for a name, that
    are imported by a call, and their `own` if it is looked through."""
    asked = {id(one[0]) for one in map(_asked, nodes) if one is not None and one[1] != "__dict__"}
    for node in nodes:
        match node:
            case ast.Name(str(name), ast.Load()) if id(node) not in asked:
                yield from modules_of(name)
            case ast.Call(ast.Name("__import__") | ast.Name("import_module"), [ast.Constant(str(name)), *_]):
                yield name
            case ast.Call(ast.Attribute(_, "import_module"), [ast.Constant(str(name)), *_]):
                yield name
            case ast.Call(ast.Name("globals"), []) | ast.Call(ast.Name("eval" | "exec"), [_]):
                yield own
            case ast.Attribute(_, "__subclasses__") | ast.Attribute(ast.Name("sys"), "modules"):
                yield own


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)):
        return f"{before}.{node.attr}"
    return ""


def _file(name: str) -> Path | None:
    module = loaded(name)
    if module is not None:
        path = getattr(module, "__file__", None)
    else:
        spec = _spec(name)
        path = spec.origin if spec is not None and spec.has_location else None
    return Path(path).absolute() if path and path.endswith(".py") and Path(path).exists() else None


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
    return real.is_relative_to(jobs.FOLDER.resolve()) or not any(map(real.is_relative_to, installed()))


@lru_cache(maxsize=1)
def installed() -> tuple[Path, ...]:
    """Returns the folders that Python and installed libraries are in."""
    folders = {sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    return tuple(Path(folder).resolve() for folder in folders)


def names_used(function: FunctionType) -> ast.AST:
    """Returns a tree with the names that a function uses.

    A lambda has no source of its own, only the statement around it, so its names are taken from what was compiled.
    """
    if (tree := definition(function)) is not None:
        return tree
    names = names_in(function.__code__)
    roots = [ast.Name(name, ast.Load()) for name in names if name in function.__globals__]
    parts: list[ast.expr] = [ast.Attribute(root, name, ast.Load()) for root in roots for name in names]
    return ast.Tuple([*roots, *parts], ast.Load())
