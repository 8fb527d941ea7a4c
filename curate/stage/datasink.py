"""Outputs that a user's class writes, for formats that curate has no writer for.

The record of a shard lies behind these bytes as it does behind those of JSON lines: in what gzip and zstd ignore. Where
readers of the format ignore what comes behind its end, the bytes are stored as they are, and the record comes behind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from curate.errors import ConfigError
from curate.objects.compress import STORED, Envelope, Sink
from curate.units import require_json
from curate.writers.output import OutputWriter


class SinkFile(Protocol):
    """The bytes of one output, on their way."""

    def write(self, data: bytes, /) -> Any:
        """Appends all of `data`."""


class SinkWriter(Protocol):
    """Makes the bytes of one output."""

    def write(self, table: pa.Table) -> None:
        """Takes further rows, in order."""

    def close(self) -> None:
        """Writes what is pending."""


class Datasink(ABC):
    """A format that curate has no writer for, for `Dataset.write_datasink`. Write a subclass.

    The object is pickled to every worker. The bytes depend on the rows alone: not on the tables that they come in, the
    time, or chance; else outputs that are made twice are reported as different.

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
    ...         for text in table["item"].to_pylist():
    ...             self.file.write(text.encode() + bytes([10]))
    ...     def close(self):
    ...         pass
    >>> import tempfile
    >>> curate.from_items(["a"]).write_datasink(f"{tempfile.mkdtemp()}/out", Lines(), backend="inline").books.rows_out
    1
    """

    suffix: ClassVar[str]
    """What names of outputs end in, such as `.npy`; behind it comes that of the codec."""
    ignores_rest: ClassVar[bool] = False
    """Whether readers of the format ignore bytes behind its end, as those of tar and npy do. Then outputs need no
    codec; others are compressed, for the record of a shard lies where readers of gzip and zstd do not look."""
    job_name: ClassVar[str] = "write_datasink"
    """What such a write is called in its ledger and on screens; part of its identity."""

    @abstractmethod
    def identity(self) -> Any:
        """Returns what decides the bytes of given rows, as JSON values: options, and a version of the class. A write is
        refused if its output was made with another one."""

    @abstractmethod
    def open(self, file: SinkFile, schema: pa.Schema) -> SinkWriter:
        """Returns what writes the rows of one output into `file`; they have this schema. Raises ConfigError for a
        schema that the format has no place for: it is also called before anything is written, to ask that."""


class SinkOutput(OutputWriter):
    """An output whose bytes a `Datasink` makes; `close` adds the record behind them."""

    def __init__(self, sink: Sink, schema: pa.Schema, datasink: Datasink, codec: str) -> None:
        super().__init__(schema)
        self._envelope = Envelope(sink, codec)
        self._writer = datasink.open(self._envelope, schema)

    def _take(self, table: pa.Table) -> None:
        if table.num_rows:
            self._writer.write(table)

    def close(self, record: Mapping[str, Any]) -> None:
        self._writer.close()
        self._envelope.close(record)


def sink_identity(sink: Datasink, codec: str | None) -> tuple[Any, str]:
    """Returns what decides the bytes of a sink's outputs beside their rows, as JSON values, and the codec. Raises
    ConfigError for a sink that does not say what it has to, and for one whose outputs need a codec."""
    if not isinstance(sink, Datasink):
        raise ConfigError(
            f"write_datasink takes a curate.Datasink, found {type(sink).__name__}; write a subclass of curate.Datasink "
            "with suffix, identity and open"
        )
    name, suffix, own = type(sink).__name__, getattr(sink, "suffix", None), sink.identity()
    if not isinstance(suffix, str) or not suffix.startswith(".") or not suffix[1:].replace(".", "").isalnum():
        raise ConfigError(f"{name}.suffix is {suffix!r}; expected a suffix of names such as '.npy'")
    require_json(f"{name}.identity()", own)
    if codec == STORED and not sink.ignores_rest:
        raise ConfigError(
            f"{name} is written with codec 'zstd' or 'gzip': the record of a shard lies behind its bytes, where their "
            "readers do not look. If readers of the format ignore what lies behind its end, say ignores_rest = True"
        )
    default = STORED if sink.ignores_rest else "zstd"
    return [name, suffix, own], default if codec is None else codec
