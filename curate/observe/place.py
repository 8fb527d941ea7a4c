"""Where a job is looked for: its output in one spelling, and what is said where no job is."""

from __future__ import annotations

import contextlib

from curate.errors import ConfigError, CurateError
from curate.ledger import layout
from curate.ledger.ledger import Ledger
from curate.ledger.listing import OutputListing
from curate.ledger.packed import FAST
from curate.storage.uris import normalise
from curate.stores.open import open_store

FOREIGN = 20_000
"""Objects after which a listing of what has no job ends."""


class NoJobError(ConfigError):
    """No job has written there, or what it wrote is gone."""


def root_of(output: str) -> str:
    """Returns the one spelling of an output that is looked at. Raises ConfigError for what no job can write to."""
    if not output:
        raise ConfigError("OUTPUT is empty, as where a variable is not set; pass the output of a job")
    if not (root := normalise(output).rstrip("/")):
        raise NoJobError(f"no curate job at {output}, which holds all files; pass the output of a job")
    return root


def ledger_of(output: str) -> Ledger:
    """Returns the ledger of an output that is looked at, whether or not there is one. Raises as `root_of` does."""
    root = root_of(output)
    return Ledger(open_store(root), root, FAST)


def no_job(ledger: Ledger, found: OutputListing | None = None) -> NoJobError:
    """Returns the error for an output without a job; `found`: what lies there, if it was listed."""
    if found is not None and (below := found.jobs_below()):
        shown = ", ".join(f"{ledger.root}/{one}" for one in below[:8]) + ", ..." * (len(below) > 8)
        return NoJobError(f"no curate job at {ledger.root}, but below it: {shown}. Pass the output of one")
    objects = 0 if found is None else len(found.objects)
    more = " or more" * (objects >= FOREIGN)
    others = f"{objects:,}{more} other objects, but no {layout.JOB}" if objects else "there is nothing"
    if found is None:
        others = f"there is no {layout.JOB}"
    if not objects and _is_file(ledger):
        others = "it is a file"
    within = ledger.root
    while found is not None and (within := within.rpartition("/")[0]).strip("/") and not within.endswith(":/"):
        with contextlib.suppress(CurateError):
            ledger.store.stat(f"{within}/{layout.JOB}")
            return NoJobError(f"no curate job at {ledger.root}: it lies in the output of one; pass {within}")
    return NoJobError(
        f"no curate job at {ledger.root} ({others}). Pass the output of a job, or list the known ones with: "
        "curate status"
    )


def _is_file(ledger: Ledger) -> bool:
    try:
        ledger.store.stat(ledger.root)
    except CurateError:
        return False
    return True
