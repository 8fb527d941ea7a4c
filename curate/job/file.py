"""FileJob: a job over inputs that are no tables, such as WARC, PDF or tar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from curate.dataset.stage import InputFile
from curate.job.base import Job, settings_of
from curate.job.building import Made, Part, Parts
from curate.job.operator import ProcessFile


class FileJob(Job):
    """Base of jobs that take a file as it is. One file is one shard; its rows count as created.

    An input that turns out to be broken fails alone and is not tried again if `process_file` raises
    `curate.CorruptInput`. A part of it that is bad is set aside with `self.quarantine`; BadRow is for batches of rows.
    """

    _reads_files: ClassVar[bool] = True

    def process_file(self, file: InputFile) -> Iterator[Any | Mapping[str, Any]]:
        """Yields tables, or rows as dictionaries, from `file`: it has uri, size, generation and `open()`.

        Dictionaries are gathered to tables. Without an `output_schema` all those of a file have the same keys.
        """
        raise NotImplementedError

    def _made(self, columns: Mapping[str, Any] | None) -> Made:
        del columns
        return Parts((Part(ProcessFile(self, self._hidden), settings_of(self).held),))
