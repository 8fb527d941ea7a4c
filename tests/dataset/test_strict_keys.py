"""Keys of a column that says that it has no null: exchanged like any others, beside such that say nothing."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

import curate
from curate.dataset.dataset import Dataset
from tests.graph.small import small_limits

__all__ = ["small_limits"]

KEYS = [7 * number % 20 for number in range(60)]


def made(name: str, nullable: bool) -> Dataset:
    """Returns rows that a function makes: only its tables tell their schema."""
    rows = pa.schema([pa.field("k", pa.int64(), nullable=nullable), pa.field(name, pa.string())])

    def of(batch: pa.Table) -> pa.Table:
        ids = batch["id"].to_pylist()
        return pa.table([[KEYS[one] for one in ids], [f"{name}{one}" for one in ids]], schema=rows)

    return curate.range(len(KEYS)).map_batches(of, batch_size=30)


SIDES: dict[str, Callable[[Dataset, Dataset], Dataset]] = {
    "a sort": lambda one, _: one.sort("k"),
    "a sort of a union": lambda one, other: one.union(other).sort("k"),
    "groups": lambda one, _: one.groupby("k").aggregate([("a", "list")]),
    "groups of a union": lambda one, other: one.union(other).groupby("k").count(),
    "a join": lambda one, other: one.join(other, on="k", how="outer"),
}


@pytest.mark.parametrize("strict", [(True, False), (True, True)], ids=str)
@pytest.mark.parametrize("what", SIDES)
def test_a_key_that_is_never_null(what: str, strict: tuple[bool, bool]) -> None:
    """Over several outputs, and where one side says it and the other does not."""
    exchanged = SIDES[what]
    rows = exchanged(made("a", not strict[0]), made("b", not strict[1])).take_all()
    assert rows == exchanged(made("a", True), made("b", True)).take_all()
