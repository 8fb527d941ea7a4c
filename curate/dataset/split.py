"""Splitting: inputs to shards. Pure, and part of a job's identity: decided from bytes and row groups, nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from curate.tasks.shard import Shard, SliceKind


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
