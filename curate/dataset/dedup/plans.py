"""Deduplication as plans: which exchanges there are, and which steps go by what they give.

Rows are told apart by the piece of their source that they are in, and their number there. So their source is pinned: it
is cut into the same pieces by all that read it.
"""

from __future__ import annotations

from dataclasses import replace

from curate.dataset.dedup.exact import Chosen, DropCopies, Same
from curate.dataset.dedup.near import Buckets, Clusters, DropNear, Edges, Near, SendSets
from curate.dataset.lazy.plan import Apply, Exchanged, Limit, Marked, Plan, Scan, Union, Zip
from curate.dataset.lazy.sources import Listed


def exact(rows: Plan, same: Same) -> Plan:
    """Returns the rows of a plan without those that are copies of others. The plan is run twice."""
    rows = pinned(rows)
    return Marked(rows, DropCopies(same), Exchanged((rows,), Chosen(same)))


def near(rows: Plan, how: Near) -> Plan:
    """Returns the rows of a plan without near duplicates of others. The plan is run four times."""
    rows = pinned(rows)
    sent = Marked(rows, SendSets(how), Exchanged((rows,), Buckets(how)))
    edges = Marked(rows, Edges(how), sent)
    return Marked(rows, DropNear(how), Exchanged((edges,), Clusters(how)))


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
