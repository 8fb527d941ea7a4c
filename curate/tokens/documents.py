"""Documents of tokens: ids one after the other, with the length of each document."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curate.dataclass import dataclass

Array = npt.NDArray[Any]

TOKENS = "tokens"
"""The column of the ids of a document, or of a sequence."""


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents, or pieces of them, one after the other."""

    ids: Array
    lengths: Array
    """Tokens of each document, in order: int64, with the sum len(ids)."""

    def marked(self, begin: int | None, end: int | None) -> Documents:
        """Returns the documents with a token before and behind each; None: no such token.

        >>> Documents(np.array([5, 6, 7]), np.array([2, 0, 1])).marked(None, 0).ids.tolist()
        [5, 6, 0, 0, 7, 0]
        """
        if begin is None and end is None:
            return self
        lengths = self.lengths + (begin is not None) + (end is not None)
        ends = np.cumsum(lengths)
        ids = np.empty(int(ends[-1]) if len(ends) else 0, self.ids.dtype)
        own = np.ones(len(ids), bool)
        for at, token in ((ends - lengths, begin), (ends - 1, end)):
            if token is not None:
                ids[at] = token
                own[at] = False
        ids[own] = self.ids
        return Documents(ids, lengths)

    def lists(self, type: pa.DataType) -> pa.ListArray:
        """Returns a list of integers of that type for each document. They have to fit it.

        >>> Documents(np.array([5, 6, 7]), np.array([2, 0, 1])).lists(pa.uint16()).to_pylist()
        [[5, 6], [], [7]]
        """
        ids = pa.array(self.ids.astype(type.to_pandas_dtype(), copy=False), type)
        return pa.ListArray.from_arrays(pa.array(offsets(self.lengths), pa.int32()), ids)


def offsets(lengths: Array) -> Array:
    """Returns where each of these begins, and where the last one ends.

    >>> offsets(np.array([2, 0, 1])).tolist()
    [0, 2, 2, 3]
    """
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def documents_of(lists: pa.ChunkedArray | pa.ListArray) -> Documents:
    """Returns the documents of a column of lists of integers, which are not null."""
    chunks = lists.chunks if isinstance(lists, pa.ChunkedArray) else [lists]
    dtype = lists.type.value_type.to_pandas_dtype()
    ids = [np.zeros(0, dtype), *(chunk.flatten().to_numpy() for chunk in chunks)]
    lengths = [np.zeros(0, np.int64), *(np.diff(chunk.offsets.to_numpy()).astype(np.int64) for chunk in chunks)]
    return Documents(np.concatenate(ids), np.concatenate(lengths))
