"""Near duplicates beside those of datatrove and text-dedup: the same texts, n-grams, bands and rows.

The texts have copies of every similarity from 0.4 to 1, chains of versions, and texts shorter than an n-gram. A row
counts as dropped if it is in a cluster and not its first row: which row of a cluster others keep is no matter of
similarity. Pairs of rows in one cluster are compared, too. What differs is told by its reason, which the true Jaccard
similarity of the word n-grams decides.
"""

from __future__ import annotations

import itertools
import json
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benches.dedup import REQUIREMENTS as DATATROVE

import curate

NGRAM, BANDS, ROWS, THRESHOLD = 5, 14, 8, 0.8
PROGRAM = Path(__file__).with_name("rival_clusters.py")
REQUIREMENTS = {
    "datatrove": DATATROVE,
    "text-dedup": ("text-dedup==0.4.0",),
}
Labels = Mapping[int, int]
"""Of rows: the first row of their cluster. Others are alone."""


def texts(count: int, seed: int) -> list[str]:
    """Returns texts: more than half are no copies.

    >>> len(texts(100, 0))
    100
    """
    random = np.random.default_rng(seed)
    vocabulary = [f"{a}{b}{c}{d}" for a in "bdgklmnprst" for b in "aeiou" for c in "bdgklmnprst" for d in "aeiou"]
    made: list[list[str]] = []
    for _ in range(count):
        kind = random.random()
        if not made or kind < 0.55:
            words = [vocabulary[one] for one in random.integers(0, len(vocabulary), random.integers(60, 300))]
        elif kind < 0.57:
            words = [f"short{random.integers(60)}", "text", "here"]
        else:
            # Of a chain each version is one of a text shortly before, which may be a version itself.
            words = list(made[int(random.integers(max(0, len(made) - 40) if kind < 0.67 else 0, len(made)))])
            share = 0.0 if kind > 0.85 else random.random() * 0.08
            for place in random.choice(len(words), int(len(words) * share), replace=False):
                words[place] = vocabulary[random.integers(len(vocabulary))]
        made.append(words)
    return [" ".join(words) for words in made]


def grams(text: str) -> frozenset[tuple[str, ...]]:
    words = text.split()
    return frozenset(tuple(words[at : at + NGRAM]) for at in range(max(1, len(words) - NGRAM + 1)))


def ours(rows: Sequence[str], drop: str, work: Path) -> tuple[Labels, dict[int, int]]:
    """Returns the clusters that curate finds, and for which row it drops each."""
    table = pa.table({"id": pa.array(range(len(rows)), pa.int64()), "text": rows})
    made = curate.from_arrow([table]).dedup_minhash(
        "text", id_column="id", threshold=THRESHOLD, drop=drop, ngram=NGRAM, bands=BANDS, rows=ROWS
    )
    made.write_parquet(work / drop, backend="inline", overwrite=True, yes=True)
    told = curate.read_parquet(f"{work}/{drop}/_side/duplicates").to_arrow()
    kept = dict(zip(told["id"].to_pylist(), told["kept_id"].to_pylist(), strict=True))
    return {**kept, **{one: one for one in kept.values()}}, kept


def theirs(python: Path, kind: str, source: Path) -> Labels:
    """Returns the clusters that others find."""
    command = [str(python), str(PROGRAM), kind, str(source), *map(str, (NGRAM, BANDS, ROWS))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    first: dict[int, int] = {}
    for row, label in sorted((int(row), label) for row, label in found.items()):
        first.setdefault(label, row)
    labels = {int(row): first[label] for row, label in found.items()}
    sizes = Counter(labels.values())
    return {row: label for row, label in labels.items() if sizes[label] > 1}


def pairs(labels: Labels) -> set[tuple[int, int]]:
    """Returns the pairs of rows that are in one cluster."""
    clusters: dict[int, list[int]] = {}
    for row, label in sorted(labels.items()):
        clusters.setdefault(label, []).append(row)
    return {pair for rows in clusters.values() for pair in itertools.combinations(rows, 2)}


def compare(name: str, rows: Sequence[str], own: Mapping[str, Any], other: Labels) -> None:
    """Prints how far others agree, and what differs for which reason."""
    sets = [grams(text) for text in rows]

    def alike(u: int, v: int) -> float:
        return len(sets[u] & sets[v]) / len(sets[u] | sets[v])

    def short(*some: int) -> bool:
        return any(len(rows[one].split()) < NGRAM for one in some)

    labels, _ = own["component"]
    mine, found = pairs(labels), pairs(other)
    reasons: Counter[str] = Counter()
    for u, v in mine ^ found:
        of = "curate" if (u, v) in mine else name
        if short(u, v):
            reasons[f"{of} alone: a text shorter than an n-gram"] += 1
        elif alike(u, v) >= THRESHOLD:
            reasons[f"{of} alone: alike, the other's bands missed it"] += 1
        elif of == "curate":
            reasons[f"{of} alone: connected by pairs that the other's bands missed"] += 1
        else:
            reasons[f"{of} alone: below the threshold, which it does not check; or connected by such pairs"] += 1
    told(f"clusters, {name} and drop='component': pairs in one cluster", len(mine & found), len(mine | found), reasons)
    both, either = (
        sum(alike(*pair) >= THRESHOLD and not short(*pair) for pair in some) for some in (mine & found, mine | found)
    )
    told(f"clusters, {name} and drop='component': of these, pairs that are alike", both, either, Counter())
    for drop in ("component", "verified"):
        kept_for = own[drop][1]
        gone = {row for row, label in other.items() if row != label}
        reasons = Counter()
        for row in gone ^ kept_for.keys():
            if short(row):
                why = "a text shorter than an n-gram"
            elif row in kept_for:
                why = f"like row kept, {name}'s bands missed it or its cluster"
            elif (label := other[row]) in other and any(
                one < row and one not in kept_for and other.get(one) == label and alike(one, row) >= THRESHOLD
                for one in other
            ):
                why = "like a row that is kept, curate's bands missed it"
            else:
                why = f"like no row that curate keeps, dropped by {name} for a chain or a band alone"
            reasons[f"{'curate' if row in kept_for else name} alone drops: {why}"] += 1
        told(f"rows, {name} and drop={drop!r}: decisions", len(rows) - sum(reasons.values()), len(rows), reasons)


def told(title: str, agree: int, of: int, reasons: Counter[str]) -> None:
    click.echo(f"\n{title}: {agree:,} of {of:,} agree, {agree / max(1, of):.2%}")
    for reason, number in reasons.most_common():
        click.echo(f"  {number:>7,}  {reason}")


def measure(count: int, seed: int, scratch: Path, python_of: Mapping[str, Path]) -> None:
    """Compares with each of them."""
    made = texts(count, seed)
    scratch.mkdir(parents=True, exist_ok=True)
    source = scratch / "texts.parquet"
    ids = pa.array([f"{n}" for n in range(count)])
    pq.write_table(pa.table({"id": ids, "text": made}), source)
    own = {drop: ours(made, drop, scratch / "curate") for drop in ("component", "verified")}
    sets = [grams(text) for text in made]
    for drop, (_, kept) in own.items():
        least = [len(sets[u] & sets[v]) / len(sets[u] | sets[v]) for u, v in kept.items()]
        below = sum(one < THRESHOLD for one in least)
        click.echo(
            f"curate, drop={drop!r}: {len(kept):,} of {count:,} rows dropped, {below:,} of these for a row that they "
            f"are not like; the least similarity to the row that is kept is {min(least):.2f}"
        )
    for name, python in python_of.items():
        compare(name, made, own, theirs(python, name, source))
