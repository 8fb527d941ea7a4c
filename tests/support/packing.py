"""Every way in which an input can be compressed, and what its name ends in then."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from functools import partial

import pyarrow as pa

from curate.objects.stream import Codec


def _zstd(data: bytes) -> bytes:
    packed: bytes = pa.Codec("zstd").compress(data, asbytes=True)
    return packed


PACK: dict[Codec, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": _zstd,
    "bz2": bz2.compress,
    "xz": partial(lzma.compress, preset=0),
}
SUFFIX: dict[Codec, str] = {"gzip": ".gz", "zstd": ".zst", "bz2": ".bz2", "xz": ".xz"}
