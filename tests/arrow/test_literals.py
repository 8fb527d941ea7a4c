"""A value that Arrow has no literal of is refused where it is written, and what is to be written instead works."""

from __future__ import annotations

import operator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import curate
from curate.errors import ConfigError

pytestmark = pytest.mark.quick

DAY, LONG = np.datetime64("1970-01-05"), np.timedelta64(1, "D")
REFUSED: dict[str, tuple[Any, str, Any, pa.Array]] = {
    # The value, what is said, what is written instead, and a column of which the second row alone is above it.
    "beyond int64": (
        2**63,
        r"pyarrow\.scalar\(n, pyarrow\.uint64\(\)\)",
        pa.scalar(2**63, "uint64"),
        pa.array([1, 2**63 + 1], "uint64"),
    ),
    "beyond uint64": (
        10**30,
        r"curate\.lit\(decimal\.Decimal\(n\)\)",
        Decimal(10**30),
        pa.array([Decimal(1), Decimal(10**30 + 1)]),
    ),
    "a day": (DAY, r"write curate\.lit\(value\.item\(\)\)", DAY.item(), pa.array([1, 25], "date32")),
    "days": (LONG, r"write curate\.lit\(value\.item\(\)\)", LONG.item(), pa.array([1, 10**6], "duration[s]")),
    "an hour": (np.datetime64("1970-01-01T05"), r"value\.item\(\)", DAY.item(), pa.array([1, 10**6], "timestamp[s]")),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_written_instead_works(what: str) -> None:
    value, said, instead, column = REFUSED[what]
    with pytest.raises(ConfigError, match=rf"lit\(.*\) of type {type(value).__name__}: .*{said}"):
        curate.lit(value)
    kept = curate.from_arrow(pa.table({"n": column})).filter(curate.col("n") > curate.lit(instead))
    assert kept.to_arrow()["n"].combine_chunks() == column[1:]


@pytest.mark.parametrize("value", [object(), "\ud800", np.datetime64("NaT"), 1j])
def test_no_value_ends_in_an_error_of_arrow(value: Any) -> None:
    """Whatever it is, the error is one of curate."""
    with pytest.raises(ConfigError, match=f"of type {type(value).__name__}: "):
        curate.lit(value)


@pytest.mark.parametrize("type", [pa.decimal128(20, 0), pa.decimal256(60, 10)])
@pytest.mark.parametrize("whole", [0, -129, 70_000, 2**40, 2**63 - 1])
def test_whole_numbers_are_compared_with_decimals_as_python_does(type: pa.DataType, whole: int) -> None:
    values = [Decimal(-129), Decimal(0), None, Decimal(127), Decimal(70_000)]
    rows = curate.from_arrow(
        pa.table({"price": pa.array(values, type), "in": pa.array([{"price": one} for one in values])})
    )
    for compare in (operator.lt, operator.eq, operator.ne, operator.ge):
        wanted = [one for one in values if one is not None and compare(one, whole)]
        for expression in (compare(curate.col("price"), whole), ~~compare(pc.field("in", "price"), pc.scalar(whole))):
            assert rows.filter(expression).to_arrow()["price"].to_pylist() == wanted, (compare, expression)


@pytest.mark.parametrize("compare", [operator.gt, operator.eq, operator.add])
@pytest.mark.parametrize("value", [3, 0.5, True, Decimal(1)])
def test_types_that_do_not_go_together_are_named_with_what_to_write(compare: Any, value: Any) -> None:
    """And not in the words of Arrow, which has kernels."""
    rows = curate.from_items([{"id": "a"}])
    with pytest.raises(
        ConfigError, match=r"there is no '\w+' of string, .*; write a value as its column is.*cast"
    ) as told:
        rows.with_column("found", compare(curate.col("id"), value)).take_all()
    assert "kernel" not in str(told.value)


@pytest.mark.parametrize("ahead", range(4))
def test_a_text_that_arrow_cuts_within_a_character_is_one_as_any_other(ahead: int, tmp_path: Path) -> None:
    """Of the texts of `isin` it shows the beginnings, cut by bytes: it raised wherever an expression is shown."""
    text = "a" * ahead + "\U0001f600" * 60
    pq.write_table(pa.table({"s": [text, "b"]}), tmp_path / "a.parquet")
    read, chosen = curate.read_parquet(tmp_path / "a.parquet"), curate.col("s").isin([text])
    assert read.filter(chosen).take_all() == [{"s": text}]
    assert read.filter(chosen).explain().count("filter(is_in(s") > 0
    assert read.with_column("in", chosen).take_all() == [{"s": text, "in": True}, {"s": "b", "in": False}]
    assert read.with_columns({"in": ~chosen}).filter(curate.col("in")).count() == 1
