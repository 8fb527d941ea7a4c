"""How much Python runs: a count that does not depend on the machine, where a time would."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_run(call: Callable[[], object]) -> int:
    """Returns how many lines of Python a call runs, in all functions that it calls."""
    run = 0

    def trace(_: FrameType, event: str, __: Any) -> Any:
        nonlocal run
        run += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return run
