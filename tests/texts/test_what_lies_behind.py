"""What is said of texts depends on the texts alone, and not on the bytes that lie in memory behind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.dedup.normalise import normalised, worded
from curate.dedup.shingles import shingles
from curate.texts.words import WHITESPACE, splitter
from jobs.pii import Pii
from jobs.quality import Quality

BEHIND = [b"aaaaaaaa", b" " * 8, b"\x80" * 8, b"\xff" * 8]
PARTS = [
    "a",
    "word",
    "é",
    "。",
    "…",
    " ",
    "  ",
    "\n",
    "\t",
    "\r\n",
    "\u3000",
    "\u2028",
    "...",
    ".",
    "!",
    "#",
    "[1]",
    "x@y.z",
    "1.2.3.4",
]
TEXTS = st.lists(st.lists(st.sampled_from(PARTS), max_size=6).map("".join), min_size=1, max_size=3)


def followed_by(texts: list[str], tail: bytes) -> pa.Array:
    """Returns an array of texts in whose memory `tail` lies behind the last one."""
    data = [one.encode() for one in texts]
    offsets = np.cumsum([0, *map(len, data)], dtype=np.int32)
    whole = pa.py_buffer(b"".join(data) + tail)
    return pa.Array.from_buffers(
        pa.string(), len(texts), [None, pa.py_buffer(offsets), whole.slice(0, int(offsets[-1]))]
    )


def of_job(job: Quality | Pii) -> Callable[[pa.Array], Any]:
    def said(texts: pa.Array) -> Any:
        job.setup()
        table = pa.table({"id": pa.array(range(len(texts))), "text": texts})
        return [row for part in job.process(table) for row in part.to_pylist()]

    return said


def of_shingles(unit: str) -> Callable[[pa.Array], Any]:
    def said(texts: pa.Array) -> Any:
        found = shingles(texts, 2, unit)
        return [found.of(number).tolist() for number in range(len(texts))]

    return said


def split(texts: pa.Array) -> Any:
    words = splitter(WHITESPACE).words(texts)
    return words.vocabulary.to_pylist(), words.code.tolist(), words.owner.tolist()


SAID = {
    "words": split,
    "sentences": lambda texts: splitter(WHITESPACE).sentences(texts).tolist(),
    "quality": of_job(Quality(rules=["gopher-repetition", "gopher", "c4", "fineweb"], annotate=True)),
    "pii": of_job(Pii(action="annotate")),
    "normalised": lambda texts: normalised(texts).to_pylist(),
    "worded": lambda texts: worded(texts).to_pylist(),
    "shingles of words": of_shingles("word"),
    "shingles of characters": of_shingles("char"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", SAID)
@given(texts=TEXTS)
def test_what_lies_behind_texts_changes_nothing(what: str, texts: list[str]) -> None:
    """Arrow 26's `utf8_split_whitespace` decodes one byte too many behind white space at the end."""
    expected = SAID[what](followed_by(texts, b""))
    for tail in BEHIND:
        assert SAID[what](followed_by(texts, tail)) == expected
