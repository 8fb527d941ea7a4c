"""Samples of dropped rows: one file a shard, a line of JSON for each row, in order of reason and hash.

The file is called by the hash of its shard's id, so that who knows the shards of a job finds theirs without a listing,
and a shard that runs again finds its own. It is no part of the output's bytes.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from curate import log
from curate.dataclass import dataclass, field
from curate.errors import CorruptInput, ObjectNotFound
from curate.ledger import layout
from curate.ledger.compression import compress, decompress
from curate.ledger.ledger import Ledger
from curate.ledger.listing import OutputListing
from curate.ledger.manifest import ShardPlan
from curate.prefetch import ahead

MOST_SAMPLED = 20
"""Rows of one reason that a shard keeps, and that are shown of a job."""
MOST_FILES = 64
"""Files that are read of a stage, to show rows of it."""
SHARDS_OF_REASON = 16
"""Shards that are chosen for a reason, of those that dropped rows for it."""
READERS = 16


@dataclass(frozen=True, slots=True)
class DroppedRow:
    """One row of those that were dropped."""

    reason: str
    hash: int
    """Of the row's values: of a reason, those with the lowest are kept."""
    row: str
    """The row as a line of JSON, as the step was given it that dropped it; long texts are cut."""
    cut: Mapping[str, int] = field(default_factory=dict)
    """How long values are that were cut, by column: characters, bytes or elements."""
    left_out: int = 0
    """Columns that the row has besides."""
    shard: str = ""
    stage: str = ""
    """The key of the stage that dropped it, if that is not the last one."""

    @property
    def order(self) -> tuple[int, str, str]:
        """What rows of a reason are chosen by, and shown in the order of."""
        return self.hash, self.shard, self.row


def shard_samples(shard: str) -> str:
    """Returns what the samples of a shard are called, without suffix: 16 hex digits."""
    return hashlib.blake2b(shard.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def stage_samples(key: str) -> str:
    """Returns what the samples of a whole stage are called, which are kept when the stage is removed."""
    return shard_samples(f"\0{key}")  # no shard is called like that


def encode_samples(rows: Iterable[DroppedRow]) -> bytes:
    """Returns the file of some rows: the same bytes for the same rows, in whatever order they are given."""
    ordered = sorted(rows, key=lambda one: (one.reason, *one.order))
    return compress(b"".join(orjson.dumps(_line(one), option=orjson.OPT_APPEND_NEWLINE) for one in ordered))


def _line(one: DroppedRow) -> dict[str, Any]:
    told: dict[str, Any] = {"shard": one.shard, "reason": one.reason, "hash": f"{one.hash:016x}", "row": one.row}
    if one.stage:
        told["stage"] = one.stage
    if one.cut:
        told["cut"] = dict(one.cut)
    if one.left_out:
        told["left_out"] = one.left_out
    return told


def decode_samples(data: bytes, uri: str) -> list[DroppedRow]:
    """Returns the rows of such a file, in its order. Raises CorruptInput, naming `uri`."""
    if not data:
        raise CorruptInput(f"{uri}: not a file of sampled rows: it is empty")
    try:
        return [_row(orjson.loads(line)) for line in decompress(data).splitlines()]
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        raise CorruptInput(f"{uri}: not a file of sampled rows: {error!r}") from error


def _row(told: Mapping[str, Any]) -> DroppedRow:
    cut = {str(name): int(size) for name, size in told.get("cut", {}).items()}
    texts = [told[name] for name in ("reason", "row", "shard")] + [told.get("stage", "")]
    if not all(isinstance(one, str) for one in texts):
        raise TypeError("expected reason, row, shard and stage as text")
    reason, row, shard, stage = texts
    return DroppedRow(reason, int(told["hash"], 16), row, cut, int(told.get("left_out", 0)), shard, stage)


def lowest(rows: Iterable[DroppedRow]) -> dict[tuple[str, str], list[DroppedRow]]:
    """Returns the rows of the lowest hashes of each stage and reason, at most `MOST_SAMPLED`; alike ones once."""
    grouped: dict[tuple[str, str], list[DroppedRow]] = {}
    for one in rows:
        grouped.setdefault((one.stage, one.reason), []).append(one)
    found = {}
    for key, own in grouped.items():
        first: dict[int, DroppedRow] = {}
        for one in sorted(own, key=lambda one: one.order):
            first.setdefault(one.hash, one)
        found[key] = list(first.values())[:MOST_SAMPLED]
    return found


class DroppingShards:
    """Chooses the shards whose samples are read, from what events say: of each reason some of those that had it.

    A job may have 100,000 shards. So those with the lowest hashes of their places in the plan are chosen, in turn for
    each reason, the rarest first: a reason that only three of them know is shown by these.
    """

    def __init__(self) -> None:
        self._lowest: dict[str, list[tuple[int, int]]] = {}
        """Of each reason, the shards with the lowest hashes so far, as a heap whose first is the highest."""

    def note(self, rank: int, dropped: Mapping[str, int]) -> None:
        """Takes what a shard dropped."""
        if not dropped:
            return
        one = -_mixed(rank), rank
        for reason in dropped:
            own = self._lowest.get(reason)
            if own is None:
                self._lowest[reason] = [one]
            elif len(own) == SHARDS_OF_REASON:
                # Of most shards, this is all.
                if one > own[0] and one not in own:
                    heapq.heapreplace(own, one)
            elif one not in own:
                heapq.heappush(own, one)

    def chosen(self) -> list[int]:
        """Returns the places of these shards, at most `MOST_FILES`."""
        found: dict[int, None] = {}
        reasons = [sorted(own, reverse=True) for _, own in sorted(self._lowest.items())]
        reasons.sort(key=len)
        for turn in range(SHARDS_OF_REASON):
            for own in reasons:
                if turn < len(own) and len(found) < MOST_FILES:
                    found[own[turn][1]] = None
        return list(found)


def _mixed(number: int) -> int:
    """Returns a hash of a number (the mix of splitmix64; Steele, Lea, Flood, "Fast splittable pseudorandom number
    generators", 2014)."""
    mask = (1 << 64) - 1
    number = (number + 0x9E3779B97F4A7C15) & mask
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & mask
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & mask
    return number ^ (number >> 31)


def read_samples(
    ledger: Ledger, listing: OutputListing, plan: ShardPlan, dropping: DroppingShards, keys: Iterable[str] = ()
) -> Iterator[DroppedRow]:
    """Yields rows that shards of a job dropped: of all shards, or of the `dropping` ones where there are more than
    `MOST_FILES` that dropped any; and those of the stages of these keys that were removed.

    What cannot be read is passed over with a warning.
    """
    chosen = plan.table.take([rank for rank in dropping.chosen() if rank < len(plan)], "id")["id"].to_pylist()
    asked = [*map(stage_samples, keys), *map(shard_samples, chosen)]
    wanted = dict.fromkeys(listing.samples_named([layout.samples(one) for one in asked]))
    for name in listing.samples.slice(0, MOST_FILES + len(wanted), "name")["name"].to_pylist():
        if len(wanted) >= MOST_FILES:
            break
        wanted[name] = None

    def read(name: str) -> list[DroppedRow]:
        uri = ledger.uri(name)
        try:
            return decode_samples(ledger.store.read(uri), uri)
        except (CorruptInput, ObjectNotFound) as error:
            log.get_logger().warning("cannot read a sample of dropped rows", file=name, error=str(error))
            return []

    for _, rows in ahead(read, wanted, READERS):
        yield from rows
