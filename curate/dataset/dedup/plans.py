"""Deduplication as plans: which exchanges there are, and which steps go by what they give.

Rows are told apart by the piece of their source that they are in, and their number there. So their source is pinned: it
is cut into the same pieces by all that read it. What functions of the user make of it is kept in run files first: a
model is asked once, not each time.
"""

from __future__ import annotations

from dataclasses import replace

from curate.dataset.dedup.exact import Chosen, DropCopies, Same
from curate.dataset.dedup.near import Buckets, Clusters, DropNear, Edges, Near, SendSets
from curate.dataset.lazy.durable import alike
from curate.dataset.lazy.operators import Called, Plain
from curate.dataset.lazy.ordering import Held
from curate.dataset.lazy.plan import Apply, Checkpoint, Exchanged, Limit, Marked, Plan, Scan, Union, Zip
from curate.dataset.lazy.sources import Listed


def exact(rows: Plan, same: Same) -> Plan:
    """Returns the rows of a plan without those that are copies of others. They are read twice."""
    rows = rereadable(rows)
    return Marked(rows, DropCopies(same), Exchanged((rows,), Chosen(same)))


def near(rows: Plan, how: Near) -> Plan:
    """Returns the rows of a plan without near duplicates of others. They are read four times."""
    rows = rereadable(rows)
    sent = Marked(rows, SendSets(how), Exchanged((rows,), Buckets(how)))
    edges = Marked(rows, Edges(how), sent)
    return Marked(rows, DropNear(how), Exchanged((edges,), Clusters(how)))


def rereadable(plan: Plan) -> Plan:
    """Returns a plan whose rows are the same, in the same pieces, however often they are read."""
    return Exchanged((plan,), Held()) if asks(plan) else pinned(plan)


def asks(plan: Plan) -> bool:
    """Returns whether a plan has functions of the user, or other steps, that are not to be run again and again."""
    match plan:
        case Scan() | Exchanged() | Checkpoint():
            return False
        case Apply(input, operator):
            return isinstance(operator, Called) or not isinstance(operator, Plain) or asks(input)
        case Union(inputs):
            # Parts that are not read by one stage have no numbers in common, which rows could be told apart by.
            return not alike(plan) or any(map(asks, inputs))
        case Marked(input, _, _):
            return asks(input)
    return True


def pinned(plan: Plan) -> Plan:
    """Returns a plan whose files are cut into the same pieces whatever reads it."""
    match plan:
        case Scan(source):
            return Scan(replace(source, pinned=True)) if isinstance(source, Listed) else plan
        case Apply(input, operator):
            return Apply(pinned(input), operator)
        case Marked(input, step, marks):
            return Marked(pinned(input), step, marks)
        case Limit(input, rows):
            return Limit(pinned(input), rows)
        case Union(inputs):
            return Union(tuple(map(pinned, inputs)))
        case Zip(inputs):
            return Zip(tuple(map(pinned, inputs)))
        case _:
            # What an exchange gives, or a checkpoint, is cut by what is there alone.
            return plan
