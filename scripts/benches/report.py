"""`curate report` beside DuckDB's `SUMMARIZE` and data-juicer's Analyzer: the same rows, each on one core.

Each contender is a process of its own that has imported all that it needs, and has described a small corpus, before it
is timed; data-juicer has a virtual environment of its own, which is made once. They do not tell the same: curate and
DuckDB describe all columns, of texts curate their lengths and most frequent ones, too; data-juicer is asked for the
lengths of the one column of texts. Rates are of the bytes of the texts, by seconds of CPU.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .common import Report, environment, expect, go, once, runs_folder

DATA_JUICER = "1.6.1"
REQUIREMENTS = (f"py-data-juicer=={DATA_JUICER}", "aiohttp==3.14.5", "matplotlib==3.11.2", "pyarrow==26.0.1")
"""What its Analyzer imports; aiohttp and matplotlib it does not ask for itself."""
PROGRAM = Path(__file__).with_name("report_run.py")
FILES = 16
GROUP_ROWS = 16_384
CODEC = "zstd"
VOCABULARY = 30_000
SHORTEST, LONGEST = 100, 300
"""Words of a text."""
SMALL_MEGABYTES = 1
RATE = 150.0
"""MB of text in a second of CPU that curate is to describe."""


@dataclass
class Taken:
    """What the runs of a contender took."""

    seconds: list[float] = field(default_factory=list)
    user_s: list[float] = field(default_factory=list)
    system_s: list[float] = field(default_factory=list)
    peak_mib: list[float] = field(default_factory=list)

    def add(self, found: Mapping[str, float]) -> None:
        for name in ("seconds", "user_s", "system_s", "peak_mib"):
            getattr(self, name).append(found[name])

    @property
    def cpu_s(self) -> float:
        """The median of the seconds of CPU."""
        return statistics.median(user + system for user, system in zip(self.user_s, self.system_s, strict=True))


def corpus_files(folder: Path, megabytes: int) -> Path:
    """Writes documents with texts of so many MB in Parquet files, unless they are there."""

    def make() -> None:
        random = np.random.default_rng(megabytes)
        words = pa.array(sorted(_words(random)))
        often = 1 / np.arange(10, 10 + len(words))
        # By the inverse of the sum: ten times as fast as `choice` with shares.
        sums = np.cumsum(often / often.sum())
        for number in range(FILES):
            table = _documents(random, words, sums, number, megabytes * 1_000_000 // FILES)
            path = folder / f"part-{number:05d}.parquet"
            pq.write_table(table, path, compression=CODEC, row_group_size=GROUP_ROWS)

    return once(folder, make)


def _words(random: np.random.Generator) -> set[str]:
    syllables = [f"{first}{second}" for first in "bdfgklmnprstvz" for second in "aeiou"]
    spelled = random.integers(0, len(syllables), (VOCABULARY, 4))
    kept = random.integers(1, 5, VOCABULARY)
    return {"".join(syllables[one] for one in row[:many]) for row, many in zip(spelled, kept, strict=True)}


def _documents(
    random: np.random.Generator,
    words: pa.Array,
    sums: np.ndarray[tuple[int], np.dtype[np.float64]],
    number: int,
    size: int,
) -> pa.Table:
    """Returns documents whose texts have about `size` bytes."""
    mean = pc.mean(pc.binary_length(words.take(pa.array(np.searchsorted(sums, random.random(10_000)))))).as_py() + 1
    count = max(1, int(size / mean / ((SHORTEST + LONGEST) / 2)))
    lengths = random.integers(SHORTEST, LONGEST, count)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    spelt = words.take(pa.array(np.searchsorted(sums, random.random(int(lengths.sum())))))
    texts = pc.binary_join(pa.ListArray.from_arrays(offsets, spelt), " ")
    sources = pa.array(["books", "forum", "news", "web", "wiki"])
    return pa.table(
        {
            "id": [f"{number:03d}-{row:08d}" for row in range(count)],
            "text": texts,
            "source": sources.take(pa.array(random.integers(0, len(sources), count))),
            "score": random.random(count).astype(np.float32),
            "words": lengths.astype(np.int32),
            "created": pa.array(random.integers(1_600_000_000, 1_700_000_000, count), pa.timestamp("s")),
        }
    )


def described(python: Path, name: str, small: Path, source: Path, folder: Path) -> Mapping[str, float]:
    """Describes a corpus in a process of its own; returns what it took."""
    folder.mkdir(parents=True)
    home = {"HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    taken: Mapping[str, float] = go([python, PROGRAM, name, small, source, folder], folder / "stderr", home).found
    return taken


def measure_report(report: Report, scratch: Path, megabytes: int, rounds: int, *, rivals: bool = True) -> None:
    """Measures all of them in alternated rounds; without `rivals`, curate and DuckDB alone."""
    pythons = {"curate": Path(sys.executable), "duckdb": Path(sys.executable)}
    if rivals:
        made = environment(scratch / f"data-juicer-{DATA_JUICER}", f"data-juicer {DATA_JUICER}", REQUIREMENTS)
        pythons["data-juicer"] = made
    small, source = (corpus_files(scratch / f"texts-{size}", size) for size in (SMALL_MEGABYTES, megabytes))
    files = [pq.ParquetFile(path) for path in sorted(source.glob("*.parquet"))]
    rows = sum(file.metadata.num_rows for file in files)
    stored = sum(path.stat().st_size for path in source.glob("*.parquet"))
    size = sum(pc.sum(pc.binary_length(file.read(["text"])["text"])).as_py() for file in files) / 1e6
    click.echo(
        f"{rows:,} documents, {size:,.0f} MB of text, {stored / 1e6:,.0f} MB in {FILES} Parquet files ({CODEC}); one "
        f"core each; start-up and imports are not counted; medians of {rounds} alternated rounds"
    )
    results = {name: Taken() for name in pythons}
    with runs_folder(scratch) as runs:
        for number in range(rounds):
            for name, python in pythons.items():
                found = described(python, name, small, source, runs / f"{number}-{name}")
                expect(f"the number of rows that {name} counted", found["rows"], rows)
                results[name].add(found)
    for name, one in results.items():
        click.echo(show(name, one, size))
    rate = size / results["curate"].cpu_s
    report.target("text described in a second of CPU", f"{rate:.0f} MB", f">= {RATE:.0f} MB", rate >= RATE)


def show(name: str, one: Taken, size: float) -> str:
    """Returns a contender's line; `size` is that of the texts, in MB."""
    seconds, user_s, system_s, peak = map(statistics.median, (one.seconds, one.user_s, one.system_s, one.peak_mib))
    single = "  ".join(f"{seconds:.2f}" for seconds in one.seconds)
    return (
        f"  {name:<12}{seconds:>8.2f} s   user {user_s:6.2f} s   system {system_s:5.2f} s   "
        f"{size / one.cpu_s:7.1f} MB/s a core   {peak:6.0f} MiB   [{single}]"
    )
