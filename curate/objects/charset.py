"""What is no text in UTF-8, told by its first bytes: text in UTF-16 or UTF-32, as Windows and some databases export it,
and what is compressed, or of another format, under a name that does not say so."""

from __future__ import annotations

import codecs

from curate.errors import CorruptInput

_MARKS = (
    # UTF-32 first: its mark begins with that of UTF-16.
    (codecs.BOM_UTF32_LE, "UTF-32LE"),
    (codecs.BOM_UTF32_BE, "UTF-32BE"),
    (codecs.BOM_UTF16_LE, "UTF-16LE"),
    (codecs.BOM_UTF16_BE, "UTF-16BE"),
)
POINTER = b"version https://git-lfs.github.com/spec/v1\n"
"""How a file begins that stands for another one, which Git LFS has not fetched."""
FETCH = "fetch the file: git lfs pull"
_UNPACK = "unpack it, or name it NAME{}"
_REWRITE = "write it as Parquet, or as JSON lines"
_OTHERS = (
    (0, b"\x1f\x8b\x08", "begins as gzip does", _UNPACK.format(".gz")),
    (0, b"\x28\xb5\x2f\xfd", "begins as zstd does", _UNPACK.format(".zst")),
    (0, b"\xfd7zXZ\0", "begins as xz does", _UNPACK.format(".xz")),
    (0, b"BZh91AY&SY", "begins as bzip2 does", _UNPACK.format(".bz2")),
    (0, b"PK\x03\x04", "begins as a zip archive does", "unpack it"),
    (256, b"\0ustar", "begins as a tar archive does", _UNPACK.format(".tar")),
    (0, b"PAR1\x15", "begins as Parquet does", "name it NAME.parquet"),
    (0, b"ARROW1\0\0", "begins as Arrow IPC (Feather) does", _REWRITE),
    (0, b"Obj\x01", "begins as Avro does", _REWRITE),
    (0, POINTER, "is a pointer of Git LFS", FETCH),
)
"""Where in a file some bytes are, what it is then, and what to do. None of them begins text in UTF-8 that is data; that
of bzip2 could, and does not: bzip2 writes it unless it is told otherwise."""
_LEAST_BYTES = 4
HEAD_BYTES = 4096
"""Bytes at the beginning of a text that say its encoding. A reader of one part of the text reads as many, too."""
_MOSTLY = 0.05
"""Part of the characters of a text that are below 256 at least: in Russian or Chinese JSON it is a fifth."""


def wide_encoding(head: bytes) -> str:
    r"""Returns the name of the wide encoding that a text begins in, by its mark or where its zeros are; else nothing.

    No text in UTF-8 has zeros in every second place and none in the others; text in UTF-16 has, wherever characters are
    below 256: spaces, digits, line ends, marks of CSV and JSON (the rule of RFC 4627, 3, for more than two characters).

    >>> wide_encoding("id,text\n".encode("utf-16")), wide_encoding("id".encode("utf-16-be")), wide_encoding(b"id,text")
    ('UTF-16LE', 'UTF-16BE', '')
    """
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    if head.startswith(codecs.BOM_UTF8):
        return ""
    head = head[: min(HEAD_BYTES, len(head) & ~3)]
    if len(head) < _LEAST_BYTES or 0 not in head:
        return ""
    zeros = [head[place::4].count(0) * 4 / len(head) for place in range(4)]
    full = [place for place in range(4) if zeros[place] == 1.0]
    clear = [place for place in range(4) if zeros[place] == 0.0]
    if {2, 3} <= {*full}:
        return "UTF-32LE"
    if {0, 1} <= {*full}:
        return "UTF-32BE"
    if clear == [0, 2] and min(zeros[1], zeros[3]) >= _MOSTLY:
        return "UTF-16LE"
    if clear == [1, 3] and min(zeros[0], zeros[2]) >= _MOSTLY:
        return "UTF-16BE"
    return ""


def refuse_no_text(uri: str, head: bytes) -> None:
    """Raises CorruptInput for what begins as text in UTF-16 or UTF-32 does, as something compressed or another format,
    or is a file that was not fetched: each line of it would be a bad row, or a wrong one."""
    if name := wide_encoding(head):
        raise CorruptInput(f"{uri}: is text in {name}, expected UTF-8; convert it: iconv -f {name} -t UTF-8 OLD > NEW")
    for at, mark, what, way in _OTHERS:
        if head.startswith(mark, at):
            raise CorruptInput(f"{uri}: {what}, expected text; {way}")
