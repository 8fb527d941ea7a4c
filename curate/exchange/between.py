"""What the outputs of an exchange read of its segments: the pages between two cuts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from curate.arrow.order import Order
from curate.exchange.cuts import Cut
from curate.exchange.even import SegmentRanges, by_part
from curate.exchange.run_file import Segment


def reads_between(segments: Sequence[Segment], made: Sequence[Cut], order: Order) -> Iterator[SegmentRanges]:
    """Yields what every part reads: whole pages, from the one that its lower cut is in to the one that its upper cut is
    in. Where exactly these are is left to who reads the pages.
    """
    of = np.array([cut.segment for cut in made], dtype=np.int64)
    rows = np.array([cut.row for cut in made], dtype=np.int64)
    quick = _sorted_numbers(pa.concat_tables([cut.key for cut in made]), order) if made else None

    def read(segment: Segment, number: int) -> tuple[Any, Any]:
        ends = np.concatenate([[0], np.cumsum(segment.rows)]).astype(np.int64)
        if not order.keys:
            # It is known to the row.
            at = np.select([of > number, of == number], [ends[-1], rows], 0)
            return np.append(0, at), np.append(at, ends[-1])
        keys = _sorted_numbers(segment.keys, order) if quick is not None else None
        # The page that a cut is in; before the first one there is nothing on its left.
        if quick is not None and keys is not None:
            left, right = (np.searchsorted(keys, quick, side=side) for side in ("left", "right"))
            pages = np.where(number < of, right, left) - 1
        else:
            found = [order.position(segment.keys, cut.key, number < cut.segment) for cut in made]
            pages = np.array(found, dtype=np.int64) - 1
        starts = np.concatenate([[0], ends[np.maximum(pages, 0)]])
        stops = np.concatenate([ends[pages + 1], ends[-1:]])
        own = np.flatnonzero((of == number) & (rows > 0))
        stops[own] = starts[own + 1] = rows[own]
        return starts, stops

    return by_part(len(made) + 1, (read(one, number) for number, one in enumerate(segments)))


def _sorted_numbers(keys: pa.Table, order: Order) -> Any:
    """Returns ascending keys as an array, if that is how they are compared; else None."""
    if len(order.keys) != 1 or order.keys[0].descending:
        return None
    column = keys.column(0)
    if not pa.types.is_integer(column.type) or column.null_count:
        return None
    return column.to_numpy()
