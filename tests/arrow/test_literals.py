"""A value that Arrow has no literal of is refused where it is written, and what is to be written instead works."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
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
