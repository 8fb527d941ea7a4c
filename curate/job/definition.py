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
from curate.job.settings import NEUTRAL, OF_ROWS, SETTINGS, check_setting, refuse_of_rows
from curate.objects.record import OutputFormat
from curate.units import require_json
from curate.writers.writer import default_codec, suffix

HOOKS = {
    "setup": "(self)",
    "check": "(self)",
    "process": "(self, batch)",
    "build": "(self, ds)",
    "process_file": "(self, file)",
}
"""Methods that curate calls where a job defines them, as they are called."""
CALLED = ("drop", "quarantine", "count", "log", "spec", "options")
"""What user code calls; a job that replaces one would not get what it called."""
ENTRIES = ("run", "main")
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
    for name, value in cls.__dict__.items():
        if name.startswith("_"):
            _refuse_internal(cls, base, name)
        elif name not in SETTINGS:
            _check_attribute(cls, name, value)
    for name in SETTINGS:
        value = inspect.getattr_static(cls, name)
        if not _computed(value):
            check_setting(cls.__name__, name, value)
    _check_codec(cls)
    refuse_of_rows(cls, {name: inspect.getattr_static(cls, name) for name in OF_ROWS})
    taken = {*HOOKS, *CALLED, *ENTRIES}
    return collect(cls, SETTINGS, taken)


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
    if author is not object and not author.__module__.startswith("curate.job."):
        return
    own = [name for name, value in cls.__dict__.items() if not name.startswith("_") and _is_method(value)]
    close = difflib.get_close_matches(hook, own, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ConfigError(f"{cls.__name__} has no {hook}{HOOKS[hook]}, so it has nothing to run{hint}")


def _refuse_internal(cls: type, base: type, name: str) -> None:
    if cls.__module__.startswith("curate.job."):
        return
    internal = name in base.__dict__ or name in inspect.get_annotations(base)
    if internal and not (name.startswith("__") and name.endswith("__")):
        raise ConfigError(f"{cls.__name__}.{name} is a name that curate uses; choose another one")


def _check_attribute(cls: type, name: str, value: Any) -> None:
    owner = cls.__name__
    if name in HOOKS:
        _check_hook(cls, name, value)
    elif name in CALLED:
        raise ConfigError(f"{owner}.{name} is the name of a method of every job; choose another name")
    elif name in inspect.get_annotations(cls) or is_param(value):
        return  # a parameter, or a ClassVar: looked at with the parameters
    elif _is_method(value) or _computed(value):
        if name not in ENTRIES and not _inherited(cls, name):
            _refuse_uncalled(cls, name)
    elif name in ENTRIES:
        raise ConfigError(
            f"{owner}.{name} is {value!r}, but {name}() is the method that starts a job; choose another name"
        )
    elif name.lower() in SETTINGS:
        raise ConfigError(f"{owner}.{name} is not a setting; did you mean {name.lower()!r}?")
    elif not name.isupper() and not _inherited(cls, name):
        known = [*SETTINGS, *HOOKS, *getattr(cls, "_params", {})]
        raise ConfigError(
            f"{owner}.{name} is not an attribute of a job{did_you_mean(name, known)}; annotate it to make it a "
            f"parameter ({name}: {type(value).__name__} = ...), or write it in capitals if it is a constant"
        )


def _check_hook(cls: type, name: str, value: Any) -> None:
    called = f"{cls.__name__}.{name}"
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
    if not _computed(format) and not _computed(codec):
        try:
            suffix(OutputFormat(format), default_codec(OutputFormat(format)) if codec is None else codec)
        except ConfigError as error:
            raise ConfigError(f"{cls.__name__}.codec: {error}") from error


def _refuse_uncalled(cls: type, name: str) -> None:
    """A method that is called like a hook, nearly, and that no method calls, is a hook that would never be called."""
    close = difflib.get_close_matches(name, [*HOOKS, *CALLED, *ENTRIES], n=1, cutoff=_CLOSE)
    if close and name not in _mentioned(cls):
        raise ConfigError(
            f"{cls.__name__}.{name} is never called; did you mean {close[0]!r}? If not, prefix its name with _"
        )


def _mentioned(cls: type) -> set[str]:
    """Returns every name and text that occurs in the methods of a class and of its bases."""
    found: set[str] = set()
    # What curate's own methods name are hooks, and things of curate.
    bases = [base for base in cls.__mro__ if not base.__module__.startswith("curate.job.")]
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


def _computed(value: Any) -> bool:
    """Returns whether a class attribute makes its value when it is asked for."""
    return isinstance(value, property | functools.cached_property)


def _inherited(cls: type, name: str) -> bool:
    return any(name in vars(base) for base in cls.__mro__[1:])


def checked_settings(job: Any) -> dict[str, Any]:
    """Returns a job's settings as they are now, those that are properties too. Raises ConfigError."""
    values = {name: getattr(job, name) for name in SETTINGS}
    for name, value in values.items():
        check_setting(type(job).__name__, name, value)
    return values
