"""Rows that are set aside are in no read of a deduplication: what stays is what would stay were they not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import curate
from curate.dataset.dataset import Dataset

STRICT = pa.schema(
    [
        ("id", pa.int64()),
        ("text", pa.string()),
        ("scores", pa.list_(pa.field("element", pa.int64(), nullable=False))),
        ("who", pa.struct([pa.field("name", pa.string(), nullable=False)])),
    ]
)
LOOSE = pa.schema(
    [*list(STRICT)[:2], ("scores", pa.list_(pa.int64())), ("who", pa.struct([pa.field("name", pa.string())]))]
)
TEXTS = ["z y x", "a b c", "d e f", "a b c", "d e f", "k l m", "a b c", "q r s", "d e f", "k l m", "o p"]
BAD = (1, 4, 6, 9)
"""Of a list, and of a struct."""
ROWS = [
    {
        "id": n,
        "text": text,
        "scores": [n, None] if n in BAD[:2] else [n],
        "who": {"name": None if n in BAD[2:] else "ann"},
    }
    for n, text in enumerate(TEXTS)
]


def decontaminated(ds: Dataset, folder: Path) -> Dataset:
    (folder / "set.jsonl").write_text('{"text": "k l m"}')
    return ds.decontaminate("text", {"set": curate.Asset(str(folder / "set.jsonl"))}, n=3, max_documents=1)


KINDS: dict[str, Callable[[Dataset, Path], Dataset]] = {
    "exact, first": lambda ds, _: ds.dedup_exact("text"),
    "exact, last": lambda ds, _: ds.dedup_exact("text", "last"),
    "near, verified": lambda ds, _: ds.dedup_minhash("text", id_column="id", ngram=2),
    "near, component": lambda ds, _: ds.dedup_minhash("text", id_column="id", ngram=2, drop="component"),
    "paragraphs": lambda ds, _: ds.dedup_paragraphs("text", min_words=1),
    "evaluation sets": decontaminated,
}


QUICK = [("exact, last", False), ("near, verified", False), ("exact, first", True)]
CASES = [
    pytest.param(kind, part, marks=[] if (kind, part) in QUICK else [pytest.mark.slow])
    for kind in KINDS
    for part in (False, True)
]


@pytest.mark.ci(6)
@pytest.mark.parametrize(("kind", "part"), CASES)
def test_a_null_where_none_may_be_is_in_no_read(kind: str, part: bool, tmp_path: Path) -> None:
    """The columns that the first file has no null in are not those that rows are compared by, and need not be asked
    for: consumed as written."""
    (tmp_path / "in").mkdir()
    pq.write_table(pa.Table.from_pylist(ROWS[:1], STRICT), tmp_path / "in" / "0.parquet")
    pq.write_table(pa.Table.from_pylist(ROWS[1:], LOOSE), tmp_path / "in" / "1.parquet")
    good = curate.from_arrow(pa.Table.from_pylist([row for row in ROWS if row["id"] not in BAD], STRICT))
    wanted = KINDS[kind](good, tmp_path).to_arrow()["id"].to_pylist()
    made = KINDS[kind](curate.read_parquet(tmp_path / "in"), tmp_path)
    made = made.select_columns(["id", "text"]) if part else made
    assert made.to_arrow()["id"].to_pylist() == wanted
    summary = made.write_parquet(tmp_path / "out", backend="inline")
    assert (summary.books.rows_in, summary.books.quarantined, summary.books.balanced()) == (len(TEXTS), len(BAD), True)
    assert curate.read_parquet(tmp_path / "out").to_arrow()["id"].to_pylist() == wanted
