"""What outputs of tokens have in common: one column of lists of integers, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from curate.arrow.types import is_list
from curate.errors import ConfigError
from curate.tokens.documents import TOKENS


def token_type(schema: pa.Schema, format: str) -> np.dtype[Any]:
    """Returns the type of the tokens of outputs. Raises ConfigError if there is anything but lists of integers."""
    found = schema.field(TOKENS).type if TOKENS in schema.names else None
    if found is None or len(schema) > 1 or not is_list(found) or not pt.is_integer(found.value_type):
        there = ", ".join(f"{field.name}: {field.type}" for field in schema)
        raise ConfigError(
            f"{format} has one column {TOKENS!r} of lists of integers, found {there or 'none'}; "
            "make them with jobs/tokens.py, or write parquet"
        )
    dtype: np.dtype[Any] = np.dtype(found.value_type.to_pandas_dtype())
    return dtype


def token_lists(table: pa.Table) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Yields the tokens of rows one after the other, with the length of each list. Raises ConfigError for nulls."""
    for chunk in table.column(TOKENS).chunks:
        values = chunk.flatten()
        if chunk.null_count or values.null_count:
            raise ConfigError(f"column {TOKENS!r} has null; drop such rows, or write parquet")
        yield values.to_numpy(), pc.list_value_length(chunk).to_numpy()
