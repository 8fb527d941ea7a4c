"""A job as the operator of a stage: calls the user's methods, and checks their results."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from curate import log
from curate.arrow.batches import kept, with_room
from curate.arrow.values import rounded
from curate.dataclass import dataclass, replace
from curate.errors import (
    BadRow,
    ConfigError,
    CorruptInput,
    GenerationMismatch,
    ObjectNotFound,
    SchemaMismatch,
    did_you_mean,
)
from curate.job.secrets import Secrets
from curate.ledger.side_outputs import MAIN
from curate.objects.places import PLACE, PLACE_TYPE, POSITION
from curate.operators.convert import rows_to_table
from curate.operators.protocol import Operator
from curate.operators.rows import row_as_it_is
from curate.pipeline.bad_rows import row_text
from curate.pipeline.classify import asked_for_column
from curate.pipeline.meters import Meter, reading
from curate.pipeline.pipeline import ShardContext
from curate.pipeline.shard_books import ShardBooks
from curate.pipeline.step import BatchPosition, Compute, SideTable
from curate.runtime.protocol import Pool, PoolSpec
from curate.sources.inputs import InputFile
from curate.tasks.books import LEAST, MOST


def check_name(text: Any, call: str) -> str:
    """Returns a reason or the name of a counter. Raises TypeError, ValueError showing the call."""
    if not isinstance(text, str):
        raise TypeError(f"{call}: expected the name of the counter as text, found {type(text).__name__}")
    if not text:
        raise ValueError(f"{call}: expected the name of the counter, found an empty text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{call}: the text is not valid Unicode") from None
    return text


def check_count(n: Any, call: str, *, whole: bool = True) -> Any:
    """Returns a number as Python has it: whole, or finite. Raises TypeError, ValueError showing the call."""
    value = n.item() if hasattr(n, "item") else n.as_py() if hasattr(n, "as_py") else n
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{call}: expected a number, found {type(n).__name__}")
    if whole and not isinstance(value, int):
        raise TypeError(f"{call}: expected a whole number of rows, found {value!r}")
    if not (LEAST <= value <= MOST if isinstance(value, int) else math.isfinite(value)):
        raise ValueError(f"{call}: {value} cannot be added up; give a finite number, or a whole one of 64 bits at most")
    return value


def row_json(row: Any) -> str:
    """Returns a row as one line of JSON: bytes as text or base64, what JSON does not have as Python shows it."""
    if not isinstance(row, Mapping):
        raise TypeError(f"expected a row as a dictionary, found {type(row).__name__}")
    return row_text(row)


def rows_as_table(rows: Sequence[Any]) -> pa.Table:
    """Returns rows that are dictionaries as a table; as one column of JSON, where they are no rows of one table."""
    texts = [row_json(row) for row in rows]
    try:
        columns = dict.fromkeys(name for row in rows for name in dict(row))  # Arrow takes those of the first row alone
        return pa.Table.from_pylist([columns | dict(row) for row in rows])
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return pa.table({"row": texts})


_FRAMES = {"pandas": "pa.Table.from_pandas(frame)", "polars": "frame.to_arrow()"}
"""How what other libraries call a table becomes one."""


class Hooks(Protocol):
    """What every job has that its operator calls."""

    _tally: ShardBooks | None

    def setup(self) -> None:
        """Loads what it needs, once per worker process."""


class BatchHooks(Hooks, Protocol):
    """What a job has that takes batches of rows."""

    def check_columns(self, found: pa.Schema) -> None:
        """Raises ConfigError if it cannot take rows with these columns."""

    def process(self, batch: Any) -> Any:
        """Returns what a batch becomes."""


class FileHooks(Hooks, Protocol):
    """What a job has that takes files."""

    @property
    def output_schema(self) -> pa.Schema | None:
        """The schema of what it yields; None: that of what it yields first."""

    @property
    def batch_size(self) -> int:
        """Rows of a table that dictionaries are gathered to, at most."""

    def process_file(self, file: InputFile) -> Iterator[Any]:
        """Yields tables, or rows as dictionaries."""


H = TypeVar("H", bound=Hooks)


class Places(Enum):
    """What becomes of the places of rows where a job is given these."""

    NONE = auto()
    """It is given none."""
    KEPT = auto()
    """They are a column of the batch, and have to be one of the result."""
    ATTRIBUTES = auto()
    """The result is attributes of the rows of the batch, and has their places beside."""


@dataclass(frozen=True, slots=True)
class Process(Operator):
    """A job's `process` as a step of a pipeline."""

    job: BatchHooks
    secrets: Secrets
    compute: Compute | None = None
    sides: tuple[str, ...] = ()
    """Extra outputs of which it may give tables."""
    places: Places = Places.NONE
    batch_rows: int | None = None
    num_cpus: float | None = None
    runs_code = True
    one_schema = False
    """The writer holds outputs to the schema of the job, and says what does not fit."""

    @property
    def name(self) -> str:
        return f"{type(self.job).__name__}.process"

    def schema(self, found: pa.Schema | None) -> pa.Schema | None:
        """Returns None: what `process` gives, only running it tells. Raises ConfigError where the job says that it
        cannot take rows with these columns."""
        if found is not None:
            self.job.check_columns(found)
        return None

    def identity(self) -> Any:
        """Returns the job's name: its code and parameters are told by the job."""
        return ["process", type(self.job).__name__]

    def opened(self) -> Process:
        """Returns the step with a copy of the job whose `setup` was called: what it loads stays out of the user's."""
        return replace(self, job=set_up(self.job, self.secrets))

    def apply(self, batch: Any, tally: ShardBooks, place: BatchPosition) -> Iterator[Any]:
        """Yields the tables that `process` makes of a batch, those of extra outputs as a `SideTable`."""
        del place
        self.job._tally = tally
        with self.secrets.hidden():
            given = batch.drop_columns([PLACE]) if self.places is Places.ATTRIBUTES else batch
            try:
                tables = tables_of(self.job.process(given), self.name, self.sides, given)
                yield from tables if self.places is Places.NONE else self._placed(tables, batch)
            except KeyError as error:
                asked_for_column(error, given, self._more_columns())
                raise

    def _more_columns(self) -> str:
        """Returns how a job whose batches have not all columns of its input is given others."""
        if getattr(self.job, "columns", None) is None:
            return ""
        where = "keep_columns" if hasattr(self.job, "keep_columns") else "columns of its class"
        return f"; name others of the input in {where}"

    def _placed(self, tables: Iterator[Any], batch: pa.Table) -> Iterator[Any]:
        """Yields tables with the places of their rows."""
        rows = 0
        for table in tables:
            if isinstance(table, SideTable):
                yield table
            elif self.places is Places.KEPT:
                if table.schema.get_field_index(POSITION) < 0:
                    raise ConfigError(
                        f"{self.name} returned no column {POSITION!r}, which keep_positions=True asks for; pass it on, "
                        "as `passed_through` does"
                    )
                yield table
            else:
                yield self._attributes(table, batch, rows)
                rows += table.num_rows
        if self.places is Places.ATTRIBUTES and rows != batch.num_rows:
            raise self._other_rows(f"{rows:,}", batch)

    def _attributes(self, table: pa.Table, batch: pa.Table, start: int) -> pa.Table:
        """Returns the id and the own columns of a table, of rows of the batch from `start` on, with their places."""
        if start + table.num_rows > batch.num_rows:
            raise self._other_rows(f"at least {start + table.num_rows:,}", batch)
        id, given = getattr(self.job, "id_column", None), frozenset(batch.column_names)
        own = [name for name in table.column_names if name not in given]
        if not own:
            raise ConfigError(
                f"{self.name} returned no column that its batch does not have: an attributes job adds columns"
            )
        kept = table.select([*([id] if id in table.column_names else ()), *own])
        return kept.append_column(pa.field(POSITION, PLACE_TYPE), batch[PLACE].slice(start, table.num_rows))

    def _other_rows(self, found: str, batch: pa.Table) -> ConfigError:
        return ConfigError(
            f"{self.name} returned {found} rows for {batch.num_rows:,}: an attributes job returns a row for each row, "
            "in order; give rows null instead of dropping them, and raise BadRow for one to be set aside"
        )

    def hide(self, text: str) -> str:
        """Returns text without the values of the job's secrets."""
        return self.secrets.hide(text)


class ProcessFile:
    """A job's `process_file` as the operator of a stage."""

    pools: tuple[PoolSpec, ...] = ()

    def __init__(self, job: FileHooks, secrets: Secrets) -> None:
        self._job = job
        self._secrets = secrets
        self._where = f"{type(job).__name__}.process_file"

    @property
    def metered(self) -> tuple[tuple[str, bool], ...]:
        """It is one step, in the task."""
        return ((self._where, False),)

    def connect(self, pools: Sequence[Pool]) -> None:
        """Takes none."""

    def setup(self) -> None:
        """Calls the setup of a copy of the job: what it loads stays out of the one that the user made."""
        self._job = set_up(self._job, self._secrets)

    def stream(
        self, batches: Iterator[InputFile], tally: ShardBooks, how: ShardContext, meters: Sequence[Meter] = ()
    ) -> Iterator[Any]:
        """Yields the tables that `process_file` makes of a file, its dictionaries gathered to tables."""
        del how
        for file in batches:
            yield from reading(self._applied(file, tally), meters[0])

    def apply(self, batch: Any, tally: ShardBooks) -> Iterator[Any]:
        """Yields nothing: what a file becomes, only a file tells."""
        del batch, tally
        return iter(())

    def _applied(self, file: InputFile, tally: ShardBooks) -> Iterator[Any]:
        self._job._tally = tally
        with self._secrets.hidden():
            try:
                yield from self._file_tables(file)
            except (ObjectNotFound, GenerationMismatch) as error:
                # A store may find that out only when it is read from.
                why = f"removed or replaced after the plan was made: {error}; run the job again, which looks at it anew"
                raise CorruptInput(f"{file.uri}: {why}") from error
            except SchemaMismatch as error:
                error.returned = True
                raise
            except BadRow as error:
                raise ConfigError(
                    f"BadRow({error.reason!r}) was raised for a file, but only rows can be quarantined; call "
                    "self.quarantine(row, reason) and continue, or raise CorruptInput to skip the file"
                ) from error

    def hide(self, text: str) -> str:
        """Returns text without the values of the job's secrets."""
        return self._secrets.hide(text)

    def _file_tables(self, file: InputFile) -> Iterator[Any]:
        rows = RowGatherer(self._job.output_schema, self._job.batch_size, self._where)
        items = self._job.process_file(file)
        if isinstance(items, Mapping | str | bytes) or not isinstance(items, Iterable | None):
            raise _wrong_type(self._where, items, "tables and dictionaries, each with `yield`, or None")
        for item in items if items is not None else ():
            if isinstance(item, Mapping):
                yield from rows.add(item)
            else:
                yield from rows.flush()
                yield from tables_of(item, self._where)
        yield from rows.flush()


def set_up(job: H, secrets: Secrets) -> H:
    """Returns a copy of a job after its `setup`."""
    log.ensure_configured()
    job = copy.copy(job)
    job._tally = None  # there is no shard that it could book anything to
    with secrets.hidden():
        job.setup()
    return job


def tables_of(result: Any, where: str, sides: Sequence[str] = (), given: pa.Table | None = None) -> Iterator[Any]:
    """Yields the tables that user code returned: one, several, or none; those of extra outputs as a `SideTable`.

    `given`: the table that it was given, whose memory is not copied.

    Raises TypeError for anything that is no table; SchemaMismatch for a table that has a column twice; ConfigError for
    an output that is not among `sides`, and for several outputs without the main one.
    """
    if result is None:
        return
    if isinstance(result, pa.Table | pa.RecordBatch):
        yield _table(result, where, given)
        return
    if _is_outputs(result, sides):
        yield from _mapped(result, where, sides, given)
        return
    one = isinstance(result, str | bytes | Mapping | pa.Array | pa.ChunkedArray)
    if one or not isinstance(result, Iterable) or _is_frame(result):
        raise _wrong_type(where, result, "a pyarrow.Table, an iterable of tables, or None")
    for item in result:
        if _is_outputs(item, sides):
            yield from _mapped(item, where, sides, given)
        elif item is not None:
            if not isinstance(item, pa.Table | pa.RecordBatch):
                raise _wrong_type(where, item, "pyarrow.Tables in it", f"a {type(result).__name__} of ")
            yield _table(item, where, given)


def _is_outputs(value: Any, sides: Sequence[str]) -> bool:
    """Returns whether a value is meant to be tables by output, and no table as a dictionary of columns."""
    return isinstance(value, Mapping) and (
        bool(sides) or any(isinstance(one, pa.Table | pa.RecordBatch) for one in value.values())
    )


def _mapped(outputs: Mapping[Any, Any], where: str, sides: Sequence[str], given: pa.Table | None) -> Iterator[Any]:
    for name in outputs:
        if name != MAIN and name not in sides:
            hint = did_you_mean(str(name), sides)
            raise ConfigError(
                f"{where} returned a table of {name!r}, which is not an output of the job{hint}; the outputs are "
                f"{', '.join(map(repr, (MAIN, *sides)))}; declare extra ones in sides"
            )
    if MAIN not in outputs:
        raise ConfigError(
            f"{where} returned the outputs {', '.join(map(repr, outputs)) or 'of no name'}, but not {MAIN!r}; return "
            "None for it if there are no rows"
        )
    yield from tables_of(outputs[MAIN], where, given=given)
    for name in sides:
        for table in tables_of(outputs.get(name), where, given=given):
            yield SideTable(name, table)


def _table(found: pa.Table | pa.RecordBatch, where: str, given: pa.Table | None) -> pa.Table:
    table = pa.Table.from_batches([found]) if isinstance(found, pa.RecordBatch) else found
    names = table.column_names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SchemaMismatch(f"{where} returned a table with {names.count(twice)} columns called {twice!r}; rename one")
    return with_room(kept(table, given))


def _is_frame(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in _FRAMES


def _wrong_type(where: str, value: Any, expected: str, of: str = "") -> TypeError:
    library = type(value).__module__.partition(".")[0]
    if library in _FRAMES:
        expected += f"; make a table with {_FRAMES[library]}"
    elif isinstance(value, Mapping):
        expected += "; make a table with pa.table(columns), or pa.Table.from_pylist(rows)"
    elif isinstance(value, pa.Array | pa.ChunkedArray):
        expected += "; add a column to the batch with batch.append_column(name, column)"
    elif of or isinstance(value, str):
        expected += "; make a table of values, one for each row, with pa.table({name: values})"
    return TypeError(f"{where} returned {of}{type(value).__name__}, expected {expected}")


class RowGatherer:
    """Gathers rows that are dictionaries to tables of a fixed number of rows, whose columns do not depend on it."""

    def __init__(self, schema: pa.Schema | None, batch_rows: int, where: str) -> None:
        """With a schema, a key that a row lacks is null; without, all rows of a file must have the same keys."""
        self._schema = schema
        self._batch_rows = batch_rows
        self._where = where
        self._names: list[str] | None = None if schema is None else schema.names
        self._rows: list[Mapping[str, Any]] = []

    def add(self, row: Mapping[str, Any]) -> Iterator[pa.Table]:
        """Takes a row; yields a table if that made one. Raises SchemaMismatch for a key that is not expected."""
        if self._names is None:
            self._names = list(row)
        if row.keys() - self._names or (self._schema is None and len(row) < len(self._names)):
            raise self._mismatch(row)
        self._rows.append(row_as_it_is(row))
        if len(self._rows) >= self._batch_rows:
            yield from self.flush()

    def flush(self) -> Iterator[pa.Table]:
        """Yields the rows that are left, if there are any."""
        if self._rows:
            rows, self._rows = self._rows, []
            if self._schema is None:
                yield rows_to_table(f"{self._where} returned", rows)
            else:
                yield pa.table([self._column(field, rows) for field in self._schema], schema=self._schema)

    def _column(self, field: pa.Field, rows: Sequence[Mapping[str, Any]]) -> pa.Array:
        values = [row.get(field.name) for row in rows]
        column = rounded(values, field.type)
        if column is not None:
            return column
        other = next((value for value in values if rounded([value], field.type) is None), None)
        raise SchemaMismatch(
            f"{self._where} returned {other!r:.100} for {field.name!r}, which does not fit its type in output_schema, "
            f"{field.type}; convert the value, or declare another type"
        )

    def _mismatch(self, row: Mapping[str, Any]) -> SchemaMismatch:
        names = self._names or []
        unexpected = [name for name in row if name not in names]
        missing = [name for name in names if name not in row]
        if unexpected:
            problem = f"the key {unexpected[0]!r}{did_you_mean(str(unexpected[0]), missing)}"
        else:
            problem = f"no key {missing[0]!r}"
        wanted = "output_schema" if self._schema is not None else "the file's first row"
        hint = "" if self._schema is not None else "; declare output_schema if some rows lack keys"
        return SchemaMismatch(
            f"{self._where} returned a row with {problem}; {wanted} has {', '.join(map(repr, names))}{hint}"
        )
