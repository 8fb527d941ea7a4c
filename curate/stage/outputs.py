"""The write side of a shard: the objects that it becomes, filled at once and published one after the other.

Extra outputs come first and the main one last, whose existence alone means that the shard is done. A name that is taken
by the same bytes is what this attempt, or another, has done already. Taken by other bytes, it is up to the main output:

    there       another attempt has finished the shard; what it published counts
    not there   the extra output is stale (of an input that was replaced, of a job that was overwritten), or of an
                attempt at work that will find ours: it is replaced, against the generation that was seen

To replace, the shard is run again first: so the name is free only for the moment between a removal and a publish.

Outputs of an input that changed are replaced only where that was asked for, when the new ones are whole, each at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import wraps
from typing import Any, BinaryIO, ParamSpec, TypeVar

import xxhash

from curate.dataclass import dataclass
from curate.errors import ConfigError, GenerationMismatch, SchemaMismatch, StorageError
from curate.exchange.run_file import RunWriter
from curate.ledger.side_outputs import MAIN, RECORD_SIDE, companion, companion_name, counter
from curate.objects.record import OutputFormat, read_record
from curate.pipeline.classify import ForeignOutputError
from curate.pipeline.step import SideTable
from curate.stage.job_record import JobRecord
from curate.storage.protocol import Object, Outcome, Published, Store, Writer
from curate.tasks.books import Books
from curate.tasks.failure import Refusal
from curate.writers.output import OutputWriter, SeveralFiles

T = TypeVar("T")
P = ParamSpec("P")


def writing(does: Callable[P, T]) -> Callable[P, T]:
    """Marks what the store raises in a function as the refusal of an output: it may refuse those of all shards."""

    # No context manager: there are six such calls for each shard, however small.
    @wraps(does)
    def marked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return does(*args, **kwargs)
        except StorageError as error:
            error.refused = Refusal.WRITE
            raise

    return marked


_BOOKED = {"fingerprint", "rows", "counters"}
"""What there is in every record of an output."""


def books_of(store: Store, found: Object, job: JobRecord, root: str) -> Books:
    """Returns the books in the record of an output below `root`.

    Raises ConfigError if the object has no record, or that of another job or shard: its name is taken. A run file with
    that of another shard is found by who reads it, and made again.
    """
    record = read_record(store, found, job.format, job.codec)
    if record is None or not record.keys() >= _BOOKED or RECORD_SIDE in record:
        side = None if record is None else record.get(RECORD_SIDE)
        what = "was not written by curate" if side is None else f"is the extra output {side!r}"
        raise ConfigError(f"{found.uri} {what}, but it has the name of an output; move it, or use another output")
    if not job.is_of(record):
        other = f"identity ({record['fingerprint']})" if record["fingerprint"] != job.fingerprint else "seed"
        raise ForeignOutputError(f"{found.uri} was written by a job with another {other}")
    shard = found.uri.removeprefix(f"{root}/").removesuffix(job.suffix)
    if record.get("shard", shard) != shard and job.format is not OutputFormat.RUN:
        raise ConfigError(
            f"{found.uri} is the output of shard {record['shard']!r}, copied or moved to where that of {shard!r} is to "
            "be; remove it, and run this again, which makes that"
        )
    return Books.parse(record["rows"], record["counters"])


@dataclass(frozen=True, slots=True)
class NameConflict:
    """Extra outputs whose names are taken by other bytes. Nothing was published after them."""

    objects: tuple[Object, ...]


class HashingSink:
    """A sink that sums what goes through it."""

    def __init__(self, sink: Writer | BinaryIO) -> None:
        self._sink = sink
        self._sum = xxhash.xxh3_128()

    @property
    def checksum(self) -> str:
        """32 hex digits of the bytes so far."""
        return self._sum.hexdigest()

    def write(self, data: bytes | memoryview, /) -> int:
        """Appends `data`."""
        self._sum.update(data)
        return self._sink.write(data)

    def tell(self) -> int:
        """Returns the number of bytes so far."""
        return self._sink.tell()

    @property
    def closed(self) -> bool:
        """Whether the bytes were published or discarded."""
        return self._sink.closed

    def flush(self) -> None:
        """Does nothing, as the sink beneath."""
        self._sink.flush()

    def close(self) -> None:
        """Does nothing, as the sink beneath."""
        self._sink.close()


@dataclass(slots=True)
class _Companion:
    """Another file of an output, on its way."""

    suffix: str
    uri: str
    sink: Writer


@dataclass(slots=True)
class _OpenOutput:
    """One object on its way."""

    uri: str
    schema: Any
    sink: Writer
    summed: HashingSink
    writer: OutputWriter
    beside: Sequence[_Companion] = ()

    @property
    def parts(self) -> tuple[_Companion | _OpenOutput, ...]:
        """Its other files, and itself."""
        return *self.beside, self

    def finish(self, record: Mapping[str, Any]) -> None:
        """Writes what is left of it, and of its other files."""
        for one in self.beside:
            assert isinstance(self.writer, SeveralFiles)
            self.writer.close_other(one.suffix, {**record, RECORD_SIDE: one.suffix[1:]})
        self.writer.close(record)


class Outputs:
    """What a shard becomes, on its way, until it is published or closed."""

    @writing
    def __init__(
        self,
        store: Store,
        uris: Mapping[str, str],
        schemas: Mapping[str, Any],
        make_writer: Callable[..., OutputWriter],
        *,
        suffix: str = "",
        durable: bool = True,
    ) -> None:
        """`uris` and `schemas` are by name of the output: MAIN, and the extra ones; `make_writer` is given a sink and a
        schema, and the sinks of the other files of outputs with this suffix; `durable` is as for stores."""
        self.bytes_out = 0
        """Stored bytes of what was published."""
        self._store = store
        self._open = ExitStack()
        self._all = {}
        for name, uri in uris.items():
            sink = self._open.enter_context(store.writer(uri, durable=durable))
            summed = HashingSink(sink)
            beside = []
            for other in companion(suffix):
                place = companion_name(uri, suffix, other)
                beside.append(_Companion(other, place, self._open.enter_context(store.writer(place, durable=durable))))
            writer = make_writer(summed, schemas[name], *(one.sink for one in beside))
            self._all[name] = _OpenOutput(uri, schemas[name], sink, summed, writer, beside)

    @property
    def size(self) -> int:
        """Bytes of all of it so far."""
        return sum(part.sink.tell() for one in self._all.values() for part in one.parts)

    @property
    def checksum(self) -> str:
        """That of the bytes of the main output, once it is published."""
        return self._all[MAIN].summed.checksum

    @writing
    def write(self, table: Any) -> int:
        """Takes a table, or a `SideTable`; returns how many rows went to the main output. Raises SchemaMismatch."""
        name, rows = (table.side, table.table) if isinstance(table, SideTable) else (MAIN, table)
        one = self._all[name]
        if not len(one.schema) and len(rows.schema):
            declare = "output_schema" if name == MAIN else f"the schema of {name!r} in sides"
            raise SchemaMismatch(
                f"this shard has a table{'' if name == MAIN else f' for {name!r}'}, but the first shards of the plan "
                f"had none, so outputs have no columns; declare {declare} in the job"
            )
        try:
            one.writer.write(rows)
        except SchemaMismatch as error:
            told = error if name == MAIN else SchemaMismatch(f"the extra output {name!r}: {error}")
            # Inputs are held to their schema when they are read: this is what was made of them.
            told.returned = True
            raise told from error.__cause__
        return int(rows.num_rows) if name == MAIN else 0

    @writing
    def settle(self, rows: int) -> int:
        """Returns how many rows the main output has, that was given `rows`: less where a writer puts rows together."""
        writer = self._all[MAIN].writer
        if not isinstance(writer, RunWriter):
            return rows
        writer.finish()
        return writer.rows

    def count(self, books: Books) -> None:
        """Books the rows of extra outputs as counters. Raises ConfigError if the job keeps one of that name."""
        for name, one in self._all.items():
            if name != MAIN:
                if counter(name) in books.counters:
                    raise ConfigError(
                        f"the job counts {counter(name)!r} itself, but curate uses this name for the rows of its "
                        f"output {name!r}; choose another name"
                    )
                books.counters[counter(name)] = one.writer.rows

    @writing
    def finish(self, record: Mapping[str, Any]) -> None:
        """Writes what is left of all of it, each with the record of the shard: nothing more is written."""
        for name, one in self._all.items():
            one.finish(record if name == MAIN else {**record, RECORD_SIDE: name})

    @writing
    def wait_ahead(self) -> bool:
        """Does ahead what `publish` would wait for, if it can; returns whether that then waits for nothing."""
        return all(part.sink.settle() for one in self._all.values() for part in one.parts)

    @writing
    def publish(self, replaced: Mapping[str, str], over: Mapping[str, str]) -> Published | NameConflict:
        """Publishes all of it, and returns what became of the main output.

        `replaced` are generations of extra outputs to remove first, by URI; `over` are those of outputs, extra ones and
        the main one, whose places the new ones take. If others are in the way, those are returned, and the main output
        is not published.
        """
        taken = []
        main = self._all[MAIN]
        for one in self._all.values():
            for extra in one.beside if one is main else one.parts:
                if extra.uri in replaced:
                    # If it is another one by now, publishing finds that out.
                    with contextlib.suppress(GenerationMismatch):
                        self._store.delete(extra.uri, replaced[extra.uri])
                published = self._publish(extra, over)
                if published.outcome is Outcome.DIFFERENT:
                    taken.append(published.object)
        return NameConflict(tuple(taken)) if taken else self._publish(main, over)

    def _publish(self, one: _OpenOutput | _Companion, over: Mapping[str, str]) -> Published:
        published = one.sink.publish(over.get(one.uri, ""))
        self.bytes_out += published.object.size
        return published

    def close(self) -> None:
        """Discards what was not published."""
        self._open.close()
