"""A function is looked at once for each write, of however many stages it is a part, and for the next write anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import curate
from curate.errors import ConfigError
from curate.operators import udf
from curate.plan.physical import End, lower

TEXTS = [{"id": str(number), "text": f"a few words of text number {number}"} for number in range(4)]


def same(row: dict[str, Any]) -> dict[str, Any]:
    return row


def all_of(table: Any) -> Any:
    return table


def rows() -> curate.Dataset:
    return curate.from_items(TEXTS).map(same)


PLANS: dict[str, Callable[[], curate.Dataset]] = {
    "files": rows,
    "a limit": lambda: rows().limit(2),
    "an exchange": lambda: rows().sort("id").map_batches(all_of),
    "two exchanges": lambda: rows().random_shuffle(seed=1).sort("id"),
    "exact duplicates": lambda: rows().dedup_exact("text"),
    "near duplicates": lambda: rows().dedup_minhash("text", id_column="id"),
    "a union of many": lambda: curate.from_items(TEXTS).union(*[curate.from_items(TEXTS)] * 8).map(same),
    "a union of equal parts": lambda: (one := rows()).union(one, one),
}


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each function was looked at."""
    found: Counter[str] = Counter()
    look = udf.callable_text

    def counted(name: str, function: Any) -> str:
        found[name] += 1
        return look(name, function)

    monkeypatch.setattr(udf, "callable_text", counted)
    return found


@pytest.mark.quick
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_once_for_each_write(plan: Callable[[], curate.Dataset], looks: Counter[str], tmp_path: Path) -> None:
    for write in (1, 2):
        plan().write_parquet(str(tmp_path / "out"), backend="inline")
        assert {*looks.values()} == {write}, looks


def test_once_for_all_unions_within_each_other(looks: Counter[str]) -> None:
    """As a loop makes them that adds a part and a step at a time, and which is consumed: no step is looked at twice."""
    grown = rows()
    for _ in range(6):
        grown = grown.union(rows()).map(same)
    lower(grown._plan, End.BLOCKS)
    assert 0 < looks["same"] <= 13


def test_a_write_sees_what_changed_since_the_one_before(tmp_path: Path) -> None:
    table = {"a": 1}
    written = curate.range(3).map(lambda row: {**row, "n": table["a"]})
    written.write_parquet(str(tmp_path / "out"), backend="inline")
    table["a"] = 2
    with pytest.raises(ConfigError, match="another identity"):
        written.write_parquet(str(tmp_path / "out"), backend="inline")
