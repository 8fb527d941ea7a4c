"""Indexes of Megatron, made by numpy as the published description has them."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest

from curate.errors import CorruptInput
from curate.objects.megatron import MegatronTotals, read_totals


def index(lengths: list[int], code: int = 8, width: int = 2, version: int = 1) -> bytes:
    sizes = np.array(lengths, "<i4")
    begins = (np.cumsum(sizes, dtype="<i8") - sizes) * width
    ends = np.arange(len(lengths) + 1, dtype="<i8")
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", version, code, len(sizes), len(ends))
    return b"".join([head, sizes.tobytes(), begins.tobytes(), ends.tobytes()])


@pytest.mark.parametrize(("lengths", "tokens"), [([3, 0, 5], 8), ([], 0), ([2**31 - 1], 2**31 - 1)])
def test_how_many_tokens_there_are(lengths: list[int], tokens: int) -> None:
    """By the last sequence alone; what lies behind the index is not read."""
    data = index(lengths) + b"record"
    found = read_totals(io.BytesIO(data), "x.idx", len(data))
    assert found == MegatronTotals(np.dtype(np.uint16), len(lengths), tokens)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "does not begin with"),
        (b"x" * 99, "does not begin with"),
        (index([1])[:-1], "54 bytes|it was cut off"),
        (index([1], version=2), "has version 2 and type 8"),
        (index([1], code=9), "has version 1 and type 9"),
        (index([-1]), "-1 tokens from byte 0 on"),
    ],
)
def test_what_is_no_index(data: bytes, told: str) -> None:
    """Each is told with what was found."""
    with pytest.raises(CorruptInput, match=told):
        read_totals(io.BytesIO(data), "x.idx", len(data))
