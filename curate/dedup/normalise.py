"""Texts as they are compared: what does not matter is taken out of them, by Arrow's kernels and translation tables."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.texts.pieces import readable

VERSION = 1
"""Goes into the identity of what depends on these texts."""


def normalised(texts: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Returns texts in lower case and NFC, their white space single blanks, none at the ends; nulls stay null.

    Lower case is the simple mapping of Unicode, a character for a character: "ß" is not "ss". White space is what
    Unicode calls so. Punctuation counts. What is normalised already stays as it is, and so does what is not UTF-8.

    >>> normalised(pa.array(["  The\\u00a0End\\n", "Cafe\\u0301", None])).to_pylist()
    ['the end', 'café', None]
    """
    if pa.types.is_string_view(texts.type):
        texts = texts.cast(pa.string())  # Arrow has none of these functions for views
    plain, unread = readable(texts)
    if unread:
        stays = pc.and_(pc.is_null(plain), pc.is_valid(texts))
        return pc.if_else(stays, texts.cast(plain.type), _folded(plain)).cast(texts.type)
    return _folded(texts)


def _folded(texts: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    # Lower case first: it may leave letters that compose.
    plain = pc.utf8_normalize(pc.utf8_lower(texts), form="NFC")
    return _single_blanks(plain)


def worded(texts: pa.Array) -> pa.Array:
    """Returns the bytes of texts in lower case and NFC with a blank for everything that is part of no word.

    Letters, digits, marks and `_` are parts of words; white space, punctuation, symbols and controls are not. So the
    words of a language that is written without blanks are whole clauses. Nulls are empty. The result is of
    `large_binary`, without nulls, and its values follow each other in one buffer.

    >>> worded(pa.array(["It's 5 o'clock!", "\\u201cÀ propos\\u201d"])).cast("large_string").to_pylist()
    ['it s 5 o clock ', ' à propos ']
    """
    texts = texts.cast(pa.large_string()).fill_null("")
    beyond = pc.invert(pc.string_is_ascii(texts))
    if pc.any(beyond, min_count=0).as_py():
        found = pc.utf8_normalize(pc.utf8_lower(texts.filter(beyond)), form="NFC")
        texts = pc.replace_with_mask(texts, beyond, pc.replace_substring_regex(found, _NO_WORD, " "))
    offsets = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = texts.buffers()[2]
    if not len(texts) or data is None:
        return pa.array([b""] * len(texts), pa.large_binary())
    moved = bytes(memoryview(data)[offsets[0] : offsets[-1]]).translate(_TO_WORDS)
    buffers = [None, pa.py_buffer((offsets - offsets[0]).tobytes()), pa.py_buffer(moved)]
    return pa.Array.from_buffers(pa.large_binary(), len(texts), buffers)


_NO_WORD = r"[^\p{L}\p{N}\p{M}\x00-\x7f]+"
_TO_WORDS = bytes(
    ord(chr(byte).lower()) if byte < 128 and (chr(byte).isalnum() or byte == ord("_")) else byte if byte > 127 else 32
    for byte in range(256)
)


# What published code compares: by name, with whose default it is.

EXACT, FOLDED, CCNET, DATATROVE = "exact", "folded", "ccnet", "datatrove"
FORMS = (EXACT, FOLDED, CCNET, DATATROVE)
_NUMBER = r"\p{Nd}+(?:[.,،٫⎖⎗⎘]\p{Nd}+)?"
_MARKS = (
    r"[!/—”:％１〈&(、━\\【#%「」，】；+^\]~“《„';’{|∶´\[=\-`*．（–？！：$～«〉,><》)?）。…@_.\"}►»"
    r"\x00-\x08\x0b-\x1f\x7f-\x{9f}]"
)
"""What datatrove 0.10.1 takes for punctuation."""
_CCNET_MARKS = r"[，。、„”“«»１」「《》´∶：？！（）；–—．～’…━〈〉【】％►\x00-\x1f\x7f-\x{9f}]"
"""What CCNet takes for punctuation that is not of ASCII, and controls."""


def in_form(texts: pa.Array, form: str) -> pa.Array:
    """Returns texts as they are compared, by a name; nulls stay null.

    - `exact`: as they are, as Dolma's deduper and C4's lines
    - `folded`: see `normalised`, as `dedup_exact` has it
    - `ccnet`: lower case, digits as 0, without controls and without punctuation that is not of ASCII (Wenzek et al.
      2020, section 3.1)
    - `datatrove`: lower case, numbers as 0, without punctuation and marks above letters, white space as single blanks:
      `simplify_text` of datatrove 0.10.1

    >>> text = pa.array(["  L'\\u00e9t\\u00e9, 1.5 \\u2014 21 \\u201cx\\u201d "])
    >>> for form in FORMS:
    ...     print(repr(in_form(text, form)[0].as_py()))
    "  L'été, 1.5 — 21 “x” "
    "l'été, 1.5 — 21 “x”"
    "l'été, 0.0  00 x"
    'l ete 0 0 x'
    """
    if form == FOLDED:
        return normalised(texts)
    if form == CCNET:
        lower = pc.replace_substring_regex(pc.utf8_lower(pc.utf8_trim_whitespace(texts)), r"\p{Nd}", "0")
        return pc.replace_substring_regex(lower, _CCNET_MARKS, "")
    if form == DATATROVE:
        plain = pc.replace_substring_regex(pc.utf8_lower(texts), _NUMBER, "0")
        plain = pc.replace_substring_regex(plain, _MARKS, " ")
        plain = pc.utf8_normalize(_single_blanks(plain), form="NFD")
        return pc.utf8_trim_whitespace(pc.replace_substring_regex(plain, r"\p{Mn}", ""))
    return texts


def _single_blanks(texts: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    # Split behind white space at the end, texts would depend on what lies in memory behind them (Arrow 26).
    return pc.binary_join(pc.utf8_split_whitespace(pc.utf8_trim_whitespace(texts)), pa.scalar(" ", texts.type))
