"""Job: one class, its parameters, `setup` and `process`. What every script shares."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from curate.dataset.formats import DEFAULT_CODEC, BadRow, OutputFormat, suffix
from curate.dataset.spec import RunOptions, StageSpec
from curate.dataset.stage import InputFile
from curate.dataset.tally import BadRowBudget, Tally
from curate.errors import ConfigError, did_you_mean
from curate.job.asset import Asset
from curate.job.code import code_digest
from curate.job.params import Param, collect
from curate.log import get_logger
from curate.runtime.protocol import Resources
from curate.storage import open_store
from curate.tasks.progress import Display, NoDisplay
from curate.tasks.summary import Summary
from curate.units import MIB, parse_percent

_OPEN = (int, float)
SETTINGS: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "version": (str, type(None)),
    "columns": (list, tuple, Mapping, type(None)),
    "output_schema": (pa.Schema, type(None)),
    "batch_size": (int,),
    "shard_bytes": (int,),
    "format": (str,),
    "codec": (str, type(None)),
    "num_cpus": _OPEN,
    "num_gpus": _OPEN,
    "resources": (Mapping,),
    "memory": (int, type(None)),
    "max_tasks": (int, type(None)),
    "max_bad_rows": (str, int, type(None)),
}
"""Class attributes that mean something, with the types they may have. A subclass may make any of them a property."""
TUNABLE = ("batch_size", "shard_bytes", "format", "codec", "num_cpus", "memory", "max_tasks", "max_bad_rows")
"""Settings that may also be given when a job is made, and on its command line."""
HOOKS = ("setup", "process", "process_file", "main", "run", "drop", "quarantine", "count")


class Job:
    """Base of all jobs. A subclass says what happens to a batch of rows; everything else is shared.

    Annotated attributes are parameters (see `param`). `setup` runs once in each worker process, `process` for every
    batch of every shard. Batches are Arrow tables of at most `batch_size` rows and never cross shards.
    """

    name: ClassVar[str] = ""
    """Name of the job in ledgers and logs; by default the class's name in snake case."""
    version: ClassVar[str | None] = None
    """Version of what the job does, part of its identity. Without one, the digest of its code takes that place."""
    columns: ClassVar[Any] = None
    """Columns to read: names, or names with Arrow types that go into the parser. None reads all of them."""
    output_schema: ClassVar[Any] = None
    """Schema of every output. None derives it from what the first rows of the plan become, and then holds it."""
    batch_size: int = 4096
    """Rows of a batch, at most. Part of the identity."""
    shard_bytes: int = 256 * MIB
    """Stored bytes of a shard, at which inputs that can be split are. Part of the identity."""
    format: str = "parquet"
    """Format of the outputs: parquet or jsonl. Part of the identity."""
    codec: str | None = None
    """Compression of the outputs; None: zstd. Part of the identity."""
    num_cpus: float = 1
    """CPUs that a task holds."""
    num_gpus: float = 0
    """GPUs that a task holds."""
    resources: ClassVar[Mapping[str, float]] = {}
    """Custom Ray resources that a task holds, such as {"TPU": 4}."""
    memory: int | None = None
    """Bytes of memory that a task asks for; None leaves it to Ray."""
    max_tasks: int | None = None
    """Tasks at once, at most: for a service or a licence."""
    max_bad_rows: str | int | None = None
    """Rows of a shard that may be quarantined: N, or "P%"; None: 0.1 %, at least 10."""

    _params: ClassVar[dict[str, Param]] = {}
    _reads_files: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _refuse_unknown(cls)
        for setting, kinds in SETTINGS.items():
            _check_setting(cls.__name__, setting, cls.__dict__.get(setting, getattr(Job, setting)), kinds)
        cls._params = collect(cls, SETTINGS)
        if not cls.__dict__.get("name"):
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()

    def __init__(self, **parameters: Any) -> None:
        """Sets parameters and tunable settings by name. Raises ConfigError for an unknown, mistyped or missing one."""
        owner = type(self).__name__
        known = {*self._params, *TUNABLE}
        for given in parameters:
            if given not in known:
                raise ConfigError(
                    f"{owner} has no parameter {given!r}{did_you_mean(given, known)}; "
                    f"it has: {', '.join(sorted(known))}"
                )
        for setting in TUNABLE:
            if setting in parameters:
                _check_setting(owner, setting, parameters[setting], SETTINGS[setting])
                setattr(self, setting, parameters[setting])
        self._given: dict[str, Any] = {}
        for one in self._params.values():
            if one.name not in parameters and one.required:
                raise ConfigError(f"{owner} needs the parameter {one.name!r}: {one.help or one.type_name}")
            value = one.check(parameters.get(one.name, one.default), owner)
            self._given[one.name] = value
            setattr(self, one.name, _secret_value(value) if one.secret else value)
        self._tally = Tally(BadRowBudget("100%"))
        self.log = get_logger(job=self.name)

    # What a subclass overrides

    def setup(self) -> None:
        """Loads what `process` needs, once per worker process. Parameters are set already."""

    def process(self, batch: Any) -> Any:
        """Returns what a batch (a pyarrow.Table) becomes: a table, an iterable of tables, or None for nothing."""
        raise NotImplementedError

    # What process may call

    def drop(self, n: int, reason: str) -> None:
        """Books `n` rows of the batch at hand as dropped for `reason`."""
        self._tally.drop(n, reason)

    def quarantine(self, row: Mapping[str, Any], reason: str) -> None:
        """Sets a row aside, with its reason, in the output's quarantine file; it counts against `max_bad_rows`."""
        self._tally.set_aside(BadRow(0, reason, _row_json(row)))

    def count(self, name: str, n: int | float = 1) -> None:
        """Adds to a counter that travels with the output: exact whatever was killed and run again."""
        self._tally.count(name, n)

    # Running it

    def run(
        self,
        *,
        input: str | Sequence[str],
        output: str,
        backend: str = "ray",
        limit: int | None = None,
        sample: str | None = None,
        overwrite: bool = False,
        yes: bool = False,
        accept_code_change: bool = False,
        allow_incomplete_input: bool = False,
        target_task_seconds: float = 120.0,
        max_failed_shards: str | None = None,
        max_in_flight: int | None = None,
        display: Display | None = None,
        confirm: Callable[[str], bool] | None = None,
        handle_signals: bool = False,
    ) -> Summary:
        """Runs the job over `input` (files, directories, globs) into the prefix `output` and returns the summary.

        Idempotent: shards whose output exists are skipped, so calling it again finishes what was left. Options are
        those of the command line. Raises ConfigError if the job cannot run as asked; shards that fail do not raise,
        they are in the summary, whose `state` is then `failed`.
        """
        from curate.dataset.driver import run

        options = self.options(
            input=input,
            output=output,
            backend=backend,
            limit=limit,
            sample=sample,
            overwrite=overwrite,
            confirm=(lambda _: True) if yes else confirm,
            accept_code_change=accept_code_change,
            allow_incomplete_input=allow_incomplete_input,
            target_task_seconds=target_task_seconds,
            max_failed_shards=max_failed_shards,
            max_in_flight=max_in_flight,
            display=display,
            handle_signals=handle_signals,
        )
        return run(self.spec(), options)

    @staticmethod
    def options(
        *,
        input: str | Sequence[str],
        output: str,
        backend: str,
        limit: int | None,
        sample: str | None,
        overwrite: bool,
        confirm: Callable[[str], bool] | None,
        accept_code_change: bool,
        allow_incomplete_input: bool,
        target_task_seconds: float,
        max_failed_shards: str | None,
        max_in_flight: int | None,
        display: Display | None,
        handle_signals: bool,
    ) -> RunOptions:
        """Returns the options of a run, checked. Raises ConfigError."""
        if target_task_seconds <= 0:
            raise ConfigError(f"--target-task-seconds {target_task_seconds:g} is not above 0")
        if max_in_flight is not None and max_in_flight < 1:
            raise ConfigError(f"--max-in-flight {max_in_flight} would run nothing; it is a number of tasks, at least 1")
        return RunOptions(
            inputs=(input,) if isinstance(input, str) else tuple(input),
            output=output,
            backend=backend,
            limit=limit,
            sample=None if sample is None else parse_percent(sample),
            overwrite=overwrite,
            confirm=confirm or (lambda _: False),
            accept_code_change=accept_code_change,
            allow_incomplete_input=allow_incomplete_input,
            target_task_s=target_task_seconds,
            max_failed_shards=max_failed_shards,
            max_in_flight=max_in_flight,
            display=display or NoDisplay(),
            handle_signals=handle_signals,
        )

    @classmethod
    def main(cls) -> None:
        """Runs the job as a program: `python jobs/toxicity.py --input ... --output ...`. Ends the process."""
        from curate.job.command import main

        main(cls)

    def spec(self) -> StageSpec:
        """Returns the job as a stage. Looks assets up. Raises ConfigError if a secret or an asset is missing."""
        self._resolve()
        digest = code_digest(type(self))
        output_format = _output_format(self.format)
        codec = self.codec or DEFAULT_CODEC
        suffix(output_format, codec)
        columns, required = _columns(self.columns)
        parameters = {one.name: one.recorded(self._given[one.name]) for one in self._params.values()}
        identity = {
            "job": self.name,
            "version": self.version if self.version is not None else f"code {digest}",
            "parameters": {name: value for name, value in parameters.items() if self._params[name].identity},
            "columns": columns if columns is None else {name: type and str(type) for name, type in columns.items()},
            "required": sorted(required),
            "output_schema": self.output_schema if self.output_schema is None else str(self.output_schema),
            "batch_size": self.batch_size,
            "shard_bytes": self.shard_bytes,
            "format": output_format.value,
            "codec": codec,
        }
        bad_rows = None if self.max_bad_rows is None else str(self.max_bad_rows)
        BadRowBudget(bad_rows)
        return StageSpec(
            name=self.name,
            identity=identity,
            # Without a version the digest is the identity, and there is nothing left to guard.
            code_digest=digest if self.version is not None else "",
            parameters=parameters,
            operator=JobOperator(self),
            columns=columns,
            required=required,
            output_schema=self.output_schema,
            batch_rows=self.batch_size,
            shard_bytes=self.shard_bytes,
            format=output_format,
            codec=codec,
            resources=Resources(float(self.num_cpus), float(self.num_gpus), self.memory, dict(self.resources)),
            max_tasks=self.max_tasks,
            max_bad_rows=bad_rows,
        )

    def _resolve(self) -> None:
        for one in self._params.values():
            value = self._given[one.name]
            if one.secret and value is not None and _secret_value(value) is None:
                raise ConfigError(
                    f"--{one.name.replace('_', '-')} names the environment variable {value!r}, which is not set; "
                    "export it where the job is started"
                )
            for asset in value if isinstance(value, list) else [value]:
                if isinstance(asset, Asset):
                    asset.resolve(open_store(asset.uri))


class JobOperator:
    """A job as the operator of a stage."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.reads_files = job._reads_files

    def setup(self) -> None:
        """Calls the job's setup."""
        self.job.setup()

    def apply(self, batch: Any, tally: Tally) -> Iterator[Any]:
        """Yields the tables that `process` makes of a batch."""
        self.job._tally = tally
        yield from _tables(self.job.process(batch), f"{type(self.job).__name__}.process")

    def apply_file(self, file: InputFile, tally: Tally) -> Iterator[Any]:
        """Yields the tables that `process_file` makes of a file, its dictionaries gathered to tables."""
        self.job._tally = tally
        process_file = self.job.process_file  # type: ignore[attr-defined]
        rows: list[Mapping[str, Any]] = []
        schema = self.job.output_schema
        for item in process_file(file) or ():
            if isinstance(item, Mapping):
                rows.append(item)
                if len(rows) >= self.job.batch_size:
                    yield pa.Table.from_pylist(rows, schema=schema)
                    rows = []
                continue
            if rows:
                yield pa.Table.from_pylist(rows, schema=schema)
                rows = []
            yield from _tables(item, f"{type(self.job).__name__}.process_file")
        if rows:
            yield pa.Table.from_pylist(rows, schema=schema)


def _tables(result: Any, where: str) -> Iterator[Any]:
    if result is None:
        return
    if isinstance(result, pa.Table):
        yield result
    elif isinstance(result, pa.RecordBatch):
        yield pa.Table.from_batches([result])
    elif isinstance(result, Iterable) and not isinstance(result, str | bytes | Mapping):
        for item in result:
            yield from _tables(item, where)
    else:
        raise TypeError(
            f"{where} gave {type(result).__name__}, expected a pyarrow.Table, an iterable of tables, or None"
        )


def _refuse_unknown(cls: type) -> None:
    """A lower-case attribute that means nothing is a typo: said when the class is made, not after a day's run."""
    annotations = inspect.get_annotations(cls)
    inherited = {name for base in cls.__mro__[1:] for name in dir(base)}
    for name, value in cls.__dict__.items():
        if name.startswith("_") or name in SETTINGS or name in annotations or name.isupper():
            continue
        if callable(value) or isinstance(value, property | classmethod | staticmethod):
            if name not in inherited and name not in HOOKS and (hint := did_you_mean(name, HOOKS)):
                raise ConfigError(f"{cls.__name__}.{name} is never called{hint}; start its name with _ if it is meant")
        elif name not in inherited:
            known = [*SETTINGS, *HOOKS, *getattr(cls, "_params", {})]
            raise ConfigError(
                f"{cls.__name__}.{name} is no attribute of a job{did_you_mean(name, known)}; annotate it to make it a "
                f"parameter ({name}: {type(value).__name__} = ...), or write it in capitals if it is a constant"
            )


def _check_setting(owner: str, name: str, value: Any, kinds: tuple[type, ...]) -> None:
    if isinstance(value, property):
        return
    if not isinstance(value, kinds) or isinstance(value, bool):
        names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        raise ConfigError(f"{owner}.{name} is {value!r} ({type(value).__name__}), expected {names}")
    if name in ("batch_size", "shard_bytes", "max_tasks", "memory") and isinstance(value, int) and value < 1:
        raise ConfigError(f"{owner}.{name} is {value}, expected at least 1")


def _columns(columns: Any) -> tuple[dict[str, Any] | None, frozenset[str]]:
    """Returns names with types, and those in which a null is a bad row: given as fields that are not nullable."""
    if columns is None:
        return None, frozenset()
    given = dict(columns) if isinstance(columns, Mapping) else dict.fromkeys(columns)
    fields = {name: value for name, value in given.items() if isinstance(value, pa.Field)}
    types = {name: fields[name].type if name in fields else value for name, value in given.items()}
    return types, frozenset(name for name, field in fields.items() if not field.nullable)


def _output_format(text: str) -> OutputFormat:
    try:
        return OutputFormat(text)
    except ValueError as error:
        known = [format.value for format in OutputFormat]
        raise ConfigError(
            f"no output format {text!r}{did_you_mean(text, known)}; there are: {', '.join(known)}"
        ) from error


def _secret_value(variable: str | None) -> str | None:
    import os

    return None if variable is None else os.environ.get(variable)


def _row_json(row: Mapping[str, Any]) -> str:
    import orjson

    return orjson.dumps(dict(row), default=str).decode()
