"""Makes the writer of an output of tokens."""

from __future__ import annotations

import io

import pyarrow as pa

from curate.objects.compress import Sink
from curate.objects.record import OutputFormat
from curate.tokens.datatrove import DatatroveOutput
from curate.tokens.mds import MdsOutput
from curate.tokens.megatron import MegatronOutput
from curate.tokens.memmap import MemmapOutput
from curate.writers.writer import OutputWriter, suffix


def make_token_writer(sink: Sink, schema: pa.Schema, format: OutputFormat, codec: str, *beside: Sink) -> OutputWriter:
    """Returns a writer into `sink`, and into `beside` where the format has several files; without, it is asked for what
    it has no place for. Raises ConfigError for types that the format has no place for."""
    suffix(format, codec)
    match format:
        case OutputFormat.MEMMAP:
            return MemmapOutput(sink, schema, codec)
        case OutputFormat.MEGATRON:
            return MegatronOutput(sink, schema, codec, *(beside or [io.BytesIO()]))
        case OutputFormat.DATATROVE:
            return DatatroveOutput(sink, schema, *(beside or [io.BytesIO(), io.BytesIO()]))
        case _:
            return MdsOutput(sink, schema, codec)
