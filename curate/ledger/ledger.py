"""The durable record of a job beside its output: job, plan, runs, events, heartbeat, summary.

Everything but a heartbeat is create-only. Who loses the race for `job.json` or a part of the plan adopts the winner's.
The summary exists if and only if the job is complete: it is removed before new work starts and published at the end.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curate.errors import ConfigError, ObjectNotFound
from curate.keywords import start_over
from curate.ledger import layout, validation
from curate.ledger.compression import decompress
from curate.ledger.listing import OutputListing, sort_listing
from curate.ledger.manifest import REMOVED, SCHEMA, ShardPlan
from curate.ledger.packed import POOL, SMALL, PackedTable, Packer
from curate.log import get_logger
from curate.prefetch import ahead
from curate.storage.listing import Columns, Listing, in_columns
from curate.storage.protocol import LIST_PAGE, Object, Outcome, Store
from curate.stores.open import open_store
from curate.tasks.shard import SliceKind
from curate.units import shell_word

READERS = 8
"""Threads that read small ledger objects at once: they wait for the store, not for a CPU."""

PART_BYTES = 32 << 20
PART_GROWTH = 500
PART_ROW_BYTES = 100
"""What becomes of a part of a plan in memory: at most so many bytes, and so many for each byte that is stored; and how
many of them a row takes at least."""
PART_ROWS = 1 << 16
"""Rows of a row group of a part: while one is read, its rows take a kilobyte each, five times what they take then."""
LONG_LISTING = 20 * LIST_PAGE
"""Objects of a listing behind which the plan is read beside it: a job of fewer has one that is read at once."""
MERGED_PARTS = 256
"""Parts of a plan that a reader reads one by one at most: a job that takes new inputs each hour has 9,000 in a year."""
INPUTS = pa.schema([("uri", pa.string()), ("size", pa.int64()), ("generation", pa.string())])
"""Files that a job reads, as a table."""
JOB_FIELDS = ("job", "fingerprint", "identity", "parameters", "code_digest", "suffix")
"""What every `job.json` of this format version has, beside the version."""

_Early = tuple[Mapping[str, Object], ShardPlan]
Wanted = Callable[[bytes], bool]
"""Tells of a line of a segment, before it is parsed, whether it is of use: most are not."""


class DamagedError(ConfigError):
    """A document of the ledger cannot be read, as one that was cut off: an overwrite does without it."""


class Ledger:
    """Reads and writes what is under `<root>/_curate/`."""

    def __init__(self, store: Store, root: str, codec: str = SMALL) -> None:
        """`codec` packs what is kept of a listing and of the plan."""
        self.store = store
        self.root = root.rstrip("/")
        self._codec = codec
        self._early: Future[_Early | None] | None = None

    def uri(self, name: str) -> str:
        """Returns the URI of a name relative to the output."""
        return f"{self.root}/{name}"

    def list(self, foreign: int | None = None, *, plan_next: bool = False) -> OutputListing:
        """Returns what is under the output prefix: one paged listing. With `foreign`, it ends behind so many objects if
        no job is there: a bucket that is named by mistake may have any number. With `plan_next`, the plan is read
        meanwhile where the listing is long, for `read_plan`: one waits for the store, the other for a CPU."""

        def pages() -> Iterator[Columns]:
            seen = 0
            for page in in_columns(self.store.list(self.root + "/"), LIST_PAGE):
                yield page
                before, seen = seen, seen + len(page)
                if plan_next and before < LONG_LISTING <= seen:
                    with_thread = ThreadPoolExecutor(1)
                    self._early = with_thread.submit(self._read_early)
                    with_thread.shutdown(wait=False)
                if foreign is not None and before < foreign <= seen and not self._has_job():
                    return

        return sort_listing(Listing(pages()), self.root, self._codec)

    def _has_job(self) -> bool:
        try:
            self.store.stat(self.uri(layout.JOB))
        except ObjectNotFound:
            return False
        return True

    def read_json(self, name: str) -> dict[str, Any]:
        """Returns a JSON object of the ledger. Raises ObjectNotFound, DamagedError if it is none."""
        data = self.store.read(self.uri(name))
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise self._damaged(name, f" is not JSON ({error})") from error
        if not isinstance(value, dict):
            raise self._damaged(name, f" holds {type(value).__name__}, expected an object")
        if field := validation.problem(name, value):
            raise self._damaged(name, f": its field {field!r} is not valid ({_shown(value[field])})")
        return value

    def _damaged(self, name: str, found: str) -> DamagedError:
        remedy = f"choose another output, or {start_over()}"
        if name == layout.SUMMARY:
            remedy = "remove this file and run the job again, which makes no output anew and writes this from those"
        return DamagedError(f"{self.uri(name)}{found}; the ledger is damaged: {remedy}")

    def create_json(self, name: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """Publishes `value` unless the name is taken; returns what is there now: the winner's."""
        data = orjson.dumps(value, option=orjson.OPT_INDENT_2)
        if self.store.publish(self.uri(name), data).outcome is Outcome.DIFFERENT:
            return self.read_json(name)
        return dict(value)

    def read_job(self) -> dict[str, Any]:
        """Returns `job.json`. Raises ConfigError if it is of another version of the ledger, DamagedError."""
        job = self.read_json(layout.JOB)
        version = job.get("format_version", layout.FORMAT_VERSION)
        if version != layout.FORMAT_VERSION:
            raise ConfigError(
                f"{self.uri(layout.JOB)} has format version {version!r}, this curate reads {layout.FORMAT_VERSION}; "
                "use the curate that wrote it, or another output"
            )
        if missing := [name for name in ("format_version", *JOB_FIELDS) if name not in job]:
            raise self._damaged(layout.JOB, f" lacks {', '.join(missing)}")
        return job

    def read_growth(self, listing: OutputListing) -> dict[str, Any]:
        """Returns what a job has in place of the `inputs` and `stages` of `job.json`, and its segments, as the last run
        in the listing says that took more inputs; nothing if none did."""
        if not listing.growth:
            return {}
        told = self.read_json(layout.growth(listing.growth))
        missing = {"inputs": layout.inputs_of("?"), "segments": [], "stages": []}
        return {name: told.get(name, other) for name, other in missing.items()}

    def read_inputs(self, name: str) -> Any:
        """Returns the list of inputs of that name, a table of `INPUTS`. Raises ObjectNotFound, DamagedError."""
        data = self.store.read(self.uri(name))
        try:
            # By this thread: one of Arrow's may let go of the bytes when Python is gone, which aborts the process.
            table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False).select(INPUTS.names).cast(INPUTS)
            table.validate(full=True)
            if inputs_name(data) != name:
                raise ValueError("its bytes are not those that were written")
        except (pa.ArrowException, ValueError, KeyError, OSError) as error:
            raise DamagedError(
                f"{self.uri(name)} is not a list of inputs ({error}); the ledger is damaged: choose another output, or "
                f"{start_over()}"
            ) from error
        return table

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
        except (pa.ArrowException, ValueError, OSError) as error:
            raise ConfigError(
                f"{self.uri(layout.SCHEMAS)}{name}.arrow is not an Arrow schema ({error}); the ledger is damaged: "
                f"choose another output, or {start_over()}"
            ) from error

    def read_plan(self, listing: OutputListing) -> ShardPlan:
        """Returns the plan whose parts are in the listing; one read a part, or for all that are merged. Raises
        ConfigError if one is damaged, ObjectNotFound if one is gone by now."""
        begun, self._early = self._early, None
        early = begun.result() if begun else None
        if early is not None and early[0] == listing.plan_parts:
            return early[1]
        return ShardPlan.of(self._all_parts(listing))

    def _read_early(self) -> _Early | None:
        """Returns the plan and its parts as they are before all is listed; None, if that fails: who reads it then is
        told why."""
        with contextlib.suppress(Exception):
            listing = sort_listing(self.store.list(self.uri(layout.PLAN)), self.root)
            return listing.plan_parts, ShardPlan.of(self._all_parts(listing))
        return None

    def _all_parts(self, listing: OutputListing) -> Sequence[PackedTable]:
        names, merged = _to_read(listing)
        if merged is None:
            return self._parts(names)
        try:
            first = self._part(merged, self.store.read(self.uri(merged)))
        except (ConfigError, ObjectNotFound) as error:
            get_logger().warning("reading each part of the plan", reason=str(error))
            return self._parts(sorted(listing.plan_parts, key=_part_number))
        return [first, *self._parts(names)]

    def _parts(self, names: Sequence[str]) -> Sequence[PackedTable]:
        try:
            found = ahead(lambda name: self.store.read(self.uri(name)), names, READERS)
            return [self._part(name, data) for name, data in found]
        except ObjectNotFound as error:
            raise ObjectNotFound(
                f"{error}; it was there a moment ago: another driver removes this job, or starts it over. See: "
                f"curate status {shell_word(self.root)}, and run this again when it has ended",
                error.uri,
            ) from error

    def merge_plan(self, listing: OutputListing) -> None:
        """Publishes the parts of a plan as one file, if many of them are read one by one. None of them goes: readers
        take that file in their place if they are those that it was made of, as their sizes tell."""
        names = sorted(listing.plan_parts, key=_part_number)
        last = len(names) - 1
        if len(_to_read(listing)[0]) > MERGED_PARTS and _part_number(names[last]) == last:
            parts = self._all_parts(listing)
            name = layout.merged_parts(last, _sizes_digest(listing, names))
            self.store.publish(self.uri(name), _part_bytes(parts[0].plus(*parts[1:])))
            listing.merged_parts.append(name)

    def next_part(self, listing: OutputListing) -> str:
        """Returns the name of the part that would be appended to the plan in the listing."""
        # The next after the last one: were one missing, a count would name a part that is there, now and ever after.
        return layout.plan_part(1 + max(map(_part_number, listing.plan_parts), default=-1))

    def append_plan(self, part: PackedTable, listing: OutputListing) -> bool:
        """Publishes `part` as the next part of the plan; False if another driver's part took its place."""
        name, data = self.next_part(listing), _part_bytes(part)
        published = self.store.publish(self.uri(name), data)
        if published.outcome is Outcome.DIFFERENT:
            return False
        listing.plan_parts[name] = published.object
        return True

    def events(self, names: Iterable[str], wanted: Wanted | None = None) -> Iterator[dict[str, Any]]:
        """Yields the events of segments, in the order of the names, each with its run; if `wanted` is given, those of
        the lines that are.

        What cannot be read is left out with a warning: events save reading outputs, and decide nothing.
        """

        for name, lines in self._segments(sorted(names)):
            run_id = layout.run_id_of(name)
            for event in self._parsed(name, filter(wanted, lines)):
                event["run_id"] = run_id
                yield event

    def newest_first(self, names: Iterable[str], wanted: Wanted | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the lines of segments with the segment's name: the last run first, of each run the last line first.

        What cannot be read is left out with a warning.
        """
        for name, lines in self._segments(sorted(names, reverse=True)):
            for event in self._parsed(name, filter(wanted, reversed(lines))):
                yield name, event

    def _segments(self, names: Iterable[str]) -> Iterator[tuple[str, Sequence[bytes]]]:
        """Yields segments by name, in this order, with their lines."""

        def read(name: str) -> bytes:
            try:
                return self.store.read(self.uri(name))
            except ObjectNotFound:
                return b""

        for name, data in ahead(read, names, READERS):
            try:
                yield name, decompress(data).splitlines()
            except OSError as error:
                self._unreadable(name, error)

    def _parsed(self, name: str, lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
        strange = 0
        try:
            for line in lines:
                event = orjson.loads(line)
                if isinstance(event, dict) and not validation.wrong(event, validation.EVENT):
                    yield event
                else:
                    strange += 1
        except orjson.JSONDecodeError as error:
            self._unreadable(name, error)
        if strange:
            self._unreadable(name, ValueError(f"{strange:,} lines make no sense"))

    def _unreadable(self, name: str, error: Exception) -> None:
        _warn_of_unreadable(self.uri(name), str(error))

    def _part(self, name: str, data: bytes) -> PackedTable:
        """Returns a part of the plan from its bytes."""
        try:
            return _part_of(data, self._codec)
        except (pa.ArrowException, ValueError, OSError) as error:
            said = f"{self.uri(name)} is not a part of a plan ({error}); the ledger is damaged: choose another output"
            # Arrow's errors are ValueErrors, too.
            if isinstance(error, pa.ArrowException | OSError):
                raise DamagedError(f"{said}, or {start_over()}") from error
            # Who put something else there than curate may have meant harm: nothing is removed by what it says.
            raise ConfigError(f"{said}, or see where this file is from, remove it, and {start_over()}") from error


def open_ledger(root: str) -> Ledger:
    """Returns the ledger below an output prefix, an absolute URI, to be read; makes no request."""
    return Ledger(open_store(root), root)


@lru_cache(maxsize=1024)
def _warn_of_unreadable(uri: str, error: str) -> None:
    """Says once in a process that a segment cannot be read: it is read for each question that is asked of events."""
    get_logger().warning("cannot read a segment of events", segment=uri, error=error)


def inputs_name(data: bytes) -> str:
    """Returns the name of a list of inputs, which says what it contains."""
    return layout.inputs_of(hashlib.sha256(data).hexdigest()[:16])


def _part_number(name: str) -> int:
    number = layout.plan_part_number(name)
    assert number is not None, name
    return number


def _to_read(listing: OutputListing) -> tuple[list[str], str | None]:
    """Returns the parts of the plan that are to be read one by one, and the file with those before them, if any."""
    names = sorted(listing.plan_parts, key=_part_number)
    for merged in sorted(listing.merged_parts, reverse=True, key=lambda name: layout.last_merged(name) or 0):
        last = layout.last_merged(merged) or 0
        held = names[: last + 1]
        # Of a job that was overwritten, or of one that lacks a part, it has other rows.
        whole = len(held) == last + 1 and _part_number(held[last]) == last
        if whole and merged == layout.merged_parts(last, _sizes_digest(listing, held)):
            return names[last + 1 :], merged
    return names, None


def _sizes_digest(listing: OutputListing, names: Sequence[str]) -> str:
    """Returns what tells these parts of a plan from those of another plan."""
    return hashlib.sha256(" ".join(str(listing.plan_parts[name].size) for name in names).encode()).hexdigest()[:16]


def _part_bytes(part: PackedTable) -> bytes:
    """Returns a part of a plan as a file."""
    sink = io.BytesIO()
    # Texts that nearly all differ take twice the time to write with a dictionary, and five times to read.
    how: dict[str, Any] = {"compression": "zstd", "use_dictionary": ["kind"], "write_page_checksum": True}
    with pq.ParquetWriter(sink, part.schema, **how) as writer:
        for start in range(0, max(1, len(part)), PART_ROWS):
            writer.write_table(part.slice(start, start + PART_ROWS), row_group_size=PART_ROWS)
    return sink.getvalue()


def _part_of(data: bytes, codec: str = SMALL) -> PackedTable:
    """Returns a part of a plan. Raises ValueError for what is none, or would become much more than plans do."""
    found = pq.ParquetFile(pa.BufferReader(data))
    metadata, names = found.metadata, found.schema_arrow.names
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    stored = sum(one.total_byte_size for one in groups)
    most = PART_BYTES + PART_GROWTH * len(data)
    if names != SCHEMA.names:
        raise ValueError(f"columns {str(names)[:400]}, expected {SCHEMA.names}")
    if stored > most or metadata.num_rows > most // PART_ROW_BYTES:
        raise ValueError(
            f"{len(data):,} bytes become {metadata.num_rows:,} rows, {stored:,} bytes: a plan cannot be that large"
        )
    # Asked for a column chunk whose metadata contradicts itself, Arrow ends the process; who reads ahead is told.
    next(pq.ParquetFile(pa.BufferReader(data), pre_buffer=True).iter_batches(1, use_threads=False), None)
    # A few bytes can stand for as many rows as one likes, each with a long text: told as long as a text is kept once.
    texts = [number for number, field in enumerate(SCHEMA) if pa.types.is_string(field.type)]
    once = [names[at] for at in texts if any(set(one.column(at).encodings) - {"PLAIN", "RLE"} for one in groups)]
    size, packer = 0, Packer(SCHEMA, codec)
    file = pq.ParquetFile(pa.BufferReader(data), read_dictionary=once, page_checksum_verification=True)
    for group in range(len(groups)):
        block = file.read_row_group(group, use_threads=False)
        coded = [chunk for column in block.columns for chunk in column.chunks if pa.types.is_dictionary(chunk.type)]
        size += sum(pc.sum(pc.binary_length(one.dictionary).take(one.indices)).as_py() or 0 for one in coded)
        if size > most:
            raise ValueError(f"{len(data):,} bytes become {size:,} bytes of text: a plan cannot be that large")
        # A text may be no Unicode.
        block.validate(full=True)
        columns = [
            pc.cast(column, pa.string(), memory_pool=POOL) if pa.types.is_dictionary(column.type) else column
            for column in block.columns
        ]
        rows = pa.table(columns, names=names)
        if problem := _problem(rows):
            raise ValueError(problem)
        packer.extend(rows)
        # Else the next group needs fresh memory, and what the system does for that takes as long as the reading.
        del block, coded, columns, rows
    if not groups and (problem := _problem(found.schema_arrow.remove_metadata().empty_table())):
        raise ValueError(problem)
    pa.default_memory_pool().release_unused()
    return packer.table()


def _problem(table: Any) -> str:
    """Returns why a table is no part of a plan; empty if it is one."""
    if not table.schema.equals(SCHEMA):
        found = ", ".join(f"{field.name}: {field.type}" for field in table.schema)
        return f"columns {found[:400]}, expected {', '.join(f'{field.name}: {field.type}' for field in SCHEMA)}"
    for name in SCHEMA.names:
        if table[name].null_count:
            return f"column {name!r} has rows without a value"
    if (name := validation.paths_outside(table["id"])) is not None:
        return f"{name!r} cannot be the name of an output: it points outside of the output"
    known = pc.is_in(table["kind"], value_set=pa.array([*(kind.value for kind in SliceKind), REMOVED], pa.string()))
    if not pc.all(known).as_py() and len(table):
        return "column 'kind' has invalid values"
    for name in ("start", "stop", "size_bytes", "object_bytes"):
        if (pc.min(table[name]).as_py() or 0) < 0:
            return f"column {name!r} has negative values"
    return ""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."
