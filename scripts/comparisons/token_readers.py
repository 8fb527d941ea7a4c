"""Tokens as curate writes them, read by the classes that they are written for, beside those of its Parquet files."""

from __future__ import annotations

import itertools
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import orjson
import pyarrow.parquet as pq
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from curate.jobs.tokens import Tokenize

from .texts import Writer

STREAMING = "0.13.0"
DATATROVE = "0.10.1"
END = "<|endoftext|>"
LENGTH = 64
"""Tokens of a sequence."""
Way = Mapping[str, Any]
"""Parameters of the job."""
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads a format, and what it is to find."""

    format: str
    requirements: tuple[str, ...]
    program: str
    """Prints what it reads in a folder as JSON, a line each, by the reader's own Python."""
    ways: Mapping[str, Way]
    expected: Callable[[Way, list[Rows]], Iterator[Any]]
    """Returns what that is to be, of the rows of each Parquet file."""
    arguments: Callable[[Way], list[str]]

    @property
    def name(self) -> str:
        """The name and version of the reader."""
        return self.requirements[0].replace("==", " ")


def measure(reader: Reader, count: int, seed: int, python: Path) -> bool:
    """Compares each way of making samples; returns whether all are the same."""
    same = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer = _inputs(folder, count, seed)
        for called, way in reader.ways.items():
            out = {format: folder / f"{called}-{format}" for format in ("parquet", reader.format)}
            for format, place in out.items():
                job = Tokenize(tokenizer=str(tokenizer), end_token=END, format=format, **way)
                job.run(input=str(folder / "in"), output=str(place), backend="inline")
            files = [pq.read_table(path).to_pylist() for path in sorted(out["parquet"].glob("*.parquet"))]
            expected = list(reader.expected(way, files))
            command = [python, Path(__file__).with_name(reader.program), out[reader.format], *reader.arguments(way)]
            done = subprocess.run([str(one) for one in command], stdout=subprocess.PIPE, check=True)
            found = [orjson.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
            differing = sum(a != b for a, b in zip(expected, found, strict=False)) + abs(len(expected) - len(found))
            missed = "  MISSED" * bool(differing or not expected)
            click.echo(f"  {called:<14} {len(expected):>8,} samples {differing:>8,} differ{missed}")
            same = same and not missed
    return same


def _rows(way: Way, files: list[Rows]) -> Iterator[Any]:
    del way
    return itertools.chain.from_iterable(files)


def _windows(way: Way, files: list[Rows]) -> Iterator[Any]:
    """Yields what datatrove reads of each file: sequences of so many tokens, and the place of each token in its
    document, or in the piece of it that is in the sequence; then the documents."""
    del way
    for rows in files:
        tokens = [token for row in rows for token in row["tokens"]]
        places = [place for row in rows for place in range(len(row["tokens"]))]
        for at in range(0, len(tokens) - LENGTH + 1, LENGTH):
            first = next((k for k in range(LENGTH) if not places[at + k]), LENGTH)
            positions = [*range(first), *places[at + first : at + LENGTH]]
            yield {"input_ids": tokens[at : at + LENGTH], "positions": positions}
    yield from ({"document": row["tokens"]} for rows in files for row in rows)


def _nothing(way: Way) -> list[str]:
    del way
    return []


def _width(way: Way) -> list[str]:
    return [str(LENGTH), "4" if way.get("width") == "uint32" else "2"]


MDS = Reader(
    "mds",
    (f"mosaicml-streaming=={STREAMING}",),
    "mds_samples.py",
    {
        "documents": {},
        "concatenated": {"pack": LENGTH},
        "best-fit": {"pack": LENGTH, "pack_by": "best-fit", "long": "cut"},
    },
    _rows,
    _nothing,
)
DATATROVE_TOKENS = Reader(
    "datatrove",
    (f"datatrove=={DATATROVE}", "torch", "tokenizers", "fsspec"),
    "datatrove_samples.py",
    {
        "documents": {},
        "wide": {"width": "uint32"},
        "concatenated": {"pack": LENGTH},
        "best-fit": {"pack": LENGTH, "pack_by": "best-fit", "long": "cut"},
    },
    _windows,
    _width,
)


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
