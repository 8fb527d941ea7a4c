"""Blocks end as with `contextlib`; an exception that leaves one is not touched."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import curate
from curate.around import contextmanager
from tests.support.errors import UNTOUCHABLE

pytestmark = pytest.mark.quick

ENDED: list[int] = []


def plain() -> Iterator[int]:
    yield 7


def ends() -> Iterator[int]:
    try:
        yield 7
    finally:
        ENDED.append(7)


def swallows() -> Iterator[int]:
    with contextlib.suppress(ValueError, StopIteration):
        yield 7


def another() -> Iterator[int]:
    try:
        yield 7
    except ValueError as error:
        raise KeyError(8) from error


def same_again() -> Iterator[int]:
    try:
        yield 7
    except ValueError as error:
        raise error from None


def told(manager: Any, raised: BaseException | None) -> list[Any]:
    """Returns what becomes of a block that ends so."""
    try:
        with manager as given:
            if raised is not None:
                raise raised
    except BaseException as error:  # noqa: BLE001 - it is what is compared
        frames = [one.name for one in traceback.extract_tb(error.__traceback__)]
        return [type(error), error.args, error is raised, frames[0], frames[-1], type(error.__cause__)]
    return [given]


@pytest.mark.parametrize("parts", [plain, ends, swallows, another, same_again])
@pytest.mark.parametrize("raised", [lambda: None, ValueError, StopIteration, KeyboardInterrupt, GeneratorExit])
def test_a_block_ends_as_with_contextlib(parts: Callable[[], Iterator[int]], raised: Callable[[], Any]) -> None:
    """Whatever the block raises, and whatever the generator does with that."""
    ENDED.clear()
    ours = told(contextmanager(parts)(), raised())
    assert ours == told(contextlib.contextmanager(parts)(), raised())
    assert len(ENDED) == 2 * (parts is ends)


@pytest.mark.parametrize("make", UNTOUCHABLE)
def test_an_exception_that_takes_no_attributes_leaves_as_itself(make: Callable[[], Exception]) -> None:
    """Nothing is set on it."""
    error = make()
    for parts in (plain, ends):
        manager: Any = contextmanager(parts)()
        with pytest.raises(type(error)) as caught, manager:
            raise error
        assert caught.value is error


def test_a_second_yield_is_refused() -> None:
    """It would go on after its block."""

    @contextmanager
    def twice() -> Iterator[None]:
        with contextlib.suppress(ValueError):
            yield
        yield

    with pytest.raises(RuntimeError, match="yields once"), twice():
        raise ValueError


def test_curate_has_no_others() -> None:
    """User code may raise in any block."""
    rooms = Path(curate.__file__).parent
    others = [
        path for path in rooms.rglob("*.py") if re.search(r"contextlib(\.| import .*)contextmanager", path.read_text())
    ]
    assert others == []
