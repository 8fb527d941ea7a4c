"""What a tokenizer does at what it does not know, beside what the package does."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from curate.tokens.vocabulary import Vocabulary
from tests.support.tiny_tokenizers import without_unknown

TEXTS = ["a b", "a é", "", "字 b", "b"]


def done(path: Path) -> list[list[int] | None]:
    """Returns the ids of each text, one by one; None where the package raises."""
    tokenizer = Tokenizer.from_file(str(path))
    found: list[list[int] | None] = []
    for text in TEXTS:
        try:
            found.append(tokenizer.encode(text).ids)
        except Exception:  # noqa: BLE001
            found.append(None)
    return found


@pytest.mark.parametrize("kind", ["BPE", "Unigram", "WordLevel", "WordPiece"])
def test_what_it_does_at_what_it_does_not_know(kind: str, tmp_path: Path) -> None:
    """Told before a text is encoded; and a text that it fails at costs no other."""
    for unknown, *bytes_as in itertools.product([None, "known", "added", "named"], [False, True], [False, True]):
        fallback, level = bytes_as
        path = without_unknown(tmp_path / "tokenizer.json", kind, unknown, byte_fallback=fallback, byte_level=level)
        wanted = done(path)
        vocabulary = Vocabulary(str(path))
        case = (unknown, fallback, level)
        told = vocabulary.at_unknown or ""
        assert told.startswith("fails") == (None in wanted), case
        assert told.startswith("drops") == (wanted[1] == [0]), case
        documents, refused = vocabulary.encode(TEXTS)
        assert [*refused] == [place for place, ids in enumerate(wanted) if ids is None], case
        assert documents.lengths.tolist() == [len(ids) for ids in wanted if ids is not None], case
        assert documents.ids.tolist() == [id for ids in wanted if ids is not None for id in ids], case
