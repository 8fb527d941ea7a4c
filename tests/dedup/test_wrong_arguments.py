"""Arguments of another kind are refused in one line that says what was found and what is expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import curate
from curate.dataset.dataset import Dataset

WRONG: dict[str, Callable[[Any], Dataset]] = {
    "dedup_exact: keep=None; there are first and last": lambda ds: ds.dedup_exact("text", keep=None),
    "dedup_exact: keep=['last']; there are first and last": lambda ds: ds.dedup_exact("text", keep=["last"]),
    "dedup_minhash: column is ['text'], expected the name of a column": lambda ds: ds.dedup_minhash(
        ["text"], id_column="id"
    ),
    "dedup_minhash: id_column is None, expected the name of a column": lambda ds: ds.dedup_minhash(
        "text", id_column=None
    ),
    "dedup_minhash: source_column is ['id'], expected the name of a column": lambda ds: ds.dedup_minhash(
        "text", id_column="id", source_column=["id"]
    ),
    "dedup_minhash: bands times rows is 800000, expected a whole number, at most 16,384": lambda ds: ds.dedup_minhash(
        "text", id_column="id", bands=100_000
    ),
    "dedup_minhash: ngram is 100000000000, expected a whole number, at most": lambda ds: ds.dedup_minhash(
        "text", id_column="id", ngram=10**11
    ),
    "dedup_paragraphs: sentences is 9223372036854775808, expected": lambda ds: ds.dedup_paragraphs(
        "text", unit="sentences", sentences=2**63
    ),
    "num_shards is 100000000000, expected a whole number, at most 10,000,000": lambda ds: ds.repartition(10**11),
    "dedup_paragraphs: unit=['line']; there are paragraph, line and sentences": lambda ds: ds.dedup_paragraphs(
        "text", unit=["line"]
    ),
    "dedup_paragraphs: normalise=True; there are exact, folded, ccnet and datatrove": lambda ds: ds.dedup_paragraphs(
        "text", normalise=True
    ),
    "decontaminate takes files by the names of sets, as": lambda ds: ds.decontaminate("text", [curate.Asset("/x")]),
    "split_off: 1 cannot be the name of an extra output": lambda ds: ds.split_off({1: 0.1, "a": 0.1}, column="id"),
}


@pytest.mark.parametrize("said", WRONG)
def test_one_line_says_what_is_expected(said: str) -> None:
    ds = curate.from_items([{"id": 1, "text": "a"}])
    with pytest.raises(curate.ConfigError) as raised:
        WRONG[said](ds).take_all()
    assert str(raised.value).startswith(said)
    assert "\n" not in str(raised.value)
