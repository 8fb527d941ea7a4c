"""What a tokenizer does at what it does not know, beside what the package does."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from curate.tokens.vocabulary import Vocabulary
from tests.support.tiny_tokenizers import without_unknown

TEXTS = ["a b", "a é", "", "字 b", "b"]


def done(path: Path, texts: Sequence[str] = TEXTS) -> list[list[int] | None]:
    """Returns the ids of each text, one by one; None where the package raises."""
    tokenizer = Tokenizer.from_file(str(path))
    found: list[list[int] | None] = []
    for text in texts:
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


@pytest.mark.parametrize("kind", ["BPE", "Unigram"])
def test_a_byte_that_it_has_no_token_for(kind: str, tmp_path: Path) -> None:
    """Matters if a text can have it, as none has 0xFF; and one way in which bytes are tokens is enough."""
    ways = [(True, False), (False, True), (True, True)]
    for lacks, (fallback, level) in itertools.product([None, ord("!"), 0xC3, 0xFF], ways):
        path = tmp_path / "tokenizer.json"
        without_unknown(path, kind, None, byte_fallback=fallback, byte_level=level, lacks=lacks)
        found = [len(ids or "") for ids in done(path, ["!", "é"])]
        assert (Vocabulary(str(path)).at_unknown is None) == (found == [1, 2]), (lacks, fallback, level)


@pytest.mark.parametrize("lacks", ["", "!", "!</w>", "##!", "##!</w>"])
def test_a_byte_that_it_has_no_token_for_at_one_place_in_a_word(lacks: str, tmp_path: Path) -> None:
    letters = pre_tokenizers.ByteLevel.alphabet()
    tokens = {"".join(parts) for parts in itertools.product(["", "##"], letters, ["", "</w>"])} - {lacks}
    ids = {token: id for id, token in enumerate(sorted(tokens))}
    tokenizer = Tokenizer(models.BPE(ids, [], continuing_subword_prefix="##", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    found = done(tmp_path / "tokenizer.json", ["!", "!!!"])
    told = Vocabulary(str(tmp_path / "tokenizer.json")).at_unknown
    assert (told is None) == ([len(ids or "") for ids in found] == [1, 3])
