"""FineWeb's recipe beside datatrove's example of it: lists of URLs, the rules of Gopher, C4 and FineWeb, near copies,
addresses; from rows, and from archives with the extraction of their pages.

Either runs by the Python of an environment of its own, on as many processes as there are CPUs, and reads and writes
files of the same kinds. Start-up and imports are not counted for either; that curate's workers start is, and so are its
plans and ledgers. Each brings its own trafilatura (datatrove asks for one before 1.12), so texts of pages may differ.
What a text's language is, is left out: the model of datatrove would be downloaded. So is the random order, which
datatrove has not.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from comparisons.texts import STOP_WORDS, Writer, made

from .common import Report, Runs, environment, go, judge, once, runs_folder, show
from .pages import PageWriter, packed, response
from .rows import CODEC

DATATROVE = "0.10.1"
REQUIREMENTS = (
    f"datatrove[io,processing]=={DATATROVE}",
    "lxml-html-clean==0.4.6",
    "regex==2026.11.15",
    "spacy==3.8.18",
    "xxhash==3.8.2",
)
"""What it imports for these steps; the last ones it does not ask for itself."""
ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {"curate": "recipe_run.py", "datatrove": "datatrove_recipe.py"}
FILES = 8
DOMAINS = 200
BLOCKED = 10
"""Domains on the list."""
COPIES, POOR = 0.1, 0.2
"""Shares of documents that are near copies of others, and that are made to be on either side of a rule."""
TARGET = 1 / 3
MOST_APART = 0.02
"""How far the numbers of documents that are left may differ: both find near copies by chance, by other hashes."""


def documents(count: int) -> Iterator[str]:
    """Yields texts of 60 to 400 words in eight lines, some near copies of earlier ones, some poor."""
    writer, poor = Writer(0), made(int(count * POOR) + 1, 0)
    earlier: list[str] = []
    for _ in range(count):
        kind = writer.random.random()
        if kind < POOR:
            yield next(poor, "")
        elif kind < POOR + COPIES and earlier:
            words = writer.random.choice(earlier).split(" ")
            for place in range(50, len(words), 100):
                words[place] = writer.word()
            yield " ".join(words)
        else:
            text = writer.prose(writer.random.randint(60, 400), 8)
            earlier.append(text)
            yield text


def url(number: int) -> str:
    return f"https://www.site{number % DOMAINS}.com/pages/{number}"


def row_files(folder: Path, count: int) -> Path:
    """Writes rows in Parquet files, unless they are there."""

    def make() -> None:
        texts = list(documents(count))
        table = pa.table(
            {"id": [f"d{n:08d}" for n in range(count)], "url": [url(n) for n in range(count)], "text": texts}
        )
        each = -(-count // FILES)
        for number in range(FILES):
            path = folder / f"part-{number:05d}.parquet"
            pq.write_table(table.slice(number * each, each), path, compression=CODEC)

    return once(folder, make)


def archives(folder: Path, count: int) -> Path:
    """Writes archives of pages with the words of English that the rules ask for, unless they are there."""

    def make() -> None:
        writer = PageWriter(0)
        writer.words += STOP_WORDS * (len(writer.words) // (2 * len(STOP_WORDS)))
        each = -(-count // FILES)
        for number in range(FILES):
            pages = (
                response(url(n), writer.page().encode()) for n in range(number * each, min(count, (number + 1) * each))
            )
            (folder / f"part-{number:05d}.warc.gz").write_bytes(packed(pages))

    return once(folder, make)


def measure_recipe(report: Report, scratch: Path, begins: tuple[str, ...], sizes: dict[str, int], rounds: int) -> None:
    """Runs both on the same input, in turn."""
    theirs = environment(scratch / f"datatrove-{DATATROVE}-recipe", f"datatrove {DATATROVE}", REQUIREMENTS)
    ours = environment(scratch / "curate-words-web", "curate", ["--editable", f"{ROOT}[words,web]"])
    pythons = {"curate": ours, "datatrove": theirs}
    domains = scratch / "domains.txt"
    domains.write_text("".join(f"site{number}.com\n" for number in range(BLOCKED)))
    cpus = os.cpu_count() or 1
    for begin in begins:
        make = archives if begin == "warc" else row_files
        source = make(scratch / f"recipe-{begin}-{sizes[begin]}", sizes[begin])
        click.echo(f"\nfrom {begin}: {sizes[begin]:,} documents in {FILES} files, {cpus} processes, {rounds} rounds")
        results = {name: Runs(name) for name in pythons}
        steps: dict[str, list[dict[str, float]]] = {name: [] for name in pythons}
        left = dict.fromkeys(pythons, 0)
        with runs_folder(scratch) as folder:
            for number in range(rounds):
                for name, python in pythons.items():
                    output = folder / f"{number}-{name}"
                    program = Path(__file__).with_name(PROGRAMS[name])
                    ended = go([python, program, begin, source, output, cpus, domains], folder / f"{name}.err")
                    steps[name].append(ended.found)
                    results[name].seconds.append(sum(ended.found.values()))
                    results[name].user_s.append(ended.user_s)
                    results[name].system_s.append(ended.system_s)
                    left[name] = rows(output / "personal" if name == "curate" else output)
        for name, one in results.items():
            click.echo(f"{show(one)}   {sizes[begin] / one.median_s:,.0f} documents/s, {left[name]:,} left")
            medians = {step: statistics.median(each[step] for each in steps[name]) for step in steps[name][0]}
            click.echo("    " + ", ".join(f"{step} {seconds:.2f} s" for step, seconds in medians.items()))
        if begin == "rows":
            apart = abs(left["curate"] - left["datatrove"]) / left["datatrove"]
            if apart > MOST_APART:
                raise click.ClickException(f"{left}: the documents that are left differ by {apart:.1%}")
            judge(report, "curate, to datatrove", results["curate"], results["datatrove"], TARGET)
        else:
            ratio = results["curate"].median_s / results["datatrove"].median_s
            click.echo(f"  curate, to datatrove: {ratio:.2f} x; extraction is most of both")


def rows(folder: Path) -> int:
    """Returns how many rows there are in Parquet files, those of a ledger apart."""
    return int(pads.dataset(folder, format="parquet").count_rows())
