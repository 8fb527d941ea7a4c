"""Shows what a function is, as an identity has it, as people read it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

LONG_CODE = 60
"""Characters from which code is not shown whole."""


def readable(value: Any) -> Any:
    """Returns a value with what a function is, as its identity has it, in a few words; other code has other words.

    >>> readable(["map", "FunctionDef(name='f',args=arguments(),body=[Pass(), Pass(), Pass(), Pass()])\\nk = int 1"])
    ['map', 'the code of f (38a1b2), k = int 1']
    >>> readable(["map", "type Add\\naf4b22e26d8672a9", "partial FunctionDef(name='f') list(tuple(), dict())"])
    ['map', 'the code of Add (e8b486)', "a partial of FunctionDef(name='f') with list(tuple(), dict())"]
    """
    if isinstance(value, list | tuple):
        return [readable(one) for one in value]
    if isinstance(value, Mapping):
        return {name: readable(one) for name, one in value.items()}
    if not isinstance(value, str):
        return value
    if (found := re.fullmatch(r"partial (.*?) (list\(tuple\(.*)", value, re.DOTALL)) is not None:
        return f"a partial of {readable(found[1])} with {found[2]}"
    is_class = re.match(r"type \w+\n[0-9a-f]{16}\b", value) is not None
    if len(value) < LONG_CODE and not is_class:
        return value
    code, *further = value.splitlines()
    found = re.match(r"(?:FunctionDef\(name='|type )(\w+)", code) if is_class or code.startswith("F") else None
    if found is None and re.match(r"[0-9a-f]{24,} \(", code) is None:
        return value
    kept = [one for one in further if len(one) < LONG_CODE and re.match(r"[\w.]+ = ", one)]
    # And of the helpers that it calls.
    told = "\n".join([code, *(one for one in further if one not in kept)])
    digest = hashlib.sha256(told.encode()).hexdigest()[:6]
    return ", ".join([f"the code of {found[1] if found else 'a function'} ({digest})", *kept])
