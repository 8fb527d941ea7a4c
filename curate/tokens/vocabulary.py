"""A tokenizer.json as the package `tokenizers` reads it: what it knows, and what it makes of texts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np

from curate.errors import ConfigError, did_you_mean
from curate.imports import need
from curate.tokens.documents import Documents

_CALL_CHARS = 1 << 20
"""Characters of texts that are encoded in one call: each token takes some hundred bytes until its id is taken out."""
_CALL_TEXTS = 1024
_SHOWN = 10
_BYTES = frozenset(range(0xF5)) - {0xC0, 0xC1}
"""All bytes of UTF-8: RFC 3629."""


@lru_cache(maxsize=2)
def opened(path: str, generation: str, template: bool, specials_in_text: bool) -> Vocabulary:
    """Returns a tokenizer, loaded once in a process for each generation of its file: a driver asks several times."""
    del generation
    return Vocabulary(path, template=template, specials_in_text=specials_in_text)


class Vocabulary:
    """A tokenizer, with truncation and padding off."""

    def __init__(self, path: str, *, template: bool = False, specials_in_text: bool = False) -> None:
        """Loads the file. Raises ConfigError if it is no tokenizer.json, or `tokenizers` is not installed.

        `template`: also add what the file's own post-processor adds, such as [CLS]. `specials_in_text`: take the name
        of a special token in a text for that token; else it is text like any other.
        """
        # It would start a thread on every core of the machine, and a task holds one. Read at the first batch.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        need("tokenizers", "tokens need the package tokenizers", "tokens")
        from tokenizers import Tokenizer

        self.path = path
        try:
            self._tokenizer: Any = Tokenizer.from_file(path)
            self._json = json.loads(Path(path).read_bytes())
        except Exception as error:  # the package raises Exception itself
            raise ConfigError(
                f"{path} is not a tokenizer.json that the package tokenizers reads: {error!s:.200}; save one with "
                "Tokenizer.save, or take that of a model"
            ) from error
        self.shortens = [name for name in ("truncation", "padding") if self._json.get(name)]
        """What the file asks for and is not done: its truncation, its padding."""
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = not specials_in_text
        self._template = template
        self._ids: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        if not self._ids:
            raise ConfigError(f"{path} has no tokens; train the tokenizer before it is saved")
        self.largest = max(self._ids.values())
        """The largest id."""

    @property
    def specials(self) -> list[str]:
        """Names of the special tokens, in order of their ids."""
        added = self._tokenizer.get_added_tokens_decoder()
        return [added[id].content for id in sorted(added) if added[id].special]

    def id_of(self, option: str, name: str) -> int:
        """Returns the id of a token. Raises ConfigError if there is none, for which `option` asked."""
        if (found := self._ids.get(name)) is not None:
            return found
        specials = self.specials
        known = f"its special tokens are {', '.join(specials[:_SHOWN])}" if specials else "it has no special tokens"
        more = f" and {len(specials) - _SHOWN} more" if len(specials) > _SHOWN else ""
        hint = did_you_mean(name, specials) or did_you_mean(name, self._ids)
        raise ConfigError(f"{option} {name!r}: the tokenizer has no such token{hint}; {known}{more}")

    @property
    def unknown(self) -> int | None:
        """The id that stands for what the vocabulary does not have; None if there is none."""
        model = self._json.get("model", {})
        if isinstance(id := model.get("unk_id"), int):
            return id
        name = model.get("unk_token")
        # A model knows no token that was added to it.
        return self._tokenizer.get_vocab(with_added_tokens=False).get(name) if name is not None else None

    @property
    def at_unknown(self) -> str | None:
        """What it does at what it has no token for; None if it has one for all, or one that stands for the rest."""
        if self.unknown is not None or self._has_all_bytes():
            return None
        model = self._json.get("model", {})
        lost = model.get("type") == "BPE" and model.get("unk_token") is None
        return "drops characters that it does not know without a trace" if lost else "fails at what it does not know"

    def _has_all_bytes(self) -> bool:
        """Returns whether there is a token for each byte that a text may have, so that there is one for each text."""
        from tokenizers.pre_tokenizers import ByteLevel

        model = self._json.get("model", {})
        kind = model.get("type")
        known = self._tokenizer.get_vocab(with_added_tokens=False)
        if kind == "BPE" and model.get("byte_fallback") and all(f"<0x{byte:02X}>" in known for byte in _BYTES):
            return True
        # Each byte is a letter: for models of pieces, and not of whole words.
        byte_level = '"ByteLevel"' in json.dumps([self._json.get("pre_tokenizer"), self._json.get("normalizer")])
        if not byte_level or kind not in ("BPE", "Unigram"):
            return False
        # Those that no text has are spelt as in Latin-1.
        letters = {*ByteLevel.alphabet()} - {chr(byte) for byte in range(256) if byte not in _BYTES}
        # A letter is another one within a word and at its end.
        begins = {"", model.get("continuing_subword_prefix") or ""}
        ends = {"", model.get("end_of_word_suffix") or ""}
        return all("".join(parts) in known for parts in product(begins, letters, ends))

    def encode(self, texts: Sequence[str]) -> tuple[Documents, dict[int, str]]:
        """Returns the ids of texts, in order, without the texts that it fails at: of these, by their places, why."""
        parts: list[list[list[int]]] = []
        refused: dict[int, str] = {}
        first = 0
        for part in _parts(texts):
            try:
                parts.append(self._call(part))
            except Exception:  # the package raises Exception itself
                if self.unknown is not None:
                    raise
                parts.append(list(self._one_by_one(part, first, refused)))
            first += len(part)
        lengths = np.fromiter(chain.from_iterable(map(len, one) for one in parts), np.int64, len(texts) - len(refused))
        total = int(lengths.sum())
        ids = np.fromiter(chain.from_iterable(chain.from_iterable(parts)), np.int64, total)
        return Documents(ids, lengths), refused

    def _one_by_one(self, texts: Sequence[str], first: int, refused: dict[int, str]) -> Iterator[list[int]]:
        for place, text in enumerate(texts, first):
            try:
                yield from self._call([text])
            except Exception as error:  # noqa: BLE001
                refused[place] = f"the tokenizer has no token for a part of it: {error!s:.200}"

    def _call(self, texts: Sequence[str]) -> list[list[int]]:
        return [one.ids for one in self._tokenizer.encode_batch_fast(texts, add_special_tokens=self._template)]

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of tokens, without special ones."""
        return str(self._tokenizer.decode(list(ids)))


def _parts(texts: Sequence[str]) -> Iterator[list[str]]:
    part: list[str] = []
    chars = 0
    for text in texts:
        if part and (chars + len(text) > _CALL_CHARS or len(part) >= _CALL_TEXTS):
            yield part
            part, chars = [], 0
        part.append(text)
        chars += len(text)
    if part:
        yield part
