"""Runs a job in this process, on rows in memory, without Ray, waits or leftovers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from curate.arrow.unknown import empty
from curate.clock import Clock
from curate.dataclass import dataclass, field
from curate.errors import ConfigError, SchemaMismatch
from curate.formats.encoding import Format, detect
from curate.formats.file_slice import FileSlice
from curate.formats.rows import read
from curate.graph.entry import run
from curate.job.job import Job
from curate.ledger import layout
from curate.ledger.compression import decompress
from curate.ledger.side_outputs import SIDES, schema_name
from curate.ledger.summary import Summary
from curate.objects.record import OF_TOKENS
from curate.observe.preview import broken_row
from curate.operators.convert import rows_to_table
from curate.stores.local import LocalStore
from curate.testing.clock import FakeClock

_BATCH_ROWS = 100_000


@dataclass(frozen=True)
class LocalRun:
    """The result of a job on a test input.

    >>> class Copy(Job):
    ...     version = "1"
    ...     def process(self, batch):
    ...         return batch
    >>> ran = run_local(Copy, [{"n": 1}])
    >>> ran.summary.state.value, ran.rows, ran.quarantine, len(ran.outputs), ran.sides
    ('complete', [{'n': 1}], [], 1, {})
    """

    summary: Summary
    """State, books, counters and failures, as `Job.run` returns them."""
    _table: pa.Table | None
    """None: outputs of their format are no table."""
    quarantine: list[dict[str, Any]]
    """The rows that were set aside, each with its reason."""
    outputs: dict[str, bytes] = field(repr=False)
    """The outputs as they were published, by name."""
    sides: dict[str, pa.Table]
    """The rows of each extra output, by its name, in the order of the names of its objects."""

    @property
    def table(self) -> pa.Table:
        """The rows of all outputs, in the order of their names. Raises ConfigError for formats of tokens alone."""
        if self._table is None:
            raise ConfigError(f"{', '.join(self.outputs)}: no table, but tokens alone; look at `outputs`")
        return self._table

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of `table`, as dictionaries."""
        found: list[dict[str, Any]] = self.table.to_pylist()
        return found


def run_local(
    job: Job | type[Job],
    rows: pa.Table | Iterable[Mapping[str, Any]] | None = None,
    *,
    files: Mapping[str, bytes] | None = None,
    directory: str | os.PathLike[str] | None = None,
    clock: Clock | None = None,
    **options: Any,
) -> LocalRun:
    """Runs a job in this process over rows, or over files by name, and returns the results.

    The input is `rows` (a table, or mappings of the same keys) in one Parquet file, or `files`: names with an ending
    that says the format, and their bytes. A class is run with its default parameters. Waits between retries take no
    time: the clock is fake unless one is passed. Everything is written to a temporary directory that is removed
    afterwards, or to `directory`, which stays: running again there resumes. `options` are those of `Job.run`.

    Shards that fail do not raise; look at `summary.state` and `summary.failures`. Raises ConfigError if the job cannot
    run as asked.

    >>> import pyarrow.compute as pc
    >>> from curate import Job
    >>> class Evens(Job):
    ...     version = "1"
    ...     def process(self, batch):
    ...         kept = batch.filter(pc.equal(pc.bit_wise_and(batch["n"], 1), 0))
    ...         self.drop(len(batch) - len(kept), "odd")
    ...         return kept
    >>> ran = run_local(Evens, [{"n": n} for n in range(5)])
    >>> ran.rows
    [{'n': 0}, {'n': 2}, {'n': 4}]
    >>> ran.summary.books.dropped
    {'odd': 2}
    """
    if (rows is None) == (files is None):
        raise ConfigError("run_local takes rows, or files by name: one of the two")
    job = job() if isinstance(job, type) else job
    with ExitStack() as stack:
        place = Path(directory) if directory else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        place = place.absolute()
        # The list of jobs that were run from here is the user's, and no test's.
        stack.enter_context(patch.dict(os.environ, CURATE_HOME=str(place / "home")))
        for name, data in (files if files is not None else {"rows.parquet": _parquet(rows)}).items():
            path = place / "in" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_bytes() != data:
                path.write_bytes(data)
        asked = job.options(input=place / "in", output=place / "out", **{"backend": "inline"} | options)
        summary = run(job.spec(), asked, clock=clock or FakeClock())
        return _read(summary, place / "out", tables=job.format not in OF_TOKENS)


def _table_of(rows: Any) -> pa.Table:
    if isinstance(rows, pa.Table):
        return rows
    given = [*rows]
    for row in given:
        if not isinstance(row, Mapping):
            raise ConfigError(f"run_local takes rows as dictionaries, or a table; found {type(row).__name__}")
    try:
        return rows_to_table("run_local was given", given) if given else pa.table({})
    except SchemaMismatch as error:
        raise ConfigError(str(error)) from None


def _parquet(rows: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(_table_of(rows), sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _read(summary: Summary, output: Path, tables: bool) -> LocalRun:
    paths = sorted(path for path in output.rglob("*") if path.is_file())
    names = {path.relative_to(output).as_posix(): path for path in paths}
    outputs = {name: path for name, path in names.items() if not name.startswith(f"{layout.LEDGER}/")}
    mains = [path for name, path in outputs.items() if not name.startswith(SIDES)]
    aside = [path for name, path in names.items() if name.startswith(layout.QUARANTINE)]
    return LocalRun(
        summary,
        _tables(output, "output", mains) if tables else None,
        [orjson.loads(line) for path in aside for line in decompress(path.read_bytes()).splitlines()],
        {name: path.read_bytes() for name, path in outputs.items()},
        {side.name: _side(output, side) for side in sorted(output.glob(f"{SIDES}*"))},
    )


def _side(output: Path, folder: Path) -> pa.Table:
    return _tables(output, schema_name(folder.name), sorted(path for path in folder.rglob("*") if path.is_file()))


def _tables(output: Path, name: str, paths: Sequence[Path]) -> pa.Table:
    """Returns the rows of outputs, with the schema that the ledger has of them."""
    stored = output / layout.SCHEMAS / f"{name}.arrow"
    schema = pa.ipc.read_schema(pa.py_buffer(stored.read_bytes())) if stored.exists() else pa.schema([])
    tables = [table for path in paths for table in _rows(path, schema)]
    return pa.concat_tables(tables) if tables else empty(schema)


def _rows(path: Path, schema: pa.Schema) -> Iterator[pa.Table]:
    encoding = detect(str(path))
    if encoding.format is Format.PARQUET:
        yield pq.read_table(path)
    elif len(schema):
        # Not as other stores are opened: a test may have put faults under those.
        store = LocalStore()
        object = store.stat(str(path))
        told = partial(broken_row, object)
        for table in read(FileSlice(store, object, encoding), schema, _BATCH_ROWS, told):
            yield table.cast(schema)
