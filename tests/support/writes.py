"""Writes of datasets that fail."""

from __future__ import annotations

from collections.abc import Callable
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
