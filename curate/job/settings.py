"""Settings of a job: class attributes that mean something to curate, each with its type and the check it must pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from curate.errors import ConfigError, did_you_mean
from curate.formats.record import OFFERED
from curate.ledger.side_outputs import check_side
from curate.pipeline.shard_books import BadRowBudget
from curate.pipeline.step import ActorPool

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
            raise ConfigError(f"{owner}.columns names {name!r}, expected names of columns, as text")
        if isinstance(kind, pa.Field):
            if kind.name != name:
                raise ConfigError(f"{owner}.columns[{name!r}] is a field called {kind.name!r}; one of them is a slip")
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
        raise ConfigError(f"{owner}.columns is empty, so there would be nothing to read; None reads all columns")
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

    kinds: tuple[type, ...]
    problem: Callable[[Any], str] = lambda _: ""
    """Returns what is wrong with a value of the right type; empty if nothing is."""
    help: str = ""
    """What its option says. One with a help may also be given when a job is made, and on its command line."""
    changes_bytes: bool = True
    """Whether it decides the bytes of outputs, and so is part of the identity."""


def _counted(value: int | None) -> str:
    return "" if value is None or value >= 1 else "expected at least 1"


def _held(value: float) -> str:
    return "" if math.isfinite(value) and value >= 0 else "expected a finite number, at least 0"


def _custom(value: Mapping[str, float]) -> str:
    for name, amount in value.items():
        if not isinstance(name, str) or isinstance(amount, bool) or not isinstance(amount, int | float):
            return 'expected names with amounts, such as {"TPU": 4}'
        if problem := _held(amount):
            return f"{name!r}: {problem}"
    return ""


def _format(value: str) -> str:
    known = [format.value for format in OFFERED]
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
    twice = sorted({name for name in value.names if value.names.count(name) > 1})
    if twice:
        return f"column {twice[0]!r} is there {value.names.count(twice[0])} times"
    return "" if len(value) else "it has no column; None derives the schema from the first rows"


def _timeout(value: float | None) -> str:
    return "" if value is None or (math.isfinite(value) and value > 0) else "expected a number of seconds above 0"


def _text(value: str | None) -> str:
    return "expected some text" if value == "" else ""


def _sides(value: Any) -> str:
    for name in value:
        try:
            check_side("a name", name)
        except ConfigError as error:
            return str(error)
    if len(set(value)) < len(value):
        return "a name is there twice"
    for name, schema in value.items() if isinstance(value, Mapping) else ():
        if schema is not None and not isinstance(schema, pa.Schema):
            return f"{name!r} is {type(schema).__name__}, expected a pyarrow.Schema, or None"
        if problem := _schema(schema):
            return f"{name!r}: {problem}"
    return ""


_NONE = type(None)
SETTINGS: dict[str, Setting] = {
    "name": Setting((str,)),
    "version": Setting((str, _NONE), _text),
    "columns": Setting((list, tuple, Mapping, pa.Schema, _NONE)),
    "output_schema": Setting((pa.Schema, _NONE), _schema),
    "sides": Setting((list, tuple, Mapping), _sides),
    "batch_size": Setting((int,), _counted, "rows of a batch, at most"),
    "shard_bytes": Setting((int,), _counted, "stored bytes of a shard, at which large inputs are split; 64MiB, 1g"),
    "format": Setting((str,), _format, "format of the outputs"),
    "codec": Setting(
        (str, _NONE), help="compression of the outputs: zstd, snappy or none for parquet, zstd or gzip for jsonl, csv"
    ),
    "compute": Setting((ActorPool, _NONE), changes_bytes=False),
    "num_cpus": Setting((int, float), _held, "CPUs that a task, or an actor, holds", changes_bytes=False),
    "num_gpus": Setting((int, float), _held, "GPUs that an actor holds", changes_bytes=False),
    "resources": Setting((Mapping,), _custom, changes_bytes=False),
    "memory": Setting(
        (int, _NONE), _counted, "memory that a task, or an actor, asks for; 2g, 512MiB", changes_bytes=False
    ),
    "memory_budget": Setting(
        (int, _NONE), _counted, "memory for batches on their way to and from actors; 512MiB, 2g", changes_bytes=False
    ),
    "max_tasks": Setting((int, _NONE), _counted, "tasks at once, at most", changes_bytes=False),
    "max_bad_rows": Setting(
        (str, int, _NONE), _budget, "rows of a shard that may be quarantined, N or P%", changes_bytes=False
    ),
    "task_timeout_s": Setting(
        (int, float, _NONE), _timeout, "seconds after which a shard is cancelled and tried again", changes_bytes=False
    ),
    "quarantine_errors": Setting(
        (bool,), help="on the last try, quarantine single rows that make process() raise", changes_bytes=False
    ),
}
"""By name. A subclass may make any of them a property."""
NEUTRAL = tuple(name for name, setting in SETTINGS.items() if not setting.changes_bytes)
"""Settings that change no byte of any output: another number of CPUs is not another code."""
TUNABLE = tuple(name for name, setting in SETTINGS.items() if setting.help)
"""Settings that may also be given when a job is made, and on its command line."""


def check_setting(owner: str, name: str, value: Any) -> None:
    """Raises ConfigError if a setting cannot be `value`."""
    setting = SETTINGS[name]
    if not isinstance(value, setting.kinds) or (isinstance(value, bool) and bool not in setting.kinds):
        names = " or ".join("None" if kind is _NONE else kind.__name__ for kind in setting.kinds)
        hint = "; is @property missing above it?" if callable(value) else ""
        raise ConfigError(f"{owner}.{name} is {value!r} ({type(value).__name__}), expected {names}{hint}")
    if problem := setting.problem(value):
        raise ConfigError(f"{owner}.{name} is {value!r}: {problem}")
    if name == "columns":
        parse_columns(owner, value)
