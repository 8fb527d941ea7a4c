"""Checks the output of one shard: its record, its extra outputs, its rows or bytes, and the rows that were set aside.

Outputs are those of a listing, and a run may replace some meanwhile. So nothing is said to be off with one that is
another object by now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from curate.dataclass import dataclass, replace
from curate.errors import CorruptInput, GenerationMismatch, ObjectNotFound, SchemaMismatch, WrongRecord
from curate.ledger import layout
from curate.ledger.side_outputs import RECORD_SIDE, counter, schema_name
from curate.objects.datatrove import read_metadata
from curate.objects.record import OF_TOKENS, Carried, OutputFormat, read_carried
from curate.observe.checks.contents import (
    check_bytes,
    count_quarantined,
    count_rows,
    count_run_rows,
    output_schema,
    wrong_record,
)
from curate.observe.job import FoundJob
from curate.storage.protocol import Object, Store
from curate.tasks.books import Books

UNCOUNTED = (OutputFormat.SINK, *OF_TOKENS)
"""Formats of which the bytes are checked alone."""
SCHEMA_VOTERS = 3
"""Outputs that say what the schema is where the job did not have to store one, because its code declares it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is off."""

    kind: str
    object: str
    """Name under the output prefix."""
    reason: str
    remove: tuple[str, ...] = ()
    """What is to be removed, by name, so that the next run of the job makes it as it should be; empty if that does not
    help."""
    left_behind: bool = False
    """Whether the next run of the job removes it: its shard was taken out."""
    held_to: str = ""
    """What the stored schema is called that it has not."""


@dataclass
class OutputFindings:
    """What one output turned out to be."""

    findings: list[Finding]
    books: Books | None = None
    quarantine: str | None = None
    replaced: bool = False
    """Whether it is another object than the listed one by now, or gone: nothing is said of it."""


class Checker:
    """Checks outputs; several threads may do so at once."""

    def __init__(self, found: FoundJob) -> None:
        self._found = found
        self._store = found.ledger.store
        self._format, self._codec = found.written_as
        self._files = set(found.listing.quarantine)
        self.fit, self.misfit, self._stored = set[str](), set[str](), set[str]()
        """The stored schemas that an output with rows has, those that one has not, and all."""
        self._schema = self._held("output", found.output)
        self._sides = {name: self._held(schema_name(name), partial(found.side, name)) for name in sorted(found.sides)}

    def check(self, rank: int) -> OutputFindings:
        """Returns what the output of a shard turned out to be. Raises StorageError if the store does not answer."""
        try:
            found = self._look(rank)
        except (ObjectNotFound, GenerationMismatch):
            if not self._is_replaced(rank):
                raise
            return OutputFindings([], replaced=True)
        return OutputFindings([], replaced=True) if found.findings and self._is_replaced(rank) else found

    def _is_replaced(self, rank: int) -> bool:
        """Returns whether an object of a shard is not what was listed."""
        found, main = self._found, self._found.output(rank)
        listed: list[tuple[str, Object | None]] = [(name_of(found, rank), main)]
        listed += [(found.side_name(side, rank), found.side(side, rank)) for side in self._sides]
        listed += [(called, other) for _, called, other in found.companions(rank)]
        return any(is_another(self._store, found.ledger.uri(name), object) for name, object in listed)

    def _look(self, rank: int) -> OutputFindings:
        name, object = name_of(self._found, rank), self._found.output(rank)
        off = partial(_finding, object=name, uri=object.uri, remove=(name,))
        try:
            carried = read_carried(self._store, object, self._format, self._codec)
        except WrongRecord as error:
            return OutputFindings([off("record", error)])
        except CorruptInput as error:
            return OutputFindings([off("damaged", error)])
        if carried is None:
            return OutputFindings(
                [off("record", "it carries none: something else than curate wrote it, or cut it off")]
            )
        if wrong := wrong_record(carried.record, self._found.job, self._found.plan.shard_id(rank)):
            return OutputFindings([off("record", wrong)])
        books, file = Books.parse(carried.record["rows"], carried.record["counters"]), carried.record["quarantine"]
        findings = self._rows(off, object, carried, self._schema, "output", books.rows_out)
        if not books.balanced():
            findings.append(off("books", f"in + created is not out + dropped + quarantined: {_rows_text(books)}"))
        if reason := self._quarantine(file, books.quarantined):
            findings.append(off("quarantine", reason, remove=(name, file) if file in self._files else (name,)))
        for side in self._sides:
            beside = self._found.side_name(side, rank), self._found.side(side, rank)
            findings += self._side(side, beside, name, carried.record)
        checksums = read_metadata(self._store, object) if self._format is OutputFormat.DATATROVE else {}
        for side, called, other in self._found.companions(rank):
            if other is not None and f".{side}" in layout.BARE:
                findings += self._bytes(called, other, checksums.get(f".{side}"), name)
            else:
                findings += self._side(side, (called, other), name, carried.record)
        return OutputFindings(findings, books, file)

    def _rows(
        self,
        off: Callable[..., Finding],
        object: Object,
        carried: Carried,
        schema: pa.Schema | None,
        held_to: str,
        expected: Any,
    ) -> list[Finding]:
        try:
            if self._format in UNCOUNTED:
                # How many rows they are, only readers of the format tell.
                check_bytes(self._store, object, carried)
                return []
            if self._format is OutputFormat.RUN:
                rows = count_run_rows(self._store, object)
            else:
                rows = count_rows(self._store, object, carried, self._format, self._codec, schema)
        except SchemaMismatch as error:
            if held_to not in self._stored:
                return [off("schema", error)]
            self.misfit.add(held_to)
            return [replace(off("schema", error), held_to=held_to)]
        except CorruptInput as error:
            return [off("damaged", error)]
        if rows:
            self.fit.add(held_to)
        if rows == expected:
            return []
        return [off("rows", f"it has {rows:,} rows, its record says {_number(expected)}")]

    def _side(
        self, side: str, beside: tuple[str, Object | None], main: str, record: Mapping[str, Any]
    ) -> list[Finding]:
        """Returns what is off with an extra output of a shard whose main one carries this record, or its other file."""
        name, object = beside
        if object is None:
            reason = f"{main} is there, which is published after it; remove that, and run the job again"
            return [Finding("missing", name, reason, (main,))]
        # One that is there is not replaced if it cannot be read; and none is made as long as the main one is there.
        off = partial(_finding, object=name, uri=object.uri, remove=(main, name))
        try:
            carried = read_carried(self._store, object, self._format, self._codec)
        except CorruptInput as error:
            return [off("damaged", error)]
        if carried is None:
            return [off("record", "it carries none: something else than curate wrote it, or cut it off")]
        expected = {**record, RECORD_SIDE: side}
        differing = sorted(key for key in {*carried.record, *expected} if carried.record.get(key) != expected.get(key))
        if differing:
            return [off("record", f"its record is not that of {main}: they differ in {', '.join(differing)}")]
        rows = record["counters"].get(counter(side))
        return self._rows(off, object, carried, self._sides.get(side), schema_name(side), rows)

    def _bytes(self, name: str, object: Object, checksum: int | None, main: str) -> list[Finding]:
        """Returns what is off with a file that carries no record, but whose checksum the main one of its shard has."""
        if checksum is None:
            return [Finding("damaged", name, f"{main}, which has its checksum, is damaged there", (main, name))]
        try:
            check_bytes(self._store, object, Carried({}, object.size, checksum))
        except CorruptInput as error:
            return [_finding("damaged", error, object=name, uri=object.uri, remove=(main, name))]
        return []

    def _quarantine(self, name: str | None, rows: int) -> str:
        """Returns what is off with the rows that an output says were set aside; empty if nothing is."""
        if name is None or not rows:
            return "" if name is None and not rows else f"its record says {rows:,} rows, and names {name or 'no file'}"
        return self.set_aside(name, rows, ", which its record names,")

    def set_aside(self, name: str, rows: int | None = None, named: str = "") -> str:
        """Returns what is off with a file of rows that were set aside, so many if that is known; empty if nothing is.
        `named`: by whom, for the reader."""
        if name not in self._files:
            return f"{name}{named} is gone"
        uri = self._found.ledger.uri(name)
        try:
            found, digest = count_quarantined(self._store, self._store.stat(uri))
        except ObjectNotFound:
            return f"{name}{named} is gone"
        except CorruptInput as error:
            return str(error).removeprefix(self._found.ledger.root + "/")
        if name != f"{layout.QUARANTINE}{digest}.jsonl.zst":
            return f"{name} is not what it was: the hash of its bytes is {digest}"
        return "" if rows in (None, found) else f"{name} has {found:,} rows, the record says {rows:,}"

    def _held(self, stored_as: str, output: Callable[[int], Object | None]) -> pa.Schema | None:
        """Returns the schema that the job holds its outputs to: as stored, else what most of the first outputs have."""
        schema = self._found.ledger.read_schema(stored_as)
        if schema is not None:
            self._stored.add(stored_as)
        if schema is not None or self._format in (OutputFormat.RUN, OutputFormat.SINK):
            return schema
        votes: Counter[pa.Schema] = Counter()
        for rank in np.flatnonzero(self._found.matched.done).tolist():
            object = output(rank)
            if object is None:
                continue
            try:
                schema = output_schema(self._store, object, self._format, self._codec)
            except CorruptInput:
                continue  # told when its turn comes
            if schema is not None:
                votes[schema] += 1
            if votes.total() >= SCHEMA_VOTERS:
                break
        return votes.most_common(1)[0][0] if votes else None


def is_another(store: Store, uri: str, listed: Object | None) -> bool:
    """Returns whether what is there now is not the object that was `listed`; None: there was none."""
    try:
        now = store.stat(uri).generation
    except ObjectNotFound:
        now = ""
    return now != ("" if listed is None else listed.generation)


def _finding(kind: str, reason: object, *, object: str, uri: str, remove: tuple[str, ...]) -> Finding:
    return Finding(kind, object, str(reason).removeprefix(f"{uri}: "), remove)


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else repr(value)


def name_of(found: FoundJob, rank: int) -> str:
    return f"{found.plan.shard_id(rank)}{found.job['suffix']}"


def _rows_text(books: Books) -> str:
    dropped = sum(books.dropped.values())
    return f"{books.rows_in:,} + {books.created:,}, {books.rows_out:,} + {dropped:,} + {books.quarantined:,}"
