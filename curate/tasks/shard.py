"""The unit of idempotency: a slice of one input that becomes one output."""

from __future__ import annotations

from enum import StrEnum

from curate.dataclass import dataclass


class SliceKind(StrEnum):
    """What `start` and `stop` of a shard count."""

    WHOLE = "whole"
    """The whole object; both are 0."""
    BYTES = "bytes"
    """Byte offsets: the lines that *begin* in [start, stop)."""
    ROW_GROUPS = "row_groups"
    """Parquet row groups [start, stop)."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A slice of one input object. Its id is the output's name without the format's suffix: readable and stable."""

    id: str
    uri: str
    kind: SliceKind
    start: int
    stop: int
    size_bytes: int
    """Stored bytes of the slice: what bundling and rates count."""
    object_bytes: int
    """Stored bytes of the whole input object."""
    generation: str
    """Generation of the input object when the plan was made."""
