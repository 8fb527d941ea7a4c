"""Two corpora row by row, by their ids: what appeared, what went, what changed. A job exchanges ids and hashes."""

from __future__ import annotations

import hashlib
import heapq
import zlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.arrow.expressions import refuse_unknown
from curate.arrow.hashing import digest_rows
from curate.arrow.recast import decoded, python_value
from curate.dataclass import dataclass, field
from curate.dataset.dataset import Dataset
from curate.dataset.read import files as read
from curate.report.column import cut
from curate.report.column import read as read_value
from curate.report.written import written_anew

EQUAL, CHANGED, APPEARED, WENT = "equal", "changed", "appeared", "went"
SHOWN_IDS = 20
SHOWN_CHARS = 200
_STATE = "state"
_OURS, _THEIRS = ("sum", "rows"), ("other_sum", "other_rows")
_SCHEMA = pa.schema(
    [("id", pa.string()), *((name, pa.int64()) for name in (*_OURS, *_THEIRS))],
)
_TOLD = pa.schema([("id", pa.string()), (_STATE, pa.string())])


@dataclass(frozen=True, slots=True)
class IdDifference:
    """Ids of two corpora. One that several rows have is one id, and equal if all of its rows are."""

    column: str
    equal: int
    changed: int
    appeared: int
    """Ids of the corpus that the other one does not have."""
    went: int
    """Ids of the other one alone."""
    examples: Mapping[str, list[str | None]] = field(default_factory=dict)
    """At most 20 ids that changed, appeared, and went, chosen by hash: the same ones each time."""

    def as_dict(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        counts = {EQUAL: self.equal, CHANGED: self.changed, APPEARED: self.appeared, WENT: self.went}
        return {"column": self.column, **counts, "examples": {name: list(own) for name, own in self.examples.items()}}


def compare_ids(ours: Dataset, theirs: Dataset, id_column: str, work: str, backend: str | None) -> IdDifference:
    """Returns how the rows of two datasets differ by id. What it finds is kept below `work`, and made anew if inputs
    are others by now. Raises ConfigError if one of them has no such column."""
    for one in (ours, theirs):
        refuse_unknown("comparing rows by id", [id_column], one.columns() or [])
    found = (
        _ids(ours, id_column, _OURS)
        .union(_ids(theirs, id_column, _THEIRS))
        .groupby("id")
        .aggregate([(name, "sum") for name in (*_OURS, *_THEIRS)])
        .map_batches(_states, output_schema=_TOLD)
        .filter(pc.field(_STATE) != EQUAL, reason=EQUAL)
    )
    summary = written_anew(found, work, backend, f"rows could not be compared by {id_column!r}")
    return _read(work, id_column, summary.books.dropped.get(EQUAL, 0))


def _ids(ds: Dataset, id_column: str, names: tuple[str, str]) -> Dataset:
    return ds.map_batches(_hashed, output_schema=_SCHEMA, fn_kwargs={"id_column": id_column, "names": names})


def _hashed(batch: pa.Table, id_column: str, names: tuple[str, str]) -> pa.Table:
    """Returns id, hash and number of each row, in the columns of its side."""
    columns = sorted(batch.column_names)
    digests, _ = digest_rows(batch, columns, seed=zlib.crc32("\0".join(columns).encode()))
    nothing, one = np.zeros((2, batch.num_rows), np.int64)
    # Sums of these do not overflow.
    own = {names[0]: (digests >> np.uint64(24)).astype(np.int64), names[1]: one + 1}
    values = [own.get(name, nothing) for name in _SCHEMA.names[1:]]
    return pa.table([_texts(batch[id_column]), *values], schema=_SCHEMA)


def _texts(ids: pa.ChunkedArray) -> pa.ChunkedArray | list[str | None]:
    """Returns ids as texts: bytes that are none in hexadecimal digits, and as Arrow prints it what else it makes no
    text of, such as times of a zone that it does not know."""
    ids = decoded(ids)
    try:
        return ids.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return [_text(python_value(one)) for one in ids]


def _text(value: Any) -> str | None:
    try:
        return value.decode() if isinstance(value, bytes) else None if value is None else str(value)
    except UnicodeDecodeError:
        return f"0x{value.hex()}"


def _states(batch: pa.Table) -> pa.Table:
    """Returns each id with what became of it."""
    ours, our_rows, theirs, their_rows = (
        batch[f"{name}_sum"].to_numpy().astype(np.int64) for name in (*_OURS, *_THEIRS)
    )
    same = (ours == theirs) & (our_rows == their_rows)
    states = np.select([their_rows == 0, our_rows == 0, same], [APPEARED, WENT, EQUAL], CHANGED)
    return pa.table([batch["id"], pa.array(states.tolist(), pa.string())], schema=_TOLD)


def _read(work: str, id_column: str, equal: int) -> IdDifference:
    counted: Counter[str] = Counter()
    kept: dict[str, list[tuple[int, str | None]]] = {CHANGED: [], APPEARED: [], WENT: []}
    for batch in read.read_parquet(work).iter_batches(batch_format="pyarrow"):
        for one, state in zip(map(read_value, batch["id"]), batch[_STATE].to_pylist(), strict=True):
            counted[state] += 1
            digest = hashlib.blake2b(repr(one).encode("utf-8", "surrogatepass"), digest_size=8).digest()
            own = kept[state]
            # The greatest of those that are kept is the first to go.
            (heapq.heappush if len(own) < SHOWN_IDS else heapq.heappushpop)(own, (-int.from_bytes(digest), one))
    shown = {
        state: [None if one is None else cut(one, SHOWN_CHARS) for _, one in sorted(own, key=lambda pair: -pair[0])]
        for state, own in kept.items()
    }
    return IdDifference(id_column, equal, counted[CHANGED], counted[APPEARED], counted[WENT], shown)
