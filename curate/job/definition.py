"""Checks a job class when it is defined, so that a typo fails at once and not after a day's run."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
import types
from collections.abc import Iterable, Mapping
from typing import Any

from curate.code.digest import code_digest
from curate.errors import ConfigError, did_you_mean
from curate.job.params import Param, collect, is_param
from curate.job.settings import NEUTRAL, OF_ROWS, SETTINGS, check_setting, computed, refuse_of_rows
from curate.objects.record import OutputFormat
from curate.units import require_json
from curate.writers.writer import default_codec, suffix

HOOKS = {
    "setup": "(self)",
    "check": "(self)",
    "check_columns": "(self, found)",
    "identity": "(self)",
    "process": "(self, batch)",
    "build": "(self, ds)",
    "process_file": "(self, file)",
}
"""Methods that curate calls where a job defines them, as they are called."""
ENTRIES = ("run", "main")
PLUMBING = ("passed_through",)
"""What only user code calls, so a job may have a method of its own by that name."""
STAGE_WORDS = frozenset(
    {"after", "checkpoint", "exchange", "fold", "limit", "marks", "of", "operators", "order"}
    | {"owner", "places", "read", "rows", "sink", "stage", "upstream"}
)
"""What the identities of stages have beside those of jobs."""
OPTIONAL_WORDS = frozenset({"attributes", "keep_positions", "sides", "with_attributes"})
"""What an identity has where a job does not do without."""
_CLOSE = 0.8
"""How alike a method's name and a hook's are if one is taken for a slip of the other."""


def define(cls: type, base: type) -> dict[str, Param]:
    """Checks a subclass of `base`, the class Job itself, and returns its parameters.

    Raises ConfigError for an attribute, hook or parameter that is unknown, mistyped or of the wrong type.
    """
    mixins = [one for one in cls.__mro__[1:-1] if not issubclass(one, base)]
    for author in [] if is_curates(cls) else [cls, *mixins]:
        for name, value in author.__dict__.items():
            if inspect.getattr_static(cls, name) is not value:
                continue  # something else comes before that of a mixin
            if name.startswith("_"):
                _refuse_internal(author, base, name)
            elif name not in SETTINGS:
                _check_attribute(cls, author, name, value)
    refuse_own_init(cls)
    for name in SETTINGS:
        value = inspect.getattr_static(cls, name)
        if not computed(value):
            check_setting(cls.__name__, name, value)
    _check_codec(cls)
    refuse_of_rows(cls, {name: inspect.getattr_static(cls, name) for name in OF_ROWS})
    return collect(cls, SETTINGS, {*HOOKS, *called_of(cls), *ENTRIES})


def refuse_own_init(cls: Any) -> None:
    """Raises ConfigError if a job cannot be made with its parameters by name, whichever are given."""
    signature = inspect.signature(cls.__init__)
    if not any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values()):
        raise ConfigError(
            f"{cls.__name__}.__init__ takes {signature}, but a job is made with all its parameters by name; write "
            "annotated attributes in the class, without @dataclass, and load what they name in setup()"
        )


def called_of(cls: type) -> set[str]:
    """Returns what user code calls of such a job: one that replaces it would not get what it called."""
    own = {name for base in cls.__mro__ if is_curates(base) for name, value in vars(base).items() if _is_method(value)}
    return {"log", *(name for name in own if not name.startswith("_"))} - {*HOOKS, *ENTRIES}


def is_curates(cls: type) -> bool:
    """Returns whether it is one of the classes that jobs derive from, and no job."""
    return cls.__module__.startswith("curate.job.")


def job_digest(cls: type, *, is_identity: bool = False) -> str:
    """Returns the digest of a job's code; its settings count by their values, beside it. See `code_digest`."""
    return code_digest(cls, neutral=NEUTRAL, told=SETTINGS, is_identity=is_identity)


def own_identity(job: Any, told: Iterable[str]) -> dict[str, Any]:
    """Returns what `identity` of a job says, beside what is `told` already. Raises ConfigError for what is no JSON, and
    for names of curate's own, which would say something else of the job then."""
    what = f"{type(job).__name__}.identity()"
    found = job.identity()
    if not isinstance(found, Mapping):
        raise ConfigError(f"{what} is {found!r:.60}; expected a dict of JSON values by name, such as {{}}")
    own = dict(found)
    require_json(what, own)
    if taken := sorted(own.keys() & {*told, *STAGE_WORDS, *OPTIONAL_WORDS}):
        raise ConfigError(f"{what} has {taken[0]!r}, which curate itself says of a job; call it my_{taken[0]}")
    return own


def snake_case(name: str) -> str:
    """Returns the name of a class as jobs are named.

    >>> snake_case("TextQuality"), snake_case("PIIFilter2")
    ('text_quality', 'pii_filter2')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def refuse_missing_hook(cls: type, hook: str) -> None:
    """Raises ConfigError if `cls` does not say what happens to a batch (`process`) or a file (`process_file`)."""
    author = next((base for base in cls.__mro__ if hook in vars(base)), object)
    if author is not object and not is_curates(author):
        return
    own = [name for name, value in cls.__dict__.items() if not name.startswith("_") and _is_method(value)]
    close = difflib.get_close_matches(hook, own, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ConfigError(f"{cls.__name__} has no {hook}{HOOKS[hook]}, so it has nothing to run{hint}")


def _refuse_internal(cls: type, base: type, name: str) -> None:
    internal = name in base.__dict__ or name in inspect.get_annotations(base)
    if internal and not (name.startswith("__") and name.endswith("__")):
        raise ConfigError(f"{cls.__name__}.{name} is a name that curate uses; choose another one")


def _check_attribute(cls: type, author: type, name: str, value: Any) -> None:
    """Checks an attribute of a job, or of a class without jobs that it derives from too: of that, much is its own."""
    owner, inherited = author.__name__, any(name in vars(base) for base in author.__mro__[1:])
    if name in HOOKS:
        _check_hook(cls, author, name, value)
    elif name in called_of(cls) and not (name in PLUMBING and _is_method(value)):
        raise ConfigError(f"{owner}.{name} is the name of a method of every job; choose another name")
    elif name in inspect.get_annotations(author) or is_param(value):
        return  # a parameter, or a ClassVar: looked at with the parameters
    elif _is_method(value) or computed(value):
        if name not in ENTRIES and not inherited:
            _refuse_uncalled(cls, author, name)
    elif name in ENTRIES:
        raise ConfigError(
            f"{owner}.{name} is {value!r}, but {name}() is the method that starts a job; choose another name"
        )
    elif name.lower() in SETTINGS:
        raise ConfigError(f"{owner}.{name} is not a setting; did you mean {name.lower()!r}?")
    elif not name.isupper() and not inherited:
        meant = did_you_mean(name, [*SETTINGS, *HOOKS, *getattr(cls, "_params", {})])
        if author is cls or meant:
            raise ConfigError(
                f"{owner}.{name} is not an attribute of a job{meant}; annotate it to make it a "
                f"parameter ({name}: {type(value).__name__} = ...), or write it in capitals if it is a constant"
            )


def _check_hook(cls: type, author: type, name: str, value: Any) -> None:
    called = f"{author.__name__}.{name}"
    takes_files = bool(getattr(cls, "_reads_files", False))
    if takes_files and name in ("process", "build"):
        raise ConfigError(f"{called} is never called: a FileJob processes files; write process_file(self, file)")
    if not takes_files and name == "process_file":
        raise ConfigError(f"{called} is never called: {cls.__name__} is not a FileJob; derive it from curate.FileJob")
    if not callable(value) or isinstance(value, type):
        raise ConfigError(f"{called} is {value!r}, expected a method {name}{HOOKS[name]}")
    if inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value):
        raise ConfigError(f"{called} is async, which is not awaited; write `def {name}{HOOKS[name]}`")
    if isinstance(value, types.FunctionType):
        parameters = HOOKS[name].strip("()").split(", ")
        try:
            inspect.signature(value).bind(*parameters)
        except TypeError as error:
            raise ConfigError(
                f"{called} takes {inspect.signature(value)}, but is called as {name}{HOOKS[name]}: {error}"
            ) from error


def _check_codec(cls: type) -> None:
    format, codec = inspect.getattr_static(cls, "format"), inspect.getattr_static(cls, "codec")
    if not computed(format) and not computed(codec):
        try:
            suffix(OutputFormat(format), default_codec(OutputFormat(format)) if codec is None else codec)
        except ConfigError as error:
            raise ConfigError(f"{cls.__name__}.codec: {error}") from error


def _refuse_uncalled(cls: type, author: type, name: str) -> None:
    """A method that is called like a hook, nearly, and that no method calls, is a hook that would never be called."""
    close = difflib.get_close_matches(name, [*HOOKS, *called_of(cls), *ENTRIES], n=1, cutoff=_CLOSE)
    if close and name not in _mentioned(cls):
        raise ConfigError(
            f"{author.__name__}.{name} is never called; did you mean {close[0]!r}? If not, prefix its name with _"
        )


def _mentioned(cls: type) -> set[str]:
    """Returns every name and text that occurs in the methods of a class and of its bases."""
    found: set[str] = set()
    # What curate's own methods name are hooks, and things of curate.
    bases = [base for base in cls.__mro__ if not is_curates(base)]
    codes = [code for base in bases for value in vars(base).values() for code in _codes(value)]
    while codes:
        code = codes.pop()
        found.update(code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                codes.append(constant)
            elif isinstance(constant, str):
                found.add(constant)
    return found


def _codes(value: Any) -> list[types.CodeType]:
    """Returns the code of a method, whatever it is wrapped in."""
    if isinstance(value, property):
        functions: list[Any] = [value.fget, value.fset]
    elif isinstance(value, functools.cached_property):
        functions = [value.func]
    else:
        functions = [getattr(value, "__func__", value)]
    codes = [getattr(inspect.unwrap(one), "__code__", None) for one in functions if callable(one)]
    return [code for code in codes if isinstance(code, types.CodeType)]


def _is_method(value: Any) -> bool:
    return callable(value) or isinstance(value, classmethod | staticmethod)


def checked_settings(job: Any) -> dict[str, Any]:
    """Returns a job's settings as they are now, those that are properties too. Raises ConfigError."""
    values = {name: getattr(job, name) for name in SETTINGS}
    for name, value in values.items():
        check_setting(type(job).__name__, name, value)
    return values
