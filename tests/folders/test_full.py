"""A folder of temporary files that takes no more: whatever writes there says which one, and what to do."""

from __future__ import annotations

import contextlib
import io
import re
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa
import pytest

from curate.errors import ConfigError, StorageError
from curate.local import blocks
from curate.local.backend import LocalBackend
from curate.objects.record import OutputFormat
from curate.runtime.protocol import Message, Resources
from curate.storage.protocol import Published
from curate.storage.writer import SIMPLE_BYTES, SpooledWriter
from curate.writers.writer import make_writer
from tests.backends.calling import Calling


@contextlib.contextmanager
def no_room() -> Iterator[None]:
    """No file takes a byte more, whatever folder it is in."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def cannot_be_kept(what: str) -> str:
    place = re.escape(tempfile.gettempdir())
    return rf"^{what} cannot be kept in {place}\S* \(File too large\); free space there or set TMPDIR$"


@pytest.mark.slow
def test_the_program_of_workers() -> None:
    """The backend that could not start them is closed, and can be used later."""
    backend = LocalBackend()
    backend.start(Resources())
    with no_room(), pytest.raises(ConfigError, match=cannot_be_kept("what worker processes run")):
        backend.load(Calling())
    backend.close()
    backend.start(Resources())
    try:
        backend.load(Calling())
        backend.launch(1, [(str, 5)], 1)
        while not (said := [one for one in backend.poll(1.0) if isinstance(one, Message)]):
            pass
        assert said[0].items == ["5"]
    finally:
        backend.close()


@pytest.mark.parametrize("block", [pa.table({"n": [1, 2]}), pa.array(["one"])], ids=["table", "array"])
def test_a_block_of_a_stream(tmp_path: Path, block: pa.Table | pa.Array) -> None:
    """Both folders are named, as there may be room for the next one in either; what it left of the file is gone."""
    folders = [tmp_path / "memory", tmp_path / "disk"]
    for one in folders:
        one.mkdir()
    says = (
        rf"^a block of \d+ B cannot be kept in {folders[0]} or {folders[1]} \(File too large\); free space there or set"
    )
    with no_room(), pytest.raises(StorageError, match=says):
        blocks.store(block, [str(one) for one in folders], "one")
    assert [*folders[0].iterdir(), *folders[1].iterdir()] == []


class Uploaded(SpooledWriter):
    """Is not sent anywhere."""

    def _digest(self, data: bytes) -> None:
        pass

    def _upload(self, file: IO[bytes]) -> Published:
        raise AssertionError(file)


@pytest.mark.parametrize("pending", [False, True])
def test_what_waits_for_its_upload(pending: bool) -> None:
    """Also if it is only found as what is pending is written."""
    writer = Uploaded("gs://bucket/one")
    told = pytest.raises(
        StorageError, match=cannot_be_kept("what is written to gs://bucket/one, until it is uploaded,")
    )
    if pending:
        writer.write(bytes(SIMPLE_BYTES + 1))
        writer.write(b"a few")
        with no_room(), told:
            writer.publish()
    else:
        with no_room(), told:
            writer.write(bytes(SIMPLE_BYTES + 1))
    writer.close()


@pytest.mark.parametrize("pending", [False, True])
def test_values_that_wait_for_their_head(pending: bool) -> None:
    table = pa.table({"data": pa.array([1.0] * (1 << 20))})
    writer = make_writer(io.BytesIO(), table.schema, OutputFormat.NUMPY, "none")
    told = pytest.raises(StorageError, match=cannot_be_kept("values of an output, until its head is written,"))
    if pending:
        writer.write(table)
        writer.write(table.slice(0, 1))
        with no_room(), told:
            writer.close(None)
    else:
        with no_room(), told:
            writer.write(table)
