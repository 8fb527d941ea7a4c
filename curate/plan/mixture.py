"""Plans of mixtures: the exchange that decides which rows are drawn, and the step that writes them."""

from __future__ import annotations

from curate.mixture.choice import Drawn
from curate.mixture.rows import Fit, Mixing, SourceOfFile
from curate.mixture.take import Take
from curate.plan.dedup import rereadable
from curate.plan.nodes import Apply, Exchanged, Marked, Plan


def mixed(rows: Plan, how: Mixing) -> Plan:
    """Returns the rows of a plan as often as a mixture has them. They are read twice."""
    if how.mixture.by_files:
        rows = Apply(rows, SourceOfFile(how.mixture.sources, how.source_column))
    rows = rereadable(Apply(rows, Fit(how)))
    return Marked(rows, Take(how), Exchanged((rows,), Drawn(how)))
