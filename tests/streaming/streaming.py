"""A program that yields blocks and leaves word of each. Workers import it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa


class Unsendable(Exception):
    """An exception that holds what cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("a lock")
        self.lock = threading.Lock()


@dataclass
class Blocks:
    """A piece is its rank and how many blocks it has: none raises, less kills the worker.

    For each block that it makes it writes a file into `folder`, with its process.
    """

    folder: Path
    rows: int
    error: type[Exception] = ZeroDivisionError

    @property
    def key(self) -> str:
        return f"{self.folder} {self.error.__name__}"

    def run(self, piece: tuple[int, int]) -> Iterator[pa.Table]:
        rank, count = piece
        if count < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if not count:
            raise self.error
        for k in range(count):
            (self.folder / f"{rank}-{k}").write_text(str(os.getpid()))
            yield pa.table({"piece": np.full(self.rows, rank), "block": np.full(self.rows, k)})


@dataclass
class OneAndNoMore:
    """Makes a block of the first piece, and is at work on the next for ever; leaves its process in `folder`."""

    folder: Path
    key: str = "one and no more"

    def run(self, piece: int) -> Iterator[pa.Table]:
        if piece == 0:
            yield pa.table({"piece": [0], "block": [0]})
        (self.folder / str(piece)).write_text(str(os.getpid()))
        while True:
            time.sleep(0.01)
