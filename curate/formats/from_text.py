"""Parses text as values of any type that CSV can store, including types that Arrow cannot cast."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

_DAY = "1970-01-01 "


def from_text(texts: Any, type: pa.DataType) -> Any:
    """Returns texts, an array or a chunked one, as values of a type. Raises ArrowInvalid for one that is none;
    ArrowNotImplementedError for a type whose values have no text."""
    if pt.is_dictionary(type):
        values = from_text(texts, type.value_type)
        return pc.dictionary_encode(values).cast(type)
    if pt.is_time(type):
        # Arrow reads dates with times, and no times alone.
        return pc.binary_join_element_wise(_DAY, texts, "").cast(pa.timestamp("ns")).cast(type)
    if pt.is_duration(type):
        return texts.cast(pa.int64()).cast(type)
    if pt.is_null(type):
        if texts.null_count < len(texts):
            raise pa.ArrowInvalid("not null")
        return pa.chunked_array([pa.nulls(len(texts))]) if isinstance(texts, pa.ChunkedArray) else pa.nulls(len(texts))
    return texts.cast(type)


def has_text(type: pa.DataType) -> bool:
    """Returns whether `from_text` gives values of a type."""
    try:
        from_text(pa.array([], pa.string()), type)
    except pa.ArrowException:
        return False
    return True
