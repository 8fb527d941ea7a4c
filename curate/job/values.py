"""Values of parameters: checked against their type, written down as JSON. Nothing here is converted silently."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from curate.errors import ConfigError, did_you_mean

SCALARS = (str, int, float, bool)


def type_text(kind: Any) -> str:
    """Returns how messages call a type: one of SCALARS, a class, or a tuple of values to choose from.

    >>> type_text(int), type_text(("a", "b"))
    ('int', "one of ['a', 'b']")
    """
    return f"one of {list(kind)}" if isinstance(kind, tuple) else str(kind.__name__)


def check_scalar(what: str, value: Any, kind: Any) -> Any:
    """Returns `value` as a plain value of `kind`. Raises ConfigError, which names it `what`.

    A whole number is a float where a float belongs; a bool is never a number.
    """
    if isinstance(kind, tuple):
        return _choice(what, value, kind)
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        if math.isnan(value):
            raise ConfigError(f"{what} is not a number (nan); give one")
        return float(value)
    if kind is bool and isinstance(value, bool):
        return value
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if kind is str and isinstance(value, str):
        plain = str.__str__(value)
        try:
            plain.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"{what} is {plain!r}, which is not valid Unicode; give it as UTF-8") from error
        return plain
    raise ConfigError(f"{what} is {value!r} ({type(value).__name__}), expected {type_text(kind)}")


def _choice(what: str, value: Any, choices: Sequence[Any]) -> Any:
    for choice in choices:
        # 1, 1.0 and True are equal, and three different values.
        if type(choice) is type(value) and choice == value:
            return choice
    hint = did_you_mean(str(value), [str(choice) for choice in choices])
    raise ConfigError(f"{what} is {value!r}, expected one of {list(choices)}{hint}")


def recorded_scalar(value: Any) -> Any:
    """Returns a value as JSON can hold it without loss: infinities and very large whole numbers as text.

    >>> recorded_scalar(0.5), recorded_scalar(float("inf")), recorded_scalar(2**70)
    (0.5, 'inf', '1180591620717411303424')
    """
    if isinstance(value, float) and math.isinf(value):
        return str(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    return value
