"""Where jobs are held against brute force, in how many files and on which backend; and rows of texts."""

from __future__ import annotations

from typing import Any

import pytest

PLACES: list[Any] = [
    (1, "inline"),
    (7, "inline"),
    pytest.param(7, "local", marks=pytest.mark.slow),
    pytest.param(7, "ray", marks=[pytest.mark.slow, pytest.mark.ray_lane]),
]


def there(backend: str, request: pytest.FixtureRequest) -> str:
    """Returns the backend, once there is a Ray to run on if it asks for one."""
    if backend == "ray":
        request.getfixturevalue("on_ray")
    return backend


def rows(*texts: Any) -> list[dict[str, Any]]:
    """Returns a row of each text, with an id."""
    return [{"id": f"r{k}", "text": text} for k, text in enumerate(texts)]
