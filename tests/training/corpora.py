"""Small corpora of tokens in each layout, made with numpy and pyarrow alone."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

LENGTH = 4
"""Tokens of a sample."""


def numbered(samples: int, first: int = 0, dtype: Any = np.uint16) -> np.ndarray[Any, Any]:
    """Returns the tokens of samples that each begin with their number: number, then what follows from it."""
    numbers = np.arange(first, first + samples)
    return (numbers[:, None] + 7 * np.arange(LENGTH)).astype(dtype).reshape(-1)


def as_npy(folder: Path, shards: Sequence[np.ndarray[Any, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, tokens in enumerate(shards):
        with open(folder / f"part-{number:05}.npy", "wb") as file:
            np.save(file, tokens)
            # Where curate's record lies, which readers of numpy do not see.
            file.write(b"\x50\x2a\x4d\x18record")
    return folder


def as_megatron(folder: Path, shards: Sequence[np.ndarray[Any, Any]], document: int = 3) -> Path:
    """`document`: tokens of each document."""
    folder.mkdir(parents=True, exist_ok=True)
    codes = {"uint16": 8, "int32": 4}
    for number, tokens in enumerate(shards):
        lengths = np.diff([*range(0, len(tokens), document), len(tokens)]).astype(np.int32)
        begins = (np.cumsum(lengths, dtype=np.int64) - lengths) * tokens.dtype.itemsize
        ends = np.arange(len(lengths) + 1, dtype=np.int64)
        head = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, codes[tokens.dtype.name], len(lengths), len(ends))
        (folder / f"part-{number:05}.bin").write_bytes(tokens.tobytes())
        parts = (head, lengths.tobytes(), begins.tobytes(), ends.tobytes())
        (folder / f"part-{number:05}.idx").write_bytes(b"".join(parts))
    return folder


def as_datatrove(folder: Path, shards: Sequence[np.ndarray[Any, Any]], document: int = 3) -> Path:
    """`document`: tokens of each document."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, tokens in enumerate(shards):
        ends = [*range(document, len(tokens), document), len(tokens)] if len(tokens) else []
        (folder / f"part-{number:05}.ds").write_bytes(tokens.tobytes())
        (folder / f"part-{number:05}.ds.index").write_bytes(np.array(ends, np.uint64).tobytes())
    return folder


def as_parquet(
    folder: Path, shards: Sequence[np.ndarray[Any, Any]], row_tokens: int = 3, group_rows: int = 8, packed: bool = False
) -> Path:
    """`row_tokens`: tokens of each document, of packed rows the length of all; every third document is empty."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, tokens in enumerate(shards):
        rows = [tokens[at : at + row_tokens] for at in range(0, len(tokens), row_tokens)]
        if not packed:
            rows = [one for row in rows for one in (row, tokens[:0])][: 2 * len(rows)]
        type = pa.uint16() if tokens.dtype == np.uint16 else pa.uint32()
        table = pa.table({"tokens": pa.array(rows, pa.list_(type))})
        if packed:
            lengths = pa.array([[len(row)] for row in rows], pa.list_(pa.int32()))
            table = table.append_column("document_lengths", lengths)
        pq.write_table(table, folder / f"part-{number:05}.parquet", row_group_size=group_rows)
    return folder
