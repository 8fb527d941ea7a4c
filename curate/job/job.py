"""Job: one class, its parameters, `setup` and `process`. What every script shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import numpy as np
import pyarrow as pa

from curate import log
from curate.errors import ConfigError
from curate.job.asset import Asset
from curate.job.definition import checked_settings, define, job_digest, own_identity, refuse_missing_hook, snake_case
from curate.job.operator import Places, Process, check_count, check_name, row_json, rows_as_table
from curate.job.origin import job_origin
from curate.job.params import Param, naming_options, schema_text, with_options_named
from curate.job.secrets import Secrets, missing_secret, secret_value
from curate.job.settings import column_text, given_settings, parse_columns, refuse_options, settings_of, with_settings
from curate.keywords import option, shows_keywords
from curate.ledger.summary import Summary
from curate.objects.bad_line import RejectedRow
from curate.objects.places import PLACE, POSITION
from curate.objects.record import OutputFormat
from curate.pipeline.shard_books import BadRowBudget, ShardBooks
from curate.pipeline.step import ActorPool
from curate.resume.options import DEFAULTS, RunArguments, RunOptions, parse_run_options
from curate.sources.inputs import FileRows
from curate.sources.protocol import RowSource
from curate.stage.job_record import JobRecord
from curate.stage.stage import Stage, TaskSettings
from curate.units import MIB
from curate.writers.writer import default_codec, suffix

if TYPE_CHECKING:
    # Workers import this for the class of their job, and never plan: planning is half of all that they would import.
    from curate.dataset.dataset import Dataset
    from curate.job.build import Made


@with_settings
class Job:
    """Base of all jobs. A subclass defines the work on a batch of rows; everything else is shared.

    Annotated attributes are parameters (see `param`). `setup` runs once in each worker process, `process` for every
    batch of every shard. Batches are Arrow tables of at most `batch_size` rows and never cross shards.

    >>> import pyarrow as pa, pyarrow.compute as pc
    >>> from curate.testing import run_local
    >>> class Long(curate.Job):
    ...     version = "1"
    ...     least: int = curate.param(4, help="characters of a text that is kept")
    ...     most: int = curate.param(100, help="characters of a text that is kept, at most")
    ...
    ...     def check(self):
    ...         if self.least > self.most:
    ...             raise curate.ConfigError(f"least is {self.least}, above most, {self.most}; give a smaller one")
    ...     def check_columns(self, found):
    ...         if not pa.types.is_string(found.field("text").type):
    ...             raise curate.ConfigError("column 'text' is no text; choose another with columns")
    ...     def setup(self):
    ...         self.length = pc.utf8_length  # or a model, which takes long to load
    ...     def process(self, batch):
    ...         lengths = self.length(batch["text"])
    ...         self.count("characters", pc.sum(lengths).as_py())
    ...         for row in batch.filter(pc.greater(lengths, self.most)).to_pylist():
    ...             self.quarantine(row, "too long")
    ...         kept = batch.filter(pc.and_(pc.greater_equal(lengths, self.least), pc.less_equal(lengths, self.most)))
    ...         self.drop(batch.filter(pc.less(lengths, self.least)), "too short")
    ...         self.metric("calls", 1)
    ...         return kept
    >>> ran = run_local(Long(most=5), [{"text": "one"}, {"text": "three"}, {"text": "thirteen"}])
    >>> ran.rows, ran.summary.books.dropped, len(ran.quarantine), ran.summary.books.counters
    ([{'text': 'three'}], {'too short': 1}, 1, {'characters': 16})
    >>> Long.options(input="texts", output="long", limit=3).limit
    3
    >>> Long(least=200).run(input="texts", output="long", backend="inline")
    Traceback (most recent call last):
    curate.errors.ConfigError: least is 200, above most, 100; give a smaller one
    """

    name: ClassVar[str] = ""
    """Name of the job in ledgers and logs; by default the class's name in snake case."""
    version: ClassVar[str | None] = None
    """Version of what the job does, part of its identity. Without one, the digest of its code takes that place."""
    columns: ClassVar[Any] = None
    """Columns to read: names, names with Arrow types that go into the parser, or fields (one that is not nullable makes
    a null a bad row). None reads all of them."""
    output_schema: ClassVar[Any] = None
    """Schema of every output. None derives it from what the first rows of the plan become, and then holds it."""
    sides: ClassVar[Any] = ()
    """Names of extra outputs, below `<output>/_side/<name>/`, or names with the schema of each (None derives it). Part
    of the identity. Where `build` returns a mapping, that names them, and only schemas need to be said here."""
    batch_size: int = 4096
    """Rows of a batch, at most. Part of the identity."""
    shard_bytes: int = 256 * MIB
    """Stored bytes of a shard, at which inputs that can be split are. Part of the identity."""
    format: str = "parquet"
    """Format of the outputs: parquet, jsonl or csv. Part of the identity."""
    codec: str | None = None
    """Compression of the outputs; None: zstd. Part of the identity."""
    attributes: bool = False
    """Whether it writes attributes: of each row only its id, the columns that `process` adds, and its place in the
    input, for `Dataset.with_attributes`. `process` then returns a row for each row, in order. Part of the identity."""
    keep_positions: bool = False
    """Whether rows have their place in the input as the last column of a batch, `curate_position`, which `process` has
    to pass on. Part of the identity."""
    compute: ClassVar[ActorPool | None] = None
    """The pool of actors that `process` runs in; None: in the tasks that read, or, with `num_gpus` or `resources`, in a
    pool as large as the cluster allows, since Ray starts a new process for every task that holds a GPU."""
    num_cpus: float = 1
    """CPUs that a task holds, or an actor where `process` runs in a pool."""
    num_gpus: float = 0
    """GPUs per actor."""
    resources: ClassVar[Mapping[str, float]] = {}
    """Custom Ray resources that an actor holds, such as {"TPU": 4}."""
    memory: int | None = None
    """Bytes of memory that a task, or an actor, asks for; None leaves it to Ray."""
    memory_budget: int | None = None
    """Bytes of batches that all tasks have on their way to and from the actors of pools, about; None: 512 MiB."""
    max_tasks: int | None = None
    """Tasks at once, at most: for a service or a licence."""
    max_bad_rows: str | int | None = None
    """Rows of a shard that may be set aside: N, or "P%" up to 100,000; None: 0.1 %, at least 10, if one a file fits."""
    task_timeout_s: float | None = None
    """Seconds after which a shard that has not ended is cancelled by force and tried again; None: never."""
    quarantine_errors: bool = False
    """Whether a row for which `process` raises is quarantined: on the shard's last try, if it fails alone, twice, with
    the same type of error. Off, such a shard fails."""

    _params: ClassVar[dict[str, Param]] = {}
    _reads_files: ClassVar[bool] = False
    _secret_variables: dict[str, str | None]
    """The environment variables that secret parameters were given as."""
    _hidden: Secrets
    """What must not be written down."""
    _chain: Mapping[str, str] | None = None
    """The chain that it is a step of, for the ledger."""
    _tally: ShardBooks | None
    """The books of the shard at hand; None while there can be none."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.__dict__.get("name"):
            cls.name = snake_case(cls.__name__)
        cls._params = define(cls, Job)

    def __init__(self, **parameters: Any) -> None:
        """Sets parameters and tunable settings by name. Raises ConfigError for an unknown, mistyped or missing one."""
        owner = type(self).__name__
        for name, value in given_settings(type(self), parameters, self._params, RunArguments.__annotations__).items():
            self._set(name, value)
        self._secret_variables = {}
        for one in self._params.values():
            if one.name not in parameters and one.required:
                raise ConfigError(f"{owner} needs the parameter {one.name!r}{': ' if one.help else ''}{one.help}")
            value = one.check(parameters.get(one.name, one.default), owner)
            if one.secret:
                self._secret_variables[one.name] = value
                value = secret_value(value)
            self._set(one.name, value)
        self._hidden = Secrets([])
        # For calls of `process` without a run, in tests: whatever it books goes nowhere.
        self._tally = ShardBooks(BadRowBudget("100%"))
        self.log = log.get_logger(job=self.name)
        """Logs for `curate logs`: `self.log.info("model loaded", layers=6)`. Also from `process`, with the shard."""

    def _set(self, name: str, value: Any) -> None:
        try:
            setattr(self, name, value)
        except AttributeError as error:
            raise ConfigError(f"{type(self).__name__}.{name} is a property, so it cannot be passed") from error

    # What a subclass overrides

    def setup(self) -> None:
        """Loads what `process` needs, once per worker process. Parameters are set already."""

    def check(self) -> None:
        """Raises ConfigError for parameters that contradict each other. Called before anything is read or written."""

    def check_columns(self, found: pa.Schema) -> None:
        """Raises ConfigError for columns that `process` cannot take; called before any is written, where known."""

    def identity(self) -> Mapping[str, Any]:
        """Returns what else decides the bytes of outputs, as JSON values by name: what a file says. After `check`.

        >>> curate.Job().identity()
        {}
        """
        return {}

    def process(self, batch: Any) -> Any:
        """Returns the result for a batch (a pyarrow.Table): a table, an iterable of tables, or None for no rows.

        With extra outputs (see `sides`) also a mapping of names to results, including "main". Row counts describe the
        main output: rows that only an extra output gets count as dropped. Rows of an extra output are counted as "side
        NAME".

        Raise BadRow for a bad row, RetryLater if a service is busy or down, CorruptInput if the shard cannot be read.

        After RetryLater it is called again with the same batch after the requested wait; its counts for the batch are
        undone, and finished batches are kept. After a BadRow, or with `quarantine_errors`, it is called again with
        parts of the batch, whose results and counts are discarded, and then with all rows except the bad ones: keep no
        state between calls that this would spoil.
        """
        raise NotImplementedError

    def build(self, ds: Dataset) -> Dataset | Mapping[str, Dataset]:
        """Returns the dataset of the outputs, derived from `ds`, the rows of the inputs. Default: `process`.

        For jobs with several steps: `super().build(ds)` applies `process`. Nothing runs here. An input shard becomes
        one output, or one of each in a mapping of outputs that includes "main". Operators shared by all outputs run
        once; pools, checkpoints and exchanges must be shared.

        With an exchange (`sort`, `groupby`, `random_shuffle`, ...) the parts of the exchange become outputs, the inputs
        are fixed when the job begins, and `build` is called a second time: it must return the same. Settings,
        parameters and row counts apply to the whole job, for all its stages.

        Extra outputs are written below `<output>/_side/<name>/`, before the main one below `<output>/`. Row counts
        describe the main output. Rows written to an extra output are counted as "side NAME".

        >>> import pyarrow.compute as pc
        >>> from curate.testing import run_local
        >>> class Scored(curate.Job):
        ...     version = "1"
        ...     def build(self, ds):
        ...         scored = ds.with_column("chars", pc.utf8_length(pc.field("text")))
        ...         return {
        ...             "main": scored.filter(pc.field("chars") > 5, reason="short"),
        ...             "scores": scored.select_columns(["chars"]),
        ...         }
        >>> ran = run_local(Scored, [{"text": "a long one"}, {"text": "tiny"}])
        >>> ran.rows, ran.sides["scores"].to_pylist()
        ([{'text': 'a long one', 'chars': 10}], [{'chars': 10}, {'chars': 4}])
        >>> class Longest(curate.Job):
        ...     version = "1"
        ...     def build(self, ds):
        ...         return ds.with_column("chars", pc.utf8_length(pc.field("text"))).sort("chars", descending=True)
        >>> run_local(Longest, [{"text": "tiny"}, {"text": "a long one"}]).table["chars"].to_pylist()
        [10, 4]
        """
        settings = settings_of(self)
        places = Places.ATTRIBUTES if self.attributes else Places.KEPT if self.keep_positions else Places.NONE
        return ds._apply(Process(self, self._hidden, settings.pool, settings.sides, places))

    # What process may call

    def drop(self, rows: int | pa.Table | pa.RecordBatch | Sequence[Mapping[str, Any]], reason: str) -> None:
        """Records that rows of the current batch were dropped for `reason`: how many, or the rows themselves.

        Of the rows themselves, as a table or a list of dictionaries, some are kept for `curate page` and `curate
        report`: up to 20 a shard and reason, long texts cut, unless the run has `--no-samples`. They change no output.
        """
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        elif isinstance(rows, Sequence) and not isinstance(rows, str | bytes):
            rows = rows_as_table(rows)
        if isinstance(rows, pa.Table):
            name = self._named(reason, f"drop(rows, {reason!r})")
            self._booking("drop").drop_rows(rows, np.ones(rows.num_rows, bool), name)
        else:
            call = f"drop({rows!r}, {reason!r})"
            self._booking("drop").drop(check_count(rows, call), self._named(reason, call))

    def quarantine(self, row: Mapping[str, Any], reason: str, position: int | None = None) -> None:
        """Sets a row aside, with its reason, in the output's quarantine file; it counts against `max_bad_rows`.

        `position` is that of the row in the batch, or in the file in `process_file`, from 0: its line in the input is
        recorded. Without it, the first and last line of the batch are. After an exchange, or a step that adds or drops
        rows, row numbers among those that `process` was given of the shard are recorded instead of lines.
        """
        reason = self._named(reason, f"quarantine(row, {reason!r})")
        bad = RejectedRow(0, reason, self._hidden.hide(row_json(row)))
        self._booking("quarantine").set_aside(bad, position)

    def count(self, name: str, n: int | float = 1) -> None:
        """Adds `n` to a counter that is stored in the output.

        It is exact across kills and reruns, and changes the output's bytes: count only what depends on rows and
        parameters. What differs between runs (times, retries of a service) makes the output non-deterministic, which is
        reported; use `metric`. Counts of a `process` call that raises BadRow or RetryLater are undone.
        """
        call = f"count({name!r}, {n!r})"
        self._booking("count").count(self._named(name, call), check_count(n, call, whole=False))

    def metric(self, name: str, value: int | float) -> None:
        """Adds `value` to a metric, which is not stored in the output: for values that differ between runs.

        Summed over shards and shown by `curate status`, the summary and the ledger's events. Each finished shard counts
        once, with all `process` calls of the successful attempt, also those that raised RetryLater. A rerun adds to the
        recorded values; a killed run loses values not yet recorded.
        """
        call = f"metric({name!r}, {value!r})"
        self._booking("metric").metric(self._named(name, call), check_count(value, call, whole=False))

    def _booking(self, method: str) -> ShardBooks:
        if self._tally is None:
            raise RuntimeError(f"{type(self).__name__}.setup called {method}(), but setup runs outside of any shard")
        return self._tally

    def _named(self, text: str, call: str) -> str:
        return self._hidden.hide(check_name(text, call))

    # Running it

    @shows_keywords(RunArguments, DEFAULTS)
    def run(self, **options: Unpack[RunArguments]) -> Summary:
        """Runs the job over `input` (files, directories, globs) into the prefix `output` and returns the summary.

        Idempotent: calling it again completes the rest. Options are those of the command line. Raises ConfigError if
        the job cannot run with them; failed shards do not raise: the summary lists them, with `state` `failed`.
        """
        from curate.graph.entry import run

        log.ensure_configured()
        return run(self.spec(), self.options(**options))

    @classmethod
    @shows_keywords(RunArguments, DEFAULTS)
    def options(cls, **options: Unpack[RunArguments]) -> RunOptions:
        """Returns how to run, checked: what `run` takes, for those who call the driver themselves."""
        refuse_options(cls.__name__, options, cls._params, RunArguments.__annotations__)
        return parse_run_options(**options)

    @classmethod
    def main(cls) -> None:
        """Runs the job as a program: `python jobs/toxicity.py --input ... --output ...`. Ends the process.

        >>> curate.TextJob.main()  # doctest: +SKIP
        """
        from curate.job.command import main

        main(cls)

    def spec(self) -> Stage:
        """Returns the job as a stage. Looks assets up. Raises ConfigError if a secret or an asset is missing.

        >>> class Copy(curate.Job):
        ...     version = "1"
        ...     def process(self, batch):
        ...         return batch
        >>> Copy().spec().record.name
        'copy'
        """
        cls = type(self)
        if not hasattr(self, "_tally"):
            raise ConfigError(
                f"{cls.__name__}.__init__ does not call super().__init__; load models and files in setup() instead"
            )
        if self._reads_files or cls.build is Job.build:
            refuse_missing_hook(cls, "process_file" if self._reads_files else "process")
        settings = checked_settings(self)
        parameters = self._resolved()
        with naming_options(self._params, self):
            self.check()
        digest = job_digest(cls, is_identity=self.version is None)
        output_format = OutputFormat(self.format)
        suffix(output_format, codec := default_codec(output_format) if self.codec is None else self.codec)
        columns, required = parse_columns(cls.__name__, settings["columns"])
        schema = settings["output_schema"]
        identity = {
            "job": self.name,
            "version": self.version if self.version is not None else f"code {digest}",
            "parameters": {name: value for name, value in parameters.items() if self._params[name].identity},
            # As a list: a batch has its columns in this order.
            "columns": None if columns is None else [column_text(name, columns[name], required) for name in columns],
            "output_schema": schema_text(schema),
            "batch_size": self.batch_size,
            "shard_bytes": self.shard_bytes,
            "format": output_format.value,
            "codec": codec,
        }
        identity |= own_identity(self, identity)
        identity |= {name: True for name in ("attributes", "keep_positions") if getattr(self, name)}
        made = self._made(columns)
        if made.attributes:
            identity["with_attributes"] = list(made.attributes)
        declared = settings["sides"] if isinstance(settings["sides"], Mapping) else {}
        sides = {name: declared.get(name) for name in made.sides}
        if sides:
            # Another output is another job: what is finished without it is not finished with it.
            identity["sides"] = {name: schema_text(schema) for name, schema in sides.items()}
        record = JobRecord(
            self.name,
            identity,
            output_format,
            codec,
            # Without a version the digest is the identity, and there is nothing left to guard.
            code_digest=digest if self.version is not None else "",
            parameters=parameters,
            output_schema=schema,
            sides=sides,
            origin=job_origin(self),
        )
        tasks = TaskSettings(
            self.batch_size,
            self.shard_bytes,
            made.resources,
            max_tasks=self.max_tasks,
            memory_budget=self.memory_budget,
            max_bad_rows=None if self.max_bad_rows is None else str(self.max_bad_rows),
            quarantine_errors=self.quarantine_errors,
            task_timeout_s=None if self.task_timeout_s is None else float(self.task_timeout_s),
        )
        return made.stages(Stage(record, tasks, made.operator, self._rows(columns, required)))

    def _say_unused(self, names: Iterable[str], other: str, beside: str = "without") -> None:
        """Logs which of these parameters are not as by default, though they have no effect without `other`, or with."""
        if given := [option(name, ...) for name in names if getattr(self, name) != self._params[name].default]:
            verb = "has" if len(given) == 1 else "have"
            self.log.warning(f"{', '.join(given)} {verb} no effect {beside} {other}", options=given)

    def _made(self, columns: Mapping[str, Any] | None) -> Made:
        """Returns what happens to rows, from one durable place to the next."""
        from curate.job.build import inputs_of, made_of

        build = with_options_named(self._params, self, self.build)
        return made_of(settings_of(self), inputs_of(columns, self._places), build)

    def _rows(self, columns: Mapping[str, Any] | None, required: frozenset[str]) -> RowSource:
        """Returns what is read of the inputs."""
        return FileRows(columns, required, places=self._places)

    @property
    def _places(self) -> tuple[str, ...]:
        """The names of the columns that say where a row lies."""
        return (PLACE,) if self.attributes else (POSITION,) if self.keep_positions else ()

    def _resolved(self) -> dict[str, Any]:
        """Returns the parameters as the ledger records them. An attribute set after the job was made counts."""
        recorded: dict[str, Any] = {}
        secrets = []
        for one in self._params.values():
            if one.secret:
                variable = self._secret_variables[one.name]
                value = secret_value(variable)
                if variable is not None and value is None:
                    raise missing_secret(one.option, variable)
                secrets += [value] if value is not None else []
                recorded[one.name] = variable
            else:
                value = one.check(getattr(self, one.name), type(self).__name__)
                for asset in value if isinstance(value, list) else [value]:
                    if isinstance(asset, Asset):
                        asset.look_up(option(one.name, ...))
                recorded[one.name] = one.recorded(value)
            setattr(self, one.name, value)
        self._hidden = Secrets(secrets)
        return recorded
