"""The shapes of jobs: over whole files, over a text column, over whole rows. The plumbing that jobs share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from curate.job.job import Job
from curate.job.operator import ProcessFile
from curate.job.params import param
from curate.job.settings import settings_of, with_settings
from curate.keywords import option
from curate.objects.places import POSITION
from curate.sources.inputs import InputFile, InputFiles
from curate.sources.protocol import RowSource

if TYPE_CHECKING:
    from curate.job.build import Made


@with_settings
class FileJob(Job):
    """Base of jobs that read whole files themselves. One file is one shard; its rows count as created.

    If `process_file` raises `curate.CorruptInput`, the input fails alone and is not retried. `self.quarantine` sets
    aside a bad part of a file; BadRow is for batches of rows.

    >>> from curate.testing import run_local
    >>> class Lines(curate.FileJob):
    ...     version = "1"
    ...     def process_file(self, file):
    ...         with file.open() as lines:
    ...             yield {"name": file.uri.rsplit("/", 1)[-1], "lines": sum(1 for _ in lines)}
    >>> run_local(Lines, files={"a.log": b"x\\ny\\n", "b.log": b""}).rows
    [{'name': 'a.log', 'lines': 2}, {'name': 'b.log', 'lines': 0}]
    """

    _reads_files: ClassVar[bool] = True

    def process_file(self, file: InputFile) -> Iterator[Any | Mapping[str, Any]]:
        """Yields tables, or rows as dictionaries, from `file`: it has uri, size, generation, id and `open()`.

        Dictionaries are collected into tables. Without an `output_schema` all dictionaries of a file need the same
        keys.
        """
        raise NotImplementedError

    def _rows(self, columns: Mapping[str, Any] | None, required: frozenset[str]) -> RowSource:
        del columns, required
        return InputFiles()

    def _made(self, columns: Mapping[str, Any] | None) -> Made:
        del columns
        from curate.job.build import Made

        return Made(ProcessFile(self, self._hidden), settings_of(self).held)


@with_settings
class RowsJob(Job):
    """Base of jobs that drop, move or repeat whole rows, with a parameter for the columns that rows have.

    Without it these are all columns of the first input, and every input needs them.

    >>> from curate.testing import run_local
    >>> class Long(curate.RowsJob):
    ...     version = "1"
    ...     def build(self, ds):
    ...         return ds.filter(lambda row: len(row["text"]) > 3)
    >>> rows = [{"id": 1, "text": "four", "url": "a"}, {"id": 2, "text": "two", "url": "b"}]
    >>> run_local(Long(keep_columns=["id", "text"]), rows).rows
    [{'id': 1, 'text': 'four'}]
    """

    keep_columns: list[str] = param(
        [],
        help="columns to read and keep, those that the job needs among them; none: all of the first input",
        identity=False,
    )

    @property
    def columns(self) -> list[str] | None:
        """Columns to read, which are part of the job's identity."""
        return self.keep_columns or None


@with_settings
class TextJob(Job):
    """Base of jobs on texts, with parameters for the text column, the id column and the columns to pass through.

    `process` never sees nulls, values that are no text, or text that is not UTF-8: such rows are quarantined.

    >>> import pyarrow.compute as pc
    >>> from curate.testing import run_local
    >>> class Length(curate.TextJob):
    ...     version = "1"
    ...     def process(self, batch):
    ...         return self.passed_through(batch).append_column("length", pc.utf8_length(batch[self.text_column]))
    >>> ran = run_local(Length(text_column="body"), [{"id": 1, "body": "four"}, {"id": 2, "body": None}])
    >>> ran.rows, len(ran.quarantine)
    ([{'id': 1, 'length': 4}], 1)
    """

    text_column: str = param("text", help="column that holds the text")
    id_column: str = param("id", help="column that identifies a row; passed through")
    keep_columns: list[str] = param([], help="additional columns to pass through")

    @property
    def columns(self) -> dict[str, Any]:
        """Columns to read: id and text, then those to keep. The text may not be null."""
        text = pa.field(self.text_column, pa.string(), nullable=False)
        # The text last: whatever else it is named as, it is the text.
        return {**dict.fromkeys([self.id_column, self.text_column, *self.keep_columns]), self.text_column: text}

    def passed_through(self, batch: Any, *, text: bool = False) -> Any:
        """Returns the batch's id, the text if `text`, the kept columns, and the position if rows have one."""
        place = [POSITION] * (POSITION in batch.column_names)
        return batch.select(
            list(dict.fromkeys([self.id_column, *[self.text_column] * text, *self.keep_columns, *place]))
        )

    def _made(self, columns: Mapping[str, Any] | None) -> Made:
        if self.attributes:
            self._say_unused(("keep_columns",), option("attributes"), "with")
        return super()._made(columns)
