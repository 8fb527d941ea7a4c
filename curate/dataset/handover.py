"""Methods of a Dataset that hand its rows to other libraries: as a stream of Arrow, or as a dataset of Hugging Face."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from typing import Any

import pyarrow as pa

from curate.arrow.batches import joined
from curate.arrow.schema import conform, format_schema
from curate.dataset.base import Base
from curate.errors import ConfigError, SchemaMismatch
from curate.imports import need
from curate.plan.nodes import schema_of


class HandingOver(Base):
    """Rows for other libraries."""

    __slots__ = ()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Returns the rows as a stream of Arrow's PyCapsule interface, which Polars, DuckDB, pandas, pyarrow and
        `datasets` read: `polars.DataFrame(ds)`, `duckdb.from_arrow(ds)`, `pyarrow.table(ds)`.

        Rows are made as the reader asks for them, in the blocks of `iter_batches`: their memory is bounded by
        `Options.memory_budget`, whatever the reader keeps. The schema is known before the first row is asked for. Where
        a function makes the rows, that needs the first block. The run ends when the reader lets go of the stream.

        The reader raises its own error with the text of what went wrong here.

        >>> import pyarrow as pa
        >>> pa.RecordBatchReader.from_stream(curate.range(3)).read_next_batch().to_pydict()
        {'id': [0, 1, 2]}
        """
        reader = self._reader()
        return reader.__arrow_c_stream__(requested_schema)

    def to_huggingface(self, *, streaming: bool = False) -> Any:
        """Returns all rows as a `datasets.Dataset`, which have to fit into memory; with `streaming` as a
        `datasets.IterableDataset`, which makes them anew in each pass and keeps one block.

        For more rows than fit into memory, write them, and load what is written: `datasets.load_dataset("parquet",
        data_files="out/*.parquet")`, which maps the files into memory. Needs `pip install 'curate[huggingface]'`.
        Raises ConfigError for a type that `datasets` does not have.

        >>> curate.range(2).to_huggingface()[1]
        {'id': 1}
        """
        need("datasets", "to_huggingface needs datasets", "huggingface")
        import datasets

        table = self.schema().empty_table() if streaming else joined(self._tables())
        try:
            features = datasets.Features.from_arrow_schema(table.schema)
            if not streaming:
                return datasets.Dataset(table)
        except (ValueError, TypeError, KeyError, NotImplementedError, pa.ArrowException) as error:
            raise ConfigError(
                f"to_huggingface: the rows have ({format_schema(table.schema)}), and datasets refuses that: {error}; "
                "convert the column before, with with_column(name, curate.col(name).cast(type))"
            ) from error

        def rows() -> Iterator[dict[str, Any]]:
            for block in self._blocks():
                for batch in block.to_batches(max_chunksize=1024):
                    yield from batch.to_pylist()

        return datasets.IterableDataset.from_generator(rows, features=features)

    def _reader(self) -> pa.RecordBatchReader:
        """Returns a reader of the rows; letting go of it ends the run."""
        schema, stream, first = schema_of(self._plan), self._blocks(), None
        if schema is None:
            first = next(stream, None)
            schema = (self._blank() if first is None else first).schema
        return pa.RecordBatchReader.from_batches(schema, _batches(first, stream, schema))


def _batches(first: pa.Table | None, blocks: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yields the rows of blocks as batches of one schema, and ends what makes them. Raises SchemaMismatch for a block
    that it does not hold."""
    with closing(blocks):
        for block in chain([] if first is None else [first], blocks):
            try:
                table = conform(block, schema)
            except SchemaMismatch as error:
                raise SchemaMismatch(
                    f"{error}; a stream of Arrow has one schema, which its first rows decide: declare output_schema of "
                    "the function that makes the column, or convert it with with_column"
                ) from error
            yield from table.to_batches()
