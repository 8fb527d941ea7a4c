"""Other stores for the driver alone, in tests where its workers are in the same process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from curate.storage.open import Stores
from curate.storage.protocol import Store

_DRIVERS = ("driver.prepare", "graph.inputs", "graph.keys", "graph.outdated", "graph.start", "job.inputs")


def driver_opens(monkeypatch: pytest.MonkeyPatch, opened: Callable[..., Store]) -> None:
    """Has the driver open its stores by a function that is called as `open_store` is; workers go on as they were."""

    class DriverStores(Stores):
        def of(self, uri: str) -> Any:
            scheme = uri.partition("://")[0] if "://" in uri else ""
            if scheme not in self._stores:
                self._stores[scheme] = opened(uri, scratch=self.scratch)
            return super().of(uri)

    for module in _DRIVERS:
        monkeypatch.setattr(f"curate.{module}.Stores", DriverStores)
