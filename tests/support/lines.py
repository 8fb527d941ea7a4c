"""How much Python runs: a count that does not depend on the machine, where a time would."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_run(call: Callable[[], object]) -> int:
    """Returns how many lines of Python a call runs, in all functions that it calls.

    Without those that a collection of garbage would run in the midst of it, which other tests left behind.
    """
    run = 0

    def trace(_: FrameType, event: str, __: Any) -> Any:
        nonlocal run
        run += event == "line"
        return trace

    before, collects = sys.gettrace(), gc.isenabled()
    gc.collect()
    gc.disable()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return run
