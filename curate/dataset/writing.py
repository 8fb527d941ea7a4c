"""Methods of a Dataset that write its rows to files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Self, TypedDict, Unpack

from curate import log
from curate.dataset.base import Base
from curate.dataset.execute import Options, run_options_of, stages_of, watching
from curate.dataset.stats import terminal_display
from curate.errors import ConfigError
from curate.exchange.kinds.base import key_columns
from curate.exchange.kinds.partition import Partitioned
from curate.keywords import shows_keywords
from curate.ledger.summary import Summary
from curate.objects.record import OutputFormat
from curate.operators.arguments import path_text
from curate.operators.columns import Drop, Select
from curate.plan.nodes import Checkpoint, may_be_incomplete
from curate.plan.stages import stage_of
from curate.resume.options import DEFAULTS, SharedArguments, parse_run_options
from curate.stage.datasink import Datasink, sink_identity


class _Places(TypedDict, total=False):
    partition_cols: Sequence[str] | None
    backend: str | None


class WriteOptions(_Places, SharedArguments, total=False):
    """How a dataset is written this time: the options of `Job.run` that mean something for a dataset, and its own."""

    yes: bool
    """Answers what `overwrite` asks."""
    max_bad_rows: str | int | None


WRITE_DEFAULTS = {name: DEFAULTS[name] for name in ("yes", *SharedArguments.__annotations__)}
AFTER_FIXING = (
    "after fixing the cause, run it again; after fixing a function, whose code is part of what the output is, with "
    "overwrite=True, yes=True"
)
USING = frozenset(one.name for one in fields(Options))


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
        return self._with(Checkpoint(self._plan, path_text(path, "checkpoint")))

    @shows_keywords(WriteOptions, WRITE_DEFAULTS)
    def write_parquet(
        self, path: str | os.PathLike[str], *, codec: str | None = None, **options: Unpack[WriteOptions]
    ) -> Summary:
        """Writes one Parquet file for each input shard below `path`, as a job, and returns the run's summary.

        Idempotent: finished shards are skipped, so calling it again completes the rest. Its identity is that of its
        operators: their code, defaults and closures. `codec` is zstd (default), snappy or none. `backend` is that of
        `using`, else `$CURATE_BACKEND`, else auto.

        An exchange writes one file per output of its own. Intermediate files are removed after success; with
        `keep_stages` they stay, below `path` or in $CURATE_SCRATCH, until a run without it. An exchange needs the
        complete input: if files were added, removed or changed since the write began, calling it again raises
        ConfigError.

        With `partition_cols`, rows go through an exchange to folders of their values, such as `year=2024/lang=en/`:
        those of a folder in the order of the input, in one file, or in several if they are many. The files lack these
        columns, and `read_parquet` adds them again: numbers as 32-bit ones, also texts of digits unless `schema`
        declares them. Values are texts, integers, booleans, dates or null, of at most 10,000 folders in all; for more,
        partition by columns with fewer values.

        The other options are those of `Job.run`. `overwrite=True, yes=True` first removes what an earlier write made
        below `path`; `retry_failed` runs the shards that failed, and `redo_stale` those again whose input changed.
        `limit` and `sample` choose shards of this run, and `max_bad_rows` says how many rows of a shard may be
        quarantined: a number, or a percentage, but then at most 100,000. Some of them can be set by `using` as well;
        those that are given here hold.

        Raises ConfigError for functions that capture values that cannot be compared between runs, and for a `path` with
        other content, and WriteFailed, with the summary, if shards fail.

        >>> import pyarrow.compute as pc
        >>> import tempfile, pathlib, pyarrow.parquet as pq
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "in.jsonl").write_text('{"n": 1}\\n{"n": 2}\\n')
        >>> found = curate.read_json(folder / "in.jsonl").filter(pc.field("n") > 1, reason="small")
        >>> found.write_parquet(folder / "out", backend="inline").books.dropped
        {'small': 1}
        >>> curate.read_parquet(folder / "out").take_all()
        [{'n': 2}]
        >>> dated = curate.from_items([{"n": 1, "year": 2024}, {"n": 2, "year": 2025}])
        >>> _ = dated.write_parquet(folder / "dated", partition_cols=["year"], backend="inline")
        >>> sorted(str(path.relative_to(folder)) for path in folder.glob("dated/year=*/*"))
        ['dated/year=2024/part-00000-of-00001.parquet', 'dated/year=2025/part-00000-of-00001.parquet']
        >>> curate.read_parquet(folder / "dated").take_all()
        [{'n': 1, 'year': 2024}, {'n': 2, 'year': 2025}]
        """
        return self._write(path, OutputFormat.PARQUET, options, codec)

    @shows_keywords(WriteOptions, WRITE_DEFAULTS)
    def write_json(
        self, path: str | os.PathLike[str], *, codec: str | None = None, **options: Unpack[WriteOptions]
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
        return self._write(path, OutputFormat.JSONL, options, codec)

    @shows_keywords(WriteOptions, WRITE_DEFAULTS)
    def write_csv(
        self, path: str | os.PathLike[str], *, codec: str | None = None, **options: Unpack[WriteOptions]
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
        return self._write(path, OutputFormat.CSV, options, codec)

    @shows_keywords(WriteOptions, WRITE_DEFAULTS)
    def write_webdataset(
        self, path: str | os.PathLike[str], *, codec: str | None = None, **options: Unpack[WriteOptions]
    ) -> Summary:
        """Writes one WebDataset archive (`.tar`) for each input shard below `path`; all else is as for `write_parquet`.

        A row is a sample, and each column a file of it: `<__key__>.<column>`. Without a column `__key__`, the number of
        the row in its output is its key. Columns have text or bytes; `cls` may have integers, `json` any values, and
        `png`, `jpg` and the like pixels (lists or tensors of height x width x bands). A null is no file. Keys that are
        there twice, and other types, are refused. `codec` is none (default) or gzip. The record of the shard lies
        behind the end of the archive, where readers of tar do not look.

        >>> import tempfile, pathlib, tarfile
        >>> out = pathlib.Path(tempfile.mkdtemp()) / "out"
        >>> made = curate.from_items([{"__key__": "a", "txt": "one", "json": {"n": 1}}])
        >>> _ = made.write_webdataset(out, backend="inline")
        >>> tarfile.open(out / "part-00000-of-00001.tar").getnames()
        ['a.txt', 'a.json']
        """
        return self._write(path, OutputFormat.WEBDATASET, options, codec)

    @shows_keywords(WriteOptions, WRITE_DEFAULTS)
    def write_tfrecords(self, path: str | os.PathLike[str], **options: Unpack[WriteOptions]) -> Summary:
        """Writes one TFRecord file of `tf.train.Example` for each input shard below `path`; else as `write_parquet`.

        Columns have text, bytes, integers, 32-bit floats, or lists of one of these; other types are refused, 64-bit
        floats too. Null is a feature that is missing. Files are compressed with gzip, because the record of the shard
        lies where readers of gzip do not look: read them with `compression_type="GZIP"` in TensorFlow.

        >>> import tempfile, pathlib
        >>> out = pathlib.Path(tempfile.mkdtemp()) / "out"
        >>> _ = curate.range(2).write_tfrecords(out, backend="inline")
        >>> [path.name for path in out.glob("part*")], curate.read_tfrecords(out).take_all()
        (['part-00000-of-00001.tfrecords.gz'], [{'id': 0}, {'id': 1}])
        """
        return self._write(path, OutputFormat.TFRECORDS, options)

    @shows_keywords(WriteOptions, WRITE_DEFAULTS)
    def write_numpy(self, path: str | os.PathLike[str], *, column: str, **options: Unpack[WriteOptions]) -> Summary:
        """Writes `column` as one numpy array (`.npy`) for each input shard below `path`; else as `write_parquet`.

        Rows are the first dimension. The column has numbers, or tensors or lists of numbers, all of one shape. Null and
        another shape fail the shard, and other types are refused. Until the last row is known, the values wait in a
        temporary file. The record of the shard lies behind the array, where `numpy.load` does not look.

        >>> import tempfile, pathlib, numpy
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> made = curate.from_items([{"id": 1, "vector": [0.5, 1.0]}, {"id": 2, "vector": [0.0, 2.0]}])
        >>> _ = made.write_numpy(folder / "out", column="vector", backend="inline")
        >>> numpy.load(folder / "out" / "part-00000-of-00001.npy").tolist()
        [[0.5, 1.0], [0.0, 2.0]]
        """
        if not isinstance(column, str):
            raise ConfigError(f"write_numpy(column={column!r}): expected the name of a column")
        folders = () if (cols := options.get("partition_cols")) is None else key_columns("partition_cols", cols)
        kept = self._apply(Select(tuple(dict.fromkeys([column, *folders]))))
        return kept._write(path, OutputFormat.NUMPY, options)

    @shows_keywords(WriteOptions, WRITE_DEFAULTS)
    def write_datasink(
        self, path: str | os.PathLike[str], sink: Datasink, *, codec: str | None = None, **options: Unpack[WriteOptions]
    ) -> Summary:
        """Writes what a `curate.Datasink` makes of the rows of each shard; all else is as for `write_parquet`.

        The sink makes bytes. Names, publishing, skipping, records and books stay curate's. A write knows the sink by
        its class name, suffix and `identity()`. `codec` is zstd (default) or gzip; none, which is the default there,
        only for a sink that says `ignores_rest`. Raises ConfigError for what is no Datasink.

        >>> import gzip, tempfile, pathlib
        >>> class Lines(curate.Datasink):
        ...     suffix = ".lines"
        ...     def identity(self):
        ...         return "1"
        ...     def open(self, file, schema):
        ...         return LinesWriter(file)
        >>> class LinesWriter:
        ...     def __init__(self, file):
        ...         self.file = file
        ...     def write(self, table):
        ...         self.file.write("".join(f"{text}\\n" for text in table["item"].to_pylist()).encode())
        ...     def close(self):
        ...         pass
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> texts = curate.from_items(["a", "b"])
        >>> _ = texts.write_datasink(folder / "out", Lines(), codec="gzip", backend="inline")
        >>> gzip.open(folder / "out" / "part-00000-of-00001.lines.gz", "rt").read().split()
        ['a', 'b']
        """
        identity, codec = sink_identity(sink, codec)
        return self._write(path, OutputFormat.SINK, options, codec, sink, identity)

    def _write(
        self,
        path: str | os.PathLike[str],
        format: OutputFormat,
        options: WriteOptions,
        codec: str | None = None,
        sink: Datasink | None = None,
        sink_identity: Any = None,
    ) -> Summary:
        from curate.graph.entry import run

        log.ensure_configured()
        where = options.pop("backend", None) or self._how.backend
        partition_cols = options.pop("partition_cols", None)
        changes: dict[str, Any] = {name: value for name, value in options.items() if name in USING}
        how = replace(self._how, **changes)
        plan = self._plan if partition_cols is None else self._partitioned(partition_cols)._plan
        stage = stage_of(plan, format, codec, replace(stages_of(how), sink=sink, sink_identity=sink_identity))
        own = {name: value for name, value in options.items() if name not in USING}
        given: dict[str, Any] = {"allow_incomplete_input": may_be_incomplete(plan), **run_options_of(how), **own}
        if where:
            given["backend"] = where
        shown = self._ran.begin().write(terminal_display())
        # What is in memory has no input.
        asked = parse_run_options(input=stage.inputs or "none", output=path, display=shown, **given)
        with watching(plan, where):
            return run(stage, replace(asked, inputs=stage.inputs)).raise_unless_complete(AFTER_FIXING)

    def _partitioned(self, columns: Sequence[str]) -> Self:
        """Returns the rows by the values of these columns, in folders that say them: without the columns."""
        names = key_columns("partition_cols", columns)
        return self._exchange(Partitioned(names))._apply(Drop(names))
