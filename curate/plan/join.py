"""Joins as plans: by exchange, or where one side is small, by broadcast."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from curate.arrow.unknown import is_blank
from curate.errors import ConfigError, refuse_other
from curate.exchange.kinds.base import key_columns
from curate.exchange.kinds.broadcast_join import BROADCAST_HOWS, BroadcastJoin
from curate.exchange.kinds.join import Join, Keys
from curate.exchange.kinds.merge_join import HOWS
from curate.operators.arguments import refuse_unused
from curate.plan.nodes import Apply, Exchanged, Plan, schema_of
from curate.units import format_bytes

BROADCAST_BYTES = 1 << 30
"""Bytes of a right side that every task is given a copy of, at most."""


def join(
    left: Plan,
    right: Plan,
    on: Any,
    how: str,
    right_on: Any = None,
    left_suffix: str = "",
    right_suffix: str = "_right",
    broadcast: Callable[[], pa.Table] | None = None,
) -> Plan:
    """Returns the rows of two plans joined by keys. Raises ConfigError.

    With `broadcast`, which runs the right one and returns its rows, every task has a copy of these.
    """
    refuse_other("join: how", how, HOWS)
    if how in ("semi", "anti"):
        why = f"a join with how={how!r} has the columns of the left side alone"
        refuse_unused("join", why, left_suffix=left_suffix or None)
        refuse_unused("join", why, right_suffix=None if right_suffix == "_right" else right_suffix)
    if broadcast is not None and how not in BROADCAST_HOWS:
        raise ConfigError(
            f"join(how={how!r}, broadcast=True): a broadcast join cannot find right rows without a match; leave "
            f"broadcast out, or join by {', '.join(BROADCAST_HOWS)}"
        )
    given = f"on={on!r}" + (f", right_on={right_on!r}" if right_on is not None else "")
    name = f"join({given}, how={how!r}{'' if broadcast is None else ', broadcast=True'})"
    if broadcast is None:
        schemas = [schema_of(left), schema_of(right)]
        keys = Keys.checked(name, on, right_on, schemas, left_suffix, right_suffix)
        return Exchanged((left, right), Join(keys, how))
    rows = broadcast().replace_schema_metadata(None).combine_chunks()
    if is_blank(rows):
        rows = pa.table({key: pa.nulls(0) for key in key_columns("join", on if right_on is None else right_on)})
    if rows.nbytes > BROADCAST_BYTES:
        raise ConfigError(
            f"{name}: the right side has {format_bytes(rows.nbytes)}, and every task would copy it; the limit is "
            f"{format_bytes(BROADCAST_BYTES)}: leave broadcast out"
        )
    keys = Keys.checked(name, on, right_on, [schema_of(left), rows.schema], left_suffix, right_suffix)
    return Apply(left, BroadcastJoin(keys, how, rows, _digest(rows)))


def _digest(table: pa.Table) -> str:
    """Returns what stands for the rows of a table."""
    found = hashlib.sha256(str(table.schema).encode())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    found.update(sink.getvalue())
    return found.hexdigest()
