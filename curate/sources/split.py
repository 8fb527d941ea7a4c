"""Splitting: inputs to shards. Pure, and part of a job's identity: decided from bytes and row groups, nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from curate.storage.protocol import Object
from curate.tasks.shard import Shard, SliceKind
from curate.units import KIB, MIB

Item = TypeVar("Item")


SHARD_BYTES = 256 * MIB
"""Stored bytes of a shard of a dataset, at most, where its input can be split."""
BUNDLE_BYTES = 8 * MIB
OPEN_BYTES = 64 * KIB
"""Small shards share a task of a stream: until they have this many bytes, each with what it takes to open its file."""


def split_bytes(size: int, shard_bytes: int) -> list[tuple[int, int]]:
    """Returns byte ranges of nearly equal size, none above `shard_bytes`, that cover `size` bytes.

    >>> split_bytes(10, 4)
    [(0, 3), (3, 6), (6, 10)]
    """
    parts = max(1, -(-size // shard_bytes))
    edges = [size * k // parts for k in range(parts + 1)]
    return list(itertools.pairwise(edges))


def split_row_groups(sizes: Sequence[int], shard_bytes: int) -> list[tuple[int, int]]:
    """Returns ranges of row groups: as many neighbours together as fit into `shard_bytes`, at least one.

    >>> split_row_groups([3, 3, 3, 9, 1], 6)
    [(0, 2), (2, 3), (3, 4), (4, 5)]
    """
    ranges: list[tuple[int, int]] = []
    start, held = 0, 0
    for group, size in enumerate(sizes):
        if group > start and held + size > shard_bytes:
            ranges.append((start, group))
            start, held = group, 0
        held += size
    ranges.append((start, len(sizes)))
    return ranges


def whole(stem: str, uri: str, size: int, generation: str) -> Shard:
    """Returns the one shard of an input that is not split."""
    return Shard(stem, uri, SliceKind.WHOLE, 0, 0, size, size, generation)


def whole_object(shard: Shard) -> tuple[Object, ...]:
    """Returns the object that a shard is all of; none if it is a slice of one."""
    return (Object(shard.uri, shard.object_bytes, shard.generation),) if shard.kind is SliceKind.WHOLE else ()


def parts(
    stem: str,
    uri: str,
    size: int,
    generation: str,
    kind: SliceKind,
    ranges: Sequence[tuple[int, int]],
    sizes: Sequence[int],
) -> Iterator[Shard]:
    """Yields the shards of a split input, named `stem.part-00000-of-00003`; one range means one shard without a suffix.

    `sizes` are the stored bytes of each range.
    """
    if len(ranges) == 1:
        yield whole(stem, uri, size, generation)
        return
    for k, ((start, stop), part_size) in enumerate(zip(ranges, sizes, strict=True)):
        part_id = f"{stem}.part-{k:05d}-of-{len(ranges):05d}"
        yield Shard(part_id, uri, kind, start, stop, part_size, size, generation)


def bundled(items: Iterable[Item], size_of: Callable[[Item], int]) -> Iterator[tuple[Item, ...]]:
    """Yields neighbours together, in order: as many as fit into `BUNDLE_BYTES`, `OPEN_BYTES` counted for each.

    The first two are one item each, and every second one may be twice as large as those before: the first rows come
    soon, and few items are several tasks.

    >>> [len(bundle) for bundle in bundled("abcdefghijk", lambda _: 1)]
    [1, 1, 1, 1, 3, 3, 1]
    """
    held: list[Item] = []
    size = number = 0
    for item in items:
        weight = size_of(item) + OPEN_BYTES
        # Not beyond sixty doublings: there may be millions of bundles.
        if held and size + weight > min(BUNDLE_BYTES, OPEN_BYTES << min(number // 2, 60)):
            yield tuple(held)
            held, size = [], 0
            number += 1
        held.append(item)
        size += weight
    if held:
        yield tuple(held)
