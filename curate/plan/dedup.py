"""Plans of deduplication: their exchanges, and the steps that use the results.

A row is identified by its piece of the source and its number there. So the source is pinned: all readers cut it into
the same pieces. Results of user functions are first stored in run files, so a model runs once, not in each read.
"""

from __future__ import annotations

from curate.dedup.alike import Edges, SendSets
from curate.dedup.buckets import Buckets, Led
from curate.dedup.choice import Choice
from curate.dedup.clusters import Clusters, Members
from curate.dedup.contamination import Common, Decontaminate, Decontamination
from curate.dedup.dropped import DropNear
from curate.dedup.exact import Chosen, DropCopies
from curate.dedup.near import NearDedup
from curate.dedup.spans import CutCopies
from curate.exchange.kinds.base import Materialize
from curate.plan.nodes import Apply, Checkpoint, Exchanged, Limit, Marked, Plan, Scan, Union, Zip, walk
from curate.plan.physical import alike
from curate.plan.rewrites import pinned
from curate.sources.protocol import FileListing


def without_copies(rows: Plan, step: DropCopies | CutCopies) -> Plan:
    """Returns the rows of a plan without copies of others, or without the parts of texts that are. Reads them twice."""
    rows = rereadable(rows)
    return Marked(rows, step, Exchanged((rows,), Chosen(step.rule)))


def decontaminated(rows: Plan, how: Decontamination) -> Plan:
    """Returns the rows of a plan without what evaluation sets have. They are read twice if texts are counted."""
    if how.max_documents is None:
        return Apply(rows, Decontaminate(how))
    rows = rereadable(rows)
    return Marked(rows, Decontaminate(how), Exchanged((rows,), Common(how)))


def near(rows: Plan, how: NearDedup) -> Plan:
    """Returns the rows of a plan without near duplicates of others. They are read four times."""
    rows = rereadable(rows)
    pairs: Plan = Exchanged((rows,), Buckets(how))
    if how.verified:
        pairs = Exchanged((pairs,), Led(how))
    edges = Marked(rows, Edges(how), Marked(rows, SendSets(how), pairs))
    if how.verified:
        return Marked(rows, DropNear(how), Exchanged((edges,), Choice(how)))
    return Marked(rows, DropNear(how), Exchanged((Exchanged((edges,), Clusters(how)),), Members(how)))


def extensible(plan: Plan) -> bool:
    """Returns whether files behind all that a plan reads leave its outputs of these as they are: rows stay in the
    shards of their files, and are dropped for earlier ones alone."""
    match plan:
        case Scan(source):
            return isinstance(source, FileListing)
        case Apply(input, _):
            return extensible(input)
        case Marked(input, DropCopies(same) | CutCopies(same), Exchanged((compared,), Chosen())):
            return same.keeps_earlier and extensible(input) and extensible(compared)
    return False


def rereadable(plan: Plan) -> Plan:
    """Returns a plan whose rows are the same, in the same pieces, however often they are read."""
    return Exchanged((plan,), Materialize()) if asks(plan) else pinned(plan)


def asks(plan: Plan) -> bool:
    """Returns whether a plan has functions of the user, or other steps, that are not to be run again and again."""
    return any(map(_asks, walk(plan, until=(Exchanged, Checkpoint))))


def _asks(node: Plan) -> bool:
    match node:
        case Apply(_, operator):
            return operator.runs_code
        case Union():
            # Parts that are not read by one stage have no numbers in common, which rows could be told apart by.
            return not alike(node)
    return isinstance(node, Limit | Zip)
