"""Plans as they are written: what no stage over files gives is an exchange.

A stage reads pieces of its sources, does the same with each, and writes an output for each. So it writes what operators
make of files, of rows in memory, and of unions of those that are done alike. For the first rows of these it counts how
far they reach (`quota`). All else that moves rows, or leaves some out by how many there are, goes through run files:
rows side by side; unions of what is read or done differently; the first rows of what an exchange gives, which then
keeps no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from curate.dataset.formats import stem
from curate.dataset.lazy.ordering import Held
from curate.dataset.lazy.plan import Apply, Checkpoint, Exchanged, Limit, Marked, Plan, Union, Zip
from curate.dataset.lazy.rules import Fusion, Tasks, lower, placed, read_alike, within
from curate.dataset.lazy.sampling import RandomSample
from curate.dataset.lazy.sources import Files
from curate.dataset.lazy.zipping import Zipped


def durable(plan: Plan, *, named: bool, sampled: bool = False) -> Plan:
    """Returns a plan of the same rows, in the same order, that a stage writes: its chain of operators begins with what
    one reads. With `named`, its outputs are called after the files that it reads, if it reads files. `sampled`: a
    random sample is drawn of it.

    Inputs of exchanges are left as they are, which stages of their own write.
    """
    match plan:
        case Apply(input, operator):
            drawn = isinstance(operator, RandomSample)
            if drawn and isinstance(base := _base(input), Union) and not _one_stage(base, named):
                # Of each part where it is read: there a row's place is the one that it is consumed from.
                return Exchanged((plan,), Held(called="union"))
            return Apply(durable(input, named=named, sampled=sampled or drawn), operator)
        case Zip():
            return placed(plan)
        case Limit() if sampled:
            return placed(plan)
        case Union() if not _one_stage(plan, named):
            return Exchanged((plan,), Held(called="union"))
        case Limit(Limit(input, most), rows):
            return durable(Limit(input, min(most, rows)), named=named)
        case Limit(Union(inputs) as union, rows) if not _one_stage(union, named):
            # Each by itself, so that no more is made of it than could be asked for.
            return Exchanged((Union(tuple(Limit(one, rows) for one in inputs)),), Held(first=rows))
        case Limit(input, rows) if not _one_stage(input, named):
            return first_of(input, rows)
    return plan


def _base(plan: Plan) -> Plan:
    return _base(plan.input) if isinstance(plan, Apply) else plan


def through_files(plan: Plan) -> Plan | None:
    """Returns how a plan is written, if that is through an exchange and its rows are consumed without one; else None.
    Raises ConfigError for parts of a union without an identity."""
    written = base = durable(plan, named=True)
    while isinstance(base, Apply):
        base = base.input
    return written if isinstance(base, Exchanged) and isinstance(base.how, Held | Zipped) else None


def uncounted(plan: Plan) -> Plan:
    """Returns a plan of the same rows of which nothing has to be counted before it is written: no limit is left."""
    match plan:
        case Apply(input, operator):
            return Apply(uncounted(input), operator)
        case Limit(input, rows):
            return first_of(uncounted(input), rows)
        case Checkpoint(input, path):
            return Checkpoint(uncounted(input), path)
        case Marked(input, step, marks):
            return Marked(uncounted(input), step, uncounted(marks))
        case Exchanged(inputs, how):
            return Exchanged(tuple(map(uncounted, inputs)), how)
        case Union(inputs):
            return Union(tuple(map(uncounted, inputs)))
        case Zip(inputs):
            return Zip(tuple(map(uncounted, inputs)))
    return plan


def first_of(plan: Plan, rows: int) -> Plan:
    """Returns the first rows of a plan as what an exchange gives."""
    return within(plan, rows) or Exchanged((plan,), Held(first=rows))


def alike(plan: Plan) -> bool:
    """Returns whether a plan is read of files, or of rows in memory, and the same is done with all of it."""
    return fusions(plan) is not None


def _one_stage(plan: Plan, named: bool) -> bool:
    """Returns whether one stage reads a plan; with `named`, of files that outputs can be called after."""
    found = fusions(plan)
    if found is None:
        return False
    read = [one.source.listing for one in found if named and isinstance(one.source, Files)]
    return len(read) < 2 or (_all_differ(_uris(read)) and _all_differ(_names(read)))


def _names(listings: Sequence[Any]) -> list[str]:
    return [stem(name) for one in listings for name in one["name"].to_pylist()]


def _uris(listings: Sequence[Any]) -> list[str]:
    return [uri for one in listings for uri in one["uri"].to_pylist()]


def _all_differ(values: Sequence[str]) -> bool:
    return len(values) == len(set(values))


def fusions(plan: Plan) -> tuple[Fusion, ...] | None:
    """Returns what reads the rows of a plan that is `alike`, several where it is a union; None of another one."""
    physical = lower(plan)
    return physical.fusions if isinstance(physical, Tasks) and read_alike([physical]) else None
