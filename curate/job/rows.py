"""What user code says about rows, checked before it is booked: a slip should show in its own traceback."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from curate.dataset.isolate import row_text


def check_name(text: Any, call: str) -> str:
    """Returns a reason or the name of a counter. Raises TypeError, ValueError showing the call."""
    if not isinstance(text, str):
        raise TypeError(f"{call}: expected text that says what is counted, found {type(text).__name__}")
    if not text:
        raise ValueError(f"{call}: expected text that says what is counted, found none")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{call}: the text is not valid Unicode") from None
    return text


def check_count(n: Any, call: str, *, whole: bool = True) -> Any:
    """Returns a number as Python has it: whole, or finite. Raises TypeError, ValueError showing the call."""
    value = n.item() if hasattr(n, "item") else n.as_py() if hasattr(n, "as_py") else n
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{call}: expected a number, found {type(n).__name__}")
    if whole and not isinstance(value, int):
        raise TypeError(f"{call}: expected a whole number of rows, found {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{call}: {value} cannot be added up")
    return value


def row_json(row: Any) -> str:
    """Returns a row as one line of JSON: bytes as text or base64, what JSON does not have as Python shows it."""
    if not isinstance(row, Mapping):
        raise TypeError(f"quarantine(row, reason): expected a row as a dictionary, found {type(row).__name__}")
    return row_text(row)
