"""Mixtures in plain Python, one row after the other: what the job is compared with."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import pyarrow as pa

from curate.mixture.rows import Mixing


def hashes(mixing: Mixing, rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Returns the numbers that rows are drawn by."""
    found: list[int] = mixing.hashes(pa.table({mixing.id_column: [row[mixing.id_column] for row in rows]})).tolist()
    return found


def size(mixing: Mixing, row: Mapping[str, Any]) -> int:
    if mixing.count_column is not None:
        return int(row[mixing.count_column])
    return len(row[mixing.text_column]) if mixing.mixture.unit == "characters" and mixing.text_column else 1


def shares(total: int, weights: Sequence[Fraction | int]) -> list[int]:
    """Returns quotas by giving one unit after the other to whoever lacks the largest part of one."""
    exact = [Fraction(total) * one / sum(weights) for one in weights]
    found = [one.numerator // one.denominator for one in exact]
    while sum(found) < total:
        lacks = [one - own for one, own in zip(exact, found, strict=True)]
        found[lacks.index(max(lacks))] += 1
    return found


def mixed(mixing: Mixing, rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Returns how often each row is there: rows of a stratum are laid end to end, again and again, lowest first; what
    strata have left goes to the rows at which they stopped, that of the stratum with most left first."""
    copies: Counter[int] = Counter()
    mixture, numbers = mixing.mixture, hashes(mixing, rows)
    quotas = shares(mixture.budget, [Fraction(str(one.weight)) for one in mixture.sources])
    for source, wanted in zip(mixture.sources, quotas, strict=True):
        strata = defaultdict(list)
        for at, row in enumerate(rows):
            if row[mixing.source_column] == source.name and size(mixing, row):
                strata[row[mixing.strata_column] if mixing.strata_column is not None else None].append(at)
        by_digest = {
            int(mixing.strata(pa.table({mixing.strata_column or "-": [name]}))[0]): of for name, of in strata.items()
        }
        ordered = [of for _, of in sorted(by_digest.items())]
        had = [sum(size(mixing, rows[at]) for at in of) for of in ordered]
        if not sum(had):
            continue
        stopped, left = [], wanted
        for of, own in zip(ordered, shares(wanted, had), strict=True):
            for at in sorted(of, key=lambda at: (numbers[at], at)) * source.max_epochs:
                # What follows a row that is too large is not taken either.
                if size(mixing, rows[at]) > own:
                    stopped.append((-own, numbers[at], at))
                    break
                own -= size(mixing, rows[at])
                left -= size(mixing, rows[at])
                copies[at] += 1
        for _, _, at in sorted(stopped):
            if size(mixing, rows[at]) > left:
                break
            left -= size(mixing, rows[at])
            copies[at] += 1
    return [copies[at] for at in range(len(rows))]
