"""Shows what a function is, as an identity has it, as people read it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

LONG_CODE = 60
"""Characters from which code is not shown whole."""
_LONG = 200
"""And from which a value is not, where it is compared with another."""
_BEFORE = 60
"""Characters that are shown of what two long texts have in common, before that in which they differ."""


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


def apart(name: str, theirs: Any, ours: Any) -> Iterator[tuple[str, str, str]]:
    """Yields in what two values differ, as people read it, by its name: both whole where they are short, else the items
    and the places in texts. A pipeline is long, and what is another in it a number.

    >>> steps = [["map", "x" * 200], ["filter", f"{'y' * 200} = 1"]]
    >>> list(apart("operators", steps, [steps[0], ["filter", f"{'y' * 200} = 2"]]))[0][0]
    'operators[1] filter'
    """
    values = tuple(_value_apart(theirs, ours))
    shown = repr(readable(theirs)), repr(readable(ours))
    if max(map(len, shown)) <= _LONG and not values:
        yield name, *shown
    elif isinstance(theirs, list) and isinstance(ours, list):
        first = _alike(theirs, ours)
        last = _alike(theirs[first:][::-1], ours[first:][::-1])
        there, here = theirs[first : len(theirs) - last], ours[first : len(ours) - last]
        if len(there) != len(here):
            yield name, *_windows(repr(readable(there)), repr(readable(here)))
            return
        for number, (one, other) in enumerate(zip(there, here, strict=True), first):
            is_step = isinstance(one, list) and one and isinstance(one[0], str)
            if one != other:
                yield from apart(f"{name}[{number}] {one[0]}" if is_step else name, one, other)
    elif isinstance(theirs, str) and isinstance(ours, str):
        yield name, *_windows(*values or (readable(theirs), readable(ours)))
    else:
        yield name, *_windows(*shown)


def _value_apart(theirs: Any, ours: Any) -> Iterator[str]:
    """Yields both sides of the first long value in which the same code differs, or items of two lists do: few words
    would not show it."""
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        found = (both for one, other in zip(theirs, ours, strict=True) if (both := tuple(_value_apart(one, other))))
        yield from next(found, ())
    elif isinstance(theirs, str) and isinstance(ours, str):
        lines = zip(theirs.splitlines(), ours.splitlines(), strict=False)
        first = next(((one, other) for one, other in lines if one != other), ("", ""))
        names = [re.match(r"[\w.]+ = ", one) for one in first]
        if all(names) and len({one[0] for one in names if one}) == 1 and max(map(len, first)) >= LONG_CODE:
            yield from first


def _alike(theirs: Any, ours: Any) -> int:
    """Returns how many items, or characters, two values have in common from the first one on."""
    at = 0
    for one, other in zip(theirs, ours, strict=False):
        if one != other:
            break
        at += 1
    return at


def _windows(theirs: str, ours: str) -> tuple[str, str]:
    """Returns two texts around where they begin to differ, of these lines alone."""
    alike = _alike(theirs, ours)
    start = max(0, theirs.rfind("\n", 0, alike) + 1, alike - _BEFORE)

    def window(text: str) -> str:
        line = text.find("\n", alike)
        stop = min(start + _LONG, len(text), len(text) if line < 0 else line)
        return f"{'...' * (start > 0)}{text[start:stop]}{'...' * (stop < len(text))}"

    return window(theirs), window(ours)
