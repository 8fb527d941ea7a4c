"""Has Arrow know of pandas once the program does.

By itself Arrow imports pandas with the first array that it makes of Python values, to see whether they are of pandas:
300 modules, 0.3 s, in each process, and nearly always for nothing. Where it infers a type, or makes an array of NumPy,
its C++ part does so, once and for all: a pandas that it did not find then, it would never know of. So that is left to
it, and what each run does gives the types, by `text`, and takes the numbers of columns by `numbers`. `curate.arrow`
starts it, before it makes any array.

Where another thread is in the middle of importing pandas, as one may be in a worker of Ray, Arrow is left as it is.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pyarrow as pa

from curate.imports import hidden, when_imported

NAME = "pandas"


def import_pandas_late() -> None:
    """From now on Arrow knows of pandas as soon as something else has imported it.

    Does nothing if pandas is imported. What needs it, such as `table.to_pandas()`, imports it as ever.
    """
    if NAME not in sys.modules:
        with hidden(NAME):
            # Looks for it and does not find it; the second time, does not look.
            _ = pa.lib._pandas_api.have_pandas
        when_imported(NAME, _look_again)


def _look_again() -> None:
    try:
        _ = pa.lib._pandas_api.pd
    except ImportError:
        # Arrow cannot work with this version: whoever needs that is told then.
        return


def text(value: str) -> pa.StringScalar:
    """Returns text for a function of Arrow, whose type then need not be inferred."""
    return pa.scalar(value, pa.string())


def numbers(column: pa.Array | pa.ChunkedArray) -> np.ndarray[Any, Any]:
    """Returns the numbers, or booleans, of a column as `to_numpy` does. It has no nulls, or ValueError is raised.

    >>> numbers(pa.chunked_array([[1, 2], [3]])), numbers(pa.array([True, False, True]).slice(1))
    (array([1, 2, 3]), array([False,  True]))
    """
    if column.null_count:
        raise ValueError(f"{column.null_count:,} of {len(column):,} values are null")
    type = np.dtype(column.type.to_pandas_dtype())
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    found = [_viewed(chunk, type) for chunk in chunks if len(chunk)]
    if len(found) == 1:
        return found[0]
    return np.concatenate(found) if found else np.zeros(0, type)


def _viewed(chunk: pa.Array, type: np.dtype[Any]) -> np.ndarray[Any, Any]:
    values = chunk.cast(pa.uint8()) if pa.types.is_boolean(chunk.type) else chunk
    return np.frombuffer(values.buffers()[1], type, len(values), values.offset * type.itemsize)
