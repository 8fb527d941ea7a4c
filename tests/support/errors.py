"""Exceptions of user code that take no attributes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Frozen(Exception):
    """Refuses attributes with a FrozenInstanceError."""

    status: int


@dataclass(frozen=True, slots=True)
class FrozenSlots(Exception):
    """Refuses them with a TypeError, in Python 3.11."""

    status: int


class Refusing(Exception):
    """Refuses them with an error of its own."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"no {name}")


class Slots(Exception):
    """Names none of its own."""

    __slots__ = ()


UNTOUCHABLE: list[Callable[[], Exception]] = [
    lambda: Frozen(7),
    lambda: FrozenSlots(7),
    lambda: Refusing("no"),
    lambda: Slots("no"),
]
