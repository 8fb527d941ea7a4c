"""The loader over what the tokens job wrote: each token of an epoch once, in each of the formats that both know."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from curate.training import TokenShards
from jobs.tokens import Tokenize

tokenizers = pytest.importorskip("tokenizers")
LENGTH, FILES, DOCUMENTS = 16, 3, 40
END = "<|end|>"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of documents, and a tokenizer of their words."""
    folder = tmp_path_factory.mktemp("texts")
    words = [f"w{number}" for number in range(200)]
    pick = random.Random(0)
    for number in range(FILES):
        texts = [" ".join(pick.choices(words, k=pick.randint(1, 30))) for _ in range(DOCUMENTS)]
        rows = [orjson.dumps({"id": f"{number}-{at}", "text": text}) for at, text in enumerate(texts)]
        (folder / f"{number}.jsonl").write_bytes(b"\n".join(rows))
    model = tokenizers.models.WordLevel({END: 0, "?": 1, **{word: at + 2 for at, word in enumerate(words)}}, "?")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens([END])
    made.save(str(folder / "tokenizer.json"))
    return folder


def sequences(source: Path, packed: bool) -> list[tuple[int, ...]]:
    """Returns what a plain loop makes: the tokens of each file, a document's end behind each, cut into sequences."""
    made = tokenizers.Tokenizer.from_file(str(source / "tokenizer.json"))
    found = []
    for file in sorted(source.glob("*.jsonl")):
        tokens: list[int] = []
        for line in file.read_bytes().splitlines():
            tokens += [*made.encode(orjson.loads(line)["text"]).ids, 0]
        if packed:
            tokens += [0] * (-len(tokens) % LENGTH)
        found += [tuple(tokens[at : at + LENGTH]) for at in range(0, len(tokens) - LENGTH + 1, LENGTH)]
    return sorted(found)


@pytest.mark.parametrize("packed", [False, True], ids=["documents", "packed"])
@pytest.mark.parametrize("format", ["parquet", "memmap", "megatron", "datatrove"])
def test_each_token_of_an_epoch_once(format: str, packed: bool, source: Path, tmp_path: Path) -> None:
    job: Any = Tokenize(
        tokenizer=str(source / "tokenizer.json"), end_token=END, format=format, pack=LENGTH if packed else None
    )
    assert job.run(input=f"{source}/*.jsonl", output=tmp_path / "out", backend="inline").state == "complete"
    shards = TokenShards(tmp_path / "out", sequence_length=LENGTH, batch_size=4, seed=3, drop_last=False)
    found = np.concatenate(list(shards))
    assert sorted(map(tuple, found.tolist())) == sequences(source, packed)
    assert shards.tokens_left_out == 0 or not packed
