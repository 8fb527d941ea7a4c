"""Tokens that curate writes as MDS, read by mosaicml-streaming, beside those of its Parquet files."""

from __future__ import annotations

import itertools
import random
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import click
import orjson
import pyarrow.parquet as pq
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from curate.jobs.tokens import Tokenize

from .texts import Writer

STREAMING = "0.13.0"
REQUIREMENTS = (f"mosaicml-streaming=={STREAMING}",)
PROGRAM = Path(__file__).with_name("mds_samples.py")
END = "<|endoftext|>"
WAYS: dict[str, dict[str, Any]] = {
    "documents": {},
    "concatenated": {"pack": 64},
    "best-fit": {"pack": 64, "pack_by": "best-fit", "long": "cut"},
}


def measure(count: int, seed: int, python: Path) -> bool:
    """Compares each way of making samples; returns whether all are the same."""
    same = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer = _inputs(folder, count, seed)
        for way, parameters in WAYS.items():
            out = {format: folder / f"{way}-{format}" for format in ("parquet", "mds")}
            for format, place in out.items():
                job = Tokenize(tokenizer=str(tokenizer), end_token=END, format=format, **parameters)
                job.run(input=str(folder / "in"), output=str(place), backend="inline")
            expected = [
                row for path in sorted(out["parquet"].glob("*.parquet")) for row in pq.read_table(path).to_pylist()
            ]
            done = subprocess.run([str(python), str(PROGRAM), str(out["mds"])], stdout=subprocess.PIPE, check=True)
            found = [orjson.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
            differing = sum(a != b for a, b in zip(expected, found, strict=False)) + abs(len(expected) - len(found))
            click.echo(f"  {way:<14} {len(expected):>8,} samples {differing:>8,} differ{'  MISSED' * bool(differing)}")
            same = same and not differing
    return same


def _inputs(folder: Path, count: int, seed: int) -> Path:
    """Writes texts in four files, one of which is empty, and a tokenizer; returns its path."""
    rng, writer = random.Random(seed), Writer(seed)
    texts = [" ".join(writer.sentence() for _ in range(rng.randrange(12))) for _ in range(count)]
    (folder / "in").mkdir()
    bounds = (0, count // 5, count // 5, count // 2, count)
    for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
        rows = [{"id": k, "text": texts[k]} for k in range(begin, end)]
        data = b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)
        (folder / "in" / f"{number}.jsonl").write_bytes(data)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=2000, special_tokens=[END], initial_alphabet=alphabet, show_progress=False),
    )
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path
