"""Settings of a job: class attributes with a meaning for curate, each with its type and check."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import Any, TypeVar

import pyarrow as pa

from curate.dataclass import dataclass
from curate.errors import ConfigError, did_you_mean
from curate.keywords import called
from curate.ledger.side_outputs import check_sides
from curate.objects.record import OF_TOKENS, OFFERED
from curate.pipeline.shard_books import BadRowBudget
from curate.pipeline.step import ActorPool, Compute
from curate.runtime.protocol import Resources
from curate.units import LARGEST, is_finite

C = TypeVar("C", bound=type)

_ARROW_OF = {str: "pa.string()", int: "pa.int64()", float: "pa.float64()", bool: "pa.bool_()", bytes: "pa.binary()"}
"""What someone who wrote a Python type meant."""


def parse_columns(owner: str, columns: Any) -> tuple[dict[str, pa.DataType | None] | None, frozenset[str]]:
    """Returns the types by name, None where the type is inferred, and the names in which a null is a bad row.

    `columns` are names, a mapping of names to types or fields, fields, or a schema; None, all columns, gives None.
    A field that is not nullable makes a null in its column a bad row. Raises ConfigError naming what is wrong.
    """
    if columns is None:
        return None, frozenset()
    types: dict[str, pa.DataType | None] = {}
    required: set[str] = set()
    for name, kind in _pairs(owner, columns):
        if not isinstance(name, str):
            raise ConfigError(f"{owner}.columns names {name!r}, expected column names as text")
        if isinstance(kind, pa.Field):
            if kind.name != name:
                raise ConfigError(f"{owner}.columns[{name!r}] is a field called {kind.name!r}; make them equal")
            if not kind.nullable:
                required.add(name)
            kind = kind.type
        if kind is not None and not isinstance(kind, pa.DataType):
            hint = f", such as {_ARROW_OF[kind]}" if isinstance(kind, type) and kind in _ARROW_OF else ""
            raise ConfigError(
                f"{owner}.columns[{name!r}] is {kind!r}, expected a pyarrow type{hint}, or None to infer it"
            )
        if name in types and types[name] != kind:
            raise ConfigError(f"{owner}.columns has {name!r} twice, as {types[name]} and as {kind}")
        types[name] = kind
    if not types:
        raise ConfigError(f"{owner}.columns is empty, so nothing would be read; None reads all columns")
    return types, frozenset(required)


def column_text(name: str, kind: pa.DataType | None, required: Container[str]) -> str:
    """Returns how a column is written in a job's identity.

    >>> column_text("id", None, ()), column_text("text", pa.string(), ("text",))
    ('id', 'text: string not null')
    """
    return name + ("" if kind is None else f": {kind}") + (" not null" if name in required else "")


def _pairs(owner: str, columns: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(columns, Mapping):
        return columns.items()
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise ConfigError(f"{owner}.columns is {columns!r}, expected a list of names, or names with types")
    return [(item.name, item) if isinstance(item, pa.Field) else (item, None) for item in columns]


@dataclass(frozen=True, slots=True)
class Setting:
    """What one class attribute may be."""

    about: str
    """What it is, in a few words: for `help()` of a job class, and for its option."""
    kinds: tuple[type, ...]
    problem: Callable[[Any], str] = lambda _: ""
    """Returns what is wrong with a value of the right type; empty if nothing is."""
    changes_bytes: bool = True
    """Whether it decides the bytes of outputs, and so is part of the identity."""
    tunable: bool = True
    """Whether it may also be given when a job is made, and on its command line."""


def _counted(value: int | None) -> str:
    if value is not None and value > LARGEST:
        return "expected less than 2^63"
    return "" if value is None or value >= 1 else "expected at least 1"


def _held(value: float) -> str:
    return "" if is_finite(value) and value >= 0 else "expected a finite number, at least 0"


def _custom(value: Mapping[str, float]) -> str:
    for name, amount in value.items():
        if not isinstance(name, str) or isinstance(amount, bool) or not isinstance(amount, int | float):
            return 'expected names with amounts, such as {"TPU": 4}'
        if problem := _held(amount):
            return f"{name!r}: {problem}"
    return ""


def _format(value: str) -> str:
    known = [format.value for format in (*OFFERED, *OF_TOKENS)]
    return "" if value in known else f"expected {' or '.join(known)}{did_you_mean(value, known)}"


def _budget(value: str | int | None) -> str:
    try:
        BadRowBudget(None if value is None else str(value))
    except ConfigError as error:
        return str(error)
    return ""


def _schema(value: pa.Schema | None) -> str:
    if value is None:
        return ""
    times = Counter(value.names)
    twice = min((name for name in times if times[name] > 1), default=None)
    if twice is not None:
        return f"column {twice!r} occurs {times[twice]} times"
    return "" if len(value) else "it has no columns; None derives the schema from the first rows"


def _timeout(value: float | None) -> str:
    return "" if value is None or (is_finite(value) and value > 0) else "expected a number of seconds above 0"


def _text(value: str | None) -> str:
    return "expected non-empty text" if value == "" else ""


def _sides(value: Any) -> str:
    try:
        check_sides("a name", value)
    except ConfigError as error:
        return str(error)
    if len(set(value)) < len(value):
        return "a name occurs twice"
    for name, schema in value.items() if isinstance(value, Mapping) else ():
        if schema is not None and not isinstance(schema, pa.Schema):
            return f"{name!r} is {type(schema).__name__}, expected a pyarrow.Schema, or None"
        if problem := _schema(schema):
            return f"{name!r}: {problem}"
    return ""


_NONE = type(None)
SETTINGS: dict[str, Setting] = {
    "name": Setting("name of the job in ledgers and logs; default: the name of the class", (str,), tunable=False),
    "version": Setting(
        "version of what the job does; default: a digest of its code",
        (str, _NONE),
        _text,
        tunable=False,
    ),
    "columns": Setting(
        "columns to read, as names, names with Arrow types, or fields; None reads all",
        (list, tuple, Mapping, pa.Schema, _NONE),
        tunable=False,
    ),
    "output_schema": Setting(
        "schema of the outputs; None derives it from the first rows", (pa.Schema, _NONE), _schema, tunable=False
    ),
    "sides": Setting(
        "names of extra outputs, or names with the schema of each", (list, tuple, Mapping), _sides, tunable=False
    ),
    "batch_size": Setting("maximum rows per batch", (int,), _counted),
    "shard_bytes": Setting("stored bytes per shard; larger inputs are split", (int,), _counted),
    "format": Setting("format of the outputs", (str,), _format),
    "codec": Setting(
        "compression of the outputs: zstd, snappy or none for parquet, zstd or gzip for jsonl, csv", (str, _NONE)
    ),
    "attributes": Setting("write only the id, the columns that `process` adds, and the place of each row", (bool,)),
    "keep_positions": Setting("give `process` the place of each row in its input, to be written too", (bool,)),
    "compute": Setting(
        "actor pool that runs `process`; None: the reading tasks run it, or a pool if it needs a GPU",
        (ActorPool, _NONE),
        changes_bytes=False,
        tunable=False,
    ),
    "num_cpus": Setting("CPUs per task or actor", (int, float), _held, changes_bytes=False),
    "num_gpus": Setting("GPUs per actor", (int, float), _held, changes_bytes=False),
    "resources": Setting("custom Ray resources per actor", (Mapping,), _custom, changes_bytes=False, tunable=False),
    "memory": Setting("bytes of memory that a task or an actor requests", (int, _NONE), _counted, changes_bytes=False),
    "memory_budget": Setting(
        "bytes of memory for batches on their way to and from actors", (int, _NONE), _counted, changes_bytes=False
    ),
    "max_tasks": Setting("maximum number of concurrent tasks", (int, _NONE), _counted, changes_bytes=False),
    "max_bad_rows": Setting(
        "maximum quarantined rows per shard, N, or P% but at most 100,000",
        (str, int, _NONE),
        _budget,
        changes_bytes=False,
    ),
    "task_timeout_s": Setting(
        "seconds after which a shard is cancelled and retried", (int, float, _NONE), _timeout, changes_bytes=False
    ),
    "quarantine_errors": Setting(
        "on the last try, quarantine single rows that make process() raise", (bool,), changes_bytes=False
    ),
}
"""By name. A subclass may make any of them a property."""
NEUTRAL = tuple(name for name, setting in SETTINGS.items() if not setting.changes_bytes)
"""Settings that change no byte of any output: another number of CPUs is not another code."""
TUNABLE = tuple(name for name, setting in SETTINGS.items() if setting.tunable)
"""Settings that may also be given when a job is made, and on its command line."""
SIZES = ("shard_bytes", "memory", "memory_budget")
"""Settings that are bytes, and may be given as text where they are not given from Python: 64MiB."""


NEEDED = {"input": "the files, folders or globs to read", "output": "the prefix to write below"}
"""Options that each run is given."""
OF_ROWS = {
    "columns": "a FileJob reads files, which have no columns",
    "sides": "a FileJob writes one output per file",
    "attributes": "a FileJob reads files, and no rows that attributes could be of",
    "keep_positions": "a FileJob reads files, and no rows that have places in them",
    "quarantine_errors": "a FileJob reads files, and gives no rows to it one by one; call self.quarantine",
}
"""Settings that mean nothing to a FileJob, and why."""


def tunable(cls: Any) -> list[str]:
    """Returns the settings that may be given where a job of a class is made, or run."""
    return [one for one in TUNABLE if _means_something(cls, one) and not computed(getattr(cls, one))]


def computed(value: Any) -> bool:
    """Returns whether a class attribute makes its value when it is asked for."""
    return isinstance(value, property | functools.cached_property)


def _means_something(cls: Any, name: str) -> bool:
    return not (name in OF_ROWS and getattr(cls, "_reads_files", False))


def with_settings(cls: C) -> C:
    """Returns a base class of jobs, whose `help()` explains its settings and says which are part of the identity."""
    told = [inspect.cleandoc(cls.__doc__ or "")]
    for changes_bytes, title in (
        (True, "Settings are class attributes. These decide the bytes of outputs and belong to the identity:"),
        (False, "These do not change the bytes, and may differ between runs:"),
    ):
        told += ["", title, ""]
        for name, setting in SETTINGS.items():
            if setting.changes_bytes == changes_bytes and _means_something(cls, name):
                told.append(f"- `{name}`: {setting.about[0].upper()}{setting.about[1:]}.")
    cls.__doc__ = "\n".join(told)
    return cls


def check_setting(owner: str, name: str, value: Any) -> None:
    """Raises ConfigError if a setting cannot be `value`."""
    setting = SETTINGS[name]
    if not isinstance(value, setting.kinds) or (isinstance(value, bool) and bool not in setting.kinds):
        names = " or ".join("None" if kind is _NONE else kind.__name__ for kind in setting.kinds)
        hint = "; is @property missing above it?" if callable(value) else ""
        raise ConfigError(f"{called(owner, name)} is {value!r} ({type(value).__name__}), expected {names}{hint}")
    if problem := setting.problem(value):
        raise ConfigError(f"{called(owner, name)} is {value!r}: {problem}")
    if name == "columns":
        parse_columns(owner, value)


def refuse_of_rows(cls: type, values: Mapping[str, Any]) -> None:
    """Raises ConfigError for a setting that means nothing to a job that reads files."""
    for name, why in OF_ROWS.items():
        if values.get(name) and not _means_something(cls, name):
            raise ConfigError(f"{cls.__name__}.{name} has no effect: {why}")


def given_settings(
    cls: type, given: Mapping[str, Any], params: Collection[str], options: Collection[str]
) -> dict[str, Any]:
    """Returns the settings that a job is made with, checked; the others of `given` are among its `params`.

    Raises ConfigError for a name that is neither, and for a setting without effect; `options` are those of a run.
    """
    owner = cls.__name__
    known = {*params, *TUNABLE}
    for name in given:
        if name in known:
            continue
        if name in options:
            raise ConfigError(f"{owner} has no parameter {name!r}: it is an option of a run; write run({name}=...)")
        if name in SETTINGS:
            raise ConfigError(
                f"{owner} has no parameter {name!r}: it is a setting of the class; write {name} = ... in class {owner}"
            )
        raise ConfigError(
            f"{owner} has no parameter {name!r}{did_you_mean(name, {*known, *options})}; it has: "
            f"{', '.join(sorted(known))}"
        )
    found = {name: given[name] for name in TUNABLE if name in given}
    for name, value in found.items():
        if computed(getattr(cls, name)):
            raise ConfigError(f"{owner}.{name} is a property, so it cannot be passed")
        check_setting(owner, name, value)
    refuse_of_rows(cls, found)
    return found


def refuse_options(owner: str, given: Mapping[str, Any], params: Collection[str], options: Collection[str]) -> None:
    """Raises ConfigError for a name that is none of the `options` of a run, and for one that a run needs."""
    own = {*params, *TUNABLE}
    for name in given:
        if name in options:
            continue
        if name in own or name in SETTINGS:
            what = "setting" if name in SETTINGS else "parameter"
            where = f"{owner}({name}=...)" if name in own else f"{name} = ... in class {owner}"
            raise ConfigError(f"a run of {owner} has no option {name!r}: it is a {what} of the job; write {where}")
        raise ConfigError(
            f"a run of {owner} has no option {name!r}{did_you_mean(name, {*options, *own})}; it has: "
            f"{', '.join(sorted(options))}"
        )
    for name, about in NEEDED.items():
        if given.get(name) is None:
            raise ConfigError(f"a run of {owner} needs {about}; add {name}=...")


@dataclass(frozen=True, slots=True)
class Settings:
    """What a job says of what it builds, and of the tasks that run it."""

    job: str
    """Its name."""
    owner: str
    """The name of its class."""
    sides: tuple[str, ...]
    """Names of the extra outputs that it declares, in order."""
    compute: ActorPool | None
    num_cpus: float
    num_gpus: float
    memory: int | None
    resources: Mapping[str, float]
    attributes: bool = False
    """Whether it writes attributes of its rows."""

    @property
    def held(self) -> Resources:
        """What a task, or an actor, holds."""
        return Resources(float(self.num_cpus), float(self.num_gpus), self.memory, dict(self.resources))

    @property
    def wants_pool(self) -> bool:
        """Whether `process` runs in actors: where it asks for a pool, a GPU, or custom resources."""
        return bool(self.compute or self.num_gpus or self.resources)

    @property
    def pool(self) -> Compute | None:
        """The pool that `process` runs in; None: in the tasks that read."""
        return Compute(self.compute or ActorPool(), self.held) if self.wants_pool else None


def settings_of(job: Any) -> Settings:
    """Returns what a `Job` says of what it builds, as it is now."""
    return Settings(
        job=job.name,
        owner=type(job).__name__,
        sides=tuple(sorted(job.sides)),
        compute=job.compute,
        num_cpus=job.num_cpus,
        num_gpus=job.num_gpus,
        memory=job.memory,
        resources=job.resources,
        attributes=bool(getattr(job, "attributes", False)),
    )
