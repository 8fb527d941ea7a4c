"""A GPU that has failed for good, as a made-up driver tells it: who finds out, and what becomes of whom."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from curate.errors import ConfigError
from curate.pipeline.classify import failure_of
from curate.runtime import lost_gpu as module
from curate.runtime import process_guard
from curate.runtime.lost_gpu import lost_gpu
from curate.tasks.failure import FailureKind
from tests.pipeline.test_bad_rows import do

ASSERT = 710
NOT_USED, WELL = None, 0


@dataclass
class Driver:
    """NVIDIA's driver, with the state of each GPU: not used here, well, or an error."""

    states: list[int | None]
    count: int = 0
    """What it answers when it is asked for the number of GPUs."""
    held: int = 0
    pushed: int = 0

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802 - its names
        count._obj.value = len(self.states)
        return self.count

    def cuDeviceGet(self, device: Any, number: int) -> int:  # noqa: N802
        device._obj.value = number
        return 0

    def cuDevicePrimaryCtxGetState(self, device: Any, _: Any, active: Any) -> int:  # noqa: N802
        active._obj.value = self.states[device.value] is not NOT_USED
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:  # noqa: N802
        assert self.states[device.value] is not NOT_USED, "this would take some hundred megabytes of it"
        context._obj.value, self.held = device.value + 1, self.held + 1
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:  # noqa: N802
        self.pushed = context.value
        return 0

    def cuCtxSynchronize(self) -> int:  # noqa: N802
        return self.states[self.pushed - 1] or 0

    def cuCtxPopCurrent_v2(self, _: Any) -> int:  # noqa: N802
        self.pushed = 0
        return 0

    def cuDevicePrimaryCtxRelease_v2(self, _: Any) -> int:  # noqa: N802
        self.held -= 1
        return 0

    def cuGetErrorName(self, code: int, name: Any) -> int:  # noqa: N802
        name._obj.value = b"CUDA_ERROR_ASSERT" if code == ASSERT else None
        return 0


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes a driver the one that is loaded."""
    monkeypatch.setattr(process_guard, "_spoilt", [])
    made = []

    def loaded(*states: int | None, count: int = 0) -> None:
        made.append(Driver(list(states), count))
        monkeypatch.setattr(module, "_loaded_driver", lambda: made[-1])

    yield loaded
    assert not any(one.held or one.pushed for one in made), "all is given back"


@pytest.mark.parametrize(
    ("states", "says"),
    [
        ((), ""),
        ((NOT_USED, WELL), ""),
        ((WELL, ASSERT), "CUDA_ERROR_ASSERT"),
        ((NOT_USED, 719), "error 719"),
        ((3,), ""),
        ((4, 100), ""),
    ],
)
def test_what_gpus_answer(use: Any, states: tuple[int | None, ...], says: str) -> None:
    """Those that this process uses; that it ends, or that there is none, is no failure of theirs."""
    use(*states)
    assert lost_gpu() == says


def test_without_a_driver_nothing_is_loaded_and_nothing_is_lost(use: Any) -> None:
    assert module._loaded_driver() is None or lost_gpu() == ""
    use(count=3)
    assert lost_gpu() == ""


def test_an_error_on_a_lost_gpu_says_nothing_of_the_rows(use: Any) -> None:
    """It is as if the worker had died: other rows of the batch would raise it too, and are no bad ones. Nothing else is
    to run in that process. An error that tells by itself what is to be done stays what it is."""
    use(WELL)
    assert failure_of(RuntimeError("CUDA error")).kind is FailureKind.USER_ERROR
    assert process_guard.spoilt() == ""

    def breaks(numbers: list[int]) -> None:
        if 3 in numbers:
            use(ASSERT)
        if lost_gpu():
            raise RuntimeError("CUDA error: device-side assert triggered")

    with pytest.raises(RuntimeError, match="device-side") as raised:
        do(breaks, list(range(8)), errors=True)
    assert failure_of(raised.value).kind is FailureKind.CRASHED
    assert process_guard.spoilt() == (
        "the state of its GPU, which answers CUDA_ERROR_ASSERT to everything from then on"
    )
    assert failure_of(ConfigError("no such model")).kind is FailureKind.MISCONFIGURED


def test_a_gpu_that_is_lost_while_a_bad_row_is_searched_for_ends_the_search(use: Any) -> None:
    """What was found until then is not taken for all that there is."""
    use(WELL)
    calls = []

    def breaks(numbers: list[int]) -> None:
        calls.append(numbers)
        if len(numbers) < 4:
            use(ASSERT)
        if lost_gpu():
            raise RuntimeError("CUDA error")
        raise ValueError("not these")

    with pytest.raises(RuntimeError, match="CUDA error"):
        do(breaks, list(range(8)), errors=True)
    assert [len(one) for one in calls] == [8, 4, 2]
