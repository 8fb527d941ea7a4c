"""Parameters of a job: annotated attributes of its class, part of its identity unless they say not."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Union, get_args, get_origin

from curate.errors import ConfigError, did_you_mean
from curate.job.asset import Asset

_MISSING: Any = object()
SCALARS = (str, int, float, bool)


@dataclass(frozen=True, slots=True)
class _Declared:
    """What `param(...)` leaves in the class until it is complete."""

    default: Any
    help: str
    identity: bool
    secret: bool


def param(default: Any = _MISSING, *, help: str = "", identity: bool = True, secret: bool = False) -> Any:
    """Declares a parameter: `threshold: float = param(0.5, help="score from which a text counts as toxic")`.

    Without a default it has to be given. `identity=False` leaves it out of the job's identity: it must not change a
    byte of any output. A `secret` is given as the name of an environment variable; the attribute holds that variable's
    value, which is read where the job is started, travels to the workers in memory and is never recorded.
    """
    return _Declared(default, help, identity and not secret, secret)


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter, complete with name and type."""

    name: str
    type: Any
    """One of SCALARS, Asset, or a tuple of the values that a Literal allows."""
    many: bool
    """Whether it holds a list of such values."""
    optional: bool
    """Whether None is a value."""
    default: Any
    help: str
    identity: bool
    secret: bool

    @property
    def required(self) -> bool:
        """Whether it has to be given."""
        return self.default is _MISSING

    def check(self, value: Any, owner: str) -> Any:
        """Returns `value` as this parameter holds it. Raises ConfigError naming the parameter."""
        if value is None and self.optional:
            return None
        if self.many:
            if isinstance(value, str) or not isinstance(value, list | tuple):
                raise ConfigError(f"{owner}.{self.name} is {value!r}, expected a list of {self.type_name}")
            return [self._check_one(item, owner) for item in value]
        return self._check_one(value, owner)

    def _check_one(self, value: Any, owner: str) -> Any:
        if self.type is Asset:
            if isinstance(value, Asset):
                return value
            if isinstance(value, str):
                return Asset(value)
        elif isinstance(self.type, tuple):
            if value in self.type:
                return value
            hint = did_you_mean(str(value), [str(choice) for choice in self.type])
            raise ConfigError(f"{owner}.{self.name} is {value!r}, expected one of {list(self.type)}{hint}")
        elif self.type is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        # bool is a subclass of int, and a True where a number belongs is a slip.
        elif isinstance(value, self.type) and (self.type is bool or not isinstance(value, bool)):
            return value
        raise ConfigError(f"{owner}.{self.name} is {value!r} ({type(value).__name__}), expected {self.type_name}")

    @property
    def type_name(self) -> str:
        """The type as messages call it."""
        return "one of " + str(list(self.type)) if isinstance(self.type, tuple) else str(self.type.__name__)

    def recorded(self, value: Any) -> Any:
        """Returns the value as JSON, for identity and ledger: an asset with its generation."""
        if isinstance(value, Asset):
            return value.identity()
        if isinstance(value, list):
            return [self.recorded(item) for item in value]
        return value


def collect(cls: type, settings: Mapping[str, Any]) -> dict[str, Param]:
    """Returns the parameters that a class declares, those of its bases first.

    `settings` are the attributes that mean something else and are no parameters. Raises ConfigError for an annotation
    that cannot be an option, and for a default that does not fit its annotation.
    """
    found: dict[str, Param] = {}
    for base in reversed(cls.__mro__):
        for name, hint in _own_hints(base):
            if name.startswith("_") or name in settings:
                continue
            value = base.__dict__.get(name, _MISSING)
            declared = value if isinstance(value, _Declared) else _Declared(value, "", True, False)
            if name in found and not isinstance(value, _Declared):
                declared = _Declared(value, found[name].help, found[name].identity, found[name].secret)
            found[name] = _param(cls, name, hint, declared)
        for name, value in base.__dict__.items():
            # A subclass may give an inherited parameter another default without saying its type again.
            if name in found and name not in inspect.get_annotations(base):
                old = found[name]
                new = value if isinstance(value, _Declared) else _Declared(value, old.help, old.identity, old.secret)
                found[name] = Param(
                    name, old.type, old.many, old.optional, new.default, new.help or old.help, new.identity, new.secret
                )
    for one in found.values():
        if not one.required:
            one.check(one.default, cls.__name__)
    return found


def _own_hints(base: type) -> Iterator[tuple[str, Any]]:
    own = inspect.get_annotations(base)
    if not own or base is object:
        return
    try:
        hints = typing.get_type_hints(base)
    except NameError as error:
        raise ConfigError(
            f"{base.__name__}: an annotation names something unknown ({error}); "
            "types of parameters must be visible at module level"
        ) from error
    for name in own:
        if get_origin(hints[name]) is not ClassVar and hints[name] is not ClassVar:
            yield name, hints[name]


def _param(cls: type, name: str, hint: Any, declared: _Declared) -> Param:
    optional = False
    inner = hint
    if get_origin(hint) in (Union, types.UnionType):
        choices = [choice for choice in get_args(hint) if choice is not type(None)]
        optional = len(choices) < len(get_args(hint))
        if len(choices) == 1:
            inner = choices[0]
    many = get_origin(inner) is list
    if many:
        inner = get_args(inner)[0]
    if get_origin(inner) is Literal:
        kind: Any = get_args(inner)
    elif inner in (*SCALARS, Asset):
        kind = inner
    else:
        raise ConfigError(
            f"{cls.__name__}.{name}: {hint} cannot be a parameter; use str, int, float, bool, Literal, Asset, a list "
            "of one of these, or one of these | None. Make it ClassVar, or start its name with _, if it is none"
        )
    if declared.secret and kind is not str:
        raise ConfigError(f"{cls.__name__}.{name} is secret, so it must be a str: the name of an environment variable")
    return Param(name, kind, many, optional, declared.default, declared.help, declared.identity, declared.secret)
