"""The exchange that brings rows into the folders of their partitions: `year=2024/lang=en/`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from curate.arrow.order import Order
from curate.arrow.types import is_text, value_type
from curate.dataclass import dataclass
from curate.errors import ConfigError
from curate.exchange.kinds.base import order_by
from curate.exchange.protocol import OneInput
from curate.formats.file_columns import NO_VALUE

PARTITIONS = 10_000
"""Most partitions of a write: each is a folder, with one object at least."""
FOLDER_BYTES = 255
"""Most bytes of the name of a folder in a file system."""

_NAMED = (pt.is_integer, pt.is_boolean, pt.is_date32, pt.is_null)
"""Types of which every value has one text, beside texts themselves."""


@dataclass(frozen=True, slots=True)
class Partitioned(OneInput):
    """Rows by the values of some columns: each output has rows of one partition alone, as they came, and lies in its
    folder. A large partition goes on in the next output of the folder."""

    columns: tuple[str, ...]
    by_key = True

    @property
    def name(self) -> str:
        return f"partition({', '.join(self.columns)})"

    @property
    def orders(self) -> tuple[Order, ...]:
        return (order_by(self.columns),)

    def identity(self) -> Any:
        return ["partition", list(self.columns)]

    def schema(self, found: Sequence[pa.Schema | None]) -> pa.Schema | None:
        [rows] = found
        if rows is not None:
            self.orders[0].check("partition_cols", rows)
            self._check(rows)
        return rows

    def folders(self, keys: pa.Table) -> list[str]:
        if not keys.num_rows:
            return []
        self._check(keys.schema)
        if keys.num_rows > PARTITIONS:
            raise ConfigError(
                f"partition_cols={list(self.columns)} would make {keys.num_rows:,} folders, each with one object at "
                f"least; at most {PARTITIONS:,} are made. Partition by fewer columns, or by what has fewer values, "
                "such as the month of a date or a hash of an id"
            )
        texts = [_texts(name, keys[name]) for name in self.columns]
        rows = (zip(self.columns, row, strict=True) for row in zip(*texts, strict=True))
        return ["/".join(partition_folder(name, value) for name, value in row) for row in rows]

    def _check(self, schema: pa.Schema) -> None:
        for name in self.columns:
            partition_folder(name, None)
            type = value_type(schema.field(name).type)
            if not (is_text(type) or any(is_one(type) for is_one in _NAMED)):
                raise ConfigError(
                    f"partition_cols: column {name!r} is of type {type}; folders are called after texts, integers, "
                    "booleans and dates: cast it before, with with_column()"
                )


def _texts(key: str, values: pa.ChunkedArray) -> list[str | None]:
    """Returns what values are called. Raises ConfigError for a text that is not UTF-8."""
    try:
        return pc.cast(values, pa.string()).to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{key} is {error.object!r:.60} in some rows, which is not UTF-8, so no folder can be called after it; "
            "replace it before"
        ) from error


def partition_folder(key: str, value: str | None) -> str:
    """Returns what the folder of rows is called that have this value. Raises ConfigError for a name that readers take
    for another one, or skip, or that file systems do not have.

    >>> partition_folder("a b", "c/d"), partition_folder("lang", None)
    ('a%20b=c%2Fd', 'lang=__HIVE_DEFAULT_PARTITION__')
    """
    if not key or key[0] in "_.":
        raise ConfigError(
            f"no folder can be called after the column {key!r}: readers skip folders whose names begin with '_' or "
            "'.'; rename it before, with rename_columns()"
        )
    if value == NO_VALUE:
        raise ConfigError(f"{key} is {value!r} in some rows, which readers take for null; replace it before")
    name = f"{quote(key, safe='')}={NO_VALUE if value is None else quote(value, safe='')}"
    if len(name) > FOLDER_BYTES:
        raise ConfigError(
            f"{key} is a text of {len(value or '')} characters in some rows ({value!r:.60}); a folder's name has at "
            f"most {FOLDER_BYTES} bytes: partition by something shorter"
        )
    return name
