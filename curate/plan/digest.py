"""A digest of what decides the rows of a plan, and their order."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from curate.errors import ConfigError
from curate.exchange.kinds.shuffle import Shuffled
from curate.plan.nodes import Apply, Checkpoint, Exchanged, Limit, Marked, Plan, Scan, children, name_of, walk
from curate.sources.protocol import FileListing, Source


def plan_digest(plan: Plan) -> str:
    """Returns sixteen hexadecimal digits: the same for plans of the same steps over inputs of the same names and sizes,
    in any process.

    Raises ConfigError for a plan whose rows are in another order each time, and for a step without an identity.
    """
    for node in walk(plan, until=(Checkpoint,)):
        if isinstance(node, Exchanged) and isinstance(node.how, Shuffled) and node.how.seed is None:
            raise ConfigError(
                "random_shuffle() without a seed gives another order each time, which no state can resume; pass seed="
            )
    return hashlib.blake2b(json.dumps(_told(plan), default=str).encode(), digest_size=8).hexdigest()


def _told(plan: Plan) -> list[Any]:
    below = [_told(one) for one in children(plan)]
    match plan:
        case Scan(source):
            return ["scan", *_rows_of(source)]
        case Apply(_, operator):
            return ["apply", operator.identity(), below]
        case Marked(_, step, _):
            return ["marked", step.identity(), below]
        case Exchanged(_, how):
            return ["exchanged", how.identity(), below]
        case Limit(_, rows):
            return ["limit", rows, below]
        case _:
            return [type(plan).__name__, name_of(plan), below]


def _rows_of(source: Source) -> list[Any]:
    if isinstance(source, FileListing):
        found = [source.listing[name].to_pylist() for name in ("name", "size")]
    else:
        found = [[piece.id, source.generation(piece.data)] for piece in source.pieces()]
    return [source.identity(), found]
