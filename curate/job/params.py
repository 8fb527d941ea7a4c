"""Parameters of a job: annotated attributes of its class, part of its identity unless they say not."""

from __future__ import annotations

import difflib
import inspect
import math
import os
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import Field
from functools import partial
from typing import Any, ClassVar, Literal, Union, get_args, get_origin

import orjson

from curate.around import contextmanager
from curate.dataclass import dataclass, replace
from curate.errors import ConfigError, did_you_mean
from curate.job.asset import Asset
from curate.keywords import called, naming_columns
from curate.log import holds_secret
from curate.resume.options import OPTIONS
from curate.units import is_finite

SCALARS = (str, int, float, bool)
DEEPEST = 200
"""Lists and dicts that a value may lie in. What writes JSON takes 254, with those that parameters lie in."""


def type_text(kind: Any) -> str:
    """Returns how messages call a type: one of SCALARS, a class, or a tuple of values to choose from.

    >>> type_text(int), type_text(("a", "b"))
    ('int', "one of ['a', 'b']")
    """
    if kind is Any:
        return "JSON"
    return f"one of {list(kind)}" if isinstance(kind, tuple) else str(kind.__name__)


def check_scalar(what: str, value: Any, kind: Any) -> Any:
    """Returns `value` as a plain value of `kind`. Raises ConfigError, which names it `what`.

    A whole number is a float where a float belongs; a bool is never a number.
    """
    if isinstance(kind, tuple):
        return _choice(what, value, kind)
    if kind is Any:
        return _check_json(what, value)
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        if math.isnan(value) if isinstance(value, float) else not is_finite(value):
            number = "nan" if isinstance(value, float) else "a whole number above the greatest double"
            raise ConfigError(f"{what} is {number}; pass a number")
        return float(value)
    if kind is bool and isinstance(value, bool):
        return value
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if kind is str and isinstance(value, str):
        plain = str.__str__(value)
        try:
            plain.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"{what} is {plain!r}, which is not valid Unicode; pass UTF-8") from error
        return plain
    raise ConfigError(f"{what} is {value!r} ({type(value).__name__}), expected {type_text(kind)}")


def _check_json(what: str, value: Any, depth: int = 0) -> Any:
    """Returns a value that JSON can hold, its dicts in order of their keys. Raises ConfigError for any other."""
    if depth > DEEPEST:
        raise ConfigError(f"{what:.60}... is a list or dict within {depth} others, expected at most {DEEPEST}")
    match value:
        case None:
            return None
        case list() | tuple():
            return [_check_json(f"{what}[{number}]", one, depth + 1) for number, one in enumerate(value)]
        case Mapping():
            return check_keys(what, value, partial(_check_json, depth=depth + 1))
        case float() if not math.isfinite(value):
            raise ConfigError(f"{what} is {value}, which JSON cannot hold; give a finite number, text or null")
        case int() if not -(2**63) <= value < 2**64:
            raise ConfigError(f"{what} is {value}, which has more than 64 bits; give it as text")
        case bool() | int() | float() | str():
            return check_scalar(what, value, next(kind for kind in (bool, int, float, str) if isinstance(value, kind)))
    raise ConfigError(
        f"{what} is {value!r} ({type(value).__name__}), expected what JSON can hold: text, a number, true, "
        "false, null, a list or a dict"
    )


def check_keys(what: str, value: Mapping[Any, Any], check: Callable[[str, Any], Any]) -> dict[str, Any]:
    """Returns a dict of the checked values, in order of their keys, so that the order given changes nothing. Raises
    ConfigError for a key that is no text."""
    keys = [check_scalar(f"a key of {what}", key, str) for key in value]
    return {key: check(f"{what}[{key!r}]", value[key]) for key in sorted(keys)}


def _choice(what: str, value: Any, choices: Sequence[Any]) -> Any:
    for choice in choices:
        # 1, 1.0 and True are equal, and three different values.
        if type(choice) is type(value) and choice == value:
            return choice
    hint = did_you_mean(str(value), [str(choice) for choice in choices])
    raise ConfigError(f"{what} is {value!r}, expected one of {list(choices)}{hint}")


def recorded_scalar(value: Any) -> Any:
    """Returns a value as JSON can hold it without loss: infinities and very large whole numbers as text.

    >>> recorded_scalar(0.5), recorded_scalar(float("inf")), recorded_scalar(2**70)
    (0.5, 'inf', '1180591620717411303424')
    """
    if isinstance(value, float) and math.isinf(value):
        return str(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    return value


def as_recorded(value: Any, kind: Any) -> Any:
    """Returns the number of that kind of which `recorded_scalar` made a text; any other value as it is.

    >>> as_recorded("-inf", float), as_recorded("1180591620717411303424", int), as_recorded("12", int)
    (-inf, 1180591620717411303424, '12')
    """
    if isinstance(value, str) and kind in (int, float):
        with suppress(ValueError):
            if recorded_scalar(number := kind(value)) == value:
                return number
    return value


def recorded_value(value: Any, recorded: Callable[[Any], Any]) -> Any:
    """Returns a value as JSON can hold it: a list or a dict of what `recorded` returns for its items, or a scalar."""
    if isinstance(value, list):
        return [recorded(item) for item in value]
    if isinstance(value, dict):
        return {name: recorded(item) for name, item in value.items()}
    return recorded_scalar(value)


MISSING: Any = object()
RUN_OPTIONS = frozenset({*OPTIONS, "inputs", "dry_run", "yes", "json", "as_json", "help"})
"""Names of the options that every job has, beside its settings."""
_CLOSE = 0.85
"""How alike an attribute's name and a known one are if it is taken for a slip, unless `param` says that it is none."""


@dataclass(frozen=True, slots=True)
class _Declared:
    """What `param(...)` leaves in the class until it is complete."""

    default: Any
    help: str
    identity: bool
    secret: bool
    split: bool = True


def is_param(value: Any) -> bool:
    """Returns whether an attribute of a class is what `param(...)` leaves there."""
    return isinstance(value, _Declared)


def param(
    default: Any = MISSING, *, help: str = "", identity: bool = True, secret: bool = False, split: bool = True
) -> Any:
    """Declares a parameter: `threshold: float = param(0.5, help="score from which a text counts as toxic")`.

    Without a default it is required. A `dict[str, float]` is passed as JSON, `dict[str, Any]` as any JSON. One option
    may have several values of a list, with commas between, unless `split=False`. `identity=False` leaves it out of the
    job's identity: it must not change a byte of any output. A `secret` is passed as the name of an environment
    variable; the attribute is that variable's value, which is read where the job starts, sent to workers in memory and
    never recorded.

    >>> class Short(curate.TextJob):
    ...     most: int = curate.param(80, help="characters that a text may have")
    ...     def process(self, batch): ...
    >>> Short().most, Short(most=20).most
    (80, 20)
    """
    return _Declared(default, help, identity and not secret, secret, split)


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter, complete with name and type."""

    name: str
    type: Any
    """One of SCALARS, Asset, Any (what JSON can hold), or a tuple of the values that a Literal allows."""
    many: bool
    """Whether it holds a list of such values."""
    optional: bool
    """Whether None is a value."""
    default: Any
    help: str
    identity: bool
    secret: bool
    split: bool = True
    """Whether an option gives several values of a list, with commas between."""
    named: bool = False
    """Whether it holds a dict of such values, by names."""

    @property
    def required(self) -> bool:
        """Whether it has to be given."""
        return self.default is MISSING

    @property
    def option(self) -> str:
        """Its option on the command line.

        >>> Param("text_column", str, False, False, "text", "", True, False).option
        '--text-column'
        """
        return "--" + self.name.replace("_", "-")

    def check(self, value: Any, owner: str) -> Any:
        """Returns `value` as this parameter holds it. Raises ConfigError naming the parameter."""
        if value is None and self.optional:
            return None
        what = called(owner, self.name)
        if self.many:
            if not isinstance(value, list | tuple):
                such = f", such as [{value!r}]" if isinstance(value, str) and self.type is str else ""
                raise ConfigError(f"{what} is {value!r}, expected a list of {type_text(self.type)}{such}")
            return [self._check_one(item, what) for item in value]
        if self.named:
            if not isinstance(value, Mapping):
                raise ConfigError(f"{what} is {value!r}, expected a dict of {self.shape}")
            return check_keys(what, value, lambda what, one: self._check_one(one, what))
        return self._check_one(value, what)

    @property
    def shape(self) -> str:
        """What a dict holds, in words, with an example.

        >>> Param("weights", float, False, False, {}, "", True, False, named=True).shape
        'text to float, such as {"a": 0.5}'
        """
        kind, example = self.type, {str: "b", int: 1, float: 0.5, bool: True, Any: [1, "b"]}
        shown = kind[0] if isinstance(kind, tuple) else example[kind]
        return f"text to {type_text(kind)}, such as {orjson.dumps({'a': shown}).decode().replace(':', ': ')}"

    def _check_one(self, value: Any, what: str) -> Any:
        if self.type is Asset and isinstance(value, str | os.PathLike | Asset):
            # A new one each time: which object it names is looked up for each job.
            try:
                return Asset(value.uri if isinstance(value, Asset) else os.fspath(value))
            except ConfigError as error:
                raise ConfigError(f"{what}: {error}") from error
        if value is None and not self.many and not self.named:
            raise ConfigError(
                f"{what} is None, expected {type_text(self.type)}; "
                f"annotate it {type_text(self.type)} | None if it may be absent"
            )
        if not self.secret and any(map(holds_secret, _texts(value))):
            raise ConfigError(
                f"{what} looks like a signed URL, a token or a password (not shown here), and parameters "
                "are written to the ledger, which others can read; declare it as secret: "
                f"{self.name}: str = param(secret=True)"
            )
        return check_scalar(what, value, self.type)

    def recorded(self, value: Any) -> Any:
        """Returns the value as JSON, for identity and ledger: an asset with its generation."""
        if isinstance(value, Asset):
            return value.identity()
        return recorded_value(value, self.recorded)


@contextmanager
def naming_options(params: Mapping[str, Param], job: Any) -> Iterator[None]:
    """Is around what a job passes its parameters to: an argument that is refused there with the name and the value of a
    parameter is named as the option that was given; so are parameters that name a column that is refused."""
    try:
        with naming_columns({name: getattr(job, name) for name in params}):
            yield
    except ConfigError as error:
        name, value, problem = error.argument or ("", None, "")
        # One of the same name may be another one: an operator's own `n`.
        if (
            type(error) is not ConfigError
            or name not in params
            or getattr(job, name) is not value != getattr(job, name)
        ):
            raise
        raise ConfigError(f"{params[name].option}{problem}").with_traceback(error.__traceback__) from None


def with_options_named(params: Mapping[str, Param], job: Any, fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a function of one argument, each call of which is in `naming_options`."""

    def named(given: Any) -> Any:
        with naming_options(params, job):
            return fn(given)

    return named


def _texts(value: Any) -> Iterator[str]:
    """Yields the texts in a value, however deep they are."""
    values = [value]
    while values:
        match values.pop():
            case str() as text:
                yield text
            case Mapping() as found:
                values += [*found, *found.values()]
            case list() | tuple() as found:
                values += found


def collect(cls: type, settings: Mapping[str, Any], taken: Collection[str]) -> dict[str, Param]:
    """Returns the parameters that a class declares, those of its bases first.

    `settings` are the attributes that mean something else and are no parameters, `taken` the names of methods that
    every job has. Raises ConfigError for an annotation that cannot be an option, for a default that does not fit its
    annotation, and for a name that is taken or looks like a slip of one that is known.
    """
    found: dict[str, Param] = {}
    for base in reversed(cls.__mro__):
        # Not what the class itself declares: `size` and `sizes` beside each other are no slip.
        known = [*settings, *taken, *found]
        for name, hint in _own_hints(base):
            if name.startswith("_") or name in settings:
                continue
            value = base.__dict__.get(name, MISSING)
            declared = value if isinstance(value, _Declared) else _Declared(value, "", True, False)
            _check_name(base, name, hint, isinstance(value, _Declared), known, taken)
            if _is_class_var(hint):
                if name in found:
                    raise ConfigError(
                        f"{base.__name__}.{name} is a ClassVar, but a parameter of a class that it derives from; "
                        f"give that another default ({name} = ...), or rename it"
                    )
                continue
            if isinstance(value, Field):
                raise ConfigError(
                    f"{base.__name__}.{name} is dataclasses.field(...), but a job is not a dataclass; write its "
                    f"default: {name} = param([])"
                )
            if name in found and not isinstance(value, _Declared):
                old = found[name]
                given = old.default if value is MISSING else value
                declared = _Declared(given, old.help, old.identity, old.secret, old.split)
            found[name] = _param(cls, name, hint, declared)
        for name, value in base.__dict__.items():
            if name not in found and is_param(value):
                default = "" if value.default in (None, MISSING) else value.default
                typed = f"{name}: {type(default).__name__} = param(...)"
                raise ConfigError(f"{base.__name__}.{name} = param(...) has no type; annotate it: {typed}")
            # A subclass may give an inherited parameter another default without saying its type again.
            if name in found and name not in inspect.get_annotations(base):
                old = found[name]
                kept = (old.help, old.identity, old.secret, old.split)
                new = value if isinstance(value, _Declared) else _Declared(value, *kept)
                found[name] = replace(
                    old,
                    default=new.default,
                    help=new.help or old.help,
                    identity=new.identity,
                    secret=new.secret,
                    split=new.split,
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
    except Exception as error:
        raise ConfigError(
            f"{base.__name__}: an annotation cannot be understood ({error}); "
            "types of parameters must be defined at module level, outside of `if TYPE_CHECKING`"
        ) from error
    for name in own:
        yield name, hints[name]


def _is_class_var(hint: Any) -> bool:
    return get_origin(hint) is ClassVar or hint is ClassVar


def _check_name(cls: type, name: str, hint: Any, on_purpose: bool, known: list[str], taken: Collection[str]) -> None:
    """Refuses a name that something else has, and one that is nearly another's where nothing says that it is meant."""
    if cls.__module__.startswith("curate.job."):
        return
    if name in taken:
        raise ConfigError(f"{cls.__name__}.{name} is a method of every job; rename the parameter")
    class_var = _is_class_var(hint)
    if name in RUN_OPTIONS and not class_var:
        raise ConfigError(f"{cls.__name__}.{name} is an option of every job; rename the parameter")
    if on_purpose or name in known or name.isupper():
        return
    close = difflib.get_close_matches(name, known, n=1, cutoff=_CLOSE)
    if close:
        way = "write it in capitals" if class_var else f"declare it with {name} = param(...)"
        raise ConfigError(f"{cls.__name__}.{name}: did you mean {close[0]!r}? If not, {way}")


def _param(cls: type, name: str, hint: Any, declared: _Declared) -> Param:
    optional = False
    inner = hint
    if get_origin(hint) in (Union, types.UnionType):
        choices = [choice for choice in get_args(hint) if choice is not type(None)]
        optional = len(choices) < len(get_args(hint))
        if len(choices) == 1:
            inner = choices[0]
    many = get_origin(inner) is list
    named = get_origin(inner) is dict and get_args(inner)[0] is str
    if many or named:
        inner = get_args(inner)[-1]
    if get_origin(inner) is Literal:
        kind: Any = tuple(choice for choice in get_args(inner) if choice is not None)
        optional = optional or (None in get_args(inner) and not many)
    elif inner in ((*SCALARS, Any) if named else (*SCALARS, Asset)):
        kind = inner
    else:
        raise ConfigError(
            f"{cls.__name__}.{name}: {hint} cannot be a parameter; use str, int, float, bool, Literal, Asset, a list "
            "of one of these, dict[str, float] and the like, dict[str, Any] for JSON, or one of these | None. "
            "If it is not a parameter, annotate it ClassVar or prefix it with _"
        )
    if isinstance(kind, tuple) and (odd := [one for one in kind if type(one) not in (str, int, bool)]):
        raise ConfigError(f"{cls.__name__}.{name}: {odd[0]!r} cannot be an option; make it a str, an int or a bool")
    if isinstance(kind, tuple) and len({str(choice) for choice in kind}) < len(kind):
        raise ConfigError(f"{cls.__name__}.{name}: two of the values {list(kind)} are written alike on a command line")
    if declared.secret and (kind is not str or many or named):
        raise ConfigError(f"{cls.__name__}.{name} is secret, so it must be a str: the name of an environment variable")
    said = (declared.default, declared.help, declared.identity, declared.secret, declared.split)
    return Param(name, kind, many, optional, *said, named)


def schema_text(schema: Any) -> str | None:
    """Returns a schema as an identity has it; None for none."""
    return None if schema is None else schema.to_string(show_schema_metadata=False)
