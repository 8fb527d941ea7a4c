"""WebDataset archives: files of a tar in the order in which they lie there, those of a sample together.

A sample is what neighbouring files share of their names up to the first dot; what follows the dot names its part:

    images/0001.jpg  images/0001.seg.png  images/0001.json   ──▶   images/0001: jpg, seg.png, json

Python's own reader takes a header that is broken for the end of the archive, and so does the end of the file. Here
both are errors: an archive ends in a block of zeros. So is another archive behind that, whose files it would not read.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Self

from curate.around import contextmanager
from curate.dataclass import dataclass, field
from curate.errors import CorruptInput
from curate.objects.stream import DecompressedStream, buffered

_NAME = re.compile(r"((?:.*/)?[^./]+)\.([^/]+)", re.DOTALL)
_LARGEST_BYTES = (1 << 31) - 1
_LARGEST_HEADER_BYTES = 1 << 20
_ABOUT_NEXT = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
"""Types of members that are headers themselves."""


@dataclass(slots=True)
class Sample:
    """Neighbouring files of one name."""

    number: int
    """From 1, in the archive."""
    key: str
    broken: str = ""
    """Why the sample cannot be read; empty if it can."""
    files: dict[str, bytes] = field(default_factory=dict)
    """The bytes of each file, by what follows the first dot of its name."""


def split_name(name: str) -> tuple[str, str] | None:
    """Returns the key of a file's sample, and what the file is in it; None for a file that is of none.

    >>> split_name("a.b/0001.seg.png"), split_name("a/.hidden"), split_name("README")
    (('a.b/0001', 'seg.png'), None, None)
    """
    found = _NAME.fullmatch(name)
    return (found[1], found[2]) if found else None


class _Header(tarfile.TarInfo):
    """A header that is sound, or the block of zeros at the end."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        if len(buf) == tarfile.BLOCKSIZE and not any(buf):
            return super().frombuf(buf, encoding, errors)
        try:
            found = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            raise tarfile.ReadError("no end of the archive" if not buf else str(error)) from error
        # What is said of the next header is read as a whole, before any name is known.
        if found.type in _ABOUT_NEXT and found.size > _LARGEST_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {found.size:,} bytes, more than {_LARGEST_HEADER_BYTES:,}")
        return found


def samples(source: DecompressedStream, chosen: Callable[[str], bool] = lambda _: True) -> Iterator[Sample]:
    """Yields the samples of an archive, with those of their files that are `chosen`. Raises CorruptInput, also if it
    has files, and none of them is of a sample.

    A sample is broken if its key was there before, other files in between, or if two of its files have one name, or one
    is a link to another file.
    """
    seen: set[str] = set()
    sample: Sample | None = None
    nameless = ""
    for name, read, linked in _files(source):
        parts = split_name(name)
        if parts is None:
            nameless = nameless or name
            continue
        key, part = parts
        if sample is None or key != sample.key:
            if sample is not None:
                yield sample
            again = "its files are not next to each other in the archive" if key in seen else ""
            sample = Sample(0 if sample is None else sample.number, key, again)
            sample.number += 1
            seen.add(key)
        if part in sample.files:
            sample.broken = f"it has two files called {part!r}"
        elif chosen(part):
            sample.files[part] = read()
            if linked:
                sample.broken = f"{part!r} is a link, without the file: pack files in its place, as tar -h does"
        if "\ufffd" in name and not sample.broken:
            sample.broken = "its name is not UTF-8"
    if sample is not None:
        yield sample
    elif nameless:
        raise CorruptInput(
            f"{source.uri}: none of its files is of a sample, the first is called {nameless!r}; a name has to have a "
            "dot and what the file is behind that of its sample, as in 0001.txt: rename them, and pack them again"
        )


def _files(source: DecompressedStream) -> Iterator[tuple[str, Callable[[], bytes], bool]]:
    """Yields the files of an archive: name, what reads it before the next is asked for, and whether it is a link."""
    with _naming(source.uri):
        stream = buffered(source)
        with tarfile.open(mode="r|", fileobj=stream, tarinfo=_Header, errors="replace") as archive:
            for member in archive:
                if member.isreg():
                    yield member.name, partial(_content, source.uri, archive, member), False
                elif member.islnk() or member.issym():
                    yield member.name, bytes, True
                archive.members = []  # type: ignore[attr-defined]  # which would hold all headers
            _look_behind(archive)


def _look_behind(archive: tarfile.TarFile) -> None:
    """Raises ReadError for another archive behind the end of one. Where it is compressed, only reading all that lies
    there looks at the checksum."""
    assert archive.fileobj is not None
    while block := archive.fileobj.read(tarfile.BLOCKSIZE):
        # What fills the last blocks may be anything but a header, with its checksum.
        with suppress(tarfile.HeaderError):
            tarfile.TarInfo.frombuf(block, "utf-8", "replace")
            raise tarfile.ReadError("another archive begins behind its end; unpack both, and pack them as one")


def _content(uri: str, archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    if member.size > _LARGEST_BYTES:
        raise CorruptInput(
            f"{uri}: {member.name} has {member.size:,} bytes, more than {_LARGEST_BYTES:,}; store it in parts"
        )
    with _naming(uri):
        stream = archive.extractfile(member)
        assert stream is not None
        with stream:
            return stream.read()


@contextmanager
def _naming(uri: str) -> Iterator[None]:
    """Turns what Python's reader raises, wherever an archive ends or is broken, into CorruptInput with the URI."""
    try:
        yield
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise CorruptInput(f"{uri}: not a whole tar archive: {error}") from error


def packed(name: str, data: bytes) -> bytes:
    """Returns a file as it lies in an archive: without time and owner, so that its bytes depend on it alone."""
    header = tarfile.TarInfo(name)
    header.size = len(data)
    padding = bytes(-len(data) % tarfile.BLOCKSIZE)
    return b"".join((header.tobuf(tarfile.PAX_FORMAT), data, padding))


END = bytes(2 * tarfile.BLOCKSIZE)
"""What an archive ends in."""
