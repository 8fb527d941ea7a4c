"""Parquet files, opened so that a damaged one is an error and nothing worse: what its footer says of column chunks is
looked at before anybody asks, and every page that is read is held against its checksum."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from threading import Event
from weakref import finalize

import pyarrow as pa
import pyarrow.parquet as pq

from curate.around import contextmanager
from curate.errors import CorruptInput
from curate.objects.charset import FETCH, POINTER
from curate.objects.stream import StoredStream
from curate.requests.ranges import range_stream
from curate.storage.protocol import Object, Store

LET_GO_S = 1.0
"""How long threads of Arrow may hold what they were to read; they let go of it within a millisecond."""


@contextmanager
def broken(stored: StoredStream) -> Iterator[None]:
    """Turns what Arrow says of a file that it cannot read into CorruptInput with the URI."""
    try:
        yield
    # Names of columns and the numbers of a dictionary are looked up: those of a damaged file are not there.
    except (pa.ArrowException, OSError, ValueError, LookupError) as error:
        if stored.error is not None:
            raise
        problem = f"it is a pointer of Git LFS; {FETCH}" if stored.begins == POINTER else str(error)
        raise CorruptInput(f"{stored.uri}: not a whole Parquet file: {problem}") from error


def open_parquet(stored: StoredStream, buffer_size: int = 0) -> pq.ParquetFile:
    """Returns the file, its footer read and looked at. Reading raises for a page that is not as it was written, if it
    was written with a checksum.

    `buffer_size` is how many stored bytes of a column chunk are held at a time; 0 is all of them. Raises CorruptInput.
    """
    with broken(stored):
        file = _file(stored, buffer_size=buffer_size)
        refuse_damaged_chunks(stored, file.metadata)
        metadata = file.metadata
        rows = sum(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
        if rows != metadata.num_rows:
            raise ValueError(f"its row groups have {rows:,} rows, its footer says {metadata.num_rows:,}")
    return file


def read_footer(store: Store, object: Object) -> pq.FileMetaData:
    """Returns the footer of a file. Raises CorruptInput if it is not whole."""
    with store.open(object) as stream:
        try:
            return pq.read_metadata(pa.PythonFile(stream, mode="r"))
        except pa.ArrowInvalid as error:
            raise CorruptInput(f"{object.uri}: not a whole Parquet file: {error}") from error


def reopened(stored: StoredStream, footer: pq.FileMetaData, dictionaries: Sequence[str] = ()) -> pq.ParquetFile:
    """Returns a file whose footer was read before, the columns of these paths read as dictionaries."""
    with broken(stored):
        return _file(stored, metadata=footer, read_dictionary=list(dictionaries))


def _file(stored: StoredStream, **how: object) -> pq.ParquetFile:
    source = pa.PythonFile(stored, mode="r")
    return pq.ParquetFile(source, pre_buffer=False, page_checksum_verification=True, **how)


def refuse_damaged_chunks(stored: StoredStream, metadata: pq.FileMetaData) -> None:
    """Raises OSError for metadata of a column chunk that contradicts itself.

    Asked for such a chunk, `RowGroupMetaData.column` ends the process (Arrow 26), and so do statistics for filters.
    Reading with prefetch asks for all chunks before it reads the first byte, and has errors: so it is begun here.
    """
    if not metadata.num_row_groups:
        return
    unread, let_go = range_stream(_nothing, stored.seek(0, io.SEEK_END)), Event()
    finalize(unread, let_go.set)
    file = pa.PythonFile(unread, mode="r")
    with suppress(_Asked):
        next(pq.ParquetFile(file, metadata=metadata, pre_buffer=True).iter_batches(1, use_threads=False), None)
    # Threads of Arrow let go of it, and of what was raised there, a moment later: in a process that ends by then, that
    # aborts it.
    del unread, file
    let_go.wait(LET_GO_S)


class _Asked(Exception):
    """Bytes were asked for."""


def _nothing(start: int, stop: int) -> bytes:
    del start, stop
    raise _Asked
