"""The part of a Dataset that keeps its rows: in files, or in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Self

import pyarrow as pa

from curate import log
from curate.arrow.batches import joined
from curate.dataset.base import Base
from curate.dataset.batches import check_rows
from curate.dataset.stats import LastRun, terminal_display
from curate.driver.options import RunOptions
from curate.formats.record import OutputFormat
from curate.ledger.summary import Summary
from curate.plan.nodes import Checkpoint, Scan, may_be_incomplete
from curate.plan.stages import stage_of
from curate.sources.memory import Tables


class Writing(Base):
    """Rows that are kept: in files, by jobs that go on where they stopped, or in this process's memory."""

    __slots__ = ()

    def checkpoint(self, path: str | os.PathLike[str]) -> Self:
        """Has the rows written below `path` as Parquet before anything that follows, which reads them from there.

        The write is a job of its own: resumable, and free once it is complete. It outlives this dataset and is used
        again by whoever asks for the same: same files, same operators. Where `path` holds the rows of other operators,
        running raises ConfigError, with the difference; where shards of it fail, CheckpointFailed.

        >>> import tempfile, pathlib
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "in.jsonl").write_text('{"n": 1}\\n')
        >>> doubled = curate.read_json(folder / "in.jsonl").map(lambda row: {"n": row["n"] * 2})
        >>> kept = doubled.checkpoint(folder / "kept")
        >>> kept.take_all(), curate.read_parquet(folder / "kept").count()
        ([{'n': 2}], 1)
        """
        return self._with(Checkpoint(self._plan, os.fspath(path)))

    def materialize(self) -> Self:
        """Runs what there is to run, and returns its rows as a dataset that has them in this process's memory.

        What follows on it does not run it again.

        >>> numbers = curate.range(3).map(lambda row: {"n": row["id"] * 2}).materialize()
        >>> numbers.count(), numbers.take_all()
        (3, [{'n': 0}, {'n': 2}, {'n': 4}])
        """
        tables = self._tables()
        return self._held("materialize", tables, 0, sum(table.num_rows for table in tables))

    def split(self, n: int, *, equal: bool = False) -> list[Self]:
        """Runs what there is to run, and returns the rows in `n` datasets that follow each other, held as `materialize`
        does.

        Their numbers of rows differ by one at most; with `equal` they are the same, and the last rows, less than `n`,
        are left out. Raises ConfigError for `n` below 1.

        >>> [part.count() for part in curate.range(5).split(2)]
        [2, 3]
        >>> [part.take_all() for part in curate.range(5).split(2, equal=True)]
        [[{'id': 0}, {'id': 1}], [{'id': 2}, {'id': 3}]]
        """
        check_rows("n", n, 1)
        tables = self._tables()
        rows = sum(table.num_rows for table in tables)
        ends = [part * (rows // n) if equal else part * rows // n for part in range(n + 1)]
        return [self._held("split", tables, start, stop) for start, stop in pairwise(ends)]

    def _held(self, method: str, tables: Sequence[pa.Table], start: int, stop: int) -> Self:
        """Returns rows of tables as a dataset."""
        whole = joined(list(tables))
        ends = accumulate((table.num_rows for table in tables), initial=0)
        cut = [(max(first, start), min(last, stop)) for first, last in pairwise(ends)]
        pieces = tuple(whole.slice(first, last - first) for first, last in cut if first < last)
        return self._part(self._with(Scan(Tables(method, pieces, whole.schema))), LastRun(self._ran.last))

    def write_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        backend: str | None = None,
        codec: str | None = None,
        keep_stages: bool = False,
        drop_removed: bool = False,
    ) -> Summary:
        """Writes one Parquet file for each input shard below `path`, as a job, and returns the run's summary.

        Idempotent: what is written already is skipped, so that calling it again finishes what was left. Its identity
        is that of its operators: their code, defaults and closures. `codec` is zstd (default), snappy or none.
        `backend` is that of `using`, else ray.

        After an exchange there are as many files as it has outputs. Its stages are removed once all of them are there;
        with `keep_stages` they stay, below `path` or in $CURATE_SCRATCH, for the next run without it to remove. What an
        exchange gives depends on all of its input: when files are new, gone or changed since the write began, calling
        it again raises ConfigError.

        Raises ConfigError for a plan that closes over a value of which no identity can be made, and for a `path` that
        holds something else. Shards that fail do not raise: see `Summary.state`.

        >>> import pyarrow.compute as pc
        >>> import tempfile, pathlib, pyarrow.parquet as pq
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "in.jsonl").write_text('{"n": 1}\\n{"n": 2}\\n')
        >>> found = curate.read_json(folder / "in.jsonl").filter(pc.field("n") > 1, reason="small")
        >>> found.write_parquet(folder / "out", backend="inline").books.dropped
        {'small': 1}
        >>> curate.read_parquet(folder / "out").take_all()
        [{'n': 2}]
        """
        return self._write(path, OutputFormat.PARQUET, backend, codec, keep_stages, drop_removed)

    def write_json(
        self,
        path: str | os.PathLike[str],
        *,
        backend: str | None = None,
        codec: str | None = None,
        keep_stages: bool = False,
        drop_removed: bool = False,
    ) -> Summary:
        """Writes one file of JSON lines for each input shard below `path`; all else is as for `write_parquet`.

        `codec` is zstd (default) or gzip.

        >>> import tempfile, pathlib
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "in.jsonl").write_text('{"n": 1}\\n')
        >>> _ = curate.read_json(folder / "in.jsonl").write_json(folder / "out", backend="inline")
        >>> [path.name for path in (folder / "out").glob("in*")]
        ['in.jsonl.zst']
        """
        return self._write(path, OutputFormat.JSONL, backend, codec, keep_stages, drop_removed)

    def write_csv(
        self,
        path: str | os.PathLike[str],
        *,
        backend: str | None = None,
        codec: str | None = None,
        keep_stages: bool = False,
        drop_removed: bool = False,
    ) -> Summary:
        """Writes one CSV file with a header for each input shard below `path`; all else is as for `write_parquet`.

        `codec` is zstd (default) or gzip. A shard with a column that CSV has no way to write, such as a list, fails.

        >>> import gzip, tempfile, pathlib
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "in.jsonl").write_text('{"n": 1}\\n')
        >>> _ = curate.read_json(folder / "in.jsonl").write_csv(folder / "out", backend="inline", codec="gzip")
        >>> gzip.open(folder / "out" / "in.csv.gz", "rt").read().split()
        ['"n"', '1']
        """
        return self._write(path, OutputFormat.CSV, backend, codec, keep_stages, drop_removed)

    def _write(
        self,
        path: str | os.PathLike[str],
        format: OutputFormat,
        backend: str | None,
        codec: str | None,
        keep_stages: bool,
        drop_removed: bool,
    ) -> Summary:
        from curate.graph.entry import run

        log.ensure_configured()
        spec = stage_of(self._plan, format, codec)
        spec = replace(spec, tasks=replace(spec.tasks, memory_budget=self._how.memory_budget))
        return run(
            spec,
            RunOptions(
                inputs=spec.inputs,
                output=os.fspath(path),
                backend=backend or self._how.backend or "ray",
                keep_stages=keep_stages,
                drop_removed=drop_removed,
                allow_incomplete_input=may_be_incomplete(self._plan),
                display=self._ran.begin().write(terminal_display()),
            ),
        )
