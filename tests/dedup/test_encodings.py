"""However texts are stored, the same of them are duplicates, and what is left of them is stored as they were."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import curate
from curate.dataset.dataset import Dataset

TEXTS = ["one two three", "One  two three", "k", None, "", None, "to be or not\nshared line", "x\nShared line", "k"]
STORED: dict[str, Callable[[Any], Any]] = {
    "large": lambda texts: texts.cast(pa.large_string()),
    "views": lambda texts: texts.cast(pa.string_view()),
    "dictionary": lambda texts: texts.dictionary_encode(),
    "dictionary of large ones": lambda texts: texts.cast(pa.large_string()).dictionary_encode(),
    "runs": pc.run_end_encode,
    "runs of large ones": lambda texts: pc.run_end_encode(texts.cast(pa.large_string())),
}


def cleaned(action: str) -> Callable[[Dataset, Any], Dataset]:
    return lambda ds, sets: ds.decontaminate(
        "text", sets, id_column="id", n=4, action=action, min_words=0, max_documents=None
    )


KINDS: dict[str, Callable[[Dataset, Any], Dataset]] = {
    "exact": lambda ds, _: ds.dedup_exact("text", normalise=True, id_column="id"),
    "exact, as they are": lambda ds, _: ds.dedup_exact("text", id_column="text"),
    "by priority": lambda ds, _: ds.dedup_exact("kind", priority="text", id_column="text"),
    "near": lambda ds, _: ds.dedup_minhash("text", id_column="text"),
    "component": lambda ds, _: ds.dedup_minhash("text", id_column="id", drop="component", source_column="text"),
    "near, ordered": lambda ds, _: ds.dedup_minhash(
        "text", id_column="id", exempt={"text": ["k"]}, priority={"text": ["One  two three"]}
    ),
    "spans": lambda ds, _: ds.dedup_paragraphs("text", id_column="id", min_words=0),
    "dropped": cleaned("drop"),
    "annotated": cleaned("annotate"),
    "cut": cleaned("cut"),
}


@pytest.mark.ci(5)
@pytest.mark.quick(5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stored", STORED)
def test_the_same_rows_stay(stored: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "set.jsonl").write_text(json.dumps({"text": "To be, or not to be"}))
    sets = {"hamlet": curate.Asset(str(tmp_path / "set.jsonl"))}
    plain = pa.table({"id": range(len(TEXTS)), "kind": [n % 2 for n in range(len(TEXTS))], "text": pa.array(TEXTS)})
    other = plain.set_column(2, "text", STORED[stored](plain["text"].combine_chunks()))
    expected, found = (KINDS[kind](curate.from_arrow(one), sets) for one in (plain, other))
    assert found.take_all() == expected.take_all()
    assert len(found.take_all()) < len(TEXTS) or kind in ("annotated", "cut", "spans")
    table = found.to_arrow()
    assert table.schema.field("text").type == other.schema.field("text").type


@pytest.mark.slow
@pytest.mark.ci(10)
@pytest.mark.quick(6)
@pytest.mark.parametrize("stored", [name for name in STORED if "runs" not in name])
@pytest.mark.parametrize("kind", KINDS)
def test_lists_tell_the_same_values(kind: str, stored: str, tmp_path: Path) -> None:
    """Ids and sources are told as plain values, as Parquet would have them."""
    (tmp_path / "set.jsonl").write_text(json.dumps({"text": "To be, or not to be"}))
    sets = {"hamlet": curate.Asset(str(tmp_path / "set.jsonl"))}
    found = []
    for name in ("plain", "other"):
        table = pa.table({"text": pa.array(TEXTS), "kind": [n % 2 for n in range(len(TEXTS))]})
        ids = pa.array([f"row {n}" for n in range(len(TEXTS))])
        ids = ids if name == "plain" else STORED[stored](ids)
        parts = [table.append_column("id", ids).slice(at, 3) for at in range(0, len(TEXTS), 3)]
        told = KINDS[kind](curate.from_arrow(parts), sets).write_parquet(tmp_path / name, backend="inline")
        assert told.state == "complete"
        lists = sorted(path for path in (tmp_path / name).glob("_side/*/*.parquet"))
        found.append([row for path in lists for row in pq.read_table(path).to_pylist()])
    assert found[0]
    assert found[1] == found[0]
