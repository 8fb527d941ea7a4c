"""What is made of a schema, made once: small shards would spend a tenth of their time on making it anew."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

import pyarrow as pa

T = TypeVar("T")

_MOST = 16


def per_schema(make: Callable[[pa.Schema], T]) -> Callable[[pa.Schema], T]:
    """Caches a function of a schema by the schema object, not its value: metadata, which may differ between equal
    schemas, counts here."""
    made: dict[int, tuple[pa.Schema, T]] = {}

    @wraps(make)
    def cached(schema: pa.Schema) -> T:
        found = made.get(id(schema))
        if found is None:
            if len(made) >= _MOST:
                made.clear()
            # Kept together: while the schema lives, no other object has its id.
            found = made[id(schema)] = (schema, make(schema))
        return found[1]

    return cached
