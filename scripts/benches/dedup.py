"""Deduplication beside datatrove: exact and MinHash, over a corpus whose duplicates are known.

datatrove runs in a virtual environment of its own, which is made once, with the executor for one machine and as many
tasks and workers as there are CPUs. What is timed of it are its pipelines, the first to the last: its process has
imported everything and loaded its tokenizer before, and its pools fork. What is timed of curate is a whole run,
planning and ledger and all, on a warm Ray. Both read the same Parquet files from the page cache and write Parquet with
the same codec; 14 bands of 8 rows over words by five. Of the texts that share a band, datatrove takes all for
duplicates, and curate only those whose shingles are alike; so it has more to do.

What is kept is counted by the truth, from the ids: how many copies were found, and how many texts are lost of which no
copy is left.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq

import curate

from .common import Check, Report, Runs, environment, expect, go, judge, once, runs_folder, show, warm_ray
from .rivals import complete
from .rows import CODEC

DATATROVE = "0.10.1"
REQUIREMENTS = (
    f"datatrove=={DATATROVE}",
    "numpy==2.4.6",
    "pyarrow==26.0.1",
    "regex==2026.11.15",
    "spacy==3.8.18",
    "tokenizers==0.23.3",
    "xxhash==3.8.2",
)
"""What its MinHash of English imports; the last but pyarrow and numpy it does not ask for itself."""
PROGRAM = Path(__file__).with_name("datatrove_run.py")
FILES = 16
EXACT, NEAR = 0.2, 0.1
"""Shares of the documents that are copies, to the letter or nearly."""
VOCABULARY = 30_000
SHORTEST, LONGEST = 100, 300
"""Words of a text."""
WORDS_PER_EDIT = 100
"""A near copy has another word for each so many: at the least alike, 91 shingles of 101 are of both (a Jaccard index of
0.90), which 14 bands of 8 rows miss once in 2,900 times."""
WARM_UP_DOCUMENTS = 1000
MOST_MISSED = 0.01
"""Of the copies, and of the texts that may be lost by MinHash: recall and precision are at least 0.99."""


# A corpus with its truth


@dataclass(frozen=True)
class Corpus:
    """Documents, and which of them are copies of which."""

    table: pa.Table
    """`id` and `text`, in input order."""
    exact: np.ndarray[Any, np.dtype[np.int64]]
    """By document, a number that those of the same text have, and no others."""
    near: np.ndarray[Any, np.dtype[np.int64]]
    """The same of those that are nearly the same text."""


def corpus(documents: int, seed: int = 0) -> Corpus:
    """Returns documents in random order, of which a fifth are copies to the letter, and a tenth are nearly copies.

    Copies are of texts that are none themselves; a text may have several. Words are made up; how often they come
    follows Zipf.

    >>> made = corpus(1000)
    >>> len(set(made.exact.tolist())), len(set(made.near.tolist()))
    (800, 700)
    """
    random = np.random.default_rng(seed)
    exact, near = int(documents * EXACT), int(documents * NEAR)
    whole = documents - exact - near
    syllables = np.array([f"{first}{second}" for first in "bdfgklmnprstvz" for second in "aeiou"])
    spelled = random.choice(syllables, (VOCABULARY * 2, 4))
    words = np.unique(np.char.add(np.char.add(spelled[:, 0], spelled[:, 1]), np.char.add(spelled[:, 2], spelled[:, 3])))
    random.shuffle(words)
    words = words[:VOCABULARY]
    often = 1 / np.arange(10, 10 + len(words))
    often /= often.sum()
    lengths = random.integers(SHORTEST, LONGEST, whole)
    texts = np.split(random.choice(len(words), lengths.sum(), p=often), np.cumsum(lengths)[:-1])
    copied = random.integers(0, whole, exact + near)
    made = [*texts, *(texts[one] for one in copied[:exact])]
    for one in copied[exact:]:
        text = texts[one].copy()
        places = random.choice(len(text), len(text) // WORDS_PER_EDIT, replace=False)
        text[places] = (text[places] + random.integers(1, len(words), len(places))) % len(words)
        made.append(text)
    order = random.permutation(documents)
    alike = np.concatenate([np.arange(whole), copied])
    same = np.concatenate([np.arange(whole), copied[:exact], np.arange(whole, whole + near)])
    offsets = np.concatenate([[0], np.cumsum([len(made[one]) for one in order])])
    spelt = pa.array(words).take(pa.array(np.concatenate([made[one] for one in order])))
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), spelt), " ")
    ids = pa.array([f"d{number:08d}" for number in range(documents)])
    return Corpus(pa.table({"id": ids, "text": joined}), same[order], alike[order])


def corpus_files(folder: Path, documents: int) -> Path:
    """Writes the corpus in Parquet files, unless they are there; the truth is made again by who needs it."""

    def make() -> None:
        table = corpus(documents).table
        each = -(-documents // FILES)
        for number in range(FILES):
            pq.write_table(table.slice(number * each, each), folder / f"part-{number:05d}.parquet", compression=CODEC)

    return once(folder, make)


@dataclass(frozen=True)
class Found:
    """What a deduplication made of a corpus."""

    recall: float
    """Copies that were dropped, to all."""
    lost: float
    """Texts of which nothing is left, to all texts."""


def judged(kept: Sequence[str], truth: np.ndarray[Any, np.dtype[np.int64]]) -> Found:
    """Returns how good it is to keep these ids, of documents of which `truth` says which are copies of each other.

    >>> judged(["d00000000", "d00000001"], np.array([7, 7, 7, 8]))
    Found(recall=0.5, lost=0.5)
    """
    texts = len(np.unique(truth))
    left = truth[[int(one[1:]) for one in kept]]
    lost = texts - len(np.unique(left))
    copies = len(truth) - texts
    return Found(1 - (len(left) - (texts - lost)) / copies, lost / texts)


def deduplicated(documents: int, *, near: bool) -> Check:
    """Returns what checks that what is left below a folder is one document of each text."""
    made = corpus(documents)
    truth = made.near if near else made.exact

    def check(folder: Path, _: Any) -> None:
        kept = pads.dataset(folder, format="parquet").to_table(columns=["id"])["id"].to_pylist()
        expect("the number of ids that are there twice", len(kept) - len(set(kept)), 0)
        found = judged(kept, truth)
        most = MOST_MISSED if near else 0.0
        if found.recall < 1 - most or found.lost > most:
            raise click.ClickException(
                f"{found.recall:.2%} of the copies were found, and {found.lost:.2%} of the texts are lost; expected at "
                f"least {1 - most:.0%} and at most {most:.0%}"
            )

    return check


# datatrove


@dataclass
class Rival:
    """datatrove, and what its stages took."""

    python: Path
    stages: dict[str, list[float]]

    def run(self, kind: str, source: Path, output: Path) -> float:
        """Deduplicates in a process of its own; returns the seconds of its pipelines."""
        command = [self.python, PROGRAM, kind, source, output, os.cpu_count()]
        seconds: dict[str, float] = go(command, output.with_suffix(".err")).found
        for name, one in seconds.items():
            self.stages.setdefault(name, []).append(one)
        return sum(seconds.values())


# The contests


Timed = Callable[[Path], float]
"""Deduplicates into a folder; returns the seconds that count."""


def ours(deduplicate: Callable[[curate.Dataset], curate.Dataset], source: Path) -> Timed:
    def run(output: Path) -> float:
        started = time.perf_counter()
        complete(deduplicate(curate.read_parquet(source)).write_parquet(output, codec=CODEC))
        return time.perf_counter() - started

    return run


def near(dataset: curate.Dataset) -> curate.Dataset:
    return dataset.dedup_minhash("text", id_column="id", ngram=5, bands=14, rows=8)


def exact(dataset: curate.Dataset) -> curate.Dataset:
    return dataset.dedup_exact(["text"])


KINDS: dict[str, tuple[str, Callable[[curate.Dataset], curate.Dataset], float | None]] = {
    "minhash": ("MinHash, 14 bands of 8 rows, words by five", near, 1 / 3),
    "exact": ("exact, whole texts", exact, None),
}
"""By datatrove's word for it: its name, how curate does it, and the share of datatrove's time that it may take."""


def alternate(contenders: Mapping[str, Timed], folder: Path, rounds: int, check: Check) -> list[Runs]:
    """Runs all contenders in turn; they say themselves what they took, as the start of a process does not count."""
    results = [Runs(name) for name in contenders]
    for number in range(rounds):
        for place, (result, run) in enumerate(zip(results, contenders.values(), strict=True)):
            output = folder / f"{number}-{place}"
            os.sync()  # nobody waits for what another one wrote
            result.seconds.append(run(output))
            try:
                check(output, None)
            except click.ClickException as wrong:
                raise click.ClickException(f"{result.name}: {wrong.message}") from wrong
    return results


def measure_dedup(report: Report, scratch: Path, kinds: Sequence[str], documents: int, rounds: int) -> None:
    """Measures these kinds of deduplication, all on one Ray."""
    import ray

    python = environment(scratch / f"datatrove-{DATATROVE}", f"datatrove {DATATROVE}", REQUIREMENTS)
    few = min(documents, WARM_UP_DOCUMENTS)
    small, source = (corpus_files(scratch / f"corpus-{size}", size) for size in (few, documents))
    warm_ray()
    click.echo(
        f"curate beside datatrove {DATATROVE} on {os.cpu_count()} CPUs: {documents:,} documents of {SHORTEST} to "
        f"{LONGEST} words in {FILES} Parquet files, {EXACT:.0%} exact copies, {NEAR:.0%} near ones; codec {CODEC}; "
        f"start-up and imports are not counted; medians"
    )
    try:
        for kind in kinds:
            name, deduplicate, target = KINDS[kind]
            rival = Rival(python, {})

            def contenders(source: Path, kind: str = kind, rival: Rival = rival, deduplicate: Any = deduplicate) -> Any:
                return {
                    "curate": ours(deduplicate, source),
                    "datatrove": lambda output: rival.run(kind, source, output),
                }

            with runs_folder(scratch) as runs:
                alternate(contenders(small), runs / "warm-up", 1, deduplicated(few, near=kind == "minhash"))
                rival.stages.clear()
                click.echo(f"\n{name}; {rounds} alternated rounds")
                check = deduplicated(documents, near=kind == "minhash")
                results = alternate(contenders(source), runs / "rounds", rounds, check)
            for one in results:
                click.echo(f"{show(one)}   {documents / one.median_s:,.0f} documents/s")
            stages = ", ".join(f"{name} {statistics.median(one):.2f} s" for name, one in rival.stages.items())
            click.echo(f"  stages of datatrove: {stages}")
            if target is not None:
                judge(report, "curate, to datatrove", results[0], results[1], target)
    finally:
        ray.shutdown()
