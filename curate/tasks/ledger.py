"""The durable record of a job beside its output: job, plan, runs, events, heartbeat, summary.

Everything but a heartbeat is create-only. Who loses the race for `job.json` or a part of the plan adopts the winner's.
The summary exists if and only if the job is complete: it is removed before new work starts and published at the end.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from curate.errors import ConfigError, ObjectNotFound
from curate.storage.protocol import Outcome, Store
from curate.tasks import layout
from curate.tasks.outputs import OutputListing, sort_listing
from curate.tasks.plan import Plan

READERS = 8
"""Threads that read small ledger objects at once: they wait for the store, not for a CPU."""


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
            raise ConfigError(f"{self.uri(name)} is not JSON ({error}); the ledger is damaged") from error
        if not isinstance(value, dict):
            raise ConfigError(f"{self.uri(name)} holds {type(value).__name__}, expected an object")
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
        return pa.ipc.read_schema(pa.py_buffer(data))

    def read_plan(self, listing: OutputListing) -> Plan:
        """Returns the plan whose parts are in the listing; one read a part."""
        with ThreadPoolExecutor(READERS) as pool:
            parts = pool.map(lambda name: _read_parquet(self.store.read(self.uri(name))), sorted(listing.plan_parts))
            return Plan.of(list(parts))

    def append_plan(self, part: Any, listing: OutputListing) -> bool:
        """Publishes `part` as the next part of the plan; False if another driver's part took its place."""
        name = layout.plan_part(len(listing.plan_parts))
        sink = io.BytesIO()
        pq.write_table(part, sink, compression="zstd")
        if self.store.publish(self.uri(name), sink.getvalue()).outcome is Outcome.DIFFERENT:
            return False
        listing.plan_parts.append(name)
        return True

    def events(self, names: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Yields the events of segments, in the order of the names."""
        with ThreadPoolExecutor(READERS) as pool:
            for data in pool.map(lambda name: self.store.read(self.uri(name)), sorted(names)):
                for line in decompress(data).splitlines():
                    yield orjson.loads(line)


def _read_parquet(data: bytes) -> Any:
    return pq.read_table(pa.BufferReader(data), use_threads=False)


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
