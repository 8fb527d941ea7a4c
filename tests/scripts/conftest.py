from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.checkout import Checkout


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path.resolve() / "checkout")
