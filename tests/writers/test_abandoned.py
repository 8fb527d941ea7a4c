"""A writer that is let go of before its output is whole: as of a shard that fails, or where it is asked for what it
has no place for."""

from __future__ import annotations

import gc
import io
import warnings

import numpy as np
import pyarrow as pa
import pytest

from curate.objects.record import OF_TOKENS, OutputFormat
from curate.tokens.outputs import make_token_writer
from curate.writers.output import OutputWriter
from curate.writers.writer import make_writer

TABLES = {
    OutputFormat.NUMPY: pa.table({"data": pa.array([1.0] * (1 << 20))}),
    **dict.fromkeys(OF_TOKENS, pa.table({"tokens": pa.array([np.zeros(1 << 22, "u2")])})),
}
"""More than is held in memory."""


def made(format: OutputFormat) -> OutputWriter:
    make = make_token_writer if format in OF_TOKENS else make_writer
    return make(io.BytesIO(), TABLES[format].schema, format, "none")


@pytest.mark.quick(1)
@pytest.mark.ci(4)
@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("format", TABLES)
def test_no_file_stays_open(format: OutputFormat, written: bool) -> None:
    gc.collect()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ResourceWarning)
        writer = made(format)
        if written:
            writer.write(TABLES[format])
        del writer
        gc.collect()
    assert [str(one.message) for one in said if "empfile" in str(one.message) or "BufferedRandom" in str(one)] == []
