"""What jobs of the end-to-end tests must write, worked out in plain Python from rows as they were made.

Nothing of curate is used: a run that is compared with another run of the same code says nothing of rows that both lose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SHORT = 20
"""Below that many characters, Curation drops a text."""
Row = Mapping[str, Any]


def curated(rows: Iterable[Row], bad_lines: int = 0) -> tuple[list[tuple[Any, ...]], dict[str, Any]]:
    """Returns the rows that Curation keeps, sorted, and its books of all."""
    rows = list(rows)
    fate = [(_fate(row), row) for row in rows]
    counts = Counter(name for name, _ in fate)
    kept = [(row["file"], row["id"], row["text"], len(row["text"])) for name, row in fate if name == "kept"]
    books = {
        "in": len(rows) + bad_lines,
        "created": 0,
        "out": len(kept),
        "dropped": {name: counts[name] for name in ("short", "unspecified") if counts[name]},
        "quarantined": bad_lines + counts["aside"],
    }
    return sorted(kept), books


def _fate(row: Row) -> str:
    if row["text"].startswith("aside"):
        return "aside"
    if len(row["text"]) < SHORT:
        return "short"
    return "unspecified" if row["id"] & 31 == 7 else "kept"


def in_order(rows: Iterable[Row]) -> tuple[list[tuple[Any, ...]], dict[str, Any]]:
    """Returns the rows that Nomad writes, in their order, and its books."""
    found = sorted((row["text"], row["file"], row["id"]) for row in rows)
    books = {"in": len(found), "created": 0, "out": len(found), "dropped": {}, "quarantined": 0}
    return [(file, number, text, len(text)) for text, file, number in found], books


def written(objects: Mapping[str, bytes]) -> list[tuple[Any, ...]]:
    """Returns the rows of all outputs, in the order of their names."""
    names = sorted(name for name in objects if not name.startswith("_curate/"))
    tables = [pq.read_table(pa.BufferReader(objects[name])) for name in names]
    columns = ("file", "id", "text", "length")
    return [tuple(row[name] for name in columns) for table in tables for row in table.to_pylist()]


def differences(
    expected: tuple[list[tuple[Any, ...]], dict[str, Any]], rows: list[tuple[Any, ...]], books: Mapping[str, Any]
) -> list[str]:
    """Returns what a run wrote and counted otherwise, a line each."""
    wanted, told = expected
    problems = []
    if rows != wanted:
        missing, more = Counter(wanted) - Counter(rows), Counter(rows) - Counter(wanted)
        problems.append(
            f"rows differ from those of the corpus: {missing.total():,} of {len(wanted):,} are missing, such as "
            f"{sorted(missing)[:3]}; {more.total():,} should not be there, such as {sorted(more)[:3]}"
            if missing or more
            else f"the {len(wanted):,} rows of the corpus are in another order"
        )
    if dict(books) != told:
        problems.append(f"books differ from those of the corpus: {dict(books)} instead of {told}")
    return problems
