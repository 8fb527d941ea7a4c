"""The durable record of a job beside its output: job, plan, runs, events, heartbeat, summary.

Everything but a heartbeat is create-only. Who loses the race for `job.json` or a part of the plan adopts the winner's.
The summary exists if and only if the job is complete: it is removed before new work starts and published at the end.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from curate.errors import ConfigError, ObjectNotFound
from curate.log import get_logger
from curate.storage.protocol import Outcome, Store
from curate.tasks import layout
from curate.tasks.outputs import OutputListing, sort_listing
from curate.tasks.plan import SCHEMA, Plan

READERS = 8
"""Threads that read small ledger objects at once: they wait for the store, not for a CPU."""
JOB_FIELDS = ("job", "fingerprint", "identity", "parameters", "code_digest", "suffix")
"""What every `job.json` of this format version has, beside the version."""


class Ledger:
    """Reads and writes what is under `<root>/_curate/`."""

    def __init__(self, store: Store, root: str) -> None:
        self.store = store
        self.root = root.rstrip("/")

    def uri(self, name: str) -> str:
        """Returns the URI of a name relative to the output."""
        return f"{self.root}/{name}"

    def list(self) -> OutputListing:
        """Returns what is under the output prefix: one paged listing."""
        return sort_listing(self.store.list(self.root + "/"), self.root)

    def read_json(self, name: str) -> dict[str, Any]:
        """Returns a JSON object of the ledger. Raises ObjectNotFound, ConfigError if it is none."""
        data = self.store.read(self.uri(name))
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise ConfigError(
                f"{self.uri(name)} is not JSON ({error}); the ledger is damaged: "
                "choose another --output, or remove this one"
            ) from error
        if not isinstance(value, dict):
            raise ConfigError(
                f"{self.uri(name)} holds {type(value).__name__}, expected an object; the ledger is damaged: "
                "choose another --output, or remove this one"
            )
        return value

    def create_json(self, name: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """Publishes `value` unless the name is taken; returns what is there now: the winner's."""
        data = orjson.dumps(value, option=orjson.OPT_INDENT_2)
        if self.store.publish(self.uri(name), data).outcome is Outcome.DIFFERENT:
            return self.read_json(name)
        return dict(value)

    def read_job(self) -> dict[str, Any]:
        """Returns `job.json`. Raises ConfigError if it is of another version of the ledger."""
        job = self.read_json(layout.JOB)
        if job.get("format_version") != layout.FORMAT_VERSION:
            raise ConfigError(
                f"{self.uri(layout.JOB)} has format version {job.get('format_version')!r}, this curate reads "
                f"{layout.FORMAT_VERSION}; use the curate that wrote it, or another --output"
            )
        missing = [name for name in JOB_FIELDS if name not in job]
        if missing:
            raise ConfigError(
                f"{self.uri(layout.JOB)} lacks {', '.join(missing)}; the ledger is damaged: "
                "choose another --output, or remove this one"
            )
        return job

    def create_schema(self, name: str, make: Callable[[], Any]) -> Any:
        """Returns the Arrow schema stored under `name`, else what `make` returns, stored: the first one holds."""
        schema = self.read_schema(name)
        if schema is None:
            schema = make()
            uri = self.uri(f"{layout.SCHEMAS}{name}.arrow")
            if self.store.publish(uri, bytes(schema.serialize())).outcome is Outcome.DIFFERENT:
                schema = self.read_schema(name)
        return schema

    def read_schema(self, name: str) -> Any:
        """Returns the Arrow schema stored under `name`, None if there is none."""
        try:
            data = self.store.read(self.uri(f"{layout.SCHEMAS}{name}.arrow"))
        except ObjectNotFound:
            return None
        try:
            return pa.ipc.read_schema(pa.py_buffer(data))
        except (pa.ArrowInvalid, OSError) as error:
            raise ConfigError(
                f"{self.uri(layout.SCHEMAS)}{name}.arrow is not an Arrow schema ({error}); the ledger is damaged: "
                "choose another --output, or start over with --overwrite"
            ) from error

    def read_plan(self, listing: OutputListing) -> Plan:
        """Returns the plan whose parts are in the listing; one read a part. Raises ConfigError if one is damaged."""
        names = sorted(listing.plan_parts, key=_part_number)
        return Plan.of([self._part(name, data) for name, data in self._read_ahead(names, self.store.read)])

    def next_part(self, listing: OutputListing) -> str:
        """Returns the name of the part that would be appended to the plan in the listing."""
        # The next after the last one: were one missing, a count would name a part that is there, now and ever after.
        return layout.plan_part(1 + max(map(_part_number, listing.plan_parts), default=-1))

    def append_plan(self, part: Any, listing: OutputListing) -> bool:
        """Publishes `part` as the next part of the plan; False if another driver's part took its place."""
        name = self.next_part(listing)
        sink = io.BytesIO()
        pq.write_table(part, sink, compression="zstd")
        if self.store.publish(self.uri(name), sink.getvalue()).outcome is Outcome.DIFFERENT:
            return False
        listing.plan_parts.append(name)
        return True

    def events(self, names: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Yields the events of segments, in the order of the names.

        What cannot be read is left out with a warning: events save reading outputs, and decide nothing.
        """

        for name, lines in self._segments(sorted(names)):
            yield from self._parsed(name, lines)

    def newest_first(self, names: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the lines of segments with the segment's name: the last run first, of each run the last line first.

        What cannot be read is left out with a warning.
        """
        for name, lines in self._segments(sorted(names, reverse=True)):
            for event in self._parsed(name, reversed(lines)):
                yield name, event

    def _segments(self, names: Iterable[str]) -> Iterator[tuple[str, Sequence[bytes]]]:
        """Yields segments by name, in this order, with their lines."""

        def read(uri: str) -> bytes:
            try:
                return self.store.read(uri)
            except ObjectNotFound:
                return b""

        for name, data in self._read_ahead(names, read):
            try:
                yield name, decompress(data).splitlines()
            except OSError as error:
                self._unreadable(name, error)

    def _parsed(self, name: str, lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
        try:
            for line in lines:
                yield orjson.loads(line)
        except orjson.JSONDecodeError as error:
            self._unreadable(name, error)

    def _unreadable(self, name: str, error: Exception) -> None:
        get_logger().warning("cannot read a segment of events", segment=self.uri(name), error=str(error))

    def _part(self, name: str, data: bytes) -> Any:
        """Returns a part of the plan from its bytes."""
        try:
            table = pq.read_table(pa.BufferReader(data), use_threads=False)
            problem = "" if table.schema.equals(SCHEMA) else f"columns {table.schema.names}, expected {SCHEMA.names}"
        except (pa.ArrowException, OSError) as error:
            problem = str(error)
        if problem:
            raise ConfigError(
                f"{self.uri(name)} is not a part of a plan ({problem}); the ledger is damaged: "
                "choose another --output, or remove this one"
            )
        return table

    def _read_ahead(self, names: Iterable[str], read: Callable[[str], bytes]) -> Iterator[tuple[str, bytes]]:
        """Yields names with contents, in order, a few reads ahead of the consumer and never more."""
        with ThreadPoolExecutor(READERS) as pool:
            reads: deque[tuple[str, Future[bytes]]] = deque()
            for name in names:
                reads.append((name, pool.submit(read, self.uri(name))))
                if len(reads) > 2 * READERS:
                    first, future = reads.popleft()
                    yield first, future.result()
            for first, future in reads:
                yield first, future.result()


def _part_number(name: str) -> int:
    number = layout.plan_part_number(name)
    assert number is not None, name
    return number


def compress(data: bytes) -> bytes:
    """Returns `data` as one zstd frame."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def decompress(data: bytes) -> bytes:
    """Returns what zstd frames hold."""
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        return bytes(stream.read())
