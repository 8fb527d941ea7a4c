"""The record of a job in the ledger: its identity, and the format of its outputs."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
import pyarrow as pa

from curate.arrow.unknown import is_of_no_rows
from curate.dataclass import dataclass, field, replace
from curate.errors import ConfigError
from curate.keywords import chosen_with
from curate.objects.compress import Sink
from curate.objects.record import OF_TOKENS, OutputFormat
from curate.stage.datasink import SinkOutput
from curate.writers.output import OutputWriter
from curate.writers.writer import make_writer, suffix


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Which job it is: what the ledger keeps of it, by which its outputs are known as its own."""

    name: str
    identity: Mapping[str, Any]
    """Everything that decides the bytes of an output but the inputs: JSON values only."""
    format: OutputFormat
    codec: str
    code_digest: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """All parameters as they were given, for the reader of the ledger; secrets by name."""
    output_schema: Any = None
    """The schema of the outputs; None: derived from the first rows."""
    sides: Mapping[str, Any] = field(default_factory=dict)
    """Schemas of the extra outputs by name, which are part of the identity; None: derived from the first rows."""
    sink: Any = None
    """The `Datasink` that makes the bytes of outputs of that format."""
    sink_suffix: str = ""
    """Its suffix."""
    origin: Mapping[str, Any] = field(default_factory=dict)
    """Where the job comes from, for who makes it again: script, class, settings that were given."""
    seed: int | None = None
    """The seed of a last stage for which the first run of the job chose one: see `mark`."""

    fingerprint: str = field(init=False, compare=False)
    """16 hex digits of the identity: the same for the same bytes out, whoever runs it."""

    def __post_init__(self) -> None:
        for value in _numbers(self.identity):
            if not -(2**63) <= value < 2**64:
                raise ConfigError(f"{self.name}: {value} is too large; expected a number from -2^63 to 2^64 - 1")
        canonical = orjson.dumps(dict(self.identity), option=orjson.OPT_SORT_KEYS)
        object.__setattr__(self, "fingerprint", hashlib.sha256(canonical).hexdigest()[:16])

    def of_stage(self, identity: Mapping[str, Any], format: OutputFormat, codec: str) -> JobRecord:
        """Returns the record of a stage before the last one, of this identity. What the job says of its own outputs is
        nothing to it, nor where the job comes from: what makes the job again makes all of it."""
        made = replace(self, identity=identity, format=format, codec=codec, output_schema=None, sides={}, origin={})
        return replace(made, sink=None, sink_suffix="", seed=None)

    @property
    def mark(self) -> dict[str, Any]:
        """By what outputs, events and `job.json` are known as this job's. A seed that a run has chosen is no part of
        the identity, and it decides the bytes: begun again, the job makes other outputs of the same names. A worker
        that outlives an overwrite may publish one of before, which must not be taken for one of these."""
        return {"fingerprint": self.fingerprint} | ({} if self.seed is None else {"seed": self.seed})

    def is_of(self, told: Mapping[str, Any]) -> bool:
        """Returns whether what is `told` with an output, or of a job, is of this one; earlier versions tell no seed."""
        return all(told.get(name, value) == value for name, value in self.mark.items())

    @property
    def suffix(self) -> str:
        """Returns the suffix of output names."""
        return self.sink_suffix + suffix(self.format, self.codec)

    def make_writer(self, file: Sink, schema: Any, *beside: Sink) -> OutputWriter:
        """Returns a writer of an output into `file`, and into another one beside it where it has two.

        Raises ConfigError for types that the format has no place for.
        """
        if self.sink is not None:
            return SinkOutput(file, schema, self.sink, self.codec)
        if self.format in OF_TOKENS:
            from curate.tokens.outputs import make_token_writer

            return make_token_writer(file, schema, self.format, self.codec, *beside)
        return make_writer(file, schema, self.format, self.codec)

    def refuse_unwritable(self, schema: Any) -> None:
        """Raises ConfigError for types that the format has no place for, of outputs whose schema is declared, extra
        ones too, or is this one; None, or a column of nulls: only the rows tell. So no stage runs whose outputs cannot
        be written."""
        schema = schema if self.output_schema is None else self.output_schema
        if self.format is not OutputFormat.RUN:
            for side, one in ((None, schema), *self.sides.items()):
                if one is not None and not is_of_no_rows(one) and not any(map(pa.types.is_null, one.types)):
                    self.check_writable(one, side)

    def check_writable(self, schema: pa.Schema | None, side: str | None = None) -> None:
        """Raises ConfigError if rows of a schema cannot be written; None: unknown. `side`: of that extra output."""
        if schema is not None:
            try:
                self.make_writer(io.BytesIO(), schema)
            except ConfigError as error:
                if self.sink is not None:  # a class of the user's, and no format
                    raise
                if side is not None:
                    raise ConfigError(
                        f"the extra output {side!r} is written as the output is: {error}{chosen_with('format')}; in a "
                        "dataset, put a checkpoint behind the step that makes it, which writes it as Parquet"
                    ) from error
                raise ConfigError(f"{error}{chosen_with('format')}") from error


def _numbers(value: Any) -> Iterator[int]:
    """Yields the whole numbers of a value of JSON."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _numbers(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _numbers(one)
