"""What is no text in UTF-8, told by its first bytes: text in UTF-16 or UTF-32, as Windows and some databases export it,
and what is compressed under a name that does not say so."""

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
_PACKED = (
    (b"\x1f\x8b\x08", "gzip", ".gz"),
    (b"\x28\xb5\x2f\xfd", "zstd", ".zst"),
    (b"\xfd7zXZ\0", "xz", ".xz"),
    (b"BZh91AY&SY", "bzip2", ".bz2"),
)
"""None of them begins text in UTF-8; the last one could, and does not: bzip2 writes it unless it is told otherwise."""
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
    """Raises CorruptInput for what begins as text in UTF-16 or UTF-32 does, or as something compressed."""
    if name := wide_encoding(head):
        raise CorruptInput(f"{uri}: is text in {name}, expected UTF-8; convert it: iconv -f {name} -t UTF-8 OLD > NEW")
    for mark, packer, suffix in _PACKED:
        if head.startswith(mark):
            raise CorruptInput(f"{uri}: begins as {packer} does, expected text; unpack it, or name it NAME{suffix}")
