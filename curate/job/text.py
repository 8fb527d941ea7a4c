"""TextJob: a job over one text column. The plumbing that toxicity, language and quality jobs share."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from curate.job.base import Job
from curate.job.params import param


class TextJob(Job):
    """Base of jobs that look at a text: which column holds it, which identifies a row, which are passed through.

    `process` never sees a null or a text that is no string: such rows are in quarantine.
    """

    text_column: str = param("text", help="column that holds the text")
    id_column: str = param("id", help="column that identifies a row; passed through")
    keep_columns: list[str] = param([], help="further columns to pass through")

    @property
    def columns(self) -> dict[str, Any]:
        """Columns to read: id and text, then those to keep. The text may not be null."""
        text = pa.field(self.text_column, pa.string(), nullable=False)
        # The text last: whatever else it is named as, it is the text.
        return {**dict.fromkeys([self.id_column, self.text_column, *self.keep_columns]), self.text_column: text}

    def passed_through(self, batch: Any) -> Any:
        """Returns the batch's id and kept columns, each once: what an output starts from."""
        return batch.select(list(dict.fromkeys([self.id_column, *self.keep_columns])))
