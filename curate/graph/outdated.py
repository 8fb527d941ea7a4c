"""Refuses a job with an exchange whose checkpoint has rows of inputs that are others now, or are gone."""

from __future__ import annotations

import numpy as np

from curate.errors import ConfigError
from curate.graph.keys import checkpoints_of
from curate.keywords import of_checkpoint, option, start_over
from curate.ledger.ledger import open_ledger
from curate.ledger.listing import match_outputs
from curate.ledger.manifest import diff_inputs
from curate.resume.options import RunOptions, resolve_output
from curate.sources.patterns import parse_input
from curate.sources.same_bytes import unchanged
from curate.stage.stage import Stage
from curate.stores.open import Stores
from curate.units import format_count


def refuse_outdated(last: Stage, options: RunOptions, *, begun: bool) -> None:
    """Raises ConfigError if a checkpoint that a job with an exchange is made of has outputs of inputs that changed or
    were removed since, and these are not to be made again, or taken out, before it is read; `begun`: nor after outputs
    of the job were planned. These would be said to be of the inputs as they are now, and nobody would ever make them
    again."""
    for before in checkpoints_of(last):
        if before.path is None or before.stage.needs_all_inputs:
            continue  # one with an exchange says so itself
        ledger, store_of = open_ledger(resolve_output(before.path)), Stores().of
        listing = ledger.list()
        if not listing.has_job:
            continue
        inner = [one.path for one in before.stage.before if one.path is not None]
        patterns = [parse_input(one) for one in inner or before.stage.inputs or options.inputs]
        files, plan = before.stage.rows.inputs(patterns, store_of).table, ledger.read_plan(listing)
        growth, done = diff_inputs(plan, files), match_outputs(plan, listing, before.stage.record.suffix).done
        unchanged(plan, files, growth, store_of)
        if not begun and not before.stage.rows.grows and (growth.missing & done).any():
            with of_checkpoint():
                raise ConfigError(
                    f"the checkpoint {before.path} is out of date: some of its inputs are gone, or others came before "
                    f"them, and what it is made of was decided from all of them in their order; {start_over()}"
                )
        for found, what, name, asked in (
            (growth.changed & done, "changed", "redo_stale", options.redo_stale),
            (growth.missing & done, "are gone", "drop_removed", options.drop_removed),
        ):
            if not found.any() or (asked and not begun):
                continue
            if name == "drop_removed" and begun and last.rows.grows:
                continue  # files that it did not begin with are refused once it is to read them
            # Without what was given beside it, the next run would be refused for that.
            given = [one for one in ("overwrite", "redo_stale", "drop_removed") if getattr(options, one) or one == name]
            again = [f"run again with {' and '.join(map(option, given))}"] * (not asked) + [start_over()] * begun
            shards, first = int(np.count_nonzero(found)), plan.shard_id(int(np.flatnonzero(found)[0]))
            raise ConfigError(
                f"the checkpoint {before.path} is out of date: the inputs of {format_count(shards, 'shard')} of it, "
                f"such as {first!r}, {what} since, and an exchange needs the rows of all inputs as they are now; "
                f"{', and '.join(again)}"
            )
