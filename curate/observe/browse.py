"""Reads inputs, rows, quarantined rows and worker logs of a job for people. Needs no cluster.

Everything is an iterator: only what is consumed is read, and nothing is kept.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from curate.around import contextmanager
from curate.errors import ConfigError, CorruptInput, ObjectNotFound, did_you_mean
from curate.ledger import layout, validation
from curate.ledger.compression import decompress
from curate.ledger.ledger import INPUTS, Ledger
from curate.ledger.segments import done_events
from curate.ledger.side_outputs import schema_name
from curate.log import get_logger
from curate.objects.quarantine import Quarantined, read_quarantine
from curate.objects.record import read_record
from curate.observe.checks.output import is_another
from curate.observe.job import FoundJob, summary_of
from curate.observe.preview import NOT_TOLD, preview
from curate.prefetch import Threads, ahead
from curate.storage.protocol import Object, Store
from curate.tasks.books import UpstreamBooks

READERS = 16
"""Small objects that are read at once: each is a request that waits for the store."""


def inputs_of_job(found: FoundJob) -> Any:
    """Returns the files that a job has planned, each once, as a table of `INPUTS`: those of its plan, or those that a
    job with an exchange began with. Raises ObjectNotFound if the list of these is missing,
    ConfigError if it is damaged."""
    if name := found.job.get("inputs"):
        table = found.ledger.read_inputs(name)
    else:
        plan = found.plan.table
        columns = [plan["uri"], plan["object_bytes"], plan["generation"]]
        table = pa.table(columns, names=INPUTS.names).cast(INPUTS)
    if len(pc.unique(table["uri"])) == len(table):
        return table
    return (
        table.group_by("uri", use_threads=False)
        .aggregate([("size", "first"), ("generation", "first")])
        .rename_columns(INPUTS.names)
    )


def rows(
    found: FoundJob,
    columns: Sequence[str] | None = None,
    shard: str | None = None,
    side: str | None = None,
    texts: bool = True,
    typed: bool = True,
) -> Iterator[tuple[str, bytes]]:
    """Yields shard and row, as `preview` has it, of all outputs that are there, in plan order; or of one shard. Of the
    extra outputs of that name, if `side` says so. Not `typed`, they are read without the schema that the job has.

    Raises ConfigError for a shard without an output, for a column or an extra output that is not there, and for an
    output that a run replaces meanwhile; CorruptInput.
    """
    if side is not None and side not in found.sides:
        has = f"it has {', '.join(map(repr, found.sides))}" if found.sides else "it has none"
        raise ConfigError(f"{found.ledger.root} has no extra output {side!r}{did_you_mean(side, found.sides)}; {has}")
    ranks = np.flatnonzero(found.matched.done).tolist() if shard is None else [found.done_rank(shard)]
    named = "output" if side is None else schema_name(side)
    held = found.ledger.read_schema(named) if typed and found.written_as[0] in NOT_TOLD else None
    for rank in ranks:
        shard_id = found.plan.shard_id(rank)
        object = found.output(rank) if side is None else found.side(side, rank)
        if object is None:
            continue  # somebody removed it
        with _as_listed(found.ledger.store, object):
            for line in preview(found.ledger.store, object, *found.written_as, columns, held, texts):
                yield shard_id, line


@contextmanager
def _as_listed(store: Store, object: Object) -> Iterator[None]:
    """Raises ConfigError in place of CorruptInput where the object is another one by now, or gone: a run goes on."""
    try:
        yield
    except CorruptInput as error:
        if not is_another(store, object.uri, object):
            raise
        raise ConfigError(f"{object.uri}: a run replaced or removed it since it was listed; look again") from error


# Rows that were set aside


def quarantines(found: FoundJob, shard: str | None = None) -> Iterator[tuple[str, str]]:
    """Yields shard and name of each file of rows that were set aside, in plan order; or of one shard.

    Which shards set rows aside is known from events, where that is lost from the records of outputs; which file is
    theirs, from their records. Those of stages before the last one, which a complete job's summary names, come first.
    Raises ConfigError for a shard without an output, and for an output that a run replaces meanwhile; CorruptInput.
    """
    summary = summary_of(found)
    earlier = None if summary is None else UpstreamBooks.of(summary)
    before = () if earlier is None else [one for one in earlier.quarantine if shard in (None, one[0])]
    yield from before
    if before and shard is not None:
        return
    if shard is not None:
        ranks = [found.done_rank(shard)]
    elif not found.listing.quarantine and summary is not None and not summary["rows"]["quarantined"]:
        return
    else:
        asked = found.matched.done.copy()
        for rank, event in done_events(found.ledger, found.listing, found.plan, found.matched):
            asked[rank] = bool(event["rows"]["quarantined"])
        ranks = np.flatnonzero(asked).tolist()

    def read(rank: int) -> str | None:
        object = found.output(rank)
        with _as_listed(found.ledger.store, object):
            record = read_record(found.ledger.store, object, *found.written_as)
        return None if record is None else record.get("quarantine")

    for rank, name in ahead(read, ranks, READERS):
        if name:
            yield found.plan.shard_id(rank), name


def quarantined(found: FoundJob, shard: str | None = None) -> Iterator[tuple[str, Quarantined]]:
    """Yields shard and row of all rows that were set aside, in plan order; or of one shard.

    A file that is gone is told, and passed over. Raises as `quarantines` does.
    """
    store = found.ledger.store
    for shard_id, name in quarantines(found, shard):
        try:
            object = store.stat(found.ledger.uri(name))
        except ObjectNotFound:
            get_logger().warning("a file of quarantined rows is missing", shard=shard_id, file=name)
            continue
        with _as_listed(store, object):
            for row in read_quarantine(store, object):
                yield shard_id, row


Grouped = Mapping[str, Sequence[tuple[str, Quarantined]]]


def by_reason(rows: Iterable[tuple[str, Quarantined]], most: int) -> tuple[Grouped, Mapping[str, int]]:
    """Returns the rows that were set aside for each reason, at most so many, and how many there are; the most frequent
    reason first. They are chosen by the hash of where they were, so they are the same each time."""
    kept: dict[str, list[tuple[int, str, int, int, Quarantined]]] = {}
    counted: Counter[str] = Counter()
    for number, (shard, row) in enumerate(rows):
        counted[row.reason] += 1
        digest = hashlib.blake2b(f"{shard}\0{row.line}\0{row.at}".encode(), digest_size=8).digest()
        # The greatest of those that are kept is the first to go.
        one = (-int.from_bytes(digest), shard, row.line, number, row)
        own = kept.setdefault(row.reason, [])
        (heapq.heappush if len(own) < most else heapq.heappushpop)(own, one)
    order = sorted(kept, key=lambda reason: (-counted[reason], reason))
    chosen = {reason: sorted(kept[reason], key=lambda one: (-one[0], *one[1:4])) for reason in order}
    return {reason: [(one[1], one[4]) for one in own] for reason, own in chosen.items()}, counted


# What workers said


def newest_run(names: Iterable[str], run_ids: Iterable[str], wanted: str | None = None) -> str | None:
    """Returns the run whose log is to be shown, from segments and runs: as wanted, else the newest that has one.

    None if no run has. Raises ConfigError for a run that is not there.
    """
    known = sorted({*run_ids, *map(layout.run_id_of, names)})
    if wanted is not None:
        if wanted not in known:
            raise ConfigError(
                f"there is no run {wanted!r}{did_you_mean(wanted, known)}; the newest are "
                f"{', '.join(known[:-6:-1]) or 'none'}"
            )
        return wanted
    return max(map(layout.run_id_of, names), default=None)


def worker_lines(ledger: Ledger, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yields the lines of these segments of workers' logs, those of all workers merged by time.

    A worker's lines keep their order. What cannot be read is left out with a warning.
    """
    workers: dict[str, list[str]] = {}
    for name in sorted(names):
        workers.setdefault(name.rpartition("-")[0], []).append(name)
    with Threads(READERS) as pool:
        streams = [_of_worker(ledger, pool, own) for own in workers.values()]
        yield from heapq.merge(*streams, key=lambda line: line["time"])


def _of_worker(ledger: Ledger, pool: ThreadPoolExecutor, names: list[str]) -> Iterator[dict[str, Any]]:
    """Returns the lines of one worker; its first segment is asked for at once, each other one while one is shown."""

    def read(name: str) -> list[bytes]:
        try:
            return decompress(ledger.store.read(ledger.uri(name))).splitlines()
        except ObjectNotFound:
            return []  # removed since it was listed: the job begins anew
        except OSError as error:
            get_logger().warning("cannot read a segment of a log", segment=ledger.uri(name), error=str(error))
            return []

    def lines(coming: Future[list[bytes]]) -> Iterator[dict[str, Any]]:
        for number, name in enumerate(names):
            here = coming.result()
            if number + 1 < len(names):
                coming = pool.submit(read, names[number + 1])
            for line in here:
                value = _line(line)
                if value is None:
                    get_logger().warning("cannot read a line of a log", segment=ledger.uri(name))
                else:
                    yield value

    return lines(pool.submit(read, names[0]))


def _line(data: bytes) -> dict[str, Any] | None:
    """Returns a line of a log; None if it is none."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    sound = validation.having(time=validation.moment)(value) and validation.fields(attempt=validation.whole)(value)
    return value if sound else None
