"""The part of a Dataset that keeps its rows in files."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Self

from curate import log
from curate.dataset.base import Base
from curate.dataset.stats import terminal_display
from curate.driver.options import RunOptions
from curate.formats.record import OutputFormat
from curate.ledger.summary import Summary
from curate.plan.nodes import Checkpoint, may_be_incomplete
from curate.plan.stages import stage_of


class Writing(Base):
    """Rows that are kept in files, by jobs that go on where they stopped."""

    __slots__ = ()

    def checkpoint(self, path: str | os.PathLike[str]) -> Self:
        """Saves progress: writes the rows below `path` as Parquet; everything after it reads them from there.

        The write is a separate job: resumable, and free once it is complete. Any later dataset with the same files and
        operators reuses it. Running raises ConfigError with the difference if `path` contains the rows of other
        operators, and CheckpointFailed if shards fail.

        >>> import tempfile, pathlib
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "in.jsonl").write_text('{"n": 1}\\n')
        >>> doubled = curate.read_json(folder / "in.jsonl").map(lambda row: {"n": row["n"] * 2})
        >>> kept = doubled.checkpoint(folder / "kept")
        >>> kept.take_all(), curate.read_parquet(folder / "kept").count()
        ([{'n': 2}], 1)
        """
        return self._with(Checkpoint(self._plan, os.fspath(path)))

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

        Idempotent: finished shards are skipped, so calling it again completes the rest. Its identity is that of its
        operators: their code, defaults and closures. `codec` is zstd (default), snappy or none. `backend` is that of
        `using`, else ray.

        An exchange writes one file per output of its own. Intermediate files are removed after success; with
        `keep_stages` they stay, below `path` or in $CURATE_SCRATCH, until a run without it. An exchange needs the
        complete input: if files were added, removed or changed since the write began, calling it again raises
        ConfigError.

        Raises ConfigError for functions that capture values that cannot be compared between runs, and for a `path` with
        other content. Shards that fail do not raise: see `Summary.state`.

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

        `codec` is zstd (default) or gzip. A shard with a column that CSV cannot store (a list, for example) fails.

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
        stage = stage_of(self._plan, format, codec)
        stage = replace(stage, tasks=replace(stage.tasks, memory_budget=self._how.memory_budget))
        return run(
            stage,
            RunOptions(
                inputs=stage.inputs,
                output=os.fspath(path),
                backend=backend or self._how.backend or "ray",
                keep_stages=keep_stages,
                drop_removed=drop_removed,
                allow_incomplete_input=may_be_incomplete(self._plan),
                display=self._ran.begin().write(terminal_display()),
            ),
        )
