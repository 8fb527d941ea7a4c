"""Standard output and standard error of a run: only the result on the first; closing either does not end the run."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import Any

from curate.around import contextmanager


class _Lasting(io.FileIO):
    """A stream of the process. What is written after its reader is gone is thrown away, by child processes too."""

    def write(self, data: Any) -> int:
        """Writes; once the pipe or the terminal is closed, to nowhere."""
        try:
            return super().write(data) or 0
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return memoryview(data).nbytes


def outlast_readers() -> None:
    """From now on, nobody who prints hears that a pipe (`| head`) or the terminal was closed: the run goes on.

    Only where standard output and error are the process's own, not a test's or a notebook's.
    """
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if not _is_own(stream, number) or isinstance(getattr(stream.buffer, "raw", stream.buffer), _Lasting):
            continue
        with contextlib.suppress(OSError):
            stream.flush()
        raw = _Lasting(number, "wb", closefd=False)
        lasting = io.TextIOWrapper(
            # Python itself has no buffer there if it is told so (-u).
            raw if isinstance(stream.buffer, io.RawIOBase) else io.BufferedWriter(raw),
            stream.encoding,
            stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, lasting)


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Sends what is printed within the block to standard error, by this process and by those that it starts."""
    sys.stdout.flush()
    kept = os.dup(1) if _is_own(sys.stdout, 1) else None
    with contextlib.redirect_stdout(sys.stderr):
        try:
            if kept is not None:
                os.dup2(2, 1)
            yield
        finally:
            if kept is not None:
                os.dup2(kept, 1)
                os.close(kept)


def end_stdout() -> None:
    """Ends standard output: what is printed until the process ends, by exit handlers too, goes to standard error."""
    sys.stdout.flush()
    if _is_own(sys.stdout, 1):
        os.dup2(2, 1)


def _is_own(stream: Any, number: int) -> bool:
    """Returns whether a stream is the process's own; there need be no file beneath."""
    try:
        return isinstance(stream, io.TextIOWrapper) and stream.fileno() == number
    except (OSError, ValueError):
        return False
