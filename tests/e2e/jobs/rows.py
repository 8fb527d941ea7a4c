"""A job whose rows are bad in every way that there is, run inline by a clock that does not wait for backoffs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from curate.errors import BadRow
from curate.graph.entry import run
from curate.job.job import Job
from curate.testing.clock import FakeClock


class Rows(Job):
    """Count, drop and quarantine before and between the tables of a batch; say that rows are bad, or choke on them."""

    version = "1"
    columns = {"id": pa.int64(), "text": pa.string()}  # noqa: RUF012
    batch_size = 16
    max_bad_rows = "50%"
    quarantine_errors = True

    def process(self, batch: pa.Table) -> Iterator[pa.Table]:
        self.count("rows", len(batch))
        texts = batch["text"].to_pylist()
        for row in batch.filter(pc.equal(batch["text"], "aside")).to_pylist():
            self.quarantine(row, "asked for it")
        rest = batch.filter(pc.not_equal(batch["text"], "aside"))
        first, second = rest.slice(0, len(rest) // 2), rest.slice(len(rest) // 2)
        yield first
        for position, text in enumerate(texts):
            if text == "bad here":
                raise BadRow("bad here", row=position)
            if text == "bad":
                raise BadRow("bad somewhere")
            if text == "poison":
                raise ValueError(f"cannot read {text}")
        kept = second.filter(pc.not_equal(second["text"], "short"))
        self.drop(len(second) - len(kept), "short")
        self.count("weight", 0.1 * len(kept))
        yield kept


def main(source: str, output: str) -> int:
    """Runs the job, prints its result and returns its exit code."""
    job = Rows()
    summary = run(job.spec(), job.options(input=source, output=output, backend="inline"), clock=FakeClock())
    sys.stdout.write(json.dumps(summary.as_dict()) + "\n")
    return summary.state.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
