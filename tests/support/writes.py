"""Writes of datasets: their files, and those that fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from curate.errors import WriteFailed
from curate.ledger.summary import Summary


def failed_write(write: Callable[..., Summary], *args: Any, **options: Any) -> Summary:
    """Returns the summary of a write that must fail, by the method that writes."""
    with pytest.raises(WriteFailed) as caught:
        write(*args, **options)
    summary = caught.value.summary
    assert isinstance(summary, Summary)
    return summary


def files(out: Path) -> dict[str, bytes]:
    """Returns the outputs below a folder, by name."""
    return {path.name: path.read_bytes() for path in sorted(out.glob("*.*"))}
