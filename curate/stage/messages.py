"""The messages between the driver and the workers of a stage."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa

from curate.arrow.unknown import fill_schema, is_known
from curate.dataclass import dataclass, field, replace
from curate.ledger.manifest import shard_row
from curate.tasks.shard import Shard


@dataclass(frozen=True, slots=True)
class TaskInput:
    """Shards to run, with their ranks in the plan."""

    shards: tuple[tuple[int, Shard], ...]
    attempt: int
    schema: Any
    """The schema that all outputs have; None if none could be derived."""
    last: bool = False
    """Whether a shard that raises now is given up: what may be done for its good rows is done this time."""
    sides: Mapping[str, Any] = field(default_factory=dict)
    """The schemas of extra outputs, by name, in the order in which they are published."""
    given: tuple[Any, ...] = ()
    """What the source of the rows gives for each shard, where there is one."""
    asks: bool = False
    """Whether word is wanted of the first batch that is done: a service that the job needs was busy."""
    over: Mapping[str, str] = field(default_factory=dict)
    """Generations of outputs that are out of date, by URI: new ones take their places."""
    sampled: frozenset[str] = frozenset()
    """Those of the shards of which an earlier run has left samples of dropped rows: they may be of another input."""
    says_ready: bool = False
    """Whether to say first that the operator is set up."""
    shared: bool = False
    """Whether other drivers make outputs of the same job: then a shard may have its output, whatever the attempt."""
    weighs: bool = False
    """Whether to say how much memory the process held: tasks share that of their nodes."""
    sure: float = 0.0
    """When the driver last knew that the job is its own (see `curate.ledger.fencing`)."""
    anew: frozenset[str] = frozenset()
    """Those of the shards of which an output that is there may be made of another input (`ShardPlan.came_back`)."""
    next_part: str = ""
    """URI of what there is once a later run has planned anything."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Plain tuples and bytes: a frozen dataclass with slots is pickled by Python code, which took longer than all
        # else that the driver does for a task.
        plain = {
            "shards": [(rank, *shard_row(shard)) for rank, shard in self.shards],
            "schema": None if self.schema is None else self.schema.serialize().to_pybytes(),
            "sides": {name: schema.serialize().to_pybytes() for name, schema in self.sides.items()},
            "over": dict(self.over),
        }
        return _task_input, ({name: plain.get(name, getattr(self, name)) for name in self.__slots__},)


def _task_input(values: dict[str, Any]) -> TaskInput:
    values["shards"] = tuple((rank, Shard(*row)) for rank, *row in values["shards"])
    values["schema"] = None if values["schema"] is None else _schema(values["schema"])
    values["sides"] = {name: _schema(data) for name, data in values["sides"].items()}
    return TaskInput(**values)


@lru_cache(maxsize=64)
def _schema(data: bytes) -> Any:
    """Returns the schema; to each worker the same object every time, which is what writers are cached by."""
    return pa.ipc.read_schema(pa.py_buffer(data))


@dataclass(frozen=True, slots=True)
class Probe:
    """Asks for the schema of what the operator makes of one shard's first rows."""

    shard: Shard | None
    """None: of an empty table."""
    sides: tuple[str, ...] = ()
    """Extra outputs whose schemas are asked for too."""
    given: Any = None
    """What the source of the rows gives for the shard, where there is one."""
    whole: bool = False
    """Whether all of the shard is looked at, and not a few batches, until all that is asked for is known."""
    says_ready: bool = False
    """Whether to say first that the operator is set up."""


@dataclass(frozen=True, slots=True)
class Probed:
    """The answer to a probe: a schema, or why there is none (an empty error: the shard gave no table)."""

    schema: Any = None
    error: str = ""
    rows: int = 0
    """Rows that were read for it."""
    again_s: float | None = None
    """Seconds after which to ask again, for something was not there that was needed; None: the answer is final."""
    sides: Mapping[str, Any] = field(default_factory=dict)
    """Schemas of extra outputs by name; None: no table of it was given."""
    ended: bool = False
    """Whether all of the shard was looked at, and to look again would tell no more."""
    vacant: Probed | None = None
    """What tables without rows say, which counts where no shard gives a row."""

    @property
    def known(self) -> bool:
        """Whether there is a schema of each output."""
        return all(schema is not None for schema in (self.schema, *self.sides.values()))

    @property
    def typed(self) -> bool:
        """Whether there are schemas that say the type of every column: none had nothing but nulls so far."""
        schemas = (self.schema, *self.sides.values())
        return self.known and all(is_known(field.type) for schema in schemas for field in schema)

    def filled(self, other: Probed) -> Probed:
        """Returns this answer, its columns of unknown type typed as in the other one; that one if there is no schema.

        Of two schemas with other columns, the first one holds.
        """
        names = {**self.sides, **other.sides}
        sides = {name: fill_schema(self.sides.get(name), other.sides.get(name)) for name in names}
        if self.schema is None or other.schema is None:
            found = other if self.schema is None else self
            return found if found.sides == sides else replace(found, sides=sides)
        return Probed(fill_schema(self.schema, other.schema), sides=sides)


TYPE_PROBES = 8
"""Shards that are asked where only the type of a column is unknown, because it was null in all rows so far."""
