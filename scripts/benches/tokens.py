"""Texts as tokens, beside a plain loop of `encode_batch`, datatrove and dolma, with the same tokenizer.json.

All read the same lines of JSON (gzip), add a token behind each document and write all tokens as they are; each in a
process of its own, on one core, without the threads of `tokenizers`. Compared is the CPU of that process and what it
starts, user and system; the start of Python and imports do not count. One tokenizer is small and trained on the demo's
comments, the other one has 50,000 entries and is trained on the texts at hand.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import orjson

from .common import Check, Ended, Report, Runs, environment, expect, go, once, runs_folder

RATIO = 0.9
END = "<|endoftext|>"
CORPUS = Path(__file__).parents[1] / "corpus"
DEMO = CORPUS.parents[1] / "demo" / "reddit"
"""Where scripts/demo has them, whatever folder this was started in."""
SMALL, LARGE = "small", "50,000 entries"
DATATROVE, DOLMA = "0.10.1", "1.2.1"
PARTS = str.split("ba co di fu ge hi ja ko lu mo ne pi qua ro si tu ve wo xa ya zen th er ing ed ly")
RIVALS = {
    "datatrove": (f"datatrove[io]=={DATATROVE}", "tokenizers==0.23.3", "orjson", "numpy==2.4.6"),
    # dolma asks for an s3fs of 2023; without this boto3 pip tries hundreds of others.
    "dolma": (f"dolma=={DOLMA}", "boto3==1.28.17"),
}
PROGRAM = Path(__file__).with_name("tokens_run.py")


def texts(seed: int, documents: int, words: int) -> Iterator[str]:
    """Yields texts of 50 to 450 words of a made-up language, which occur as often as those of a language."""
    random = np.random.default_rng(seed)
    parts = np.array(PARTS)
    known = ["".join(random.choice(parts, random.integers(1, 5))) for _ in range(words)]
    for size in random.integers(50, 450, documents).tolist():
        chosen = np.minimum(random.zipf(1.2, size) - 1, words - 1)
        text = " ".join(known[k] for k in chosen.tolist())
        yield text.replace(" x", ". X").capitalize() + "."


def demo_corpus(folder: Path = DEMO) -> Path:
    """Returns the folder of the demo's comments, which are made up if they are not there."""
    if not folder.exists():
        subprocess.run([sys.executable, str(CORPUS), "--output", str(folder)], check=True)
    return folder


def bodies(comments: Path) -> Iterator[str]:
    """Yields the texts of the demo's comments."""
    for path in sorted(comments.rglob("*.jsonl.gz")):
        for line in gzip.decompress(path.read_bytes()).splitlines():
            try:
                text = orjson.loads(line)["body"]
            except ValueError:
                continue
            if isinstance(text, str):
                yield text


def train(path: Path, source: Iterator[str], entries: int) -> None:
    """Writes byte-level BPE of that many entries, or of as many as the texts have."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=entries, special_tokens=[END], initial_alphabet=alphabet, show_progress=False, min_frequency=1
    )
    tokenizer.train_from_iterator(source, trainer)
    # Each pair as one text, with a space, which no entry of byte-level BPE has: tokenizers 0.19, which dolma needs,
    # reads no lists.
    made = orjson.loads(tokenizer.to_str())
    made["model"]["merges"] = [" ".join(pair) for pair in made["model"]["merges"]]
    path.write_bytes(orjson.dumps(made))


def contender(name: str, python: Path, source: Path, tokenizer: Path) -> Callable[[Path], Ended]:
    """Returns what encodes the documents in a process of its own."""

    def run(output: Path) -> Ended:
        return go([python, PROGRAM, name, source, output, tokenizer, END], output.with_suffix(".err"))

    return run


def count_tokens(output: Path) -> int:
    """Returns the tokens that a run has written: numbers of 16 bits, in one file or several."""
    if output.is_file():
        return output.stat().st_size // 2
    if arrays := sorted(output.glob("part*.npy")):
        if arrays[0].read_bytes()[:6] == b"\x93NUMPY":
            return sum(len(np.load(path, mmap_mode="r")) for path in arrays)
        return sum(path.stat().st_size // 2 for path in arrays)
    return sum(path.stat().st_size // 2 for path in output.rglob("*") if path.suffix in (".ds", ".npy"))


def checking(tokens: int) -> Check:
    """Returns what checks that a run has written as many tokens as the plain loop."""

    def check(output: Path, _: Any) -> None:
        expect("the number of tokens", count_tokens(output), tokens)

    return check


def measure_tokens(
    report: Report, scratch: Path, comments: Path, rivals: tuple[str, ...], documents: int, rounds: int
) -> None:
    """Encodes the same documents with each, one after the other, with both tokenizers."""
    folder = once(scratch / f"tokens-{documents}", lambda: _write(scratch / f"tokens-{documents}", comments, documents))
    source = folder / "in"
    pythons = dict.fromkeys(("plain loop", "curate"), Path(sys.executable))
    pythons |= {
        name: environment(scratch / f"tokens-{name}", name, requirements)
        for name, requirements in RIVALS.items()
        if name in rivals
    }
    for title, tokenizer in ((SMALL, folder / "small.json"), (LARGE, folder / "large.json")):
        contenders = {name: contender(name, python, source, tokenizer) for name, python in pythons.items()}
        results = [Runs(name) for name in contenders]
        tokens = 0
        with runs_folder(scratch) as output:
            for number in range(rounds):
                for one, run in zip(results, contenders.values(), strict=True):
                    place = output / f"{number}-{one.name.replace(' ', '-')}"
                    os.sync()  # nobody waits for what another one wrote
                    ended = run(place)
                    one.cpu_s.append(ended.user_s + ended.system_s)
                    tokens = tokens or count_tokens(place)
                    checking(tokens)(place, None)
        click.echo(f"\n{documents:,} documents, {tokens:,} tokens of the tokenizer {title}, {rounds} rounds")
        rates = {one.name: tokens / float(np.median(one.cpu_s)) for one in results}
        for one in results:
            single = ", ".join(f"{tokens / taken / 1e6:.2f}" for taken in one.cpu_s)
            click.echo(f"  {one.name}: {rates[one.name] / 1e6:.2f} million tokens a second of CPU ({single})")
        ratio = rates["curate"] / rates["plain loop"]
        report.target(f"{title}: curate, to the plain loop", f"{ratio:.2f} x", f">= {RATIO} x", ratio >= RATIO)


def _write(folder: Path, comments: Path, documents: int) -> None:
    (folder / "in").mkdir()
    rows = [{"id": str(k), "text": text} for k, text in enumerate(texts(0, documents, 120_000))]
    data = b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)
    (folder / "in" / "part-00000.jsonl.gz").write_bytes(gzip.compress(data, 6, mtime=0))
    (folder / "few").mkdir()
    (folder / "few" / "part-00000.jsonl").write_bytes(b"\n".join(data.splitlines()[:10]))
    train(folder / "small.json", bodies(comments), 4_000)
    train(folder / "large.json", (row["text"] for row in rows), 50_000)
